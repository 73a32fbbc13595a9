"""Faults of a rank's host: its CPUs, memory, storage and limits, and what their counters show meanwhile."""

from __future__ import annotations

from draws.drawn import Draw, Drawn, Maker, Need
from starprof.analysis.synthetic import CpuHog, Fault, Gauge, Pinned, Quota, Trouble
from starprof.model import causes

PLACES = frozenset(
    {
        causes.FORWARD_COMPUTE,
        causes.BACKWARD_COMPUTE,
        causes.GPU_COMPUTE,
        causes.DATA_LOADING,
        causes.USER_CODE,
        causes.UNKNOWN,
    }
)
USUAL_KHZ = 3_200_000.0
STEADY = ("chronic", "onset", "transient")


def _trouble(draw: Draw, adds: dict[str, float], **shown: object) -> Trouble:
    when = draw.when
    return Trouble(draw.hit, adds, start=when.start, end=when.end, spells=when.spells, **shown)  # type: ignore[arg-type]


def _of_host(draw: Draw, cause: str, *faults: Fault, evidence: tuple[str, ...], slowdown: float = 0.0) -> Drawn:
    return Drawn(
        faults,
        ranks=frozenset(draw.hit),
        causes=frozenset({cause}),
        places=PLACES,
        evidence=evidence,
        slowdown=slowdown or draw.slowdown,
        when=draw.when,
    )


def contention(draw: Draw) -> Drawn:
    """A foreign process on the rank's core."""
    share = min(0.8, 1.0 - 1.0 / draw.slowdown)
    hogs = [CpuHog(rank, share, draw.when.start, draw.when.end, draw.between(0.85, 1.1)) for rank in draw.hit]
    return _of_host(draw, causes.CPU_CONTENTION, *hogs, evidence=("process_sample",), slowdown=1.0 / (1.0 - share))


def steal(draw: Draw) -> Drawn:
    """The hypervisor runs somebody else."""
    counted = {"cpu_sample.steal_us": draw.between(0.9, 1.0)}
    slow = _trouble(draw, draw.over_cpu(), counts=counted)
    return _of_host(draw, causes.CPU_CONTENTION, slow, evidence=("cpu_sample", "process_sample"))


def frequency(draw: Draw) -> Drawn:
    """The CPUs run at a lower frequency: what they do takes as much longer, or a little less."""
    ratio = 1.0 + (min(draw.slowdown, 3.5) - 1.0) * draw.between(1.0, 1.2)
    adds = {name: us * (min(draw.slowdown, 3.5) - 1.0) for name, us in draw.run.phases_us.items()}
    shows = {"cpu_sample.freq_khz": Gauge(USUAL_KHZ / ratio, deviation=20_000.0)}
    slow = _trouble(draw, adds, shows=shows)
    return _of_host(
        draw,
        causes.CPU_FREQUENCY,
        slow,
        evidence=("cpu_sample", "process_sample"),
        slowdown=min(draw.slowdown, 3.5),
    )


def quota(draw: Draw) -> Drawn:
    """A cgroup quota stops the rank in bursts."""
    share = draw.between(0.5, 0.95)
    limits = [
        Quota(rank, draw.extra_us / share, share, draw.when.start, draw.when.end, draw.between(0.85, 1.1))
        for rank in draw.hit
    ]
    return _of_host(draw, causes.CGROUP_THROTTLING, *limits, evidence=("cgroup_sample", "cgroup"))


def affinity(draw: Draw) -> Drawn:
    """All threads of the rank on one core."""
    narrow = [
        Pinned(rank, draw.slowdown, int(draw.rng.integers(2, 17)), draw.when.start, draw.when.end) for rank in draw.hit
    ]
    return _of_host(draw, causes.AFFINITY, *narrow, evidence=("process_sample",))


def threads(draw: Draw) -> Drawn:
    """One rank has started more threads than the node has cores."""
    many = draw.run.cores * draw.between(2.0, 4.0)
    slow = _trouble(
        draw,
        draw.over_cpu(),
        counts={"process_sample.run_delay_us": draw.between(0.9, 1.05)},
        shows={"process_sample.threads": Gauge(many, deviation=1.0)},
    )
    return _of_host(draw, causes.OVERSUBSCRIPTION, slow, evidence=("process_sample",))


def swap(draw: Draw) -> Drawn:
    """Its pages come back from disk."""
    faults = draw.about(60.0, 4_000.0)
    slow = _trouble(
        draw,
        draw.over_cpu(),
        counts={"node_sample.psi_memory_some_us": draw.between(0.9, 1.3)},
        grows={
            "process_sample.major_faults": faults,
            "node_sample.major_faults": faults,
            "node_sample.swap_in_pages": 4.0 * faults,
        },
        bursts=draw.between(0.3, 1.0),
    )
    return _of_host(draw, causes.MEMORY_SWAP, slow, evidence=("process_sample", "node_sample"))


def storage(draw: Draw) -> Drawn:
    """Its loader waits for a disk."""
    slow = _trouble(
        draw,
        {"data_wait": draw.extra_us},
        counts={
            "process_sample.blkio_delay_us": draw.between(0.85, 1.0),
            "node_sample.psi_io_some_us": draw.between(0.9, 1.2),
            "disk_sample.busy_us": draw.between(0.9, 1.0),
            "disk_sample.read_wait_us": draw.between(1.0, 8.0),
        },
    )
    return _of_host(draw, causes.STORAGE, slow, evidence=("process_sample", "node_sample"))


ANYWHERE = Need()
FAULTS: dict[str, tuple[Need, Maker]] = {
    "cpu-contention": (Need(shapes=STEADY), contention),
    "cpu-contention, steal": (Need(whole_node=True), steal),
    "cpu-frequency": (Need(gpus=False, whole_node=True), frequency),
    "cgroup-throttling": (Need(shapes=STEADY), quota),
    "affinity": (Need(shapes=STEADY), affinity),
    "oversubscription": (ANYWHERE, threads),
    "memory-swap": (ANYWHERE, swap),
    "storage": (ANYWHERE, storage),
}
