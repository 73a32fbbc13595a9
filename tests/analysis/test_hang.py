"""Jobs that stand still: who holds the others up, and when that can't be told."""

import itertools
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starprof.analysis import diagnose
from starprof.importers.base import run_of
from starprof.importers.source import Source
from starprof.model import causes
from starprof.model.ranklists import listed
from starprof.model.rundata import RankInfo
from starprof.model.tables.trace import COLLECTIVE


@dataclass
class Stopped:
    """What the ranks of a job had called when it stopped."""

    ranks: int
    hosts: dict[int, str] = field(default_factory=dict)
    step: int | None = None
    rows: list[dict] = field(default_factory=list)
    clock: float = 1e6

    def call(self, group, sequence, ranks, state, name="all_reduce", size=4096, members=None):
        self.clock += 1000.0
        for rank in ranks:
            told = {
                "attempt": 0,
                "rank": rank,
                "group_name": group,
                "sequence": sequence,
                "name": name,
                "step": self.step,
                "start_us": self.clock + rank,
                "dur_us": np.nan,
                "min_dur_us": np.nan,
                "calls": 1,
                "bytes": size,
                "state": state,
                "ranks": None if members is None else listed(members),
            }
            self.rows.append(told)
        return self

    def verdict(self, present=None):
        frame = pd.DataFrame(self.rows, columns=list(COLLECTIVE.names))
        infos = [
            RankInfo(rank=rank, node=0, host=self.hosts.get(rank, ""))
            for rank in (range(self.ranks) if present is None else present)
        ]
        source = Source("dumps", None)
        return diagnose(run_of("nccl-flight-recorder", [source], ranks=infos, collectives=frame))


def world(ranks, missing, done=3, **about):
    """All ranks did `done` calls, and all but the missing ones wait in the next."""
    job = Stopped(ranks, **about)
    everybody = range(ranks)
    for sequence in range(1, done + 1):
        job.call("world", sequence, everybody, "completed", members=everybody)
    waiting = [rank for rank in everybody if rank not in missing]
    return job.call("world", done + 1, waiting, "scheduled", members=everybody)


def told(verdict):
    return " ".join(line for finding in verdict.findings for line in finding.evidence)


@given(
    st.integers(2, 40).flatmap(
        lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1, max_size=n - 1))
    )
)
@settings(deadline=None, max_examples=30)
def test_the_ranks_that_never_joined_are_named_whatever_their_number(sizes):
    ranks, missing = sizes
    verdict = world(ranks, missing).verdict()
    assert verdict.verdict == "hang"
    assert verdict.findings[0].ranks == tuple(sorted(missing))
    assert verdict.findings[0].cause == causes.MISSING_COLLECTIVE


def test_the_call_its_number_and_its_group_are_told():
    evidence = told(world(8, {5}, done=41).verdict())
    assert "Ranks 0-4, 6 and 7 wait in all_reduce 42 of world, which rank 5 never joined" in evidence
    assert "last call joined there: 41" in evidence


def test_host_and_step_are_told_where_they_are_known():
    verdict = world(4, {2}, hosts={2: "node7"}, step=120).verdict()
    assert verdict.findings[0].nodes == ("node7",)
    assert verdict.findings[0].onset_step == 120
    assert "node7" in told(verdict)
    assert "step 120" in told(verdict)


def test_a_rank_that_waits_elsewhere_is_a_victim():
    # Rank 1 has not come to the call of the outer group, because it waits for rank 3 in the inner one.
    job = Stopped(4)
    for group, members in (("outer", [0, 1]), ("inner", [1, 3]), ("other", [2, 3])):
        job.call(group, 1, members, "completed", members=members)
    job.call("inner", 2, [1], "scheduled", members=[1, 3])
    job.call("outer", 2, [0], "scheduled", members=[0, 1])
    verdict = job.verdict()
    assert verdict.findings[0].ranks == (3,)
    assert "Rank 0 waits in other calls" in told(verdict)


@given(st.integers(3, 12), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=25)
def test_only_the_end_of_a_chain_of_waiting_is_named(length, random):
    # Rank order[i] waits for order[i + 1] in a group of two.
    order = list(range(length))
    random.shuffle(order)
    job = Stopped(length)
    pairs = list(itertools.pairwise(order))
    random.shuffle(pairs)
    for first, second in pairs:
        group = f"pair {first} {second}"
        job.call(group, 1, [first, second], "completed", members=[first, second])
        job.call(group, 2, [first], "scheduled", members=[first, second])
    assert job.verdict().findings[0].ranks == (order[-1],)


def test_a_pipeline_stage_that_waits_for_a_send_is_a_victim():
    job = Stopped(4)
    job.call("dp", 1, [0, 1], "completed", members=[0, 1]).call("dp", 1, [2, 3], "completed", members=[0, 1])
    job.call("pp", None, [2], "scheduled", name="recv 2<-1")
    job.call("pp", None, [3], "scheduled", name="recv 3<-2")
    verdict = job.verdict()
    assert verdict.verdict == "hang"
    assert verdict.findings[0].ranks == (1,)
    assert "rank 1 did not come to the other end" in told(verdict)


def test_two_that_hold_up_different_groups_are_both_named():
    job = Stopped(8)
    for group, members, missing in (("a", range(4), 1), ("b", range(4, 8), 6)):
        job.call(group, 1, members, "completed", members=members)
        job.call(group, 2, [r for r in members if r != missing], "scheduled", members=members)
    assert job.verdict().findings[0].ranks == (1, 6)


def test_a_rank_whose_record_contradicts_what_the_others_completed_is_named():
    # All took part in calls 2 to 5; rank 2's own record has call 2 pending still, and so it never comes further.
    job = Stopped(4)
    everybody = range(4)
    job.call("world", 1, everybody, "completed", members=everybody)
    for sequence in range(2, 6):
        job.call("world", sequence, [0, 1, 3], "completed", members=everybody)
        job.call("world", sequence, [2], "scheduled", members=everybody)
    job.call("world", 6, [0, 1, 3], "scheduled", members=everybody)
    verdict = job.verdict()
    assert verdict.findings[0].ranks == (2,)
    assert "longer see" in told(verdict)


def test_a_broadcast_that_its_root_has_left_contradicts_nobody():
    # A root may be done with several broadcasts while the others wait in the first for rank 3 to pass it on.
    job = Stopped(4)
    everybody = range(4)
    job.call("world", 1, everybody, "completed", members=everybody)
    for sequence in (2, 3, 4):
        job.call("world", sequence, [0], "completed", name="broadcast", members=everybody)
        job.call("world", sequence, [1, 2], "scheduled", name="broadcast", members=everybody)
    job.call("world", 5, [0], "scheduled", members=everybody)
    verdict = job.verdict()
    assert verdict.verdict in {"hang", "inconclusive"}
    assert all(not set(finding.ranks) & {0, 1, 2} for finding in verdict.findings)


def test_a_dump_that_is_older_than_the_others_blames_nobody():
    # Rank 1's record ends at call 3; nobody could have completed call 4 to 9 without it.
    job = Stopped(3)
    for sequence in range(1, 10):
        job.call("world", sequence, [0, 2], "completed", members=range(3))
    for sequence in range(1, 4):
        job.call("world", sequence, [1], "completed", members=range(3))
    job.call("world", 10, [0, 2], "scheduled", members=range(3))
    verdict = job.verdict()
    assert verdict.verdict == "inconclusive"
    assert "rank 1 is older than the others'" in told(verdict)
    assert not any(finding.ranks for finding in verdict.findings)


def test_a_rank_without_a_dump_is_a_suspect_and_not_blamed():
    job = Stopped(4)
    job.rows = [row for row in world(4, {3}).rows if row["rank"] != 3]
    verdict = job.verdict(present=[0, 1, 2])
    assert verdict.verdict == "inconclusive"
    assert "stands still" in verdict.reason
    assert "rank 3" in verdict.reason
    assert not any(finding.ranks for finding in verdict.findings)
    assert "rank 3" in verdict.findings[0].next


def test_a_dump_that_recorded_nothing_is_a_suspect_and_not_blamed():
    job = Stopped(4)
    job.rows = [row for row in world(4, {3}).rows if row["rank"] != 3]
    verdict = job.verdict()
    assert verdict.verdict == "inconclusive"
    assert "rank 3" in verdict.reason


def test_a_rank_that_may_wait_for_one_without_a_record_is_not_blamed():
    # Rank 1 is missing in the outer group, but it waits in the inner one, for rank 2 of which nothing is known.
    job = Stopped(3)
    job.call("outer", 1, [0, 1], "completed", members=[0, 1]).call("outer", 2, [0], "scheduled", members=[0, 1])
    job.call("inner", 5, [1], "scheduled", members=[1, 2])
    verdict = job.verdict(present=[0, 1])
    assert verdict.verdict == "inconclusive"
    assert "rank 2" in verdict.reason


def test_a_call_that_all_have_joined_and_that_does_not_end_is_nobodys():
    job = world(4, set())
    verdict = job.verdict()
    assert verdict.verdict == "hang"
    assert verdict.findings[0].ranks == ()
    assert verdict.findings[0].cause == causes.UNKNOWN
    assert "have joined the calls" in told(verdict)


def test_a_device_that_never_came_to_a_call_that_the_others_started_is_named():
    job = world(4, {0, 1, 2, 3})
    job.call("world", 4, [0, 1, 3], "started", members=range(4)).call("world", 4, [2], "scheduled", members=range(4))
    verdict = job.verdict()
    assert verdict.findings[0].ranks == (2,)
    assert "its device never started it" in told(verdict)


def test_ranks_that_wait_for_each_other_in_different_groups_are_a_wrong_order_of_calls():
    job = Stopped(2)
    for group in ("a", "b"):
        job.call(group, 1, [0, 1], "completed", members=[0, 1])
    job.call("a", 2, [0], "scheduled", members=[0, 1]).call("b", 2, [1], "scheduled", members=[0, 1])
    verdict = job.verdict()
    assert verdict.verdict == "hang"
    assert verdict.findings[0].ranks == ()
    assert "wait for one another" in told(verdict)
    assert "same order" in verdict.findings[0].action


@pytest.mark.parametrize(("name", "size"), [("broadcast", 4096), ("all_reduce", 8192)])
def test_the_one_whose_call_differs_from_all_others_is_named(name, size):
    job = world(5, {0, 1, 2, 3, 4})
    job.call("world", 4, [0, 1, 2, 4], "scheduled", members=range(5))
    job.call("world", 4, [3], "scheduled", name=name, size=size, members=range(5))
    verdict = job.verdict()
    assert verdict.verdict == "hang"
    assert verdict.findings[0].cause == causes.MISMATCHED_COLLECTIVE
    assert verdict.findings[0].ranks == (3,)


def test_where_two_disagree_nobody_is_named():
    job = world(2, {0, 1})
    job.call("world", 4, [0], "scheduled").call("world", 4, [1], "scheduled", name="broadcast")
    verdict = job.verdict()
    assert verdict.findings[0].cause == causes.MISMATCHED_COLLECTIVE
    assert verdict.findings[0].ranks == ()


def test_all_to_alls_of_different_sizes_fit_together():
    job = world(4, {0, 1, 2, 3})
    for rank in (0, 1, 2):
        job.call("world", 4, [rank], "scheduled", name="all_to_all", size=1000 * rank, members=range(4))
    verdict = job.verdict()
    assert verdict.findings[0].cause == causes.MISSING_COLLECTIVE
    assert verdict.findings[0].ranks == (3,)


def test_several_calls_under_one_number_fit_together_when_all_made_the_same():
    job = world(3, {0, 1, 2})
    for name in ("all_gather", "reduce_scatter"):
        job.call("world", 4, [0, 1], "scheduled", name=name, members=range(3))
    verdict = job.verdict()
    assert verdict.findings[0].cause == causes.MISSING_COLLECTIVE
    assert verdict.findings[0].ranks == (2,)


def test_missing_ranks_of_one_host_are_told_to_be_on_it():
    hosts = {rank: f"node{rank // 4}" for rank in range(16)}
    verdict = world(16, {4, 5, 6, 7}, hosts=hosts).verdict()
    assert verdict.findings[0].nodes == ("node1",)
    assert "All of them are on node1." in told(verdict)
    assert "All of them" not in told(world(16, {3, 4}, hosts=hosts).verdict())


def test_names_that_differ_in_calls_that_ended_are_no_mismatch():
    job = Stopped(2)
    job.call("world", 1, [0], "completed").call("world", 1, [1], "completed", name="broadcast")
    job.call("world", 2, [0], "scheduled", members=[0, 1])
    assert job.verdict().findings[0].cause == causes.MISSING_COLLECTIVE


def test_nothing_pending_is_never_called_healthy():
    verdict = world(4, {0, 1, 2, 3}).verdict()
    assert verdict.verdict == "inconclusive"
    assert "No rank has a call pending" in verdict.reason


def test_no_calls_at_all_are_never_called_healthy():
    verdict = Stopped(4).verdict()
    assert verdict.verdict == "inconclusive"
    assert "neither step times nor calls" in verdict.reason


def test_a_send_whose_partner_is_not_told_blames_nobody():
    job = Stopped(3)
    job.call("dp", 1, [0, 1], "completed", members=[0, 1]).call("dp", 2, [0], "scheduled", members=[0, 1])
    job.call("pp", None, [1], "scheduled", name="coalesced")
    verdict = job.verdict()
    assert verdict.verdict == "inconclusive"
    assert not any(finding.ranks for finding in verdict.findings)


def test_thousands_of_ranks_are_judged_at_once():
    job = Stopped(4096)
    frame_ranks = [rank for rank in range(4096) if rank != 77]
    job.call("world", 1, range(4096), "completed", members=range(4096))
    job.call("world", 2, frame_ranks, "scheduled", members=range(4096))
    assert job.verdict().findings[0].ranks == (77,)
