"""One family of findings per file; a class docstring is a page of `bottleneck explain`.

In: nothing. Out: importing this folder registers every analyzer in it.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

for module in iter_modules(__path__):
    import_module(f"{__name__}.{module.name}")
