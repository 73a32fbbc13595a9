r"""Signals of the supervisor: it blocks them and takes them one by one, so that nothing ever interrupts its work.

The job shares our process group. What the terminal sends (Ctrl-C, Ctrl-\, hang-up) the kernel delivers to the whole
group, so the job has it already; what somebody sends to our process id is passed on once.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

FORWARDED = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2})
"""What is meant for the job when it is sent to the recorder."""

WATCHED = FORWARDED | {signal.SIGCHLD}

_SI_KERNEL = 0x80  # si_code of a signal that the kernel itself made, such as the terminal's


@dataclass(frozen=True, slots=True)
class Arrived:
    """One signal that came in; `to_group` says that our whole process group got it."""

    number: int
    to_group: bool


def wait(timeout_s: float) -> Arrived | None:
    """The next signal to us, None when `timeout_s` seconds pass without one or a child only changed state."""
    info = signal.sigtimedwait(WATCHED, max(0.0, timeout_s))
    if info is None or info.si_signo == signal.SIGCHLD:
        return None
    return Arrived(info.si_signo, info.si_code == _SI_KERNEL)


def name(number: int) -> str:
    """`SIGTERM` and the like."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
