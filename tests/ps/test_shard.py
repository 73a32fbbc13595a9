"""A shard by itself: torch's own steps, and after a kill at any moment the same bits."""

import shutil

import pytest
import torch
from ps_lab import adamw, batch, loss_of, sgd, small_model

from starprof.errors import TransportError, UsageError
from starprof.ps.messages import Entry, Named, Part, Push
from starprof.ps.optimizers import describe, hyper_of
from starprof.ps.shard.core import SLOTS, Core
from starprof.ps.spec import spread
from starprof.sync.policies import Gradient


class Pair:
    """A shard that keeps a whole model, and torch's optimizer beside it."""

    def __init__(self, folder, make, half=""):
        self.folder, self.half = folder, half
        self.model, self.optimizer, self.schedule = make(0)
        self.spec, self.parameters = describe(self.model, self.optimizer)
        self.core = Core(folder, self.spec, 0, 1)
        flat = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        self.core.first()[:] = memoryview(flat.view(torch.uint8).numpy())
        self.core.begin()
        self.serial = 0
        self.numbers = {0: 0, 1: 0}

    def hand_in(self, worker, skipped=()):
        """The gradient of a worker; some of the parameters have none."""
        number = self.numbers[worker] = self.numbers[worker] + 1
        self.model.zero_grad()
        loss_of(self.model, *batch(worker, number)).backward()
        gradients = [torch.zeros_like(p) if at in skipped else p.grad for at, p in enumerate(self.parameters)]
        flat = torch.cat([g.reshape(-1) for g in gradients])
        flat = flat.to(getattr(torch, self.half)) if self.half else flat
        push = Push(Gradient(worker, number, self.core.version), self.half, tuple(skipped))
        room = self.core.room(push, flat.numel() * flat.element_size())
        room[:] = memoryview(flat.view(torch.uint8).numpy())
        self.core.came(push)
        return [g.clone() for g in gradients]

    def entry(self, workers, weight, clip=0.0):
        parts = tuple(Part(worker, self.numbers[worker], weight) for worker in workers)
        release = tuple(Named(worker, self.numbers[worker]) for worker in workers)
        entry = Entry(
            self.serial, self.core.version, parts, hyper_of(self.optimizer), clip, release=release, floor=self.serial
        )
        self.serial += 1
        return entry

    def killed(self, copies):
        """What the next process finds, from the files as they are."""
        copied = self.folder.with_name(f"copy-{copies}")
        shutil.copytree(self.folder, copied)
        return Core(copied, self.spec, 0, 1)

    def same(self, core=None):
        core = core or self.core
        expected = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        return float((core.flat - expected).abs().max()) if core.flat.numel() else 0.0


@pytest.mark.parametrize("make", [sgd, adamw])
def test_steps_are_torchs_and_survive_a_kill_at_any_moment(tmp_path, make):
    pair = Pair(tmp_path / "shard", make)
    for step in range(21):
        skipped = (1, 3) if step % 4 == 1 else ()
        first = pair.hand_in(0, skipped)
        second = pair.hand_in(1, skipped)
        before = pair.killed(2 * step)
        assert before.version == step
        assert len(before.holds) == 2
        entry = pair.entry((0, 1), 0.5)
        for core in (pair.core, before):
            core.add(entry)
            assert [outcome.entry for outcome in core.advance()] == [entry]
        for at, one in enumerate(pair.parameters):
            one.grad = None if at in skipped else 0.5 * first[at] + 0.5 * second[at]
        pair.optimizer.step()
        pair.schedule.step()
        after = pair.killed(2 * step + 1)
        assert pair.same() < 1e-12
        assert torch.equal(before.flat, pair.core.flat)
        assert torch.equal(after.flat, pair.core.flat)
        assert not after.holds


def test_an_update_is_clipped_by_the_norm_over_all_shards(tmp_path):
    pair = Pair(tmp_path / "shard", sgd)
    gradients = pair.hand_in(0)
    entry = pair.entry((0,), 1.0, clip=0.01)
    pair.core.add(entry)
    outcome = next(iter(pair.core.advance()))
    expected = sum(float((g**2).sum()) for g in gradients)
    assert outcome.square == pytest.approx(expected, rel=1e-9)
    assert pair.core.version == 0, "it waits for the others' norms"
    assert pair.core.factor(entry.serial, 0.25) is not None
    assert pair.core.factor(entry.serial, 0.25) is None
    for one, gradient in zip(pair.parameters, gradients, strict=True):
        one.grad = 0.25 * gradient
    pair.optimizer.step()
    assert pair.same() < 1e-12


def test_half_gradients_are_added_up_in_the_shards_own_type(tmp_path):
    pair = Pair(tmp_path / "shard", sgd, half="bfloat16")
    gradients = [g.bfloat16().double() for g in pair.hand_in(0)]
    pair.core.add(pair.entry((0,), 0.5))
    list(pair.core.advance())
    for one, gradient in zip(pair.parameters, gradients, strict=True):
        one.grad = 0.5 * gradient
    pair.optimizer.step()
    assert pair.same() < 1e-12


def test_who_gets_the_parameters_gets_them_as_they_were(tmp_path):
    pair = Pair(tmp_path / "shard", sgd)
    memory, back = pair.core.lend()
    before = bytes(memory)
    pair.hand_in(0)
    pair.core.add(pair.entry((0,), 1.0))
    list(pair.core.advance())
    assert bytes(memory) == before != bytes(pair.core.lend()[0])
    back()


def test_a_gradient_that_is_here_or_was_used_is_not_wanted_again(tmp_path):
    pair = Pair(tmp_path / "shard", sgd)
    pair.hand_in(0)
    push = Push(Gradient(0, 1, 0), "", ())
    assert pair.core.room(push, pair.core.size_bytes) is None
    pair.core.add(pair.entry((0,), 1.0))
    list(pair.core.advance())
    assert pair.core.room(push, pair.core.size_bytes) is None
    with pytest.raises(TransportError, match="size"):
        pair.core.room(Push(Gradient(0, 2, 0), "", ()), 3)


def test_an_entry_waits_for_a_gradient_that_was_with_a_process_before(tmp_path):
    pair = Pair(tmp_path / "shard", sgd)
    pair.numbers[0] = 1
    pair.core.add(pair.entry((0,), 1.0))
    assert not list(pair.core.advance())
    pair.numbers[0] = 0
    pair.hand_in(0)
    assert len(list(pair.core.advance())) == 1


def test_room_is_bounded(tmp_path):
    pair = Pair(tmp_path / "shard", sgd)
    size = pair.core.size_bytes
    for number in range(1, SLOTS + 1):
        push = Push(Gradient(0, number, 0), "", ())
        assert pair.core.room(push, size) is not None
        pair.core.came(push)
    with pytest.raises(TransportError, match="no room"):
        pair.core.room(Push(Gradient(0, SLOTS + 1, 0), "", ()), size)


def test_parameters_are_spread_largest_first():
    assert spread([5, 1, 9, 4, 4], 2) == ((1, 2), (0, 3, 4)) or spread([5, 1, 9, 4, 4], 2) == ((2, 4), (0, 1, 3))
    sizes = [100, 7, 7, 7, 50, 50, 1]
    filled = [sum(sizes[place] for place in places) for places in spread(sizes, 3)]
    assert max(filled) == 100
    assert sorted(place for places in spread(sizes, 3) for place in places) == list(range(7))


def test_optimizers_that_no_shard_could_run_are_refused():
    model = small_model()
    with pytest.raises(UsageError, match="LBFGS"):
        describe(model, torch.optim.LBFGS(model.parameters()))
