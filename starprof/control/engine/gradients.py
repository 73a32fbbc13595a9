"""The way between a model's gradients and flat tensors in the host's memory: a copy, or in pieces through a device's.

    training's stream:   gather 1 | gather 2 | gather 1 ...        | scatter 1 | scatter 2 | the update
    side stream:                  | out 1    | out 2 | ...    in 1 | in 2      | ...

A piece is a run of parameters that one call gathers on their device, so that hundreds of small ones are one transfer.
Two tensors take turns as pieces, which bounds what a device needs beside the gradients; a parameter as large as a piece
is copied as it is. The host waits for the event after its own last transfer and never for the device as a whole: what
others have put on the training's stream behind it does not hold up the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.nn import Parameter

from starprof.control.engine.flat import Flat, Layout

PIECE_BYTES = 32 << 20
"""Large enough for the full speed of a bus; two of them are of no weight on a device that trains."""

Tensors = list[torch.Tensor | None]


class Gradients(Protocol):
    """Those of one model; used by the thread that trains it."""

    @property
    def parameters(self) -> Sequence[Parameter]:
        """Whose they are."""
        ...

    def collect(self, flat: Flat) -> None:
        """Take the parameters' gradients, which are there now, and zeros for none; the settings are left alone."""
        ...

    def put(self, flat: Flat, scale: float = 1.0) -> None:
        """Make this the parameters' gradients, times `scale`; None where nobody has one."""
        ...


def gradients_of(layout: Layout) -> Gradients:
    """The way that fits the parameters' device."""
    return Staged(layout) if layout.device.type == "cuda" else Direct(layout)


class Direct:
    """For parameters in the host's memory (see `Gradients`)."""

    def __init__(self, layout: Layout) -> None:
        """Of these parameters."""
        self.parameters: Sequence[Parameter] = layout.parameters
        self._layout = layout

    def collect(self, flat: Flat) -> None:
        """See `Gradients`."""
        with torch.no_grad():
            _gather(flat.views, _given(self._layout, flat))

    def put(self, flat: Flat, scale: float = 1.0) -> None:
        """See `Gradients`."""
        with torch.no_grad():
            targets = _targets(self._layout, flat.used)
            _scatter(targets, flat.views)
            _multiply(targets, scale)


@dataclass(slots=True)
class _Turn:
    """A tensor on the device that pieces take in turn.

    Attributes:
        tensor: room for the largest piece.
        filled: event after which its values are there.
        free: event after which they are not needed any more.
    """

    tensor: torch.Tensor
    filled: Any
    free: Any


@dataclass(slots=True)
class _Piece:
    """Parameters that are transferred together.

    Attributes:
        parameters: which of the layout's.
        values: where in the flat tensor.
        turn: where on the device; None: as they are.
        staged: the part of the turn's tensor that it fills.
        views: of that, one of each parameter.
    """

    parameters: slice
    values: slice
    turn: _Turn | None = None
    staged: torch.Tensor | None = None
    views: list[torch.Tensor] = field(default_factory=list)


class Staged:
    """For parameters on a device with streams (see the module)."""

    def __init__(self, layout: Layout, piece_bytes: int = PIECE_BYTES) -> None:
        """Of these parameters; takes the room on the device that it will need."""
        self.parameters: Sequence[Parameter] = layout.parameters
        self._layout = layout
        self._module = torch.get_device_module(layout.device)
        self._side = self._module.Stream(layout.device)
        self._begun = self._module.Event()
        most = max(1, piece_bytes // layout.dtype.itemsize)
        self._pieces = _pieces(layout.edges, most)
        self._stage(most)

    def collect(self, flat: Flat) -> None:
        """See `Gradients`."""
        with torch.no_grad():
            self._collect(flat, _given(self._layout, flat))
        flat.settle()

    def put(self, flat: Flat, scale: float = 1.0) -> None:
        """See `Gradients`."""
        with torch.no_grad():
            targets = _targets(self._layout, flat.used)
            self._put(flat, targets)
            _multiply(targets, scale)

    def _collect(self, flat: Flat, gradients: Tensors) -> None:
        current, side = self._module.current_stream(self._layout.device), self._side
        self._begun.record(current)
        side.wait_event(self._begun)
        for piece in self._pieces:
            if piece.turn is None:
                with self._module.stream(side):
                    _out(flat.views[piece.parameters], gradients[piece.parameters])
                continue
            current.wait_event(piece.turn.free)
            _gather(piece.views, gradients[piece.parameters])
            piece.turn.filled.record(current)
            side.wait_event(piece.turn.filled)
            with self._module.stream(side):
                flat.tensor[piece.values].copy_(piece.staged, non_blocking=True)
            piece.turn.free.record(side)
        self._copied(flat).record(side)

    def _put(self, flat: Flat, targets: Tensors) -> None:
        current, side = self._module.current_stream(self._layout.device), self._side
        for piece in self._pieces:
            mine = targets[piece.parameters]
            if piece.turn is None:
                _in(mine, flat.views[piece.parameters])
            elif any(target is not None for target in mine):
                assert piece.staged is not None
                side.wait_event(piece.turn.free)
                with self._module.stream(side):
                    piece.staged.copy_(flat.tensor[piece.values], non_blocking=True)
                piece.turn.filled.record(side)
                current.wait_event(piece.turn.filled)
                _scatter(mine, piece.views)
                piece.turn.free.record(current)
        self._copied(flat).record(current)  # it has waited for the side stream at every piece

    def _copied(self, flat: Flat) -> Any:
        if flat.copied is None:
            flat.copied = self._module.Event()
        return flat.copied

    def _stage(self, most: int) -> None:
        """Give those pieces their turns that are not a single parameter as large as one."""
        runs = [p for p in self._pieces if p.parameters.stop - p.parameters.start > 1 or _size(p) < most]
        room = max((_size(piece) for piece in runs), default=0)
        turns = [
            _Turn(
                torch.empty(room, dtype=self._layout.dtype, device=self._layout.device),
                self._module.Event(),
                self._module.Event(),
            )
            for _ in range(min(2, len(runs)))
        ]
        for number, piece in enumerate(runs):
            turn = turns[number % len(turns)]
            piece.turn, piece.staged = turn, turn.tensor[: _size(piece)]
            begin = piece.values.start
            edges = self._layout.edges[piece.parameters.start : piece.parameters.stop + 1]
            piece.views = [
                turn.tensor[edges[i] - begin : edges[i + 1] - begin].view(parameter.shape)
                for i, parameter in enumerate(self._layout.parameters[piece.parameters])
            ]


def _pieces(edges: Sequence[int], most: int) -> list[_Piece]:
    """Runs of parameters with at most so many elements each, and each parameter that has more."""
    pieces: list[_Piece] = []
    begin, count = 0, len(edges) - 1
    while begin < count:
        end = begin + 1
        while end < count and edges[end + 1] - edges[begin] <= most:
            end += 1
        pieces.append(_Piece(slice(begin, end), slice(edges[begin], edges[end])))
        begin = end
    return pieces


def _size(piece: _Piece) -> int:
    return int(piece.values.stop - piece.values.start)


def _given(layout: Layout, flat: Flat) -> Tensors:
    """The parameters' gradients, noted in the flat tensor."""
    gradients = [parameter.grad for parameter in layout.parameters]
    flat.used = [gradient is not None for gradient in gradients]
    return gradients


def _targets(layout: Layout, used: Sequence[bool]) -> Tensors:
    """Gradients to be written to; the others are gone."""
    for parameter, wanted in zip(layout.parameters, used, strict=True):
        if not wanted:
            parameter.grad = None
        elif parameter.grad is None:
            # A parameter may want gradients of another type than its own.
            dtype = getattr(parameter, "grad_dtype", None) or parameter.dtype
            parameter.grad = torch.empty_like(parameter, dtype=dtype)
    return [parameter.grad for parameter in layout.parameters]


def _gather(views: Sequence[torch.Tensor], gradients: Tensors) -> None:
    there = [(view, gradient) for view, gradient in zip(views, gradients, strict=True) if gradient is not None]
    if there:
        torch._foreach_copy_([view for view, _ in there], [gradient for _, gradient in there])
    if len(there) < len(views):
        torch._foreach_zero_([view for view, gradient in zip(views, gradients, strict=True) if gradient is None])


def _scatter(targets: Tensors, views: Sequence[torch.Tensor]) -> None:
    there = [(target, view) for target, view in zip(targets, views, strict=True) if target is not None]
    if there:
        torch._foreach_copy_([target for target, _ in there], [view for _, view in there])


def _multiply(targets: Tensors, scale: float) -> None:
    there = [target for target in targets if target is not None]
    if there and scale != 1.0:  # never the update itself: others must get the same bits
        torch._foreach_mul_(there, scale)


def _out(views: Sequence[torch.Tensor], gradients: Tensors) -> None:
    for view, gradient in zip(views, gradients, strict=True):
        view.zero_() if gradient is None else view.copy_(gradient, non_blocking=True)


def _in(targets: Tensors, views: Sequence[torch.Tensor]) -> None:
    for target, view in zip(targets, views, strict=True):
        if target is not None:
            target.copy_(view, non_blocking=True)
