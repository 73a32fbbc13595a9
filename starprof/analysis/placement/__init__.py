"""Which node makes runs slow, from many runs placed on different nodes: a regression, and what it can't tell."""

from starprof.analysis.placement.judge import judge
from starprof.analysis.placement.result import NodeEffect, Placement, Together
from starprof.analysis.placement.runs import RunOn

__all__ = ["NodeEffect", "Placement", "RunOn", "Together", "judge"]
