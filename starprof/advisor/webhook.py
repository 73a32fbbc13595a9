"""Tells an address of the user's own what the advisor suggests: asked for by name only, and never waited for."""

from __future__ import annotations

import json
import queue
import sys
import threading
import urllib.request
from collections.abc import Mapping
from typing import Any

from starprof.errors import UsageError

PATIENCE_S = 5.0
WAITING = 32
"""Posts that wait; of more the newest are lost."""


class Webhook:
    """Posts JSON objects, one after the other, from a thread of its own.

    Raises:
        UsageError: the address is none of http.
    """

    def __init__(self, address: str) -> None:
        if not address.startswith(("http://", "https://")):
            raise UsageError(f"a webhook is an http address, not {address!r}")
        self._address = address
        self._queue: queue.Queue[Mapping[str, Any] | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._work, name="starprof-webhook", daemon=True)
        self._thread.start()

    def post(self, what: Mapping[str, Any]) -> None:
        """Post this soon."""
        try:
            self._queue.put_nowait(what)
        except queue.Full:
            sys.stderr.write("starprof advisor: the webhook does not keep up, a suggestion was not posted\n")

    def close(self) -> None:
        """Post what waits, if that takes no longer than one post may."""
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(PATIENCE_S)

    def _work(self) -> None:
        while (what := self._queue.get()) is not None:
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(self._address, json.dumps(what).encode(), headers)  # noqa: S310 - see above
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE_S):  # noqa: S310
                    pass
            except (OSError, ValueError) as error:
                sys.stderr.write(f"starprof advisor: the webhook can't be reached: {error}\n")
