"""Metrics over HTTP: GET /metrics, for whoever may ask.

On a loopback address anybody on the machine may; elsewhere only who shows the reader's token, which allows nothing
else.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import Callable

from starprof.errors import TransportError, UsageError
from starprof.launch.secret import is_loopback
from starprof.serve.openmetrics import CONTENT_TYPE

REQUEST_BYTES = 8 << 10
REQUEST_S = 5.0
MAX_CLIENTS = 32


class MetricsServer:
    """Answers on one address.

    Raises:
        UsageError: the address can be reached from elsewhere and there is no token.
    """

    def __init__(self, address: tuple[str, int], text: Callable[[], str], token: str | None) -> None:
        if not is_loopback(address[0]) and not token:
            raise UsageError(
                f"{address[0]} can be reached from other machines: metrics are served there only to who shows a token, "
                "and there is none (give --token-file)"
            )
        self._address = address
        self._text = text
        self._token = None if is_loopback(address[0]) else token
        self._clients = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> tuple[str, int]:
        """Begin to listen; tells where.

        Raises:
            TransportError: that can't be.
        """
        host, port = self._address
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=REQUEST_BYTES)
        except OSError as error:
            raise TransportError(f"can't serve metrics on {host}:{port}: {error.strerror or error}") from error
        name = self._server.sockets[0].getsockname()
        return str(name[0]), int(name[1])

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, one answer."""
        self._clients += 1
        try:
            if self._clients <= MAX_CLIENTS:
                async with asyncio.timeout(REQUEST_S):
                    request = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._answer(request))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # it was no request, or nobody waits for the answer any more
        finally:
            self._clients -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _answer(self, request: bytes) -> bytes:
        line, *headers = request.decode("latin-1").split("\r\n")
        method, _, rest = line.partition(" ")
        path = rest.split(" ")[0].partition("?")[0]
        if not self._allowed(headers):
            return _response("401 Unauthorized", "the reader's token is needed\n", ("WWW-Authenticate: Bearer",))
        if method not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", "only GET\n", ("Allow: GET, HEAD",))
        if path != "/metrics":
            return _response("404 Not Found", "there is /metrics\n")
        whole = _response("200 OK", self._text(), content_type=CONTENT_TYPE)
        return whole if method == "GET" else whole.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"

    def _allowed(self, headers: list[str]) -> bool:
        if self._token is None:
            return True
        for header in headers:
            name, _, value = header.partition(":")
            if name.strip().lower() == "authorization":
                scheme, _, shown = value.strip().partition(" ")
                return scheme.lower() == "bearer" and hmac.compare_digest(shown.strip().encode(), self._token.encode())
        return False


def _response(
    status: str, body: str, more: tuple[str, ...] = (), content_type: str = "text/plain; charset=utf-8"
) -> bytes:
    data = body.encode("utf-8", "replace")
    head = (
        f"HTTP/1.1 {status}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(data)}",
        "Connection: close",
        "X-Content-Type-Options: nosniff",
        *more,
    )
    return "\r\n".join(head).encode() + b"\r\n\r\n" + data
