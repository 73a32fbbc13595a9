from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from reports_fixtures import make_run

from starprof.analysis.synthetic import CpuHog, Quota, SyntheticRun
from starprof.model import causes
from starprof.model.rundata import RunData
from starprof.reports.metrics import METRICS, Metric
from starprof.reports.series import Series, clock

SECOND = 1_000_000_000
TICKS = pd.DataFrame({"node": 0, "mono_ns": np.arange(1, 21) * SECOND})


def metric(key: str) -> Metric:
    return next(m for m in METRICS if m.key == key)


def drawn(run: RunData, key: str) -> Series | None:
    return metric(key).series(run, clock(run))


def mean(run: RunData, key: str) -> dict[int, float]:
    found = drawn(run, key)
    assert found is not None
    return {entity: float(np.nanmean(values)) * metric(key).scale for entity, values in found.values.items()}


def only(run: RunData, **samples: pd.DataFrame) -> RunData:
    return replace(run, samples=samples)


def test_cpu_of_a_rank_is_that_of_its_whole_process_tree(run: RunData):
    per_process = [
        TICKS.assign(pid=pid, rank=1, is_rank=int(pid == 10), cpu_us=np.arange(20) * share * 1e6)
        for pid, share in ((10, 0.9), (11, 0.3), (12, 0.3))
    ]
    assert mean(only(run, process_sample=pd.concat(per_process)), "cpu") == {1: pytest.approx(1.5)}


def test_a_loader_worker_that_ended_does_not_make_the_rank_vanish(run: RunData):
    rank = TICKS.assign(pid=10, rank=1, is_rank=1, cpu_us=np.arange(20) * 1e6)
    worker = TICKS.iloc[:8].assign(pid=11, rank=1, is_rank=0, cpu_us=np.arange(8) * 1e6)
    found = drawn(only(run, process_sample=pd.concat([rank, worker])), "cpu")
    assert found is not None
    assert found.values[1][0] == pytest.approx(2e6)
    assert found.values[1][-1] == pytest.approx(1e6)


def test_run_delay_shows_the_rank_whose_cpu_is_taken():
    run = SyntheticRun(ranks=4, steps=200, faults=(CpuHog(rank=2, share=0.5),)).data()
    delay = mean(run, "run-delay")
    assert max(delay, key=delay.__getitem__) == 2


def test_foreign_cpu_is_zero_on_nodes_that_have_none():
    run = SyntheticRun(ranks=4, steps=200, nodes=2, faults=(CpuHog(rank=3, share=0.5),)).data()
    assert mean(run, "foreign-cpu")[0] == 0.0
    assert mean(run, "foreign-cpu")[1] > 0.2


def test_throttling_of_nested_groups_is_that_of_the_worst_level_not_the_sum(run: RunData):
    samples = [TICKS.assign(cgroup=c, throttled_us=np.arange(20) * share * 1e6) for c, share in ((0, 0.1), (1, 0.4))]
    groups = pd.DataFrame({"node": 0, "cgroup": [0, 1], "rank": [1, 1]})
    assert mean(only(run, cgroup_sample=pd.concat(samples), cgroup=groups), "throttled") == {1: pytest.approx(40.0)}


def test_throttling_belongs_to_the_rank_of_the_group():
    run = SyntheticRun(ranks=4, steps=200, faults=(Quota(rank=3),)).data()
    throttled = mean(run, "throttled")
    assert max(throttled, key=throttled.__getitem__) == 3


def test_loopback_and_bonds_are_not_counted_beside_their_members(run: RunData):
    samples = pd.concat([TICKS.assign(nic=nic, tx_bytes=np.arange(20) * 1e6) for nic in range(6)])
    types = ["loopback", "bond", "bond-member", "bond-member", "ethernet", "virtual"]
    nics = pd.DataFrame({"node": 0, "nic": range(6), "type": types})
    per_nic = mean(only(run, nic_sample=samples, nic=nics[nics["type"] == "ethernet"]), "tx")[0]
    assert mean(only(run, nic_sample=samples, nic=nics), "tx") == {0: pytest.approx(3 * per_nic)}


def test_virtual_interfaces_count_where_there_is_no_other(run):
    samples = pd.concat([TICKS.assign(nic=nic, tx_bytes=np.arange(20) * 1e6) for nic in range(2)])
    nics = pd.DataFrame({"node": 0, "nic": range(2), "type": ["loopback", "virtual"]})
    assert mean(only(run, nic_sample=samples, nic=nics), "tx")[0] > 0


def test_round_trip_is_that_of_the_worst_socket_of_the_rank(run: RunData):
    samples = pd.concat([TICKS.assign(socket=s, rank=2, rtt_us=rtt) for s, rtt in ((0, 200.0), (1, 15_000.0))])
    assert mean(only(run, tcp_sample=samples), "rtt") == {2: pytest.approx(15.0)}


def test_a_rank_finds_its_gpu_by_uuid_not_by_number():
    run = make_run(ranks=2)
    run = replace(run, ranks=tuple(replace(r, gpu_uuid=f"GPU-{1 - r.rank}") for r in run.ranks))
    samples = pd.concat([TICKS.assign(gpu=gpu, sm_clock_mhz=mhz) for gpu, mhz in ((0, 1980.0), (1, 1200.0))])
    gpus = pd.DataFrame({"node": 0, "gpu": [0, 1], "uuid": ["GPU-0", "GPU-1"]})
    assert mean(only(run, gpu_sample=samples, gpu=gpus), "sm-clock") == {0: 1200.0, 1: 1980.0}


@pytest.mark.parametrize("key", [m.key for m in METRICS])
def test_a_run_without_samples_draws_nothing(run: RunData, key: str):
    assert drawn(only(run), key) is None


def test_metrics_are_named_once_and_refer_to_known_causes():
    assert len({m.key for m in METRICS}) == len(METRICS)
    assert frozenset().union(*(m.causes for m in METRICS)) <= causes.ALL
