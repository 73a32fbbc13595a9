"""The GPU runs below its usual clock: heat, a power cap, or another limit of the clock.

A lower clock makes compute take at most usual/now as long; that bound, against the time that was really lost, is the
share it covers. Work that waits for memory loses less than the bound, so the clock alone is never the measure of a
slowdown, only of what it can explain. Reason bits: nvml.h, nvmlClocksEventReason*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starprof.analysis.causes.base import MIN_IN_PHASES, Case, Explanation, ms, pct
from starprof.analysis.causes.contrast import Contrast, of_most
from starprof.analysis.causes.gpu import compute_share, healthy_compute_us, loaded, reason
from starprof.model import causes

POWER_BITS = 0x04 | 0x80
THERMAL_BITS = 0x20 | 0x40
HARDWARE_SLOWDOWN = 0x08
OTHER_BITS = {0x02: "applications clocks are set", 0x08: "hardware slowdown", 0x10: "sync boost"}

MIN_CLOCK_LOSS = 0.02
MIN_BIT_SHARE = 0.3
CONSTANT_BIT_SHARE = 0.7
HOT_C = 80.0
HOTTER_C = 8.0
LOWER_LIMIT = 0.93
BUSY_AS_EVER = 90.0


@dataclass(frozen=True)
class _Slowed:
    """One rank's GPU: how it differs, and the time per step that its clock can explain."""

    row: int
    clock: Contrast
    memory_clock: Contrast
    explained_us: float


def explain(case: Case) -> Explanation | None:
    """A clock below the peers' and the rank's own past, with the reason that the GPU gives."""
    if compute_share(case) < MIN_IN_PHASES:
        return None
    found = of_most(case, [_slowed(case, row) for row in case.rows])
    if not found or case.phases.total_us <= 0:
        return None
    explained = sum(part.explained_us for part in found) / len(case.rows)
    share = min(compute_share(case), explained / case.phases.total_us, 1.0)
    worst = max(found, key=lambda part: part.explained_us)
    return _why(case, worst, share)


def _slowed(case: Case, row: int) -> _Slowed | None:
    clock, memory = loaded(case, row, "sm_clock_mhz"), loaded(case, row, "memory_clock_mhz")
    # Kernels are bound by one of the two: the larger loss is what the clocks can explain.
    stretch = max(_stretch(clock), _stretch(memory))
    if stretch < MIN_CLOCK_LOSS:
        return None
    return _Slowed(row, clock, memory, healthy_compute_us(case, row) * stretch)


def _stretch(clock: Contrast) -> float:
    """By how much longer work takes that follows this clock; 0 when it is not lower than usual."""
    if not clock.known or clock.now <= 0:
        return 0.0
    return max(0.0, clock.usual_low / clock.now - 1.0)


def _why(case: Case, part: _Slowed, share: float) -> Explanation:
    row = part.row
    thermal, power_bit = reason(case, row, THERMAL_BITS), reason(case, row, POWER_BITS)
    heat, draw, limit = (loaded(case, row, name) for name in ("temperature_c", "power_w", "power_limit_w"))
    hot = heat.known and heat.now >= HOT_C and heat.gained >= HOTTER_C
    silent = thermal.now != thermal.now
    lines = (
        f"The GPU of rank {case.own.rank(row)} ran at {part.clock.now:.0f} MHz under load "
        f"({part.clock.words(_mhz)}); that can make its compute up to {ms(part.explained_us)} per step longer, "
        f"{case.who} lost {ms(case.phases.total_us)}.",
    )
    if thermal.gained >= MIN_BIT_SHARE or (
        hot and (silent or reason(case, row, HARDWARE_SLOWDOWN).gained >= MIN_BIT_SHARE)
    ):
        return _thermal(case, share, (*lines, *_activity(case, row)), thermal, heat, draw, limit)
    lower_limit = limit.known and limit.now <= LOWER_LIMIT * limit.usual_low
    if power_bit.gained >= MIN_BIT_SHARE or (lower_limit and power_bit.now >= MIN_BIT_SHARE):
        return _power(case, share, lines, power_bit, heat, draw, limit)
    return _clock(case, share, lines, heat, power_bit, part)


def _activity(case: Case, row: int) -> list[str]:
    """That a GPU which is held back looks as busy as ever."""
    busy = loaded(case, row, "util_pct").now
    if not busy >= BUSY_AS_EVER:
        return []
    return [f"Its activity was {busy:.0f} % meanwhile: GPU utilisation tells nothing of its health, or of progress."]


def _normal(case: Case) -> str:
    """What its clock should be, in words."""
    return "its peers'" if any(case.peers(row) for row in case.rows) else "what it was before"


def _thermal(
    case: Case,
    share: float,
    lines: tuple[str, ...],
    bits: Contrast,
    heat: Contrast,
    draw: Contrast,
    limit: Contrast,
) -> Explanation:
    told = f" It reported a thermal slowdown in {pct(bits.now)} of the samples." if bits.now == bits.now else ""
    against = [f"It drew {draw.now:.0f} of {limit.now:.0f} W: low power at a low clock rules out a power cap."]
    return Explanation(
        cause=causes.GPU_THERMAL,
        share=share,
        evidence=(*lines, f"It was {_or_unknown(heat, _celsius)}.{told}"),
        action=f"Check the cooling of the GPU of {case.who} (fans, airflow, inlet temperature, dust, heat sink); until "
        "then move its work to another GPU.",
        verify=f"Below the slowdown temperature the clock of {case.who} must return to {_normal(case)}, and its "
        "lateness must vanish; if it stays late at a normal clock, heat was not the cause.",
        partly=f"the lower clock of a hot GPU covers at most {pct(share)}",
        against=tuple(against) if draw.now < 0.9 * limit.now else (),
    )


def _power(
    case: Case,
    share: float,
    lines: tuple[str, ...],
    bits: Contrast,
    heat: Contrast,
    draw: Contrast,
    limit: Contrast,
) -> Explanation:
    reported = f"; it reported a power cap in {pct(bits.now)} of the samples" if bits.now == bits.now else ""
    against = f"It was {_or_unknown(heat, _celsius)}, so heat is not what holds the clock down."
    return Explanation(
        cause=causes.GPU_POWER_CAP,
        share=share,
        evidence=(
            *lines,
            f"It drew {_or_unknown(draw, _watt)}, with an enforced limit of {_or_unknown(limit, _watt)}{reported}.",
        ),
        action=f"On the GPU of {case.who} compare the enforced, default and maximum power limit with its peers' "
        "(nvidia-smi -q -d POWER), look for a power policy of the node's management controller, and exchange the "
        "card with a peer's slot to see whether the cap moves with it. What imposes the cap is not known from here.",
        verify=f"With the cap gone the GPU of {case.who} must draw as much as its peers', and its lateness must "
        "vanish; if it draws as much and is late, the cap was not the cause.",
        partly=f"the lower clock of a power-capped GPU covers at most {pct(share)}",
        against=(against,) if heat.now == heat.now else (),
    )


def _clock(
    case: Case, share: float, lines: tuple[str, ...], heat: Contrast, power_bit: Contrast, part: _Slowed
) -> Explanation:
    row = part.row
    told = [words for bit, words in OTHER_BITS.items() if reason(case, row, bit).gained >= MIN_BIT_SHARE]
    why = f"The driver says: {', '.join(told)}." if told else "The driver gives no reason of its own."
    memory = part.memory_clock
    if memory.known and memory.now < (1 - MIN_CLOCK_LOSS) * memory.usual_low:
        why += f" Its memory clock is {memory.now:.0f} MHz ({memory.words(_mhz)})."
    return Explanation(
        cause=causes.GPU_CLOCK,
        share=share,
        evidence=(*lines, why),
        action=f"Compare applications clocks, locked clocks and persistence mode of the GPU of {case.who} with its "
        "peers' (nvidia-smi -q -d CLOCK) and reset them (nvidia-smi -rac, -rgc).",
        verify=f"At its peers' clock {case.who} must be ready as early as they are; if not, the clock was not the "
        "cause.",
        partly=f"a lower GPU clock covers at most {pct(share)}",
        against=_no_other_reason(heat, power_bit),
    )


def _no_other_reason(heat: Contrast, power_bit: Contrast) -> tuple[str, ...]:
    """Whether heat or a power cap can be meant; the cap's bit is set at any full load too."""
    if power_bit.now >= CONSTANT_BIT_SHARE:
        return (
            f"It reported a power cap in {pct(power_bit.now)} of the samples ({power_bit.words(pct)}): as usual, so "
            "whether the cap holds the clock down can't be told; compare the enforced limit and the draw.",
        )
    if heat.now != heat.now:
        return ()
    return (f"It was {_or_unknown(heat, _celsius)}, and reported neither heat nor a power cap.",)


def _or_unknown(value: Contrast, unit: Callable[[float], str]) -> str:
    """A value with its references, or that it was not measured."""
    if value.now != value.now:
        return "not measured"
    return f"{unit(value.now)} ({value.words(unit)})" if value.known else unit(value.now)


def _mhz(value: float) -> str:
    return f"{value:.0f} MHz"


def _watt(value: float) -> str:
    return f"{value:.0f} W"


def _celsius(value: float) -> str:
    return f"{value:.0f} degrees C"
