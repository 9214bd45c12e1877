"""Why is this PyTorch training slow? Imports nothing heavy: pandas may import this package by accident.

The repository folder is called `bottleneck`, and `import pandas` looks for a package of that name
(PyPI's Bottleneck). Installed, we are `torch_bottleneck`; from the repository root pandas still
finds this file, so `__version__` must exist and stay at 0.x, which pandas takes as "too old".
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["Harness", "__version__", "diagnosing"]

if TYPE_CHECKING:
    from .harness.process.api import Harness
    from .notebook import diagnosing

_LATER = {
    "Harness": ".harness.process.api",
    "diagnose": ".notebook",  # also a folder of ours, which can be called as well
    "diagnosing": ".notebook",
    "load_ipython_extension": ".notebook",
}
"""Name -> its module, imported when it is first asked for."""


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name], __name__), name)
