"""Verdict on workers that don't wait for each other: each one's own times, compared with its peers' and its past."""

from starprof.analysis.workers.judge import judge

__all__ = ["judge"]
