"""What is compared: fixed modes with the options that they are judged with, and choosers that change the mode."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from scenarios import BATCH

from starprof.decision.choice.choice import Choice
from starprof.decision.choice.heuristic import Settings, choose
from starprof.decision.choice.learned import chooser
from starprof.decision.choice.learned.features import Surroundings
from starprof.decision.choice.learned.model import default
from starprof.decision.choice.situation import Limits, NoiseScale, Situation
from starprof.simulation import Mode
from starprof.simulation.control import View
from starprof.sync.policies import MODES

FIXED: Mapping[str, Callable[[int, float, int], dict[str, Any]]] = MappingProxyType(
    {
        "ssgd": lambda _n, _s, _p: {},
        "asgd": lambda _n, _s, _p: {},
        "static-x": lambda n, _s, _p: {"x": n // 2},
        "dynamic-x": lambda _n, _s, _p: {},
        "ring-x": lambda n, _s, _p: {"x": n - 1},
        "m-sync-fold": lambda n, _s, _p: {"m": n - 1},
        "deadline": lambda n, typical_s, _p: {"after_s": 0.25 * typical_s, "least": n // 2},
        "backup": lambda _n, _s, _p: {"b": 1},
        "ssp": lambda _n, _s, _p: {"s": 3},
        "lgc": lambda n, _s, _p: {"k": n - 1},
        "lb-bsp": lambda _n, _s, _p: {"batch_size": BATCH},
        "sync-switch": lambda _n, _s, progress: {"switch_at": progress // 8},
        "zeno++": lambda _n, _s, _p: {},
        "eager": lambda _n, _s, _p: {},
        "drop-compute": lambda _n, typical_s, _p: {"tau_s": 1.2 * typical_s},
        "rennala": lambda n, _s, _p: {"batch": n},
        "ringmaster": lambda n, _s, _p: {"r": 2 * n},
    }
)
"""Options for so many workers, a typical iteration in seconds, and so much progress of the whole training."""

FIRST, EVERY = 3, 10
"""Iterations before a chooser's first look, and from one to the next."""
HISTORY = 30
NO_PREDICTION = 1
"""Iterations that a chooser without prediction looks at: what was last is what it takes for granted."""


@dataclass(frozen=True)
class Chooser:
    """One way to choose.

    Attributes:
        only: modes that it may use beside ssgd; empty: all that are carried out.
        history: iterations that it looks at.
        paper: by the scores as the paper has them.
        learned: by the model that ships with the package, where that may decide.
        limits: of what it may choose.
        told_momentum: whether it knows the momentum of what is trained; else that of its limits counts.
    """

    only: tuple[str, ...] = ()
    history: int = HISTORY
    paper: bool = False
    learned: bool = False
    limits: Limits = field(default_factory=Limits)
    told_momentum: bool = True


CHOOSERS: Mapping[str, Chooser] = MappingProxyType(
    {
        "star": Chooser(),
        "star fresh": Chooser(limits=Limits(staleness=0)),
        "star learned": Chooser(learned=True),
        "star static only": Chooser(only=("static-x",)),
        "star dynamic only": Chooser(only=("dynamic-x",)),
        "star no prediction": Chooser(history=NO_PREDICTION),
        "star paper exact": Chooser(paper=True),
    }
)

RISKS = (0.5, 0.25, 0.1, 0.05, 0.02)
LIMITED: Mapping[str, Chooser] = MappingProxyType(
    {f"star risk {risk}": Chooser(limits=Limits(risk, momentum=0.0), told_momentum=False) for risk in RISKS}
)
"""Choosers that take so much risk whatever the momentum, compared in `limited`."""


@dataclass
class Controlling:
    """A chooser at work in one simulation (`Controller`).

    Attributes:
        cost_s: time that each choice took.
        desk: who looks after the nodes, and is asked before a mode needs more of them (`managing.Desk`).
    """

    chooser: Chooser
    exchange: str
    noise: NoiseScale
    batch: int
    momentum: float
    cost_s: list[float] = field(default_factory=list)
    desk: Any = None
    _asked: int = 0
    _standing: Any = None

    def __call__(self, view: View) -> Mode | None:
        """See `Controller`."""
        self._asked += 1
        if (self._asked - FIRST) % EVERY or any(not view.recent.get(worker) for worker in view.members):
            return None
        rows = min(self.chooser.history, *(len(view.recent[worker]) for worker in view.members))
        last = [list(view.recent[worker])[-rows:] for worker in view.members]
        times = np.array([[seen.own_s * self.batch / seen.samples for seen in each] for each in last]).T
        began_s = time.perf_counter()
        limits = self.chooser.limits
        if self.chooser.told_momentum:
            limits = replace(limits, momentum=self.momentum)
        resources = self.desk.resources() if self.desk else None
        situation = Situation(
            view.members, times, self.batch, self.noise, limits, resources=resources, barred=self._barred()
        )
        around = Surroundings(all_reduce=self.exchange == "ring")
        settings = Settings(paper_exact=self.chooser.paper, all_reduce=around.all_reduce)
        if self.chooser.learned:
            choice = chooser.choose(situation, default(), self._standing, settings, around)
        else:
            choice = choose(situation, self._standing, settings)
        self.cost_s.append(time.perf_counter() - began_s)
        if choice.changed and self.desk and self.desk.wants(choice.mode, _more_per_s(choice), 1.0 - 1.0 / choice.gain):
            return None  # refused: it stays as it is, and asks for something else at the next look
        self._standing = choice.standing
        return Mode(choice.mode, choice.options) if choice.changed else None

    def _barred(self) -> dict[str, str]:
        out = {"lb-bsp": "not carried out", "drop-compute": "not carried out", "zeno++": "not carried out"}
        out["ring-x" if self.exchange == "ps" else "static-x"] = "for the other exchange"
        if self.chooser.only:
            out |= {name: "ablation" for name in MODES if name not in {*self.chooser.only, "ssgd"}}
        return out | (dict(self.desk.barred) if self.desk else {})


def _more_per_s(choice: Choice) -> float:
    """Gradients that arrive, beyond those of synchronous steps."""
    rates = {
        score.mode: score.outlook.gradients_per_s
        for score in choice.scores
        if score.outlook is not None and (score.mode == "ssgd" or score.options == choice.options)
    }
    return rates.get(choice.mode, 0.0) - rates["ssgd"]


def mode_of(method: str, workers: int, typical_s: float, progress: int) -> Mode:
    """The mode that a method begins with; `m-sync 7` is m-sync with m = 7."""
    if method in CHOOSERS or method in LIMITED:
        return Mode("ssgd")
    name, _, number = method.partition(" ")
    if number:
        return Mode(name, {"m": int(number)})
    return Mode(name, FIXED[name](workers, typical_s, progress))
