"""XIDs: evidence of why a rank is slow or gone, never a finding by themselves, and never held against the wrong GPU."""

from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_hang import Stopped
from verdicts import blamed, only_finding, words

from starprof.analysis import diagnose
from starprof.analysis.counters import Counters
from starprof.analysis.synthetic import Slow, SyntheticRun, Trouble
from starprof.analysis.synthetic.devices import gpu_uuid
from starprof.analysis.xids import on_gpu_of, reported
from starprof.importers.base import run_of
from starprof.importers.source import Source
from starprof.model import causes
from starprof.model.columns import row
from starprof.model.rundata import RankInfo
from starprof.model.tables.job import EVENT

COMPUTE = Slow("backward", (2,), us=30_000, start=80)
HALF = 80


def events(*told):
    """XIDs as (number, node, mono_ns, detail)."""
    names = ("value", "node", "mono_ns", "detail")
    rows = [row(EVENT, kind="xid", **dict(zip(names, one, strict=True))) for one in told]
    return pd.DataFrame(rows, columns=list(EVENT.names))


def with_xids(data, *told):
    """XIDs as (number, rank, step): by the UUID of the rank's GPU, at the start of a step."""
    start = data.steps.start_mono_ns
    return replace(
        data,
        events=events(*((n, data.ranks[r].node, int(start[r][s]), f"{gpu_uuid(r)}: XID {n}") for n, r, s in told)),
    )


def slow_gpu(*told, faults=(COMPUTE,), **recipe):
    return diagnose(with_xids(SyntheticRun(steps=160, gpus=True, faults=faults, **recipe).data(), *told))


@pytest.mark.parametrize("number", [48, 63, 64, 92, 94, 95])
def test_memory_trouble_of_the_late_rank_s_gpu_is_its_cause(number):
    finding = only_finding(slow_gpu((number, 2, HALF)))
    assert (finding.ranks, finding.cause) == ((2,), causes.GPU_ECC)
    assert f"XID {number}" in words(finding)
    assert "coincidence" in words(finding)


@pytest.mark.parametrize("told", [[(94, 1, HALF)], [(94, 2, 20)], [(94, 2, HALF), (94, 0, HALF)], [(31, 2, HALF)], []])
def test_xids_of_another_gpu_of_before_of_peers_or_of_the_program_are_no_cause(told):
    run = SyntheticRun(steps=260, gpus=True, faults=(replace(COMPUTE, start=200),), rate_hz=2.0)
    later = [(number, rank, step if step < HALF else 200) for number, rank, step in told]
    finding = only_finding(diagnose(with_xids(run.data(), *later)))
    assert (finding.ranks, finding.cause) == ((2,), causes.BACKWARD_COMPUTE)


def test_another_part_of_the_gpu_is_mentioned_beside_where_the_time_goes():
    finding = only_finding(slow_gpu((119, 2, HALF)))
    assert finding.cause == causes.BACKWARD_COMPUTE
    assert "Seen as well: the driver reported XID 119" in words(finding)


@pytest.mark.parametrize("number", [13, 48, 63, 74, 79, 95, 119])
def test_an_xid_without_slowness_is_no_finding(number):
    verdict = slow_gpu((number, 2, HALF), faults=())
    assert (verdict.verdict, verdict.findings) == ("none", ())


def test_an_nvlink_error_that_comes_with_a_slower_reduction_names_the_gpu():
    slower = (Trouble((2,), {"transfer": 30_000.0}, start=80),)
    verdict = slow_gpu((74, 2, HALF), faults=slower)
    finding = only_finding(verdict)
    assert (finding.cause, finding.ranks) == (causes.NVLINK, (2,))
    assert "XID 74" in words(finding)


def test_nvlink_errors_of_two_gpus_blame_neither():
    slower = (Trouble((2,), {"transfer": 30_000.0}, start=80),)
    verdict = slow_gpu((74, 1, HALF), (74, 2, HALF), faults=slower, ranks=8)
    assert (only_finding(verdict).cause, blamed(verdict)) == (causes.NVLINK, set())


def test_a_gpu_is_told_by_uuid_address_index_or_process():
    data = SyntheticRun(steps=20, gpus=True, nodes=2).data()
    data.samples["gpu"]["pci"] = ["00000000:18:00.0", "00000000:2A:00.0"] * 2
    counters = Counters(data)

    def who(detail, node=1):
        found = reported(replace(data, events=events((79, node, 5, detail))))
        return [info.rank for info in data.ranks if on_gpu_of(found, info, counters)]

    assert who(f"{gpu_uuid(3)}: XID 79") == [3]
    assert who("GPU 0000:2a:00") == [3]
    assert who("GPU 0000:2a:00", node=0) == [1]
    assert who("GPU 0000:99:00, process 1002") == [2]
    assert who("GPU 0") == [2]
    assert who("GPU 0000:99:00") == []
    assert who("") == []


def stopped(*told, hosts=None, pid=None):
    job = Stopped(4, hosts=hosts if hosts is not None else {r: f"n{r // 2}" for r in range(4)})
    job.call("g", 1, range(4), "completed", members=range(4)).call("g", 2, (0, 1, 3), "started", members=range(4))
    frame = pd.DataFrame(job.rows)
    infos = [RankInfo(rank=r, node=r // 2, host=job.hosts.get(r, ""), pid=(pid or {}).get(r)) for r in range(4)]
    return diagnose(
        run_of("nccl-flight-recorder", [Source("dumps", None)], ranks=infos, collectives=frame, events=events(*told))
    )


def test_a_gpu_that_fell_off_the_bus_explains_the_rank_that_never_came():
    verdict = stopped((79, 1, None, "GPU 0000:18:00, process 77"), pid={2: 77})
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.ranks, finding.cause) == ("hang", (2,), causes.GPU_LOST)
    assert "XID 79 (the GPU fell off the bus) of the GPU of rank 2" in words(finding)


def test_where_the_gpu_of_the_rank_is_not_known_the_host_s_xid_is_evidence_and_no_cause():
    finding = only_finding(stopped((79, 1, None, "GPU 0000:18:00")))
    assert (finding.ranks, finding.cause) == ((2,), causes.MISSING_COLLECTIVE)
    assert "on n1; whose GPU that is was not recorded" in words(finding)


@pytest.mark.parametrize(
    ("told", "pid", "hosts"),
    [
        ((79, 0, None, "GPU 0000:18:00"), None, None),
        ((79, 1, None, "GPU 0000:18:00, process 88"), {3: 88}, None),
        ((79, 1, None, "GPU 0000:18:00"), None, {}),
    ],
)
def test_xids_of_another_host_or_rank_or_of_no_known_host_are_not_held_against_the_missing_one(told, pid, hosts):
    finding = only_finding(stopped(told, pid=pid, hosts=hosts))
    assert (finding.ranks, finding.cause) == ((2,), causes.MISSING_COLLECTIVE)
    assert "XID 79" not in " ".join(finding.evidence)


def test_a_fault_of_the_program_is_said_to_be_none_of_the_hardware():
    finding = only_finding(stopped((31, 1, None, "GPU 0000:18:00, process 77"), pid={2: 77}))
    assert finding.cause == causes.MISSING_COLLECTIVE
    assert "no sign of bad hardware" in words(finding)


BARE = SyntheticRun(steps=20, gpus=True, counters=False).data()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(), st.floats(), st.floats(), st.none() | st.text(max_size=20)), max_size=5))
def test_any_events_are_read_or_left_out(told):
    found = reported(replace(BARE, events=events(*told)))
    assert all(0 < one.number < 1000 for one in found)
    counters = Counters(BARE)
    assert all(set(on_gpu_of(found, info, counters)) <= set(found) for info in BARE.ranks)


def test_a_rank_without_samples_whose_gpu_was_lost_is_told_with_it():
    verdict = slow_gpu((79, 3, 10), faults=(), missing_ranks=(3,))
    assert (verdict.verdict, verdict.findings) == ("inconclusive", ())
    assert "XID 79 (the GPU fell off the bus) of the GPU of rank 3" in verdict.reason
