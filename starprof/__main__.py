"""`python -m starprof`: the same as the `starprof` command."""

import sys

from starprof.cli import main

if __name__ == "__main__":
    sys.exit(main())
