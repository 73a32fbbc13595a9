"""What each synchronisation mode does with gradients that arrive in some order."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sync_play import Joined, Left, Predicted, play

from starprof.errors import UsageError
from starprof.sync.policies import MODES, Arrived, Gradient, Scored, Woken, create
from starprof.sync.policies.grouping import by_speed
from starprof.sync.policies.lb_bsp import split

OPTIONS = {
    "static-x": lambda n: {"x": max(1, n // 2)},
    "ring-x": lambda n: {"x": max(1, n // 2)},
    "m-sync": lambda n: {"m": max(1, n - 1)},
    "m-sync-fold": lambda n: {"m": max(1, n - 1)},
    "deadline": lambda n: {"after_s": 0.3},
    "local-sgd": lambda n: {"period": 4},
    "hierarchical": lambda n: {"groups": [list(range(n // 2)), list(range(n // 2, n))][n < 2 :], "period": 3},
    "backup": lambda n: {"b": min(1, n - 1)},
    "ssp": lambda n: {"s": 2},
    "lgc": lambda n: {"k": max(1, n - 1)},
    "lb-bsp": lambda n: {"batch_size": 8},
    "sync-switch": lambda n: {"switch_at": 5},
    "drop-compute": lambda n: {"tau_s": 1.0},
    "rennala": lambda n: {"batch": n},
    "ringmaster": lambda n: {"r": 3},
}


def policy_of(name, workers):
    return create(name, range(workers), OPTIONS.get(name, lambda n: {})(workers))


def arrive(policy, *gradients, at_s=0.0):
    """Hand in gradients given as (worker, number, version); the last decision."""
    for gradient in gradients:
        decision = policy.decide(Arrived(Gradient(*gradient), at_s))
    return decision


def three_quick_one_slow(worker, number):
    return 4.0 if worker == 3 else 1.0 + 0.01 * worker


every_mode = pytest.mark.parametrize("name", list(MODES))
durations = st.lists(st.floats(0.01, 5.0), min_size=40, max_size=40)


# What holds for every mode


@every_mode
@given(workers=st.integers(1, 6), durations=durations)
@settings(max_examples=20, deadline=None)
def test_no_gradient_counts_twice_none_is_lost_and_everybody_goes_on(name, workers, durations):
    policy = policy_of(name, workers)
    played = play(policy, lambda w, k: durations[(7 * w + 13 * k) % 40], gradients=12 * workers)
    used = played.used
    assert len(set(used)) == len(used)
    assert not set(used) & set(played.dropped)
    if not policy.drops:
        assert played.dropped == []
    left = set(played.handed_in) - set(used) - set(played.dropped)
    per_worker = [sum(g.worker == w for g in left) for w in range(workers)]
    allowed = workers if name == "rennala" else 2
    assert max(per_worker) <= allowed


@every_mode
@given(workers=st.integers(2, 6), durations=durations)
@settings(max_examples=20, deadline=None)
def test_staleness_stays_within_what_the_mode_promises(name, workers, durations):
    policy = policy_of(name, workers)
    played = play(policy, lambda w, k: durations[(5 * w + 11 * k) % 40], gradients=12 * workers)
    stale = [s for update in played.updates for s in update.staleness]
    assert all(s >= 0 for s in stale)
    if policy.max_staleness is not None:
        assert max(stale, default=0) <= policy.max_staleness


@every_mode
@given(workers=st.integers(3, 5), durations=durations, leaver=st.integers(0, 2), when=st.floats(0.0, 10.0))
@settings(max_examples=20, deadline=None)
def test_workers_come_and_go_and_the_rest_goes_on(name, workers, durations, leaver, when):
    policy = policy_of(name, workers)
    changes = [
        (when, Left(leaver, when)),
        (when + 1.0, Joined(99, when + 1.0)),
        (when + 2.0, Joined(leaver, when + 2.0)),
    ]
    played = play(policy, lambda w, k: durations[(3 * w + 17 * k) % 40], gradients=12 * workers, changes=changes)
    assert len(set(played.used)) == len(played.used)
    assert all(g.worker == leaver for g in played.lost)
    if not policy.drops:
        assert played.dropped == []


@every_mode
@given(workers=st.integers(1, 6), durations=durations)
@settings(max_examples=20, deadline=None)
def test_the_same_arrivals_give_the_same_decisions(name, workers, durations):
    played = play(policy_of(name, workers), lambda w, k: durations[(7 * w + 13 * k) % 40], gradients=10 * workers)
    again = policy_of(name, workers)
    assert [again.decide(event) for event in played.events] == played.decisions


@every_mode
def test_versions_count_updates_without_a_hole(name):
    played = play(policy_of(name, 4), three_quick_one_slow, gradients=80)
    onto = [update.onto for update in played.updates if update.members is None]
    assert onto == list(range(len(onto)))


@every_mode
def test_a_gradient_that_comes_twice_or_from_a_stranger_is_refused(name):
    policy = policy_of(name, 4)
    with pytest.raises(ValueError, match="does not take part"):
        arrive(policy, (7, 0, 0))
    with pytest.raises(ValueError, match="newer than"):
        arrive(policy, (1, 0, 5))
    arrive(policy, (1, 3, 0))
    with pytest.raises(ValueError, match=r"handed in before|waits"):
        arrive(policy, (1, 3, 0))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("static-x", {"x": 0}),
        ("m-sync", {"m": 0}),
        ("m-sync", {}),
        ("backup", {"b": 4}),
        ("deadline", {"after_s": -1.0}),
        ("local-sgd", {"period": 0}),
        ("hierarchical", {"groups": [[0, 1]], "period": 2}),
        ("dynamic-x", {"groups": [[0, 1], [1, 2, 3]]}),
        ("ssgd", {"x": 2}),
    ],
)
def test_options_that_make_no_sense_are_one_line(name, options):
    with pytest.raises(UsageError, match=f"mode {name} takes"):
        create(name, range(4), options)


def test_an_unknown_mode_names_those_there_are():
    with pytest.raises(UsageError, match="m-sync-fold"):
        create("turbo", range(4))


# Mode by mode


def test_ssgd_waits_for_all_and_takes_the_mean():
    policy = policy_of("ssgd", 3)
    assert arrive(policy, (0, 0, 0), (2, 0, 0)).updates == ()
    decision = arrive(policy, (1, 0, 0))
    assert decision.updates[0].weights == pytest.approx([1 / 3] * 3)
    assert decision.release == (0, 1, 2)


def test_ssgd_does_not_wait_for_a_worker_that_is_gone():
    policy = policy_of("ssgd", 3)
    arrive(policy, (0, 0, 0), (2, 0, 0))
    decision = policy.decide(Left(1))
    assert decision.updates[0].contributors == (0, 2)


def test_asgd_applies_on_arrival_with_the_nth_part_of_the_learning_rate():
    policy = policy_of("asgd", 4)
    decision = arrive(policy, (2, 0, 0))
    assert decision.updates[0].weights == (0.25,)
    assert decision.release == (2,)


def test_static_x_steps_with_the_x_first_and_keeps_the_late_for_later():
    policy = create("static-x", range(4), {"x": 2})
    assert arrive(policy, (3, 0, 0)).release == ()
    first = arrive(policy, (1, 0, 0))
    assert (first.updates[0].contributors, first.release) == ((3, 1), (3, 1))
    assert first.updates[0].weights == (0.25, 0.25)
    second = arrive(policy, (0, 0, 0), (3, 1, 1))
    assert second.updates[0].contributors == (0, 3)
    assert second.updates[0].staleness == (1, 0)


def test_static_x_of_all_workers_is_ssgd_but_for_the_order():
    played = play(create("static-x", range(4), {"x": 4}), three_quick_one_slow, gradients=40)
    assert all(sorted(update.contributors) == [0, 1, 2, 3] for update in played.updates)
    assert all(set(update.staleness) == {0} for update in played.updates)


def test_dynamic_groups_follow_the_predictions_and_do_not_wait_for_each_other():
    policy = create("dynamic-x", range(4))
    policy.decide(Predicted({0: 1.0, 1: 1.05, 2: 4.0, 3: 4.1}))
    assert policy.groups == [[0, 1], [2, 3]]
    decision = arrive(policy, (0, 0, 0), (1, 0, 0))
    assert decision.updates[0].contributors == (0, 1)
    assert decision.updates[0].weights == (0.25, 0.25)
    assert decision.release == (0, 1)


def test_a_new_grouping_takes_along_what_has_been_handed_in():
    policy = create("dynamic-x", range(3))
    arrive(policy, (0, 0, 0), (1, 0, 0))
    decision = policy.decide(Predicted({0: 1.0, 1: 1.0, 2: 9.0}))
    assert decision.updates[0].contributors == (0, 1)


def test_a_ring_adds_what_its_children_have_handed_in_and_waits_for_no_child():
    policy = create("ring-x", range(5), {"x": 2})
    policy.decide(Predicted({0: 1.0, 1: 3.0, 2: 1.1, 3: 3.0, 4: 9.0}))
    assert policy.ring == [0, 2]
    assert policy.parents == {1: 0, 3: 2, 4: 0}
    arrive(policy, (0, 0, 0), (3, 0, 0))
    decision = arrive(policy, (2, 0, 0))
    assert set(decision.updates[0].contributors) == {0, 2, 3}
    assert decision.updates[0].weights == pytest.approx([0.2] * 3)
    assert set(decision.release) == {0, 2, 3}


def test_a_ring_that_loses_a_member_takes_the_fastest_child_in():
    policy = create("ring-x", range(4), {"x": 2})
    policy.decide(Predicted({0: 1.0, 1: 1.1, 2: 5.0, 3: 2.0}))
    policy.decide(Left(0))
    assert policy.ring == [1, 3]


def test_m_sync_takes_the_first_m_and_drops_the_rest_of_the_round():
    policy = create("m-sync", range(4), {"m": 3})
    decision = arrive(policy, (0, 0, 0), (1, 0, 0), (2, 0, 0))
    assert decision.updates[0].weights == pytest.approx([1 / 3] * 3)
    late = arrive(policy, (3, 0, 0))
    assert late.dropped == (Gradient(3, 0, 0),)
    assert late.release == (3,)


def test_folding_puts_a_late_gradient_into_the_round_under_way_and_lets_its_worker_go():
    policy = create("m-sync-fold", range(4), {"m": 3, "staleness_cap": 2})
    arrive(policy, (0, 0, 0), (1, 0, 0), (2, 0, 0))
    late = arrive(policy, (3, 0, 0))
    assert (late.dropped, late.release, late.updates) == ((), (3,), ())
    decision = arrive(policy, (0, 1, 1), (1, 1, 1), (2, 1, 1))
    assert decision.updates[0].contributors == (0, 1, 2, 3)
    assert decision.updates[0].staleness == (0, 0, 0, 1)
    assert decision.updates[0].weights == (0.25,) * 4


def test_what_is_staler_than_the_cap_is_dropped_not_folded():
    policy = create("m-sync-fold", range(2), {"m": 1, "staleness_cap": 2})
    arrive(policy, (0, 0, 0), (0, 1, 1), (0, 2, 2))
    assert arrive(policy, (1, 0, 0)).dropped == (Gradient(1, 0, 0),)


def test_m_sync_under_a_straggler_runs_at_the_pace_of_the_others():
    ssgd = play(policy_of("ssgd", 4), three_quick_one_slow, gradients=80)
    partial = play(create("m-sync", range(4), {"m": 3}), three_quick_one_slow, gradients=80)
    pace = [b - a for a, b in pairwise(ssgd.update_times_s)]
    quick = [b - a for a, b in pairwise(partial.update_times_s)]
    assert max(pace) == pytest.approx(4.0)
    assert max(quick) <= 1.021


def test_a_deadline_takes_whoever_is_there_in_time():
    policy = create("deadline", range(3), {"after_s": 0.5})
    first = arrive(policy, (0, 0, 0), at_s=10.0)
    assert first.wake_at_s == 10.5
    arrive(policy, (2, 0, 0), at_s=10.2)
    decision = policy.decide(Woken(10.5))
    assert decision.updates[0].contributors == (0, 2)
    assert decision.updates[0].weights == (0.5, 0.5)


def test_a_deadline_waits_on_for_the_least_number():
    policy = create("deadline", range(3), {"after_s": 0.5, "least": 2})
    arrive(policy, (0, 0, 0), at_s=0.0)
    assert policy.decide(Woken(0.5)).updates == ()
    assert arrive(policy, (1, 0, 0), at_s=0.9).updates[0].contributors == (0, 1)


def test_a_deadline_closes_early_when_everybody_is_there():
    policy = create("deadline", range(2), {"after_s": 5.0})
    assert arrive(policy, (0, 0, 0), (1, 0, 0)).updates[0].contributors == (0, 1)


def test_local_sgd_steps_alone_and_averages_after_its_period():
    played = play(create("local-sgd", range(3), {"period": 4}), lambda w, k: 1.0 + w, gradients=24)
    assert played.averagings == [(0, 1, 2)] * 2
    assert len(played.local) == 24
    assert played.updates == []


def test_groups_step_together_inside_and_average_between_after_their_period():
    policy = create("hierarchical", range(4), {"groups": [[0, 1], [2, 3]], "period": 2})
    decision = arrive(policy, (0, 0, 0), (1, 0, 0))
    assert decision.updates[0].members == (0, 1)
    assert decision.release == (0, 1)
    assert arrive(policy, (0, 1, 0), (1, 1, 0)).release == ()
    arrive(policy, (2, 0, 0), (3, 0, 0))
    last = arrive(policy, (2, 1, 0), (3, 1, 0))
    assert last.average == ((0, 1, 2, 3),)
    assert last.release == (0, 1, 2, 3)


def test_ssp_holds_whoever_is_too_far_ahead_until_the_slowest_has_caught_up():
    policy = create("ssp", range(2), {"s": 1})
    assert arrive(policy, (0, 0, 0)).release == (0,)
    assert arrive(policy, (0, 1, 1)).release == ()
    assert arrive(policy, (1, 0, 0)).release == (0, 1)


def test_lb_bsp_moves_samples_from_slow_to_fast_and_weighs_by_samples():
    policy = create("lb-bsp", range(2), {"batch_size": 30})
    policy.decide(Predicted({0: 1.0, 1: 2.0}))
    decision = policy.decide(Arrived(Gradient(0, 0, 0, samples=30)))
    decision = policy.decide(Arrived(Gradient(1, 0, 0, samples=30)))
    assert decision.batch_sizes == {0: 40, 1: 20}
    policy.decide(Arrived(Gradient(0, 1, 1, samples=40)))
    decision = policy.decide(Arrived(Gradient(1, 1, 1, samples=20)))
    assert decision.updates[0].weights == pytest.approx([2 / 3, 1 / 3])


@given(st.dictionaries(st.integers(0, 50), st.floats(0.01, 100.0), min_size=1), st.integers(0, 500))
def test_a_split_gives_away_exactly_the_total_and_everybody_at_least_one(share, extra):
    sizes = split(share, len(share) + extra)
    assert sum(sizes.values()) == len(share) + extra
    assert min(sizes.values()) >= 1


def test_sync_switch_waits_first_and_not_later():
    played = play(create("sync-switch", range(4), {"switch_at": 3}), three_quick_one_slow, gradients=60)
    assert [len(update.gradients) for update in played.updates[:4]] == [4, 4, 4, 1]


def test_zeno_applies_what_scores_well_and_drops_the_rest():
    policy = create("zeno++", range(2))
    gradient = Gradient(0, 0, 0)
    assert policy.decide(Arrived(gradient)).score == (gradient,)
    assert policy.decide(Scored(gradient, 0.3)).updates[0].contributors == (0,)
    bad = Gradient(1, 0, 0)
    policy.decide(Arrived(bad))
    assert policy.decide(Scored(bad, -0.3)).dropped == (bad,)


def test_a_score_for_a_worker_that_has_left_changes_nothing():
    policy = create("zeno++", range(2))
    gradient = Gradient(0, 0, 0)
    policy.decide(Arrived(gradient))
    policy.decide(Left(0))
    assert policy.decide(Scored(gradient, 0.3)).updates == ()


def test_eager_solo_steps_with_the_first_and_majority_with_the_one_that_was_drawn():
    assert arrive(create("eager", range(4), {"majority": False}), (2, 0, 0)).updates[0].contributors == (2,)
    policy = create("eager", range(4), {"seed": 3})
    others = [w for w in range(4) if w != policy.initiator]
    drawn = policy.initiator
    assert arrive(policy, *[(w, 0, 0) for w in others]).updates == ()
    assert set(arrive(policy, (drawn, 0, 0)).updates[0].contributors) == {0, 1, 2, 3}


def test_drop_compute_weighs_by_what_each_has_computed():
    policy = create("drop-compute", range(2), {"tau_s": 0.7})
    first = policy.decide(Arrived(Gradient(0, 0, 0, samples=3)))
    assert first.stop_after_s == 0.7
    decision = policy.decide(Arrived(Gradient(1, 0, 0, samples=1)))
    assert decision.updates[0].weights == (0.75, 0.25)


def test_rennala_collects_from_the_quick_and_drops_what_is_stale():
    policy = create("rennala", range(2), {"batch": 3})
    decision = arrive(policy, (0, 0, 0), (0, 1, 0), (0, 2, 0))
    assert decision.updates[0].contributors == (0, 0, 0)
    assert arrive(policy, (1, 0, 0)).dropped == (Gradient(1, 0, 0),)


def test_ringmaster_discards_from_a_delay_of_r_on():
    policy = create("ringmaster", range(2), {"r": 2})
    arrive(policy, (0, 0, 0), (0, 1, 1))
    assert arrive(policy, (1, 0, 0)).dropped == (Gradient(1, 0, 0),)


# Groups of like speed


def test_groups_are_as_far_apart_as_the_threshold_says():
    assert by_speed({0: 1.0, 1: 1.02, 2: 2.0, 3: 2.1, 4: 9.0}, 0.15) == [[0, 1], [2, 3], [4]]
    assert by_speed({0: 1.0, 1: 1.02, 2: 1.01}, 0.15) == [[0, 2, 1]]
    assert by_speed({}, 0.15) == []


@given(st.dictionaries(st.integers(0, 60), st.floats(0.1, 10.0), min_size=1, max_size=40), st.floats(0.01, 1.0))
def test_grouping_is_that_of_plain_agglomerative_clustering(times, threshold):
    groups = [[worker] for worker in sorted(times, key=lambda w: (times[w], w))]
    ordered = sorted(times.values())
    limit = threshold * ordered[len(ordered) // 2]
    mean = lambda group: sum(times[w] for w in group) / len(group)  # noqa: E731
    while len(groups) > 1:
        gaps = [mean(b) - mean(a) for a, b in pairwise(groups)]
        least = min(range(len(gaps)), key=gaps.__getitem__)
        if gaps[least] > limit:
            break
        groups[least : least + 2] = [groups[least] + groups[least + 1]]
    found = by_speed(times, threshold)
    assert sorted(map(sorted, found)) == sorted(map(sorted, groups)) or _near_tie(times, found, groups)


def _near_tie(times, found, groups):
    """Sums in another order differ in the last digit, and equal gaps may then be joined the other way round."""
    return sorted(len(g) for g in found) == sorted(len(g) for g in groups) or len(set(times.values())) < len(times)
