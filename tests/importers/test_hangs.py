"""From dumps to the verdict: generated jobs, and real ones with known faults."""

import itertools
import tarfile

import pytest
from flight_dumps import Job

from starprof.analysis import diagnose
from starprof.importers.load import load
from starprof.model import causes

TRUTH = {
    "gpu_error_1st": (12, 14),
    "gpu_error_2nd": (9, 14),
    "lock_gil_1st": (9, 14),
    "lock_gil_2nd": (10, 15),
}


@pytest.mark.parametrize("case", TRUTH)
def test_the_ranks_with_injected_faults_are_found(public_data, tmp_path, case):
    with tarfile.open(public_data("nccl_flight_recorder") / "fr_traces.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    verdict = diagnose(load([str(tmp_path / "fr_traces" / case)]))
    assert verdict.verdict == "hang"
    assert [finding.ranks for finding in verdict.findings] == [TRUTH[case]]
    assert verdict.findings[0].cause == causes.MISSING_COLLECTIVE


def grid(tensor, data, pipeline):
    """Ranks of a job with three kinds of groups."""
    ranks = range(tensor * data * pipeline)
    place = {rank: (rank // (tensor * data), rank // tensor % data, rank % tensor) for rank in ranks}
    groups = {"0": list(ranks)}
    for fixed in ((0, 1), (0, 2), (1, 2)):
        for key in sorted({tuple(place[r][axis] for axis in fixed) for r in ranks}):
            members = [r for r in ranks if tuple(place[r][axis] for axis in fixed) == key]
            groups[str(len(groups))] = members
    return groups


@pytest.mark.parametrize("only_pending", [True, False])
@pytest.mark.parametrize(
    ("shape", "culprit"), list(itertools.product([(2, 2, 1), (2, 2, 2), (1, 4, 2), (4, 2, 1)], [0, 3]))
)
def test_a_rank_that_stops_is_found_in_jobs_of_any_shape(tmp_path, shape, culprit, only_pending):
    groups = grid(*shape)
    job = Job(groups, only_pending=only_pending)
    for name in groups:
        job.run_of(name, 1, 3)
    hurt = [name for name, members in groups.items() if culprit in members and len(members) > 1]
    inner = hurt[1]
    job.call(inner, 4, [r for r in groups[inner] if r != culprit], "scheduled")
    blocked = {*groups[inner]}
    for name in hurt[2:]:
        job.call(name, 4, [r for r in groups[name] if r not in blocked], "scheduled")
        blocked |= set(groups[name])
    job.call("0", 4, [r for r in groups["0"] if r not in blocked], "scheduled")
    verdict = diagnose(load([job.write(tmp_path)]))
    assert verdict.verdict == "hang"
    assert verdict.findings[0].ranks == (culprit,)


def test_dumps_in_json_give_the_same_verdict(tmp_path):
    job = Job({"0": [0, 1, 2]}, only_pending=True).run_of("0", 1, 9).call("0", 10, [0, 2], "scheduled")
    verdict = diagnose(load([job.write(tmp_path, form="json", name="rank_{}.json")]))
    assert verdict.findings[0].ranks == (1,)


def test_without_entries_and_status_a_rank_is_only_suspected(tmp_path):
    job = Job({"0": [0, 1, 2]}, only_pending=True, status=False).run_of("0", 1, 9).call("0", 10, [0, 2], "scheduled")
    verdict = diagnose(load([job.write(tmp_path)]))
    assert verdict.verdict == "inconclusive"
    assert "rank 1" in verdict.reason


def test_a_missing_dump_is_said_with_what_to_get(tmp_path):
    job = Job({"0": [0, 1, 2, 3]}).run_of("0", 1, 9).call("0", 10, [0, 2, 3], "scheduled")
    verdict = diagnose(load([job.write(tmp_path, ranks=[0, 2, 3])]))
    assert verdict.verdict == "inconclusive"
    assert "rank 1" in verdict.findings[0].next


def test_dumps_without_any_entry_are_inconclusive(tmp_path):
    verdict = diagnose(load([Job({"0": [0, 1]}, only_pending=True).run_of("0", 1, 3).write(tmp_path)]))
    assert verdict.verdict == "inconclusive"
    assert "neither step times nor calls" in verdict.reason
