"""The live view: fits every terminal, shows no name as it pleases, and answers as text, JSON and metrics."""

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from serve_parts import describe_ranks, own_times, spool_in, step_frame

from starprof.cli import main
from starprof.reports.live import columns_of, render
from starprof.reports.terminal import Terminal
from starprof.serve import openmetrics
from starprof.serve.http import MetricsServer
from starprof.serve.jobwatch import JobWatch
from starprof.serve.view import describe
from starprof.spool.segment import SegmentWriter

EVIL = '\x1b[2Jevil\u202e\u200bhöst日本"\\\n'
WORLD = 6


@pytest.fixture
def watched(tmp_path):
    """A watch of a job with a slow rank on a host of a hostile name."""
    spool = spool_in(tmp_path)
    writer = SegmentWriter(spool.segments, "n0")
    writer.write(describe_ranks(WORLD, host=EVIL + "{}"))
    slow = {4: {"slow_from": 200}}
    writer.write([step_frame(rank, 0, own_times(400, seed=rank, **slow.get(rank, {}))) for rank in range(WORLD)])
    watch = JobWatch(spool)
    watch.poll(time.monotonic())
    yield watch
    watch.close()
    writer.close()


def width_of(line):
    return sum(columns_of(character) for character in line)


@pytest.mark.parametrize("width", [1, 20, 33, 47, 80, 200])
def test_every_line_fits(watched, width):
    told = describe(watched, EVIL, time.monotonic())
    text = render(told, Terminal(width))
    assert max(width_of(line) for line in text.splitlines()) <= max(width, 20)
    assert "confirmed" in text
    assert "4" in text


def test_names_can_not_drive_the_terminal(watched):
    told = describe(watched, EVIL, time.monotonic())
    told["advisor"] = {"phase": EVIL, "notes": [{"at_s": 1, "stage": EVIL, "mode": None, "reason": EVIL}, 7]}
    text = render(told, Terminal(120))
    assert not {"\x1b", "\u202e", "\u200b"} & set(text)
    assert render(told, Terminal(120, encoding="ascii")).isascii()
    assert "\x1b[" in render(told, Terminal(120, color=True))


def test_short_terminal_gets_the_worst_ranks(watched):
    text = render(describe(watched, "run", time.monotonic()), Terminal(80), height=15)
    assert "... and 5 more ranks" in text
    assert "confirmed" in text


def test_metrics_can_be_read_back(watched):
    text = openmetrics.text({EVIL: watched}, time.monotonic())
    assert text.endswith("# EOF\n")
    assert "\x1b" in text  # a label may hold anything but a bare quote, backslash or line break
    lines = [line for line in text.split("\n") if line and not line.startswith("#")]
    assert all(line.count(" ") >= 1 and line.rpartition("} ")[1] for line in lines)
    plain = openmetrics.text({"run": watched}, time.monotonic()).replace(EVIL.replace("\n", ""), "h")
    names = {line.partition("{")[0] for line in plain.split("\n") if line and not line.startswith("#")}
    assert {"starprof_ranks", "starprof_step", "starprof_late_ranks", "starprof_rank_slowdown_ratio"} <= names


@pytest.mark.parametrize(("shown", "status"), [(None, 401), ("wrong", 401), ("right", 200)])
def test_elsewhere_the_reader_shows_a_token(shown, status):
    async def get():
        server = MetricsServer(("0.0.0.0", 0), lambda: "# EOF\n", "right")
        _, port = await server.start()
        request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics")
        if shown:
            request.add_header("Authorization", f"Bearer {shown}")

        def fetch():
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return answer.status
            except urllib.error.HTTPError as error:
                with error:
                    return error.code

        try:
            return await asyncio.to_thread(fetch)
        finally:
            server.close()

    assert asyncio.run(get()) == status


def test_verb_asks_the_server_beside_the_job(watched, tmp_path, capsys):
    root = watched.spool.root
    process = subprocess.Popen([sys.executable, "-m", "starprof.serve", str(root)], env=os.environ)
    try:
        deadline_s = time.monotonic() + 60
        while main(["live", str(tmp_path / "run.starprof"), "--once", "--json"]) or '"step": 399' not in (
            out := capsys.readouterr().out
        ):
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        told = json.loads(out)
        assert (told["schema"], told["ranks"][0]["rank"], told["verdict"]["verdict"]) == (1, 4, "straggler")
        assert main(["live", str(root), "--once", "--job", "another"]) == 1
        assert "there is no job 'another'" in capsys.readouterr().err
        assert main(["live", str(root), "--once"]) == 0
        assert "confirmed" in capsys.readouterr().out
        assert root.joinpath("live.sock").stat().st_mode & 0o077 == 0
    finally:
        process.terminate()
        assert process.wait(60) == 0
    assert main(["live", str(root), "--once"]) == 1
    assert "no server listens" in capsys.readouterr().err
