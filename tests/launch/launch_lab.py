"""Looking at real recordings from outside."""

import os
import subprocess
import time
from pathlib import Path


def wait_for(condition, *, timeout_s=30.0, what="the condition"):
    """Poll until `condition()` is true, and return its value."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {timeout_s} s")
        time.sleep(0.02)


def processes(mark):
    """Command lines of running processes whose environment or command line holds `mark`, by process id."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            environment = (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z" and (mark.encode() in command or mark.encode() in environment):
            found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


class Recording:
    """One `starprof record` process."""

    def __init__(self, folder, process):
        self.folder = folder
        self.process = process

    @property
    def pid(self):
        return self.process.pid

    def helper(self, module):
        """Process id of the helper that runs `module`, None when there is none."""
        for pid, command in processes(str(self.folder)).items():
            if f"-m {module}" in command and pid != self.pid:
                return pid
        return None

    def end(self, timeout_s=60):
        """Wait for the end; exit code, stdout and stderr."""
        try:
            out, err = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode, out, err
