"""Passing over batches of a torch data loader, without loading them where that can be done.

What is not dispatched yet is passed over in the sampler alone; neither the dataset nor its random augmentation notices.
Workers load ahead, and what they have begun cannot be taken back. It is received and dropped only where it must be:
when the sampler has no more, or when several sources that do not load equally far ahead have to stay in step, batch by
batch. Else the loop uses it, and batches behind it are passed over in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, _DatasetKind


class Plan(NamedTuple):
    """How to pass over batches of one iterator.

    Attributes:
        unloaded: batches to take from the sampler.
        loaded: batches to receive and drop after that, at most.
        take_index: takes the next one from the sampler.
        take_batch: waits for the next loaded one.
    """

    unloaded: int
    loaded: int
    take_index: Callable[[], Any]
    take_batch: Callable[[], Any]


def layout(loader: Any) -> tuple[int, int] | None:
    """(batches that are loaded ahead, batches of an epoch), None where not known.

    Loaders of the same layout that begin together stay together, however batches are passed over.
    """
    if not isinstance(loader, DataLoader) or loader._dataset_kind == _DatasetKind.Iterable:
        return None
    try:
        length = len(loader._index_sampler)
    except (TypeError, NotImplementedError):
        return None
    return (loader.prefetch_factor or 0) * loader.num_workers, length


def plan(iterator: Any, batches: int, in_step: bool) -> Plan:
    """Find out where batches can be passed over.

    Args:
        iterator: torch's, of a loader with or without workers.
        batches: how many.
        in_step: exactly the next ones, because other sources of another layout pass over theirs.
    """
    if iterator._dataset_kind == _DatasetKind.Iterable:
        unloaded, loaded = 0, batches
    elif iterator._num_workers == 0:
        unloaded, loaded = batches, 0
    else:
        dispatched = len(iterator._task_info)
        unloaded, loaded = max(0, batches - dispatched) if in_step else batches, dispatched
    return Plan(unloaded, loaded, iterator._next_index, iterator._next_data)


def pass_over(plan: Plan, batches: int) -> Iterator[bool]:
    """Carry a plan out, batch by batch; it ends early where the epoch does.

    Yields:
        Whether the batch passed over had to be loaded. What the user's sampler, dataset or workers raise is raised, and
        as when the loop fetches, the batch that could not be loaded counts.
    """
    passed = 0
    while passed < plan.unloaded:
        try:
            plan.take_index()
        except StopIteration:
            break
        passed += 1
        yield False
    for _ in range(min(batches - passed, plan.loaded)):
        try:
            plan.take_batch()
        except StopIteration:
            return
        except Exception:
            yield True
            raise
        yield True
