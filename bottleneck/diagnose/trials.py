"""Fixes tried in the running process: which to try, and what the measurements make of the suggestions.

In: a diagnosis, or what came back of its trials. Out: a request; suggestions with what was measured, in the
order of what they really bring.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from ..catalog.match import worth_of
from ..catalog.registry import by_id
from ..catalog.tolerances import EXACT, Tolerance, tolerance_of, widened
from ..model.diagnosis import Combination, Diagnosis
from ..model.finding import NEGLIGIBLE_SHARE
from ..model.fix import MeasuredHere, Suggestion, instead_of
from ..model.run import Run
from ..model.verify import CompilerLook, TrialRequest, TriedFix, TriedFixes, TryWish, Wish
from ..model.words import percent
from ..stats.ratio_paired import decide_ratio, ratio_in_turns

_VERDICTS = {"faster": "faster", "slower": "slower", "no gain": "no-difference", "undecided": "undecided"}
_LEAST_PAIRS = 2
"""Two pairs have an interval; one too wide decides nothing by itself."""


def request_of(diagnosis: Diagnosis, seconds: float) -> TrialRequest:
    """Return the suggestions that have a patch, in the order of trying.

    What promises next to nothing comes last. Before it comes what compiles: a compilation may take all the
    time there is; and before that other ways to a gain that is tried already. Of two fixes that rule each
    other out only the better is suggested: the other one follows, should that bring nothing.
    """
    true_ms = diagnosis.step.true_ms
    able = [s for s in diagnosis.suggestions if s.can_try and not s.note and s.adds_ms is None]
    rivals = {s.fix: rival for s in diagnosis.applicable if (rival := _rival(s, able)) is not None}
    led = instead_of(able)
    ranked = sorted(able, key=lambda s: _turn(s, true_ms, led))
    ranked += [s for s in diagnosis.applicable if s.fix in rivals and not _turn(s, true_ms, led)[0]]
    return TrialRequest(
        wishes=tuple(
            TryWish(
                wish=Wish(fix=s.fix, options=dict(s.options)),
                promises=s.saves_ms / true_ms if s.saves_ms is not None and true_ms else None,
                moves_samples=by_id(s.fix).moves_samples,
                conflicts=by_id(s.fix).conflicts,
                instead_of=rivals[s.fix].fix if s.fix in rivals else "",
            )
            for s in ranked
        ),
        seconds=seconds,
    )


def _rival(other: Suggestion, suggestions: Sequence[Suggestion]) -> Suggestion | None:
    """Return the suggestion that stands in the place of another fix with a price, if there is one."""
    if other.saves_ms is None or not other.can_try:
        return None
    return next(
        (
            s
            for s in suggestions
            if other.fix in by_id(s.fix).conflicts or s.fix in by_id(other.fix).conflicts
        ),
        None,
    )


def _turn(suggestion: Suggestion, true_ms: float | None, led: Mapping[str, str]) -> tuple[bool, bool, bool]:
    saves = suggestion.saves_ms
    small = saves is not None and true_ms is not None and saves < NEGLIGIBLE_SHARE * true_ms
    return small, by_id(suggestion.fix).compiles, suggestion.fix in led


def by_measurement(
    suggestions: Sequence[Suggestion],
    tried: TriedFixes | None,
    run: Run | None,
    true_ms: float | None,
    *,
    others: Sequence[Suggestion] = (),
    evaluation_ms: float = 0.0,
) -> tuple[Suggestion, ...]:
    """Put what was measured beside each suggestion, and order them by it.

    `evaluation_ms` of the step are an evaluation's share, or a rollout's, which most trials do not hold.

    Of the others, which apply and are not suggested because another one rules them out, those are suggested
    that were measured to help, or that promise something where only a part of the other was tried, and does
    not help here.

    What was measured counts in full and what is only predicted as a prediction does, so a proven gain may
    come before a larger promise that is a bound, or that lies within the interval of the measurement. What is
    measured and not decided counts as what is to be expected of it. Of several ways to the same gain one that
    found nothing to change comes last. Behind one that helps the others come after all other gains. What
    brings next to nothing comes after what has no price. What brings nothing here comes last.
    """
    if tried is None or not tried.rows:
        return tuple(suggestions)
    rows = {row.fix: row for row in tried.rows if not row.beside}
    dtypes = _dtypes(run)

    def with_trial(suggestion: Suggestion, look: CompilerLook | None = None) -> Suggestion:
        if (row := rows.get(suggestion.fix)) is not None:
            measured = _measured(row, tried, dtypes, true_ms, evaluation_ms)
            # What found nothing to change may still be right of what its patch does not reach.
            bound = suggestion.bound or (row.idle and suggestion.saves_ms is not None)
            suggestion = msgspec.structs.replace(suggestion, measured=measured, bound=bound)
            look = row.look or look
            # The line that a sample or a trace points to is near; where it acted is where it is.
            there = suggestion.site
            if row.sites and (there is None or all(there.short != site.short for site in row.sites)):
                suggestion = msgspec.structs.replace(suggestion, site=row.sites[0])
        return _within_reach(suggestion, look, true_ms)

    joined = [with_trial(s) for s in suggestions]
    instead = []
    for other in others:
        rival = _rival(other, joined)
        if rival is None or rival.measured is None:
            continue
        found = with_trial(other, rows[rival.fix].look)
        # What a part of the rival's code does says nothing of the rest.
        is_open = rival.helps is False and rival.measured.tried_as and _place(found, true_ms) == 0
        if found.helps or is_open:
            instead.append(msgspec.structs.replace(found, finding=rival.finding))
    joined += instead
    if not any(_tells(s, rows) for s in joined):
        return tuple(joined)
    first = {s.fix: i for i, s in enumerate(joined)}
    idle = {fix for fix, row in rows.items() if row.idle}
    led = instead_of(joined)
    proven = {s.fix for s in joined if s.helps}
    joined.sort(
        key=lambda s: (
            _place(s, true_ms),
            led.get(s.fix) in proven,
            -brings_ms(s, true_ms),
            s.fix in idle,
            first[s.fix],
        )
    )
    return _proven_first(joined, true_ms)


def _proven_first(ordered: Sequence[Suggestion], true_ms: float | None) -> tuple[Suggestion, ...]:
    """Put what was measured to help before promises that its interval cannot be told from."""
    out: list[Suggestion] = []
    for each in ordered:
        at = len(out)
        if each.helps and true_ms and each.measured is not None and each.measured.high:
            most_ms = true_ms - true_ms / each.measured.high
            while at and not out[at - 1].helps and brings_ms(out[at - 1], true_ms) <= most_ms:
                at -= 1
        out.insert(at, each)
    return tuple(out)


def _tells(suggestion: Suggestion, rows: Mapping[str, TriedFix]) -> bool:
    """Return whether a trial has shown anything of a suggestion."""
    if suggestion.measured is None:
        return False
    return suggestion.measured.verdict != "not-tried" or rows[suggestion.fix].look is not None


def _within_reach(suggestion: Suggestion, look: CompilerLook | None, true_ms: float | None) -> Suggestion:
    """Bound a prediction by what dynamo captures of the model: the replay takes all of it for captured."""
    if look is None or look.share is None or not look.leaves:
        return suggestion
    saves = suggestion.saves_ms
    if saves is None or true_ms is None:
        return suggestion
    left = f" ({', '.join(look.outside)} stays outside)" if look.outside else ""
    return msgspec.structs.replace(
        suggestion,
        predicted_ms=true_ms - saves * look.share,
        saves_ms=saves * look.share,
        bound=True,
        basis=f"{suggestion.basis}; at best {percent(look.share)} of it, what dynamo captures of the host "
        f"time in the model's calls{left}",
    )


def with_measured_pair(
    combination: Combination | None,
    tried: TriedFixes | None,
    run: Run | None,
    true_ms: float | None,
    *,
    evaluation_ms: float = 0.0,
) -> Combination | None:
    """Return the pair that was measured together in place of the predicted one, if it is worth naming.

    It is not where one of the two alone was as fast: the other takes away what it is about.
    """
    pair = next((row for row in tried.rows if row.beside), None) if tried is not None else None
    if tried is None or pair is None or true_ms is None:
        return combination
    measured = _measured(pair, tried, _dtypes(run), true_ms, evaluation_ms)
    both = {pair.fix, pair.beside}
    if measured.step_ms is not None:
        alone = (
            _measured(row, tried, _dtypes(run), true_ms, evaluation_ms)
            for row in tried.rows
            if not row.beside and row.fix in both
        )
        if any(each.step_ms is not None and each.step_ms <= measured.step_ms for each in alone):
            return None if combination is None or set(combination.fixes) == both else combination
    if measured.verdict != "faster" or measured.step_ms is None or measured.loss == "changed":
        return combination
    return Combination(fixes=(pair.fix, pair.beside), predicted_ms=measured.step_ms, measured=measured)


def _place(suggestion: Suggestion, true_ms: float | None) -> int:
    if suggestion.helps is False:
        return 4
    if suggestion.note:
        return 3
    if suggestion.helps:
        return 0
    if suggestion.saves_ms is None:
        # Of no known size, and no smaller for that: after what has one.
        return 1
    small = true_ms is not None and brings_ms(suggestion, true_ms) < NEGLIGIBLE_SHARE * true_ms
    return 2 if small else 0


def brings_ms(suggestion: Suggestion, true_ms: float | None) -> float:
    """Return what a suggestion brings as far as is known, ms per step: what a trial showed of it included."""
    measured = suggestion.measured
    if measured is not None and measured.verdict == "faster" and measured.step_ms and true_ms:
        return true_ms - measured.step_ms
    promised = worth_of(suggestion)
    if measured is not None and measured.verdict == "undecided" and promised and true_ms:
        return _expected_ms(promised, measured, true_ms)
    return promised


def _expected_ms(promised: float, measured: MeasuredHere, true_ms: float) -> float:
    """Return what to expect of a promise and a measurement that decides nothing, ms.

    Their mean, each weighted by its precision: the interval's, and of a promise that it may be all wrong. A
    single pair has no interval: the smaller of the two.
    """
    if not measured.speedup:
        return promised
    shown = max(0.0, true_ms - true_ms / measured.speedup)
    if not (measured.low and measured.high):
        return min(promised, shown)
    half_ms = (true_ms / measured.low - true_ms / measured.high) / 2
    weight = promised**2 / (promised**2 + half_ms**2)
    return weight * shown + (1.0 - weight) * promised


def _measured(
    row: TriedFix,
    tried: TriedFixes,
    dtypes: Sequence[str],
    true_ms: float | None,
    evaluation_ms: float,
) -> MeasuredHere:
    if row.state != "measured":
        # Whoever cannot do without a thing can still do it less often.
        untried = row.state == "not tried" or by_id(row.fix).leaves_out
        return MeasuredHere(verdict="not-tried" if untried else "failed", note=row.reason)
    ratio = ratio_in_turns(row.without_ms, row.with_ms, [r.without_ms for r in tried.rows])
    decision = decide_ratio(ratio, least_pairs=_LEAST_PAIRS, threshold=NEGLIGIBLE_SHARE)
    tolerance = widened(tolerance_of(filter(None, [row.fix, row.beside])), dtypes)
    loss, change = _loss(row, tried, tolerance)
    left_out = evaluation_ms / true_ms if true_ms and row.evaluates is False else 0.0

    def whole(of_ordinary: float | None) -> float | None:
        """Return by how much the mean step is faster: what trials do not hold stays."""
        if of_ordinary is None or of_ordinary <= 0:
            return of_ordinary
        return 1.0 / (left_out + (1.0 - left_out) / of_ordinary)

    speedup = whole(ratio.ratio) if ratio is not None else None
    return MeasuredHere(
        verdict=_VERDICTS[decision],  # type: ignore[arg-type]
        speedup=speedup,
        low=whole(ratio.low) if ratio is not None else None,
        high=whole(ratio.high) if ratio is not None else None,
        step_ms=true_ms / speedup if speedup and true_ms else None,
        pairs=len(row.with_ms),
        loss=loss,  # type: ignore[arg-type]
        loss_change=change,
        note=tried.no_losses if loss == "not-compared" else "",
        tried_as=row.tried_as,
    )


def _loss(row: TriedFix, tried: TriedFixes, tolerance: Tolerance) -> tuple[str, float | None]:
    again = _difference(tried.losses, tried.losses_again)
    later = _difference(tried.losses, row.losses_without)
    change = _difference(row.losses_without, row.losses)
    if again is None or later is None or change is None or max(again, later) > tolerance.early:
        return "not-compared", None
    own = max(again, later)
    if change <= max(EXACT.early, own):
        return "same", change
    allowed = tolerance.early + own
    if any(fix.compiles or fix.leaves_out for fix in map(by_id, filter(None, (row.fix, row.beside)))):
        # Compiled code draws other random numbers for the same dropout.
        allowed += _difference(tried.losses, tried.losses_otherwise) or 0.0
    return ("close" if change <= allowed else "changed"), change


def _difference(one: Sequence[float | None], other: Sequence[float | None]) -> float | None:
    """Return the largest relative difference; None where there is nothing to compare."""
    if not one or len(one) != len(other):
        return None
    largest = 0.0
    for a, b in zip(one, other, strict=True):
        if a is None or b is None:
            if a is not b:
                return math.inf
            continue
        scale = max(abs(a), abs(b))
        largest = max(largest, abs(a - b) / scale if scale else 0.0)
    return largest


def _dtypes(run: Run | None) -> list[str]:
    if run is None:
        return []
    autocast = run.settings.get("autocast.dtype")
    # Convolutions are computed in TF32 unless a script says otherwise: then other kernels round otherwise.
    tf32 = ["tf32"] if run.devices and run.settings.get("cudnn.allow_tf32") else []
    return [*(o.parameter_dtype for o in run.optimizers), str(autocast), *tf32]
