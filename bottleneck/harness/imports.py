"""Being told when the script has imported torch, instead of importing it first.

Scripts set OMP_NUM_THREADS, CUDA_VISIBLE_DEVICES, allocator settings and the like before their
`import torch`; a harness that imports torch earlier would silently void those lines.

In: a callback. Out: the callback is called once, right after torch's own module body has run.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

from ..clocks import perf_counter_ns


class ImportWatch(MetaPathFinder):
    """Calls back after the first successful import of one top-level module."""

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self._name = name
        self._callback = callback
        self._searching = False
        self.took_ms: float | None = None
        """Of the import; None before it, and where the module was there already."""

    def install(self) -> None:
        """Watch from now on; calls back at once if the module is there already."""
        if self._name in sys.modules:
            self._callback()
        else:
            sys.meta_path.insert(0, self)

    def uninstall(self) -> None:
        """Stop watching. May be called at any time."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Find the module as the others would, and have its loader call us afterwards."""
        del path, target
        if fullname != self._name or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching = False
        loader = spec.loader if spec is not None else None
        if loader is None or not hasattr(loader, "__dict__"):
            return spec
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            # On the instance, and only until it has run: the module keeps its plain loader.
            del loader.__dict__["exec_module"]
            began_ns = perf_counter_ns()
            original(module)
            self.took_ms = (perf_counter_ns() - began_ns) / 1e6
            self.uninstall()
            self._callback()

        loader.__dict__["exec_module"] = exec_module
        return spec
