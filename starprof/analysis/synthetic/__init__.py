"""Synthetic runs with known truth, for tests, benchmarks and report design. See `run` for how they are simulated."""

from starprof.analysis.synthetic.dealt import Dealt
from starprof.analysis.synthetic.faults import CpuHog, Fault, Neighbour, Pinned, Quota, Slow, SlowNic, SlowPath
from starprof.analysis.synthetic.gauges import Gauge
from starprof.analysis.synthetic.recording import Recording
from starprof.analysis.synthetic.run import PHASES_US, SyntheticRun, synthetic_run
from starprof.analysis.synthetic.trouble import Trouble

__all__ = [
    "PHASES_US",
    "CpuHog",
    "Dealt",
    "Fault",
    "Gauge",
    "Neighbour",
    "Pinned",
    "Quota",
    "Recording",
    "Slow",
    "SlowNic",
    "SlowPath",
    "SyntheticRun",
    "Trouble",
    "synthetic_run",
]
