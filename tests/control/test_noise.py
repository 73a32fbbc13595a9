"""Looks at gradients: in which steps, at what, and what the coordinator makes of them."""

import json
import math
from itertools import count

import pytest
import torch
from coordinator_lab import wait_for
from torch import nn

from starprof.cli import main
from starprof.control.coordinator.noise import PENDING, NoiseBook
from starprof.control.engine.flat import Flat, Layout, dot
from starprof.control.engine.noise import EVERY, NoiseLooks, asked_every
from starprof.hook.boundary import Guard
from starprof.sync.policies import Gradient
from starprof.sync.protocol.messages import Close, Norms


class Line:
    """Where a rank says something."""

    def __init__(self):
        self.said = []

    def send(self, message):
        self.said.append(message)


class Broken:
    def send(self, _message):
        raise OSError("nobody there")


def looks_at(model, every=1, link=None):
    looks = NoiseLooks(2, list(model.parameters()), Guard(), every)
    looks.link = link or Line()
    return looks


def hooked(model):
    return sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())


def squared(model):
    return sum(float((p.grad.double() ** 2).sum()) for p in model.parameters() if p.grad is not None)


def close_of(number, *gradients, weights=None, attempt=0):
    weights = weights or (1.0 / len(gradients),) * len(gradients)
    return Close(1, number, attempt, gradients, weights)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))


class TestNative:
    def test_only_one_step_of_so_many_has_hooks(self, model):
        looks = looks_at(model, every=4)
        hooks = []
        for version in range(9):
            looks.before_native(version)
            hooks.append(hooked(model))
            model(torch.ones(2, 5)).sum().backward()
            looks.after_native(version, 1.0)
            assert hooked(model) == 0
        assert [version for version, number in enumerate(hooks) if number] == [0, 4, 8]
        assert [norms.version for norms in looks.link.said] == [0, 4, 8]

    def test_a_rank_sees_its_own_sum_of_accumulated_gradients_and_then_the_mean(self, model):
        looks = looks_at(model)
        looks.before_native(0)
        for batch in (torch.ones(2, 5), torch.randn(2, 5)):
            model(batch).sum().backward()
        own = squared(model)
        for parameter in model.parameters():
            parameter.grad *= 0.5  # as a reduction would change it
        looks.after_native(0, 1.0)
        (norms,) = looks.link.said
        assert (norms.rank, norms.native, norms.number) == (2, True, None)
        assert norms.own == pytest.approx(own, rel=1e-12)
        assert norms.update == pytest.approx(own / 4, rel=1e-12)

    def test_the_scale_of_the_loss_is_taken_out(self, model):
        looks = looks_at(model)
        looks.before_native(0)
        (model(torch.ones(2, 5)).sum() * 1024).backward()
        looks.after_native(0, 1024.0)
        assert looks.link.said[0].own == pytest.approx(squared(model) / 1024**2)

    def test_gradients_that_are_not_finite_tell_nothing(self, model):
        looks = looks_at(model)
        looks.before_native(0)
        (model(torch.ones(2, 5)).sum() * math.inf).backward()
        looks.after_native(0, 1.0)
        assert looks.link.said == []

    def test_parameters_without_a_gradient_are_no_trouble(self, model):
        looks = looks_at(model)
        looks.before_native(0)
        model[0](torch.ones(2, 5)).sum().backward()
        looks.after_native(0, 1.0)
        assert looks.link.said[0].own == pytest.approx(squared(model))

    def test_what_fails_is_counted_and_does_not_reach_the_training(self, model):
        looks = looks_at(model, link=Broken())
        looks.before_native(0)
        model(torch.ones(2, 5)).sum().backward()
        looks.after_native(0, 1.0)
        assert looks._guard.errors == 1
        assert hooked(model) == 0

    def test_half_gradients_are_summed_in_float64(self):
        half = nn.Linear(300, 300).bfloat16()
        looks = looks_at(half)
        looks.before_native(0)
        half(torch.randn(4, 300).bfloat16()).sum().backward()
        looks.after_native(0, 1.0)
        assert looks.link.said[0].own == pytest.approx(squared(half), rel=1e-12)


def test_a_sum_of_very_many_squares_keeps_its_digits():
    values = torch.randn(3_000_000)
    assert dot(values, values) == pytest.approx(float((values.double() ** 2).sum()), rel=1e-12)


@pytest.mark.parametrize(("told", "every"), [(None, EVERY), ("7", 7), ("0", 0), ("often", EVERY)])
def test_how_often_is_the_users_choice(told, every):
    assert asked_every({} if told is None else {"STARPROF_CONTROL_NOISE_EVERY": told}) == every


class Rounds:
    """Flat gradients of two ranks, and the looks of rank 2 at them."""

    def __init__(self, model, every):
        self.layout = Layout(list(model.parameters()))
        self.looks = looks_at(model, every)
        self.results = {}

    def flat(self, factor=1.0):
        flat = Flat(self.layout)
        flat.tensor.normal_()
        flat.factor = factor
        return flat

    def made(self, *closes):
        for close in closes:
            self.results[close.round] = self.flat()
        self.looks.made(list(closes), self.results.__getitem__)
        return self.looks.link.said


class TestRounds:
    def test_own_gradients_are_told_without_what_they_are_scaled_by(self, model):
        rounds = Rounds(model, 10)
        mine = Gradient(2, 5, 20)
        flat = rounds.flat(1 / 64)
        other = Gradient(3, 1, 20)
        for number in (19, 20, 21):
            rounds.looks.contributes(close_of(number, mine, other), [(mine, flat)])
        (norms,) = rounds.looks.link.said
        values = flat.tensor[: rounds.layout.edges[-1]].double()
        assert (norms.version, norms.number) == (20, 5)
        assert norms.own == pytest.approx(float(values @ values) / 64**2)

    def test_the_leader_tells_of_the_sum(self, model):
        rounds = Rounds(model, 10)
        mine, other, before = Gradient(2, 5, 20), Gradient(3, 1, 20), Gradient(0, 1, 20)
        rounds.made(close_of(20, before, mine))
        assert rounds.looks.link.said == [], "rank 0 leads"
        (norms,) = rounds.made(close_of(30, mine, other, attempt=1))
        values = rounds.results[30].tensor[: rounds.layout.edges[-1]].double()
        assert (norms.version, norms.attempt, norms.pair) == (30, 1, False)
        assert norms.update == pytest.approx(float(values @ values))

    def test_of_single_gradients_two_in_a_row_are_put_together(self, model):
        rounds = Rounds(model, 10)
        closes = [close_of(19, Gradient(3, 1, 18), weights=(0.25,)), close_of(20, Gradient(2, 5, 18), weights=(0.25,))]
        (norms,) = rounds.made(*closes)
        both = sum(rounds.results[n].tensor[: rounds.layout.edges[-1]].double() / 0.25 for n in (19, 20))
        assert (norms.version, norms.pair) == (20, True)
        assert norms.update == pytest.approx(float(both @ both))

    def test_means_of_states_are_no_gradients(self, model):
        rounds = Rounds(model, 1)
        assert rounds.made(close_of(1, Gradient(2, 5, 0, steps=4), Gradient(3, 5, 0, steps=4))) == []


class TestBook:
    def test_a_native_step_counts_when_all_have_told(self):
        book = NoiseBook(range(3))
        for rank in (2, 0):
            assert book.told(Norms(rank, 7, own=6.0, update=3.0, native=True)) is None
        seen = book.told(Norms(1, 7, own=6.0, update=3.0, native=True))
        assert (seen.version, seen.gradients) == (7, 3)
        assert seen.squares.signal == pytest.approx((3 * 3.0 - 6.0) / 2)

    def test_a_round_counts_in_whatever_order_its_norms_come(self):
        book = NoiseBook(range(3))
        book.closed(close_of(4, Gradient(0, 9, 4), Gradient(2, 8, 4)))
        assert book.told(Norms(0, 4, update=2.0)) is None
        assert book.told(Norms(2, 4, 8, own=5.0)) is None
        seen = book.told(Norms(0, 4, 9, own=3.0))
        assert seen.squares.local == pytest.approx(4.0)
        assert seen.squares.update == pytest.approx(2.0)

    def test_of_a_round_that_is_reduced_again_the_newest_try_counts(self):
        book = NoiseBook(range(3))
        book.closed(close_of(4, Gradient(0, 9, 4), Gradient(2, 8, 4), Gradient(1, 2, 4)))
        for rank, number in ((0, 9), (2, 8)):
            book.told(Norms(rank, 4, number, own=4.0))
        book.told(Norms(0, 4, update=1.0))
        book.closed(close_of(4, Gradient(0, 9, 4), Gradient(2, 8, 4), attempt=1))
        seen = book.told(Norms(0, 4, attempt=1, update=3.0))
        assert (seen.gradients, seen.squares.update) == (2, pytest.approx(3.0))

    def test_two_rounds_of_one_gradient_are_an_update_of_two(self):
        book = NoiseBook(range(3))
        book.closed(close_of(9, Gradient(0, 9, 7), weights=(1 / 3,)))
        book.closed(close_of(10, Gradient(1, 5, 6), weights=(1 / 3,)))
        book.told(Norms(1, 10, 5, own=2.0))
        book.told(Norms(1, 10, update=8.0, pair=True))
        seen = book.told(Norms(0, 9, 9, own=4.0))
        assert (seen.version, seen.gradients, seen.squares.share) == (10, 2, pytest.approx(0.5))
        assert (seen.squares.local, seen.squares.update) == (pytest.approx(3.0), pytest.approx(2.0))

    def test_what_never_gets_complete_is_forgotten(self):
        book = NoiseBook(range(2))
        for version in range(10 * PENDING):
            book.told(Norms(0, version, own=1.0, update=1.0, native=True))
            book.told(Norms(0, version, 3, own=1.0))
            book.closed(close_of(version, Gradient(0, 1, 0), Gradient(1, 1, 0)))
        assert (len(book._native), len(book._rounds)) == (PENDING, PENDING)
        assert len(book._closes) < 10 * PENDING * 2
        assert book.estimate is None


def test_status_tells_the_noise_scale(begin, capsys):
    coordinator, job = begin(3)
    wait_for(lambda: coordinator.status()["state"] == "native")
    assert coordinator.status()["noise"] is None
    versions = count()

    def told():
        version = next(versions)
        for rank in job.ranks:
            rank.link.send(Norms(rank.rank, version, own=6.0 + version % 3, update=4.0 + version % 2, native=True))
        noise = coordinator.status()["noise"]
        return noise if noise is not None and noise["updates"] >= 10 else None

    noise = wait_for(told)
    assert 0 <= noise["low"] < noise["scale"] < noise["high"]
    assert main(["ctl", str(coordinator.folder), "status"]) == 0
    assert "gradient noise scale; 95 %:" in capsys.readouterr().out
    assert main(["ctl", str(coordinator.folder), "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["noise"]["updates"] >= 10
