"""What to try: from the command line's words, or from a diagnosis.

In: words like ID:num_workers=8, or suggestions. Out: candidates, in the order of trying.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ..catalog.match import worth_of
from ..catalog.registry import FIXES, OWN, by_id, is_fix_id
from ..errors import UsageError
from ..model.diagnosis import Diagnosis
from ..model.fix import Fix, Suggestion
from ..model.run import JsonValue
from ..model.verify import Wish
from .own import read_diff
from .rows import Candidate, candidate_of, untried


def parse_wish(word: str) -> Wish:
    """Return the wish of a word: an id, or ID:num_workers=8,persistent_workers=false, or a file with a diff.

    Raises:
        UsageError: no such fix, one that cannot be tried, or options that make no sense.
        InputError: a file that holds no diff.
    """
    if not is_fix_id(word) and Path(word).is_file():
        return Wish(fix=OWN.id, diff=read_diff(Path(word)))
    name, _, text = word.partition(":")
    if name == OWN.id:
        raise UsageError(f"There is no fix {name!r}.", remedy="Name the file that your diff is in.")
    fix = by_id(name)
    if not fix.can_try:
        able = ", ".join(f.id for f in FIXES if f.can_try)
        raise UsageError(
            f"{fix.id} ({fix.title}) cannot be applied without editing the script.",
            remedy=f"These fixes can: {able}.",
        )
    options: dict[str, JsonValue] = {}
    for pair in filter(None, text.split(",")):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UsageError(
                f"{pair!r} in {word!r} is not an option.", remedy=f"Write {fix.id}:name=value,name=value."
            )
        options[key.strip()] = _value(fix, key.strip(), value.strip())
    return Wish(fix=fix.id, options=options)


def _value(fix: Fix, name: str, text: str) -> JsonValue:
    option = fix.options.get(name)
    if option is None:
        takes = f"Its options: {', '.join(fix.options)}." if fix.options else "It has no options."
        raise UsageError(f"{fix.id} has no option {name!r}.", remedy=takes)
    if option.kind == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if option.kind == "int" and text.isdecimal():
        return int(text)
    if option.kind == "str" and text:
        return text
    wanted = {"bool": "true or false", "int": "a whole number", "str": "a word"}[option.kind]
    raise UsageError(f"{fix.id}:{name}={text} is not valid: {name} must be {wanted}.")


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
            title = f"{fix.title} ({word})" if wish.diff else fix.title
            found[wish.fix] = untried(wish, title=title, risk=fix.risk)
            continue
        options = {**suggestion.options, **wish.options}
        found[wish.fix] = candidate_of(suggestion, Wish(fix=wish.fix, options=options), true_ms)
    return tuple(found.values())


def candidates_of(diagnosis: Diagnosis, *, everything: bool) -> tuple[Candidate, ...]:
    """Return the candidates that a diagnosis suggests, those with the largest gain first.

    A gain that was measured in the diagnosed run counts in place of the predicted one, and what did not
    help there is left out.

    `everything`: also what applies to this run without answering any of its findings.
    """
    offered = _all_suggestions(diagnosis) if everything else diagnosis.suggestions
    able = [s for s in offered if s.can_try and (everything or not (s.note or s.helps is False))]
    true_ms = diagnosis.step.true_ms
    ranked = sorted(able, key=lambda s: -_weight(s, true_ms))
    return tuple(candidate_of(s, Wish(fix=s.fix, options=dict(s.options)), true_ms) for s in ranked)


def _weight(suggestion: Suggestion, true_ms: float | None) -> float:
    """Return what a fix is sorted by: the gain that was measured, or what the diagnosis sorts by."""
    measured = suggestion.measured
    if suggestion.helps and measured is not None and measured.step_ms is not None and true_ms is not None:
        return true_ms - measured.step_ms
    return worth_of(suggestion)


def _all_suggestions(diagnosis: Diagnosis) -> Iterable[Suggestion]:
    return (*diagnosis.suggestions, *diagnosis.applicable)
