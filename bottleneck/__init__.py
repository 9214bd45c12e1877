"""Why is this PyTorch training slow? Imports nothing heavy: pandas may import this package by accident.

The repository folder is called `bottleneck`, and `import pandas` looks for a package of that name
(PyPI's Bottleneck). Installed, we are `torch_bottleneck`; from the repository root pandas still
finds this file, so `__version__` must exist and stay at 0.x, which pandas takes as "too old".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["Harness", "__version__"]

if TYPE_CHECKING:
    from .harness.process.api import Harness


def __getattr__(name: str) -> object:
    if name == "Harness":
        from .harness.process.api import Harness

        return Harness
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
