"""What a loop does between two synchronisations, compared from one to the next: always the same, or refused."""

from __future__ import annotations

from starprof.control.engine.updating.operations import STEPS, Operation

Sequence = tuple[Operation, ...]

SETTLED = 3
"""A sequence counts as known once it has come this often in a row."""
PATIENCE = 24
"""Iterations after which a sequence must have settled."""


class History:
    """The sequences so far.

    A loop may change what it does for good (an average that begins later). One that comes back to what it did before
    depends on something that is not known here, such as an iteration number that ranks don't agree on in rounds.

    Attributes:
        refusal: why updates can't be replayed; stays once it is there.
        last: the last sequence.
    """

    def __init__(self) -> None:
        """Nothing was seen."""
        self.refusal: str | None = None
        self.last: Sequence | None = None
        self._run = 0
        self._unsettled = 0
        self._earlier: list[Sequence] = []

    @property
    def settled(self) -> Sequence | None:
        """The sequence of the loop, if it is known."""
        last = self.last
        if last is None or self._run < SETTLED or self.refusal is not None:
            return None
        return last if any(operation.kind in STEPS for operation in last) else None

    def refuse(self, reason: str) -> None:
        """Note a reason; the first one stays."""
        if self.refusal is None:
            self.refusal = reason

    def restart(self) -> None:
        """What was learned does not hold any more."""
        self.last = None
        self._run = self._unsettled = 0
        self._earlier = []

    def add(self, sequence: Sequence) -> None:
        """One iteration's operations."""
        if sequence == self.last:
            self._run += 1
            if self._run > PATIENCE:
                return  # nothing of it is new
        else:
            if sequence in self._earlier and self.last is not None:
                self.refuse(_difference(sequence, self.last))
            if self.last is not None:
                self._earlier = [*self._earlier, self.last][-SETTLED:]
            self.last, self._run = sequence, 1
        self._unsettled = 0 if self._run >= SETTLED else self._unsettled + 1
        if self._unsettled >= PATIENCE:
            before = self._earlier[-1] if self._earlier else ()
            self.refuse(_difference(sequence, before))
        self._look_at(sequence)

    def _look_at(self, sequence: Sequence) -> None:
        for operation in sequence:
            if operation.problem:
                self.refuse(f"{operation.name} can't be replayed: {operation.problem}")
        steps = [operation for operation in sequence if operation.kind in STEPS]
        for operation in steps:
            if sum(other == operation for other in steps) > 1:
                self.refuse(f"{operation.name} is called more than once after one synchronising backward pass")
        if not steps and self._run >= PATIENCE:
            self.refuse(
                "no optimizer step of the model was seen after a synchronising backward pass; a step inside of a "
                "compiled function, or of an optimizer that torch doesn't know, can't be replayed"
            )


def _difference(one: Sequence, other: Sequence) -> str:
    """Why two sequences of one loop are not alike."""
    if [op.kind for op in one] == [op.kind for op in other]:
        changed = [a for a, b in zip(one, other, strict=True) if a != b]
        name = changed[0].name if changed else "an operation"
        return f"{name} is not called with the same arguments in every iteration"
    if any(op.kind in STEPS for op in one) != any(op.kind in STEPS for op in other):
        return (
            "some synchronising backward passes are followed by no optimizer step; accumulate gradients inside of "
            "no_sync(), and skip no steps"
        )
    missing = [op for op in (*one, *other) if (op in one) != (op in other)]
    name = missing[0].name if missing else "an operation"
    return f"{name} is called in some iterations only; call it in each, or once an epoch after the loop over the loader"
