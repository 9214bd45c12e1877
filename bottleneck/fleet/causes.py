"""Why a rank is late: what it does longer than its peers.

In: summaries. Out: a cause, and where it stands in the source. The norm are its peers, or for single steps
the other steps of the same rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import starmap

import numpy as np
from numpy.typing import NDArray

from ..model.codes import BUDGET_PARTS, LateCause, Part
from ..model.run import SourceSite
from .stragglers import lateness_among
from .summary import KernelSketch, RankSummary

__all__ = [
    "OF_DEVICE",
    "Amounts",
    "among_peers",
    "cause_of",
    "device_taken_ms",
    "disturbed_ms",
    "excess_ms",
    "in_single_steps",
    "parts_ms",
    "site_of",
]

_EXPLAINS = 0.25
"""Of the lateness: an excess must be as much to be its cause."""
_DEVICE: tuple[LateCause, ...] = ("compute", "optimizer", "copies")
OF_DEVICE: tuple[LateCause, ...] = (*_DEVICE, "slower device")
_AS_OFTEN = 0.05
"""Kernels of one name are the same on two ranks if their numbers per step differ by less."""
_AS_SLOW = 0.5
"""Of the lateness, that other processes take from the device. And: the update has the same size on all ranks.
If it, too, is slower by half of what the other kernels are, it is the device that is slow, and not the batch
that is large."""


Amounts = dict[LateCause, tuple[float, float]]
"""Per cause, the work of what is late, and of its norm, ms."""


def among_peers(late: Sequence[RankSummary], peers: Sequence[RankSummary]) -> Amounts:
    """Return what ranks do in an ordinary step, beside their peers.

    A late rank waits for nobody, so its budget tells what its step is made of: what is hidden there, as the
    dispatching of a host that runs ahead of its device, has not made it late.
    """

    def typical(ranks: Sequence[RankSummary], cause: LateCause) -> float:
        return float(np.median([_ordinary_ms(s, cause) for s in ranks]))

    out: Amounts = {}
    for cause in _known(late):
        usual = typical(peers, cause)
        shown = float(np.median([_exposed(s, cause) for s in late]))
        out[cause] = (min(typical(late, cause), usual + shown), usual)
    return out


def excess_ms(summaries: Sequence[RankSummary], sent: Sequence[object]) -> list[dict[LateCause, float]]:
    """Return for each rank how much more it does of each cause in an ordinary step than its peers."""
    causes, typical = _typical(summaries)
    more = lateness_among(typical, sent)
    return [{cause: round(float(ms), 3) for cause, ms in zip(causes, row, strict=True)} for row in more]


def parts_ms(summaries: Sequence[RankSummary], sent: Sequence[object]) -> NDArray[np.float64]:
    """Return what each rank does of each cause in an ordinary step, (causes, n) ms; hidden work left out."""
    causes, typical = _typical(summaries)
    shown = np.array([[_exposed(s, cause) for cause in causes] for s in summaries]).reshape(typical.shape)
    usual = typical - lateness_among(typical, sent)
    return np.asarray(np.minimum(typical, usual + shown).T)


def _ordinary_ms(summary: RankSummary, cause: LateCause) -> float:
    """Return what a rank does of a cause in an ordinary step."""
    return float(np.median(summary.own_work_ms.get(cause) or [0.0]))


def _typical(summaries: Sequence[RankSummary]) -> tuple[list[LateCause], NDArray[np.float64]]:
    """Return the causes that are known, and each rank's work for them in an ordinary step, (n, causes)."""
    causes = _known(summaries)
    work = [[_ordinary_ms(s, cause) for cause in causes] for s in summaries]
    return causes, np.array(work, dtype=np.float64).reshape(len(summaries), len(causes))


def disturbed_ms(
    summaries: Sequence[RankSummary], sent: Sequence[object], waits_ms: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return how much longer the kernels of each rank take per step because its collectives wait, (n,) ms.

    A collective that waits holds multiprocessors: a product that just fits the device takes twice as long
    beside it. The norm are the same kernels on the peer that waits least, without its waiting for another
    process on its device. No more than is waited, and without what the rank's own kernels have told already:
    see `lanes.alone.undisturbed`. And no more than the rank waits for its device: kernels that take longer
    cost nothing beside a host that is slower still.
    """
    out = np.zeros(len(summaries))
    for lane, summary in enumerate(summaries):
        least = min((k for k, what in enumerate(sent) if what == sent[lane]), key=lambda k: waits_ms[k])
        told = summary.own_kernels_ms - sum(_ordinary_ms(summary, cause) for cause in _DEVICE)
        out[lane] = -max(0.0, told) + sum(
            max(0.0, kernel.ms - (usual.ms - _taken_ms(usual, kernel)) * kernel.count / usual.count)
            for kernel, usual in _same(summary.kernels, summaries[least].kernels)
        )
        if summary.alone_host_ms:
            out[lane] = min(out[lane], float(np.median(np.subtract(summary.alone_ms, summary.alone_host_ms))))
    return np.clip(out, 0.0, waits_ms)


def _same(
    kernels: Sequence[KernelSketch], others: Sequence[KernelSketch]
) -> Iterator[tuple[KernelSketch, KernelSketch]]:
    norm = {kernel.name: kernel for kernel in others}
    for kernel in kernels:
        usual = norm.get(kernel.name)
        if usual is not None and abs(kernel.count - usual.count) < _AS_OFTEN * usual.count:
            yield kernel, usual


def _taken_ms(kernel: KernelSketch, usual: KernelSketch) -> float:
    """Return how much of a kernel's time another process has taken, which it has not on the other rank."""
    return max(0.0, kernel.interrupted_ms - usual.interrupted_ms)


def device_taken_ms(late: Sequence[RankSummary], peers: Sequence[RankSummary]) -> float:
    """Return how long late ranks wait for other processes on their device, beside their peers."""
    pairs = [(mine, other) for mine in late for other in peers]
    return float(np.median([sum(starmap(_taken_ms, _same(a.kernels, b.kernels))) for a, b in pairs] or [0.0]))


def _exposed(summary: RankSummary, cause: LateCause) -> float:
    return sum(summary.budget.get(part.value, 0.0) for part in _parts(cause))


def _parts(cause: LateCause) -> list[Part]:
    if cause == "garbage collection":
        return [Part.HOST]
    return [part for part, entry in BUDGET_PARTS.items() if entry.late_for == cause]


def in_single_steps(late: Sequence[tuple[RankSummary, int]]) -> Amounts:
    """Return what ranks do in single steps, counted from the end (-1), beside their own other steps.

    What a rank does behind its last collective of a step makes it late in the next one.
    """
    out: Amounts = {}
    for cause in _known([summary for summary, _ in late]):
        pairs = [
            (max(each[max(step - 1, -len(each)) : len(each) + step + 1]), float(np.median(each)))
            for summary, step in late
            if -len(each := summary.own_work_ms.get(cause, ())) <= step
        ]
        if pairs:
            worst, usual = np.median(pairs, axis=0).tolist()
            out[cause] = (worst, usual)
    return out


def _known(ranks: Sequence[RankSummary]) -> list[LateCause]:
    return list(dict.fromkeys(cause for s in ranks for cause in s.own_work_ms))


def cause_of(amounts: Amounts, late_ms: float, *, taken_ms: float = 0.0) -> LateCause:
    """Return what is done longer than the norm, by about as much as somebody is late.

    `taken_ms`: see `device_taken_ms`.
    """
    excess = {cause: late - usual for cause, (late, usual) in amounts.items()}
    update, usual_update = amounts.get("optimizer", (0.0, 0.0))
    if usual_update > 0:
        # All of the device as much slower as the update, which has the same size on all ranks.
        whole = sum(usual for cause, (_, usual) in amounts.items() if cause in _DEVICE)
        excess["slower device"] = whole * (update / usual_update - 1.0)
    # What is much more than the lateness was hidden behind something else, most of it.
    fits = {each: abs(math.log(ms / late_ms)) for each, ms in excess.items() if ms >= _EXPLAINS * late_ms > 0}
    if not fits:
        return "unknown"
    cause = min(fits, key=lambda each: fits[each])
    slow = taken_ms >= _AS_SLOW * late_ms or _whole_device_is_slow(amounts)
    return "slower device" if cause in ("compute", "optimizer") and slow else cause


def _whole_device_is_slow(amounts: Amounts) -> bool:
    (compute, usual), (update, usual_update) = (
        amounts.get("compute", (0.0, 0.0)),
        amounts.get("optimizer", (0.0, 0.0)),
    )
    if usual <= 0 or usual_update <= 0:
        return False
    slower = compute / usual - 1.0
    return update / usual_update - 1.0 >= _AS_SLOW * slower > 0


def site_of(late: Sequence[RankSummary], cause: LateCause) -> SourceSite | None:
    """Return where most of the cause stands in the source of a late rank."""
    sites = [s.sites[part.value] for s in late for part in _parts(cause) if part.value in s.sites]
    return sites[0] if sites else None
