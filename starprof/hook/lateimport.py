"""Calls back after a module was imported, without importing it: some of torch's modules load late or never."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

AfterImport = Callable[[ModuleType], None]


class _Finder(MetaPathFinder):
    """First on `sys.meta_path`; steps aside for the real finders and extends the loader they find."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[AfterImport]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a waited-for module with the other finders."""
        del path, target
        callbacks = self.waiting.pop(fullname, None)
        if callbacks is None:
            return None
        # The entry is gone, so this does not come back here.
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            self.waiting[fullname] = callbacks
            return None
        _extend(spec.loader, callbacks)
        if not self.waiting:
            sys.meta_path.remove(self)
        return spec


_finder = _Finder()


def after_import(name: str, callback: AfterImport) -> None:
    """Call `callback(module)` once `name` is imported: now, if it is already.

    The callback must not raise: it would fail the user's import.
    """
    module = sys.modules.get(name)
    if module is not None:
        callback(module)
        return
    _finder.waiting.setdefault(name, []).append(callback)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _extend(loader: Loader, callbacks: list[AfterImport]) -> None:
    """Let this one loader call back after it has executed its module."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        loader.exec_module = execute  # type: ignore[method-assign]
        execute(module)
        for callback in callbacks:
            callback(module)

    loader.exec_module = exec_module  # type: ignore[method-assign]
