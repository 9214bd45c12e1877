"""Baselines on disk: written so that a diff can be reviewed, read with migration.

In: a `Baseline` and a path. Out: the file, or the baseline back. Keys are sorted where their order
means nothing, numbers are rounded, so writing what was read gives the same bytes.

History of the format:
    1  first
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ..errors import InputError
from ..files import decode_json, read_file
from ..model.baseline import BASELINE_FORMAT, Baseline
from ..model.documents import write_text

MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""Format -> what makes the next one of it, on plain JSON values."""
MOST_BYTES = 200_000


class _Head(msgspec.Struct):
    format: int
    runs: list[Any]


def baseline_text(baseline: Baseline) -> str:
    """Return the file's text; the least telling names go first if it would grow too large."""
    # An empty tuple is left out only where it is the default itself, which the one that Python 3.10
    # makes of a generator is not: read back, the text is the same on every Python.
    baseline = msgspec.json.decode(msgspec.json.encode(baseline), type=Baseline)
    while True:
        data = msgspec.json.encode(baseline, order="deterministic")
        text = msgspec.json.format(data, indent=1).decode() + "\n"
        smaller = _smaller(baseline) if len(text.encode()) > MOST_BYTES else None
        if smaller is None:
            return text
        baseline = smaller


def _smaller(baseline: Baseline) -> Baseline | None:
    """Leave out half of the names, or else the ranks one by one; None where neither is there."""
    counters = baseline.counters
    if counters is not None and counters.names:
        kept = dict(list(counters.names.items())[: len(counters.names) // 2])
        dropped = counters.other_names + len(counters.names) - len(kept)
        counters = msgspec.structs.replace(counters, names=kept, other_names=dropped)
        return msgspec.structs.replace(baseline, counters=counters)
    if not any(ranks.own_ms for ranks in baseline.ranks):
        return None
    runs = [
        msgspec.structs.replace(run, ranks=msgspec.structs.replace(run.ranks, own_ms={}))
        if run.ranks is not None
        else run
        for run in baseline.runs
    ]
    return msgspec.structs.replace(baseline, runs=tuple(runs))


def write_baseline(baseline: Baseline, path: Path) -> None:
    """Write the file, whole or not at all.

    Raises:
        InputError: the place cannot be written to.
    """
    write_text(path, baseline_text(baseline))


def is_baseline(data: bytes) -> bool:
    """Return whether this JSON is a baseline, of any format."""
    try:
        decode_json(data, _Head)
    except msgspec.DecodeError:
        return False
    return True


def read_baseline(path: Path) -> Baseline:
    """Read a baseline, migrating an older one.

    Raises:
        InputError: there is none, it is no baseline, or a newer version wrote it.
    """
    try:
        data = read_file(path)
    except InputError as error:
        raise InputError(
            f"The baseline cannot be used: {error.message}",
            remedy="Write one with `bottleneck gate ... --update-baseline`.",
        ) from None
    try:
        raw: Any = decode_json(data, object)
        number = raw.get("format") if isinstance(raw, dict) else None
        if not isinstance(number, int) or "runs" not in raw:
            raise InputError(
                f"{path} is not a baseline.",
                remedy="Write one with `bottleneck gate ... --update-baseline`.",
            )
        if number > BASELINE_FORMAT:
            raise InputError(
                f"{path} has baseline format {number}; this version reads up to {BASELINE_FORMAT}.",
                remedy=f"Upgrade torch-bottleneck to {raw.get('tool_version') or 'its version'}.",
            )
        while number < BASELINE_FORMAT:
            if number not in MIGRATIONS:
                raise InputError(
                    f"{path} has baseline format {number}, which no version of this tool writes.",
                    remedy="Write a new one with --update-baseline.",
                )
            raw = {**MIGRATIONS[number](raw), "format": number + 1}
            number += 1
        return msgspec.convert(raw, type=Baseline)
    except msgspec.DecodeError as error:
        raise InputError(
            f"{path} is not a complete baseline: {error}.",
            remedy="Restore it from version control, or write a new one with --update-baseline.",
        ) from None
