"""`python -P -m starprof.control.coordinator SETTINGS`: the coordinator of one job, until the job is over.

Once it listens, one line on stdout says where. See `settings` for what it is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
import sys
from functools import partial

from starprof.control.controlsocket import ControlSocket
from starprof.control.coordinator import desk
from starprof.control.coordinator.place import leave_rank
from starprof.control.coordinator.service import Service, say
from starprof.control.coordinator.settings import Settings
from starprof.control.counter import Counter
from starprof.control.journal import ControlJournal
from starprof.errors import StarprofError, TransportError, UsageError

BACKLOG = 1024
GC_THRESHOLDS = (20_000, 20, 20)
"""Hardly anything here is garbage in circles; looking for it more often only makes ranks wait."""

NICE = -10
"""Where that is allowed: every rank waits for us, and loader workers may keep all cores busy."""

SEND_BUFFER_BYTES = 1 << 20
"""A rank that does not read is noticed after this much and what the other side's buffer takes."""


def main(arguments: list[str]) -> int:
    """Run until the job is over; returns the exit code."""
    try:
        if len(arguments) != 1:
            raise UsageError("one argument: the settings as a JSON object")
        settings = Settings.of(arguments[0])
        asyncio.run(_run(settings, settings.secret()))
    except StarprofError as error:
        say(str(error))
        return error.exit_code
    return 0


async def _run(settings: Settings, secret: bytes) -> None:
    loop = asyncio.get_running_loop()
    journal = None
    if settings.segments is not None:
        journal = ControlJournal(settings.segments, settings.node, attempt=settings.attempt)
    listener = _listen(settings.host, settings.port)
    control = ControlSocket(settings.state)
    service = Service(settings, secret, journal)
    if settings.launcher is not None:
        service.held = leave_rank(settings.launcher)
    loop.add_signal_handler(signal.SIGTERM, service.close, "told to end")
    # Ctrl-C goes to the whole foreground group; whether the job ends is for the ranks to say.
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    ranks = await loop.create_server(service.accept, sock=listener, backlog=BACKLOG)
    counter = await loop.create_unix_server(Counter(partial(desk.answer, service)).accept, sock=control.sock)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    gc.collect()
    gc.freeze()  # what the start has made is not looked through again and again
    gc.set_threshold(*GC_THRESHOLDS)
    host, port = listener.getsockname()[:2]
    sys.stdout.write(json.dumps({"listening": [host, port], "epoch": settings.epoch}) + "\n")
    sys.stdout.flush()
    try:
        await service.run()
    finally:
        ranks.close()
        counter.close()
        service.record.end()
        control.close()
        say(f"ends: {service.why_over}")


def _listen(host: str, port: int) -> socket.socket:
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise TransportError(f"can't listen on {host}:{port}: {error.strerror or error}") from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    return listener


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
