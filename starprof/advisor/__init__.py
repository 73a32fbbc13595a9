"""The live advisor: watches a running job, moves it to a mode that pays while it pays, and takes it back."""

from starprof.advisor.events import Denied, Event, Gain, Job, Loss, Move, Note, Proposal, Ranks, StepTime, Tick
from starprof.advisor.limits import Authority, Limits
from starprof.advisor.machine import Advisor, Phase
from starprof.advisor.own import OwnTrainer

__all__ = [
    "Advisor",
    "Authority",
    "Denied",
    "Event",
    "Gain",
    "Job",
    "Limits",
    "Loss",
    "Move",
    "Note",
    "OwnTrainer",
    "Phase",
    "Proposal",
    "Ranks",
    "StepTime",
    "Tick",
]
