"""The rolling history: finds slow drift that no single comparison can find.

In: a folder of small JSON files, one per gate run, and this run. Out: `Drift` rows. Only runs of the
same series count: same script, device, versions, batch, and the same baseline, so that accepting a
change with --update-baseline begins a new series.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from ..errors import InputError
from ..files import read_json
from ..model.baseline import Baseline
from ..model.compare import Drift
from ..model.counters import COUNTERS
from ..model.documents import write_text
from ..model.gate import CounterLimit, GateSettings
from ..stats.trend import find_trend
from .times import median_of

HISTORY_FORMAT = 1
_KEPT = 500
_FEWEST_EXACT = 3
"""Counters have no noise; three values show a direction."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One gate run."""

    format: int = HISTORY_FORMAT
    created: str
    series: str
    step_ms: float | None = None
    runs: int = 0
    counters: dict[str, float] = {}


def entry_of(head: Baseline, *, against: str = "", now: dt.datetime | None = None) -> Entry:
    """Return this run's entry.

    `against` is the text of the baseline it is held against; a new baseline begins a new series.
    """
    machine, workload = head.machine, head.workload
    parts = (
        *(head.title, *head.command, machine.device_name, machine.cpu, str(machine.cores), machine.torch),
        *(workload.batch if workload is not None else ()),
        str(workload.world_size if workload is not None else 1),
        against,
    )
    now = now or dt.datetime.now(dt.timezone.utc)
    return Entry(
        created=now.isoformat(timespec="microseconds"),
        series=hashlib.sha256("\0".join(parts).encode(errors="backslashreplace")).hexdigest()[:16],
        step_ms=median_of(head.runs),
        runs=len(head.runs),
        counters={n: c.value for n, c in head.counters.values.items()} if head.counters is not None else {},
    )


def append(folder: Path, entry: Entry) -> None:
    """Add an entry, and drop the oldest beyond 500.

    Raises:
        InputError: the folder cannot be written to.
    """
    name = entry.created.replace(":", "").replace("+0000", "Z")
    text = msgspec.json.format(msgspec.json.encode(entry, order="deterministic"), indent=1).decode()
    write_text(folder / f"{name}-{os.getpid()}.json", text + "\n")
    for old in sorted(folder.glob("*.json"))[:-_KEPT]:
        old.unlink(missing_ok=True)


def read_history(folder: Path, series: str) -> list[Entry]:
    """Return the entries of a series, oldest first; a folder that is not there yet has none.

    Raises:
        InputError: a file in it is no entry, or of a newer format.
    """
    entries = []
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, not a folder.", remedy="Give a folder with --history.")
    for file in sorted(folder.glob("*.json")):
        try:
            entry = read_json(file, Entry)
        except InputError:
            if file.exists():
                raise
            continue  # another gate has dropped it meanwhile, as the oldest
        except msgspec.DecodeError as error:
            raise InputError(
                f"{file} is not a history entry: {error}.", remedy="Remove it from the folder."
            ) from None
        if entry.format > HISTORY_FORMAT:
            raise InputError(
                f"{file} has history format {entry.format}; this version reads up to {HISTORY_FORMAT}.",
                remedy="Upgrade torch-bottleneck.",
            )
        if entry.series == series:
            entries.append(entry)
    return sorted(entries, key=lambda entry: entry.created)


def find_drifts(entries: Sequence[Entry], settings: GateSettings) -> tuple[Drift, ...]:
    """Look for a slow rise over the last runs of a series, this one among them."""
    last = list(entries)[-settings.history_runs :]
    drifts = []
    times = [entry.step_ms for entry in last if entry.step_ms is not None]
    trend = find_trend(times, tolerance=settings.time_tolerance) if settings.times != "off" else None
    if trend is not None and trend.rising:
        drifts.append(
            Drift(
                what="time",
                title="step time",
                points=trend.points,
                growth=trend.growth,
                p_value=trend.p_value,
            )
        )
    for name, spec in COUNTERS.items():
        wanted = settings.counters.get(name) or CounterLimit()
        values = [entry.counters[name] for entry in last if name in entry.counters]
        if not wanted.gate or len(values) < _FEWEST_EXACT or values[0] <= 0:
            continue
        tolerance = spec.tolerance if wanted.tolerance is None else wanted.tolerance
        slack = spec.slack if wanted.slack is None else wanted.slack
        rising = all(after >= before for before, after in pairwise(values))
        if rising and values[-1] > values[0] * (1 + tolerance) + slack:
            drifts.append(
                Drift(what=name, title=spec.title, points=len(values), growth=values[-1] / values[0] - 1)
            )
    return tuple(drifts)
