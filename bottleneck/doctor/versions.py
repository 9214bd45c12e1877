"""Checks for versions that do not work together.

In: what is installed here. Out: checks. Versions are read from the packages' metadata, so nothing is
imported. TensorBoard's plugins are loaded in a separate process, as TensorBoard loads them.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from .check import Check, try_apart

_DISTRIBUTION = "torch-bottleneck"
_PLUGIN_VERSION = "0.4.3"
_SHOWN = ("torch", "numpy", "pandas", "tensorboard", "torch-tb-profiler", "setuptools", "protobuf")
_LOAD_PLUGINS = """
import importlib.metadata, json
found = {}
for point in importlib.metadata.entry_points(group="tensorboard_plugins"):
    try:
        point.load()
        found[point.name] = ""
    except BaseException as error:
        found[point.name] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""

Versions = Callable[[str], "str | None"]


def installed(name: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_versions(version: Versions = installed) -> Iterator[Check]:
    """Check interpreter and packages, against what we need and against each other."""
    python = ".".join(map(str, sys.version_info[:3]))
    shown = ", ".join(f"{name} {version(name)}" for name in _SHOWN if version(name))
    yield Check(area="versions", level="ok", text=f"Python {python}; {shown}")
    if not (3, 10) <= sys.version_info[:2] <= (3, 14):
        yield Check(
            area="versions",
            level="warning",
            text=f"Python {python} is outside the supported range, 3.10 to 3.14.",
        )
    yield from _unmet(version)
    yield from _tensorboard(version)


def _unmet(version: Versions) -> Iterator[Check]:
    """Check every requirement that our own package states."""
    try:
        wanted = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        yield Check(
            area="versions",
            level="note",
            text=f"{_DISTRIBUTION} is not installed as a package: its requirements cannot be checked.",
        )
        return
    for text in wanted:
        try:
            need = Requirement(text)
        except InvalidRequirement:
            continue
        if need.marker is not None and not need.marker.evaluate({"extra": ""}):
            continue
        has = version(need.name)
        if has is None:
            yield Check(
                area="versions",
                level="problem",
                text=f"{need.name} is not installed.",
                remedy=f"pip install '{need.name}{need.specifier}'",
            )
        elif not need.specifier.contains(has, prereleases=True):
            yield Check(
                area="versions",
                level="problem",
                text=f"{need.name} {has} is installed; {need.specifier} is needed.",
                remedy=f"pip install '{need.name}{need.specifier}'",
            )


def _tensorboard(version: Versions) -> Iterator[Check]:
    """Check the pairs that are known to break TensorBoard."""
    has = _parsed(version("tensorboard"))
    if has is None:
        return
    if has < Version("2.21") and importlib.util.find_spec("pkg_resources") is None:
        yield Check(
            area="TensorBoard",
            level="problem",
            text=(
                f"TensorBoard {has} does not start with setuptools {version('setuptools') or '(absent)'}: it"
                " imports pkg_resources, which setuptools no longer ships."
            ),
            remedy="pip install 'tensorboard>=2.21,<3'",
        )
    plugin = version("torch-tb-profiler")
    if plugin is None:
        yield Check(
            area="TensorBoard",
            level="warning",
            text="torch-tb-profiler is not installed: there is no PYTORCH_PROFILER tab, and no trace in"
            " the Diagnosis tab.",
            remedy=f"pip install torch-tb-profiler=={_PLUGIN_VERSION}",
        )
        return
    if plugin != _PLUGIN_VERSION:
        yield Check(
            area="TensorBoard",
            level="note",
            text=f"torch-tb-profiler {plugin} is installed; traces are adapted for {_PLUGIN_VERSION}.",
        )
    pandas = _parsed(version("pandas"))
    if pandas is None:
        yield Check(
            area="TensorBoard",
            level="problem",
            text="pandas is not installed: torch-tb-profiler imports it, and TensorBoard fails to start.",
            remedy="pip install 'pandas>=2.2,<4'",
        )
    elif pandas >= Version("4"):
        yield Check(
            area="TensorBoard",
            level="problem",
            text=f"pandas {pandas}: torch-tb-profiler passes `copy` to astype, which pandas 4 rejects.",
            remedy="pip install 'pandas>=2.2,<4'",
        )


def _parsed(text: str | None) -> Version | None:
    try:
        return None if text is None else Version(text)
    except InvalidVersion:
        return None


def check_plugins(*, seconds: float = 60.0) -> Iterator[Check]:
    """Load every TensorBoard plugin: one that cannot be imported stops TensorBoard from starting."""
    if importlib.util.find_spec("tensorboard") is None:
        return
    code, out, err = try_apart("-c", _LOAD_PLUGINS, seconds=seconds)
    try:
        found: dict[str, str] = json.loads(out.strip().splitlines()[-1])
    except (ValueError, IndexError):
        ended = f"it did not end within {seconds:.0f} s" if code is None else " ".join(err.split())[-300:]
        yield Check(
            area="TensorBoard", level="problem", text=f"TensorBoard's plugins could not be loaded: {ended}"
        )
        return
    broken = {name: error for name, error in found.items() if error}
    for name, error in broken.items():
        yield Check(
            area="TensorBoard",
            level="problem",
            text=f"The plugin {name} cannot be imported, so TensorBoard will not start: {error}",
            remedy="Install what it needs, or uninstall the plugin.",
        )
    if not broken:
        names = ", ".join(sorted(found)) or "none"
        yield Check(area="TensorBoard", level="ok", text=f"its plugins load: {names}")
