"""What-if analysis of op traces: replay the steps with parts of them as they should be.

roles (what an operation is), trace (operations as arrays), unseen (who is not in it), graph and exchanges (who waits
for whom), replay, clocks (that are apart), shares (S = T / T_ideal and its parts), interval (how sure they are);
passes, persistence, slow_ranks, between, communication, links, groups, uneven (what might be slow), suspect (what each
costs), judge (the verdict).
"""

from starprof.analysis.whatif.clocks import on_one_clock
from starprof.analysis.whatif.judge import judge
from starprof.analysis.whatif.replay import Replay, replay_of
from starprof.analysis.whatif.shares import Shares, Slowdown, shares
from starprof.analysis.whatif.trace import OpTrace, op_trace

__all__ = ["OpTrace", "Replay", "Shares", "Slowdown", "judge", "on_one_clock", "op_trace", "replay_of", "shares"]
