"""Training on a parameter server: shards that hold the parameters, and workers that push gradients and pull them.

import starprof.ps

starprof.ps.wrap(model, optimizer)      # then the loop as it is, without DistributedDataParallel
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starprof.ps.api import wrap

__all__ = ["wrap"]


def __getattr__(name: str) -> Any:
    """Loaded on first use: the server's own processes need no hook."""
    if name == "wrap":
        from starprof.ps.api import wrap

        return wrap
    raise AttributeError(f"module 'starprof.ps' has no attribute {name!r}")
