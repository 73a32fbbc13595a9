"""What a mode needs of the nodes, and where it comes from: pure plans, each with its arithmetic in words.

All amounts have units: cores, bytes per second, seconds. A plan that can't be made says why in `refused`.
"""

from starprof.decision.resources.amounts import LIMIT, Amount
from starprof.decision.resources.assignment import Assignment, Host, Worker, assign, relieve
from starprof.decision.resources.calibrated import Calibrated, calibrated
from starprof.decision.resources.loans import Change, Loan, Loans
from starprof.decision.resources.pacing import Pacing, Sender, pace
from starprof.decision.resources.reallocation import Delay, Need, Neighbour, NodeUse, Reallocation, reallocate
from starprof.decision.resources.relocation import Move, Relocation, relocate
from starprof.decision.resources.routes import Route, Routes, WorkerUse, routes
from starprof.decision.resources.servers import Room, ServerLoad, ServerPlan, place_server
from starprof.decision.resources.tree import Tree, TreeCosts, TreeWorker, communication_tree

__all__ = [
    "LIMIT",
    "Amount",
    "Assignment",
    "Calibrated",
    "Change",
    "Delay",
    "Host",
    "Loan",
    "Loans",
    "Move",
    "Need",
    "Neighbour",
    "NodeUse",
    "Pacing",
    "Reallocation",
    "Relocation",
    "Room",
    "Route",
    "Routes",
    "Sender",
    "ServerLoad",
    "ServerPlan",
    "Tree",
    "TreeCosts",
    "TreeWorker",
    "Worker",
    "WorkerUse",
    "assign",
    "calibrated",
    "communication_tree",
    "pace",
    "place_server",
    "reallocate",
    "relieve",
    "relocate",
    "routes",
]
