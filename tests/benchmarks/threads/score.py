"""Compares a diagnosis with the truth of its thread.

In: a thread, its measured times, diagnosis.json. Out: a `Score`: verdict, line, fix and price, each right,
wrong, or not to be judged (None).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from measure import Times
from truth import COMPUTE, Thread

LEAST_GAIN = 1.10
"""A cause whose cure gains less does not show on this machine; a trap whose cure gains more is none here."""
NEAR_LINES = 2
NEAR_PRICE = 0.15
FIRST_FIXES = 2
DECIDED = ("faster", "slower", "no-difference")
"""Verdicts of a trial that measured something."""
PROMISE = 0.05
"""What a fix that does not help may at most be said to gain, as a share of the step."""


@dataclass(kw_only=True)
class Score:
    """One thread, as the tool saw it."""

    id: str
    slow_ms: float
    fixed_ms: float
    gain: float
    shown: bool
    """The cause has its effect on this machine (a trap: has none)."""
    trap: bool = False
    said: str = ""
    headline: str = ""
    step_ms: float | None = None
    lines: tuple[str, ...] = ()
    fixes: tuple[str, ...] = ()
    """The first suggestions, each with the step it promises."""
    predicted_ms: float | None = None
    price_error: float | None = None
    """Of the step with the fix as a share of the step without: predicted over measured, less one. The share,
    since the step itself depends on who else uses the machine."""
    verdict: bool | None = None
    line: bool | None = None
    fix: bool | None = None
    price: bool | None = None
    why: str = ""
    """Of a trap that was fallen into: how. Of a run that failed: the reason."""

    @property
    def missed(self) -> list[str]:
        """What is wrong."""
        return [name for name in ("verdict", "line", "fix", "price") if getattr(self, name) is False]


def judge(thread: Thread, times: Times, diagnosis: dict[str, Any]) -> Score:
    """Judge one diagnosis."""
    verdict, step = diagnosis["verdict"], diagnosis["step"]["true_ms"]
    suggestions = [s for s in diagnosis["suggestions"] if not s["note"]]
    lines = _lines(diagnosis)
    score = Score(
        id=thread.id, slow_ms=times.slow, fixed_ms=times.fixed, gain=times.gain, shown=shows(thread, times),
        trap=thread.trap, said=f"{verdict['class']} ({verdict['confidence']})", headline=verdict["headline"],
        step_ms=step, lines=tuple(f"{name}:{line}" for name, line in lines),
        fixes=tuple(map(_in_words, suggestions[:3])),
    )  # fmt: skip
    fell = _fallen(thread, times, verdict["class"], suggestions, step)
    if thread.trap:
        score.verdict, score.why = not fell, fell
        return score
    score.verdict = verdict["class"] in thread.verdicts and not fell
    score.why = fell
    places = thread.places()
    score.line = any(
        name == file and abs(line - at) <= NEAR_LINES for name, line in lines for file, at in places
    )
    right = [s for s in suggestions[:FIRST_FIXES] if s["fix"] in thread.fixes]
    # The first that the truth names is what was measured.
    right.sort(key=lambda s: thread.fixes.index(s["fix"]))
    score.fix = bool(right)
    if thread.priced:
        score.predicted_ms = _predicted(right, diagnosis["causes"] if score.verdict else [], step)
        if score.predicted_ms is not None and step:
            score.price_error = score.predicted_ms / step * times.gain - 1
        score.price = score.price_error is not None and abs(score.price_error) <= NEAR_PRICE
    return score


def shows(thread: Thread, times: Times) -> bool:
    """Whether the thread is what it is said to be on this machine."""
    return (times.gain < LEAST_GAIN) if thread.trap else (times.gain >= LEAST_GAIN)


def _lines(diagnosis: dict[str, Any]) -> list[tuple[str, int]]:
    """The lines that a reader sees first: of the first cause and of the first two suggestions."""
    sites = [site for cause in diagnosis["causes"][:1] for site in cause["sites"]]
    sites += [s["site"] for s in diagnosis["suggestions"][:FIRST_FIXES] if s["site"]]
    return list(dict.fromkeys((PurePath(site["file"]).name, site["line"]) for site in sites))


def _predicted(right: list[dict[str, Any]], causes: list[dict[str, Any]], step: float | None) -> float | None:
    """The step with the thread's fix, or, where no suggestion has a figure, without the first cause.

    A fix that was tried in the run has the figure of its trial. The step without its own work is no price: of
    a compute-bound step there is only that of a fix.
    """
    figures = [_with(s, step) for s in right]
    figures += [cause["predicted_ms"] for cause in causes[:1] if cause["class"] != COMPUTE]
    return next((figure for figure in figures if figure is not None), None)


def _fallen(
    thread: Thread, times: Times, said: str, suggestions: list[dict[str, Any]], step: float | None
) -> str:
    """How the trap was fallen into; empty if it was not."""
    if said in thread.not_verdicts:
        return f"the verdict is {said}"
    most = max(0.0, 1 - 1 / times.gain) + PROMISE
    for place, s in enumerate(suggestions):
        if s["fix"] not in thread.not_fixes:
            continue
        left = _with(s, step)
        if step and left is not None and 1 - left / step > most:
            return f"{_in_words(s)} is promised {1 - left / step:.0%} of the step"
        if place == 0 and not thread.small:
            return f"{_in_words(s)} is suggested first"
    return ""


def _with(s: dict[str, Any], step: float | None) -> float | None:
    """The step with a fix: by its trial where that decided, else as predicted."""
    tried = s.get("measured") or {}
    if step and tried.get("verdict") in DECIDED:
        return step / float(tried["speedup"])
    predicted: float | None = s["predicted_ms"]
    return predicted


def _in_words(s: dict[str, Any]) -> str:
    figure = "" if s["predicted_ms"] is None else f": {s['predicted_ms']:.1f} ms"
    words = f"{s['fix']} {s['title']}{figure}{' at best' if figure and s['bound'] else ''}"
    tried = s.get("measured") or {}
    if tried.get("speedup"):
        words += f", tried {tried['speedup']:.2f}x"
        if tried["verdict"] != "faster":
            words += f" ({tried['verdict']})"
    return words
