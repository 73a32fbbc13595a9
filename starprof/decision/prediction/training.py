"""Training of the LSTM with torch, on the processor, the same for the same seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from starprof.decision.prediction.history import COLUMNS, FARTHEST, ROLLOUT, TIME, filled, relative
from starprof.decision.prediction.lstm import HIDDEN, LAYERS, Lstm
from starprof.errors import UsageError

if TYPE_CHECKING:
    from starprof.analysis.arrays import Floats
    from starprof.decision.prediction.history import Series

EVERY = 5
BATCH = 128
RATE = 4e-3
LARGEST_NORM = 1.0


def examples(runs: Sequence[Series], every: int = EVERY) -> tuple[Floats, Floats]:
    """Inputs (M, W, 4) and targets (M, ROLLOUT) of all workers of all windows: logarithms and shares of the median."""
    inputs, targets = [], []
    for run in runs:
        past, after = run.windows(every)
        flat, then = past.reshape(-1, *past.shape[-2:]), after.reshape(-1, after.shape[-1])
        whole = np.isfinite(then).all(axis=1)
        flat, then = flat[whole], then[whole]
        middle = np.median(filled(flat)[..., TIME], axis=-1, keepdims=True)
        inputs.append(np.log(relative(flat)))
        targets.append(np.clip(then / middle, 0.0, FARTHEST) - 1.0)
    if not inputs or not sum(map(len, inputs)):
        return np.empty((0, 0, COLUMNS)), np.empty((0, ROLLOUT))
    return np.concatenate(inputs), np.concatenate(targets)


def train(runs: Sequence[Series], *, epochs: int, hidden: int = HIDDEN, seed: int = 0) -> Lstm:
    """Train on these runs: mean squared error over the whole rollout.

    Raises:
        UsageError: torch is not there, or there is nothing to train on.
    """
    inputs, targets = examples(runs)
    if not len(inputs):
        raise UsageError("no run is long enough to train on: 60 iterations after warm-up are needed")
    try:
        import torch
    except ImportError as error:
        raise UsageError("training the LSTM needs torch; --baselines-only does without") from error
    with torch.random.fork_rng(devices=[]), _one_thread(torch):
        torch.manual_seed(seed)
        network = _network(torch, hidden)
        _fit(torch, network, inputs, targets, epochs, seed)
    return Lstm({name: values.detach().numpy().copy() for name, values in network.named_parameters()})


@contextmanager
def _one_thread(torch: Any) -> Iterator[None]:
    """Its matrices are so small that threads only wait for each other: on a busy machine 15 times as long as one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _network(torch: Any, hidden: int) -> Any:
    """The network as torch knows it; the names of its parameters are those of the file."""
    head = torch.nn.Sequential(torch.nn.Linear(hidden, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, ROLLOUT))
    lstm = torch.nn.LSTM(COLUMNS, hidden, num_layers=LAYERS, batch_first=True)
    return torch.nn.ModuleDict({"lstm": lstm, "head": head})


def forward(network: Any, inputs: Any) -> Any:
    """The network's outputs for a tensor of shape (M, W, 4)."""
    states, _ = network["lstm"](inputs)
    return network["head"](states[:, -1])


def _fit(torch: Any, network: Any, inputs: Floats, targets: Floats, epochs: int, seed: int) -> None:
    x, y = torch.as_tensor(inputs, dtype=torch.float32), torch.as_tensor(targets, dtype=torch.float32)
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
    batches = -(-len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, epochs * batches))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(len(x), generator=generator)
        for at in range(0, len(x), BATCH):
            rows = order[at : at + BATCH]
            loss = torch.nn.functional.mse_loss(forward(network, x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), LARGEST_NORM)
            optimizer.step()
            schedule.step()
