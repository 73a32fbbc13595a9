"""What the ranks of a job are asked for from outside: one small file in the spool, which each looks at between steps.

A rank obeys it only when it is of its own user (or root) and nobody else may write it. An order may have an end: then
the rank goes back by itself, whatever has become of who gave it. What ranks did, and what they measure, is in a
file of each rank beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starprof.control.actuators.change import GoneError

FOLDER = "orders"
FILE = "orders.json"
MOST_BYTES = 1 << 20

DELAY, THREADS, PACE = "delay_s", "threads", "pace_bytes_per_s"
COLLECT, SPLIT, WATCH = "collect_every", "split", "watch"
SETTINGS = (DELAY, THREADS, PACE, COLLECT, SPLIT, WATCH)
"""What can be ordered: delay of every step; threads of torch and OpenMP; rate of each connection; steps from one
garbage collection to the next; samples of each rank; reports."""


@dataclass(frozen=True, slots=True)
class Orders:
    """All that is ordered.

    Attributes:
        serial: counts the changes of the file.
        ranks: rank -> setting -> [value, end], the end by CLOCK_MONOTONIC in ns or None.
    """

    serial: int = 0
    ranks: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    def of(self, rank: int, now_ns: int) -> dict[str, Any]:
        """What holds for a rank now."""
        ordered = self.ranks.get(rank, {}).items()
        return {name: value for name, (value, end_ns) in ordered if end_ns is None or now_ns < end_ns}


def path_in(spool: Path) -> Path:
    """Where the orders of a job are."""
    return spool / FOLDER / FILE


def report_path(spool: Path, pid: int) -> Path:
    """Where a rank reports."""
    return spool / FOLDER / f"rank-{pid}.json"


def read_orders(path: Path) -> Orders:
    """What is ordered; nothing where there is no such file, or somebody else's.

    Raises:
        ValueError: it is none.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return Orders()
    try:
        found = os.fstat(fd)
        if found.st_uid not in (os.geteuid(), 0) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return Orders()
        data = os.read(fd, MOST_BYTES)
    finally:
        os.close(fd)
    told = json.loads(data)
    ranks = {
        int(rank): {
            str(name): (value, None if end is None else int(end))
            for name, (value, end) in settings.items()
            if name in SETTINGS
        }
        for rank, settings in told["ranks"].items()
    }
    return Orders(int(told["serial"]), ranks)


def write_orders(path: Path, orders: Orders) -> None:
    """Replace them, as the owner of the spool: ranks may run as another user than root."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    _like_spool(path.parent)
    text = json.dumps({"serial": orders.serial, "ranks": {str(rank): dict(s) for rank, s in orders.ranks.items()}})
    replace_file(path, text)
    _like_spool(path)


def replace_file(path: Path, text: str) -> None:
    """All of it or nothing, and for its owner only."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
    aside.replace(path)


def _like_spool(path: Path) -> None:
    spool = path.parent if path.is_dir() else path.parent.parent
    owner = spool.stat()
    with contextlib.suppress(PermissionError):
        os.chown(path, owner.st_uid, owner.st_gid)


class OrderKnob:
    """Target: `spool`, `rank`, `setting`, and `end_ns` or None. Value: what is ordered; None: nothing.

    It is only changed by who holds the job's journal.
    """

    def read(self, target: Mapping[str, Any]) -> Any:
        """See `change.Knob`."""
        value, _ = self._orders(target).ranks.get(int(target["rank"]), {}).get(str(target["setting"]), (None, None))
        return value

    def write(self, target: Mapping[str, Any], value: Any) -> None:
        """See `change.Knob`."""
        orders = self._orders(target)
        ranks = {rank: dict(settings) for rank, settings in orders.ranks.items()}
        settings = ranks.setdefault(int(target["rank"]), {})
        if value is None:
            settings.pop(str(target["setting"]), None)
        else:
            settings[str(target["setting"])] = (value, target.get("end_ns"))
        write_orders(path_in(Path(target["spool"])), Orders(orders.serial + 1, ranks))

    def _orders(self, target: Mapping[str, Any]) -> Orders:
        spool = Path(target["spool"])
        if not (spool / "rings").is_dir():
            raise GoneError(f"the job of {spool} has ended")
        try:
            return read_orders(path_in(spool))
        except (ValueError, KeyError, TypeError):
            return Orders()
