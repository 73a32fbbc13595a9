"""What a training script may call to take part in control by itself: `starprof.attach`."""

from __future__ import annotations

import os
from typing import Any

from starprof.model import env


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
