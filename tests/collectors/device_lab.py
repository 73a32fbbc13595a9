"""What the tests of device collectors share: recorded rows, fake kernel trees, network namespaces."""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from starprof.model.schema import INT_NULL

SECOND_NS = 1_000_000_000


class Recorded:
    """The rows that a collector appended, as dictionaries by table."""

    def __init__(self):
        self.tables = {}

    def add(self, table, row):
        assert len(row) == len(table.columns), table.name
        row = [None if cell == INT_NULL else cell for cell in row]  # some pack their NULLs themselves
        self.tables.setdefault(table.name, []).append(dict(zip(table.names, row, strict=True)))

    def __getitem__(self, table):
        return self.tables.get(table, [])

    def last_by(self, table, key):
        """The newest row of a table for each value of a column."""
        return {row[key]: row for row in self[table]}


def write_tree(root, files):
    """Write a fake /proc or /sys tree: path below the root -> content."""
    for path, content in files.items():
        target = Path(root) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)


def run(*command):
    subprocess.run(command, check=True, capture_output=True, text=True)


_numbers = itertools.count()


class Namespace:
    """A real network namespace with collectors that run inside it."""

    def __init__(self):
        self.name = f"sp{os.getpid()}n{next(_numbers)}"
        run("ip", "netns", "add", self.name)
        self.ip("link", "set", "lo", "up")

    def ip(self, *arguments):
        run("ip", "-n", self.name, *arguments)

    def tc(self, *arguments):
        run("tc", "-n", self.name, *arguments)

    def popen(self, *command, **options):
        return subprocess.Popen(("ip", "netns", "exec", self.name, *command), text=True, **options)

    @staticmethod
    def popen_outside(*command, **options):
        return subprocess.Popen(command, text=True, **options)

    def delete(self):
        with contextlib.suppress(subprocess.CalledProcessError):
            run("ip", "netns", "delete", self.name)


def join(left, right, left_address="10.77.0.1", right_address="10.77.0.2"):
    """Connect two namespaces by a veth pair whose ends are both called `veth0`."""
    left.ip("link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", right.name)
    for side, address in ((left, left_address), (right, right_address)):
        side.ip("address", "add", f"{address}/24", "dev", "veth0")
        side.ip("link", "set", "veth0", "up")


class Remote:
    """A collector in a process of its own, inside a namespace: `sample` returns the rows of one tick."""

    def __init__(self, namespace, factory, tree=None, prefix=()):
        command = (*prefix, sys.executable, __file__, factory, json.dumps(tree or {}))
        start = namespace.popen if namespace is not None else Namespace.popen_outside
        self._process = start(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.opened = self._read()

    def sample(self, mono_ns):
        self._process.stdin.write(f"{mono_ns}\n")
        self._process.stdin.flush()
        return self._read()

    def close(self):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=30)

    def _read(self):
        rows = Recorded()
        rows.tables = json.loads(self._process.stdout.readline())
        return rows


def _serve(factory, tree):
    """Body of the process behind `Remote`."""
    from starprof.collectors.base import NodeContext
    from starprof.collectors.registry import Entry

    time.thread_time_ns = lambda: 0  # as in conftest: the machine is as quick as need be
    collector = Entry("remote", factory).create()
    rows = Recorded()
    ranks = {int(pid): rank for pid, rank in tree.items()}
    collector.open(NodeContext(tree=ranks, rank_pids={rank: pid for pid, rank in ranks.items()}), rows)
    print(json.dumps(rows.tables), flush=True)
    for line in sys.stdin:
        rows = Recorded()
        collector.sample(int(line), rows)
        print(json.dumps(rows.tables), flush=True)
    collector.close()


if __name__ == "__main__":
    _serve(sys.argv[1], json.loads(sys.argv[2]))
