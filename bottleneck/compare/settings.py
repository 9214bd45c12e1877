"""[tool.bottleneck.gate] of the user's pyproject.toml.

In: a path, or a folder to look upwards from. Out: `GateSettings`. A name that does not exist is an
error with the nearest one that does: a misspelt limit would otherwise gate nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..errors import UsageError
from ..files import project_table, table_in
from ..model.counters import COUNTERS
from ..model.gate import CounterLimit, GateSettings

_TABLE = ("tool", "bottleneck", "gate")
_WHERE = f"[{'.'.join(_TABLE)}]"


def find_settings(folder: Path) -> GateSettings:
    """Return the settings of the nearest pyproject.toml upwards that has the table, else the defaults.

    Raises:
        InputError: a file cannot be read, or is no TOML.
        UsageError: that file's table cannot be understood.
    """
    found = project_table(folder, *_TABLE)
    return GateSettings() if found is None else _settings(*found)


def read_settings(file: Path) -> GateSettings:
    """Return the settings of one file; the defaults where it has no such table.

    Raises:
        InputError: the file cannot be read, or is no TOML.
        UsageError: its table cannot be understood.
    """
    found = table_in(file, *_TABLE)
    return GateSettings() if found is None else _settings(found, file)


def _settings(table: object, file: Path) -> GateSettings:
    if not isinstance(table, dict):
        raise UsageError(f"{file}: {_WHERE} is not a table.")
    counters = table.get("counters")
    names = {field.encode_name for field in msgspec.structs.fields(GateSettings)}
    for key in table:
        if key not in names:
            raise UsageError(f"{file}: {_WHERE} has no setting {key!r}.", remedy=_meant(key, names))
    for key in counters if isinstance(counters, dict) else ():
        if key not in COUNTERS:
            raise UsageError(f"{file}: there is no counter {key!r}.", remedy=_meant(key, COUNTERS))
    try:
        return msgspec.convert(table, type=GateSettings)
    except msgspec.ValidationError as error:
        raise UsageError(f"{file}: {_WHERE}: {error}.") from None


def _meant(key: str, names: Mapping[str, Any] | set[str]) -> str:
    near = difflib.get_close_matches(key, list(names), n=1)
    return f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(sorted(names))}."


def with_options(settings: GateSettings, **options: Any) -> GateSettings:
    """Return the settings with the options given on the command line; None means not given.

    Counters in `ungated` are told only.
    """
    ungated = options.pop("ungated", None) or ()
    given = {name: value for name, value in options.items() if value is not None}
    counters = dict(settings.counters)
    for name in ungated:
        counters[name] = msgspec.structs.replace(counters.get(name, CounterLimit()), gate=False)
    return msgspec.structs.replace(settings, **given, counters=counters)


def settings_for(folder: Path, options: dict[str, Any]) -> GateSettings:
    """Return the settings of the project, with the command line's options over them.

    Raises:
        UsageError: an option or the project's table names something that does not exist.
    """
    for name in options.get("ungated") or ():
        if name not in COUNTERS:
            raise UsageError(f"There is no counter {name!r}.", remedy=f"Counters: {', '.join(COUNTERS)}.")
    config = options.pop("config", None)
    settings = find_settings(folder) if config is None else read_settings(config)
    allow = tuple(dict.fromkeys([*settings.allow, *(options.pop("allow", None) or ())]))
    return with_options(settings, allow=allow, **options)
