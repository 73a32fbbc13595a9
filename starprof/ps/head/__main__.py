"""`python -P -m starprof.ps.head SETTINGS`: the head of one parameter server, until the job is over.

Once it listens, one line on stdout says where.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from starprof.control.controlsocket import ControlSocket
from starprof.control.coordinator.questions import SCHEMA
from starprof.control.counter import Counter
from starprof.control.journal import ControlJournal
from starprof.errors import StarprofError, UsageError
from starprof.model import serverprocesses
from starprof.ps.children import call_oneself
from starprof.ps.head import desk
from starprof.ps.head.seats import say
from starprof.ps.head.service import HeadService
from starprof.ps.head.settings import Settings
from starprof.ps.speech import HEAD, secret_of
from starprof.ps.wire import Hub, listen

ANSWER_S = 5.0
NICE = -10
"""Where that is allowed: every worker waits for us."""


def main(arguments: list[str]) -> int:
    """Run until the job is over; returns the exit code."""
    call_oneself(serverprocesses.HEAD)
    try:
        if len(arguments) != 1:
            raise UsageError("one argument: the settings as a JSON object")
        _run(Settings.of(arguments[0]), secret_of())
    except StarprofError as error:
        say(str(error))
        return error.exit_code
    return 0


def _run(settings: Settings, secret: bytes) -> None:
    journal = None
    if settings.segments is not None:
        journal = ControlJournal(settings.segments, settings.node, attempt=settings.attempt)
    service = HeadService(settings, journal)
    hub = Hub(listen(settings.host, settings.port), secret, service, service=HEAD)
    settings.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    control = ControlSocket(settings.folder)
    signal.signal(signal.SIGTERM, lambda *_: hub.stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it goes to the whole foreground group; the workers say when it ends
    threading.Thread(target=_answer, args=(service, hub, control), daemon=True).start()
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    sys.stdout.write(json.dumps({"listening": list(hub.address), "epoch": service.memory.epoch}) + "\n")
    sys.stdout.flush()
    try:
        service.serve(hub)
        hub.run()
    finally:
        service.record.end()
        control.close()
        say(f"ends: {service.why_over or 'told to'}")


def _answer(service: HeadService, hub: Hub, control: ControlSocket) -> None:
    """The control socket, in a thread of its own; each question is answered in the hub's."""

    def ask(question: Mapping[str, Any]) -> dict[str, Any]:
        answer: Future[dict[str, Any]] = Future()

        def do() -> None:
            answer.set_result(desk.answer(service, question))

        hub.call(do)
        try:
            return answer.result(ANSWER_S)
        except TimeoutError:
            return {"ok": False, "schema": SCHEMA, "error": "the head is too busy to answer", "usage": False}

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(Counter(ask).accept, sock=control.sock)
        await server.serve_forever()

    asyncio.run(serve())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
