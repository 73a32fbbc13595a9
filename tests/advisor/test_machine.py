"""The advisor's state machine, in simulated time."""

import dataclasses
import math

import numpy as np
import pytest
from advisor_world import World, between, infos, steady
from hypothesis import given, settings
from hypothesis import strategies as st

from starprof.advisor import Authority, Denied, Job, Limits, Loss, Move, Note, OwnTrainer, Ranks
from starprof.advisor.handover import drain_texts
from starprof.advisor.limits import SAFE_MODES
from starprof.errors import UsageError


def away(world):
    return [(at, move) for at, move in world.moves if move.mode != "native"]


def back(world):
    return [(at, move) for at, move in world.moves if move.mode == "native"]


def rate(world, begin_s, end_s):
    return float(np.mean([took for at, took, _ in world.times if begin_s <= at < end_s]))


def test_a_straggler_is_left_out_and_taken_back_when_it_is_well():
    world = World(between(3, 4, 10, 40))
    world.run(60)
    assert world.stages() == ["proposed", "canary", "kept", "returned", "native"]
    ((left_s, move),), ((came_s, _),) = away(world), back(world)
    assert 10 < left_s < 17
    assert 40 < came_s < 50
    assert move.proposal.ranks == (3,)
    kept = next(a for _, a in world.actions if isinstance(a, Note) and a.stage == "kept")
    assert kept.measured.low <= kept.measured.middle <= kept.measured.high
    assert kept.measured.middle == pytest.approx(move.proposal.predicted.middle, rel=0.2)
    assert rate(world, 20, 40) < 1.1 * rate(world, 0, 10)


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
def test_a_healthy_job_is_left_alone(noise):
    for seed in range(2):
        world = World(steady(1, 1, 1, 1), seed=seed, noise=noise)
        world.run(30)
        assert world.moves == []


def test_a_job_that_nothing_pays_for_is_left_alone():
    world = World(steady(1, 1, 1, 1.12))
    world.run(40)
    assert away(world) == []


def test_observe_and_suggest_say_it_and_do_nothing():
    for authority, stage in ((Authority.OBSERVE, "would"), (Authority.SUGGEST, "suggested")):
        world = World(between(3, 4, 5, 100), authority=authority)
        world.run(20)
        assert world.moves == []
        assert world.stages() == [stage], "once in a while, not in every step"
        note = world.actions[0][1]
        assert note.proposal.predicted.low > 1.5
        assert note.proposal.dry_gain > 1.5
        assert 0 <= note.proposal.accuracy_risk <= 0.5


def test_only_modes_that_the_user_allows():
    world = World(between(3, 4, 5, 100), limits=Limits(modes=("m-sync",)))
    world.run(15)
    assert {move.mode for _, move in away(world)} == {"m-sync"}
    fresh = World(between(3, 4, 5, 100), limits=Limits(staleness=0, accuracy_risk=0.0))
    fresh.run(15)
    assert all(move.proposal.max_staleness == 0 for _, move in away(fresh))


def test_the_loss_going_up_takes_the_job_back_and_bars_the_mode():
    world = World(between(3, 4, 8, 1000), limits=Limits(modes=("m-sync",)))
    rng = np.random.default_rng(0)
    world.losses = lambda now_s, _mode: Loss(loss=(5.0 if now_s > 25 else 1.0) + rng.normal(0, 0.05))
    world.run(60)
    assert "guard" in world.stages()
    ((came_s, move),) = back(world)
    assert 25 < came_s < 28
    assert "loss has risen" in move.reason
    assert len(away(world)) == 1, "the mode is barred, and no other is allowed"


def test_a_loss_that_is_not_finite_takes_it_back():
    world = World(between(3, 4, 8, 1000))
    world.losses = lambda now_s, mode: Loss(finite=not (now_s > 20 and mode != "native"))
    world.run(24)
    assert "not finite" in back(world)[0][1].reason


def test_a_noisy_and_falling_loss_is_no_divergence():
    world = World(between(3, 4, 8, 1000))
    rng = np.random.default_rng(1)
    world.losses = lambda now_s, _mode: Loss(loss=2.0 * math.exp(-now_s / 30) * rng.lognormal(0, 0.2))
    world.run(60)
    assert back(world) == []


def test_a_rising_gradient_norm_takes_it_back():
    world = World(between(3, 4, 8, 1000))
    world.losses = lambda now_s, _mode: Loss(norm=100.0 if now_s > 20 else 1.0)
    world.run(24)
    assert "norm" in back(world)[0][1].reason


def test_a_frozen_job_is_never_touched():
    world = World(between(3, 4, 5, 15))
    world.job = dataclasses.replace(world.job, frozen="user")
    world.run(20)
    assert world.moves == []
    moved = World(between(3, 4, 5, 22))
    moved.run(18)
    assert moved.advisor.phase == "kept"
    moved.job = dataclasses.replace(moved.job, frozen="user")
    moved.run(40)
    assert back(moved) == [], "not even back, when the fault is over"
    moved.job = dataclasses.replace(moved.job, frozen="")
    moved.run(50)
    assert len(back(moved)) == 1


def test_the_operators_own_mode_is_left_alone_until_he_gives_it_back():
    world = World(between(3, 4, 5, 1000))
    world.run(12)
    world.job = Job("m-sync", {"m": 3}, asked_by="user", operator="user")
    before = len(world.moves)
    world.run(40)
    assert len(world.moves) == before
    assert world.stages()[-1] in {"declined", "rolled-back"}


def test_what_the_coordinator_denies_is_not_asked_for_again_at_once():
    world = World(between(3, 4, 5, 1000), obey=False)
    while not world.moves:
        world.run(world.now_s + 1)
    world.say(Denied("the job stays with native steps"))
    world.run(world.now_s + 15)
    assert len(world.moves) == 1
    assert "declined" in world.stages()


def test_a_mode_that_does_not_keep_its_promise_is_rolled_back():
    """In rounds everybody gets slow: the canary sees it."""
    holder = []

    def slow(now_s):
        factors = np.ones(4)
        if now_s > 5:
            factors[3] = 4
            if holder and holder[0].job.mode != "native":
                factors[:] = 5
        return factors

    world = World(slow)
    holder.append(world)
    world.run(45)
    assert world.stages()[:3] == ["proposed", "canary", "rolled-back"]
    note = next(a for _, a in world.actions if isinstance(a, Note) and a.stage == "rolled-back")
    assert note.measured.middle < 1
    assert len(away(world)) == 1


def test_hosts_are_remembered_and_not_ranks():
    world = World(between(3, 4, 5, 12), limits=Limits(hold_s=50))
    hosts = ["a", "b", "c", "d"]
    world.say(Ranks(infos(4, hosts)))
    world.run(30)
    assert world.stages()[-1] == "native"
    assert world.advisor.state(30)["memory"]["d"]["moves"] == 1
    # The job starts anew, and rank 0 is on that host now: it is held back. Another host has no past.
    world.say(Ranks(infos(4, ["d", "b", "c", "a"]), attempt=1))
    world.slow, world.step = steady(4, 1, 1, 1), 0
    world.run(45)
    assert len(away(world)) == 1
    world.say(Ranks(infos(4, ["e", "b", "c", "a"]), attempt=2))
    world.step = 0
    world.run(90)
    assert len(away(world)) == 2


def test_no_action_during_a_checkpoint_or_an_evaluation():
    world = World(between(3, 4, 5, 1000))
    handle = world.advisor.handle

    def busy(event, now_s):
        if hasattr(event, "busy_s") and event.rank == 0 and now_s < 20:
            event = dataclasses.replace(event, busy_s=event.dur_s / 2)
        return handle(event, now_s)

    world.advisor.handle = busy
    world.run(30)
    assert away(world)[0][0] > 20


def test_a_host_that_is_late_for_long_is_to_be_drained():
    world = World(between(3, 4, 5, 1000), limits=Limits(drain_s=10.0))
    world.run(40)
    (note,) = [a for _, a in world.actions if isinstance(a, Note) and a.stage == "drain"]
    assert note.hosts == ("one/3",)
    texts = drain_texts("node7", {"SLURM_JOB_ID": "12"})
    assert any("scontrol update nodename=node7 state=drain" in text for text in texts["slurm"])
    assert any("kubectl drain node7" in text for text in texts["kubernetes"])
    assert texts["torch elastic"]


@settings(max_examples=6)
@given(
    periods=st.lists(st.floats(1.0, 25.0), min_size=4, max_size=16),
    factor=st.floats(1.1, 6.0),
    seed=st.integers(0, 2**16),
)
def test_an_adversary_can_not_make_it_flip_flop(periods, factor, seed):
    """Slow and quick by turns, for any times: ways away come ever more seldom, and never more than are allowed."""
    limits = Limits(hold_s=10, actions_per_hour=4)
    edges = np.cumsum(periods)

    def slow(now_s):
        factors = np.ones(4)
        if np.searchsorted(edges, now_s % edges[-1]) % 2:
            factors[3] = factor
        return factors

    world = World(slow, seed=seed, limits=limits)
    world.run(90)
    gone, came = [at for at, _ in away(world)], [at for at, _ in back(world)]
    assert len(gone) <= limits.actions_per_hour
    assert len(came) <= len(gone)
    for number, (came_s, next_s) in enumerate(zip(came, gone[1:], strict=False)):
        assert next_s - came_s >= limits.hold_s * 2**number * 0.99


def test_limits_are_checked():
    assert Limits.of({"modes": "m-sync,lgc", "actions_per_hour": 2}).modes == ("m-sync", "lgc")
    assert Limits.of(Limits().to_json()) == Limits()
    assert set(SAFE_MODES) <= set(Limits().modes)
    wrong = [{"speed": 1}, {"modes": "native"}, {"modes": "zeno++"}, {"momentum": 1.0}, {"staleness": -1}]
    for given_limits in [*wrong, {"actions_per_hour": 1.5}, {"shuffled": 1}, {"hold_s": math.inf}]:
        with pytest.raises(UsageError):
            Limits.of(given_limits)


def test_moves_tell_why():
    world = World(between(3, 4, 5, 1000))
    world.run(12)
    ((_, move),) = away(world)
    assert isinstance(move, Move)
    assert move.reason.startswith("action 1: ")
    cells = world.actions[0][1].cells()
    assert cells["ranks"] == "3"
    assert cells["predicted_low"] <= cells["predicted_gain"] <= cells["predicted_high"]


def test_a_trainer_of_ones_own_asks_and_applies():
    now, heard = [0.0], []
    trainer = OwnTrainer(4, heard.append, clock=lambda: now[0])
    rng = np.random.default_rng(0)
    for step in range(200):
        own = 0.1 * rng.lognormal(0, 0.05, 4)
        own[2] *= 4 if step > 70 else 1
        now[0] += own.max()
        for rank in range(4):
            trainer.step(rank, step, own[rank], own.max() - own[rank])
        if trainer.advice is not None:
            break
    assert heard == [trainer.advice]
    assert trainer.advice.proposal.ranks == (2,)
    trainer.applied(trainer.advice.mode, trainer.advice.options)
    assert trainer.advice is None
    trainer.loss(math.nan)
    trainer.loss(math.nan)
    now[0] += 1.0
    trainer.step(0, 500, 0.1, 0.0)
    assert trainer.advice.mode == "native"
