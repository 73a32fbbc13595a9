"""Groups of workers that take about equally long."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from itertools import pairwise


def by_speed(iteration_s: Mapping[int, float], threshold: float) -> list[list[int]]:
    """Agglomerative clustering of iteration times, average linkage, on one dimension.

    The two neighbouring groups whose means are nearest are joined until all are more than the threshold apart. On a
    line only neighbours can be nearest, so a heap of their distances does it in O(n log n).

    Args:
        iteration_s: of each worker.
        threshold: share of the overall median time; STAR (arXiv 2512.09685) uses 50 ms, whatever the iteration takes.

    Returns:
        Groups from fast to slow, the workers of each from fast to slow.
    """
    if not iteration_s:
        return []
    order = sorted(iteration_s, key=lambda worker: (iteration_s[worker], worker))
    limit = threshold * iteration_s[order[len(order) // 2]]
    groups: dict[int, list[int]] = {place: [worker] for place, worker in enumerate(order)}
    total = {place: iteration_s[worker] for place, worker in enumerate(order)}
    after = {place: place + 1 for place in groups}
    before = {place: place - 1 for place in groups}

    def gap(left: int, right: int) -> float:
        return total[right] / len(groups[right]) - total[left] / len(groups[left])

    heap = [(gap(left, right), left, right) for left, right in pairwise(groups)]
    heapq.heapify(heap)
    while heap:
        distance, left, right = heapq.heappop(heap)
        if left not in groups or right not in groups or after[left] != right or distance != gap(left, right):
            continue  # one of the two has grown since
        if distance > limit:
            break
        groups[left] += groups.pop(right)
        total[left] += total.pop(right)
        after[left] = after[right]
        before[after[left]] = left
        for one, other in ((before[left], left), (left, after[left])):
            if one in groups and other in groups:
                heapq.heappush(heap, (gap(one, other), one, other))
    return list(groups.values())
