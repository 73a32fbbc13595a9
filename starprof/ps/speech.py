"""How a parameter server's head is spoken to, and where its secret comes from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from starprof.errors import TransportError, UsageError
from starprof.ps.messages import KIND, WORDS
from starprof.ps.wire import Connection, Head
from starprof.wire.frames import Service

HEAD = Service(b"SPH1", "the head of this job's parameter server")
TOKEN = "STARPROF_PS_TOKEN"  # noqa: S105 - the variable's name
"""Environment variable with the secret of a job's workers, shards and head."""

SERVER = "STARPROF_PS"
"""Environment variable with the head's address, as HOST:PORT, where a server is running already."""

PING_EVERY_S = 1.0
SILENT_S = 15.0
"""Whoever says nothing for so long is gone."""


def secret_of(environ: Mapping[str, str] = os.environ) -> bytes:
    """The secret.

    Raises:
        UsageError: there is none.
    """
    token = environ.get(TOKEN, "").encode()
    if not token:
        raise UsageError(f"no secret: set {TOKEN}")
    return token


def address_of(text: str) -> tuple[str, int]:
    """Host and port, as they are written.

    Raises:
        UsageError: it is no address.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise UsageError(f"{text!r} is no address: HOST:PORT")
    return host.strip("[]"), int(port)


def send(connection: Connection, message: Any, payload: memoryview | None = None) -> None:
    """Say something."""
    connection.send(KIND, WORDS.encode(message), payload)


def word(head: Head) -> Any:
    """What was said.

    Raises:
        TransportError: nothing that anybody says here.
    """
    if head.kind != KIND:
        raise TransportError(f"a message of the unknown kind {head.kind}")
    return WORDS.decode(head.header)
