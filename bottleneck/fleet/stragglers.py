"""Which ranks the others wait for: always the same, now this one and now that one, or a whole group.

In: own work of each rank in each step, in ms. Out: `Late` sets, each with its cost.

The peers of a rank are the norm: ranks that send the same messages. A rank's lateness in a step is its own
work less the median of its peers; how much of that is chance is told by how the peers differ among each
other, and one rank from step to step. The chance of one false alarm in a whole job is set to
`_FALSE_ALARM`, whatever the number of ranks and steps. Told is who is late by a share of the step that
matters and decides an ordinary step. What that costs may be less: of a thousand ranks some other is nearly
as late in each step by chance, so that a rank late by 5 % costs 1 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..stats.spread import MAD_TO_SIGMA, median_of_others
from ..stats.student import student_tail

__all__ = ["Found", "Late", "excess_of", "find_late", "lateness_among", "uneven_ms"]

_FALSE_ALARM = 0.005
"""Of a job, for each of the two searches."""
_EFFICIENCY = 0.37
"""Of a median absolute deviation: it knows as much as a standard deviation of so many of the values."""
_MEDIAN_ERROR = 1.2533
"""Standard error of a median beside that of a mean."""
_MANY = 16
"""Values from which the median of their deviations is used, which single large ones do not move."""
_KNOWN_BEFORE = 2.0
"""Degrees of freedom of what is known of ranks before any is seen: they differ by half of what is told."""
_FEW = 16
"""Up to so many peers a rank's own value is left out of their median, which it would move."""
_OF_A_GROUP = 0.75
"""Share of a group's ranks that are late, and of the late ranks that are in it, for the group to be late."""
_EXPLAINS = 0.5
"""Of a rank's lateness: what one part of its work is longer by."""
_BESIDE = 0.5
"""Of the latest rank of a step: who is less late than that is not told."""
_BLOCKS = (4, 8, 16, 32, 64)
"""Ranks per host, or per rack: numbered one after the other."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """Ranks that are late in the same way."""

    lanes: tuple[int, ...]
    kind: Literal["persistent", "wandering", "group"]
    costs_ms: float
    late_ms: float
    group: str = ""
    cells: tuple[tuple[int, int], ...] = ()
    """Of wandering ones: who in which step, counted from the end (-1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the comparison says."""

    late: tuple[Late, ...]
    late_ms: Floats
    """(n,): lateness of each rank in an ordinary step, the median over the steps."""
    lateness_ms: Floats
    """(n, steps): more own work than the median of its peers, in each step."""
    chance_ms: Floats
    """(n,): how far a single step may be from the rank's ordinary lateness by chance."""
    sent: Sequence[object]
    """(n,): what each rank sends; ranks that send the same are peers."""
    costs_ms: float
    """What the step would be shorter without all of them."""

    @property
    def single(self) -> NDArray[np.bool_]:
        """(n, steps): where a rank is late that is not in others, or not by as much."""
        out = np.zeros(self.lateness_ms.shape, dtype=bool)
        for cell in (cell for each in self.late for cell in each.cells):
            out[cell] = True
        return out


def find_late(
    work_ms: Floats,
    *,
    step_ms: float,
    worth: float,
    sent: Sequence[object],
    groups: Sequence[tuple[str, Sequence[int]]],
    numbers: Sequence[int],
    whole: int,
    parts_ms: Floats | None = None,
) -> Found:
    """Find the late ranks.

    Args:
        work_ms: (n, steps) own work.
        step_ms: length of the step.
        worth: share of the step from which a cost is told.
        sent: what each rank sends; ranks that send the same are peers.
        groups: process groups that may be late as a whole: name, positions of their ranks.
        numbers: the ranks' own numbers.
        whole: how many of the last steps all ranks have recorded from their begin. In the one before, some
            wait for those that begin to record later.
        parts_ms: (parts, n) what the work consists of, in an ordinary step: ranks whose sums differ may agree
            in the part that makes one of them late.
    """
    lateness = lateness_among(work_ms, sent)
    typical = np.median(lateness, axis=1)
    least = worth * step_ms
    parts = np.empty((0, len(work_ms))) if parts_ms is None else parts_ms
    persistent = _persistent(work_ms, lateness, sent, parts, least=least) & (typical >= least)
    rest = lateness - typical[:, None]
    punctual = work_ms - np.where(persistent, typical, 0.0)[:, None]
    wandering, cells = _wandering(punctual, rest, persistent, least=least, whole=whole)
    # Without single steps in which a rank is later than in its ordinary ones.
    steady = np.where(cells, work_ms - rest, work_ms)
    late: list[Late] = []
    lanes = np.flatnonzero(persistent)
    others = np.delete(steady, lanes, axis=0)
    for lanes_of, group in _by_group(lanes, groups, numbers):
        # Beside a later one it costs nothing: told is what it would cost alone.
        gains = _gains(np.delete(steady, np.setdiff1d(lanes, lanes_of), axis=0), others)
        if np.median(gains) <= 0:
            persistent[lanes_of] = False
            continue
        late.append(
            Late(
                lanes=tuple(lanes_of.tolist()),
                kind="group" if group else "persistent",
                costs_ms=float(gains.mean()),
                late_ms=float(np.median(typical[lanes_of])),
                group=group,
            )
        )
    if wandering is not None:
        late.append(wandering)
    usual = np.delete(steady, np.flatnonzero(persistent), axis=0) if persistent.any() else steady
    return Found(
        late=tuple(sorted(late, key=lambda found: -found.costs_ms)),
        late_ms=np.maximum(typical, 0.0),
        lateness_ms=lateness,
        chance_ms=_chance(rest, sent, least=least),
        sent=sent,
        costs_ms=float(_gains(work_ms, usual).mean()) if late else 0.0,
    )


def excess_of(late: Late, found: Found, steps: int) -> Floats:
    """Return by how much these ranks are late in each of the last steps, (n, steps); 0 for the others.

    Ranks that are always late are so by as much as on average: what they are more or less by chance they
    would be without a cause, too, so that the last of several ranks takes longer than each of them.
    """
    lateness = found.lateness_ms
    out = np.zeros_like(lateness)
    usual = np.median(lateness, axis=1)
    if late.kind != "wandering":
        lanes = list(late.lanes)
        mine = lateness[lanes]
        by_chance = np.abs(mine - usual[lanes, None]) <= found.chance_ms[lanes, None]
        # Peers that are all alike leave nothing to chance, and an even number of steps has no middle one.
        by_chance |= ~by_chance.any(axis=1, keepdims=True)
        mean = np.average(mine, axis=1, weights=by_chance)[:, None]
        # What single steps are later by is told of them.
        out[lanes] = np.maximum(np.where(by_chance | found.single[lanes], mean, mine), 0.0)
    for lane, step in late.cells:
        out[lane, step] = max(0.0, float(lateness[lane, step] - usual[lane]))
    return out[:, -steps:]


def lateness_among(work_ms: Floats, sent: Sequence[object]) -> Floats:
    """Return each rank's own work less the median of its peers; 0 for a rank without peers."""
    out = np.zeros_like(work_ms)
    for peers in _peers(sent):
        if len(peers) > _FEW:
            out[peers] = work_ms[peers] - np.median(work_ms[peers], axis=0)
        elif len(peers) > 1:
            out[peers] = work_ms[peers] - median_of_others(work_ms[peers])
    return out


def _peers(sent: Sequence[object]) -> Iterator[NDArray[np.intp]]:
    places: dict[object, list[int]] = {}
    for lane, what in enumerate(sent):
        places.setdefault(what, []).append(lane)
    for lanes in places.values():
        yield np.asarray(lanes, dtype=np.intp)


def _persistent(
    work_ms: Floats, lateness: Floats, sent: Sequence[object], parts_ms: Floats, *, least: float
) -> NDArray[np.bool_]:
    """Return which ranks are late in an ordinary step beyond chance."""
    n, steps = lateness.shape
    typical = np.median(lateness, axis=1)
    out = np.zeros(n, dtype=bool)
    chance = _FALSE_ALARM / n
    for peers in _peers(sent):
        if len(peers) < 2:
            continue
        rest = lateness[peers] - typical[peers][:, None]
        for lane in peers.tolist() if len(peers) <= _FEW else [-1]:
            others = peers[peers != lane]
            limits = [0.0]
            if len(others) > 2:
                # How they differ without this one, which may be far from them.
                beside = work_ms[others] - np.median(work_ms[others], axis=0)
                limit = _beyond(np.median(beside, axis=1), chance, usual=least / 2.0)
                by_part = _is_late_by_part(parts_ms, lane, others, typical[lane], least=least, chance=chance)
                limits.append(0.0 if by_part else limit)
            if steps > 1:
                noise, freedom = _noise(rest)
                limits.append(_MEDIAN_ERROR * noise / math.sqrt(steps) * student_tail(chance, freedom))
            concerned = peers if lane < 0 else np.asarray([lane])
            out[concerned] = typical[concerned] > max(limits)
    return out


def _is_late_by_part(
    parts_ms: Floats, lane: int, others: NDArray[np.intp], late_ms: float, *, least: float, chance: float
) -> bool:
    """Tell whether one part of a rank's work, beyond how the others differ in it, explains its lateness."""
    for part in parts_ms if lane >= 0 else ():
        usual = float(np.median(part[others]))
        more = float(part[lane]) - usual
        if more >= _EXPLAINS * late_ms and more > _beyond(
            part[others] - usual, chance / len(parts_ms), usual=least / 2.0
        ):
            return True
    return False


def _chance(rest: Floats, sent: Sequence[object], *, least: float) -> Floats:
    """Return how far from its typical step one step of a rank may be by chance, (n,)."""
    out = np.zeros(len(rest))
    if rest.shape[1] > 1:
        for peers in _peers(sent):
            if len(peers) > 1:
                noise, freedom = _noise(rest[peers], least=max(least, _BESIDE * float(rest[peers].max())))
                out[peers] = noise * student_tail(_FALSE_ALARM / rest[peers].size, freedom)
    return out


def _noise(rest: Floats, *, least: float = math.inf) -> tuple[float, float]:
    """Return by how much the steps of one rank differ, and the degrees of freedom of that figure.

    Args:
        rest: (n, steps) deviations from each rank's typical step.
        least: of few values those beyond it are what is looked for, and not the noise.
    """
    n, steps = rest.shape
    free = (n - 1) * (steps - 1)
    if free < _MANY and math.isfinite(least):
        small = rest[np.abs(rest) < least]
        left = len(small) * (n - 1) / n - 1.0
        return (
            (math.sqrt(float((small**2).sum()) * (n - 1) / n / left), left) if left >= 1 else (math.inf, 1.0)
        )
    if free < _MANY:
        return math.sqrt(float((rest**2).sum()) / (n * (steps - 1))), float(free)
    # Deviations from a median of few steps are too small by the step that they are used up for.
    return _spread(rest, about=0.0) * math.sqrt(steps / (steps - 1)), _EFFICIENCY * free


def _spread(values: Floats, *, about: float | None = None) -> float:
    middle = float(np.median(values)) if about is None else about
    return float(MAD_TO_SIGMA * np.median(np.abs(values - middle)))


def _beyond(others: Floats, chance: float, *, usual: float) -> float:
    """Return the lateness that one more of their kind has with this chance at most.

    How far few ranks differ tells little of their kind, so that what ranks differ by as a rule, `usual`,
    counts beside it: the moderated t of G. K. Smyth, "Linear Models and Empirical Bayes Methods for Assessing
    Differential Expression in Microarray Experiments", 2004.
    """
    n = len(others)
    if n >= _MANY:
        return _spread(others) * student_tail(chance, _EFFICIENCY * (n - 1))
    freedom = _KNOWN_BEFORE + n - 1
    variance = (_KNOWN_BEFORE * usual**2 + (n - 1) * float(others.var(ddof=1))) / freedom
    return math.sqrt(variance * (1.0 + 1.0 / n)) * student_tail(chance, freedom)


def _gains(work_ms: Floats, without_ms: Floats) -> Floats:
    """Return how much sooner the last rank is there, in each step."""
    if not len(without_ms):
        return np.zeros(work_ms.shape[1])
    return np.asarray(work_ms.max(axis=0) - without_ms.max(axis=0))


def _by_group(
    lanes: NDArray[np.intp], groups: Sequence[tuple[str, Sequence[int]]], numbers: Sequence[int]
) -> Iterator[tuple[NDArray[np.intp], str]]:
    """Divide late ranks into whole groups and, one by one, the others."""
    left = set(lanes.tolist())
    for name, members in sorted(_candidates(groups, numbers), key=lambda group: -len(group[1])):
        inside = left & set(members)
        if len(inside) > 1 and min(len(inside) / len(members), len(inside) / len(left)) >= _OF_A_GROUP:
            yield np.asarray(sorted(inside), dtype=np.intp), name
            left -= inside
    for lane in sorted(left):
        yield np.asarray([lane], dtype=np.intp), ""


def _candidates(
    groups: Sequence[tuple[str, Sequence[int]]], numbers: Sequence[int]
) -> Iterator[tuple[str, Sequence[int]]]:
    n = len(numbers)
    for name, members in groups:
        if 1 < len(members) <= n // 2:
            yield name, members
    for size in _BLOCKS:
        blocks: dict[int, list[int]] = {}
        for lane, number in enumerate(numbers):
            blocks.setdefault(number // size, []).append(lane)
        for block, members in blocks.items():
            if len(members) == size <= n // 2:
                yield f"ranks {block * size} to {block * size + size - 1}", members


def _wandering(
    work_ms: Floats, rest: Floats, persistent: NDArray[np.bool_], *, least: float, whole: int
) -> tuple[Late | None, NDArray[np.bool_]]:
    """Find single steps in which a rank is later than in its ordinary ones; and where they are, (n, steps).

    Args:
        work_ms: (n, steps) own work, without what ranks are late by in ordinary steps.
        rest: (n, steps) deviations from each rank's typical lateness.
        persistent: (n,) ranks that are late in ordinary steps, too. How their lateness varies only their
            own steps tell.
        least: what is worth telling.
        whole: see `find_late`.
    """
    nothing = np.zeros(rest.shape, dtype=bool)
    steps = rest.shape[1]
    ordinary = rest[~persistent]
    if steps < 2 or len(ordinary) < 2:
        return None, nothing
    chance = _FALSE_ALARM / rest.size
    noise, freedom = _noise(ordinary, least=max(least, _BESIDE * float(ordinary.max())))
    limits = np.full(len(rest), noise * student_tail(chance, freedom))
    for lane in np.flatnonzero(persistent):
        own = _spread(rest[lane], about=0.0) * math.sqrt(steps / (steps - 1))
        limits[lane] = max(limits[lane], own * student_tail(chance, _EFFICIENCY * (steps - 1)))
    cells = rest > np.maximum(limits, least)[:, None]
    # Beside one that is much later, a little later costs nothing.
    cells &= rest >= _BESIDE * rest.max(axis=0)
    cells[:, : max(0, steps - whole)] = False
    costs = float(_gains(work_ms, np.where(cells, work_ms - rest, work_ms)).mean())
    if costs < least:
        return None, nothing
    found = Late(
        lanes=tuple(np.flatnonzero(cells.any(axis=1)).tolist()),
        kind="wandering",
        costs_ms=costs,
        late_ms=float(np.median(rest[cells])),
        cells=tuple((int(lane), int(step) - steps) for lane, step in np.argwhere(cells)),
    )
    return found, cells


def uneven_ms(work_ms: Floats, sent: Sequence[object]) -> Floats:
    """Return what the rank with most work has more than its peers on average, (steps,).

    The others wait for it: dealt out evenly, the same work takes each of them the average. Of several sets of
    peers that with most counts.

    Args:
        work_ms: (n, steps) own work.
        sent: what each rank sends; ranks that send the same are peers.
    """
    more = [np.zeros(work_ms.shape[1])]
    for each in set(sent):
        mine = work_ms[[other == each for other in sent]]
        more.append(mine.max(axis=0) - mine.mean(axis=0))
    return np.asarray(np.max(more, axis=0))
