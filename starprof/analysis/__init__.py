"""Diagnosis: pure functions from a run's arrays and frames to a verdict. Nothing here draws or reads a clock.

`diagnose` goes through these steps, a module each:
own_time (what a rank needed itself), peers, noise, comparison (lateness against peers), detect, changepoint, shapes,
persistent, spiky (who is late, when, in which shape), special, shared, links, network (what is no rank's own time),
cost (replay without it), causes (why), findings, network_findings, words (how it is said), receipt (what was not seen).
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starprof.analysis.diagnose import diagnose
    from starprof.analysis.settings import DEFAULT, Settings

__all__ = ["DEFAULT", "Settings", "diagnose"]


class _Package(ModuleType):
    """Imports what it exports when that is asked for: the watch beside a running job needs a small part of all this."""

    @property
    def diagnose(self) -> Any:
        """The function, which has the name of its module."""
        from starprof.analysis.diagnose import diagnose

        return diagnose

    @diagnose.setter
    def diagnose(self, module: ModuleType) -> None:
        """Importing the module sets it here; what is exported is the function in it."""

    def __getattr__(self, name: str) -> Any:
        if name in ("DEFAULT", "Settings"):
            from starprof.analysis import settings

            return getattr(settings, name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


sys.modules[__name__].__class__ = _Package
