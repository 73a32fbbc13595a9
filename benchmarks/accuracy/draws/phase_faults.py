"""Faults that only the spans of the step show: one phase of one rank takes longer."""

from __future__ import annotations

from draws.drawn import Draw, Drawn, Maker, Need
from starprof.analysis.synthetic import Fault, Slow, Trouble
from starprof.model import causes

PLACES = {
    causes.FORWARD_COMPUTE: frozenset({causes.UNKNOWN, causes.GPU_COMPUTE}),
    causes.BACKWARD_COMPUTE: frozenset({causes.UNKNOWN, causes.GPU_COMPUTE}),
}
UNKNOWN = frozenset({causes.UNKNOWN})


def _of_phase(phase: str, cause: str) -> Maker:
    def make(draw: Draw) -> Drawn:
        when = draw.when
        if phase in draw.run.phases_us:
            slow: Fault = Trouble(draw.hit, {phase: draw.extra_us}, start=when.start, end=when.end, spells=when.spells)
        else:
            slow = Slow(phase, draw.hit, us=draw.extra_us, start=when.start, end=when.end)
        return _drawn(draw, slow, cause)

    return make


def _drawn(draw: Draw, fault: Fault, cause: str) -> Drawn:
    return Drawn(
        (fault,),
        ranks=frozenset(draw.hit),
        causes=frozenset({cause}),
        places=PLACES.get(cause, UNKNOWN),
        slowdown=draw.slowdown,
        when=draw.when,
    )


def sampling_of_steps(draw: Draw) -> Drawn:
    """A random share of the steps is slow: a cache that misses now and then."""
    share = draw.between(0.3, 0.8)
    slow = Slow("data_wait", draw.hit, us=draw.extra_us / share, share=share, start=draw.when.start, end=draw.when.end)
    return _drawn(draw, slow, causes.DATA_LOADING)


def growing(draw: Draw) -> Drawn:
    """It becomes slower and slower."""
    slow = Slow("unaccounted", draw.hit, us=draw.extra_us, start=draw.when.start, trend=True)
    found = _drawn(draw, slow, causes.USER_CODE)
    return Drawn(**{**found.__dict__, "when": None})


def collector(draw: Draw) -> Drawn:
    """Python's garbage collector runs on one rank only, and long."""
    every = int(draw.rng.integers(3, 12))
    slow = Slow("gc", draw.hit, us=draw.extra_us * every, every=every, start=draw.when.start)
    found = _drawn(draw, slow, causes.GC)
    return Drawn(**{**found.__dict__, "when": None})


ANYWHERE = Need()
FAULTS: dict[str, tuple[Need, Maker]] = {
    "data-loading": (ANYWHERE, _of_phase("data_wait", causes.DATA_LOADING)),
    "data-loading, some steps": (Need(shapes=("chronic", "onset")), sampling_of_steps),
    "host-to-device": (Need(gpus=True), _of_phase("h2d", causes.HOST_TO_DEVICE)),
    "forward-compute": (ANYWHERE, _of_phase("forward", causes.FORWARD_COMPUTE)),
    "backward-compute": (ANYWHERE, _of_phase("backward", causes.BACKWARD_COMPUTE)),
    "optimizer": (ANYWHERE, _of_phase("optimizer", causes.OPTIMIZER)),
    "user-code": (ANYWHERE, _of_phase("unaccounted", causes.USER_CODE)),
    "user-code, named span": (Need(shapes=("chronic", "onset", "transient")), _of_phase("user", causes.USER_CODE)),
    "user-code, growing": (Need(shapes=("onset",)), growing),
    "gc": (Need(shapes=("chronic", "onset")), collector),
}
