"""Text logs of training frameworks: step times of the job, or of each rank where the log tells ranks apart.

Every line is matched against one table of forms (`log_patterns`). Times that a line states are preferred; then those of
progress bars; then the clock stamps of lines with a step number. Where step numbers go back, the job was restarted: the
later attempt counts.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from itertools import combinations, islice

import numpy as np
import pandas as pd

from starprof.errors import InputError
from starprof.importers.base import JOB, OWN, WALL, run_of
from starprof.importers.logs.job_log import job_rank, noted, usual_distance
from starprof.importers.logs.lines import log_lines, rank_of_line, rank_of_name
from starprof.importers.logs.reader import LogReader
from starprof.importers.logs.records import Records, most_telling
from starprof.importers.parts import SeveralJobsError, by_overlap
from starprof.importers.source import Source
from starprof.model import events
from starprof.model.columns import row
from starprof.model.rundata import STEPS_PER_RECORD, RankInfo, RunData
from starprof.model.tables.job import EVENT
from starprof.model.xids import detail_of

NAME = "training-log"

MIN_RECORDS = 3
LOOKED_AT_LINES = 200_000
SAME_STEPS = 0.5
_ATTEMPT = re.compile(r"attempt_\d+")
_ENDING = re.compile(r"(?:[._-]?(?:std)?(?:out|err))?(?:\.(?:log|txt|out|err|gz))*$")
MIN_COMMON_STEPS = 16
SAME_TOTAL = 0.03
MAX_RANKS = 100_000
MAX_COMPARED = 200


def recognises(source: Source) -> bool:
    """A text in whose first lines some steps with their times are found (argument dumps may come before them)."""
    if b"\0" in source.head or not source.head.strip():
        return False
    reader = LogReader()
    try:
        for count, line in enumerate(islice(log_lines(source), LOOKED_AT_LINES)):
            reader.feed(*rank_of_line(line))
            if count % 1000 == 0 and _enough(reader):
                return True
    except InputError:
        return False
    return _enough(reader)


def _enough(reader: LogReader) -> bool:
    return bool(reader.finished())


def read(sources: Sequence[Source]) -> RunData:
    """All logs of one run: of one process, of one per rank, or one after the other.

    Raises:
        SeveralJobsError: the logs are of several runs.
        InputError: no steps with times.
    """
    found = [(source, reader) for source in sources if (reader := _read_log(source)).finished()]
    if not found:
        raise InputError(
            f"{sources[0].name} has no steps with times in a form that is known; let the job log a step number with "
            "the time of the step (or a clock stamp) in each line"
        )
    readers = [reader for _, reader in found]
    used = [source for source, _ in found]
    by_rank = _by_rank(found)
    if len(by_rank) > 1:
        return _of_ranks(used, by_rank, readers)
    return _of_job(used, readers)


def _read_log(source: Source) -> LogReader:
    reader = LogReader()
    for line in log_lines(source):
        reader.feed(*rank_of_line(line))
    return reader


def _by_rank(found: Sequence[tuple[Source, LogReader]]) -> dict[int, Records]:
    """Records per rank; empty when ranks can't be told apart."""
    result: dict[int, Records] = {}
    owners: dict[int, str] = {}
    for source, reader in found:
        told = reader.finished()
        named = {rank: records for rank, records in told.items() if rank is not None}
        own = rank_of_name(source.name)
        if own is not None and len(named) <= 1:
            named = {own: most_telling(told.values())}
        for rank, records in named.items():
            if owners.setdefault(rank, _stream(source)) != _stream(source) and _same_steps(result[rank], records):
                words = f"logs of several runs: rank {rank} tells the same steps in two of them: name those of one"
                raise SeveralJobsError(words, by_overlap({s: _ranks_of(s, r) for s, r in found}))
            if rank in result:
                result[rank] = result[rank].followed_by(records)
            else:
                result[rank] = records
    if len(result) > MAX_RANKS:
        raise InputError(f"the logs name more than {MAX_RANKS} ranks")
    return result


def _of_ranks(sources: Sequence[Source], by_rank: dict[int, Records], readers: Sequence[LogReader]) -> RunData:
    ranks = sorted(by_rank)
    steps = np.unique(np.concatenate([by_rank[r].steps for r in ranks]))
    names = {name for records in by_rank.values() for name in records.columns}
    columns = {name: np.full((len(ranks), len(steps)), np.nan) for name in names}
    for index, rank in enumerate(ranks):
        places = np.searchsorted(steps, by_rank[rank].steps)
        for name, values in by_rank[rank].columns.items():
            columns[name][index, places] = values
    detail = _detail(readers, steps)
    together = _together(columns["dur_us"])
    waiting = ("waiting for others", "the logs tell whole steps only, waiting included")
    run = run_of(
        NAME,
        sources,
        ranks=[RankInfo(rank=r, node=-1, host="", detail=detail) for r in ranks],
        steps=steps,
        columns=columns,
        timing=WALL if together else OWN,
        unavailable=(waiting,) if together else (),
        events=_events(readers, list(by_rank.values())[:1]),
    )
    apart = "" if together else "; their times differ in sum, so they hold no waiting for each other"
    return noted(run, _note([by_rank[r] for r in ranks], f"{len(ranks)} ranks told apart{apart}"))


def _together(durations: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> bool:
    """Whether the ranks wait for each other in every step: then no rank can need less time than another in sum."""
    common = durations[:, np.isfinite(durations).all(axis=0)]
    if common.shape[1] < MIN_COMMON_STEPS:
        return True
    total = common.sum(axis=1)
    return bool(np.ptp(total) <= SAME_TOTAL * np.median(total))


def _of_job(sources: Sequence[Source], readers: Sequence[LogReader]) -> RunData:
    logs = [most_telling(reader.finished().values()) for reader in readers]
    order = sorted(range(len(logs)), key=lambda i: (logs[i].began, int(logs[i].steps[0])))
    whole = logs[order[0]]
    for index in order[1:]:
        if _same_steps(whole, logs[index]):
            raise SeveralJobsError(
                f"{sources[order[0]].base} and {sources[index].base} tell of the same steps: of two runs, name one; "
                "of two ranks of one run, call them rank0.log, rank1.log and so on",
                by_overlap(_conflicts(sources, logs), alone=True),
            )
        whole = whole.followed_by(logs[index])
    detail = _detail(readers, whole.steps)
    world = detail.pop("world_size", None)
    run = run_of(
        NAME,
        sources,
        ranks=(job_rank(1, detail, world_size=int(str(world)) if world else None),),
        steps=whole.steps,
        columns={name: values[None, :] for name, values in whole.columns.items()},
        timing=JOB,
        unavailable=(("time per rank", "the log holds one series for the whole job"),),
        events=_events(readers, logs, whole.restarts),
    )
    return noted(run, _note([whole], ""))


def _stream(source: Source) -> str:
    """What a log is called, whichever attempt of the launcher and whichever of its two streams it is."""
    return _ENDING.sub("", _ATTEMPT.sub("attempt", source.name))


def _ranks_of(source: Source, reader: LogReader) -> frozenset[Hashable]:
    own = rank_of_name(source.name)
    named = frozenset(rank for rank in reader.finished() if rank is not None)
    return named if own is None or len(named) > 1 else frozenset({own})


def _conflicts(sources: Sequence[Source], logs: Sequence[Records]) -> dict[Source, frozenset[Hashable]]:
    """For each log a mark that it shares with each other log of the same steps; all share one where there are many."""
    if len(logs) > MAX_COMPARED:
        return {source: frozenset({0}) for source in sources}
    pairs = [p for p in combinations(range(len(logs)), 2) if _same_steps(logs[p[0]], logs[p[1]])]
    return {source: frozenset(p for p in pairs if i in p) for i, source in enumerate(sources)}


def _same_steps(first: Records, second: Records) -> bool:
    common = len(np.intersect1d(first.steps, second.steps, assume_unique=True))
    return common > SAME_STEPS * min(len(first.steps), len(second.steps))


def _detail(readers: Sequence[LogReader], steps: np.ndarray[tuple[int], np.dtype[np.int64]]) -> dict[str, object]:
    world = max((r.world_size for r in readers), default=0)
    per_record = usual_distance(steps)
    detail: dict[str, object] = {"world_size": world} if world else {}
    return detail | ({STEPS_PER_RECORD: per_record} if per_record > 1 else {})


def _events(readers: Sequence[LogReader], logs: Sequence[Records], restarts: Sequence[int] = ()) -> pd.DataFrame:
    told = [event for reader, records in zip(readers, logs, strict=False) for event in reader.events(records)]
    told += [(step, events.RESTART) for step in restarts]
    rows = [row(EVENT, attempt=0, step=step, kind=kind) for step, kind in dict.fromkeys(told)]
    telling = [reader for reader in readers if reader.xids]
    xids = [one for reader in telling for one in reader.xids_at(most_telling(reader.finished().values()))]
    rows += [
        row(EVENT, attempt=0, step=step, rank=rank, kind=events.XID, value=line.number, detail=detail_of(line))
        for step, rank, line in dict.fromkeys(xids)
    ]
    return pd.DataFrame(rows, columns=list(EVENT.names))


def _note(logs: Sequence[Records], words: str) -> str:
    return "; ".join(_words(logs, words))


def _words(logs: Sequence[Records], words: str) -> Iterator[str]:
    yield f"{logs[0].framework}, step times {logs[0].origin}"
    if words:
        yield words
    again = sum(records.repeated for records in logs)
    restarts = max(len(records.restarts) for records in logs)
    if restarts:
        yield (
            f"restarted {restarts} time{'s' if restarts > 1 else ''}; {again} records of steps that were run again are "
            "left out, the later attempt counts"
        )
