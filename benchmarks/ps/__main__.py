"""How fast the parameter server's transport is.

    python benchmarks/ps push-pull [--mb 0.5 40 400] [--rounds 5] [--seconds 1]

`push-pull`: one worker pushes a gradient of so many megabytes, one server applies it (`-sgd`) or does nothing, and the
worker pulls as much. Against a bare TCP connection that does the same, and against `torch.distributed.rpc`, with
the transports that it chooses within a host (shared memory) and with TCP. All take turns, each in processes of its own.
"""

from __future__ import annotations

import argparse

import push_pull


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    one = verbs.add_parser("push-pull")
    one.add_argument("--mb", type=float, nargs="+", default=push_pull.SIZES_MB)
    one.add_argument("--rounds", type=int, default=5)
    one.add_argument("--seconds", type=float, default=1.0)
    one.set_defaults(run=lambda told: push_pull.compare(told.mb, told.rounds, told.seconds))
    told = parser.parse_args()
    told.run(told)


if __name__ == "__main__":
    main()
