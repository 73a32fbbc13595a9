"""Causes that the spans of the step tell by themselves: the phase that carries the excess."""

from __future__ import annotations

from starprof.analysis.causes.base import Case, Explanation, ms, pct
from starprof.analysis.causes.gpu import samples_of
from starprof.analysis.causes.gpu_foreign import hidden
from starprof.model import causes

WORDS = {
    "data_wait": "waiting for the data loader",
    "h2d": "host-to-device copies",
    "forward": "the forward pass",
    "backward": "its own backward pass (without waiting for the others)",
    "optimizer": "the optimizer step",
    "user": "spans that the program named itself",
    "unaccounted": "code between the known parts of the step",
}

_CAUSE = {
    "data_wait": causes.DATA_LOADING,
    "h2d": causes.HOST_TO_DEVICE,
    "forward": causes.FORWARD_COMPUTE,
    "backward": causes.BACKWARD_COMPUTE,
    "optimizer": causes.OPTIMIZER,
    "user": causes.USER_CODE,
    "unaccounted": causes.USER_CODE,
}

RANK_0_WORK = ("user", "unaccounted")
"""Where the program's own extra work on rank 0 (saving, logging) lies."""

CAUSES = frozenset({*_CAUSE.values(), causes.GPU_COMPUTE})
"""Causes that only say which part of the step is longer."""

_ACTION = {
    "data_wait": "Give {who} more or faster loader workers (num_workers, prefetch_factor), or check the storage "
    "that it reads.",
    "h2d": "Copy from pinned memory with non_blocking=True on {who}, and check the NUMA node and PCIe link of its "
    "device.",
    "forward": "Look at what {who} does in its forward pass that its peers do not (hooks, input shapes, debugging "
    "code).",
    "backward": "Look at what {who} does in its backward pass that its peers do not (gradient hooks, custom functions, "
    "anomaly detection).",
    "optimizer": "Look at what {who} does around its optimizer step that its peers do not (step hooks, clipping, "
    "state on a slower device).",
    "user": "Shorten the named spans on {who}, or move that work off the training loop.",
    "unaccounted": "Look at what {who} runs between the phases (logging, metrics, printing), and name it with "
    "starprof.span to see it in the report.",
}

MAX_WORKERS = 64


def worker_words(period: int) -> str:
    """What waiting at every n-th batch means."""
    return (
        f"It is every {_nth(period)} batch: that is what a loader with {period} workers shows one of which is slow, as "
        "it takes their batches in order though others may be ready."
    )


def _nth(number: int) -> str:
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


_RANK_0 = (
    " Rank 0 is where programs do what the others don't: look for code behind `if rank == 0` (logging, metrics, "
    "saving) before you suspect its device."
)


def explain(case: Case) -> Explanation | None:
    """One phase, or forward and backward together on a GPU, carries the slowness."""
    excess = case.phases
    if excess.total_us <= 0:
        return None
    if case.own.on_gpu and excess.share("forward", "backward") >= case.settings.min_cause_share > 0:
        both = min(excess.share("forward"), excess.share("backward"))
        if both >= 1 - case.settings.min_cause_share:
            return _gpu_compute(case)
    phase, share = excess.ranked()[0]
    first = phase in RANK_0_WORK and case.ranks == (0,)
    return Explanation(
        cause=_CAUSE[phase],
        share=share,
        evidence=(
            f"{pct(share)} of the excess of {case.who} lies in {WORDS[phase]}: {ms(excess.us[phase])} more per late "
            "step than its peers.",
            *(
                [worker_words(case.period)]
                if phase == "data_wait" and case.period and case.period <= MAX_WORKERS
                else []
            ),
        ),
        action=_ACTION[phase].format(who=case.who) + (_RANK_0 if first else ""),
        verify=f"Record again: {phase}_us of {case.who} should be within {ms(0.2 * excess.us[phase])} of its peers.",
        partly=f"{pct(share)} of it lies in {WORDS[phase]}",
    )


def _gpu_compute(case: Case) -> Explanation:
    share = case.phases.share("forward", "backward")
    return Explanation(
        cause=causes.GPU_COMPUTE,
        share=share,
        evidence=(
            f"{pct(share)} of the excess of {case.who} is GPU time of forward ({ms(case.phases.us['forward'])}) and "
            f"backward ({ms(case.phases.us['backward'])}) on the device's own clock.",
        ),
        action=f"Run the same kernel benchmark on the GPU of {case.who} and on a peer's, and drain it if it is slow.",
        verify=f"After the exchange the forward and backward times of {case.who} should equal its peers'.",
        next=_next(case),
    )


def _next(case: Case) -> str:
    """What would tell why the GPU computes more slowly."""
    if all(samples_of(case, row) is None for row in case.rows):
        return "Record gpu_sample (NVML: clocks, heat, power, errors, other processes) to see what slows the GPU."
    if hidden(case):
        return (
            "Other processes on the GPU are hidden from here (a PID namespace of its own): look with nvidia-smi on the "
            "host, contention from outside is possible."
        )
    return ""


def split_in_words(case: Case) -> str:
    """How the excess spreads over the phases."""
    return ", ".join(f"{phase} {pct(share)}" for phase, share in case.phases.ranked())
