"""Cost of folding a spool into a run file: rows per second, bytes per step record, memory of the ingester.

    python benchmarks/ingest.py [--rows 1000000] [--ranks 64] [--rows-per-frame 64] [--json]

The ingester is the real process, start and imports included in its times; rows are step records with realistic
spread. CPU rows/s is what a loaded machine leaves comparable.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from starprof.model.schema import row
from starprof.model.tables.job import STEP
from starprof.spool.frame import Frame, packed_frame
from starprof.spool.layout import Spool
from starprof.spool.segment import SegmentWriter

FRAMES_PER_WRITE = 64
DISTINCT_FRAMES = 256


def step_frames(ranks: int, rows_per_frame: int) -> list[Frame]:
    """Frames of distinct rows; the benchmark sends them again under other numbers."""
    rng = random.Random(1)
    frames = []
    for number in range(DISTINCT_FRAMES):
        rows = []
        for index in range(rows_per_frame):
            step = number // ranks * rows_per_frame + index
            forward, backward, blocked = (int(rng.gauss(mean, mean / 20)) for mean in (12_000, 25_000, 4_000))
            dur = forward + backward + blocked + 900
            rows.append(
                row(
                    STEP,
                    attempt=0,
                    rank=number % ranks,
                    step=step,
                    start_mono_ns=10**14 + step * 42_000_000 + rng.randrange(10**6),
                    dur_us=dur,
                    data_wait_us=rng.randrange(300),
                    forward_us=forward,
                    backward_us=backward,
                    blocked_us=blocked,
                    optimizer_us=rng.randrange(400, 500),
                    gc_us=0,
                    checkpoint_us=0,
                    eval_us=0,
                    compile_us=0,
                    user_us=0,
                    unaccounted_us=rng.randrange(100),
                    arrival_us=forward + backward,
                    first_bucket_us=forward + backward // 3,
                    micro_batches=1,
                    collectives=3,
                    samples=32,
                    alloc_retries=0,
                )
            )
        frames.append(packed_frame(STEP, "", 0, rows))
    return frames


def fill(spool: Spool, rows: int, ranks: int, rows_per_frame: int) -> int:
    """Write the spool; returns its size in bytes."""
    spool.create()
    spool.run_json.write_text(json.dumps({"run_id": "benchmark", "name": "benchmark"}))
    templates = step_frames(ranks, rows_per_frame)
    writer = SegmentWriter(spool.segments, "n0")
    sent = [0] * ranks
    waiting = []
    for number in range(rows // rows_per_frame):
        template = templates[number % DISTINCT_FRAMES]
        rank = number % ranks
        stream = f"n0-{1000 + rank}-1/slots"
        waiting.append(Frame(STEP, stream, sent[rank], template.rows, template.encoding, template.payload))
        sent[rank] += template.rows
        if len(waiting) == FRAMES_PER_WRITE:
            writer.write(waiting)
            waiting = []
    writer.write(waiting)
    writer.close()
    return sum(path.stat().st_size for path in spool.segments.iterdir())


def measure(rows: int, ranks: int, rows_per_frame: int) -> dict[str, float]:
    """Fill a spool, fold it in with a real ingester process, and look at what it took."""
    with tempfile.TemporaryDirectory() as folder:
        run_file = Path(folder) / "run.starprof"
        spool = Spool.beside(run_file)
        spool_bytes = fill(spool, rows, ranks, rows_per_frame)
        began = time.perf_counter()
        argv = [sys.executable, "-m", "starprof.store.ingest", str(spool.root), str(run_file), "--final"]
        pid = os.posix_spawn(sys.executable, argv, os.environ)
        _, status, usage = os.wait4(pid, 0)
        wall_s = time.perf_counter() - began
        if status:
            raise SystemExit(f"the ingester failed: {os.waitstatus_to_exitcode(status)}")
        cpu_s = usage.ru_utime + usage.ru_stime
        folded = rows // rows_per_frame * rows_per_frame
        return {
            "rows": folded,
            "wall_s": wall_s,
            "cpu_s": cpu_s,
            "rows_per_s": folded / wall_s,
            "rows_per_cpu_s": folded / cpu_s,
            "peak_mb": usage.ru_maxrss / 1024,
            "spool_bytes_per_row": spool_bytes / folded,
            "file_bytes_per_row": run_file.stat().st_size / folded,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--rows-per-frame", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    result = measure(chosen.rows, chosen.ranks, chosen.rows_per_frame)
    if chosen.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:22}{value:>14,.1f}")


if __name__ == "__main__":
    main()
