"""Injects the hook: the recorder puts this folder first on PYTHONPATH, and Python imports `sitecustomize` at start.

It runs in every Python process of the job, so it does next to nothing: it waits for `torch` to be imported, and
where that never happens nothing of starprof is loaded. It then runs the `sitecustomize` that it hides.
"""

import os
import sys

# What importlib.machinery re-exports: importing that would cost as much as all the rest.
from _frozen_importlib import module_from_spec
from _frozen_importlib_external import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class _Starprof:
    """Finds starprof where the recorder runs from, if the job's own interpreter does not have it."""

    def find_spec(
        self, fullname: str, path: "Sequence[str] | None", target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Only ever finds `starprof` itself: nothing else of that folder becomes importable."""
        del path
        home = os.environ.get("STARPROF_HOME")
        return PathFinder.find_spec(fullname, [home], target) if fullname == "starprof" and home else None


class _AfterTorch:
    """Installs the hook right after torch has been imported."""

    def find_spec(
        self, fullname: str, path: "Sequence[str] | None", target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Let the other finders find torch and extend its loader."""
        if fullname != "torch" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(fullname, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                if spec.loader is not None:
                    _extend(spec.loader)
                return spec
        return None


def _extend(loader: "Loader") -> None:
    execute = loader.exec_module

    def exec_module(module: "ModuleType") -> None:
        loader.exec_module = execute  # type: ignore[method-assign]
        execute(module)
        _install()

    loader.exec_module = exec_module  # type: ignore[method-assign]


def _install() -> None:
    if "starprof.hook.install" in sys.modules:
        return  # the hook itself is what imports torch: it installs when it is loaded
    try:
        from starprof.hook.install import install

        installed = install()
        if os.environ.get("STARPROF_CONTROL"):
            from starprof.control.engine import attach

            attach.install_asked(installed)
    except Exception as error:  # noqa: BLE001 - the job must go on, whatever is wrong with the recorder
        os.write(2, f"starprof: this process is not recorded: {type(error).__name__}: {error}\n".encode())


def _run_hidden() -> None:
    """Run the `sitecustomize` that this one hides, and let it be the module of that name."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib would double the cost
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("STARPROF_SPOOL") and os.environ.get("STARPROF_DISABLE") != "1":
    sys.meta_path.append(_Starprof())
    sys.meta_path.insert(0, _AfterTorch())
_run_hidden()
