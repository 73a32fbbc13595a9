"""What a recording adds around the job: to its first step, after its last one, and in memory beside it.

    python benchmarks/launch.py [--rounds 5] [--ranks 2] [--json]

The same small torchrun job (gloo) runs alone and under `starprof record`, alternating; the job alone is also compared
with itself (the null), which shows what the differences are worth on this machine. Times are medians of pairs:

    to first step    start of the command line to the end of the first step (latest rank)
    after last step  end of the last step to the end of the command line

Memory is that of the recorder's own processes; PSS counts shared pages by halves, so it is what they really add.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

GOAL_ADDED_S = 1.0
GOAL_RSS_BYTES = 30 << 20

JOB = """
import os, sys, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(int(sys.argv[1])):
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 0:
        os.write(1, b"first %.9f\\n" % time.monotonic())
    time.sleep(0.01)
os.write(1, b"last %.9f\\n" % time.monotonic())
dist.destroy_process_group()
"""

HELPERS = {
    "starprof.launch.supervisor": "supervisor",
    "starprof.agent": "agent",
    "starprof.store.ingest": "ingester",
    "starprof.launch.lastfold": "ingester",
}


@dataclass
class Round:
    """Times of one run of the job, in s."""

    first_s: float
    last_s: float


@dataclass
class Memory:
    """Highest RSS and PSS of each helper, in bytes."""

    rss: dict[str, int] = field(default_factory=dict)
    pss: dict[str, int] = field(default_factory=dict)

    def watch(self, folder: str, over: threading.Event) -> None:
        """Look at the helpers until `over`."""
        while not over.wait(0.1):
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit():
                    self._look(entry, folder)

    def _look(self, entry: Path, folder: str) -> None:
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
            helper = next((h for module, h in HELPERS.items() if f"-m\0{module}\0" in command), None)
            if helper is None or folder not in command:
                return
            memory = dict(line.split(":", 1) for line in (entry / "smaps_rollup").read_text().splitlines()[1:])
        except (OSError, ValueError):
            return
        for kept, name in ((self.rss, "Rss"), (self.pss, "Pss")):
            kept[helper] = max(kept.get(helper, 0), int(memory[name].split()[0]) * 1024)


def run_job(job: Path, ranks: int, steps: int, recorded: Path | None, memory: Memory) -> Round:
    """One run, alone or recorded into `recorded`."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [*torchrun, str(job), str(steps)]
    over = threading.Event()
    watcher = threading.Thread(target=memory.watch, args=(str(job.parent), over))
    if recorded is not None:
        command = [sys.executable, "-m", "starprof", "record", "-o", str(recorded), "--", *command]
        watcher.start()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    began_s = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    ended_s = time.monotonic()
    over.set()
    if recorded is not None:
        watcher.join()
    stamps = [line.split() for line in done.stdout.splitlines() if line.startswith(("first", "last"))]
    first_s = max(float(at) for name, at in stamps if name == "first")
    last_s = max(float(at) for name, at in stamps if name == "last")
    return Round(first_s - began_s, ended_s - last_s)


def measure(rounds: int, ranks: int, steps: int) -> dict[str, object]:
    """Alternate alone, recorded, alone; medians of the differences, and the helpers' memory."""
    memory = Memory()
    pairs: list[tuple[Round, Round, Round]] = []
    with tempfile.TemporaryDirectory(prefix="starprof-launch-") as folder:
        job = Path(folder, "job.py")
        job.write_text(JOB)
        run_job(job, ranks, 2, None, memory)  # warms the page cache
        for number in range(rounds):
            kinds = [None, Path(folder, f"run{number}"), None]
            pairs.append(tuple(run_job(job, ranks, steps, kind, memory) for kind in kinds))  # type: ignore[arg-type]
    return {
        "rounds": rounds,
        "ranks": ranks,
        "alone_first_s": statistics.median(a.first_s for a, _, _ in pairs),
        "alone_last_s": statistics.median(a.last_s for a, _, _ in pairs),
        "added_first_s": statistics.median(r.first_s - (a.first_s + b.first_s) / 2 for a, r, b in pairs),
        "added_last_s": statistics.median(r.last_s - (a.last_s + b.last_s) / 2 for a, r, b in pairs),
        "null_first_s": statistics.median(b.first_s - a.first_s for a, _, b in pairs),
        "null_last_s": statistics.median(b.last_s - a.last_s for a, _, b in pairs),
        "rss_bytes": memory.rss,
        "pss_bytes": memory.pss,
    }


def show(found: dict[str, object]) -> None:
    """The table."""
    added_s = float(found["added_first_s"]) + float(found["added_last_s"])  # type: ignore[arg-type]
    print(f"{'':24}{'alone':>10}{'added':>10}{'null':>10}")
    for label, key in (("to first step, s", "first_s"), ("after last step, s", "last_s")):
        print(f"{label:24}" + "".join(f"{found[f'{kind}_{key}']:>10.2f}" for kind in ("alone", "added", "null")))
    print(f"{'added in all, s':24}{added_s:>20.2f}   goal <= {GOAL_ADDED_S:g}")
    print(f"\n{'':24}{'RSS MB':>10}{'PSS MB':>10}")
    for helper, rss in found["rss_bytes"].items():  # type: ignore[attr-defined]
        goal = f"   goal <= {GOAL_RSS_BYTES >> 20} MB" if helper == "agent" else ""
        pss = found["pss_bytes"][helper]  # type: ignore[index]
        print(f"{helper:24}{rss / 2**20:>10.1f}{pss / 2**20:>10.1f}{goal}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measure(given.rounds, given.ranks, given.steps)
    if given.json:
        print(json.dumps(found))
    else:
        show(found)


if __name__ == "__main__":
    main()
