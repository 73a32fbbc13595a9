"""Kernel logs: XIDs with host, GPU, process and time where a line tells them, and nothing else of the log."""

import json

import pytest
from flight_dumps import Job
from hypothesis import given
from hypothesis import strategies as st
from metric_texts import source

from starprof.analysis import diagnose
from starprof.importers.load import load
from starprof.importers.metrics import kernel_log
from starprof.model.xids import line_of

__all__ = ["source"]

SYSLOG = "Nov 30 11:53:41 n7 kernel: [ 812.5] NVRM: Xid (PCI:0000:18:00): 79, pid=4242, name=python, GPU is lost."
DMESG = "[  812.512345] NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
ISO = "2026-11-30T11:53:41,123456+00:00 n7 kernel: NVRM: Xid (PCI:0000:2A:00): 94, pid=1, name=x"
OLD = "[    5.000001] NVRM: Xid (0000:03:00): 14, Channel 00000001"


def read(source, *lines, name="kern.log"):
    file = source("\n".join(lines), name)
    assert kernel_log.recognises(file)
    return kernel_log.read([file])


@pytest.mark.parametrize(
    ("line", "host", "number", "detail", "timed"),
    [
        (SYSLOG, "n7", 79, "GPU 0000:18:00, process 4242", False),
        (DMESG, "", 79, "GPU 0000:18:00", False),
        (ISO, "n7", 94, "GPU 0000:2A:00, process 1", True),
        (OLD, "", 14, "GPU 0000:03:00", False),
    ],
)
def test_each_form_of_a_line_tells_what_it_holds(source, line, host, number, detail, timed):
    run = read(source, line)
    told = run.events.iloc[0]
    assert (told["kind"], told["value"], told["detail"]) == ("xid", number, detail)
    assert run.nodes["host"].tolist() == [host]
    assert (told["mono_ns"] is not None) == timed


def test_names_of_processes_are_not_kept(source):
    assert "python" not in read(source, SYSLOG).events.to_json()


def test_a_kernel_log_without_xids_says_so(source):
    run = read(source, "[    0.000001] Linux version 6", "[    0.000002] Command line: quiet")
    assert len(run.events) == 0
    assert "XIDs" in run.unavailable["source"].tolist()


def test_text_that_is_no_kernel_log_is_left_to_others(source):
    assert not kernel_log.recognises(source("step 1 loss 0.5\nstep 2 loss 0.4\n", "train.log"))


def test_alone_it_blames_nobody_and_says_what_the_numbers_mean(tmp_path):
    (tmp_path / "dmesg.txt").write_text(DMESG)
    verdict = diagnose(load([str(tmp_path)]))
    assert verdict.verdict == "inconclusive"
    assert "fell off the bus" in verdict.findings[0].evidence[0]
    assert verdict.findings[0].ranks == ()


def test_beside_a_training_log_its_xids_are_the_only_host_s(tmp_path):
    lines = [f"iteration {i}/ 100 | elapsed time per iteration (ms): {500 + i % 3} | lm loss: 1" for i in range(40)]
    (tmp_path / "train.log").write_text("\n".join(lines))
    (tmp_path / "dmesg.txt").write_text(DMESG)
    run = load([str(tmp_path)])
    assert run.events[run.events["kind"] == "xid"]["value"].tolist() == [79]


def test_xids_between_the_steps_of_a_training_log_have_the_step_before(tmp_path):
    lines = [f"iteration {i}/ 100 | elapsed time per iteration (ms): {500 + i % 3} | lm loss: 1" for i in range(40)]
    (tmp_path / "train.log").write_text("\n".join([*lines[:21], SYSLOG, *lines[21:]]))
    run = load([str(tmp_path)])
    told = run.events[run.events["kind"] == "xid"]
    assert told[["step", "value", "detail"]].values.tolist() == [[20, 79, "GPU 0000:18:00, process 4242"]]


def stopped(folder, hosts):
    """Dumps of four ranks, the last of which did not come to call 2."""
    job = Job({"0": [0, 1, 2, 3]}).call("0", 1, range(4), "completed").call("0", 2, (0, 1, 2), "scheduled")
    for rank in range(4):
        told = {**job.dump(rank), **({"hostname": hosts[rank]} if hosts else {})}
        (folder / f"dump_{rank}.json").write_text(json.dumps(told))
    (folder / "kern.log").write_text(SYSLOG)
    return diagnose(load([str(folder)]))


def test_beside_dumps_of_a_stopped_job_it_tells_what_the_driver_saw_on_the_missing_rank_s_host(tmp_path):
    verdict = stopped(tmp_path, ["n6", "n6", "n7", "n7"])
    (finding,) = verdict.findings
    assert (verdict.verdict, finding.ranks) == ("hang", (3,))
    assert any("XID 79 (the GPU fell off the bus) on n7" in line for line in finding.evidence)


@pytest.mark.parametrize("hosts", [["n7", "n7", "n6", "n6"], None])
def test_xids_of_another_host_or_where_no_host_is_told_say_nothing_of_the_missing_rank(tmp_path, hosts):
    (finding,) = stopped(tmp_path, hosts).findings
    assert finding.ranks == (3,)
    assert not any("XID 79" in line for line in finding.evidence)


@given(st.text())
def test_any_text_is_a_line_or_none(text):
    found = line_of(f"NVRM: Xid (PCI:0000:18:00): {text}")
    assert found is None or 0 <= found.number < 10_000
