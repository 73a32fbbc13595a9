"""Real jobs with the hook injected, and their rings read back."""

import os
import struct
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

from free_ports import free_port

import starprof
from starprof.model import env
from starprof.model.columns import INT_NULL
from starprof.model.tables.job import STEP
from starprof.spool.layout import Spool
from starprof.spool.ringreader import RingReader

PACKAGE = Path(starprof.__file__).parent
INJECT = PACKAGE / "hook" / "inject"


@dataclass
class Rank:
    """What one ring holds: description, steps as dicts (None = NULL), events as (kind, step, value, detail)."""

    description: dict
    steps: list[dict]
    events: list[tuple] = field(default_factory=list)

    def column(self, name, since=0):
        return [s[name] for s in self.steps if s["step"] >= since]

    def kinds(self):
        return [kind for kind, *_ in self.events]

    def event(self, kind):
        return next(e for e in self.events if e[0] == kind)


def read_ring(path):
    reader = RingReader(path)
    try:
        batch = reader.read(0)
        _, description = reader.description()
    finally:
        reader.close()
    rows = [struct.unpack(STEP.struct_format, data) for data in batch.steps]
    steps = [dict(zip(STEP.names, (None if c == INT_NULL else c for c in row), strict=True)) for row in rows]
    events = [(kind, step, value, detail) for _, _, _, step, value, kind, detail in batch.events]
    return Rank(description, steps, events)


@dataclass
class Finished:
    """A job that has ended."""

    returncode: int
    stdout: str
    stderr: str
    spool: Spool

    @property
    def rings(self):
        return sorted(self.spool.rings.glob("*.ring"))

    @property
    def ranks(self):
        """Rank number -> its ring, for jobs with one ring a rank in which the hook made no error."""
        found = [read_ring(path) for path in self.rings]
        assert [e for r in found for e in r.events if e[0] == "hook-error"] == []
        by_rank = {r.description["rank"]: r for r in found}
        assert len(by_rank) == len(found)
        return by_rank

    @property
    def only(self):
        (rank,) = self.ranks.values()
        return rank


class Job:
    """Runs scripts the way the launcher does: same environment, no change of code."""

    def __init__(self, folder):
        self.folder = folder
        self.spool = Spool(folder / "run.spool")

    def environment(self, *, hook=True, **more):
        kept = {k: v for k, v in os.environ.items() if not k.startswith("STARPROF_") and k != "PYTHONPATH"}
        kept |= {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        if hook:
            kept |= {env.SPOOL: str(self.spool.root), env.NODE: "0", "PYTHONPATH": str(INJECT)}
        return kept | more

    def script(self, source, name="train.py"):
        path = self.folder / name
        path.write_text(textwrap.dedent(source))
        return path

    def run(self, command, *, hook=True, timeout=240, **more):
        done = subprocess.run(
            [str(c) for c in command],
            env=self.environment(hook=hook, **more),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        return Finished(done.returncode, done.stdout, done.stderr, self.spool)

    def python(self, source, *arguments, **options):
        """Run one process; it must succeed unless `check=False`."""
        check = options.pop("check", True)
        done = self.run([sys.executable, self.script(source), *arguments], **options)
        assert not check or done.returncode == 0, done.stderr
        return done

    def ranks(self, source, count, *arguments, **options):
        """Run as `count` processes that find each other by environment variables, as under srun or mpirun."""
        hook, timeout = options.pop("hook", True), options.pop("timeout", 240)
        path = self.script(source)
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)} | options
        processes = [
            subprocess.Popen(
                [sys.executable, path, *map(str, arguments)],
                env=self.environment(hook=hook, RANK=str(rank), LOCAL_RANK=str(rank), **shared),
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(count)
        ]
        outputs = [p.communicate(timeout=timeout) for p in processes]
        done = Finished(0, "".join(o for o, _ in outputs), "".join(e for _, e in outputs), self.spool)
        assert done.stdout.count("DONE") == count, done.stderr
        return done

    def torchrun(self, source, ranks, *flags, **options):
        """Run as the ranks of a gloo job, which print DONE at their end."""
        check = options.pop("check", True)
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", ranks, "--standalone", *flags]
        done = self.run([*launcher, self.script(source)], **options)
        assert not check or done.stdout.count("DONE") >= ranks, done.stderr
        return done
