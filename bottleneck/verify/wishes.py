"""What to try: from the command line's words, or from a diagnosis.

In: words like FX101:num_workers=8, or suggestions. Out: candidates, in the order of trying.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ..catalog.registry import FIXES, by_id
from ..errors import UsageError
from ..model.verify import Wish
from .rows import Candidate, candidate_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..model.diagnosis import Diagnosis
    from ..model.fix import Suggestion
    from ..model.run import JsonValue

__all__ = ["OPTIONS", "candidates_from", "candidates_of", "options_in", "parse_wish"]

_WORKERS: dict[str, type] = {"num_workers": int, "persistent_workers": bool}
_COMPILING: dict[str, type] = {"mode": str, "dynamic": bool, "backend": str}
OPTIONS: dict[str, dict[str, type]] = {
    "FX101": _WORKERS,
    "FX102": _WORKERS,
    "FX106": {"prefetch_factor": int},
    "FX203": {"bytes": int},
    "FX301": {"precision": str},
    "FX410": _COMPILING,
    "FX411": {"limit": int},
    "FX412": {**_COMPILING, "blocks": bool},
    "FX414": {**_COMPILING, "blocks": bool},
    "FX506": {"threads": int},
    "FX601": {"bucket_cap_mb": int, "static_graph": bool},
}
"""Fix -> the options that its patch takes (`harness/patches`), with their kind."""

_KEYWORDS = {
    "FX101": ("num_workers",),
    "FX102": ("num_workers",),
    "FX106": ("prefetch_factor",),
}
"""Options that a suggestion's code carries the run's own figures for."""


def parse_wish(word: str) -> Wish:
    """Return the wish of a word: FX101, or FX101:num_workers=8,persistent_workers=false.

    Raises:
        UsageError: no such fix, one that cannot be tried, or options that make no sense.
    """
    name, _, text = word.partition(":")
    fix = by_id(name)
    if not fix.can_try:
        able = ", ".join(f.id for f in FIXES if f.can_try)
        raise UsageError(
            f"{fix.id} ({fix.title}) cannot be applied without editing the script.",
            remedy=f"These can: {able}.",
        )
    options: dict[str, JsonValue] = {}
    for pair in filter(None, text.split(",")):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UsageError(
                f"{pair!r} in {word!r} is no option.", remedy="Write FX101:num_workers=8,name=value."
            )
        options[key.strip()] = _value(fix.id, key.strip(), value.strip())
    return Wish(fix=fix.id, options=options)


def _value(fix: str, name: str, text: str) -> JsonValue:
    known = OPTIONS.get(fix, {})
    kind = known.get(name)
    if kind is None:
        takes = f"It takes {', '.join(known)}." if known else "It takes none."
        raise UsageError(f"{fix} has no option {name!r}.", remedy=takes)
    if kind is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind is int and text.isdecimal():
        return int(text)
    if kind is str and text:
        return text
    wanted = {bool: "true or false", int: "a whole number", str: "a word"}[kind]
    raise UsageError(f"{fix}:{name}={text} makes no sense: {name} is {wanted}.")


def candidates_from(words: Sequence[str], diagnosis: Diagnosis | None) -> tuple[Candidate, ...]:
    """Return the candidates that were asked for by name, with their predictions if there are any.

    Raises:
        UsageError: see `parse_wish`; also a fix that was named twice.
    """
    known = {s.fix: s for s in _all_suggestions(diagnosis)} if diagnosis is not None else {}
    true_ms = diagnosis.step.true_ms if diagnosis is not None else None
    found: dict[str, Candidate] = {}
    for word in words:
        wish = parse_wish(word)
        if wish.fix in found:
            raise UsageError(f"{wish.fix} is named twice.")
        suggestion = known.get(wish.fix)
        if suggestion is None:
            fix = by_id(wish.fix)
            found[wish.fix] = Candidate(wishes=(wish,), title=fix.title, risk=fix.risk)
            continue
        options = {**options_in(suggestion), **wish.options}
        found[wish.fix] = candidate_of(suggestion, Wish(fix=wish.fix, options=options), true_ms)
    return tuple(found.values())


def candidates_of(diagnosis: Diagnosis, *, everything: bool) -> tuple[Candidate, ...]:
    """Return the candidates that a diagnosis suggests, those with the largest predicted gain first.

    Args:
        diagnosis: of the run.
        everything: also what applies to this run without answering any of its findings.
    """
    offered = _all_suggestions(diagnosis) if everything else diagnosis.suggestions
    able = [s for s in offered if s.can_try and (everything or not s.note)]
    ranked = sorted(able, key=lambda s: -(s.saves_ms or 0.0))
    true_ms = diagnosis.step.true_ms
    return tuple(candidate_of(s, Wish(fix=s.fix, options=options_in(s)), true_ms) for s in ranked)


def _all_suggestions(diagnosis: Diagnosis) -> Iterable[Suggestion]:
    return (*diagnosis.suggestions, *diagnosis.applicable)


def options_in(suggestion: Suggestion) -> dict[str, JsonValue]:
    """Return the figures that the catalogue has put into a suggestion's code for this run."""
    names = _KEYWORDS.get(suggestion.fix, ())
    if not names:
        return {}
    try:
        tree = ast.parse(suggestion.code)
    except SyntaxError:
        return {}
    return {
        keyword.arg: keyword.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg in names
        and isinstance(keyword.value, ast.Constant)
        and isinstance(keyword.value.value, (int, float, str))
    }
