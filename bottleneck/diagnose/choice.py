"""Which fix comes first, and which second fix adds most to it.

In: the suggestions that match, the verdict, the replays. Out: their order, and a pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..catalog.match import worth_of
from ..catalog.registry import by_id
from ..model.codes import FINDING_CODES, BottleneckClass, QuestionKey
from ..model.diagnosis import Combination, Verdict
from ..model.finding import NEGLIGIBLE_SHARE
from ..model.fix import Suggestion
from ..stats import RIVAL_SHARE
from ..timeline.result import Timeline
from .trials import brings_ms

_WORTH_COMBINING = 0.03
"""Share of the step that a second fix must add to the first to be named with it."""


def verdicts_own_first(
    suggestions: Sequence[Suggestion], verdict: Verdict, codes: set[str], true_ms: float | None
) -> tuple[Suggestion, ...]:
    """Put the best fix of the verdict's own class first: it is what the headline speaks of.

    A fix of another class may save more but need this one first: a CUDA graph cannot be captured over
    a synchronisation. If it saves more than twice as much, it still comes first. What names a call of the
    user's comes before both, by the same measure, with general fixes counting half: it is certain, and nobody
    has to look for it. What was measured to help stays first, but for what leaves work out: that may have to
    stay, and what does it in less time comes before it.
    """
    suggestions = _what_stays_first(suggestions)
    if suggestions and suggestions[0].helps:
        return tuple(suggestions)
    worth = {s.fix: brings_ms(s, true_ms) for s in suggestions if not s.note and s.helps is not False}
    worth_it = [s for s in suggestions if s.fix in worth and _is_worth_it(s, worth[s.fix])]
    # A general fix names nothing that is to blame: beside what does, a promise of it counts half.
    general = {s.fix for s in suggestions if by_id(s.fix).general == "always" and not s.helps}
    beside = {fix: ms / 2 if fix in general else ms for fix, ms in worth.items()}
    named = [s for s in worth_it if FINDING_CODES[s.finding].names_call]
    own = [s for s in worth_it if FINDING_CODES[s.finding].bottleneck_class is verdict.bottleneck_class]
    for able, rivals in ((named, beside), (own, worth)):
        if able and worth[able[0].fix] >= RIVAL_SHARE * max(rivals.values()):
            # Of equals the one made for the most specific finding: a family of codes begins with the general.
            equals = [s for s in able if worth[s.fix] == worth[able[0].fix]]
            first = max(equals, key=lambda s: _made_for(s, codes))
            return (first, *(s for s in suggestions if s is not first))
    return tuple(suggestions)


def _what_stays_first(suggestions: Sequence[Suggestion]) -> list[Suggestion]:
    """Put what does the same work in less time right before what leaves that work out."""
    ordered = list(suggestions)
    for keeps in [s for s in suggestions if by_id(s.fix).keeps_what and s.saves_ms and s.helps is not False]:
        leaves_out, about = by_id(keeps.fix).keeps_what, (keeps.finding, keeps.site)
        leaves = next((s for s in ordered if s.fix == leaves_out and (s.finding, s.site) == about), None)
        if leaves is not None and ordered.index(leaves) < ordered.index(keeps):
            ordered.remove(keeps)
            ordered.insert(ordered.index(leaves), keeps)
    return ordered


_THE_SCRIPTS_OWN = (BottleneckClass.COMPUTE, BottleneckClass.INPUT, BottleneckClass.HOST)
"""Its work, its input, its Python."""


def known_savings(suggestions: Sequence[Suggestion]) -> list[tuple[str, float]]:
    """Return the finding and the saving of each fix of which more is known than the most that it can save.

    General fixes are left out: they name nothing that is to blame. Of what the script does itself bounds are
    kept, by their weight: that is no wait which some fix might leave.
    """
    return [
        (s.finding, worth_of(s))
        for s in suggestions
        if not s.note
        and by_id(s.fix).general != "always"
        and (
            not s.bound
            or by_id(s.fix).bound_weight is not None
            or FINDING_CODES[s.finding].bottleneck_class in _THE_SCRIPTS_OWN
        )
    ]


def measured_savings(suggestions: Sequence[Suggestion], true_ms: float | None) -> dict[str, float]:
    """Return of each finding the best saving, in ms, of its fixes that were tried in the run and helped."""
    found: dict[str, float] = {}
    for s in suggestions:
        if s.helps and not s.leaves_out:
            found[s.finding] = max(found.get(s.finding, 0.0), brings_ms(s, true_ms))
    return found


def _is_worth_it(suggestion: Suggestion, worth_ms: float) -> bool:
    """Return whether a fix saves a share that matters; one that saves nothing answers no headline."""
    predicted, saves = suggestion.predicted_ms, suggestion.saves_ms
    if predicted is None or saves is None:
        return False
    return min(saves, worth_ms if suggestion.measured else saves) >= NEGLIGIBLE_SHARE * (predicted + saves)


def _made_for(suggestion: Suggestion, codes: set[str]) -> tuple[bool, str]:
    """Whether a fix is made for one call, and the finding that it names first, if it was found at all."""
    fix = by_id(suggestion.fix)
    first = next(iter(fix.addresses), "")
    return bool(fix.for_calls), first if first in codes else ""


def best_pair(
    suggestions: Sequence[Suggestion], timeline: Timeline, true_ms: float | None
) -> Combination | None:
    """The first suggestion with the one that adds most to it."""
    if not suggestions or true_ms is None or not timeline.usable_what_ifs:
        return None
    first, *others = suggestions
    question = _asked(first, timeline)
    best: Combination | None = None
    for other in others:
        its = _asked(other, timeline)
        if question is None or its is None or (question, its) not in timeline.after:
            continue
        both = timeline.after[question, its]
        alone = [_alone(s, timeline) for s in (first, other)]
        least = min(step for step, _ in alone)
        if both < least - _WORTH_COMBINING * true_ms and (best is None or both < best.predicted_ms):
            best = Combination(
                fixes=(first.fix, other.fix), predicted_ms=both, bound=any(bound for _, bound in alone)
            )
    return best


def _asked(suggestion: Suggestion, timeline: Timeline) -> QuestionKey | None:
    """Return the question that a suggestion is an answer to, which may be about one of several calls.

    None where its price is that of a part: nothing was asked of a part together with something else.
    """
    fix = by_id(suggestion.fix)
    if fix.what_if is None:
        return None
    about: list[QuestionKey] = [(fix.what_if, callee) for callee in fix.for_calls]
    key = next((each for each in about if each in timeline.what_ifs), fix.what_if)
    answer, predicted_ms = timeline.what_ifs.get(key), suggestion.predicted_ms
    if answer is None or answer.relieved_ms is not None or predicted_ms is None:
        return key
    return key if predicted_ms - answer.step_ms <= NEGLIGIBLE_SHARE * timeline.true_ms else None


def _alone(suggestion: Suggestion, timeline: Timeline) -> tuple[float, bool]:
    """Return (step in ms, whether it is a bound) of a suggestion, without what less memory held may bring.

    Beside the fix that ends the allocator's calls that is no longer open.
    """
    fix = by_id(suggestion.fix)
    answer = timeline.what_ifs.get(fix.what_if) if fix.what_if is not None else None
    if answer is not None and answer.relieved_ms is not None:
        return answer.step_ms, answer.bound or fix.what_if_bound
    return (math.inf if suggestion.predicted_ms is None else suggestion.predicted_ms), suggestion.bound
