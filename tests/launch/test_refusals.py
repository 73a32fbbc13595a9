"""What can't be recorded is one clear line before the job starts, and the job is not started."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest
from launch_lab import wait_for

PYTHON = sys.executable


def refused(recording, *, code=1):
    """End a recording that must not have run its job; its one line."""
    returned, out, err = recording.end()
    assert (returned, out) == (code, "")
    (line,) = err.splitlines()
    assert line.startswith("starprof: ")
    return line


JOB = ("--", "sh", "-c", "echo ran")


def test_existing_file_is_not_overwritten(launch, tmp_path):
    (tmp_path / "run.starprof").write_text("precious")
    assert "--force" in refused(launch("-o", "run", *JOB))
    assert [p.name for p in tmp_path.iterdir()] == ["run.starprof"]
    assert (tmp_path / "run.starprof").read_text() == "precious"


def test_force_overwrites(launch, tmp_path, query):
    (tmp_path / "run.starprof").write_text("old")
    assert launch("-o", "run", "--force", *JOB).end()[0] == 0
    assert query(tmp_path / "run.starprof", "SELECT exit_code FROM run") == [(0,)]


def test_missing_command(launch):
    assert "'no-such-program' was not found" in refused(launch("--", "no-such-program"), code=2)


def test_command_that_may_not_be_executed(launch, tmp_path):
    (tmp_path / "job.sh").write_text("exit 0\n")
    assert "not executable" in refused(launch("-o", "run", "--", "./job.sh"), code=2)


def test_broken_interpreter_line_leaves_nothing_behind(launch, tmp_path):
    script = tmp_path / "job.sh"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    assert "can't start './job.sh'" in refused(launch("-o", "run", "--", "./job.sh"))
    assert [p.name for p in tmp_path.iterdir()] == ["job.sh"]


def test_folder_that_can_not_be_made(launch, tmp_path):
    (tmp_path / "file").write_text("")
    assert "can't record in" in refused(launch("-o", "file/run", *JOB))


def test_folder_that_is_missing_is_made(launch, tmp_path):
    assert launch("-o", "runs/today/run", *JOB).end()[0] == 0
    assert (tmp_path / "runs/today/run.starprof").exists()


def test_name_that_is_a_folder(launch, tmp_path):
    (tmp_path / "runs").mkdir()
    assert "give a file name" in refused(launch("-o", "runs", *JOB), code=2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rate", "0"), "sampling rate"),
        (("--rate", "5000"), "sampling rate"),
        (("--max-size", "big"), "not a size"),
        (("--listen", "127.0.0.1"), "HOST:PORT"),
        (("--listen", "127.0.0.1:0", "--join", "127.0.0.1:1"), "one of them"),
        (("--listen", "127.0.0.1:0", "--node-rank", "1"), "node 0"),
        (("--join", "127.0.0.1:1"), "secret"),
        (("--join", "127.0.0.1:1", "--token-file", "missing"), "does not exist"),
        (("-o", "{job}"), "{job} in the file name is not known"),
    ],
)
def test_arguments_that_make_no_sense(launch, arguments, said):
    assert said in refused(launch(*arguments, *JOB), code=2)


def test_second_recorder_on_one_file_names_the_first(launch):
    first = launch("-o", "run", "--", "sh", "-c", "echo ready; cat; exit 6", stdin=subprocess.PIPE)
    first.process.stdout.readline()
    line = refused(launch("-o", "run", *JOB))
    assert f"is being recorded by process {first.pid}" in line
    assert "being recorded" in refused(launch("-o", "run", "--force", *JOB))
    assert first.end()[0] == 6


def test_file_can_be_recorded_again_after_the_first_recorder_was_killed(launch, tmp_path):
    first = launch("-o", "run", "--", "sh", "-c", "echo ready; sleep 30")
    first.process.stdout.readline()
    first.process.kill()
    first.process.wait()
    assert "starprof summary" in refused(launch("-o", "run", *JOB))
    assert launch("-o", "run", "--force", *JOB).end()[0] == 0


@pytest.mark.root
def test_read_only_folder(launch, tmp_path):
    """Root may write everywhere, so the folder is on a file system that is mounted read-only."""
    with mounted(tmp_path / "ro", "size=20m,ro"):
        line = refused(launch("-o", tmp_path / "ro" / "run", *JOB))
    assert f"can't record in {tmp_path}/ro: Read-only file system" in line


@pytest.mark.root
def test_disk_that_is_full_already(launch, tmp_path):
    with mounted(tmp_path / "small", "size=1m") as folder:
        line = refused(launch("-o", folder / "run", *JOB))
        assert "No space left on device" in line
        assert list(folder.iterdir()) == []


@pytest.mark.root
def test_disk_that_fills_up_during_the_job_does_not_hurt_it(launch, tmp_path):
    with mounted(tmp_path / "small", "size=10m") as folder:
        job = "trap '' USR1; echo ready; read go; echo done; exit 3"
        recording = launch("-o", folder / "run", "--", "sh", "-c", job, stdin=subprocess.PIPE)
        recording.process.stdout.readline()
        fill(folder / "hog")
        os.kill(recording.pid, signal.SIGUSR1)  # makes a row, for which there is no room
        time.sleep(1.5)  # and so does every second of the agent
        recording.process.stdin.write("go\n")
        recording.process.stdin.flush()
        code, out, err = recording.end()
        assert (code, out) == (3, "done\n")
        assert "No space left on device" in err
        assert "`starprof summary" in err


def fill(path):
    """Take all the room that is left."""
    with path.open("wb", buffering=0) as hog, contextlib.suppress(OSError):
        while True:
            hog.write(b"\0" * 4096)


class mounted:
    """A tmpfs of its own."""

    def __init__(self, folder, options):
        self.folder = folder
        self.options = options

    def __enter__(self):
        self.folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", self.options, "tmpfs", self.folder], check=True)
        return self.folder

    def __exit__(self, *error):
        wait_for(lambda: subprocess.run(["umount", self.folder], capture_output=True).returncode == 0, what="umount")
