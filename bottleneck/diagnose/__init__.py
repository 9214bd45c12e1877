"""From what lies on disk to a diagnosis: run folder -> facts -> findings -> fixes -> diagnosis."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from .compose import diagnose_paths

__all__ = ["diagnose_paths"]


class _Package(ModuleType):
    def __call__(self, *args: Any, **wishes: Any) -> Any:
        """Do what `torch_bottleneck.diagnose(step)` says in a process that has imported this folder, too."""
        return import_module("..notebook", __name__).diagnose(*args, **wishes)


sys.modules[__name__].__class__ = _Package
