"""Carries a plan of resources out: the delays that it asks of jobs beside, as actions of the job that needs the room.

Only jobs that were declared are touched, under the names that the plan knows them by.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from starprof.control.actuators import delay, hand
from starprof.control.actuators.base import Request
from starprof.control.actuators.change import Change, RefusedError
from starprof.control.actuators.job import JobHere
from starprof.control.actuators.journal import Entry

if TYPE_CHECKING:
    from starprof.decision.resources import Reallocation


def changes_of(
    plan: Reallocation, beside: Mapping[str, JobHere], end_ns: int | None = None
) -> list[tuple[JobHere, list[Change]]]:
    """What would be changed of which job.

    Args:
        plan: that says who is delayed.
        beside: declared jobs that share the node, by their names in the plan.
        end_ns: when their ranks go back by themselves, CLOCK_MONOTONIC; None: never.

    Raises:
        RefusedError: the plan refuses, or names a job that was not declared or does not allow it.
    """
    if plan.refused:
        raise RefusedError(f"the plan refuses: {plan.refused}")
    undeclared = [each.job for each in plan.delays if each.job not in beside]
    if undeclared:
        raise RefusedError(f"{undeclared[0]} was not declared as a job beside: it is not touched")
    return [
        (beside[each.job], delay.plan(Request(beside[each.job], f"{each.delay_s:.9f}", end_ns=end_ns)))
        for each in plan.delays
    ]


def carry_out(
    plan: Reallocation, beside: Mapping[str, JobHere], *, standing: bool, end_ns: int | None = None
) -> list[Entry]:
    """Do it; all of it, or nothing.

    Raises:
        RefusedError: see `changes_of`; or one could not be made, and those before are taken back.
    """
    done: list[tuple[JobHere, Entry]] = []
    try:
        for job, changes in changes_of(plan, beside, end_ns):
            done.append((job, hand.make(job, delay.ACTUATOR.name, changes, standing=standing)))
    except RefusedError:
        for job, entry in done:
            hand.take_back(job.key, [entry.number])
        raise
    return [entry for _, entry in done]
