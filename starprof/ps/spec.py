"""What is trained: names and shapes of the parameters, their optimizer, and which shard keeps which of them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from starprof.errors import TransportError

NUMBER_BYTES: Mapping[str, int] = {"float32": 4, "float64": 8}
HALVES = ("float16", "bfloat16")
"""Types that gradients may have on the wire."""


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters that share hyper-parameters.

    Attributes:
        parameters: by their place in the spec.
        flags: yes-or-no settings of the optimizer.
        numbers: hyper-parameters that have a value, in the order in which they are told.
        values: at the start.
    """

    parameters: tuple[int, ...]
    flags: Mapping[str, bool]
    numbers: tuple[str, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Spec:
    """One model and its optimizer.

    Attributes:
        dtype: of the numbers that shards keep, and gradients have.
        names: of the parameters.
        shapes: of each.
        optimizer: its class's name.
        groups: of parameters.
    """

    dtype: str
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    optimizer: str
    groups: tuple[Group, ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Numbers in each parameter."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def number_bytes(self) -> int:
        """Bytes of a number."""
        return NUMBER_BYTES[self.dtype]

    @cached_property
    def digest(self) -> str:
        """The same for all who train the same; hyper-parameters may differ."""
        told = asdict(self)
        for group in told["groups"]:
            del group["values"]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]

    def to_json(self) -> bytes:
        """As it is sent."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def of(cls, data: bytes | memoryview) -> Spec:
        """What was sent.

        Raises:
            TransportError: it is none.
        """
        try:
            return cls._read(json.loads(bytes(data)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise TransportError(f"the other side sent no model: {error}") from error

    @classmethod
    def _read(cls, told: Any) -> Spec:
        spec = cls(
            str(told["dtype"]),
            tuple(str(name) for name in told["names"]),
            tuple(tuple(int(size) for size in shape) for shape in told["shapes"]),
            str(told["optimizer"]),
            tuple(
                Group(
                    tuple(int(place) for place in group["parameters"]),
                    {str(name): bool(value) for name, value in group["flags"].items()},
                    tuple(str(name) for name in group["numbers"]),
                    tuple(float(value) for value in group["values"]),
                )
                for group in told["groups"]
            ),
        )
        places = sorted(place for group in spec.groups for place in group.parameters)
        if spec.dtype not in NUMBER_BYTES or len(spec.names) != len(spec.shapes):
            raise ValueError("its parts don't fit together")
        if places != list(range(len(spec.names))) or any(size < 0 for shape in spec.shapes for size in shape):
            raise ValueError("its groups don't fit its parameters")
        return spec


def spread(sizes: Sequence[int], shards: int) -> tuple[tuple[int, ...], ...]:
    """Which parameters each shard keeps: the largest first, each where there is least so far.

    Args:
        sizes: of the parameters.
        shards: how many there are.

    Returns:
        Their places in `sizes`, in order, of each shard.
    """
    kept: list[list[int]] = [[] for _ in range(shards)]
    filled = [0] * shards
    for place in sorted(range(len(sizes)), key=lambda place: (-sizes[place], place)):
        shard = min(range(shards), key=lambda one: (filled[one], one))
        kept[shard].append(place)
        filled[shard] += sizes[place]
    return tuple(tuple(sorted(places)) for places in kept)
