"""What the jobs train: small real models on real data that are on every machine with the development packages.

`digits`: the CNN of `starprof demo` on scikit-learn's handwritten digits. `text`: a tiny transformer that predicts the
next character of Python's own manual (`pydoc_data.topics` of the standard library).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import Dataset, TensorDataset

from starprof.demo.train import Accelerator, Net, digits

HELD_OUT_DIGITS = 597
SHIFTS = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))
HELD_OUT_WINDOWS = 400
RATE = 0.0125
"""Learning rate per rank, whose batches make up the step's."""
CHARACTERS = 32
"""Length of a window of text."""
WINDOWS = 4_000
FORWARD_SHARE = 1 / 3

Work = Callable[[float], Any]
"""Computes for so many seconds, as the emulated accelerator does."""


@dataclass
class Task:
    """What one job trains.

    Attributes:
        net: the model; in training mode it works `accelerator_s` in every step.
        train: what it learns from.
        held_out: inputs and answers that it is judged by.
        batch: samples of a rank and step.
        optimizer: of its parameters.
        clip: norm to clip gradients to, None for no clipping.
        good: the accuracy whose time is taken.
    """

    net: nn.Module
    train: Dataset[Any]
    held_out: tuple[Tensor, Tensor]
    batch: int
    optimizer: Optimizer
    clip: float | None
    good: float

    def loss(self, scores: Tensor, answers: Tensor) -> Tensor:
        """Cross entropy, of images as of characters."""
        return functional.cross_entropy(scores.flatten(0, -2), answers.flatten())

    def right(self, rank: int = 0, world: int = 1) -> tuple[int, int]:
        """How many answers of a rank's share of the held-out data are right, and how many there are."""
        inputs, answers = (values[rank::world] for values in self.held_out)
        self.net.eval()
        with torch.no_grad():
            found = (self.net(inputs).argmax(-1) == answers).sum().item()
        self.net.train()
        return int(found), answers.numel()


class Reader(nn.Module):
    """One block of a transformer over characters."""

    def __init__(self, characters: int, accelerator_s: float, work: Work, width: int = 48) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.places = nn.Parameter(torch.zeros(CHARACTERS, width))
        self.before = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.between = nn.LayerNorm(width)
        self.thinking = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.head = nn.Linear(width, characters)
        self.register_buffer("future", torch.triu(torch.ones(CHARACTERS, CHARACTERS, dtype=torch.bool), 1))
        self.accelerator_s, self.work = accelerator_s, work

    def forward(self, text: Tensor) -> Tensor:
        """Scores of the next character, shape (N, L, characters), of texts of shape (N, L)."""
        x = self.embedding(text) + self.places
        normed = self.before(x)
        x = x + self.attention(normed, normed, normed, attn_mask=self.future, need_weights=False)[0]
        if self.training:
            in_forward = self.accelerator_s * FORWARD_SHARE
            x = Accelerator.apply(x, self.work, in_forward, self.accelerator_s - in_forward)
        return self.head(x + self.thinking(self.between(x)))


def digits_task(seed: int, world: int, accelerator_s: float, work: Work) -> Task:
    """The digits, split anew for every seed; those that are learned come in five places."""
    parts = [part.tensors for part in digits()]
    x, y = (torch.cat(values) for values in zip(*parts, strict=True))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    test, train = order[:HELD_OUT_DIGITS], order[HELD_OUT_DIGITS:]
    shifted = torch.cat([shift(x[train], down, right) for down, right in SHIFTS])
    net = Net(accelerator_s, work)
    optimizer = SGD(net.parameters(), lr=RATE * world, momentum=0.9)
    learned = TensorDataset(shifted, y[train].repeat(len(SHIFTS)))
    return Task(net, learned, (x[test], y[test]), 16, optimizer, None, 0.95)


def shift(images: Tensor, down: int, right: int) -> Tensor:
    """Images of shape (N, 1, 8, 8), moved by some pixels; what comes in is empty."""
    return functional.pad(images, (1, 1, 1, 1))[:, :, 1 - down : 9 - down, 1 - right : 9 - right]


def text_task(seed: int, world: int, accelerator_s: float, work: Work) -> Task:
    """Windows of the manual; its last tenth is held out."""
    text = "\n".join(topics[name] for name in sorted(topics))
    alphabet = {character: place for place, character in enumerate(sorted(set(text)))}
    codes = torch.tensor([alphabet[character] for character in text])
    learned = len(codes) * 9 // 10
    generator = torch.Generator().manual_seed(seed)

    def windows(first: int, end: int, count: int) -> tuple[Tensor, Tensor]:
        starts = torch.randint(first, end - CHARACTERS - 1, (count,), generator=generator)
        cut = codes[starts[:, None] + torch.arange(CHARACTERS + 1)]
        return cut[:, :-1], cut[:, 1:]

    train = windows(0, learned, WINDOWS)
    held_out = windows(learned, len(codes), HELD_OUT_WINDOWS)
    net = Reader(len(alphabet), accelerator_s, work)
    return Task(net, TensorDataset(*train), held_out, 8, AdamW(net.parameters(), lr=1e-3 * world), 1.0, 0.38)


def burn(seconds: float) -> None:
    """Compute on the CPU for so much of its time, half of it in Python and half in torch."""
    matrix = torch.ones(96, 96)
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        sum(range(2_000))
        for _ in range(4):
            torch.mm(matrix, matrix)


TASKS: dict[str, Callable[[int, int, float, Work], Task]] = {"digits": digits_task, "text": text_task}
