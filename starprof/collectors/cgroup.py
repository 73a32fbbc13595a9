"""CPU and memory limits of the control groups that the ranks run in: v1, v2 and hybrids, every visible level.

Limits nest: the tightest of all levels binds, so each level up to the root that this process can see is recorded.
A rank that is moved to another group is followed within a second. https://docs.kernel.org/admin-guide/cgroup-v2.html
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from starprof.collectors.base import NodeContext, Rows, Unavailable
from starprof.collectors.cgroupfiles import GroupFiles
from starprof.collectors.notes import Notes, stable_id
from starprof.collectors.procfile import ProcFile, read_once
from starprof.model.schema import BY_NAME

_CGROUP = BY_NAME["cgroup"]
_CGROUP_SAMPLE = BY_NAME["cgroup_sample"]
_SECOND_NS = 950_000_000
"""A second, less the slack that a tick may come early."""


COUNTED = frozenset({"cpu", "cpuacct", "memory"})


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted hierarchy: `root` is the group that is seen at `point` (not `/` inside many containers)."""

    version: int
    controllers: frozenset[str]
    root: str
    point: Path

    def levels(self, path: str) -> Iterator[tuple[int, str, Path]]:
        """Depth, path below the mount and folder of each visible level, the root first."""
        names = self._inside(path)
        for depth in range(len(names) + 1):
            yield depth, "/" + "/".join(names[:depth]), self.point.joinpath(*names[:depth])

    def _inside(self, path: str) -> list[str]:
        """Names from the mount's root down to `path`; none for a group outside of what the mount shows."""
        names, root = ([n for n in text.split("/") if n] for text in (path, self.root))
        if names[: len(root)] != root or ".." in names:
            return []
        return names[len(root) :]


@dataclass(slots=True)
class _Rank:
    """What is known of one rank's groups."""

    file: ProcFile
    content: bytes = b""
    groups: set[int] = field(default_factory=set)


class CgroupCollector:
    """Rows of `cgroup` and `cgroup_sample`."""

    name = "cgroup"
    dear = False

    def __init__(self) -> None:
        self._context = NodeContext()
        self._mounts: list[Mount] = []
        self._ranks: dict[tuple[int, int], _Rank] = {}
        self._groups: dict[int, GroupFiles] = {}
        self._next_second_ns = 0

    def open(self, context: NodeContext, rows: Rows) -> None:
        """Find the hierarchies with a CPU or memory controller.

        Raises:
            Unavailable: there is none.
        """
        self._context = context
        self._notes = Notes(self.name, context.node)
        try:
            self._mounts = find_mounts(read_once(context.proc / "self" / "mountinfo"), context.sys)
        except OSError as error:
            raise Unavailable(f"{context.proc}/self/mountinfo: {error.strerror}") from error
        if not self._mounts:
            raise Unavailable("no control group hierarchy with a cpu or memory controller is mounted here")
        for controller in {"cpu", "memory"} - {name for mount in self._mounts for name in mount.controllers}:
            self._notes.unavailable(rows, controller, f"the {controller} controller is not mounted here")

    def sample(self, mono_ns: int, rows: Rows) -> None:
        """All groups once a second; those with a CPU quota at every tick, with the quota's counters only."""
        if mono_ns >= self._next_second_ns:
            self._next_second_ns = mono_ns + _SECOND_NS
            self._follow_ranks(rows)
            for number, group in list(self._groups.items()):
                try:
                    cells = group.read_all()
                except OSError:  # the group was removed
                    self._groups.pop(number).close()
                    continue
                rows.add(_CGROUP_SAMPLE, (self._context.node, mono_ns, number, *cells))
            return
        for number, group in self._groups.items():
            if group.limited:
                try:
                    cells = group.read_quota()
                except OSError:
                    continue
                rows.add(_CGROUP_SAMPLE, (self._context.node, mono_ns, number, *cells))

    def _follow_ranks(self, rows: Rows) -> None:
        """Learn the groups of new ranks and of ranks that were moved; forget groups that hold no rank any more."""
        wanted = {(rank, pid) for rank, pid in self._context.rank_pids.items()}
        for key in self._ranks.keys() - wanted:
            self._ranks.pop(key).file.close()
        for key in wanted - self._ranks.keys():
            try:
                self._ranks[key] = _Rank(ProcFile(self._context.proc / str(key[1]) / "cgroup"))
            except FileNotFoundError:
                continue
            except OSError as error:
                self._notes.unavailable(rows, "membership", f"/proc/PID/cgroup: {error.strerror}")
        for (rank, _), known in self._ranks.items():
            try:
                content = known.file.read()
            except OSError:  # it ended
                continue
            if content != known.content:
                known.content = content
                known.groups = self._join(rank, content.decode(errors="replace"), rows)
        used = {number for known in self._ranks.values() for number in known.groups}
        for number in self._groups.keys() - used:
            self._groups.pop(number).close()

    def _join(self, rank: int, membership: str, rows: Rows) -> set[int]:
        """Open every level of a rank's groups and append their rows of table `cgroup`."""
        numbers = set()
        for mount, path in self._hierarchies(membership):
            for depth, level, folder in mount.levels(path):
                number = stable_id("cgroup", self._context.node, mount.version, level)
                group = self._groups.get(number)
                if group is None:
                    group = self._groups[number] = GroupFiles(mount.version)
                group.attach(folder, mount.controllers)
                if number not in numbers:
                    rows.add(_CGROUP, (self._context.node, number, level, mount.version, rank, depth))
                numbers.add(number)
        return numbers

    def _hierarchies(self, membership: str) -> Iterator[tuple[Mount, str]]:
        """The mounts that govern CPU and memory of a process, and its path in each."""
        for line in membership.splitlines():
            _, names, path = line.split(":", 2)
            for mount in self._mounts:
                if (mount.version == 2 and not names) or (
                    mount.version == 1 and mount.controllers & {*names.split(",")}
                ):
                    yield mount, path

    def close(self) -> None:
        """Close all descriptors."""
        for group in self._groups.values():
            group.close()
        for known in self._ranks.values():
            known.file.close()
        self._groups.clear()
        self._ranks.clear()


def find_mounts(mountinfo: bytes, sys: Path, wanted: frozenset[str] = COUNTED) -> list[Mount]:
    """The hierarchies in /proc/self/mountinfo with controllers that are wanted; `sys` replaces /sys (fake trees)."""
    found = []
    for line in mountinfo.decode(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        if len(fields) < 5 or len(rest) < 3 or rest[0] not in ("cgroup", "cgroup2"):
            continue
        point = Path(fields[4])
        if point.is_relative_to("/sys"):
            point = sys / point.relative_to("/sys")
        version = 2 if rest[0] == "cgroup2" else 1
        controllers = _v2_controllers(point) if version == 2 else {*rest[2].split(",")}
        controllers &= wanted
        if controllers:
            found.append(Mount(version, frozenset(controllers), fields[3], point))
    return found


def _v2_controllers(point: Path) -> set[str]:
    """Controllers of the unified hierarchy; on a hybrid the v1 mounts have taken them."""
    try:
        return {*read_once(point / "cgroup.controllers").decode().split()}
    except OSError:
        return set()
