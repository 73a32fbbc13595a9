"""Addresses as the user writes them."""

from __future__ import annotations

from starprof.errors import UsageError

MAX_PORT = 65535
DEFAULT_PORT = 7411
"""Where a server of many jobs listens."""


def split_address(address: str, flag: str) -> tuple[str, int]:
    """Host and port of HOST:PORT ([HOST]:PORT for IPv6).

    Raises:
        UsageError: it has another form.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or len(port) > 5 or int(port) > MAX_PORT:
        raise UsageError(f"{flag} {address!r} is not HOST:PORT")
    return host.strip("[]"), int(port)
