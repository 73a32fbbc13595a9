"""How fast the parameter server's transport is.

    python benchmarks/ps push-pull [--mb 0.5 40 400] [--rounds 5] [--seconds 1]
    python benchmarks/ps scaling [--workers 8] [--seconds 4]

`push-pull`: one worker pushes a gradient of so many megabytes, one server applies it (`-sgd`) or does nothing, and the
worker pulls as much. Against a bare TCP connection that does the same, and against `torch.distributed.rpc`, with
the transports that it chooses within a host (shared memory) and with TCP. All take turns, each in processes of its own.

`scaling`: 1 to 8 workers with one shard and with two, in network namespaces (root), beside published figures.
"""

from __future__ import annotations

import argparse

import push_pull
import scaling


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
    told = parser.parse_args()
    told.run(told)


if __name__ == "__main__":
    main()
