"""Results of rounds that are still needed: to be applied here, to be sent, or to be handed to who missed them.

All of it is called with the engine's lock held.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starprof.control.engine.flat import Flat


@dataclass(slots=True, eq=False)
class Result:
    """One of them.

    Attributes:
        flat: its values; they stay what they are while somebody uses it.
        users: how many do, the store of results itself included.
    """

    flat: Flat
    users: int = 1


class Results:
    """By round."""

    def __init__(self, give: Callable[[Flat], None]) -> None:
        """Begin with none; what is no longer needed is given back."""
        self._give = give
        self._results: dict[int, Result] = {}
        self._floor = 0

    def __len__(self) -> int:
        """How many there are."""
        return len(self._results)

    def put(self, number: int, flat: Flat) -> None:
        """A round's result is here, in place of one of an earlier attempt."""
        self.drop(number)
        self._results[number] = Result(flat)

    def get(self, number: int) -> Flat | None:
        """A round's result."""
        result = self._results.get(number)
        return None if result is None else result.flat

    def acquire(self, number: int) -> Result | None:
        """A round's result for use without the lock; `release` follows."""
        result = self._results.get(number)
        if result is not None:
            result.users += 1
        return result

    def release(self, result: Result) -> None:
        """It is not used any more."""
        result.users -= 1
        if not result.users:
            self._give(result.flat)

    def drop(self, number: int) -> None:
        """Nobody asks for it any more."""
        result = self._results.pop(number, None)
        if result is not None:
            self.release(result)

    def clear(self, first: int) -> None:
        """None of them counts any more from the first on."""
        for number in [number for number in self._results if number >= first]:
            self.drop(number)

    def trim(self, floor: int) -> None:
        """Nobody asks for rounds before `floor`."""
        if floor <= self._floor:
            return
        self._floor = floor
        for number in [number for number in self._results if number < floor]:
            self.drop(number)
