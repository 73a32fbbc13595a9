"""A GPU lost NVLinks, or its links repeat what was damaged: the reduction goes a longer way."""

from __future__ import annotations

from dataclasses import dataclass

from starprof.analysis.causes.base import rank_names
from starprof.analysis.causes.contrast import NAN, Contrast
from starprof.analysis.wire.base import WireCase, WireCause, among_nodes
from starprof.model import causes

MIN_ERRORS_PER_S = 1.0
OUTSTANDING = 5.0


@dataclass(frozen=True)
class _Gpu:
    row: int
    links: Contrast
    errors: Contrast

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
    odd = [gpu for gpu in gpus if gpu.fewer or gpu.repeating]
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
            "That fell together with the slower reduction; all other GPUs keep their links and count no errors.",
        ),
        action=f"Run nvidia-smi nvlink -s and -e on {case.hosts(nodes)}, look for XID 74 in the kernel log, reset the "
        "GPU and have the link checked if it does not come back.",
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
    return f"The GPU of rank {case.own.rank(gpu.row)} {' and '.join(parts)}."


def _gpus(case: WireCase) -> list[_Gpu]:
    """The ranks' GPUs beside their past and the others."""
    found = []
    for row, info in enumerate(case.own.infos):
        gpu = case.counters.gpus.get((info.node, str(info.gpu_uuid)))
        if gpu is None:
            continue
        rows = case.counters.series("gpu_sample", ("node", "gpu")).get((float(info.node), float(gpu.id)))
        if rows is not None:
            found.append((row, rows, case.windows.slow_ns(row), case.windows.past_ns(row)))
    active = [case.counters.mean(rows, "nvlink_active", *slow) for _, rows, slow, _ in found]
    errors = [case.counters.grew(rows, "nvlink_errors", *slow).per_second for _, rows, slow, _ in found]
    result = []
    for i, (row, rows, _, past) in enumerate(found):
        links_past = NAN if past is None else case.counters.mean(rows, "nvlink_active", *past)
        errors_past = NAN if past is None else case.counters.grew(rows, "nvlink_errors", *past).per_second
        result.append(
            _Gpu(
                row,
                among_nodes(active[i], links_past, active[:i] + active[i + 1 :]),
                among_nodes(errors[i], errors_past, errors[:i] + errors[i + 1 :]),
            )
        )
    return result
