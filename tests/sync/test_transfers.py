"""Whose interface is slow, from what ranks tell of their part in reductions: played ones, rings or stars."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starprof.sync.transfers import ENOUGH, LEAST_S, TRIED_AFTER, TRIED_SHARE, Sent, Transfers, blame

STEP_S = 0.03
USUAL_S = (0.0, 0.004)
MOST_S = 0.3


class Rounds:
    """Rounds of the first `m` of some ranks, which all compute alike.

    In a ring data goes from each to the one before it, in a star from all to the first, and then back to all.
    """

    def __init__(self, ranks, m, *, out=None, into=None, seed=0, star=False):
        self.transfers = Transfers(range(ranks))
        self.ranks, self.m = list(range(ranks)), m
        self.out, self.into = dict(out or {}), dict(into or {})
        self.star = star
        self.now_s, self.lost_s = 0.0, 0.0
        self.made_of = []
        self._rng = random.Random(seed)
        self._told = {}

    def play(self, rounds):
        for _ in range(rounds):
            ready = {}
            for rank in self._rng.sample(self.ranks, len(self.ranks)):
                self.transfers.told(rank, self._told.pop(rank, ()), self.now_s)
                ready[rank] = self.transfers.delay_s(rank, self.now_s)
            first = sorted(sorted(ready, key=ready.get)[: self.m])
            self.made_of.append(first)
            took_s = sum(max(self._carry(sender, to) for sender, to in ways) for ways in self._ways(first))
            self.lost_s += max(0.0, took_s - LEAST_S)
            self.now_s += STEP_S + took_s
        return self

    def _ways(self, members):
        if not self.star:
            return [[(rank, members[place - 1]) for place, rank in enumerate(members)]]
        others = members[1:]
        return [[(rank, members[0]) for rank in others], [(members[0], rank) for rank in others]]

    def _carry(self, rank, to):
        took_s = self._rng.uniform(*USUAL_S) + self.out.get(rank, 0.0) + self.into.get(to, 0.0)
        self._told.setdefault(rank, []).append(Sent(to, round(took_s * 1e6)))
        return took_s

    @property
    def blamed(self):
        return set(self.transfers.slow)

    def contributions(self, rank, last):
        return sum(rank in first for first in self.made_of[-last:])


def some(test):
    """Not bound to a time, nor to as many examples: each is a thousand rounds."""
    return settings(deadline=None, max_examples=25)(test)


@st.composite
def slow_one(draw):
    """A job, how many make a round, and a rank with a slow interface in one direction or both."""
    ranks = draw(st.integers(3, 9))
    m = draw(st.integers((ranks + 1) // 2, ranks - 1))  # with fewer it is hardly ever among the first
    slow = draw(st.integers(0, ranks - 1))
    extra_s = draw(st.floats(0.05, MOST_S))
    directions = draw(st.sampled_from([("out",), ("into",), ("out", "into")]))
    return slow, {
        "ranks": ranks,
        "m": m,
        "seed": draw(st.integers(0, 1000)),
        **{to: {slow: extra_s} for to in directions},
    }


@some
@given(slow_one())
def test_exactly_the_one_with_a_slow_interface_is_left_out(job):
    slow, setting = job
    played = Rounds(**setting).play(400)
    assert played.blamed == {slow}
    assert played.contributions(slow, last=200) <= 25


@pytest.mark.parametrize("star", [False, True])
@pytest.mark.parametrize("directions", [("out",), ("into",), ("out", "into")])
def test_two_of_them_are_left_out_both(directions, star):
    played = Rounds(6, 4, star=star, **{to: {1: 0.1, 4: 0.2} for to in directions}).play(400)
    assert played.blamed == {1, 4}


def test_where_rounds_can_t_do_without_them_they_take_part_and_are_known_to_be_fast_again():
    played = Rounds(4, 3, out={1: 0.1, 2: 0.2}).play(200)
    assert played.blamed == {1, 2}
    assert played.contributions(1, last=100) + played.contributions(2, last=100) >= 100
    played.out = {}
    assert played.play(1500).blamed == set()


@some
@given(slow_one())
def test_trying_it_again_costs_a_small_share_of_the_time(job):
    _, setting = job
    played = Rounds(**setting).play(400)
    began_s, lost_s = played.now_s, played.lost_s
    played.play(600)
    assert played.lost_s - lost_s <= 2 * TRIED_SHARE * (played.now_s - began_s) + 2 * MOST_S


@some
@given(slow_one())
def test_who_is_as_fast_as_the_others_again_takes_part_again(job):
    slow, setting = job
    played = Rounds(**setting).play(400)
    played.out, played.into = {}, {}
    played.play(1000)
    assert played.blamed == set()
    assert played.contributions(slow, last=200) > 50


@some
@given(st.integers(2, 9), st.integers(0, 1000), st.data())
def test_where_nothing_is_slow_nobody_is_held_back(ranks, seed, data):
    m = data.draw(st.integers(2, ranks))
    played = Rounds(ranks, m, seed=seed)
    for _ in range(30):
        played.play(10)
        assert played.blamed == set()


@some
@given(st.integers(3, 9), st.integers(0, 1000))
def test_where_every_way_takes_long_nobody_is_to_blame(ranks, seed):
    played = Rounds(ranks, ranks - 1, out=dict.fromkeys(range(ranks), 0.2), seed=seed)
    played.play(200)
    assert played.blamed == set()


def test_a_few_slow_reductions_are_no_evidence():
    transfers = Transfers(range(3))
    for place in range(10 * ENOUGH):
        slow = place % ENOUGH == 0  # one of five
        for rank in range(3):
            transfers.told(rank, [Sent((rank - 1) % 3, 400_000 if slow and rank == 1 else 1_000)], 0.0)
            assert transfers.delay_s(rank, 0.0) == 0.0


def test_a_rank_is_held_back_by_what_its_part_takes_longer():
    transfers = Transfers(range(3))
    for _ in range(ENOUGH):
        assert transfers.delay_s(2, 0.0) == 0.0
        for rank in range(3):
            transfers.told(rank, [Sent((rank - 1) % 3, 120_000 if rank == 2 else 20_000)], 0.0)
    assert [transfers.delay_s(rank, 0.0) for rank in range(3)] == pytest.approx([0.0, 0.0, 0.1])


def test_a_trial_that_tells_nothing_ends():
    transfers = Transfers(range(2))
    for _ in range(ENOUGH):
        transfers.told(0, [Sent(1, 1_000)], 0.0)
        transfers.told(1, [Sent(0, 101_000)], 0.0)
    held = [transfers.delay_s(1, 100.0 * place) > 0.0 for place in range(10 * TRIED_AFTER)]
    assert 0.5 < sum(held) / len(held) < 1.0
    assert held[-TRIED_AFTER:].count(False) < TRIED_AFTER


def test_where_two_may_be_to_blame_the_sender_is_and_a_further_way_tells():
    assert blame({(1, 0): 0.1, (0, 2): 0.0, (2, 1): 0.0}) == {1: 0.1}
    assert blame({(1, 0): 0.1, (0, 2): 0.0, (2, 1): 0.0, (2, 0): 0.12}) == {0: 0.12}
    assert blame({(1, 0): 0.1, (0, 2): 0.0, (2, 1): 0.0, (2, 0): 0.0}) == {1: 0.1}
    assert blame({(0, 1): 0.0, (1, 0): 0.0}) == {}
