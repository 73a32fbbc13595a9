"""`starprof record -- CMD`: to the outside world it is the job itself, with a run file as a by-product."""

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launch_lab import processes

PYTHON = sys.executable


@pytest.mark.parametrize("code", [0, 3, 255])
def test_exit_code_is_the_jobs(launch, code):
    assert launch("-o", "run", "--", "sh", "-c", f"exit {code}").end()[0] == code


def test_job_ended_by_a_signal_gives_128_plus_its_number(launch):
    assert launch("-o", "run", "--", "sh", "-c", "kill -KILL $$").end()[0] == 128 + signal.SIGKILL


def test_os_exit_in_the_job_is_passed_on(launch):
    assert launch("-o", "run", "--", PYTHON, "-c", "import os; os._exit(7)").end()[0] == 7


def test_everything_behind_the_dashes_goes_to_the_job(launch):
    words = ["--rate", "x", "-o", "--", "--force", "a b", "", "*"]
    code, out, _ = launch("-o", "run", "--", PYTHON, "-c", "import sys; print(sys.argv[1:])", *words).end()
    assert (code, out) == (0, f"{words}\n")


def test_job_has_the_standard_streams_to_itself(launch):
    recording = launch("-o", "run", "--", "sh", "-c", "cat; echo err >&2", stdin=subprocess.PIPE)
    out, err = recording.process.communicate("from stdin\n", timeout=60)
    assert out == "from stdin\n"
    assert err.startswith("err\n")


def test_job_shares_our_process_group(launch):
    code, out, _ = launch("-o", "run", "--", PYTHON, "-c", "import os; print(os.getpgrp(), os.getppid())").end()
    group, parent = map(int, out.split())
    assert code == 0
    assert group == os.getpgrp()
    assert parent not in (0, 1)


def test_job_has_the_signal_mask_and_handlers_that_we_were_given(launch):
    code = "import signal as s; print(sorted(s.pthread_sigmask(s.SIG_BLOCK, [])), int(s.getsignal(s.SIGHUP)))"
    _, out, _ = launch("-o", "run", "--", PYTHON, "-c", code, prefix=("nohup",)).end()
    assert out.strip().endswith("[] 1")


def test_job_inherits_open_descriptors(launch):
    """MPI and make talk to their children through descriptors."""
    reader, writer = os.pipe()
    try:
        launch("-o", "run", "--", PYTHON, "-c", f"import os; os.write({writer}, b'through')", pass_fds=(writer,)).end()
        os.close(writer)
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)


def test_script_without_an_interpreter_line_runs_as_in_a_shell(launch, tmp_path):
    script = tmp_path / "job.sh"
    script.write_text("exit 5\n")
    script.chmod(0o755)
    assert launch("-o", "run", "--", "./job.sh").end()[0] == 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT])
def test_signal_to_the_recorder_reaches_the_job_once(launch, tmp_path, query, number):
    script = f"""
import signal, sys, time
got = []
signal.signal({int(number)}, lambda n, _: got.append(n))
print("ready", flush=True)
deadline = time.time() + 30
while not got and time.time() < deadline: time.sleep(0.01)
time.sleep(0.3)
print(got, flush=True)
sys.exit(9)
"""
    recording = launch("-o", "run", "--", PYTHON, "-c", script)
    assert recording.process.stdout.readline() == "ready\n"
    os.kill(recording.pid, number)
    code, out, _ = recording.end()
    assert (code, out) == (9, f"[{int(number)}]\n")
    rows = query(tmp_path / "run.starprof", "SELECT value, detail FROM event WHERE kind = 'signal'")
    assert rows == [(int(number), number.name)]


def test_job_that_dies_of_the_forwarded_signal_ends_us_with_its_code(launch):
    recording = launch("-o", "run", "--", "sh", "-c", "echo ready; exec sleep 60")
    assert recording.process.stdout.readline() == "ready\n"
    os.kill(recording.pid, signal.SIGTERM)
    assert recording.end()[0] == 128 + signal.SIGTERM


def test_ctrl_c_reaches_the_job_once_and_stops_a_calling_script(launch, tmp_path):
    """The terminal signals the whole group; the shell that called us sees a death by SIGINT and stops too."""
    job = tmp_path / "job.py"
    job.write_text(
        "import time\n"
        "print('ready', flush=True)\n"
        "try: time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    try: time.sleep(0.3)\n"
        "    except KeyboardInterrupt: print('twice', flush=True)\n"
        "    raise\n"
    )
    script = tmp_path / "script.sh"
    script.write_text(f"cd {tmp_path}\n{PYTHON} -m starprof record -o run -- {PYTHON} job.py\necho went on\n")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp("bash", ["bash", str(script)])
    seen = b""
    try:
        while b"ready" not in seen:
            seen += os.read(terminal, 4096)
        os.write(terminal, b"\x03")
        while True:
            try:
                data = os.read(terminal, 4096)
            except OSError:  # the terminal's other side is closed: all have left
                break
            seen += data
    finally:
        os.close(terminal)
        status = os.waitpid(pid, 0)[1]
    assert os.waitstatus_to_exitcode(status) == -signal.SIGINT
    assert b"wrote run.starprof" in seen
    assert b"twice" not in seen
    assert b"went on" not in seen


def test_nothing_is_left_behind_but_the_run_file(launch, tmp_path):
    launch("-o", "run", "--", "true").end()
    assert [p.name for p in tmp_path.iterdir()] == ["run.starprof"]
    assert processes(str(tmp_path)) == {}


def test_run_row_tells_command_and_exit_code(launch, tmp_path, query):
    launch("-o", "my run", "--", "sh", "-c", "exit 4").end()
    ((name, command, code, took),) = query(
        tmp_path / "my run.starprof", "SELECT name, command, exit_code, ended_unix_ns - started_unix_ns FROM run"
    )
    assert (name, command, code) == ("my run", "sh -c 'exit 4'", 4)
    assert took > 0


def test_says_what_was_written_and_what_to_do_next_on_stderr(launch):
    _, out, err = launch("-o", "run", "--", "true").end()
    assert out == ""
    assert "starprof: wrote run.starprof (0 ranks, 0 steps)" in err
    assert "no step boundary seen" in err


def test_default_name_is_script_and_time(launch, tmp_path):
    (tmp_path / "train_net.py").write_text("")
    launch("--", PYTHON, "train_net.py", "--lr", "3").end()
    (run,) = tmp_path.glob("*.starprof")
    assert re.fullmatch(r"train_net-\d{8}-\d{6}\.starprof", run.name)


def test_names_take_host_rank_and_job(launch, tmp_path):
    env = {"SLURM_JOB_ID": "77", "SLURM_NODEID": "2"}
    launch("-o", "{job}-{rank}", "--", "true", env=env).end()
    assert (tmp_path / "77-2.starprof").exists()


def test_node_rank_of_the_cluster_is_the_node_id(launch):
    code, out, _ = launch("-o", "run", "--", "sh", "-c", "echo $STARPROF_NODE", env={"SLURM_NODEID": "2"}).end()
    assert (code, out) == (0, "2\n")


def test_nothing_listens_unless_asked_for(launch, tmp_path):
    recording = launch("-o", "run", "--", "sh", "-c", "echo ready; sleep 1")
    recording.process.stdout.readline()
    fds = {os.readlink(p) for p in os.scandir(f"/proc/{recording.pid}/fd")}
    assert not any(target.startswith("socket:") for target in fds)
    recording.end()


def test_recorder_stays_small(launch):
    """Only what the supervisor needs: neither the command line's nor the store's libraries."""
    recording = launch("-o", "run", "--", "sh", "-c", "echo ready; sleep 1")
    recording.process.stdout.readline()
    maps = Path(f"/proc/{recording.pid}/maps").read_text()
    assert not re.search(r"duckdb|pyarrow|numpy|pandas|torch|libssl|libcrypto", maps)
    recording.end()


def test_a_file_that_its_step_records_alone_make_too_large_is_told(launch):
    code, _, said = launch("-o", "run", "--max-size", "4K", "--", "true").end()
    assert code == 0
    assert "more than the 0.00391M of --max-size" in said


def test_a_run_without_steps_is_no_healthy_run(launch, tmp_path):
    launch("-o", "run", "--", "true").end()
    summary = subprocess.run(
        [sys.executable, "-m", "starprof", "summary", "run.starprof"], cwd=tmp_path, capture_output=True, text=True
    )
    assert summary.returncode == 1
    assert "no step" in summary.stdout.lower()
