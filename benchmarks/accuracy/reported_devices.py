"""Reported faults that show in counters of devices, and counters that look like a fault and are none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from truth import Truth, answer

from starprof.analysis.synthetic import Quota, Slow, SyntheticRun, Trouble
from starprof.model.rundata import RunData

COMPUTE = {"forward": 12_000.0, "backward": 22_000.0}
SLOWER_REDUCTION = {"transfer": 30_000.0}
GIGABIT = 125e6


def hot_gpu() -> RunData:
    """88 C, the clock at half, the power far below its limit: the host's cooling fails."""
    shows = {
        "gpu_sample.sm_clock_mhz": 1000.0,
        "gpu_sample.temperature_c": 88.0,
        "gpu_sample.power_w": 150.0,
        "gpu_sample.clock_event_reasons": 0x20,
    }
    return SyntheticRun(4, 300, gpus=True, faults=(Trouble((2,), COMPUTE, shows, start=120),)).data()


def half_the_power_on_one_of_four() -> RunData:
    """One of four equal cards is held at 150 W by the software power cap, its temperature is normal."""
    shows = {
        "gpu_sample.sm_clock_mhz": 1000.0,
        "gpu_sample.power_w": 150.0,
        "gpu_sample.clock_event_reasons": 0x04,
    }
    return SyntheticRun(4, 300, gpus=True, faults=(Trouble((2,), COMPUTE, shows, start=0),)).data()


def power_cap_bit_at_full_healthy_load() -> RunData:
    """The cap's bit is set and the clock 20 % lower on one card, but it needs no longer than the others."""
    shows = {"gpu_sample.sm_clock_mhz": 1365.0, "gpu_sample.clock_event_reasons": 0x04}
    return SyntheticRun(4, 300, gpus=True, faults=(Trouble((1,), {}, shows, start=100),)).data()


def link_of_the_first_generation_when_idle() -> RunData:
    """One card's link shows generation 1, and nothing is slow."""
    return SyntheticRun(4, 300, gpus=True, faults=(Trouble((1,), {}, {"gpu_sample.pcie_gen": 1.0}, start=50),)).data()


def foreign_process_on_a_gpu() -> RunData:
    """Another user's process shares one card from a moment on."""
    shows = {"gpu_sample.foreign_processes": 1.0, "gpu_sample.foreign_memory_bytes": 9e9}
    return SyntheticRun(4, 300, gpus=True, faults=(Trouble((3,), COMPUTE, shows, start=150),)).data()


def quota_in_a_pod() -> RunData:
    """A container's CPU quota stops one rank in most periods."""
    return SyntheticRun(4, 300, faults=(Quota(2, us=60_000.0, share=0.6),)).data()


def traces_of_throttling() -> RunData:
    """34 of 3,076 periods were throttled, for 12 ms in all: nothing."""
    return SyntheticRun(4, 300, faults=(Quota(1, us=40.0, share=0.01),)).data()


def sockets_instead_of_infiniband() -> RunData:
    """All reductions are slow alike: the InfiniBand ports move nothing, Ethernet carries it all."""
    fallback = Trouble(
        (0, 1, 2, 3),
        SLOWER_REDUCTION,
        stops=("nic_sample#2.tx_bytes", "nic_sample#2.rx_bytes"),
        grows={"nic_sample.tx_bytes": 30e6, "nic_sample.rx_bytes": 30e6},
        start=120,
    )
    return SyntheticRun(4, 300, nodes=4, infiniband=True, faults=(fallback,)).data()


def lossless_class_unused_after_a_reboot() -> RunData:
    """RDMA traffic runs in priority 0, where nothing is paused."""
    unused = Trouble(
        (0, 1, 2, 3),
        SLOWER_REDUCTION,
        stops=("nic_sample.rx_other_prio_packets",),
        grows={"nic_sample.rx_prio0_packets": 40_000.0},
        start=120,
    )
    return SyntheticRun(4, 300, nodes=4, infiniband=True, faults=(unused,)).data()


def slow_network_whose_drop_counters_stand_still() -> RunData:
    """The reduction is slow, and no counter says why: drops must not be claimed."""
    return SyntheticRun(4, 300, nodes=4, faults=(Trouble((0, 1, 2, 3), SLOWER_REDUCTION, start=120),)).data()


def long_answers_for_a_changing_rank() -> RunData:
    """One rank draws the long sequences, another one in each step; compute follows the tokens."""
    rng = np.random.default_rng(13)
    ratio = np.exp(0.3 * rng.standard_normal((16, 300)))
    run = SyntheticRun(16, 300, counters=False)
    for phase in ("forward", "backward"):
        run.own_us[phase] *= ratio
    data = run.data()
    columns = {**data.steps.columns, "tokens": np.rint(4096 * ratio)}
    return replace(data, steps=replace(data.steps, columns=columns))


def allocator_retries_on_one_rank() -> RunData:
    """The allocator flushes its cache 13 times a step on the slow rank only."""
    data = SyntheticRun(4, 300, gpus=True, faults=(Slow("backward", (3,), us=40_000.0, start=120),)).data()
    retries = np.zeros((4, 300))
    retries[3, 120:] = 13.0
    columns = {**data.steps.columns, "alloc_retries": retries}
    return replace(data, steps=replace(data.steps, columns=columns))


REPORTS: tuple[tuple[Callable[[], RunData], Truth], ...] = (
    (hot_gpu, answer("straggler", ranks=(2,), causes=("gpu-thermal",), onset=120)),
    (half_the_power_on_one_of_four, answer("straggler", ranks=(2,), causes=("gpu-power-cap",))),
    (power_cap_bit_at_full_healthy_load, answer("none")),
    (link_of_the_first_generation_when_idle, answer("none")),
    (foreign_process_on_a_gpu, answer("straggler", ranks=(3,), causes=("gpu-foreign-process",), onset=150)),
    (quota_in_a_pod, answer("straggler", ranks=(2,), causes=("cgroup-throttling",))),
    (traces_of_throttling, answer("none")),
    (sockets_instead_of_infiniband, answer("uniform", causes=("wrong-interface",), onset=120)),
    (lossless_class_unused_after_a_reboot, answer("uniform", causes=("pfc",), onset=120)),
    (slow_network_whose_drop_counters_stand_still, answer("inconclusive", causes=("unknown",), onset=120)),
    (long_answers_for_a_changing_rank, answer("workload-skew", causes=("sequence-length",), says=("tokens",))),
    (allocator_retries_on_one_rank, answer("straggler", ranks=(3,), causes=("gpu-memory-pressure",), onset=120)),
)
