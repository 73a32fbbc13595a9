"""What the tests of host collectors share: a copy of the committed kernel tree, and rows with NULL as None.

The tree is invented: pid 100 records, 110 launched the ranks 111 and 112 (with loaders), 120 and 121 are
starprof's own, 200 is somebody else's busy process.
"""

import shutil
from pathlib import Path

from device_lab import Recorded

from starprof.collectors.base import NodeContext
from starprof.model.schema import INT_NULL

TREE = Path(__file__).with_name("host_tree")
SECOND_NS = 1_000_000_000
RANK_PIDS = {0: 111, 1: 112}


class HostRows(Recorded):
    """Recorded rows, packed NULLs shown as None."""

    def add(self, table, row):
        super().add(table, [None if cell == INT_NULL else cell for cell in row])

    def take(self, table):
        """Rows of a table since the last call."""
        return self.tables.pop(table, [])


class FakeHost:
    """A copy of the tree that a test may change, and the context of an agent that looks at it."""

    def __init__(self, folder, **context):
        shutil.copytree(TREE, folder, dirs_exist_ok=True)
        self.proc, self.sys = folder / "proc", folder / "sys"
        self.context = NodeContext(node=3, proc=self.proc, sys=self.sys, **context)

    def write(self, path, text):
        """Replace the content of a file in place, as the kernel does for a reader that has it open."""
        target = self.proc.parent / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def edit(self, path, old, new):
        text = (self.proc.parent / path).read_text()
        assert old in text
        self.write(path, text.replace(old, new))

    def burn(self, pid, ticks):
        """Let a process use CPU time: adds to its user time."""
        stat = (self.proc / str(pid) / "stat").read_text()
        head, _, rest = stat.rpartition(") ")
        fields = rest.split()
        fields[11] = str(int(fields[11]) + ticks)
        self.write(f"proc/{pid}/stat", f"{head}) {' '.join(fields)}\n")

    def start(self, pid, like, **files):
        """A process like another one: its files with the new pid, `files` replacing some; counted as a fork."""
        for name in ("stat", "status", "schedstat"):
            text = files.get(name) or (self.proc / str(like) / name).read_text()
            self.write(f"proc/{pid}/{name}", text.replace(f"{like} (", f"{pid} (", 1))
        stat = (self.proc / "stat").read_text()
        forks = int(stat.partition("processes ")[2].split()[0])
        self.write("proc/stat", stat.replace(f"processes {forks}", f"processes {forks + 1}"))

    def end(self, pid):
        shutil.rmtree(self.proc / str(pid))


def fields(row, *names):
    return tuple(row[name] for name in names)
