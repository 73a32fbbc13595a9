"""A copy of a run and its verdict that may be shown to strangers.

Replaced are host names, the command, paths, addresses, UUIDs, user names and names of processes, wherever they stand:
in their own columns and inside the texts of events, reasons and evidence. Numbers, causes and roles stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import pandas as pd

from starprof.analysis.machine import machines
from starprof.model.rundata import RankInfo, RunData
from starprof.model.verdict import Verdict

Record = TypeVar("Record")

_PATTERNS = (
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "[uuid]"),
    (re.compile(r"\b(?:[0-9a-fA-F]{2}:){5,19}[0-9a-fA-F]{2}\b"), "[address]"),
    (re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?(?:/\d+)?(?![\w.]*\d)"), "[address]"),
    (re.compile(r"(?<![\w:])\[?(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?:%\w+)?\]?(?::\d+)?(?![\w:])"), "[address]"),
    (re.compile(r"(?<![\w/.])(?:~|\.{1,2})?(?:/[^\s/:;,'\"()<>|]+)+/?"), "[path]"),
    (re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*\b"), "[address]"),
)
_OPAQUE = {
    "command": "[command]",
    "user": "[user]",
    "path": "[path]",
    "cgroup": "[path]",
    "addresses": "[address]",
    "local": "[address]",
    "remote": "[address]",
    "uuid": "[uuid]",
    "gpu_uuid": "[uuid]",
    "mig_parent": "[uuid]",
    "boot_id": "[uuid]",
    "run_id": "[uuid]",
    "pci": "[address]",
    "kernel": "[kernel]",
    "file": "[path]",
}
"""Columns whose whole text goes."""

_NAMED_TABLES = {"process": "process", "disk": "disk", "nic": "nic"}
"""Tables whose `name` is as telling as a path."""


def redacted(run: RunData, verdict: Verdict) -> tuple[RunData, Verdict]:
    """Both without anything that names machines, people, programs or places."""
    cleaner = _Cleaner(_secrets(run, verdict))
    numbered = {rank.host: f"host-{rank.node}" for rank in run.ranks}
    info = {**{k: cleaner.value(k, v) for k, v in run.info.items()}, "name": "run"}
    clean_run = replace(
        run,
        info=info,
        ranks=tuple(_rank(cleaner, rank, numbered) for rank in run.ranks),
        samples={name: cleaner.frame(frame, name) for name, frame in run.samples.items()},
        events=cleaner.frame(run.events),
        gaps=cleaner.frame(run.gaps),
        unavailable=cleaner.frame(run.unavailable),
        nodes=cleaner.frame(run.nodes),
        sync_switches=None if run.sync_switches is None else cleaner.frame(run.sync_switches),
        advisor_actions=None if run.advisor_actions is None else cleaner.frame(run.advisor_actions),
    )
    return clean_run, replace(cleaner.record(verdict), run="run")


def _rank(cleaner: _Cleaner, rank: RankInfo, numbered: Mapping[str, str]) -> RankInfo:
    return replace(cleaner.record(rank), host=numbered[rank.host], gpu_uuid="[uuid]" if rank.gpu_uuid else None)


def _secrets(run: RunData, verdict: Verdict) -> dict[str, str]:
    """Literal texts that no pattern recognises, and what stands in their place."""
    secrets: dict[str, str] = {}
    hosts = {rank.host: f"host-{rank.node}" for rank in run.ranks}
    if "host" in run.nodes:
        hosts |= {str(row["host"]): f"host-{row['node']}" for row in run.nodes.to_dict("records")}
    for host, name in hosts.items():
        secrets |= {host: name, host.split(".")[0]: name}
    for machine in machines(run).values():
        secrets |= {level.name: f"[{level.kind}]" for level in machine.levels}
        secrets |= {name: "[nic]" for name in machine.devices if ":" not in name}
    for table in _NAMED_TABLES:
        frame = run.samples.get(table)
        if frame is not None and "name" in frame:
            secrets |= {str(name): f"[{table}]" for name in frame["name"].dropna().unique()}
    for frame in run.samples.values():
        for column in sorted(_OPAQUE.keys() & set(_text_columns(frame))):
            secrets |= {str(text): _OPAQUE[column] for text in frame[column].dropna().unique()}
    for name in (str(run.info.get("name") or ""), verdict.run):
        secrets[name] = "run"
    command = str(run.info.get("command") or "")
    secrets |= {word: "[command]" for word in command.split() if len(word) > 3 and not word.startswith("-")}
    secrets[command] = "[command]"
    return {secret: name for secret, name in secrets.items() if secret.strip()}


class _Cleaner:
    """Replaces known secrets (longest first) and recognisable patterns in any text, frame or record."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._secrets = secrets
        alternatives = "|".join(re.escape(s) for s in sorted(secrets, key=lambda s: (-len(s), s)))
        self._known = re.compile(rf"(?<![\w]){'(?:' + alternatives + ')'}(?![\w])") if secrets else None

    def text(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(lambda found: self._secrets[found.group()], text)
        for pattern, name in _PATTERNS:
            text = pattern.sub(name, text)
        return text

    def value(self, name: str, value: Any) -> Any:
        """One value of a field or column called `name`; containers are cleaned inside."""
        if isinstance(value, str):
            return _OPAQUE.get(name) or self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(k)): self.value(str(k), v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self.value(name, v) for v in value)
        return self.record(value) if is_dataclass(value) and not isinstance(value, type) else value

    def record(self, record: Record) -> Record:
        """A dataclass with all its texts cleaned."""
        return replace(record, **{f.name: self.value(f.name, getattr(record, f.name)) for f in fields(record)})  # type: ignore[type-var,arg-type]

    def frame(self, frame: pd.DataFrame, table: str = "") -> pd.DataFrame:
        """A frame with all its texts cleaned; every different text is looked at once."""
        changed = {}
        for column in _text_columns(frame):
            whole = f"[{table}]" if column == "name" and table in _NAMED_TABLES else ""
            new = {old: whole or self.value(column, old) for old in frame[column].dropna().unique()}
            changed[column] = frame[column].map(new)
        return frame.assign(**changed)


def _text_columns(frame: pd.DataFrame) -> Iterable[str]:
    return (str(c) for c in frame.columns if not pd.api.types.is_numeric_dtype(frame[c]))
