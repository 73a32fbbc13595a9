"""Token buckets on an interface (`tc` tbf or htb, by pyroute2): what a job sends from a network namespace.

Where all processes of the namespace belong to the job, its whole interface gets a bucket (tbf). Where others share it,
only the job's own connections do (htb with a filter of their ports): those that are open when it is asked for.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from starprof.control.actuators.base import Actuator, Request
from starprof.control.actuators.change import Change, RefusedError
from starprof.control.actuators.job import Member
from starprof.control.actuators.pacing import rate_of
from starprof.control.actuators.queues import QueueKnob
from starprof.errors import UsageError

ESTABLISHED = "01"
COORDINATOR = b"starprof.control.coordinator"


def plan(request: Request) -> list[Change]:
    """See `base.Actuator`; the value is `INTERFACE=BYTES_PER_S`."""
    interface, _, text = request.value.partition("=")
    if not interface or not text:
        raise UsageError(f"an interface is shaped by eth0=25M, not {request.value!r}")
    rate = int(rate_of(text))
    why = missing()
    if why:
        raise RefusedError(why)
    changes = []
    spaces: dict[int, list[Member]] = {}
    for member in request.members("tc"):
        spaces.setdefault(_namespace(member.pid), []).append(member)
    for netns, members in spaces.items():
        first = members[0]
        target: dict[str, object] = {"netns": netns, "interface": interface}
        whole = strangers(netns, {member.pid for member in request.job.members()}, request.job.key) == 0
        if not whole:
            target["ports"] = sorted({port for member in members for port in ports_of(member.pid)})
            if not target["ports"]:
                raise RefusedError(f"{first.words} shares its network with others, and has no open connection to shape")
        old = QueueKnob().read(target)
        if old is not None:
            raise RefusedError(f"{interface} of {first.words} has a queue already, which is left alone: {old['kind']}")
        what = "all that is sent" if whole else f"{len(target['ports'])} connections"  # type: ignore[arg-type]
        words = f"{interface} where {first.words} runs: {what} at most {rate:,} bytes/s"
        new = {"kind": "tbf" if whole else "htb", "rate_bytes_per_s": rate}
        changes.append(Change("queue", target, None, new, words))
    return changes


def strangers(netns: int, ours: set[int], job: str) -> int:
    """Processes of a network namespace that are none of these, nor the job's coordinator.

    Whoever can't be seen is taken to be where this process is, as a container's first process is.
    """
    count, here = 0, _namespace(os.getpid())
    for name in os.listdir("/proc"):  # noqa: PTH208 - names only
        if not name.isdecimal() or int(name) in ours:
            continue
        try:
            count += _namespace(int(name)) == netns and not _coordinates(name, job)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except OSError:
            count += netns == here
    return count


def _coordinates(pid: str, job: str) -> bool:
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    return COORDINATOR in command and job.encode() in command


def ports_of(pid: int) -> set[int]:
    """Local ports of a process's established connections (IPv4)."""
    inodes = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            name = os.readlink(path)  # noqa: PTH115 - these are no paths
        except OSError:
            continue
        if name.startswith("socket:["):
            inodes.add(name[8:-1])
    ports = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == ESTABLISHED and words[9] in inodes:
            ports.add(int(words[1].rpartition(":")[2], 16))
    return ports


def missing() -> str:
    """Why it can't be used here."""
    if find_spec("pyroute2") is None:
        return "tc needs pyroute2: pip install 'starprof[network]'"
    return "" if os.geteuid() == 0 else "tc needs root"


def _namespace(pid: int) -> int:
    return os.stat(f"/proc/{pid}/ns/net").st_ino  # noqa: PTH116


ACTUATOR = Actuator(
    "tc",
    "INTERFACE=BYTES_PER_S",
    "token bucket for what a job sends (tbf, or htb where others share the interface)",
    "the job's consent, root, and pyroute2",
    plan,
    missing,
)
