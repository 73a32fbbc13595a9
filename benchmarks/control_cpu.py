"""What control takes of a rank's core while the job is in native steps: in the training thread, and in threads of ours.

    python benchmarks/control_cpu.py [--repeats 2] [--ranks 2] [--layers 8] [--blocks 40]

Real jobs whose step is real compute: matrix products that hold one core (`torch.set_num_threads(1)`), reduced by DDP
over gloo, under control. In every other block of ten steps nobody drives the model, on all ranks alike: what is left of
control then is a call that finds nobody. Told is the training thread's CPU time, which other load disturbs less than
wall time: the median of the differences between a block and the one before, per step. And the CPU time of all threads
whose name begins with `starprof`, per second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "control" / "running"))

BLOCK = 10
SETTLED = 80
"""Steps before the first block: the loop is known, and the coordinator is there."""


def ours_s() -> float:
    """CPU time of our threads in this process so far."""
    ids = [thread.native_id for thread in threading.enumerate() if thread.name.startswith("starprof")]
    return sum(int(Path(f"/proc/self/task/{number}/schedstat").read_text().split()[0]) for number in ids) / 1e9


def train(setup: dict) -> None:
    """One rank."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from starprof.control.engine import attach

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    layers = [m for _ in range(setup["layers"]) for m in (nn.Linear(512, 512), nn.ReLU())]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    steps = SETTLED + setup["blocks"] * BLOCK
    loader = DataLoader(TensorDataset(torch.randn(64 * 16, 512)), batch_sampler=[range(64)] * steps)
    marks = []
    for step, (batch,) in enumerate(loader):
        if step >= SETTLED and step % BLOCK == 0:
            watched = attach._control._patches._models[model]
            driver = attach._control.drivers[0]
            assert driver._engine is not None, "the loop was refused"
            watched.driver = driver if len(marks) % 2 else None
            driver.updating._watch.close()
            marks.append((time.thread_time(), time.monotonic(), ours_s()))
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    watched.driver = driver
    blocks = [1e3 * (after[0] - before[0]) / BLOCK for before, after in pairwise(marks)]
    told = {
        "off_ms": statistics.median(blocks[::2]),
        "added_ms": [on - off for off, on in zip(blocks[::2], blocks[1::2], strict=False)],
        "ours_ms_per_s": 1e3 * (marks[-1][2] - marks[0][2]) / (marks[-1][1] - marks[0][1]),
    }
    dist.barrier()
    dist.destroy_process_group()
    print("TOLD " + json.dumps(told), flush=True)


def measured(setup: dict, ranks: int) -> list[dict]:
    """What the ranks of one job have told."""
    from jobs import Job

    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder), setup, world=ranks, script=Path(__file__).resolve())
        try:
            return job.wait(within_s=600)
        finally:
            job.kill()


def main() -> None:
    """Run the jobs and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=40)
    args = parser.parse_args()
    setup = {"layers": args.layers, "blocks": args.blocks}
    told = [rank for _ in range(args.repeats) for rank in measured(setup, args.ranks)]
    base = statistics.median(rank["off_ms"] for rank in told)
    added = sorted(difference for rank in told for difference in rank["added_ms"])
    middle, quarter = statistics.median(added), len(added) // 4
    print(
        f"training thread: {base:.2f} ms a step, {middle:+.3f} ms with control ({100 * middle / base:+.2f} %; middle "
        f"half of the differences {added[quarter]:+.3f} to {added[-quarter - 1]:+.3f})"
    )
    ours = statistics.median(rank["ours_ms_per_s"] for rank in told)
    print(f"our threads: {ours:.2f} ms a second ({ours / 10:.2f} %)")


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        train(json.loads(sys.argv[1]))
    else:
        main()
