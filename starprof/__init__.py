"""starprof: find, explain and cure stragglers in distributed PyTorch training.

In a training script (all optional; `starprof record -- CMD` needs no change of code):

    import starprof
    starprof.watch(model, optimizer)      # any loop
    with starprof.step(): ...             # loops without an optimizer
    with starprof.span("h2d"): ...        # name a part of the step
    for step, x in starprof.steps(...)    # loops without a data loader
    starprof.attach(ddp_model)            # let `starprof ctl` change how the ranks synchronise
    starprof.balanced(dataset, 32)        # batches whose division among the ranks can change
"""

__version__ = "0.1.0"

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starprof.control.api import attach, balanced
    from starprof.hook.api import span, step, steps, watch

__all__ = ["__version__", "attach", "balanced", "span", "step", "steps", "watch"]


def __getattr__(name: str) -> Any:
    """Load these on first use: importing starprof stays cheap, and never imports torch."""
    if name not in __all__:
        raise AttributeError(f"module 'starprof' has no attribute {name!r}")
    if name in {"attach", "balanced"}:
        from starprof.control import api as control

        return getattr(control, name)
    from starprof.hook import api

    return getattr(api, name)
