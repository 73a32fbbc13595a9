"""`python -m starprof.agent --spool DIR --node N`: started by the recorder on each node, stopped with SIGTERM."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from starprof.agent.agent import Agent, Settings
from starprof.errors import StarprofError
from starprof.model import env

_LEAST_HZ, _MOST_HZ = 0.1, 100.0


def _rate(text: str) -> float:
    rate = float(text)
    if not _LEAST_HZ <= rate <= _MOST_HZ:
        raise argparse.ArgumentTypeError(f"not between {_LEAST_HZ:g} and {_MOST_HZ:g} Hz: {text}")
    return rate


def main(argv: list[str] | None = None) -> int:
    """Run an agent; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m starprof.agent", description="Sample one node into a spool.")
    parser.add_argument("--spool", type=Path, required=True, help="spool directory of the run")
    parser.add_argument("--node", type=int, default=0, help="id of this node within the run")
    parser.add_argument("--rate", type=_rate, default=os.environ.get(env.RATE_HZ, "10"), help="samples per second")
    parser.add_argument("--parent", type=int, help="process id of the recorder: without it and without ranks, end")
    given = parser.parse_args(argv)
    try:
        return Agent(Settings(given.spool, given.node, given.rate, given.parent)).run()
    except StarprofError as error:
        sys.stderr.write(f"starprof agent: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
