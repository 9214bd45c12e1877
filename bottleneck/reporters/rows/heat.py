"""The picture of many ranks: how late each one is in each step, and by what it does longer than its peers.

In: a diagnosis. Out: `HeatMap`, plain numbers for a page to draw; and lines of characters for a terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import get_args

from ...model.codes import LateCause
from ...model.diagnosis import Diagnosis
from .groups import Band, in_bands

_SHADES, _ASCII_SHADES = " ░▒▓█", " .:*#"
_LINES = 4
"""Steps in a terminal, the last ones."""
_SHOWN = 0.005
"""Of the step: less is drawn as nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Rows of one value per rank, ms."""

    ranks: tuple[int, ...]
    """In the order of machines, and there of stages and process groups."""
    nodes: tuple[Band, ...]
    """Machines; empty for one, and where it is not known which rank is where."""
    groups: tuple[Band, ...]
    """Stages and groups inside of machines; empty where none are known."""
    steps: tuple[tuple[float, ...], ...]
    """Lateness, one row per step, the oldest first; below 0: the rank is early."""
    causes: tuple[tuple[str, tuple[float, ...]], ...]
    """What each rank does longer than its peers, by cause."""
    most_ms: float


def heat_map(diagnosis: Diagnosis) -> HeatMap | None:
    """Return the picture; None for fewer than two ranks that were compared."""
    rows = [row for row in diagnosis.ranks if row.late_steps_ms]
    if len(rows) < 2:
        return None
    rows, nodes, groups = in_bands(diagnosis, rows)
    steps = min(len(row.late_steps_ms) for row in rows)
    by_step = tuple(tuple(row.late_steps_ms[-steps + s] for row in rows) for s in range(steps))
    causes = [cause for cause in get_args(LateCause) if any(row.excess_ms.get(cause) for row in rows)]
    by_cause = tuple((cause, tuple(row.excess_ms.get(cause, 0.0) for row in rows)) for cause in causes)
    step_ms = max((row.step_ms or 0.0 for row in rows), default=0.0)
    return HeatMap(
        ranks=tuple(row.rank for row in rows),
        nodes=tuple(nodes),
        groups=tuple(groups),
        steps=by_step,
        causes=by_cause,
        most_ms=max(_SHOWN * step_ms, *(ms for row in by_step for ms in row)),
    )


def heat_lines(diagnosis: Diagnosis, width: int, *, unicode: bool) -> list[str]:
    """Return a line of characters per step; of ranks that share a character the latest is shown.

    Machines stand apart where there is a character for each rank, or else groups if there is one machine.
    """
    found = heat_map(diagnosis)
    if found is None or width < 8:
        return []
    ranks = len(found.ranks)
    cells = min(ranks, width)
    shades = _SHADES if unicode else _ASCII_SHADES
    bands = [band.first for band in found.nodes or found.groups][1:]
    apart = bands if ranks + len(bands) <= width else []

    def line(values: Sequence[float]) -> str:
        edges = [i * ranks // cells for i in range(cells + 1)]
        latest = (max(values[a:b]) for a, b in pairwise(edges))
        text = "".join(shades[round(4 * min(max(ms / found.most_ms, 0.0), 1.0))] for ms in latest)
        return ("│" if unicode else "|").join(text[a:b] for a, b in pairwise([0, *apart, len(text)]))

    return [line(values) for values in found.steps[-_LINES:]]
