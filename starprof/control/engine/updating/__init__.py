"""The user's own way to make an update, learned by watching it: replayed for a missed one, or made to change nothing.

Between a synchronising backward pass and the next forward pass a loop clips, steps its optimizers, moves its schedules
and averages. Every rank makes every update of the training once and in the same order, by its own loop or by a replay
of what that loop does: then parameters, optimizer state, schedules, loss scale and averages stay the same bits on all.
"""

from starprof.control.engine.updating.core import Updating
from starprof.control.engine.updating.hyper import Hyper, same
from starprof.control.engine.updating.operations import Kind, Operation
from starprof.control.engine.updating.parts import UpdatingError

__all__ = ["Hyper", "Kind", "Operation", "Updating", "UpdatingError", "same"]
