"""A job on a parameter server that is slow: what all share is named, and no worker."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from verdicts import blamed, only_finding, words

from starprof.analysis import diagnose
from starprof.analysis.counters import Counters
from starprof.analysis.synthetic import Slow, SyntheticRun
from starprof.analysis.synthetic.trouble import Trouble
from starprof.model import causes, serverprocesses

ALL = (0, 1, 2)
SLOW_SERVER = {"transfer": 60_000.0}
SHARD = 77


def on_a_server(*faults, computing=0.1, delayed=0.0, **recipe):
    """A run whose updates a server has made; its shard is in the tree of rank 0, as where a worker has started it."""
    data = SyntheticRun(3, 300, faults=faults, **recipe).data()
    data = replace(data, sync_updates=pd.DataFrame({"version": range(300), "mode": "ssgd", "native": 0}))
    rows = data.samples["process_sample"]
    times_ns = np.unique(rows["mono_ns"].to_numpy())
    used_us = (times_ns - times_ns[0]) / 1e3
    shard = {"node": 0, "mono_ns": times_ns, "pid": SHARD, "rank": 0, "is_rank": 0}
    shard |= {"cpu_us": computing * used_us, "run_delay_us": delayed * used_us}
    named = {"node": [0], "pid": [SHARD], "rank": [0], "name": [serverprocesses.SHARD]}
    for table, more in (("process_sample", shard), ("process", named)):
        data.samples[table] = pd.concat([data.samples[table], pd.DataFrame(more)], ignore_index=True)
    return data


@pytest.mark.parametrize(
    ("computing", "delayed", "evidence", "action"),
    [
        (0.1, 0.6, "waited for a CPU 60 % of it", "what competes for their CPUs"),
        (0.9, 0.0, "computed 90 % of the time", "more shards"),
        (0.1, 0.0, "neither computed nor waited for a CPU", "SIGSTOP"),
    ],
)
def test_a_server_that_got_slow_is_what_all_share(computing, delayed, evidence, action):
    verdict = diagnose(on_a_server(Trouble(ALL, SLOW_SERVER, start=150), computing=computing, delayed=delayed))
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.cause, finding.ranks) == ("shared", causes.PARAMETER_SERVER, ())
    assert abs(finding.onset_step - 150) <= 3
    assert verdict.cost.seconds == pytest.approx(150 * 0.06, rel=0.2)
    assert evidence in words(finding)
    assert action in words(finding)


def test_a_server_that_stands_still_now_and_then_shows_without_a_better_past():
    verdict = diagnose(on_a_server(Trouble(ALL, {"transfer": 90_000.0}, start=0, share=0.5)))
    assert (verdict.verdict, only_finding(verdict).cause) == ("shared", causes.PARAMETER_SERVER)


def test_a_server_that_always_takes_its_time_is_none_that_is_slow():
    assert diagnose(on_a_server(transfer_us=60_000.0)).verdict == "none"


def test_a_slow_worker_is_named_and_the_server_is_not():
    verdict = diagnose(on_a_server(Slow("backward", (1,), factor=1.5)))
    assert verdict.verdict == "straggler"
    assert blamed(verdict) == {1}
    assert causes.PARAMETER_SERVER not in {finding.cause for finding in verdict.findings}


def test_what_the_servers_processes_use_is_no_ranks_and_another_jobs_server_is_foreign():
    data = on_a_server()
    for table in ("process_sample", "process"):
        theirs = data.samples[table].query("pid == @SHARD").assign(pid=SHARD + 1, rank=-1)
        data.samples[table] = pd.concat([data.samples[table], theirs], ignore_index=True)
    counters = Counters(data)
    assert SHARD + 1 in set(counters.table("process_sample")["pid"])
    assert SHARD not in set(counters.table("process_sample")["pid"])
    ((node, pid, samples),) = counters.server_samples(serverprocesses.SHARD)
    assert (node, pid) == (0, SHARD)
    assert len(samples) > 10
