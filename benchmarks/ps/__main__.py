"""How fast the parameter server is, what it costs those beside it, and what the plans promise and keep.

    python benchmarks/ps push-pull [--mb 0.5 40 400] [--rounds 5] [--seconds 1]
    python benchmarks/ps scaling [--workers 8] [--seconds 4]
    python benchmarks/ps modes | grant | relocation [--rounds 4] [--seconds 3]
    python benchmarks/ps tta [--out FILE] [--seeds 5] [--seconds 13] [--minutes 30]

`push-pull`: one worker pushes a gradient of so many megabytes, one server applies it (`-sgd`) or does nothing, and the
worker pulls as much. Against a bare TCP connection that does the same, and against `torch.distributed.rpc`, with
the transports that it chooses within a host (shared memory) and with TCP. All take turns, each in processes of its own.

`scaling`: 1 to 8 workers with one shard and with two, in network namespaces (root), beside published figures.

`modes`: a job with one slow worker goes from SSGD to ASGD while another job computes on the server's node; then the
resource plan for that, carried out. `grant`: the same where the node has room. `relocation`: a server whose interface
is full, one shard and then both moved while training goes on. Hosts are network namespaces (root), the server's node
is one core; what the plan asks of the neighbour is a wait in each of its iterations, and of the server that it takes
only what the neighbour leaves.

`tta`: time to an accuracy of real trainings with faults, under fixed modes and the chooser; a second start goes on
where the first one stopped.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import neighbours
import push_pull
import scaling
import tta


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    one = verbs.add_parser("push-pull")
    one.add_argument("--mb", type=float, nargs="+", default=push_pull.SIZES_MB)
    one.add_argument("--rounds", type=int, default=5)
    one.add_argument("--seconds", type=float, default=1.0)
    one.set_defaults(run=lambda told: push_pull.compare(told.mb, told.rounds, told.seconds))
    one = verbs.add_parser("scaling")
    one.add_argument("--workers", type=int, default=8, choices=range(1, 9))
    one.add_argument("--seconds", type=float, default=4.0)
    one.set_defaults(run=lambda told: scaling.scale(told.workers, told.seconds))
    for name, run in (("modes", neighbours.modes), ("grant", neighbours.grant), ("relocation", neighbours.relocation)):
        one = verbs.add_parser(name)
        one.add_argument("--rounds", type=int, default=4)
        one.add_argument("--seconds", type=float, default=3.0)
        one.set_defaults(run=lambda told, run=run: run(told.rounds, told.seconds))
    one = verbs.add_parser("tta")
    one.add_argument("--out", type=Path, default=Path("ps-tta.jsonl"))
    one.add_argument("--seeds", type=int, default=5)
    one.add_argument("--seconds", type=float, default=13.0)
    one.add_argument("--minutes", type=float, default=30.0)
    one.set_defaults(run=lambda told: tta.compare(told.out, told.seeds, told.seconds, told.minutes))
    told = parser.parse_args()
    told.run(told)


if __name__ == "__main__":
    main()
