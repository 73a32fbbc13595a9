"""What the hook costs a training step: paired blocks of steps with it and without, in the same process.

    python benchmarks/hook_overhead.py [--json] [--blocks N] [--case tiny|long|gloo]...

Cases: `tiny`, one process, a step of about 1.6 ms; `long`, one process, about 50 ms; `gloo`, two DDP ranks, about
5 ms. Blocks alternate A (the hook passes everything through) and B (it records); the figure is the median of the
paired differences B - A in wall time and in the calling thread's CPU time, per step. A second series pairs A with
A (`null`): what the method shows where there is nothing. With the hook off its wrappers are still called, which
costs a few hundred nanoseconds a step that this method does not see; `separate` therefore times whole processes,
hook and no hook, alternating.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

CASES = {"tiny": (1, 100), "long": (1, 6), "gloo": (2, 40)}
"""Ranks and steps a block."""
INJECT = Path(__file__).resolve().parent.parent / "starprof" / "hook" / "inject"
SETTLED_STEPS = 140
"""Steps before the first block: learning of arrivals is over, its checks at 16 and 128 too."""


def build(case):
    """A function that runs one step."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    torch.set_num_threads(1)
    width, layers, batch = {"tiny": (64, 12, 32), "long": (640, 14, 128), "gloo": (256, 12, 32)}[case]
    model = nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(width, width), nn.ReLU())])
    if case == "gloo":
        import torch.distributed as dist

        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(TensorDataset(torch.randn(batch * 64, width)), batch_sampler=_Endless(batch, 64 * batch))
    batches = iter(loader)

    def step():
        (x,) = next(batches)
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


class _Endless:
    def __init__(self, batch, size):
        self.batch, self.size = batch, size

    def __iter__(self):
        at = 0
        while True:
            yield [(at + i) % self.size for i in range(self.batch)]
            at += self.batch


def block(step, steps):
    """(wall, CPU of this thread) per step, us."""
    wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
    for _ in range(steps):
        step()
    return (time.perf_counter_ns() - wall) / steps / 1000, (time.thread_time_ns() - cpu) / steps / 1000


def rank_main(case, blocks):
    """Alternate blocks in this process and print the differences as one line of JSON."""
    from starprof.hook.install import install

    guard = install().hook.guard
    step, steps = build(case), CASES[case][1]
    block(step, SETTLED_STEPS)
    pairs, null, base = [], [], []
    for number in range(blocks):
        seen = {}
        # The order within a group changes, so that a drift of the machine cancels out.
        for arm in ("A", "B", "N") if number % 2 else ("N", "B", "A"):
            guard.off = arm != "B"
            seen[arm] = block(step, steps)
        guard.off = False
        base.append(seen["A"])
        pairs.append([b - (a + n) / 2 for b, a, n in zip(seen["B"], seen["A"], seen["N"], strict=True)])
        null.append([n - a for a, n in zip(seen["A"], seen["N"], strict=True)])
    result = {"base": base, "pairs": pairs, "null": null}
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(result), flush=True)
    if case == "gloo":
        import torch.distributed as dist

        dist.barrier()
        dist.destroy_process_group()


def plain_main(case):
    """Time one process as it is: the median of its blocks."""
    step, steps = build(case), CASES[case][1]
    block(step, SETTLED_STEPS)
    seen = [block(step, steps) for _ in range(12)]
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps([median(s[i] for s in seen) for i in (0, 1)]), flush=True)
    if case == "gloo":
        import torch.distributed as dist

        dist.barrier()
        dist.destroy_process_group()


def launch(case, mode, blocks, *, hook=True):
    """Run the ranks of a case; what rank 0 printed."""
    with tempfile.TemporaryDirectory() as spool, socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
        probe.close()
        kept = {k: v for k, v in os.environ.items() if not k.startswith("STARPROF_") and k != "PYTHONPATH"}
        ranks = CASES[case][0]
        common = kept | {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        common |= {"WORLD_SIZE": str(ranks)}
        if hook:
            common |= {"STARPROF_SPOOL": spool, "STARPROF_NODE": "0", "PYTHONPATH": str(INJECT)}
        command = [sys.executable, __file__, "--rank", mode, "--case", case, "--blocks", str(blocks)]
        processes = [
            subprocess.Popen(command, env=common | {"RANK": str(r)}, stdout=subprocess.PIPE, text=True)
            for r in range(ranks)
        ]
        outputs = [p.communicate()[0] for p in processes]
    return json.loads(outputs[0])


def measure(case, blocks, separate):
    """One row of the table."""
    seen = launch(case, "paired", blocks)
    row = {"case": case, "step_us": median(s[0] for s in seen["base"])}
    for key in ("pairs", "null"):
        for i, clock in enumerate(("wall", "cpu")):
            row[f"{key}_{clock}_us"] = median(s[i] for s in seen[key])
    if separate:
        differences = []
        for number in range(separate):
            arms = (True, False) if number % 2 else (False, True)
            both = {hook: launch(case, "plain", 0, hook=hook) for hook in arms}
            differences.append([b - a for a, b in zip(both[False], both[True], strict=True)])
        row |= {f"separate_{clock}_us": median(d[i] for d in differences) for i, clock in enumerate(("wall", "cpu"))}
    return row


def main():
    """Parse and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", choices=list(CASES))
    parser.add_argument("--blocks", type=int, default=40, help="groups of blocks per case")
    parser.add_argument("--separate", type=int, default=0, help="pairs of whole processes per case")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", choices=["paired", "plain"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank == "paired":
        rank_main(arguments.case[0], arguments.blocks)
    elif arguments.rank == "plain":
        plain_main(arguments.case[0])
    else:
        rows = [measure(case, arguments.blocks, arguments.separate) for case in arguments.case or CASES]
        if arguments.json:
            print(json.dumps(rows))
            return
        for row in rows:
            print(row["case"], *(f"{k}={v:.1f}" for k, v in row.items() if k != "case"))


if __name__ == "__main__":
    main()
