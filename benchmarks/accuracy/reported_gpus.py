"""Reported faults of GPUs, and counters of theirs that look like a fault and are none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from inputs import Floats, Report, job_series, with_columns, with_samples
from truth import answer

from starprof.analysis.synthetic import Slow, SyntheticRun, Trouble
from starprof.model.rundata import RunData

COMPUTE = {"forward": 12_000.0, "backward": 22_000.0}
HALF_POWER = {
    "gpu_sample.sm_clock_mhz": 1000.0,
    "gpu_sample.power_w": 150.0,
    "gpu_sample.clock_event_reasons": 0x04,
}
HOT = {
    "gpu_sample.sm_clock_mhz": 1000.0,
    "gpu_sample.temperature_c": 88.0,
    "gpu_sample.power_w": 150.0,
    "gpu_sample.clock_event_reasons": 0x20,
}
FOREIGN = {"gpu_sample.foreign_processes": 1.0, "gpu_sample.foreign_memory_bytes": 9e9}


def hot_gpu() -> RunData:
    """88 C, the clock at half, the power far below its limit: the host's cooling fails."""
    return SyntheticRun(4, 300, gpus=True, faults=(Trouble((2,), COMPUTE, HOT, start=120),)).data()


def hot_gpu_without_peers() -> RunData:
    """A job of one rank: 0.7 s a step become 1.3 s within the hour, at 500 of 1,755 MHz, 88 C and half the power."""
    phases = {"data_wait": 5_000.0, "forward": 230_000.0, "backward": 440_000.0, "optimizer": 25_000.0}
    shows = {**HOT, "gpu_sample.sm_clock_mhz": 500.0, "gpu_sample.power_w": 148.0, "gpu_sample.util_pct": 100.0}
    hot = Trouble((0,), {"forward": 205_000.0, "backward": 395_000.0}, shows, start=1_100)
    return SyntheticRun(1, 3_000, phases_us=phases, gpus=True, rate_hz=1.0, faults=(hot,)).data()


def hot_gpu_where_the_driver_counts_in_another_order() -> RunData:
    """The hot card is the driver's first, and belongs to the last rank: only its UUID tells."""
    data = SyntheticRun(4, 300, gpus=True, faults=(Trouble((3,), COMPUTE, HOT, start=120),)).data()
    names = data.samples["gpu"].copy()
    names["nvml_index"] = names["nvml_index"].to_numpy()[::-1]
    return with_samples(data, gpu=names)


def half_the_power_on_one_of_four() -> RunData:
    """One of four equal cards is held at 150 W by the software power cap, its temperature is normal."""
    return SyntheticRun(4, 300, gpus=True, faults=(Trouble((2,), COMPUTE, HALF_POWER, start=0),)).data()


def half_the_power_in_metrics_without_steps() -> RunData:
    """The same four cards as a monitor shows them: nothing tells how long a step takes."""
    data = SyntheticRun(4, 300, gpus=True, faults=(Trouble((2,), {}, HALF_POWER, start=0),)).data()
    steps = replace(data.steps, steps=data.steps.steps[:0], columns={}, start_mono_ns=data.steps.start_mono_ns[:, :0])
    return replace(data, info={**data.info, "source_format": "nvidia-smi"}, ranks=(), steps=steps)


def power_cap_bit_at_full_healthy_load() -> RunData:
    """The cap's bit is set and the clock 20 % lower on one card, but it needs no longer than the others."""
    shows = {"gpu_sample.sm_clock_mhz": 1365.0, "gpu_sample.clock_event_reasons": 0x04}
    return SyntheticRun(4, 300, gpus=True, faults=(Trouble((1,), {}, shows, start=100),)).data()


def a_clock_a_fifth_lower_that_costs_a_twentieth() -> RunData:
    """The clock falls by 20.9 %, the work takes 5.1 % longer: the slowdown is what the steps say."""
    shows = {"gpu_sample.sm_clock_mhz": 1388.0, "gpu_sample.clock_event_reasons": 0x04, "gpu_sample.power_w": 240.0}
    slow = Trouble((1,), {"forward": 1_150.0, "backward": 2_090.0}, shows, start=150)
    return SyntheticRun(8, 400, gpus=True, cv=0.01, faults=(slow,)).data()


def link_of_the_first_generation_when_idle() -> RunData:
    """One card's link shows generation 1 while it is idle, and nothing is slow."""
    shows = {"gpu_sample.pcie_gen": 1.0, "gpu_sample.util_pct": 0.0}
    return SyntheticRun(4, 300, gpus=True, faults=(Trouble((1,), {}, shows, start=50),)).data()


def foreign_process_on_a_gpu() -> RunData:
    """Another user's process shares one card from a moment on."""
    return SyntheticRun(4, 300, gpus=True, faults=(Trouble((3,), COMPUTE, FOREIGN, start=150),)).data()


def _two_regimes(shows: dict[str, float]) -> RunData:
    """16 ranks on four nodes: 32.5 s a step become 102 s, and many times that later, by the GPU of rank 6."""
    phases = {"forward": 10.5e6, "backward": 21.0e6, "optimizer": 0.6e6}
    first = Trouble((6,), {"forward": 23e6, "backward": 46.7e6}, shows, start=120, end=220)
    second = Trouble((6,), {"forward": 240e6, "backward": 470e6}, shows, start=220)
    return SyntheticRun(16, 320, nodes=4, phases_us=phases, gpus=True, rate_hz=0.05, faults=(first, second)).data()


def two_regimes_of_a_foreign_process() -> RunData:
    """The other process is seen."""
    return _two_regimes(FOREIGN)


def two_regimes_behind_a_pid_namespace() -> RunData:
    """Processes of others are hidden from where the agent runs."""
    data = _two_regimes({})
    samples = data.samples["gpu_sample"].assign(foreign_processes=np.nan, foreign_memory_bytes=np.nan)
    return with_samples(data, gpu_sample=samples)


def two_regimes_in_a_log() -> RunData:
    """Only the job's step times: 32.5 s, then 102.2 s, two days later 143 to 1,154 s."""
    rng = np.random.default_rng(28)
    late = np.resize([143.0, 196.0, 744.0, 921.0, 1031.0, 1154.0], 30)
    levels = np.r_[np.full(60, 32.5), np.full(60, 102.2), late]
    return job_series(levels * (1 + 0.01 * rng.standard_normal(len(levels))))


def allocator_retries_on_one_rank() -> RunData:
    """The allocator flushes its cache 13 times a step on the slow rank only, whose memory is nearly full."""
    full = Trouble((3,), {"backward": 40_000.0}, {"gpu_sample.memory_used_bytes": 79e9}, start=120)
    return _with_retries(SyntheticRun(4, 300, gpus=True, faults=(full,)).data(), _retries(120))


def retries_that_all_happened_before() -> RunData:
    """The slow rank's memory is as full, and its retries lie before it became slow: their number is no cause."""
    full = Trouble((3,), {"backward": 40_000.0}, {"gpu_sample.memory_used_bytes": 79e9}, start=120)
    retries = np.zeros((4, 300))
    retries[3, :40] = 13.0
    return _with_retries(SyntheticRun(4, 300, gpus=True, faults=(full,)).data(), retries)


def _retries(start: int) -> Floats:
    retries = np.zeros((4, 300))
    retries[3, start:] = 13.0
    return retries


def _with_retries(data: RunData, retries: Floats) -> RunData:
    return with_columns(data, alloc_retries=retries)


def heat_where_activity_is_not_supported() -> RunData:
    """A MIG instance: activity, fan and PCIe rates are not told, the clock and the heat are."""
    data = SyntheticRun(4, 300, gpus=True, faults=(Trouble((2,), COMPUTE, HOT, start=120),)).data()
    nothing = dict.fromkeys(("util_pct", "memory_util_pct", "pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s"), np.nan)
    missing = pd.DataFrame(
        [[0, "gpu.util_pct", "NVML: Not Supported on GPU 2"]], columns=list(data.unavailable.columns)
    )
    return replace(with_samples(data, gpu_sample=data.samples["gpu_sample"].assign(**nothing)), unavailable=missing)


def a_slow_gpu_whose_counters_are_quiet() -> RunData:
    """Nothing that NVML tells is odd: the GPU is slow, why is not known."""
    return SyntheticRun(
        4, 300, gpus=True, faults=(Slow("forward", (1,), us=12_000.0), Slow("backward", (1,), us=21_000.0))
    ).data()


NO_PART = ("psu", "power supply", "cable", "firmware")

REPORTS: tuple[Report, ...] = (
    (
        hot_gpu,
        answer(
            "straggler",
            ranks=(2,),
            causes=("gpu-thermal",),
            onset=120,
            says=("88 degrees", "rules out a power cap", "cooling"),
        ),
    ),
    (
        hot_gpu_where_the_driver_counts_in_another_order,
        answer("straggler", ranks=(3,), causes=("gpu-thermal",), onset=120, says=("gpu of rank 3",)),
    ),
    (
        hot_gpu_without_peers,
        answer(
            "uniform",
            causes=("gpu-thermal",),
            onset=1_100,
            says=(
                "its own past only",
                "rules out a power cap",
                "before 1755 mhz|before 1754 mhz|before 1756 mhz",
                "activity|util",
            ),
        ),
    ),
    (
        half_the_power_on_one_of_four,
        answer(
            "straggler",
            ranks=(2,),
            causes=("gpu-power-cap",),
            onset=0,
            says=("150 w", "its peers 285 w", "what imposes the cap is not known", "exchange"),
            never=NO_PART,
        ),
    ),
    (
        half_the_power_in_metrics_without_steps,
        answer("inconclusive", says=("150 w", "power", "exchange", "step times"), never=NO_PART),
    ),
    (power_cap_bit_at_full_healthy_load, answer("none", never=("power cap",))),
    (
        a_clock_a_fifth_lower_that_costs_a_twentieth,
        answer("straggler", ranks=(1,), causes=("gpu-power-cap",), onset=150, says=("+5 %", "1388 mhz"), never=NO_PART),
    ),
    (link_of_the_first_generation_when_idle, answer("none", never=("generation",))),
    (
        foreign_process_on_a_gpu,
        answer(
            "straggler", ranks=(3,), causes=("gpu-foreign-process",), onset=150, says=("9.0 gb", "belongs to no rank")
        ),
    ),
    (
        two_regimes_of_a_foreign_process,
        answer("straggler", ranks=(6,), causes=("gpu-foreign-process",), onset=120, onsets=(120, 220)),
    ),
    (
        two_regimes_behind_a_pid_namespace,
        answer(
            "straggler",
            ranks=(6,),
            causes=("gpu-compute", "unknown"),
            onset=120,
            onsets=(120, 220),
            says=("hidden", "contention from outside is possible"),
        ),
    ),
    (two_regimes_in_a_log, answer("inconclusive", causes=("unknown",), onsets=(60, 120))),
    (
        allocator_retries_on_one_rank,
        answer(
            "straggler",
            ranks=(3,),
            causes=("gpu-memory-pressure",),
            onset=120,
            says=("13 times", "99 %", "no out-of-memory alarm"),
        ),
    ),
    (
        retries_that_all_happened_before,
        answer("straggler", ranks=(3,), causes=("backward-compute", "unknown"), onset=120, never=("flush its cache",)),
    ),
    (
        heat_where_activity_is_not_supported,
        answer(
            "straggler",
            ranks=(2,),
            causes=("gpu-thermal",),
            onset=120,
            says=("not supported", "util_pct"),
            never=("nan",),
        ),
    ),
    (
        a_slow_gpu_whose_counters_are_quiet,
        answer("straggler", ranks=(1,), causes=("gpu-compute",), onset=0, never=("thermal", "power cap")),
    ),
)
