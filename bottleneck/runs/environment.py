"""What a fix needs in the environment of the script's process, before anything is loaded there.

In: wishes, and the environment that the script would have. Out: variables to set. No torch here: the
command asks for this before it starts the process.
"""

from __future__ import annotations

import ctypes.util
import glob
import os
from collections.abc import Mapping, Sequence

from ..model.verify import Wish

__all__ = ["ALLOCATOR_VARIABLES", "allocator_text", "environment_of", "find_malloc"]

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""The old name and, from torch 2.9 on, the new one, which wins."""
EXPANDABLE = "expandable_segments"
_AGAINST_IT = "max_split_size_mb"
"""The allocator refuses free blocks above this size to requests that they do not fit closely, in segments
that grow as well: left in force it makes them ask the driver again (measured: 1.2 times as fast, not 1.6)."""
_LIBRARIES = ("jemalloc", "tcmalloc_minimal", "tcmalloc", "mimalloc")
_PLACES = ("/usr/lib/*/lib{name}.so*", "/usr/lib64/lib{name}.so*", "/usr/local/lib/lib{name}.so*")


def allocator_text(text: str) -> str:
    """Return allocator settings with expandable_segments on, and all that does not work against it."""
    kept = [p for p in text.split(",") if p.strip() and EXPANDABLE not in p and _AGAINST_IT not in p]
    return ",".join([*kept, f"{EXPANDABLE}:True"])


def find_malloc() -> str | None:
    """Return the path of a caching malloc that is installed here, or None."""
    for name in _LIBRARIES:
        found = sorted(path for place in _PLACES for path in glob.glob(place.format(name=name)))  # noqa: PTH207 - absolute
        if found:
            return found[0]
        if library := ctypes.util.find_library(name):
            return library
    return None


def environment_of(wishes: Sequence[Wish], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that these fixes add or change; empty for most."""
    added: dict[str, str] = {}
    for wish in wishes:
        maker = _MAKERS.get(wish.fix)
        if maker is not None:
            added.update(maker(wish, {**environ, **added}))
    return added


def _expandable(_wish: Wish, environ: Mapping[str, str]) -> dict[str, str]:
    names = [name for name in ALLOCATOR_VARIABLES if name in environ]
    return {name: allocator_text(environ.get(name, "")) for name in names or [ALLOCATOR_VARIABLES[0]]}


def _malloc(_wish: Wish, environ: Mapping[str, str]) -> dict[str, str]:
    library = find_malloc()
    if library is None:
        return {}
    preload = " ".join(filter(None, [library, environ.get("LD_PRELOAD", "")]))
    settings = {"MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1"} if "jemalloc" in library else {}
    return {"LD_PRELOAD": preload, **settings}


def _huge_pages(_wish: Wish, _environ: Mapping[str, str]) -> dict[str, str]:
    return {"THP_MEM_ALLOC_ENABLE": "1"}


def _threads(wish: Wish, _environ: Mapping[str, str]) -> dict[str, str]:
    count = str(wish.options.get("threads") or usable())
    return {"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count}


def usable() -> int:
    """Return how many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


_MAKERS = {"FX201": _expandable, "FX206": _malloc, "FX208": _huge_pages, "FX506": _threads}
