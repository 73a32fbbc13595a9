"""`python -P -m starprof.ps.shard SETTINGS`: one shard's process; one line on stdout says where it listens."""

from __future__ import annotations

import json
import signal
import sys

import torch

from starprof.errors import StarprofError, UsageError
from starprof.model import serverprocesses
from starprof.ps.children import call_oneself
from starprof.ps.shard.service import Shard, say
from starprof.ps.shard.settings import Settings
from starprof.ps.speech import secret_of
from starprof.ps.wire import listen


def main(arguments: list[str]) -> int:
    """Run until dismissed; returns the exit code."""
    call_oneself(serverprocesses.SHARD)
    try:
        if len(arguments) != 1:
            raise UsageError("one argument: the settings as a JSON object")
        settings = Settings.of(arguments[0])
        torch.set_num_threads(settings.threads)
        shard = Shard(settings, secret_of(), listen(settings.host, settings.port))
        signal.signal(signal.SIGTERM, lambda *_: shard.hub.stop())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stdout.write(json.dumps({"listening": list(shard.hub.address)}) + "\n")
        sys.stdout.flush()
        shard.run()
        say(f"ends: {shard.why_over or 'told to'}")
    except StarprofError as error:
        say(str(error))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
