"""What /proc/PID/stat and /proc/PID/status say, parsed from bytes (see proc(5))."""

from __future__ import annotations

from typing import NamedTuple

from starprof.model.schema import INT_NULL


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that are used; times in clock ticks (`start_ticks` since boot), rss in pages."""

    state: bytes
    parent_pid: int
    minor_faults: int
    major_faults: int
    cpu_ticks: int
    threads: int
    start_ticks: int
    rss_pages: int
    last_cpu: int
    blkio_ticks: int

    @property
    def ended(self) -> bool:
        """A zombie, or on its way out: it does nothing any more."""
        return self.state in (b"Z", b"X")


class Status(NamedTuple):
    """The fields of /proc/PID/status that are used; `cpus` is the affinity mask as a list such as 0-3,8."""

    uid: int
    cpus: str
    allowed_cpus: int
    voluntary_switches: int
    involuntary_switches: int


def parse_stat(data: bytes) -> Stat:
    """Parse /proc/PID/stat; the command name may hold spaces and parentheses.

    Raises:
        ValueError, IndexError: it is not such a file.
    """
    rest = data[data.rindex(b")") + 2 :].split(None, 40)
    return Stat(
        rest[0],
        int(rest[1]),
        int(rest[7]),
        int(rest[9]),
        int(rest[11]) + int(rest[12]),
        int(rest[17]),
        int(rest[19]),
        int(rest[21]),
        int(rest[36]),
        int(rest[39]),
    )


def command_name(stat: bytes) -> str:
    """The command name in /proc/PID/stat (comm: at most 15 characters, never arguments)."""
    return stat[stat.index(b"(") + 1 : stat.rindex(b")")].decode(errors="replace")


def parse_status(data: bytes) -> Status:
    """Parse /proc/PID/status; a line that is missing gives NULL or an empty text."""
    cpus = _value(data, b"\nCpus_allowed_list:").decode()
    return Status(
        uid=_number(data, b"\nUid:"),
        cpus=cpus,
        allowed_cpus=count_cpus(cpus) if cpus else INT_NULL,
        voluntary_switches=_number(data, b"\nvoluntary_ctxt_switches:"),
        involuntary_switches=_number(data, b"\nnonvoluntary_ctxt_switches:"),
    )


def count_cpus(cpus: str) -> int:
    """Number of CPUs in a list such as 0-3,8."""
    total = 0
    for part in cpus.split(","):
        first, dash, last = part.partition("-")
        total += int(last) - int(first) + 1 if dash else 1
    return total


def field(data: bytes, label: bytes) -> int:
    """The number behind `label` in a file of `label number` lines, INT_NULL where there is none."""
    return _number(data, label)


def _value(data: bytes, label: bytes) -> bytes:
    """First word behind a label."""
    at = data.find(label)
    if at < 0:
        return b""
    at += len(label)
    words = data[at : data.find(b"\n", at)].split()
    return words[0] if words else b""


def _number(data: bytes, label: bytes) -> int:
    value = _value(data, label)
    return int(value) if value else INT_NULL
