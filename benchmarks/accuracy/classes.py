"""Figures of the generated runs per class of fault, and of quiet runs per size of the slowdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from draws.catalogue import RANKS
from label import Told

Figure = float | int | None
BANDS: Mapping[str, tuple[float, float]] = {
    "1.02x to 1.05x": (1.02, 1.05),
    "1.05x to 1.07x": (1.05, 1.07),
    "1.07x to 1.2x": (1.07, 1.2),
    "1.2x to 1.5x": (1.2, 1.5),
    "from 1.5x": (1.5, float("inf")),
}
LASTING_STEPS = 100
COLUMNS = (
    "runs",
    "recall",
    "precision",
    "wrong_blame",
    "cause",
    "cause_place",
    "cause_unknown",
    "wrong_cause",
    "onset_error_steps",
    "abstained",
)


def figures(seen: Sequence[Told]) -> dict[str, Figure]:
    """What is counted of some runs; None where nothing was judged.

    Recall counts runs in which all who are to blame were named, precision ranks, causes findings.
    """
    faulty = [t for t in seen if t.faulty]
    hit, wrong = sum(len(t.outcome.hit) for t in seen), sum(len(t.outcome.wrong) for t in seen)
    causes = {name: sum(getattr(t, name) for t in seen) for name in ("right", "less", "unknown", "wrong")}
    named = sum(causes.values())
    onsets = [t.outcome.onset_error for t in seen if t.outcome.onset_error is not None]
    return {
        "runs": len(seen),
        "recall": _share(sum(t.found for t in faulty), len(faulty)),
        "precision": _share(hit, hit + wrong),
        "wrong_blame": _share(sum(bool(t.outcome.wrong) for t in seen), len(seen)),
        "cause": _share(causes["right"], named),
        "cause_place": _share(causes["less"], named),
        "cause_unknown": _share(causes["unknown"], named),
        "wrong_cause": _share(causes["wrong"], named),
        "onset_error_steps": float(np.median(onsets)) if onsets else None,
        "abstained": _share(sum(t.outcome.abstained for t in seen), len(seen)),
    }


def by_class(seen: Iterable[Told]) -> dict[str, dict[str, Figure]]:
    """Figures per class of fault, in the order of their names."""
    return _grouped(seen, lambda t: t.label.fault)


def by_shape(seen: Iterable[Told]) -> dict[str, dict[str, Figure]]:
    """Figures of single faults per course of time."""
    return _grouped((t for t in seen if t.label.shape and "two" not in t.label.fault), lambda t: t.label.shape)


def by_size(seen: Iterable[Told]) -> dict[str, dict[str, Figure]]:
    """Figures of lasting single faults of ranks in quiet runs, per size of the slowdown."""
    lasting = [t for t in seen if t.label.steps >= LASTING_STEPS and t.label.shape != "intermittent"]
    single = [t for t in lasting if t.faulty and t.label.quiet and t.label.fault in RANKS]
    return {name: figures([t for t in single if low <= t.label.slowdown < high]) for name, (low, high) in BANDS.items()}


def _grouped(seen: Iterable[Told], key: Callable[[Told], str]) -> dict[str, dict[str, Figure]]:
    groups: dict[str, list[Told]] = {}
    for one in seen:
        groups.setdefault(key(one), []).append(one)
    return {name: figures(groups[name]) for name in sorted(groups)}


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
