"""What a fix needs in the environment of the script's process, and the processors that there are.

In: wishes, which carry what the catalogue says, and the environment that the script would have. Out:
variables to set; how many cores a process may keep busy. No torch here: the command asks for this before it
starts the process.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import glob
import math
import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..model.fix import Variable
    from ..model.run import JsonValue
    from ..model.verify import Wish

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


def affinity() -> frozenset[int]:
    """Return the cores on which this process may run; empty where the system does not tell."""
    ask = getattr(os, "sched_getaffinity", None)
    return frozenset(ask(0)) if ask is not None else frozenset()


@lru_cache(maxsize=1)
def first_affinity() -> frozenset[int]:
    """Return `affinity` of the moment at which this was first asked, before the script could change it."""
    return affinity()


def usable_cores(allowed: frozenset[int] | None = None) -> int:
    """Return how many cores this process may keep busy: its affinity, cut by the cgroup's quota.

    Args:
        allowed: another affinity than the one that the process has now.
    """
    cores = len(affinity() if allowed is None else allowed) or os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, min(cores, math.ceil(quota))) if quota is not None else cores


def _cgroup_quota() -> float | None:
    """Return the CPU quota in cores: cgroup v2 `cpu.max`, v1 `cpu.cfs_quota_us`; None without."""
    quotas = []
    for path in cgroup_files("cpu.max"):
        with contextlib.suppress(OSError, ValueError):
            quota, period = path.read_text().split()
            quotas.append(int(quota) / int(period))  # "max" is no number: no quota here
    with contextlib.suppress(OSError, ValueError):
        old = Path("/sys/fs/cgroup/cpu")
        quota_us = int((old / "cpu.cfs_quota_us").read_text())
        if quota_us > 0:
            quotas.append(quota_us / int((old / "cpu.cfs_period_us").read_text()))
    return min(quotas, default=None)


def cgroup_files(unified: str, old: str | None = None) -> list[Path]:
    """Return the files of this process's cgroup and of those above it, since each one limits."""
    root = Path("/sys/fs/cgroup")
    files = [root / old] if old is not None else []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            hierarchy, _, path = line.split(":", 2)
            if hierarchy == "0":
                place = root / path.lstrip("/")
                files += [folder / unified for folder in (place, *place.parents)]
    files.append(root / unified)
    return [file for file in dict.fromkeys(files) if file.is_relative_to(root)]


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Return the memory that new processes can have, bytes; None where the system does not say."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
