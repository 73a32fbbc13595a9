"""`python -P -m starprof.advisor SETTINGS`: started by the recorder of node 0, stopped with SIGTERM."""

from __future__ import annotations

import sys

from starprof.advisor.process import AdvisorProcess, Settings
from starprof.errors import StarprofError, UsageError


def main(arguments: list[str]) -> int:
    """Run an advisor; returns its exit code."""
    try:
        if len(arguments) != 1:
            raise UsageError("one argument: the settings as a JSON object")
        return AdvisorProcess(Settings.of(arguments[0])).run()
    except StarprofError as error:
        sys.stderr.write(f"starprof advisor: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
