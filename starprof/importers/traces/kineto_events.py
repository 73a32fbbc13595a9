"""What the events of a profiler trace are for, and the numbers that are kept of them."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from starprof.importers.traces import intervals
from starprof.importers.traces.eventstream import Event

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PHASES = ("data_wait", "optimizer", "backward", "forward")
"""Spans of a step that annotations and operators tell; what several cover goes to the first of them."""

_STEP = re.compile(r"ProfilerStep#(\d{1,15})$")
_COMMUNICATION = re.compile(r"(?:void )?(?:[nr]ccl|msccl|oneccl|hccl|xccl)", re.IGNORECASE)
_ON_HOST = re.compile(r"(?:gloo|mpi|ucc):")
_CALLING = re.compile(r"(?:nccl|rccl|xccl|hccl|c10d):")
_WAITING = re.compile(r"c10d|record_param_comms|wait_tensor")
_BACKWARD = "autograd::engine::evaluate_function"
_ANNOTATIONS = (
    ("data_wait", re.compile(r"enumerate\(DataLoader\)|dataloader.*next", re.IGNORECASE)),
    ("optimizer", re.compile(r"Optimizer\.step#|#* ?optimizer(?:[ _.]step)? ?#*$", re.IGNORECASE)),
    ("backward", re.compile(r"#* ?backward ?#*$", re.IGNORECASE)),
    ("forward", re.compile(r"(?:Distributed|FullySharded)\w*\.forward$|#* ?forward ?#*$", re.IGNORECASE)),
)
_MAX_US = 1e17
_MAX_NAMES = 50_000
_MAX_CORRELATION = 1 << 62
_NONE = ""


def correlation(event: Event) -> int:
    """Number that joins a kernel with its launch, -1 without one."""
    number = event.args.correlation if event.args is not None else None
    return number if isinstance(number, int) and abs(number) < _MAX_CORRELATION else -1


class Spans:
    """Starts and durations, growing."""

    def __init__(self) -> None:
        self._starts: list[Floats] = []
        self._durations: list[Floats] = []

    def add(self, starts: Floats, durations: Floats) -> None:
        """Append some."""
        self._starts.append(starts)
        self._durations.append(durations)

    def __bool__(self) -> bool:
        return bool(self._starts)

    @property
    def starts(self) -> Floats:
        """Starts of all, shape (N,)."""
        return np.concatenate(self._starts) if self._starts else np.empty(0)

    @property
    def durations(self) -> Floats:
        """Durations of all, shape (N,)."""
        return np.concatenate(self._durations) if self._durations else np.empty(0)

    def union(self) -> Floats:
        """Time that they cover."""
        return intervals.union(self.starts, self.durations)


class _Roles(dict[str, list[Event]]):
    """Per name of a category the list that its events go to. Names repeat: each is looked at once."""

    def __init__(self, rule: Callable[[str], str], lists: dict[str, list[Event]]) -> None:
        self._rule = rule
        self._lists = lists

    def __missing__(self, name: str) -> list[Event]:
        if len(self) >= _MAX_NAMES:
            self.clear()
        found = self[name] = self._lists[self._rule(name)]
        return found


class _Categories(dict[str, _Roles]):
    """Roles by category."""

    def __init__(self, lists: dict[str, list[Event]]) -> None:
        self._lists = lists

    def __missing__(self, category: str) -> _Roles:
        if len(self) >= _MAX_NAMES:
            self.clear()
        roles = self[category] = _Roles(_category_rule(category), self._lists)
        return roles


def _category_rule(category: str) -> Callable[[str], str]:
    """How the names of a category are read; the older profilers' categories begin with a capital."""
    category = category.lower()
    if category in {"cpu_op", "operator"}:
        return _operator_role
    if category == "user_annotation":
        return _annotation_role
    if category == "kernel" or category.removeprefix("gpu_") in {"memcpy", "memset"}:
        return _device_role
    if category.removeprefix("cuda_").removeprefix("hip_") in {"runtime", "driver"}:
        return _runtime_role
    return lambda _: _NONE


def _operator_role(name: str) -> str:
    if name.startswith(_BACKWARD):
        return "backward_operator"
    if _ON_HOST.match(name):
        return "host_call"
    if _CALLING.match(name):
        return "calling"
    return _NONE if _WAITING.search(name) else "operator"


def _annotation_role(name: str) -> str:
    if _STEP.match(name):
        return "step"
    role = _operator_role(name)
    if role in {"host_call", "calling"}:
        return role
    return next((phase for phase, pattern in _ANNOTATIONS if pattern.match(name)), _NONE)


def _device_role(name: str) -> str:
    return "device_call" if _COMMUNICATION.match(name) else "kernel"


def _runtime_role(name: str) -> str:
    return "launch" if "aunch" in name else _NONE


class Collected:
    """What the events of a file tell, as they come.

    Attributes:
        steps: start and duration of each ProfilerStep.
        operators: CPU operators; none once there are kernels, with which they are not needed.
        kernels: GPU kernels and copies that are no collectives.
        phases: spans of each phase.
        kept: the few events that are needed as they are: collectives on the device or the host, and annotations
            around the calls that launch them.
        impossible: how many events had impossible times.
    """

    def __init__(self) -> None:
        self.steps: dict[int, tuple[float, float]] = {}
        self.operators = Spans()
        self.kernels = Spans()
        self.phases = {name: Spans() for name in PHASES}
        self.kept: dict[str, list[Event]] = {"device_call": [], "host_call": [], "calling": []}
        self.impossible = 0
        self._launches: list[Ints] = []
        self._launched_us: list[Floats] = []
        self._threads: list[NDArray[np.int32]] = []
        self._thread_numbers: dict[object, int] = {}
        roles = ("operator", "backward_operator", "kernel", "launch", "step", *self.kept, *PHASES, _NONE)
        self._lists: dict[str, list[Event]] = {role: [] for role in roles}
        self._categories = _Categories(self._lists)

    def take(self, events: list[Event]) -> None:
        """Take what is needed of some events."""
        categories = self._categories
        for event in events:
            if event.ph == "X":
                categories[event.cat][event.name].append(event)
        self._lists[_NONE].clear()
        for role, found in self._lists.items():
            if found:
                self._take_role(role, found)
                found.clear()

    def launches(self) -> tuple[Ints, Floats]:
        """Correlation number and moment of every launch, shapes (L,)."""
        if not self._launches:
            return np.empty(0, np.int64), np.empty(0)
        return np.concatenate(self._launches), np.concatenate(self._launched_us)

    def threads(self) -> NDArray[np.int32]:
        """A number per thread for each operator."""
        return np.concatenate(self._threads) if self._threads else np.empty(0, np.int32)

    def _take_role(self, role: str, events: list[Event]) -> None:
        starts = np.array([e.ts for e in events], np.float64)
        durations = np.array([e.dur for e in events], np.float64)
        # Also false for NaN.
        possible = (durations >= 0) & (durations < _MAX_US) & (np.abs(starts) < _MAX_US)
        if not possible.all():
            self.impossible += int((~possible).sum())
            events = [e for e, good in zip(events, possible, strict=True) if good]
            starts, durations = starts[possible], durations[possible]
        if role in self.kept:
            self.kept[role] += events
        elif role in self.phases:
            self.phases[role].add(starts, durations)
        elif role in {"operator", "backward_operator"}:
            self._operators(events, starts, durations, backward=role == "backward_operator")
        elif role == "kernel":
            self.operators, self._threads = Spans(), []
            self.kernels.add(starts, durations)
        elif role == "launch":
            self._launches.append(np.array([correlation(e) for e in events], np.int64))
            self._launched_us.append(starts)
        elif role == "step":
            for event in events:
                self.steps.setdefault(int(event.name.rpartition("#")[2]), (event.ts, event.dur))

    def _operators(self, events: list[Event], starts: Floats, durations: Floats, *, backward: bool) -> None:
        if backward:
            self.phases["backward"].add(starts, durations)
        if self.kernels:
            return
        self.operators.add(starts, durations)
        numbers = self._thread_numbers
        self._threads.append(np.array([numbers.setdefault(e.tid, len(numbers)) for e in events], np.int32))
