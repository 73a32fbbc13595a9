"""`python -m starprof.serve PLACE [--many] [--metrics HOST:PORT] [--parent PID]`: watch, until told to end.

Started by the recorder beside the job on the first node, and by `starprof serve`. The reader's token comes in the
environment: a command line can be read by everybody.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from starprof.errors import StarprofError
from starprof.launch.address import split_address
from starprof.model import env
from starprof.spool.smallprocess import leave_pandas_out

if TYPE_CHECKING:
    from starprof.serve.watcher import Wish


def main(argv: list[str]) -> int:
    """Watch; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m starprof.serve")
    parser.add_argument("place", type=Path)
    parser.add_argument("--many", action="store_true")
    parser.add_argument("--metrics", metavar="HOST:PORT")
    parser.add_argument("--parent", type=int)
    given = parser.parse_args(argv)
    leave_pandas_out()
    from starprof.serve.watcher import Wish

    try:
        metrics = None if given.metrics is None else split_address(given.metrics, "--metrics")
        token = os.environ.pop(env.READER_TOKEN, None)
        asyncio.run(_run(Wish(given.place, given.many, metrics, token, given.parent)))
    except StarprofError as error:
        sys.stderr.write(f"starprof serve: {error}\n")
        return error.exit_code
    return 0


async def _run(wish: Wish) -> None:
    from starprof.serve.watcher import Watcher

    await Watcher(wish).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
