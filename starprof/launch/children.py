"""Starting processes of ours and of the user, by posix_spawn: no fork of a process that has threads, no helper thread.

Only processes started here are ever waited for or signalled, by process id.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HELPER_NICENESS = 10
_SHELL = "/bin/sh"


@dataclass
class Child:
    """A process started by us.

    Attributes:
        status: as `os.waitpid` gave it, None while the process runs.
    """

    pid: int
    status: int | None = None

    def running(self) -> bool:
        """Whether it still runs; reaps it when it has ended."""
        if self.status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody made the kernel reap our children: its status is lost
                self.status = 0
            else:
                self.status = status if pid else None
        return self.status is None

    @property
    def exit_code(self) -> int:
        """Exit code as a shell shows it: 128 + n when signal n ended the process."""
        code = os.waitstatus_to_exitcode(self.status or 0)
        return 128 - code if code < 0 else code

    @property
    def ended_by(self) -> int:
        """Number of the signal that ended the process, 0 when it exited by itself."""
        return os.WTERMSIG(self.status) if self.status is not None and os.WIFSIGNALED(self.status) else 0

    def send(self, number: int) -> None:
        """Send a signal; a process that has ended in the meantime is left alone (its id may be another's)."""
        if self.running():
            os.kill(self.pid, number)


def start_job(command: Sequence[str], environment: Mapping[str, str], mask: Iterable[int]) -> Child:
    """Start the user's command in our place: same terminal, process group, standard streams and descriptors.

    Raises:
        OSError: it can't be executed.
    """

    def spawn(argv: Sequence[str]) -> Child:
        # Python ignores these two for itself; the job gets them as it would have had them without us.
        undo = [signal.SIGPIPE, signal.SIGXFSZ]
        return Child(os.posix_spawnp(argv[0], list(argv), environment, setsigmask=list(mask), setsigdef=undo))

    try:
        return spawn(command)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        # A script without "#!": a shell would run it itself, so do we.
        return spawn([_SHELL, *command])


def start_helper(
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    log: Path,
    stdin: int | None = None,
    stdout: int | None = None,
    niceness: int = HELPER_NICENESS,
) -> Child:
    """Start a process of ours: low priority, out of the terminal's reach, its complaints in `log`.

    It inherits no descriptor: a helper that outlives us must not keep a pipe of the user open.

    Args:
        argv: its command line.
        environment: its environment.
        log: file that gets its stderr (and its stdout, unless `stdout` is given).
        stdin: descriptor for its standard input; none given: it reads nothing.
        stdout: descriptor for its standard output.
        niceness: how far it stands back behind the job.

    Raises:
        OSError: it can't be executed.
    """
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions: list[tuple[object, ...]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0) if stdin is None else (os.POSIX_SPAWN_DUP2, stdin, 0),
        (os.POSIX_SPAWN_OPEN, 2, str(log), append, 0o644),
        (os.POSIX_SPAWN_DUP2, 2 if stdout is None else stdout, 1),
        *((os.POSIX_SPAWN_CLOSE, fd) for fd in _inheritable_descriptors()),
    ]
    pid = os.posix_spawn(
        argv[0],
        list(argv),
        environment,
        file_actions=actions,
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGHUP],
    )
    os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, 0) + niceness)
    return Child(pid)


def _inheritable_descriptors() -> list[int]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        number = int(entry.name)
        try:
            if number > 2 and os.get_inheritable(number):
                found.append(number)
        except OSError:
            continue  # the listing's own descriptor
    return found
