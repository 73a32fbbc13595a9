"""Diagnosis: pure functions from a run's arrays and frames to a verdict. Nothing here draws or reads a clock.

`diagnose` goes through these steps, a module each:
own_time (what a rank needed itself), peers, noise, comparison (lateness against peers), detect, changepoint, shapes,
persistent, spiky (who is late, when, in which shape), special, shared, links, network (what is no rank's own time),
cost (replay without it), causes (why), findings, network_findings, words (how it is said), receipt (what was not seen).
"""

from starprof.analysis.diagnose import diagnose
from starprof.analysis.settings import DEFAULT, Settings

__all__ = ["DEFAULT", "Settings", "diagnose"]
