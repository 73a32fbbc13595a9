"""Bandwidth tests of pairs: which place is bad, which are cleared, and what to test next."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starprof.analysis import diagnose
from starprof.importers.base import run_of
from starprof.importers.source import Source
from starprof.model import causes
from starprof.model.tables.trace import LINK_TEST

REPORTED = [
    ("644", "699", 49.36, None),
    ("632", "641", 88.36, None),
    ("284", "678", 49.28, "x-rack"),
    ("641", "644", 49.30, None),
    ("404", "699", 86.81, "x-rack"),
]


def verdict_of(rows):
    frame = pd.DataFrame(
        [(first, second, rate * 1e9, label) for first, second, rate, label in rows], columns=list(LINK_TEST.names)
    )
    return diagnose(run_of("link-tests", [Source("pairs", None)], link_tests=frame))


def everybody(hosts, bad=(), good_rate=88.0, bad_rate=45.0, spread=0.0, seed=0):
    """All pairs of hosts."""
    noise = np.random.default_rng(seed)
    return [
        (a, b, (bad_rate if {a, b} & set(bad) else good_rate) * (1 + spread * noise.standard_normal()), None)
        for a, b in itertools.combinations(hosts, 2)
    ]


def told(verdict):
    return " ".join(line for finding in verdict.findings for line in (*finding.evidence, finding.next))


def test_the_reported_five_pairs_leave_one_bad_and_one_undecided():
    verdict = verdict_of(REPORTED)
    assert verdict.verdict == "straggler"
    first, second = verdict.findings
    assert first.nodes == ("644",)
    assert first.ranks == ()
    assert set(second.nodes) == {"284", "678"}
    assert second.cause == causes.UNKNOWN
    assert "284 OR 678" in told(verdict)


def test_the_next_test_takes_a_place_that_is_cleared():
    assert verdict_of(REPORTED).findings[1].next.startswith("Test 284 with 641 next")


def test_cleared_places_are_named():
    assert "Cleared: 641, 699, 632 and 404." in told(verdict_of(REPORTED))


def test_a_hypothesis_that_a_good_pair_contradicts_is_rejected():
    line = next(line for line in verdict_of(REPORTED).findings[0].evidence if "x-rack" in line)
    assert "rejected" in line
    assert "404-699" in line
    assert "86.81 GB/s" in line


def test_what_is_wrong_with_a_place_is_not_claimed():
    assert "don't tell which" in verdict_of(REPORTED).findings[0].action


@given(st.integers(4, 14), st.data())
@settings(deadline=None, max_examples=40)
def test_bad_places_are_found_among_all_pairs(count, data):
    hosts = [f"node{i}" for i in range(count)]
    bad = data.draw(st.sets(st.sampled_from(hosts), min_size=1, max_size=max(1, count // 3)))
    verdict = verdict_of(everybody(hosts, bad, spread=0.01, seed=data.draw(st.integers(0, 1000))))
    assert verdict.verdict == "straggler"
    assert {node for finding in verdict.findings for node in finding.nodes} == bad


@given(st.integers(3, 14), st.floats(0.0, 0.06), st.integers(0, 10_000))
@settings(deadline=None, max_examples=60)
def test_noise_alone_blames_nobody(count, spread, seed):
    verdict = verdict_of(everybody([f"n{i}" for i in range(count)], spread=spread, seed=seed))
    assert not any(finding.nodes for finding in verdict.findings)


def test_the_same_drop_is_slow_among_steady_pairs_and_not_among_unsteady_ones():
    hosts = [f"n{i}" for i in range(8)]
    steady = verdict_of(everybody(hosts, ["n3"], 100.0, 80.0, spread=0.01))
    unsteady = verdict_of(everybody(hosts, ["n3"], 100.0, 80.0, spread=0.12))
    assert steady.findings[0].nodes == ("n3",)
    assert not any(finding.nodes for finding in unsteady.findings)


def test_pairs_that_are_all_alike_are_none():
    verdict = verdict_of(everybody("abcd", spread=0.01))
    assert verdict.verdict == "none"
    assert "should give" in verdict.reason


def test_all_alike_and_very_low_is_no_claim_of_anything():
    verdict = verdict_of(everybody("abcd", good_rate=0.3))
    assert verdict.verdict == "none"
    assert "they don't tell" in verdict.reason


def test_one_slow_pair_of_two_cleared_places_is_the_path():
    rows = [("a", "b", 45, None), ("a", "c", 90, None), ("b", "c", 89, None), ("c", "d", 90, None)]
    verdict = verdict_of(rows)
    assert verdict.verdict == "shared"
    assert verdict.findings[0].cause == causes.NETWORK_PATH
    assert verdict.findings[0].nodes == ("a", "b")


def test_a_place_in_one_slow_pair_only_may_be_its_path():
    verdict = verdict_of([("a", "b", 45, None), ("b", "c", 90, None), ("c", "d", 91, None), ("b", "d", 90, None)])
    assert verdict.verdict == "inconclusive"
    assert "it is a or the path" in told(verdict)
    assert verdict.findings[0].next.startswith("Test a with c") or verdict.findings[0].next.startswith("Test a with d")


def test_a_pair_without_any_cleared_place_is_undecided():
    verdict = verdict_of([("a", "b", 45, None), ("c", "d", 90, None), ("e", "f", 91, None)])
    assert verdict.verdict == "inconclusive"
    assert "a OR b" in told(verdict)


def test_a_place_that_several_uncleared_ones_share_is_likely_bad():
    rows = [("hub", x, 45, None) for x in "abc"] + [("d", "e", 90, None), ("e", "f", 91, None)]
    verdict = verdict_of(rows)
    assert verdict.findings[0].nodes == ("hub",)
    assert verdict.findings[0].confidence < 0.9
    assert verdict.findings[0].next.startswith("Test hub with")


def test_all_pairs_of_a_few_uncleared_places_blame_nobody():
    rows = everybody("abcd", bad="abcd") + everybody("efgh")
    verdict = verdict_of(rows)
    assert verdict.verdict == "inconclusive"
    assert not any(len(finding.nodes) == 1 for finding in verdict.findings)


def test_a_label_that_all_slow_pairs_share_and_no_good_one_is_told():
    near = [(f"a{i}", f"a{j}", 90, None) for i, j in itertools.combinations(range(3), 2)]
    far = [(f"b{i}", f"b{j}", 91, None) for i, j in itertools.combinations(range(3), 2)]
    across = [(f"a{i}", f"b{j}", 40, "cross-rack") for i in range(3) for j in range(3)]
    verdict = verdict_of(near + far + across)
    assert verdict.verdict == "shared"
    assert 'All pairs that are "cross-rack" are slow' in told(verdict)


def test_one_pair_that_is_quicker_than_all_others_makes_the_others_not_bad():
    rows = [(a, b, 200 if (a, b) == ("a", "b") else rate, None) for a, b, rate, _ in everybody("abcdefgh")]
    verdict = verdict_of(rows)
    assert verdict.verdict == "inconclusive"
    assert not verdict.findings


def test_values_without_a_step_between_good_and_slow_are_inconclusive():
    rates = np.linspace(100, 50, 12)
    verdict = verdict_of([(f"a{i}", f"b{i}", rate, None) for i, rate in enumerate(rates)])
    assert verdict.verdict == "inconclusive"
    assert "without a clear step" in verdict.reason


def test_a_pair_that_is_slow_in_some_tests_only_blames_nobody():
    rows = [*everybody("abcd"), ("a", "b", 40, None)]
    verdict = verdict_of(rows)
    assert verdict.verdict == "inconclusive"
    assert "Repeat the test of a-b" in told(verdict)


def test_both_directions_of_a_pair_are_one_pair():
    rows = everybody("abcde", bad="c")
    verdict = verdict_of(rows + [(b, a, rate, label) for a, b, rate, label in rows])
    assert verdict.findings[0].nodes == ("c",)
    assert len(verdict.findings) == 1


def test_tests_of_different_kinds_are_not_compared_with_each_other():
    rows = [(a, b, rate, "all_reduce") for a, b, rate, _ in everybody("abcd")]
    rows += [(a, b, rate, "all_to_all") for a, b, rate, _ in everybody("abcd", good_rate=30.0)]
    assert verdict_of(rows).verdict == "none"


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -1.0])
def test_a_test_without_a_result_is_said_and_is_not_slow(rate):
    verdict = verdict_of([*everybody("abcd"), ("a", "e", rate, None)])
    assert verdict.verdict == "inconclusive"
    assert "a-e gave no result" in verdict.reason


def test_a_bandwidth_of_zero_is_slow():
    verdict = verdict_of(everybody("abcde", bad="d", bad_rate=0.0))
    assert verdict.findings[0].nodes == ("d",)


def test_one_pair_has_nothing_to_be_compared_with():
    verdict = verdict_of([("a", "b", 45, None)])
    assert verdict.verdict == "inconclusive"
    assert "nothing to compare" in verdict.reason


def test_names_with_markup_stay_names():
    verdict = verdict_of(everybody(["<b>a", "b\x1b[31m", "c", "d"], bad=["<b>a"]))
    assert verdict.findings[0].nodes == ("<b>a",)


def test_without_any_pair_that_is_quick_throughout_nobody_is_named():
    # The only quick pair is quick in some of its tests only.
    rows = [("n1", "n4", rate, None) for rate in [180.0, 90.0] * 8] + [
        ("n1", "n2", 91.0, None),
        ("n3", "n1", 90.0, None),
    ]
    verdict = verdict_of(rows)
    assert (verdict.verdict, verdict.findings) == ("inconclusive", ())
    assert "repeat the tests" in verdict.reason
