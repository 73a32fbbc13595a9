"""From runs to a model: split them, train, fit thresholds, and let held-out runs decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from starprof.decision.prediction import training
from starprof.decision.prediction.baselines import BASELINES
from starprof.decision.prediction.evaluation import contest, fitted_tags
from starprof.decision.prediction.modelfile import Model, model_of
from starprof.errors import UsageError

if TYPE_CHECKING:
    from starprof.decision.prediction.history import Series

HELD_OUT_OF = 4
"""Of so many runs the last is held out, of each source."""


def learn(sources: Sequence[Sequence[Series]], about: str, *, epochs: int, seed: int = 0) -> Model:
    """Train and judge.

    Args:
        sources: runs by source, such as recorded and generated ones.
        about: what they are, for the file.
        epochs: of the training; 0: only the baselines.
        seed: of weights and order.

    Raises:
        UsageError: there are not enough runs, or torch is missing.
    """
    held_out = [run for runs in sources for at, run in enumerate(runs) if at % HELD_OUT_OF == HELD_OUT_OF - 1]
    known = [run for runs in sources for at, run in enumerate(runs) if at % HELD_OUT_OF != HELD_OUT_OF - 1]
    if not held_out:
        raise UsageError(f"{len(known)} runs are not enough: of {HELD_OUT_OF} one is held out to judge on")
    network = training.train(known, epochs=epochs, seed=seed) if epochs else None
    rivals = (*BASELINES, *((network,) if network is not None else ()))
    tags = {rival.name: fitted_tags(known, rival) for rival in rivals}
    return model_of(contest(held_out, tags, network), tags, network, f"{about}; {len(held_out)} runs held out")
