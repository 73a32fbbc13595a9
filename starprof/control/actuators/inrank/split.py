"""Batches whose division among the ranks can change while the job runs (LB-BSP), with the exact mean over all samples.

The samples of a step stay the same in number, and each is seen by one rank. A rank's loss, the mean over its own
samples, counts by how many these are: DDP's mean over ranks then is the mean over samples, whatever the division.

All ranks change the division before the same batch: every few steps they tell each other what they were asked for and
how far they have drawn, in one small collective of the loop's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

import torch
import torch.distributed as dist

from starprof.errors import UsageError

AGREE_EVERY = 20


class _Lever:
    """See `levers.Lever`: keeps what was asked for until the ranks have agreed on it."""

    def __init__(self) -> None:
        self.wanted: dict[int, int] | None = None

    def set(self, value: Any) -> str:
        """See `levers.Lever`."""
        if not isinstance(value, dict) or not all(type(n) is int and n >= 1 for n in value.values()):
            raise ValueError("a division is a number of samples, at least 1, for each rank")
        self.wanted = {int(rank): samples for rank, samples in value.items()}
        return f"asked to divide {sum(self.wanted.values())} samples among {len(self.wanted)} ranks"

    def back(self) -> str:
        """See `levers.Lever`."""
        self.wanted = None
        return ""


lever = _Lever()
"""Of this process."""


class Balanced:
    """A batch sampler for DataLoader; the same call on all ranks.

    Attributes:
        sizes: samples of each rank in the batches that are drawn now.
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        agree_every: int = AGREE_EVERY,
    ) -> None:
        """Begin with equal parts.

        Args:
            dataset: whose samples are drawn.
            batch_size: samples of a rank where all have as many.
            shuffle: another order in each epoch.
            seed: of that order.
            agree_every: steps from one agreement to the next.

        Raises:
            UsageError: there is less than one batch for all ranks.
        """
        grouped = dist.is_available() and dist.is_initialized()
        self._rank: int = dist.get_rank() if grouped else 0
        self._world: int = dist.get_world_size() if grouped else 1
        self._samples, self._total = len(dataset), batch_size * self._world
        if batch_size < 1 or self._samples < self._total:
            raise UsageError(f"{self._samples} samples are no batch of {batch_size} for each of {self._world} ranks")
        self._shuffle, self._seed, self._agree_every = shuffle, seed, agree_every
        self._epoch = self._drawn = self._steps = 0
        self._equal = [batch_size] * self._world
        self._schedule = [(0, self._equal)]

    @property
    def sizes(self) -> list[int]:
        """See the class."""
        return self._at(self._drawn)

    def set_epoch(self, epoch: int) -> None:
        """Of the order in which samples come."""
        self._epoch = epoch

    def __len__(self) -> int:
        """Batches of an epoch; samples that fill none are left out."""
        return self._samples // self._total

    def __iter__(self) -> Iterator[list[int]]:
        order = list(range(self._samples))
        if self._shuffle:
            generator = torch.Generator().manual_seed(self._seed + self._epoch)
            order = torch.randperm(self._samples, generator=generator).tolist()
        for batch in range(len(self)):
            sizes = self.sizes
            begin = batch * self._total + sum(sizes[: self._rank])
            self._drawn += 1
            yield order[begin : begin + sizes[self._rank]]

    def weight(self, samples: int) -> float:
        """Factor of a loss that is the mean over so many samples; also of a part of the batch, where it is divided."""
        return samples * self._world / self._total

    def step(self) -> None:
        """An update is made: now and then the ranks agree on the division of the batches to come."""
        self._steps += 1
        if self._world == 1 or self._steps % self._agree_every:
            return
        told: list[Any] = [None] * self._world
        dist.all_gather_object(told, (self._wanted(), self._drawn))
        wanted = {tuple(sizes) for sizes, _ in told}
        if len(wanted) != 1:
            return  # not all have heard of it yet
        sizes = list(wanted.pop())
        if sizes != self._schedule[-1][1]:
            self._schedule.append((max(drawn for _, drawn in told), sizes))

    def _wanted(self) -> list[int]:
        wanted: Mapping[int, int] | None = lever.wanted
        if wanted is None or set(wanted) != set(range(self._world)) or sum(wanted.values()) != self._total:
            return self._equal
        return [wanted[rank] for rank in range(self._world)]

    def _at(self, drawn: int) -> list[int]:
        while len(self._schedule) > 1 and self._schedule[1][0] <= drawn:
            del self._schedule[0]
        return self._schedule[0][1]
