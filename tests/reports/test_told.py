"""Sentences about imported runs: no waiting where nobody waits, no habit in one moment, no ranks where links are."""

import numpy as np
import pandas as pd
import pytest

from starprof.analysis import diagnose
from starprof.importers.load import load
from starprof.reports import told
from starprof.reports.html import render as page
from starprof.reports.material import Material
from starprof.reports.sections import heatmap
from starprof.reports.terminal import Terminal, render


@pytest.fixture
def shown(tmp_path):
    """Write a text to a file, analyze it, and give what is printed, on one line."""

    def show(name, text):
        (tmp_path / name).write_text(text)
        run = load([str(tmp_path / name)])
        verdict = diagnose(run)
        return " ".join(render(run, verdict, Terminal(width=110)).split()), page(run, verdict)

    return show


def worker_table(unit="_ms"):
    rows = [f"{w},{s},{300.5 + 200 * (w == 3) + s % 5}" for s in range(40) for w in range(5)]
    return f"worker,step,step_time{unit}\n" + "\n".join(rows)


def test_workers_that_do_not_wait_make_nobody_s_steps_slower(shown):
    terminal, html = shown("times.csv", worker_table())
    assert "rank 3 needs 1.66\N{MULTIPLICATION SIGN} as long for every step as the others" in terminal
    assert "of what all of them could do is lost" in terminal
    assert "its own steps get 1.66\N{MULTIPLICATION SIGN} faster" in terminal
    assert "slower: " not in terminal
    assert "as long as the others&#x27; steps" in html


def test_times_without_a_unit_are_no_milliseconds_in_the_heatmap(tmp_path):
    (tmp_path / "times.csv").write_text(worker_table(unit=""))
    run = load([str(tmp_path / "times.csv")])
    (own,) = heatmap.render(Material(run, diagnose(run))).chart["views"]
    assert own["about"] == "of own work, in the unit of the source"
    assert own["low"] == pytest.approx(300.5, abs=3)
    assert own["high"] > 502


def test_a_node_that_is_not_told_is_not_called_n0(shown):
    terminal, _ = shown("times.csv", worker_table())
    assert "n0" not in terminal


def test_one_value_a_rank_is_no_habit(shown):
    header = "Step,Type,Index,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble"
    rows = [
        f",rank,{r},80000,{400000 - 300000 * (r == 1)},5000,405000,{900000 + 300000 * (r == 1)},1400000,0"
        for r in range(4)
    ]
    terminal, html = shown("cluster_step_trace_time.csv", "\n".join([header, *rows]))
    assert "rank 1 makes the mean step" in terminal
    assert "chronic" not in terminal
    assert ">chronic<" not in html
    assert "one value each" in terminal


def test_tests_of_links_are_about_places(shown):
    hosts = ("n1", "n2", "n3", "n4")
    rows = [f"{a},{b},{90.5 if 'n3' in (a, b) else 180.25}" for a in hosts for b in hosts if a < b]
    terminal, html = shown("pairs.csv", "host_a,host_b,busbw_GB/s\n" + "\n".join(rows))
    assert "node n3 is slower than the others: nic-bandwidth" in terminal
    assert "6 tests between 4 places" in terminal
    assert "6 tests between 4 places" in html
    assert "0 ranks" not in terminal


def test_counters_alone_are_of_gpus_and_hosts(shown):
    rows = [f" 20260131 10:30:{t:02d} {g} {300 - g} 65 - 99" for t in range(8) for g in range(3)]
    terminal, _ = shown("dmon.txt", "#Date Time gpu pwr gtemp mtemp sm\n" + "\n".join(rows))
    assert "counters of 3 GPUs of 1 host" in terminal


def test_calls_that_are_numbered_have_a_course_and_sums_of_calls_have_none(shown, tmp_path):
    header = (
        "rank,Process Group Name,Process Group Ranks,Collective name,Group size,dtype,In msg nelems,stream,"
        "dur_sum,dur_mean,dur_std,dur_min,dur_max,operation_count"
    )
    rows = [
        f'{r},0,"[0, 1]",all_reduce,2,Float,1024,6,{160 * d},{d},1.5,{d - 5},{d + 5},160'
        for r, d in ((0, 900), (1, 100))
    ]
    shown("nccl_summary_long.csv", "\n".join([header, *rows]))
    run = load([str(tmp_path / "nccl_summary_long.csv")])
    assert not told.told(run).course
    numbered = run.collectives.assign(sequence=np.arange(len(run.collectives)))
    assert told.told(_with(run, numbered)).course


def _with(run, calls: pd.DataFrame):
    from dataclasses import replace

    return replace(run, collectives=calls)
