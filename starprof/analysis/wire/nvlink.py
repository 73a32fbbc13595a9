"""A GPU lost NVLinks, or its links repeat what was damaged: the reduction goes a longer way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starprof.analysis.causes.base import rank_names
from starprof.analysis.causes.contrast import NAN, Contrast
from starprof.analysis.causes.xid import BEFORE_S
from starprof.analysis.wire.base import WireCase, WireCause, among_nodes
from starprof.analysis.xids import Reported, listed, on_gpu_of, reported
from starprof.model import causes
from starprof.model.xids import LINK

if TYPE_CHECKING:
    import pandas as pd

MIN_ERRORS_PER_S = 1.0
OUTSTANDING = 5.0


@dataclass(frozen=True)
class _Gpu:
    row: int
    links: Contrast
    errors: Contrast
    xids: tuple[Reported, ...]

    @property
    def fewer(self) -> bool:
        return self.links.known and self.links.now < self.links.usual_low - 0.5

    @property
    def repeating(self) -> bool:
        errors = self.errors
        return errors.known and errors.now >= max(MIN_ERRORS_PER_S, OUTSTANDING * errors.usual_high)


def explain(case: WireCase) -> WireCause | None:
    """One GPU stands out by fewer active links or by link errors; two may be both ends of one link."""
    gpus = _gpus(case)
    odd = [gpu for gpu in gpus if gpu.fewer or gpu.repeating or gpu.xids]
    if not odd or 2 * len(odd) > len(gpus) or len(odd) > 2:
        return None
    ranks = tuple(case.own.rank(gpu.row) for gpu in odd)
    nodes = tuple(sorted({case.own.infos[gpu.row].node for gpu in odd}))
    alone = len(odd) == 1
    what = [_words(case, gpu) for gpu in odd]
    return WireCause(
        cause=causes.NVLINK,
        nodes=nodes,
        ranks=ranks if alone else (),
        share=1.0,
        certainty=0.7,
        evidence=(
            *what,
            "That fell together with the slower reduction; all other GPUs keep their links and show no errors of them.",
        ),
        action=f"Run nvidia-smi nvlink -s and -e on {case.hosts(nodes)}, look for XIDs of NVLink (74, 144 to 150) in "
        "the kernel log, reset the GPU and have the link checked if it does not come back.",
        verify="With all links active and error counters standing still the reduction must be as fast as before; if it "
        "is not, NVLink was not the cause.",
        next=""
        if alone
        else f"{rank_names(ranks).capitalize()} may be the two ends of one link: which end is at fault can't be told; "
        "run a pairwise bandwidth test of each with a third GPU.",
    )


def _words(case: WireCase, gpu: _Gpu) -> str:
    parts = []
    if gpu.fewer:
        parts.append(f"has {gpu.links.now:.0f} active NVLinks ({gpu.links.words(lambda v: f'{v:.0f}')})")
    if gpu.repeating:
        parts.append(f"counts {gpu.errors.now:.0f} link errors/s ({gpu.errors.words(lambda v: f'{v:.0f}')})")
    if gpu.xids:
        parts.append(f"was reported by the driver with {listed(gpu.xids)}")
    return f"The GPU of rank {case.own.rank(gpu.row)} {' and '.join(parts)}."


def _gpus(case: WireCase) -> list[_Gpu]:
    """The ranks' GPUs beside their past and the others."""
    xids = reported(case.counters.run)
    found = []
    for row, info in enumerate(case.own.infos):
        gpu = case.counters.gpus.get((info.node, str(info.gpu_uuid)))
        key = (float(info.node), float(gpu.id)) if gpu is not None else None
        rows = None if key is None else case.counters.series("gpu_sample", ("node", "gpu")).get(key)
        mine = _of_links(case, xids, row)
        if rows is not None or xids:
            found.append((row, rows, mine))
    active = [_mean(case, row, rows, False) for row, rows, _ in found]
    errors = [_errors(case, row, rows, False) for row, rows, _ in found]
    return [
        _Gpu(
            row,
            among_nodes(active[i], _mean(case, row, rows, True), active[:i] + active[i + 1 :]),
            among_nodes(errors[i], _errors(case, row, rows, True), errors[:i] + errors[i + 1 :]),
            mine,
        )
        for i, (row, rows, mine) in enumerate(found)
    ]


def _span(case: WireCase, row: int, past: bool) -> tuple[float, float] | None:
    return case.windows.past_ns(row) if past else case.windows.slow_ns(row)


def _mean(case: WireCase, row: int, rows: pd.DataFrame | None, past: bool) -> float:
    """Active links of a rank's GPU; NaN when not measured."""
    span = _span(case, row, past)
    return NAN if rows is None or span is None else case.counters.mean(rows, "nvlink_active", *span)


def _errors(case: WireCase, row: int, rows: pd.DataFrame | None, past: bool) -> float:
    """Link errors per second of a rank's GPU; NaN when not measured."""
    span = _span(case, row, past)
    return NAN if rows is None or span is None else case.counters.grew(rows, "nvlink_errors", *span).per_second


def _of_links(case: WireCase, found: tuple[Reported, ...], row: int) -> tuple[Reported, ...]:
    """XIDs of a rank's links that came with the slower reduction and not before."""
    start, end = case.windows.slow_ns(row)
    mine = [one for one in on_gpu_of(found, case.own.infos[row], case.counters) if one.meaning.kind == LINK]
    first = start - BEFORE_S * 1e9
    early = {one.number for one in mine if one.mono_ns < first}
    return tuple(one for one in mine if first <= one.mono_ns <= end and one.number not in early)
