"""What a job was measured to use while it was delayed, throttled or moved to another mode, for plans of resources."""

from starprof.model.columns import AT, ATTEMPT_KEY, NODE_KEY, RANK_KEY, Table, fact, gauge, real, text

BASE, DELAY, CORES, PACE, MODE = "base", "delay", "cores", "pace", "mode"
"""Kinds of phases: as the job is; every step longer; a quota of cores; connections held back; another mode."""

CALIBRATION = Table(
    36,
    "calibration",
    """One row per rank and phase of `starprof calibrate`. What a change did is the difference to the
newest `base` row of the rank before it; nothing is derived here.""",
    (
        NODE_KEY,
        AT,
        ATTEMPT_KEY,
        RANK_KEY,
        text("kind", "of phase: base, delay, cores, pace or mode"),
        real("level", "seconds that each step was longer; cores of all ranks together; bytes/s of each connection"),
        text("mode", "synchronisation mode in the phase"),
        text("options", "of the mode, JSON; NULL for none"),
        gauge("took_us", "length of the phase"),
        fact("steps", "whole steps of the rank in it"),
        gauge("iteration_us", "their mean length, NULL without any"),
        gauge("own_us", "the same without waiting for other ranks"),
        real("cores", "used by the rank and what it has started"),
        real("bytes_per_s", "sent and received by the rank's connections, NULL where it does not report them"),
    ),
)
