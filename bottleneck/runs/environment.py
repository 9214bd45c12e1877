"""What a fix needs in the environment of the script's process, before anything is loaded there.

In: wishes, which carry what the catalogue says, and the environment that the script would have. Out:
variables to set. No torch here: the command asks for this before it starts the process.
"""

from __future__ import annotations

import ctypes.util
import glob
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..model.fix import Variable
    from ..model.run import JsonValue
    from ..model.verify import Wish

__all__ = ["environment_of", "find_malloc", "usable", "variables"]

_LIBRARIES = ("jemalloc", "tcmalloc_minimal", "tcmalloc", "mimalloc")
_PLACES = ("/usr/lib/*/lib{name}.so*", "/usr/lib64/lib{name}.so*", "/usr/local/lib/lib{name}.so*")


def environment_of(wishes: Sequence[Wish], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that these fixes add or change; empty for most."""
    added: dict[str, str] = {}
    for wish in wishes:
        added.update(variables(wish.environment, wish.options, {**environ, **added}))
    return added


def variables(
    needed: Sequence[Variable], options: Mapping[str, JsonValue], environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of one fix as they are to be, or none where one of them cannot be filled in."""
    made: dict[str, str] = {}
    figures = {name: str(value) for name, value in options.items()}
    if any("{malloc}" in variable.value for variable in needed) and (library := find_malloc()) is not None:
        figures["malloc"] = library
    for variable in needed:
        names = [name for name in (variable.name, *variable.also_called) if name in environ]
        for name in names or [variable.name]:
            before = _kept(environ.get(name, ""), variable) if variable.separator else ""
            try:
                text = variable.value.format_map({**figures, "before": before})
            except KeyError:
                return {}
            made[name] = text.strip(variable.separator or None)
    return made


def _kept(text: str, variable: Variable) -> str:
    """Return the entries that a variable holds already, without those that the fix takes the place of."""
    entries = text.split(variable.separator)
    return variable.separator.join(
        entry for entry in entries if entry.strip() and not any(word in entry for word in variable.drops)
    )


def find_malloc() -> str | None:
    """Return the path of a caching malloc that is installed here, or None."""
    for name in _LIBRARIES:
        found = sorted(path for place in _PLACES for path in glob.glob(place.format(name=name)))  # noqa: PTH207 - absolute
        if found:
            return found[0]
        if library := ctypes.util.find_library(name):
            return library
    return None


def usable() -> int:
    """Return how many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
