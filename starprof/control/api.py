"""What a training script may call to take part in control by itself: `starprof.attach`, `starprof.balanced`."""

from __future__ import annotations

import os
from collections.abc import Sized
from typing import TYPE_CHECKING, Any

from starprof.model import env

if TYPE_CHECKING:
    from starprof.control.actuators.inrank.split import Balanced


def attach(model: Any, *, mode: str = "native", max_lag: int | None = None, **options: Any) -> None:
    """Let `starprof ctl` change how the ranks of this job synchronise, as `starprof record --control` does.

    To be called on all ranks, before the training loop. Never raises: what is wrong is said on stderr, and the job goes
    on with native steps.

    Args:
        model: the module in DistributedDataParallel, or in fully_shard with replicas, that the loop trains.
        mode: that is wanted as soon as the loop is known.
        max_lag: rounds that a rank may be behind before it takes another one's state; None: by the size of the model.
        options: of the mode, such as `m=3`.
    """
    if os.environ.get(env.DISABLE) == "1":
        return
    from starprof.control.engine.attach import attach_model

    attach_model(model, mode, options, max_lag)


def balanced(dataset: Sized, batch_size: int, **options: Any) -> Balanced:
    """A batch sampler whose division among the ranks can change while the job runs; see its `weight` and `step`.

    `DataLoader(dataset, batch_sampler=batches)`; the loss, a mean over the rank's samples, times
    `batches.weight(len(x))`; and `batches.step()` after each update, on all ranks.

    Args:
        dataset: whose samples are drawn.
        batch_size: samples of a rank where all have as many.
        options: `shuffle`, `seed`, `agree_every`.
    """
    from starprof.control.actuators.inrank.split import Balanced

    return Balanced(dataset, batch_size, **options)
