"""Faults of one GPU or of all GPUs of a node, and what their counters show meanwhile."""

from __future__ import annotations

from dataclasses import replace

from draws.drawn import Draw, Drawn, Maker, Need
from starprof.analysis.synthetic import Gauge, Trouble
from starprof.analysis.synthetic.devices import MEMORY_BYTES, POWER_LIMIT_W, SM_CLOCK_MHZ, gpu_numa, numa_cpus
from starprof.model import causes

PLACES = frozenset({causes.GPU_COMPUTE, causes.FORWARD_COMPUTE, causes.BACKWARD_COMPUTE, causes.UNKNOWN})
COPIES = frozenset({causes.HOST_TO_DEVICE, causes.DATA_LOADING, causes.UNKNOWN})
GPU_TABLES = ("gpu_sample",)


def _trouble(draw: Draw, adds: dict[str, float], **shown: object) -> Trouble:
    when = draw.when
    return Trouble(draw.hit, adds, start=when.start, end=when.end, spells=when.spells, **shown)  # type: ignore[arg-type]


def _clock(draw: Draw) -> Gauge:
    """A clock that explains the slowdown: work that waits for memory loses less than the clock does."""
    compute = draw.run.phases_us["forward"] + draw.run.phases_us["backward"]
    stretch = 1.0 + draw.extra_us / compute * draw.between(1.0, 1.25)
    return Gauge(max(210.0, SM_CLOCK_MHZ / stretch), deviation=8.0)


def _of_compute(draw: Draw, cause: str, *troubles: Trouble, evidence: tuple[str, ...] = GPU_TABLES) -> Drawn:
    return Drawn(
        troubles,
        ranks=frozenset(draw.hit),
        causes=frozenset({cause}),
        places=PLACES,
        evidence=evidence,
        slowdown=draw.slowdown,
        when=draw.when,
    )


HELD_DOWN = PLACES | {causes.GPU_CLOCK}
"""That the clock is lower is true where heat or a cap lowers it, and tells less."""


def thermal(draw: Draw) -> Drawn:
    """It gets hot slowly, its clock falls, and the thermal bits flicker."""
    clock = _clock(draw)
    shows = {
        "gpu_sample.sm_clock_mhz": clock,
        "gpu_sample.temperature_c": Gauge(draw.between(84.0, 93.0), lag_s=draw.between(1.0, 6.0), deviation=1.0),
        "gpu_sample.power_w": Gauge(285.0 * (clock.value / SM_CLOCK_MHZ) ** 1.3, deviation=8.0),
        "gpu_sample.clock_event_reasons": Gauge(
            float(draw.rng.choice([0x20, 0x40, 0x48])), share=draw.between(0.55, 1.0)
        ),
    }
    found = _of_compute(draw, causes.GPU_THERMAL, _trouble(draw, draw.over_compute(), shows=shows))
    return replace(found, places=HELD_DOWN)


def power_cap(draw: Draw) -> Drawn:
    """Held below its power limit, or below a lower one than its peers have."""
    clock = _clock(draw)
    watts = max(90.0, 285.0 * clock.value / SM_CLOCK_MHZ)
    shows = {
        "gpu_sample.sm_clock_mhz": clock,
        "gpu_sample.temperature_c": Gauge(draw.between(45.0, 60.0), lag_s=draw.between(1.0, 6.0), deviation=1.0),
        "gpu_sample.power_w": Gauge(watts, deviation=5.0),
        "gpu_sample.clock_event_reasons": Gauge(float(draw.rng.choice([0x04, 0x80])), share=draw.between(0.8, 1.0)),
    }
    if watts < 0.9 * POWER_LIMIT_W and draw.often(0.5):
        shows["gpu_sample.power_limit_w"] = Gauge(watts + 5.0)
    found = _of_compute(draw, causes.GPU_POWER_CAP, _trouble(draw, draw.over_compute(), shows=shows))
    return replace(found, places=HELD_DOWN)


def clock(draw: Draw) -> Drawn:
    """Clocks that somebody has set, or a clock that falls without a word of the driver."""
    shows = {
        "gpu_sample.sm_clock_mhz": _clock(draw),
        "gpu_sample.clock_event_reasons": Gauge(float(draw.rng.choice([0x00, 0x02, 0x10]))),
        "gpu_sample.power_w": Gauge(draw.between(150.0, 240.0), deviation=8.0),
    }
    return _of_compute(draw, causes.GPU_CLOCK, _trouble(draw, draw.over_compute(), shows=shows))


def ecc(draw: Draw) -> Drawn:
    """Memory errors that are corrected in bursts."""
    grows = {"gpu_sample.ecc_corrected": draw.about(4.0, 400.0)}
    return _of_compute(
        draw, causes.GPU_ECC, _trouble(draw, draw.over_compute(), grows=grows, bursts=draw.between(0.3, 1.5))
    )


def remapped(draw: Draw) -> Drawn:
    """A row of memory is remapped when the slowness begins."""
    slow = _trouble(draw, draw.over_compute())
    row = {"gpu_sample.remapped_rows": 2.0 / draw.step_s, "gpu_sample.ecc_uncorrected": 2.0 / draw.step_s}
    start = draw.when.start
    return _of_compute(draw, causes.GPU_ECC, slow, Trouble(draw.hit, grows=row, start=start, end=start + 2))


def memory_pressure(draw: Draw) -> Drawn:
    """The allocator retries in the slow steps; the memory is nearly full."""
    full = {"gpu_sample.memory_used_bytes": Gauge(draw.between(0.95, 0.99) * MEMORY_BYTES, deviation=2e8)}
    slow = _trouble(draw, draw.over_compute(), shows=full, records={"alloc_retries": draw.about(1.0, 15.0)})
    return _of_compute(draw, causes.GPU_MEMORY_PRESSURE, slow, evidence=())


def foreign(draw: Draw) -> Drawn:
    """Somebody else's process computes on the GPU; in some containers it can't be seen."""
    shows = {
        "gpu_sample.foreign_processes": Gauge(1.0, share=draw.between(0.9, 1.0)),
        "gpu_sample.foreign_memory_bytes": Gauge(draw.about(1e9, 30e9), share=0.95),
        "gpu_sample.util_pct": Gauge(100.0),
    }
    found = _of_compute(draw, causes.GPU_FOREIGN_PROCESS, _trouble(draw, draw.over_compute(), shows=shows))
    if not draw.often(0.15):
        return found
    hidden = {name: Gauge(float("nan")) for name in list(shows)[:2]}
    return replace(
        found,
        faults=(*found.faults, Trouble(tuple(range(draw.run.ranks)), shows=hidden)),
        causes=PLACES,
        places=frozenset(),
    )


def pcie(draw: Draw) -> Drawn:
    """Fewer lanes or an older generation under load: copies take as much longer as the link is narrower."""
    lanes, generation, ratio = ((8, 4, 2), (4, 4, 4), (16, 3, 2), (1, 4, 16), (16, 1, 6.4))[int(draw.rng.integers(5))]
    extra = draw.run.phases_us["h2d"] * (ratio - 1.0) * draw.between(0.85, 1.0)
    shows = {
        "gpu_sample.pcie_width": Gauge(float(lanes), share=0.97),
        "gpu_sample.pcie_gen": Gauge(float(generation), share=0.97),
    }
    return Drawn(
        (_trouble(draw, {"h2d": extra}, shows=shows),),
        ranks=frozenset(draw.hit),
        causes=frozenset({causes.PCIE_LINK}),
        places=COPIES,
        evidence=GPU_TABLES,
        slowdown=1.0 + extra / sum(draw.run.phases_us.values()),
        when=draw.when,
    )


def numa(draw: Draw) -> Drawn:
    """Started on the cores that its GPU is not attached to, while its peers run beside theirs."""
    run = replace(draw.run, numa_nodes=2)
    lists = {rank: numa_cpus(run, gpu_numa(run, rank)) for rank in range(run.ranks)}
    lists |= {rank: numa_cpus(run, 1 - gpu_numa(run, rank)) for rank in draw.hit}
    return Drawn(
        (_trouble(draw, draw.spread_over("h2d", "data_wait")),),
        ranks=frozenset(draw.hit),
        causes=frozenset({causes.NUMA}),
        places=COPIES,
        slowdown=draw.slowdown,
        when=draw.when,
        recipe={"numa_nodes": 2, "cpu_lists": lists},
    )


def nothing_seen(draw: Draw) -> Drawn:
    """Forward and backward take longer, and no counter says why."""
    found = _of_compute(draw, causes.GPU_COMPUTE, _trouble(draw, draw.over_compute()), evidence=())
    return replace(found, places=PLACES - {causes.GPU_COMPUTE})


CARD = Need(gpus=True, whole_node=True)
FAULTS: dict[str, tuple[Need, Maker]] = {
    "gpu-thermal": (CARD, thermal),
    "gpu-power-cap": (CARD, power_cap),
    "gpu-clock": (CARD, clock),
    "gpu-ecc": (Need(gpus=True, shapes=("chronic", "onset", "transient")), ecc),
    "gpu-ecc, remapped row": (Need(gpus=True, shapes=("onset",)), remapped),
    "gpu-memory-pressure": (Need(gpus=True), memory_pressure),
    "gpu-foreign-process": (Need(gpus=True), foreign),
    "pcie-link": (Need(gpus=True), pcie),
    "numa": (Need(gpus=True, shapes=("chronic",)), numa),
    "gpu-compute": (Need(gpus=True), nothing_seen),
}
