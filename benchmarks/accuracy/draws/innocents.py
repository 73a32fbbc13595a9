"""Counters that are odd and cost nobody anything: what a diagnosis must not take for a cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from starprof.analysis.synthetic import Fault, Gauge, Neighbour, Quota, SyntheticRun, Trouble
from starprof.analysis.synthetic.devices import SM_CLOCK_MHZ

Rng = np.random.Generator
Oddity = Callable[[SyntheticRun, int, Rng], Fault]
"""(job, rank that it may be about, random numbers) to the oddity."""


def _everybody(run: SyntheticRun) -> tuple[int, ...]:
    return tuple(range(run.ranks))


def _gauge(column: str, value: float, **how: float) -> Oddity:
    def make(run: SyntheticRun, rank: int, rng: Rng) -> Fault:  # noqa: ARG001
        return Trouble((rank,), shows={column: Gauge(value, **how)})

    return make


def _growth(column: str, low: float, high: float) -> Oddity:
    def make(run: SyntheticRun, rank: int, rng: Rng) -> Fault:  # noqa: ARG001
        return Trouble((rank,), grows={column: float(np.exp(rng.uniform(np.log(low), np.log(high))))}, bursts=1.0)

    return make


def idle_link(run: SyntheticRun, rank: int, rng: Rng) -> Fault:
    """Between bursts of work the GPU idles and its link falls back to the first generation."""
    every = int(rng.integers(4, 12))
    idle = tuple((step, step + 1) for step in range(0, run.steps, every))
    quiet = ("util_pct", "pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s")
    shows = {f"gpu_sample.{name}": 0.0 for name in quiet} | {"gpu_sample.pcie_gen": 1.0}
    return Trouble((rank,), shows=shows, spells=idle)


def power_bits(run: SyntheticRun, rank: int, rng: Rng) -> Fault:  # noqa: ARG001
    """All cards at full load report the power cap all the time."""
    return Trouble(_everybody(run), shows={"gpu_sample.clock_event_reasons": Gauge(4.0)})


def full_memory(run: SyntheticRun, rank: int, rng: Rng) -> Fault:  # noqa: ARG001
    """All GPUs' memory is nearly full, nobody retries."""
    return Trouble(_everybody(run), shows={"gpu_sample.memory_used_bytes": Gauge(78e9, deviation=1e8)})


def display(run: SyntheticRun, rank: int, rng: Rng) -> Fault:  # noqa: ARG001
    """A small process that was there all along."""
    small = {"gpu_sample.foreign_processes": 1.0, "gpu_sample.foreign_memory_bytes": 8e6}
    return Trouble((rank,), shows=small)


def traces_of_throttling(run: SyntheticRun, rank: int, rng: Rng) -> Fault:  # noqa: ARG001
    """A quota that hardly ever stops anybody."""
    return Quota(rank, us=50.0, share=0.01)


def neighbour(run: SyntheticRun, rank: int, rng: Rng) -> Fault:
    """A busy process on a core that no rank needs."""
    per_node = -(-run.ranks // run.nodes)
    start = 0 if rng.random() < 0.5 else int(rng.integers(run.steps // 4, run.steps // 2))
    free = rank % run.cores if per_node >= run.cores else (rank + per_node) % run.cores
    share = 1.0 if per_node < run.cores else 0.05
    return Neighbour(int(run.node_of[rank]), free, share, start)


ON_HOST: dict[str, Oddity] = {
    "traces of throttling": traces_of_throttling,
    "neighbour": neighbour,
    "a little steal": _growth("cpu_sample.steal_us", 500.0, 5_000.0),
    "a busy disk": _growth("disk_sample.busy_us", 1e5, 5e5),
    "a few page faults": _growth("process_sample.major_faults", 0.05, 2.0),
    "some waiting for the CPU": _growth("process_sample.run_delay_us", 500.0, 3_000.0),
    "some memory pressure": _growth("node_sample.psi_memory_some_us", 100.0, 3_000.0),
    "many threads": _gauge("process_sample.threads", 12.0),
    "unknown protocols dropped": _growth("nic_sample.rx_dropped", 1.0, 30.0),
    "a few retransmissions": _growth("tcp_sample.retransmits", 0.02, 0.3),
}
ON_GPU: dict[str, Oddity] = {
    "power bits": power_bits,
    "full memory": full_memory,
    "idle link": idle_link,
    "display": display,
    "power bit of one": _gauge("gpu_sample.clock_event_reasons", 4.0),
    "a warmer card": _gauge("gpu_sample.temperature_c", 76.0, deviation=1.5),
    "a clock that nothing waits for": _gauge("gpu_sample.sm_clock_mhz", 0.96 * SM_CLOCK_MHZ, deviation=6.0),
    "a slower CPU": _gauge("cpu_sample.freq_khz", 2_800_000.0, deviation=2e4),
    "a few corrected errors": _growth("gpu_sample.ecc_corrected", 0.01, 0.4),
    "a few link errors": _growth("gpu_sample.nvlink_errors", 0.001, 0.05),
}


def oddities(run: SyntheticRun, guilty_nodes: set[int], rng: Rng) -> Iterator[Fault]:
    """None to three oddities of nodes that are not to blame for anything; of everybody where all are."""
    known = {**ON_HOST, **(ON_GPU if run.gpus else {})}
    free = np.flatnonzero(~np.isin(run.node_of, list(guilty_nodes)))
    if len(free) == 0:
        return
    for name in rng.choice(list(known), int(rng.integers(0, 4)), replace=False):
        yield known[str(name)](run, int(rng.choice(free)), rng)
