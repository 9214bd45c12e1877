"""Chooses the fixes for one run: those that answer a finding, apply, and are not already on.

In: findings, the context of the run, the replay's answers, the true step time. Out: suggestions,
fully resolved, the best first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ..model.codes import QuestionKey
from ..model.diagnosis import WhatIfResult
from ..model.finding import NEGLIGIBLE_SHARE, Finding
from ..model.fix import Fix, Suggestion
from ..model.run import JsonValue
from ..model.words import ms
from ..model.work import BreakRow
from ..stats import worth
from .conditions import evaluate, filled_code, filled_options
from .registry import FIXES, by_id

_EMPTIED = "allocator.empty_cache_per_step"
_EXPLAINS = 0.5
"""Share of the cost of the largest cause. Where one that names what is to blame explains as much, a general fix
counts for this share of what it saves: more than the small ones, less than that one."""


def match(
    findings: Iterable[Finding],
    context: Mapping[str, JsonValue],
    what_ifs: Mapping[QuestionKey, WhatIfResult],
    true_ms: float | None,
    *,
    fixes: Iterable[Fix] = FIXES,
    breaks: Sequence[BreakRow] = (),
) -> tuple[Suggestion, ...]:
    """Return the suggestions for a run.

    A fix is suggested once, for the dearest finding that it addresses. One whose condition is false
    (it is on already, the device cannot do it) is left out; a condition that the run could not check
    is listed with the suggestion. A fix that is predicted to save nothing, or less than
    `NEGLIGIBLE_SHARE` of the step, is left out too. Of two that conflict the better stays.

    Args:
        findings: what was found, in any order.
        context: facts and settings in force; absent keys are unknown.
        what_ifs: the replay's answers; only from these does a suggestion get its prediction.
        true_ms: the true step time, None when it is unknown.
        fixes: the catalogue to choose from.
        breaks: graph breaks with their price: a fix for one kind of break is predicted from those only.

    Returns:
        Suggestions: gains that are not negligible first, by size, that of a general fix by half of it where
        another one explains half of the cost; then what cannot be predicted for findings that another fix
        answers with a prediction; then small gains; notes last.
    """
    found, fixes = tuple(findings), tuple(fixes)
    claimed = tuple(beginning for fix in fixes for beginning in fix.for_calls)
    chosen: dict[str, tuple[Fix, Suggestion, float]] = {}
    for fix in fixes:
        answered = [f for f in found if f.code in fix.addresses and _is_for(fix, f, claimed)]
        if not answered or fix.status == "removed" or (what_ifs and _is_unanswered(fix, what_ifs)):
            continue
        # Of findings with one price, as of the allocator and of empty_cache(), the one it was made for.
        # One that names a call comes before all: it says what to change.
        finding = max(
            answered,
            key=lambda f: (_names_call(fix, f), f.cost_ms or 0.0, not f.note, -fix.addresses.index(f.code)),
        )
        unknown = _unchecked(fix, context)
        if unknown is not None and not _gains_nothing(fix, finding, what_ifs):
            suggestion = _suggest(fix, finding, context, what_ifs, unknown)
            if not finding.call:
                suggestion = _at_its_place(suggestion, fix, answered, _answer(fix, finding, what_ifs))
            suggestion = _of_its_breaks(suggestion, fix, breaks, true_ms)
            chosen[fix.id] = (fix, suggestion, finding.cost_ms or 0.0)
    made: dict[str, tuple[Fix, Suggestion, float]] = {}
    for fix, suggestion, cost_ms in chosen.values():
        answer = what_ifs.get(fix.narrower) if fix.narrower is not None else None
        own = _for_call(answer, suggestion, fixes, context) if answer is not None else None
        if own is not None and own[0].id not in chosen:
            made[own[0].id] = (*own, cost_ms)
    chosen |= made
    priced = {suggestion.finding for _, suggestion, _ in chosen.values() if suggestion.saves_ms is not None}
    explained = _is_explained(found, chosen.values())
    ranked = sorted(
        (entry for entry in chosen.values() if not _shows_nothing(entry[1], entry[2], true_ms)),
        key=lambda entry: _rank(
            entry[0],
            entry[1],
            entry[2],
            true_ms,
            priced=priced,
            narrowed=(not entry[1].bound and entry[0].narrower in what_ifs) + 2 * (entry[0].id in made),
            explained=explained,
        ),
    )
    return _without_conflicts(ranked)


def _for_call(
    answer: WhatIfResult, general: Suggestion, fixes: Iterable[Fix], context: Mapping[str, JsonValue]
) -> tuple[Fix, Suggestion] | None:
    """Return the fix that is made for the call which another suggestion names: it gains what that one does."""
    for fix in fixes if answer.callee and not general.note else ():
        if fix.status == "removed" or not answer.callee.startswith(fix.for_calls):
            continue
        unknown = _unchecked(fix, context)
        if unknown is not None:
            return fix, msgspec.structs.replace(
                _suggest(fix, None, context, {}, unknown),
                title=fix.named.format(call=f"`{answer.call}`") if fix.named else fix.title,
                finding=general.finding,
                predicted_ms=general.predicted_ms,
                saves_ms=general.saves_ms,
                bound=general.bound,
                basis=general.basis,
                site=general.site,
            )
    return None


def _names_call(fix: Fix, finding: Finding) -> int:
    """Return how much a finding says of the call that a fix is about; 0 if it names none, or all do."""
    named = finding.call and not fix.for_rounds
    return len(fix.addresses) - fix.addresses.index(finding.code) if named else 0


def _is_for(fix: Fix, finding: Finding, claimed: tuple[str, ...]) -> bool:
    """Return whether a fix is meant for the call that a finding names, if it names one, or for its rounds."""
    if (fix.for_rounds and not finding.in_rounds) or (fix.takes_out and finding.is_needed):
        return False
    if not finding.call:
        return True
    if fix.for_calls:
        return finding.callee.startswith(fix.for_calls)
    return not finding.callee.startswith(claimed)


def applicable(
    suggestions: Iterable[Suggestion],
    context: Mapping[str, JsonValue],
    what_ifs: Mapping[QuestionKey, WhatIfResult],
) -> tuple[Suggestion, ...]:
    """Return the fixes that can be tried at run time and apply, but answer no finding.

    For `bottleneck verify --all`: what a diagnosis does not think of may help all the same.
    """
    made = {suggestion.fix for suggestion in suggestions}
    found = []
    for fix in FIXES:
        if not fix.can_try or fix.status == "removed" or fix.id in made:
            continue
        if fix.for_calls or _is_unanswered(fix, what_ifs):
            continue  # no finding names the call that it is about, or the step has nothing of it
        unknown = _unchecked(fix, context)
        if unknown is not None:
            found.append(_suggest(fix, None, context, what_ifs, unknown))
    return tuple(suggestion for suggestion in found if suggestion.can_try)


def _is_unanswered(fix: Fix, what_ifs: Mapping[QuestionKey, WhatIfResult]) -> bool:
    """Return whether the step has nothing of what a fix is about."""
    return fix.only_answered and not {fix.what_if, fix.narrower} & what_ifs.keys()


def _gains_nothing(fix: Fix, finding: Finding | None, what_ifs: Mapping[QuestionKey, WhatIfResult]) -> bool:
    """Return whether the replay was asked about this fix and saw no gain."""
    answer = _answer(fix, finding, what_ifs)
    return answer is not None and answer.saves_ms <= 0


def _answer(
    fix: Fix, finding: Finding | None, what_ifs: Mapping[QuestionKey, WhatIfResult]
) -> WhatIfResult | None:
    """Return what the run says about a fix: the narrowest answer, which may be about the finding's call."""
    callee = finding.callee if finding is not None else ""
    asked: list[QuestionKey] = [
        key
        for question in (fix.narrower, fix.what_if)
        if question is not None
        for key in ((question, callee), question)
    ]
    return next((what_ifs[key] for key in asked if key in what_ifs), None)


def _shows_nothing(suggestion: Suggestion, finding_ms: float, true_ms: float | None) -> bool:
    """Return whether a fix saves next to nothing: not even all that its finding costs would be more."""
    saves = suggestion.saves_ms
    if saves is None and finding_ms and not suggestion.note:
        saves = finding_ms
    return saves is not None and true_ms is not None and saves < NEGLIGIBLE_SHARE * true_ms


def _unchecked(fix: Fix, context: Mapping[str, JsonValue]) -> tuple[str, ...] | None:
    """Return the conditions that could not be checked, or None when the fix does not apply."""
    unknown: list[str] = []
    for condition, wanted in [(c, True) for c in fix.when] + [(c, False) for c in fix.unless]:
        holds = evaluate(condition, context)
        if holds is None:
            unknown.append(f"whether {condition.text}")
        elif holds is not wanted:
            return None
    return tuple(unknown)


def _suggest(
    fix: Fix,
    finding: Finding | None,
    context: Mapping[str, JsonValue],
    what_ifs: Mapping[QuestionKey, WhatIfResult],
    unknown: tuple[str, ...],
) -> Suggestion:
    answer, basis = _answer(fix, finding, what_ifs) if not fix.note else None, fix.basis
    narrowed = answer is not None and answer.question is fix.narrower
    if answer is not None:
        basis = f"{answer.basis} ({fix.basis})" if fix.basis and not narrowed else answer.basis
    step_ms, saves_ms = (answer.step_ms, answer.saves_ms) if answer is not None else (None, None)
    bound = answer is not None and (answer.bound or (fix.what_if_bound and not narrowed))
    # empty_cache() gives blocks back however much memory there is.
    if answer is not None and answer.relieved_ms is not None and not context.get(_EMPTIED):
        step_ms, saves_ms = answer.relieved_ms, answer.saves_ms + answer.step_ms - answer.relieved_ms
        bound = True
        basis += (
            f"; at best, if with less memory held the allocator no longer goes to the driver, and"
            f" {ms(answer.step_ms)} a step if it goes as often"
        )
    title = fix.title
    if answer is not None and answer.call and fix.named:
        title = fix.named.format(call=f"`{answer.call}`")
    if finding is not None and finding.call and fix.named and finding.cost_ms is not None:
        # The finding is about that one line, and so is its price.
        title, bound = fix.named.format(call=finding.call), fix.what_if_bound
        step_ms, saves_ms, basis = finding.predicted_step_ms, finding.cost_ms, finding.title
    adds = context.get(fix.adds) if fix.adds else None
    options = filled_options(fix.options, context)
    return Suggestion(
        fix=fix.id,
        title=title,
        finding=finding.code if finding is not None else "",
        predicted_ms=step_ms,
        saves_ms=saves_ms,
        bound=bound,
        adds_ms=adds if isinstance(adds, float) else None,
        basis=basis,
        how=fix.what_to_change,
        code=filled_code(fix, context),
        options=options,
        site=finding.sites[0] if finding is not None and finding.sites else None,
        risk=fix.risk,
        may_break=fix.may_break,
        undo=fix.undo,
        verify=fix.verify,
        leaves_out=fix.leaves_out,
        can_try=fix.can_try and all(name in options for name, each in fix.options.items() if each.needed),
        unknown=unknown,
        sources=fix.sources,
        record=fix.record,
        note=fix.note or (finding is not None and finding.note),
    )


def _at_its_place(
    suggestion: Suggestion, fix: Fix, answered: Sequence[Finding], answer: WhatIfResult | None
) -> Suggestion:
    """Point to the line of the answer, or of the finding that the fix was made for, not of the dearest one.

    Cheaper production is about the line that produces, more workers about the loader's constructor.
    """
    sites = {finding.code: finding.sites[0] for finding in answered if finding.sites}
    first = answer.site if answer is not None else None
    first = first or next((sites[code] for code in fix.addresses if code in sites), None)
    return msgspec.structs.replace(suggestion, site=first) if first is not None else suggestion


def _of_its_breaks(
    suggestion: Suggestion, fix: Fix, breaks: Sequence[BreakRow], true_ms: float | None
) -> Suggestion:
    """Narrow a fix for one kind of graph break down to the breaks of that kind: their line, their price."""
    wanted = {c.value for c in fix.when if c.key == "compile.break_kinds" and c.op == "contains"}
    own = [row for row in breaks if row.kind in wanted]
    if not own:
        return suggestion
    suggestion = msgspec.structs.replace(suggestion, site=own[0].site or suggestion.site)
    prices = [row.cost_ms for row in own if row.cost_ms is not None]
    if len(own) == len(breaks) or len(prices) < len(own) or true_ms is None or suggestion.saves_ms is None:
        return suggestion
    saves = sum(prices)
    share = f"its {len(own)} of {len(breaks)} breaks, by their share of all seams: "
    return msgspec.structs.replace(
        suggestion, predicted_ms=true_ms - saves, saves_ms=saves, basis=share + suggestion.basis
    )


def worth_of(suggestion: Suggestion) -> float:
    """Return what a suggestion is sorted by, in ms per step: a bound weighs less than a prediction."""
    weight = by_id(suggestion.fix).bound_weight
    return worth(suggestion.saves_ms or 0.0, bound=suggestion.bound, weight=weight)


def _is_general(fix: Fix, suggestion: Suggestion) -> bool:
    return fix.general == "always" or (fix.general == "unpriced" and suggestion.saves_ms is None)


def _is_explained(found: Iterable[Finding], chosen: Iterable[tuple[Fix, Suggestion, float]]) -> bool:
    """Return whether a fix that names what is to blame has a price of half of what the largest cause takes."""
    # The work of a step that computes has a time, and no cost.
    takes = max((f.cost_ms or f.time_ms or 0.0 for f in found if not f.note), default=0.0)
    return any(
        worth(s.saves_ms, bound=s.bound, weight=fix.bound_weight) >= _EXPLAINS * takes
        for fix, s, _ in chosen
        if s.saves_ms is not None and not s.note and not _is_general(fix, s)
    )


def _rank(
    fix: Fix,
    suggestion: Suggestion,
    finding_ms: float,
    true_ms: float | None,
    *,
    priced: set[str],
    narrowed: int,
    explained: bool,
) -> tuple[int, int, int, float, str]:
    """Return what fixes are sorted by.

    Of gains that differ by less than matters, the one that changes what takes the time (`narrowed`) comes
    before those that have it done by someone else: its part was measured. One that is made for the call that
    takes the time comes before both.
    """
    saves, bound = suggestion.saves_ms, suggestion.bound
    if suggestion.note:
        return (4, 0, 0, -finding_ms, suggestion.fix)
    if saves is None:
        if suggestion.finding in priced:
            return (2, 0, 0, -finding_ms, suggestion.fix)
        # Nothing else answers this finding: at best the fix saves all that it costs.
        saves, bound = finding_ms, True
    least_ms = NEGLIGIBLE_SHARE * true_ms if true_ms is not None else 0.0
    weight = worth(saves, bound=bound, weight=fix.bound_weight)
    is_general = _is_general(fix, suggestion)
    behind = explained and is_general
    if behind:
        weight *= _EXPLAINS
    gain = round(weight / least_ms) if least_ms > 0 else 0
    group = 3 if saves < least_ms else 1 if behind and suggestion.saves_ms is None else 0
    # Without a step nobody knows which gains do not differ.
    last = is_general and least_ms > 0
    return (group, -gain, last - narrowed, -weight, suggestion.fix)


def _without_conflicts(ranked: list[tuple[Fix, Suggestion, float]]) -> tuple[Suggestion, ...]:
    kept: list[tuple[Fix, Suggestion]] = []
    for fix, suggestion, _ in ranked:
        if not any(fix.id in other.conflicts or other.id in fix.conflicts for other, _ in kept):
            kept.append((fix, suggestion))
    return tuple(suggestion for _, suggestion in kept)
