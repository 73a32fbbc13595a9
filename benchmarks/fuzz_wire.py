"""How starprof bears whatever comes over a wire: a million random and damaged messages of strangers and of nodes.

They go to everything that reads from a connection: the handshake, node 0's conversation with nodes, files and streams
that nodes bring, questions to the server, requests for metrics, the coordinator's messages, and the watch that follows
what nodes have brought. Right is that a message is taken or refused by an error of starprof's own. Work is shared by
one process a CPU. Figures go to stdout as JSON; the exit code says whether anything went wrong.

    python benchmarks/fuzz_wire.py [--messages 1000000] [--seed 1] [--jobs N]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

FUZZ = Path(__file__).parents[1] / "tests" / "serve" / "wire_fuzz.py"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    given = parser.parse_args()
    began = time.perf_counter()
    each = str(-(-given.messages // given.jobs))
    jobs = [
        subprocess.Popen(
            [sys.executable, str(FUZZ), "--messages", each, "--seed", str(given.seed + job)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for job in range(given.jobs)
    ]
    total: Counter[str] = Counter()
    growth_mb, failed = 0.0, 0
    for job in jobs:
        out, _ = job.communicate()
        failed += job.returncode != 0
        told = json.loads(out) if out else {}
        growth_mb = max(growth_mb, told.pop("growth_mb", 0.0))
        total.update(told)
    seconds = round(time.perf_counter() - began, 1)
    print(json.dumps({"failed": failed, "growth_mb": growth_mb, "seconds": seconds, **dict(sorted(total.items()))}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
