"""A user's training loop around a small model, and what the engine does to it."""

import torch
from torch import nn, optim

from starprof.control.engine.updating import Updating
from starprof.hook.boundary import Guard


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.last = nn.Linear(8, 3)
        self.spare = nn.Linear(4, 4)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))))


class Training:
    """What a user makes: `update` is what the loop does between backward and the next forward."""

    def __init__(self, model, optimizers, update, *stateful, scaler=None):
        self.model = model
        self.optimizers = optimizers
        self.update = update
        self.stateful = stateful
        self.scaler = scaler


class Loop:
    """One rank."""

    def __init__(self, recipe, *, seed=0, known=True, **options):
        """With `known`, the optimizers are told of; a running job sees them when they step."""
        torch.manual_seed(seed)
        self.model = Net()
        self.training = recipe(self.model)
        self.at_meeting = lambda: None
        self.guard = Guard()
        self.errors = []
        self.guard.report = lambda _count, text: self.errors.append(text)
        self.updating = Updating(self.guard, self.model, self.training.optimizers if known else (), **options)
        self.updating.install()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.updating.restore()
        assert self.errors == []

    def backward(self):
        for parameter in self.model.parameters():
            parameter.grad = None
        loss = self.model(torch.randn(5, 6)).pow(2).mean()
        scaler = self.training.scaler
        (loss if scaler is None else scaler.scale(loss)).backward()

    def put(self, gradients):
        """As the engine does: copies, in the scale of this rank."""
        scaler = self.training.scaler
        scale = 1.0 if scaler is None else scaler.get_scale()
        assert not self.updating.ready or scale == self.updating.scale()
        for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
            parameter.grad = None if gradient is None else gradient * scale

    def native(self, gradients=None):
        """One native step; with `gradients` as the result of the reduction."""
        self.backward()
        if gradients is not None:
            self.put(gradients)
        self.updating.learn()
        return self.training.update()

    def rounds(self, updates, *, meeting=None):
        """One iteration in rounds: all updates but the last are replayed; without any nothing changes.

        The one who hands an update out is equally far with its schedules: its hyper-parameters are these.
        """
        self.backward()
        self.updating.learn()
        for gradients in updates[:-1]:
            self.updating.replay(lambda gradients=gradients: self.put(gradients), self.updating.hyper())
        if updates:
            self.put(updates[-1])
            self.updating.own(self.updating.hyper())
        else:
            self.updating.skip_own()
        return self.training.update() if meeting is None else self.update_with_meeting(meeting)

    def update_with_meeting(self, later):
        """The loop meets the others in the middle of its own update; there are later updates by then."""
        self.at_meeting = lambda: self.meet(later)
        try:
            return self.training.update()
        finally:
            self.at_meeting = lambda: None

    def meet(self, later):
        self.updating.complete_own()
        for gradients in later:
            self.updating.replay(lambda gradients=gradients: self.put(gradients), self.updating.hyper())

    def state(self):
        """All that training leaves behind, as bytes and plain values."""
        holders = [self.model, *self.training.optimizers, *self.training.stateful]
        return [flat(holder.state_dict()) for holder in holders]


def flat(value):
    """Comparable: tensors by their bits."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return {key: flat(entry) for key, entry in value.items() if not callable(entry)}
    if isinstance(value, list | tuple):
        return [flat(entry) for entry in value]
    return value


def gradients(model, number, *, size=1.0, spare=False):
    """Of update `number`; the spare layer has none unless asked for."""
    generator = torch.Generator().manual_seed(1000 + number)
    return [
        None if name.startswith("spare") and not spare else size * torch.randn(p.shape, generator=generator)
        for name, p in model.named_parameters()
    ]


def loop_of(body, make=lambda p: optim.SGD(p, lr=0.1, momentum=0.9), *, known=True, **parts):
    """A loop whose `body(model, optimizer, iteration, **parts)` follows each backward pass."""

    def recipe(model):
        optimizer = make(model.parameters())
        made = {name: part(model, optimizer) for name, part in parts.items()}
        count = iter(range(10**6))
        return Training(model, [optimizer], lambda: body(model, optimizer, next(count), **made), *made.values())

    return Loop(recipe, known=known)


def refusal_of(body, steps=30, **kwargs):
    with loop_of(body, **kwargs) as loop:
        for _ in range(steps):
            loop.native()
        loop.updating.learn()
        assert (loop.updating.refusal is None) == loop.updating.ready
        return loop.updating.refusal
