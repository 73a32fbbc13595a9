"""Streams of synthetic runs for the tests of the running job's detector."""

import numpy as np

from starprof.analysis.live.detector import OnlineDetector
from starprof.analysis.settings import DEFAULT
from starprof.analysis.synthetic import Slow

WORK = ("data_wait", "h2d", "forward", "backward", "optimizer", "unaccounted")
SPECIAL = ("gc", "checkpoint", "eval", "compile")


def slowed(who, factor, start, end):
    """All regular work of a rank takes `factor` times as long."""
    return tuple(Slow(phase, (who,), factor=factor, start=start, end=end) for phase in WORK)


def stream(run):
    """A run as its detector gets it: the data, regular own time and time blocked, shape (R, S)."""
    data = run.data()
    special = np.sum([np.nan_to_num(data.steps[f"{name}_us"]) for name in SPECIAL], axis=0)
    return data, data.steps["dur_us"] - data.steps["blocked_us"] - special, data.steps["blocked_us"].copy()


def live(run, settings=DEFAULT, found=None):
    """A detector that has seen a whole run; (step, finding) of every change is added to `found`."""
    data, own, blocked = stream(run)
    detector = OnlineDetector(data.ranks, settings)
    changed = detector.observe_many(data.steps.steps, own, blocked)
    if found is not None:
        found += [(finding.changed_step, finding) for finding in changed]
    return detector


def events(run, settings=DEFAULT):
    """Every change of a finding: (step, finding)."""
    found = []
    live(run, settings, found)
    return found
