"""Synthetic runs with known truth, for tests, benchmarks and report design. See `run` for how they are simulated."""

from starprof.analysis.synthetic.faults import CpuHog, Fault, Pinned, Quota, Slow, SlowNic
from starprof.analysis.synthetic.run import PHASES_US, SyntheticRun, synthetic_run
from starprof.analysis.synthetic.trouble import Trouble

__all__ = [
    "PHASES_US",
    "CpuHog",
    "Fault",
    "Pinned",
    "Quota",
    "Slow",
    "SlowNic",
    "SyntheticRun",
    "Trouble",
    "synthetic_run",
]
