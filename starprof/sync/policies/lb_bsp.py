"""Load-balanced BSP: everybody waits for everybody, but the slow get smaller batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from starprof.sync.policies.base import Draft, Policy


class LbBsp(Policy):
    """Synchronous steps; batches follow the workers' speed, the total stays, and gradients count by their samples.

    The mean over all samples stays exact: each gradient's weight is its share of the samples.
    """

    name = "lb-bsp"

    def __init__(self, workers: Iterable[int], batch_size: int, *, version: int = 0) -> None:
        """Begin with `batch_size` samples for each worker."""
        if batch_size < 1:
            raise ValueError(f"a batch needs at least 1 sample, not {batch_size}")
        super().__init__(workers, version=version)
        self.batch_sizes = dict.fromkeys(self.members, batch_size)
        self._iteration_s: Mapping[int, float] = {}

    def _predicted(self, iteration_s: Mapping[int, float], draft: Draft) -> None:  # noqa: ARG002
        self._iteration_s = dict(iteration_s)

    def _join(self, worker: int, draft: Draft) -> None:
        total = sum(self.batch_sizes.values())
        super()._join(worker, draft)
        self.batch_sizes = split(dict.fromkeys(self.members, 1.0), max(total, len(self.members)))
        draft.batch_sizes = dict(self.batch_sizes)

    def _leave(self, worker: int, draft: Draft) -> None:
        total = sum(self.batch_sizes.values())
        super()._leave(worker, draft)
        del self.batch_sizes[worker]
        if self.members:
            self.batch_sizes = split({w: float(b) for w, b in self.batch_sizes.items()}, total)
            draft.batch_sizes = dict(self.batch_sizes)

    def _settle(self, at_s: float, draft: Draft) -> None:  # noqa: ARG002
        if not self.members or len(self.waiting) < len(self.members):
            return
        taken = self._take(self.members, draft)
        total = sum(g.samples for g in taken)
        self._apply(taken, [g.samples / total for g in taken], draft)
        if all(self._iteration_s.get(worker, 0.0) > 0.0 for worker in self.members):
            samples = {g.worker: g.samples for g in taken}
            speed = {worker: samples[worker] / self._iteration_s[worker] for worker in self.members}
            self.batch_sizes = split(speed, sum(self.batch_sizes.values()))
            draft.batch_sizes = dict(self.batch_sizes)
            self._iteration_s = {}  # they held for the batches of before


def split(share: Mapping[int, float], total: int) -> dict[int, int]:
    """Divide `total` samples in proportion, each worker at least one, largest remainders rounded up."""
    spare = total - len(share)
    whole = sum(share.values())
    exact = {worker: spare * part / whole for worker, part in share.items()}
    sizes = {worker: 1 + int(part) for worker, part in exact.items()}
    rest = sorted(share, key=lambda worker: (int(exact[worker]) - exact[worker], worker))
    for worker in rest[: total - sum(sizes.values())]:
        sizes[worker] += 1
    return sizes
