"""Questions of other machines, handed on to the process that watches the job."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from starprof.errors import StarprofError

MAX_AT_ONCE = 8
ANSWER_S = 10.0
_busy = threading.BoundedSemaphore(MAX_AT_ONCE)


def ask_watch(folder: Path, question: Mapping[str, object], answer: Callable[[bytes], None]) -> None:
    """Ask whoever watches in `folder`; `answer` gets one JSON object, from another thread.

    That takes a moment, and the loop of all connections must not wait: each question has a thread, and there are few.
    """
    if not _busy.acquire(blocking=False):
        answer(_refusal("too many questions at once: ask again"))
        return

    def work() -> None:
        from starprof.control.controlsocket import ask_at

        try:
            told = json.dumps(ask_at(folder, "live.sock", dict(question), ANSWER_S, who="server", hint=_HINT)).encode()
        except StarprofError as error:
            told = _refusal(str(error))
        finally:
            _busy.release()
        answer(told)

    threading.Thread(target=work, name="question", daemon=True).start()


_HINT = "is the job recorded with --live?"


def _refusal(why: str) -> bytes:
    return json.dumps({"ok": False, "schema": 1, "error": why, "usage": False}).encode()
