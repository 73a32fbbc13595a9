"""How soon a training gets to an accuracy on a parameter server: real processes, real gradients, real faults.

Workers train a small perceptron on scikit-learn's digits; what would be a GPU's part of an iteration is slept. Faults:
`none`; `slow`: one of four workers takes three times as long; `moving`: another one of them every two seconds. The
chooser begins with SSGD, sees the workers' own times of the first iterations, decides once, and the running job is
switched; its time counts in full.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))
from _records import append, read

HERE = Path(__file__)
SECRET = "of this benchmark"
WORKERS, BATCH, RATE, TARGET = 4, 16, 0.3, 0.95
COMPUTE_S, SLOWER, MOVES_EVERY_S = 0.02, 3.0, 2.0
SEEN = 25
FAULTS = ("none", "slow", "moving")
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "ssgd": ("ssgd", {}),
    "asgd": ("asgd", {}),
    "sync-switch": ("sync-switch", {"switch_at": 60}),
    "lgc": ("lgc", {"k": 3}),
    "chosen": ("ssgd", {}),
}


def work() -> None:
    """A worker's process: trains one cell after the other, as told on its standard input."""
    import torch

    import starprof.ps
    from starprof.demo.digits import digits

    torch.set_num_threads(1)
    data = digits()
    x, y, held_x, held_y = (torch.as_tensor(getattr(data, name)) for name in data.__dataclass_fields__)
    rank = int(os.environ["RANK"])
    print("ready", flush=True)
    for line in sys.stdin:
        cell = json.loads(line)
        torch.manual_seed(cell["seed"])
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        worker = starprof.ps.wrap(model, optimizer, server=cell["server"])
        pick = random.Random(f"{cell['seed']} {rank}")
        draw = torch.Generator().manual_seed(1000 * cell["seed"] + rank)
        begun, seen, kept = time.time(), [], []
        while time.time() < begun + cell["seconds"]:
            slow = {"none": -1, "slow": WORKERS - 1, "moving": int(time.time() / MOVES_EVERY_S) % WORKERS}[
                cell["fault"]
            ]
            own = COMPUTE_S * (SLOWER if rank == slow else 1.0) * pick.lognormvariate(0.0, 0.1)
            time.sleep(own)
            chosen = torch.randint(len(x), (BATCH,), generator=draw)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimizer.step()
            seen.append(own)
            if len(seen) == SEEN:
                print(json.dumps(seen), flush=True)
            if rank == 0:
                kept.append((time.time() - begun, [p.detach().clone() for p in model.parameters()]))
        worker.close()
        found = {"updates": worker.version, "target_s": None, "accuracy": 0.0}
        for at_s, parameters in kept:
            with torch.no_grad():
                for parameter, value in zip(model.parameters(), parameters, strict=True):
                    parameter.copy_(value)
                accuracy = float((model(held_x).argmax(1) == held_y).float().mean())
            found["accuracy"] = accuracy
            if accuracy >= TARGET and found["target_s"] is None:
                found["target_s"] = at_s
        print(json.dumps(found), flush=True)


def choice(times: list[list[float]]) -> tuple[str, dict[str, Any]]:
    """What the chooser says of such times of the workers; the gradients' noise is not known to it."""
    import numpy as np

    from starprof.control.modes import NOT_CARRIED_OUT
    from starprof.decision.choice.heuristic import choose
    from starprof.decision.choice.situation import Limits, Situation

    barred = {**NOT_CARRIED_OUT, **dict.fromkeys(("ring-x", "local-sgd", "hierarchical"), "not on a parameter server")}
    told = choose(
        Situation(tuple(range(WORKERS)), np.array(times).T, BATCH, None, limits=Limits(momentum=0.0), barred=barred)
    )
    return told.mode, dict(told.options)


class Runner:
    """Workers that stay, and a server for each cell."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._environ = {**os.environ, "STARPROF_PS_TOKEN": SECRET, "OMP_NUM_THREADS": "1"}
        self._workers = []
        for rank in range(WORKERS):
            environ = {**self._environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORKERS)}
            worker = subprocess.Popen(
                [sys.executable, str(HERE), "work"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environ,
            )
            stack.callback(worker.kill)
            self._workers.append(worker)
        for worker in self._workers:
            worker.stdout.readline()

    def run(self, fault: str, method: str, seed: int, seconds: float) -> dict[str, Any]:
        """One training."""
        from starprof.control.controlsocket import ask

        mode, options = METHODS[method]
        with TemporaryDirectory() as folder:
            told = {
                "workers": WORKERS,
                "shards": 1,
                "mode": mode,
                "options": options,
                "folder": folder,
                "state": f"{folder}/state",
            }
            server = subprocess.Popen(
                [sys.executable, "-P", "-m", "starprof.ps.server", json.dumps(told)],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=self._environ,
            )
            try:
                host, port = json.loads(server.stdout.readline())["listening"]
                cell = {"server": f"{host}:{port}", "seed": seed, "fault": fault, "seconds": seconds}
                for worker in self._workers:
                    worker.stdin.write(json.dumps(cell) + "\n")
                    worker.stdin.flush()
                times = [json.loads(worker.stdout.readline()) for worker in self._workers]
                used = mode
                if method == "chosen":
                    used, options = choice(times)
                    if used != mode:
                        ask(Path(folder), {"do": "mode", "mode": used, "options": options, "by": "chooser"})
                        used = f"{used} {options}"
                found = [json.loads(worker.stdout.readline()) for worker in self._workers]
                return {"fault": fault, "method": method, "seed": seed, "mode": used, **found[0]}
            finally:
                server.terminate()
                server.wait()


def compare(out: Path, seeds: int, seconds: float, minutes: float) -> None:
    """Run what is not in the file yet, for so long at most; then tell."""
    records = read(out)
    there = {(one["fault"], one["method"], one["seed"]) for one in records}
    cells = [(f, m, s) for s in range(seeds) for f in FAULTS for m in METHODS if (f, m, s) not in there]
    ends_s = time.monotonic() + 60.0 * minutes
    with ExitStack() as stack:
        runner = Runner(stack) if cells else None
        for left, cell in enumerate(cells):
            if time.monotonic() > ends_s:
                print(f"{len(cells) - left} trainings are left: start it again to go on", file=sys.stderr)
                break
            assert runner is not None
            records.append(runner.run(*cell, seconds))
            append(out, records[-1])
    tell(records, seconds)


def tell(records: list[dict[str, Any]], seconds: float) -> None:
    """Median time to the target, how many got there, and the accuracy at the end."""
    print(f"{'fault':8} {'method':12} {'s to ' + str(TARGET):>10} {'got there':>9} {'at the end':>10}  best other")
    for fault in FAULTS:
        medians = {}
        for method in METHODS:
            some = [one for one in records if one["fault"] == fault and one["method"] == method]
            if some:
                medians[method] = statistics.median(one["target_s"] or seconds for one in some)
        for method, median in medians.items():
            some = [one for one in records if one["fault"] == fault and one["method"] == method]
            there = sum(one["target_s"] is not None for one in some)
            others = [value for name, value in medians.items() if name not in (method, "chosen")]
            against = f"{median / min(others):.2f}x" if method == "chosen" and others else ""
            accuracy = statistics.mean(one["accuracy"] for one in some)
            modes = sorted({one["mode"] for one in some}) if method == "chosen" else ""
            end = f"{accuracy:10.3f}  {against} {modes or ''}"
            print(f"{fault:8} {method:12} {median:10.2f} {there:5d}/{len(some):<3d} {end}")


if __name__ == "__main__":
    work()
