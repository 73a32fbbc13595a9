"""`starprof analyze` from end to end: verdict, exit code, what is written, and what is shown of hostile names."""

import gzip
import json
import os
import subprocess
import sys
import tarfile

import pytest

from starprof import cli

ESCAPE = "\x1b]0;owned\x07\x1b[31m"


def mllog(seconds):
    def line(key, value):
        return ":::MLLOG " + json.dumps({"namespace": "", "time_ms": 0, "key": key, "value": value, "metadata": {}})

    steps = [line("tracked_stats", {"train_step_time": s}) for s in seconds]
    return "\n".join([line("global_batch_size", 16), *steps]) + "\n"


def smi():
    rows = [f"{g}, 99 %, {150 if g == 2 else 300} W" for _ in range(20) for g in range(4)]
    return "\n".join(["index, utilization.gpu [%], power.draw [W]", *rows]) + "\n"


@pytest.fixture
def logs(tmp_path):
    """A folder with a log of steps and a file of metrics."""
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "result.txt").write_text(mllog([2.5 + 0.01 * (i % 5) for i in range(60)]))
    (folder / "gpus.csv").write_text(smi())
    return folder


@pytest.fixture
def analyze(capsys):
    """Run the verb in this process: exit code, stdout, stderr."""

    def run(*args):
        code = cli.main(["analyze", *map(str, args)])
        return (code, *capsys.readouterr())

    return run


def test_json_is_exactly_the_verdict(logs, analyze):
    code, out, err = analyze(logs / "result.txt", "--json")
    assert code == 0
    verdict = json.loads(out)
    assert verdict["schema"] == 1
    assert verdict["steps"] == [0, 59]
    assert out == json.dumps(verdict, indent=2) + "\n"
    assert err == "starprof: read as mllog\n" or err.startswith("starprof: read as mllog;")


def test_log_and_metrics_of_a_folder_are_read_together(logs, analyze):
    code, out, err = analyze(logs, "--json")
    assert code == 0
    assert "read as mllog, nvidia-smi" in err
    assert json.loads(out)["steps"] == [0, 59]


def test_metrics_alone_are_inconclusive_with_evidence(logs, analyze):
    code, out, _ = analyze(logs / "gpus.csv", "--json")
    verdict = json.loads(out)
    assert (code, verdict["verdict"], verdict["steps"]) == (0, "inconclusive", None)
    assert "GPU 2" in verdict["findings"][0]["evidence"][0]
    assert verdict["findings"][0]["ranks"] == []


@pytest.mark.parametrize("name", ["result.txt", "gpus.csv"])
def test_kept_run_gives_the_same_verdict(logs, analyze, capsys, tmp_path, name):
    code, out, err = analyze(logs / name, "--json", "-o", tmp_path / "kept")
    assert code == 0
    assert f"Wrote {tmp_path}/kept.starprof" in err
    kept = cli.main(["summary", str(tmp_path / "kept.starprof"), "--json"])
    verdict = json.loads(capsys.readouterr().out)
    assert verdict == json.loads(out)
    assert kept == (0 if verdict["steps"] else 1)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_html_page_is_written_whole(logs, analyze, tmp_path):
    code, _, err = analyze(logs, "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert code == 0
    assert f"Wrote {tmp_path}/page.html" in err
    assert page.lower().startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")


def test_html_page_of_metrics_without_ranks_is_written(logs, analyze, tmp_path):
    assert analyze(logs / "gpus.csv", "--html", tmp_path / "page.html")[0] == 0
    assert "GPU 2" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("option", ["-o", "--html"])
def test_existing_file_is_kept_unless_forced(logs, analyze, tmp_path, option):
    target = tmp_path / "there.starprof"
    target.write_text("mine")
    code, out, err = analyze(logs, option, target)
    assert (code, out) == (2, "")
    assert "--force" in err
    assert target.read_text() == "mine"
    assert analyze(logs, option, target, "--force")[0] == 0
    assert target.read_bytes() != b"mine"


def test_existing_run_is_kept_when_the_input_is_bad(analyze, tmp_path):
    target, bad = tmp_path / "there.starprof", tmp_path / "bad.txt"
    target.write_text("mine")
    bad.write_text("nothing of any format\n")
    code, out, err = analyze(bad, "-o", target, "--html", tmp_path / "page.html", "--force")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert target.read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.txt", "there.starprof"]


def test_run_that_cannot_be_written_leaves_nothing(logs, analyze, tmp_path, monkeypatch):
    from starprof.errors import RunFileError
    from starprof.store import save

    def full(run, path):
        path.write_text("half")
        raise RunFileError(f"{path}: no space left")

    monkeypatch.setattr(save, "save_run", full)
    code, _, err = analyze(logs, "-o", tmp_path / "run")
    assert code == 1
    assert err.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["logs"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\x00\x01\x02" * 100, "no known format"),
        (b"just words\n", "no known format"),
        (gzip.compress(b"x" * 999)[:-9], "cut off or damaged"),
        (b"\x1f\x8b\x08", "cut off or damaged"),
        (b"[" * 1_000_000, "no known format"),
        (b":::MLLOG {", ""),
    ],
    ids=["empty", "binary", "text", "cut gzip", "gzip header", "nested", "cut log"],
)
def test_bad_input_is_one_line_and_exit_code_1(analyze, tmp_path, content, said):
    (tmp_path / "input").write_bytes(content)
    code, out, err = analyze(tmp_path / "input")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert said in err


@pytest.mark.parametrize(
    "args", [(), ("x", "--format", "nonsense"), ("x", "--no-such-option"), ("x", "-o", "/no/such/run")]
)
def test_wrong_call_is_exit_code_2(analyze, args):
    assert analyze(*args)[0] == 2


def test_missing_path_is_exit_code_1(analyze, tmp_path):
    code, _, err = analyze(tmp_path / "gone")
    assert (code, err) == (1, f"starprof: {tmp_path}/gone does not exist\n")


def test_format_that_is_named_is_taken(logs, analyze):
    assert analyze(logs / "gpus.csv", "--format", "nvidia-smi", "--json")[0] == 0
    code, _, err = analyze(logs / "gpus.csv", "--format", "mllog")
    assert (code, err.count("\n")) == (1, 1)


def test_names_with_terminal_escapes_are_shown_as_text(logs, analyze, tmp_path):
    (logs / f"left{ESCAPE}over.bin").write_bytes(b"\x00\x01")
    (logs / "gpus.csv").rename(logs / f"g{ESCAPE}pus.csv")
    with tarfile.open(tmp_path / f"a{ESCAPE}.tar", "w") as archive:
        archive.add(logs, arcname=f"in{ESCAPE}side")
    for path in (logs, tmp_path / f"a{ESCAPE}.tar", logs / f"left{ESCAPE}over.bin", logs / f"none{ESCAPE}"):
        for form in ((), ("--json",)):
            _, out, err = analyze(path, *form)
            assert "\x1b" not in out + err
            assert "\x07" not in out + err


def test_values_with_escapes_and_markup_are_shown_as_text(analyze, tmp_path):
    name = f"{ESCAPE}<script>alert(1)</script>"
    rows = [f"{g}, GPU-{g}{name}, {name}, 99 %, {150 if g == 2 else 300} W" for _ in range(20) for g in range(4)]
    (tmp_path / "gpus.csv").write_text("\n".join(["index, uuid, name, utilization.gpu [%], power.draw [W]", *rows]))
    code, out, err = analyze(tmp_path / "gpus.csv", "--html", tmp_path / "page.html")
    assert code == 0
    assert "\x1b" not in out + err
    assert "<script>alert" not in (tmp_path / "page.html").read_text()


def test_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    done = subprocess.run(
        [sys.executable, "-m", "starprof", "analyze", str(tmp_path / "pipe")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "neither a file nor a folder" in done.stderr


def test_several_paths_are_one_run(logs, analyze):
    code, _, err = analyze(logs / "result.txt", logs / "gpus.csv", "--json")
    assert code == 0
    assert "read as mllog, nvidia-smi" in err


def test_what_nobody_reads_is_named(logs, analyze):
    (logs / "notes.bin").write_bytes(b"\x00\x01")
    (logs / "empty.log").write_bytes(b"")
    assert "not read: empty.log (empty), notes.bin" in analyze(logs, "--json")[2]


@pytest.fixture
def two_jobs(tmp_path):
    """A folder with two jobs."""
    folder = tmp_path / "runs"
    folder.mkdir()
    for name, stalled in (("calm", ()), ("stalled", (20, 41))):
        seconds = [5.0 if i in stalled else 2.5 + 0.01 * (i % 5) for i in range(60)]
        (folder / f"{name}.mllog").write_text(mllog(seconds))
    return folder


def test_several_jobs_are_an_overview_and_then_each_ones_findings(two_jobs, analyze):
    code, out, _ = analyze(two_jobs)
    assert code == 0
    overview, *each = out.split("\n---")
    assert overview.splitlines()[0] == "2 jobs"
    assert [line.split()[0] for line in overview.splitlines()[1:]] == ["calm", "stalled"]
    assert ["1 of 2" in each[0], "2 of 2" in each[1]] == [True, True]


def test_json_of_several_jobs_is_the_documented_envelope(two_jobs, analyze):
    (two_jobs / "README").write_text("nothing\n")
    code, out, _ = analyze(two_jobs, "--json")
    found = json.loads(out)
    assert (code, found["schema"]) == (0, 1)
    assert [job["name"] for job in found["jobs"]] == ["calm", "stalled"]
    assert [job["verdict"]["verdict"] for job in found["jobs"]] == ["none", "inconclusive"]
    assert found["jobs"][0]["files"] == [str(two_jobs / "calm.mllog")]
    assert [left["file"].rpartition("/")[2] for left in found["not_read"]] == ["README"]


def test_each_of_several_jobs_is_what_it_is_alone(two_jobs, analyze):
    together = json.loads(analyze(two_jobs, "--json")[1])["jobs"][0]["verdict"]
    assert together == json.loads(analyze(two_jobs / "calm.mllog", "--json")[1])


def test_several_jobs_get_a_run_file_and_a_page_each(two_jobs, analyze, tmp_path):
    code, _, _ = analyze(two_jobs, "-o", tmp_path / "run", "--html", tmp_path / "page.html")
    assert code == 0
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == [
        "page-calm.html",
        "page-stalled.html",
        "page.html",
        "run-calm.starprof",
        "run-stalled.starprof",
    ]
    page = (tmp_path / "page.html").read_text()
    assert 'href="page-stalled.html"' in page
    assert "<script" not in page


def test_nothing_is_written_when_one_of_the_files_is_there(two_jobs, analyze, tmp_path):
    (tmp_path / "run-stalled.starprof").write_text("mine")
    code, out, err = analyze(two_jobs, "-o", tmp_path / "run")
    assert (code, out) == (2, "")
    assert "run-stalled.starprof exists" in err
    assert not (tmp_path / "run-calm.starprof").exists()


def test_hostile_names_of_jobs_stay_inert(tmp_path, analyze):
    folder = tmp_path / "runs"
    folder.mkdir()
    for name in (f"{ESCAPE}a", "<b>&amp;", "..", "....csv"):
        (folder / f"{name}.mllog").write_text(mllog([2.5] * 20))
    code, out, _ = analyze(folder, "-o", tmp_path / "run", "--html", tmp_path / "page.html")
    assert code == 0
    assert "\x1b" not in out
    assert "<b>" not in (tmp_path / "page.html").read_text()
    assert all(p.parent == tmp_path for p in tmp_path.rglob("run-*"))


def test_baseline_says_how_much_slower_a_run_is(tmp_path, analyze):
    (tmp_path / "slow.mllog").write_text(mllog([5.0 + 0.01 * (i % 5) for i in range(60)]))
    (tmp_path / "good.mllog").write_text(mllog([2.5 + 0.01 * (i % 5) for i in range(60)]))
    code, out, _ = analyze(tmp_path / "slow.mllog", "--baseline", tmp_path / "good.mllog", "--json")
    verdict = json.loads(out)
    assert code == 0
    assert verdict["findings"][0]["kind"] == "uniform"
    assert 1.9 < verdict["findings"][0]["slowdown"] < 2.1
    assert verdict["findings"][0]["ranks"] == []


def test_kept_runs_are_compared_with_kept_baselines(tmp_path, analyze, capsys):
    for name, seconds in (("slow", 5.0), ("good", 2.5)):
        (tmp_path / f"{name}.mllog").write_text(mllog([seconds + 0.01 * (i % 5) for i in range(60)]))
        assert analyze(tmp_path / f"{name}.mllog", "-o", tmp_path / name)[0] == 0
    slow, good = (str(tmp_path / f"{name}.starprof") for name in ("slow", "good"))
    assert cli.main(["summary", slow, "--baseline", good, "--json"]) == 0
    assert "1.99 times slower" in json.loads(capsys.readouterr().out)["reason"]
    assert cli.main(["report", slow, "--baseline", good, "-o", str(tmp_path / "r.html")]) == 0
    assert "1.99 times" in (tmp_path / "r.html").read_text()


def test_baseline_without_step_times_is_one_clear_line(tmp_path, logs, analyze):
    code, out, err = analyze(logs / "result.txt", "--baseline", logs / "gpus.csv")
    assert (code, out) == (1, "")
    assert "holds no run with step times" in err


def test_stalls_beside_a_calm_run_are_told_not_to_be_the_programs_own(two_jobs, analyze):
    stalled = json.loads(analyze(two_jobs, "--json")[1])["jobs"][1]["verdict"]
    assert "sibling run calm" in stalled["reason"]
