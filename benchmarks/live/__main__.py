"""A thousand nodes on one server: how late verdicts are, and whether every record arrives.

    python benchmarks/live [--agents 1000] [--ranks 8] [--seconds 60] [--json]

Simulated agents do what real ones do on the wire: they prove themselves, describe their ranks, and once a second, each
at its own moment, stream a second's rows: a step of each rank, ten samples of each rank's process, of the node and of
two interfaces. The server is `starprof serve` with its watch and its ingesters; agents, server and watch share the
machine. Told are the time from the end of a step (all ranks end it together) to its verdict, as the watch measures it;
how long a rank that becomes twice as slow in the middle takes to be confirmed; and what of the rows is in the run file
at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import duckdb

from starprof.errors import StarprofError
from starprof.serve.ask import ask_local

SECRET = "a secret of the benchmark"
HERE = Path(__file__).parent
JOB = "bench"
BEGIN_AFTER_NS = 15_000_000_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--processes", type=int, default=2, help="that play the agents")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    _allow_descriptors()
    with tempfile.TemporaryDirectory() as folder:
        told = measure(Path(folder), given)
    if given.json:
        print(json.dumps(told))
    else:
        for name, value in told.items():
            print(f"{name:<28} {value}")
    return 0 if told["lost"] == 0 and told["twice"] == 0 else 1


def measure(folder: Path, given: argparse.Namespace) -> dict[str, object]:
    environment = {**os.environ, "STARPROF_TOKEN": SECRET}
    server = subprocess.Popen(
        [sys.executable, "-m", "starprof", "serve", str(folder), "--listen", "127.0.0.1:0"],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        address = server.stderr.readline().split(" on ")[1].split(",")[0]
        share = [given.agents * i // given.processes for i in range(given.processes + 1)]
        shared = (given.agents, given.ranks, given.seconds, time.monotonic_ns() + BEGIN_AFTER_NS)
        players = [
            subprocess.Popen(
                [sys.executable, str(HERE / "agents.py"), address, *map(str, (first, last, *shared))],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )
            for first, last in pairwise(share)
        ]
        seen = watch(folder, players, given)
        sent: dict[str, int] = {}
        for player in players:
            out, _ = player.communicate()
            for table, rows in json.loads(out).items():
                sent[table] = sent.get(table, 0) + rows
        cpu = processor_seconds(server.pid)
        run_file = folder / f"{JOB}.starprof"
        deadline_s = time.monotonic() + 300
        while (folder / f"{JOB}.starprof.spool").exists() and time.monotonic() < deadline_s:
            time.sleep(0.2)
        return {**seen, **cpu, **compared(run_file, sent)}
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(90)


def watch(folder: Path, players: list[subprocess.Popen[str]], given: argparse.Namespace) -> dict[str, object]:
    """Ask the server until the agents have ended; what it said at last, and when it confirmed the slow rank."""
    slow_step, slow_rank = given.seconds // 2, given.agents * given.ranks // 3
    told: dict[str, object] = {}
    confirmed = None
    late: set[int] = set()
    while any(player.poll() is None for player in players):
        time.sleep(1.0)
        try:
            answer = ask_local(folder, {"do": "live", "ranks": 4, "job": JOB})
        except StarprofError:
            continue
        if answer.get("ok") and answer["latency_s"]:
            told = {"ranks": answer["world_size"], "step": answer["step"], "late_rows": answer["late_rows"]}
            told |= {f"verdict_{name}_s": value for name, value in answer["latency_s"].items()}
            late = {rank["rank"] for rank in answer["ranks"] if rank["state"] == "confirmed"}
            if slow_rank in late and confirmed is None:
                confirmed = answer["step"] - slow_step + 1
    return {**told, "confirmed_after_steps": confirmed, "wrong_ranks": len(late - {slow_rank})}


def processor_seconds(server: int) -> dict[str, float]:
    """CPU time of the server's processes so far."""
    found = {}
    ticks = os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    for pid in [server, *map(int, children)]:
        command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        name = "watch" if "starprof.serve" in command else "ingest" if "ingest" in command else "server"
        found[f"{name}_cpu_s"] = (int(fields[11]) + int(fields[12])) / ticks
        rss = Path(f"/proc/{pid}/statm").read_text().split()[1]
        found[f"{name}_mb"] = round(int(rss) * resource.getpagesize() / 1e6)
    return found


def compared(run_file: Path, sent: dict[str, int]) -> dict[str, object]:
    """Rows sent and found; twice and gaps are what must not be."""
    lost = twice = total = 0
    with duckdb.connect(str(run_file), read_only=True) as connection:
        for table, rows in sent.items():
            found = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            total += found
            lost += max(0, rows - found)
            twice += max(0, found - rows)
        gaps = connection.execute("SELECT count(*) FROM gap").fetchone()[0]
    return {
        "rows": total,
        "lost": lost,
        "twice": twice,
        "gaps": gaps,
        "run_mb": round(run_file.stat().st_size / 1e6, 1),
    }


def _allow_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if soft < hard else soft, hard))


if __name__ == "__main__":
    sys.exit(main())
