"""One running job as its records show it: who runs where, how fast, who is late, which mode, and what was done.

Reads the spool and nothing else, so that it may be started, killed and started again at any time.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from starprof.analysis.arrays import Bools, Ints
from starprof.analysis.live.detector import OnlineDetector
from starprof.analysis.live.finding import LiveFinding
from starprof.analysis.live.verdict import live_verdict
from starprof.errors import SpoolError
from starprof.model import causes
from starprof.model.rundata import RankInfo
from starprof.model.tables.host import AGENT_SAMPLE
from starprof.model.tables.job import CLOCK, EVENT, GAP, NODE, RANK, STEP
from starprof.model.tables.sync import NATIVE, SYNC_SWITCH
from starprof.model.verdict import Verdict
from starprof.serve.assembler import Assembler, Whole
from starprof.serve.clocks import ClockTrack
from starprof.serve.known import KnownFrames
from starprof.serve.recent import Recent
from starprof.serve.standing import EXPIRES_S, Blame, StepTimes
from starprof.serve.tail import SpoolTail
from starprof.spool.frame import Frame
from starprof.spool.layout import RUN_SUFFIX, SPOOL_SUFFIX, Spool

TABLES = (STEP, RANK, NODE, CLOCK, EVENT, GAP, AGENT_SAMPLE, SYNC_SWITCH)
KEPT_LOG = 500
KEPT_EVENTS = 200
KEPT_LATENCIES = 1024
GATHER_S = 5.0
"""How long the ranks of an attempt may take to describe themselves, once steps of it have come."""

SILENT_S = 5.0
"""An agent samples itself every second; the ranks of one that has been silent for this long are not waited for."""


@dataclass
class NodeState:
    """A node that records.

    Attributes:
        heard_s: when its agent's newest sample came in, our CLOCK_MONOTONIC.
        agent_cpu_us: CPU time that the agent has used.
        agent_rss_bytes: its memory.
    """

    node: int
    host: str = ""
    boot_id: str = ""
    heard_s: float = 0.0
    agent_cpu_us: int = 0
    agent_rss_bytes: int = 0


class JobWatch:
    """Follows one job.

    Attributes:
        name: of the run.
        attempt: the newest start of the job that has records, -1 before the first.
        ranks: of that attempt, in rank order.
        nodes: by id.
        mode: synchronisation mode now.
        switches: the newest changes of the mode, oldest first.
        events: the newest events of the job, oldest first, as (node, rank, kind, detail).
        lost_rows: records that somebody said are missing.
        latencies_s: from the end of a step to its verdict, of the newest ones.
        causes: what the counters have told of ranks that are late: (cause, evidence) by rank.
        finding_changed: called with each finding that is new or changed.
    """

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self.name = spool.root.name.removesuffix(SPOOL_SUFFIX).removesuffix(RUN_SUFFIX)
        self.attempt = -1
        self.ranks: tuple[RankInfo, ...] = ()
        self.nodes: dict[int, NodeState] = {}
        self.mode = NATIVE
        self.switches: deque[dict[str, Any]] = deque(maxlen=KEPT_LOG)
        self.events: deque[tuple[int | None, int | None, str, str]] = deque(maxlen=KEPT_EVENTS)
        self.lost_rows = 0
        self.step_rows = 0
        self.steps = 0
        self.causes: dict[int, tuple[str, str]] = {}
        self.clocks: dict[int, ClockTrack] = {}
        self.finding_changed: Callable[[LiveFinding], None] = lambda _finding: None
        self.latencies_s: deque[float] = deque(maxlen=KEPT_LATENCIES)
        self.tail = SpoolTail(spool.segments, {table.code for table in TABLES})
        self._known = KnownFrames(spool.root / "live.known")
        self._described: dict[int, dict[int, RankInfo]] = {}
        self._waiting: dict[int, list[Ints]] = {}
        self._since_s: float | None = None
        self._judged_s = 0.0
        self._assembler: Assembler | None = None
        self._detector: OnlineDetector | None = None
        self._recent: Recent | None = None
        for frame in self._known.load():
            self.tail.seen(frame)
            self._take_rare(frame)

    def poll(self, now_s: float) -> int:
        """Take in what is new; tells how many steps were judged. `now_s` is CLOCK_MONOTONIC."""
        packed: list[bytes] = []
        for frame in self.tail.poll():
            if frame.table is STEP:
                packed.append(frame.payload)
            elif frame.table is AGENT_SAMPLE:
                self._take_sample(frame, now_s)
            else:
                self._known.keep(frame)
                self._take_rare(frame)
        self._known.flush()
        if packed:
            self._take_steps(np.frombuffer(b"".join(packed), np.int64).reshape(-1, len(STEP.columns)))
        self._begin_attempt(now_s)
        return self._judge(now_s)

    def blames(self, now_s: float) -> tuple[Blame, ...]:
        """Who is late now, most costly first; nothing once the newest step is too old."""
        detector, expires_s = self._detector, self._judged_s + EXPIRES_S
        if detector is None or now_s >= expires_s:
            return ()
        hosts = {info.rank: info.host for info in detector.infos}
        return tuple(self._blame(finding, hosts[finding.rank], expires_s) for finding in detector.findings)

    def verdict(self) -> Verdict | None:
        """The verdict on the steps so far; None as long as there is none to compare."""
        return None if self._detector is None else live_verdict(self._detector, self.name)

    def step_times(self) -> StepTimes | None:
        """A recent window of steps; None before the first."""
        return None if self._recent is None else self._recent.times(self.ranks)

    def step_ms(self) -> float | None:
        """Typical time of a recent step."""
        return None if self._recent is None else self._recent.step_ms()

    def steps_per_s(self) -> float | None:
        """Steps of the job per second, over the recent window."""
        return None if self._recent is None else self._recent.steps_per_s()

    def last_step(self) -> int | None:
        """Newest step that is complete."""
        return None if self._recent is None else self._recent.last_step

    @property
    def detector(self) -> OnlineDetector | None:
        """The detector of this attempt; None with fewer than two ranks."""
        return self._detector

    def judged_age_s(self, now_s: float) -> float | None:
        """How long ago the newest step was judged."""
        return None if self._judged_s == 0.0 else now_s - self._judged_s

    def late_rows(self) -> int:
        """Step records that came after their step had been judged."""
        return 0 if self._assembler is None else self._assembler.late_rows

    def silent_nodes(self, now_s: float) -> list[int]:
        """Nodes whose agents have been heard, but not lately."""
        return [n.node for n in self.nodes.values() if n.heard_s and now_s - n.heard_s > SILENT_S]

    def close(self) -> None:
        """Let go of all files."""
        self.tail.close()
        self._known.close()

    def _blame(self, finding: LiveFinding, host: str, expires_s: float) -> Blame:
        cause, why = self.causes.get(finding.rank, (causes.UNKNOWN, ""))
        return Blame(
            rank=finding.rank,
            host=host,
            status="confirmed" if finding.status == "confirmed" else "provisional",
            onset_step=finding.onset_step,
            slowdown=finding.slowdown,
            lost_s=finding.lost_us / 1e6,
            step_share=finding.lateness,
            cause=cause,
            why=why,
            expires_s=expires_s,
        )

    # What comes in.

    def _take_rare(self, frame: Frame) -> None:
        table = frame.table
        try:
            rows = frame.json_rows()
        except SpoolError:
            return  # damaged within a good checksum: the ingester says so
        for cells in rows:
            _TAKE[table.name](self, dict(zip(table.names, cells, strict=True)))

    def _take_rank(self, cells: Mapping[str, Any]) -> None:
        attempt, rank = cells["attempt"], cells["rank"]
        if attempt is not None and rank is not None:
            self._described.setdefault(attempt, {})[rank] = _rank_info(cells)

    def _take_node(self, cells: Mapping[str, Any]) -> None:
        if cells["node"] is None:
            return
        node = self.nodes.setdefault(cells["node"], NodeState(cells["node"]))
        node.host, node.boot_id = str(cells["host"] or ""), str(cells["boot_id"] or "")

    def _take_clock(self, cells: Mapping[str, Any]) -> None:
        measured = cells["mono_ns"], cells["offset_ns"], cells["error_ns"]
        if cells["node"] is not None and None not in measured:
            self.clocks.setdefault(cells["node"], ClockTrack()).add(*measured)

    def _take_event(self, cells: Mapping[str, Any]) -> None:
        self.events.append((cells["node"], cells["rank"], str(cells["kind"]), str(cells["detail"] or "")))

    def _take_gap(self, cells: Mapping[str, Any]) -> None:
        self.lost_rows += cells["lost_rows"] or 0

    def _take_switch(self, cells: Mapping[str, Any]) -> None:
        if cells["version"] is not None:
            self.mode = str(cells["to_mode"])
        self.switches.append(dict(cells))

    def _take_sample(self, frame: Frame, now_s: float) -> None:
        cells = np.frombuffer(frame.payload, np.int64).reshape(-1, len(AGENT_SAMPLE.columns))
        if len(cells):
            node, _, cpu_us, rss_bytes, *_ = (int(cell) for cell in cells[-1])
            state = self.nodes.setdefault(node, NodeState(node))
            state.heard_s, state.agent_cpu_us, state.agent_rss_bytes = now_s, cpu_us, rss_bytes

    def _take_steps(self, cells: Ints) -> None:
        self.step_rows += len(cells)
        attempts = cells[:, 0]
        for attempt in np.unique(attempts):
            if attempt >= self.attempt:
                self._waiting.setdefault(int(attempt), []).append(cells[attempts == attempt])

    # What is made of it.

    def _begin_attempt(self, now_s: float) -> None:
        """Turn to the newest attempt once its ranks are known."""
        newest = max(self._waiting, default=self.attempt)
        if newest <= self.attempt:
            return
        described = self._described.get(newest, {})
        self._since_s = now_s if self._since_s is None else self._since_s
        world = max((int(info.detail.get("world_size") or 0) for info in described.values()), default=0)
        complete = bool(described) and len(described) >= world
        if not described or (not complete and now_s - self._since_s < GATHER_S):
            return
        hosts = {node.node: node.host for node in self.nodes.values()}
        self.ranks = tuple(
            _with_host(described[rank], hosts.get(described[rank].node, "")) for rank in sorted(described)
        )
        self.attempt, self._since_s = newest, None
        self._described = {attempt: ranks for attempt, ranks in self._described.items() if attempt >= newest}
        self._waiting = {attempt: parts for attempt, parts in self._waiting.items() if attempt >= newest}
        self.causes.clear()
        self._assembler = Assembler([info.rank for info in self.ranks])
        self._recent = Recent(len(self.ranks))
        self._detector = OnlineDetector(self.ranks) if len(self.ranks) > 1 else None

    def _judge(self, now_s: float) -> int:
        assembler = self._assembler
        if assembler is None or self._recent is None:
            return 0
        for cells in self._waiting.pop(self.attempt, ()):
            assembler.add(cells, now_s)
        judged = 0
        while (whole := assembler.take(now_s, self._absent(now_s))) is not None:
            self._recent.add(whole)
            self._observe(whole)
            self._time(whole)
            judged += len(whole.steps)
        if judged:
            self._judged_s = now_s
            self.steps += judged
        return judged

    def _observe(self, whole: Whole) -> None:
        if self._detector is None:
            return
        for finding in self._detector.observe_many(whole.steps, whole.own_us, whole.blocked_us):
            if finding.status in ("ended", "withdrawn"):
                self.causes.pop(finding.rank, None)
            self.finding_changed(finding)

    def _time(self, whole: Whole) -> None:
        """How long after their end, by our clock, these steps were judged."""
        offsets = {node: track.now() for node, track in self.clocks.items()}
        shift = np.array([o.offset_ns if (o := offsets.get(info.node)) else 0 for info in self.ranks])
        ends = np.where(whole.end_ns > 0, whole.end_ns + shift[:, None], 0).max(axis=0)
        now_ns = time.monotonic_ns()
        self.latencies_s.extend(((now_ns - ends[ends > 0]) / 1e9).tolist())

    def _absent(self, now_s: float) -> Bools | None:
        """Ranks of nodes that are cut off."""
        silent = set(self.silent_nodes(now_s))
        return np.array([info.node in silent for info in self.ranks]) if silent else None


_TAKE: Mapping[str, Callable[[JobWatch, Mapping[str, Any]], None]] = {
    RANK.name: JobWatch._take_rank,
    NODE.name: JobWatch._take_node,
    CLOCK.name: JobWatch._take_clock,
    EVENT.name: JobWatch._take_event,
    GAP.name: JobWatch._take_gap,
    SYNC_SWITCH.name: JobWatch._take_switch,
}


def _rank_info(cells: Mapping[str, Any]) -> RankInfo:
    try:
        detail = json.loads(cells["detail"]) if cells["detail"] else {}
    except (ValueError, RecursionError):
        detail = {}
    return RankInfo(
        rank=cells["rank"],
        node=-1 if cells["node"] is None else cells["node"],
        host="",
        local_rank=cells["local_rank"],
        pid=cells["pid"],
        device=cells["device"],
        gpu_uuid=cells["gpu_uuid"],
        role={part: cells[f"role_{part}"] for part in ("dp", "tp", "pp") if cells[f"role_{part}"] is not None},
        framework=cells["framework"],
        backend=cells["backend"],
        detail={**(detail if isinstance(detail, dict) else {}), "world_size": cells["world_size"]},
    )


def _with_host(info: RankInfo, host: str) -> RankInfo:
    return replace(info, host=host)
