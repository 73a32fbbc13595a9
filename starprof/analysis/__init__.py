"""Diagnosis: pure functions from a run's arrays and frames to a verdict. Nothing here draws or reads a clock.

`diagnose` goes through these steps, one module each:
own_time (what a rank needed itself) -> peers, noise, detect, changepoint, shapes, slowness (who is late, when, in
which shape) and special, shared, network (what is not one rank's fault) -> cost (replay without it) -> causes (why)
-> findings (words).
"""

from starprof.analysis.diagnose import diagnose
from starprof.analysis.settings import DEFAULT, Settings

__all__ = ["DEFAULT", "Settings", "diagnose"]
