"""The verdict: the class whose removal saves most, the confidence, and the causes in order.

In: facts, findings, the quality of the capture. Out: `Verdict` and `Cause`s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal

import msgspec

from ..model.codes import CLASSES, FINDING_CODES, WORK_PARTS, BottleneckClass, Part
from ..model.diagnosis import Cause, Verdict
from ..model.finding import NEGLIGIBLE_SHARE, DoubtCode, Finding
from ..model.words import ms, percent
from ..stats import BOUND_WEIGHT, CLOSE, RIVAL_SHARE, weigh_effect
from ..timeline.lanes.labels import PYTHON_GAP_NS
from ..timeline.steps.loop_lines import MAIN_SHARE
from .base import Facts
from .capture import Quality
from .prices import (
    BESIDE_WORK_SHARE,
    Price,
    named_in_place_of,
    prices_of,
    trials_of,
    with_trials,
    without_price,
)

_BESIDE_WORK_ON_CPU_SHARE = 1 / 3
"""The same on a CPU for a cause of which no fix is known to reach its price. Every eager model with
activations of megabytes spends 10 to 25 % in page faults: that is worth a fix, but it is not the
bottleneck where work fills more than half of the step."""
_BOUND_BESIDE_WORK_SHARE = 0.25
"""The same for prices that are upper bounds: dispatch can be lowered, never removed."""
_MOSTLY = 0.5
"""Share of work from which it fills most of the step."""


def _limit(what: str, value: Callable[[], float]) -> float:
    limit: float = field(default_factory=value, metadata={"what": what})
    return limit


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limits:
    """What decides between two classes, each with the figure that is compared with it."""

    mostly: float = _limit("the share of work in the step", lambda: _MOSTLY)
    beside_work: float = _limit(
        "what the first cause or its fix saves as a share of the step", lambda: BESIDE_WORK_SHARE
    )
    beside_work_on_cpu: float = _limit(
        "the first cause's share of the step", lambda: _BESIDE_WORK_ON_CPU_SHARE
    )
    bound: float = _limit(
        "the first cause's upper bound as a share of the step", lambda: _BOUND_BESIDE_WORK_SHARE
    )
    bound_weight: float = _limit(
        "one cause's saving as a share of another's upper bound", lambda: BOUND_WEIGHT
    )
    pause_ms: float = _limit("the length in ms of pauses between operators", lambda: PYTHON_GAP_NS / 1e6)


def _interval(facts: Facts) -> tuple[float, float] | None:
    """The noise of the step time; a step time given by the user has none."""
    if facts.step.true_is == "given":
        return (facts.true_ms, facts.true_ms)
    return facts.step.true_ci_ms


def _kernel_price_ms(facts: Facts, findings: Sequence[Finding]) -> float:
    """What the best fix of the kernels themselves saves, 0 when none is priced."""
    asked = [FINDING_CODES[finding.code].kernels_by for finding in findings]
    answer = facts.ask(*(question for question in asked if question is not None))
    return answer.saves_ms if answer is not None and not answer.bound else 0.0


def _noise_ms(facts: Facts) -> float:
    effect = weigh_effect(
        0.0,
        step_ms=facts.true_ms,
        interval_ms=_interval(facts),
        relative_error=facts.timeline.replay_error or 0.0,
    )
    return max(effect.noise_ms, NEGLIGIBLE_SHARE * facts.true_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Confidence:
    """The confidence of a verdict, the reason, and the capture's doubts that the reason names."""

    level: Literal["high", "medium", "low"]
    reason: str
    doubts: tuple[DoubtCode, ...] = ()


def _confidence(facts: Facts, quality: Quality, *, effect_ms: float, bound: bool) -> _Confidence:
    effect = weigh_effect(
        effect_ms,
        step_ms=facts.true_ms,
        interval_ms=_interval(facts),
        relative_error=facts.timeline.replay_error or 0.0,
    )
    reasons = [doubt.in_list for doubt in quality.reasons]
    if effect.decision != "real":
        reasons.append("the effect is within the noise of the step time")
    if facts.is_on("step.varying_shapes"):
        reasons.append("batches differ in size, so traced and timed steps may differ")
    if bound:
        reasons.append("the price is an upper bound")
    reason, doubts = "; ".join(reasons), tuple(doubt.code for doubt in quality.reasons)
    if effect.decision != "real" or quality.grade == "poor":
        return _Confidence(level="low", reason=reason, doubts=doubts)
    if effect.ratio >= 3.0 and quality.grade == "good" and not facts.is_on("step.varying_shapes"):
        reason = f"the effect is {min(effect.ratio, 99):.0f} times the noise, and the capture is good"
        return _Confidence(level="high", reason=reason)
    if effect.ratio < 1.5 or len(quality.reasons) > 2:
        reason = reason or "the effect is close to the noise"
        return _Confidence(level="low", reason=reason, doubts=doubts)
    reason = reason or f"the effect is {effect.ratio:.1f} times the noise"
    return _Confidence(level="medium", reason=reason, doubts=doubts)


def _headline(facts: Facts, price: Price) -> str:
    share = percent(price.cost_ms / facts.true_ms)
    said = f"{price.bottleneck_class.value}: {price.finding.title}"
    if price.tried:
        return f"{said} (in a trial {share} of {ms(facts.true_ms)})"
    return f"{said} ({'up to ' if price.bound else ''}{share} of {ms(facts.true_ms)})"


def _work_share(facts: Facts) -> float:
    return facts.timeline.part_ms(*WORK_PARTS) / facts.true_ms if facts.true_ms > 0 else 0.0


def _undetermined(reason: str, remedy: str, doubts: tuple[DoubtCode, ...] = ()) -> Verdict:
    return Verdict(
        bottleneck_class=BottleneckClass.UNDETERMINED,
        confidence="none",
        headline=f"undetermined: {reason}",
        reason=reason,
        doubts=doubts,
        remedy=remedy,
    )


def _not_judged(quality: Quality) -> Verdict:
    worst = quality.reasons[0]
    return _undetermined(worst.text, worst.remedy, (worst.code,))


def _told_by_trial(facts: Facts, trials: Mapping[BottleneckClass, Price], quality: Quality) -> Verdict:
    """Return the class whose fix saved most in the run, where the trace tells too little.

    A trial needs neither trace nor replay. That another class has more to save is not known then.
    """
    first = max(trials.values(), key=lambda trial: trial.cost_ms)
    return Verdict(
        bottleneck_class=first.bottleneck_class,
        confidence="low",
        headline=_headline(facts, first),
        code=first.finding.code,
        reason=f"a fix for it was measured to help; {quality.reasons[0].in_list}",
        doubts=tuple(doubt.code for doubt in quality.reasons),
        remedy=quality.reasons[0].remedy,
    )


def _compute(facts: Facts, quality: Quality, first: Price | None, *, kernels_ms: float) -> Verdict:
    work_ms = facts.timeline.part_ms(*WORK_PARTS)
    share = _work_share(facts)
    top = max(
        (line for line in facts.timeline.budget if line.part in WORK_PARTS),
        key=lambda line: line.ms,
    )
    sure = _confidence(facts, quality, effect_ms=work_ms, bound=False)
    confidence, reason = sure.level, sure.reason
    who = "the device is" if facts.timeline.kind == "gpu" else "operators are"
    headline = (
        f"{BottleneckClass.COMPUTE.value}: {who} at work for {ms(work_ms)} of {ms(facts.true_ms)} "
        f"({percent(share)}), mostly {top.part.value}"
    )
    line = next(iter(facts.timeline.device_lines), None)
    if line is not None and line.site is not None and line.share >= MAIN_SHARE:
        headline += f", {percent(line.share)} of the step for `{line.name}` at {line.site.short}"
    if kernels_ms >= NEGLIGIBLE_SHARE * facts.true_ms:
        headline += f"; faster kernels would save {ms(kernels_ms)}"
    if first is not None:
        other = (
            f"the most expensive other cause, {first.bottleneck_class.value}, would save "
            f"{'at most ' if first.bound else ''}{percent(first.cost_ms / facts.true_ms)}"
        )
        if share < 0.75 and confidence == "high":
            confidence, reason = "medium", f"work fills only {percent(share)} of the step"
        reason = f"{reason}; {other}"
    return Verdict(
        bottleneck_class=BottleneckClass.COMPUTE,
        confidence=confidence,
        headline=headline,
        reason=reason,
        doubts=sure.doubts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What the class is decided by: the causes beside the work, and the work."""

    facts: Facts
    prices: Sequence[Price]
    work: float
    """Share of the step."""
    kernels_ms: float
    """What faster kernels save."""
    fixes: Sequence[tuple[str, float]] = ()
    """Of each fix whose saving is known: the finding that it answers, and that saving in ms."""
    measured_ms: Mapping[BottleneckClass, float] = field(default_factory=dict)
    """What the best fix of a class was measured to save."""

    def fix_ms(self, group: BottleneckClass, first: Price | None) -> float:
        """Return what the best fix of a class saves.

        What holds the time of others, as a loop its waits and its dispatch, counts for the first of them,
        up to what they cost: the rest is work.
        """
        best, beside_work_ms = 0.0, sum(price.cost_ms for price in self.prices)
        for code, saves_ms in self.fixes:
            entry = FINDING_CODES[code]
            own, most_ms = entry.bottleneck_class, math.inf
            if entry.within_others and not entry.names_call and own is not BottleneckClass.COMPUTE and first:
                own, most_ms = first.bottleneck_class, beside_work_ms
            if own is group:
                best = max(best, min(saves_ms, most_ms))
        return best

    def ordered(self, limits: _Limits) -> list[Price]:
        """Return the causes by weight; of those that may be first the best known one comes first."""
        moved_ms = self._moved_ms(limits)
        shift = {BottleneckClass.HOST: -moved_ms, BottleneckClass.LAUNCH: moved_ms}
        prices = [
            price
            if price.tried
            else replace(price, cost_ms=max(0.0, price.cost_ms + shift.get(price.bottleneck_class, 0.0)))
            for price in self.prices
        ]
        prices.sort(key=lambda price: -price.rank(limits.bound_weight))
        rivals = self.rivals(prices, limits)
        # What is named comes first only where it costs about as much as what it would stand before.
        least = RIVAL_SHARE * max((each.weight(limits.bound_weight) for each in rivals), default=0.0)
        rivals = [each for each in rivals if each.weight(limits.bound_weight) >= least]
        return sorted(rivals, key=lambda price: price.vague) + [each for each in prices if each not in rivals]

    def rivals(self, prices: Sequence[Price], limits: _Limits) -> list[Price]:
        """Return the causes that save about as much as the one that saves most, within the noise."""
        most = max((price.rank(limits.bound_weight) for price in prices), default=0.0)
        # However large the noise, a class with less than half of the first price cannot be the first.
        least = max(most - _noise_ms(self.facts), RIVAL_SHARE * most)
        return [price for price in prices if price.rank(limits.bound_weight) >= least]

    def _moved_ms(self, limits: _Limits) -> float:
        """Return the time that another limit for pauses makes dispatch and not Python of its own."""
        timeline, now = self.facts.timeline, PYTHON_GAP_NS / 1e6
        to = max(limits.pause_ms, now)
        low, part = (now, Part.HOST) if to > now else (limits.pause_ms, Part.DISPATCH)
        moved_ms = sum(pause for pause in timeline.pauses_ms if low < pause <= to) / max(1, timeline.steps)
        # As much of it keeps the step waiting as of the rest that it is counted with today.
        spans = self.facts.spans(part)
        called_ms = sum(span.called_ms for span in spans)
        waits = sum(span.exposed_ms for span in spans) / called_ms if called_ms > 0 else 1.0
        return moved_ms * min(1.0, waits) * (1.0 if to > now else -1.0)

    def decided(self, limits: _Limits) -> BottleneckClass:
        """Return the class."""
        prices = self.ordered(limits)
        first = prices[0] if prices else None
        mostly = self.work > limits.mostly
        group = BottleneckClass.COMPUTE
        kernels_ms = max(self.kernels_ms, self.fix_ms(group, first), self.measured_ms.get(group, 0.0))
        if first is not None and not (mostly and kernels_ms > first.rank(limits.bound_weight)):
            share = first.cost_ms / self.facts.true_ms
            if share >= max(NEGLIGIBLE_SHARE, self._least(first, limits)):
                return first.bottleneck_class
        if not mostly:
            return BottleneckClass.UNDETERMINED
        reached = {price.bottleneck_class: self.fix_ms(price.bottleneck_class, first) for price in prices}
        best = max(reached, key=lambda group: reached[group], default=BottleneckClass.COMPUTE)
        least_ms = max(kernels_ms, limits.beside_work * self.facts.true_ms)
        return best if reached.get(best, 0.0) >= least_ms else BottleneckClass.COMPUTE

    def _least(self, price: Price, limits: _Limits) -> float:
        """Return the least share of the step at which a cause is the verdict."""
        if self.work <= limits.mostly:
            return 0.0
        if self.facts.timeline.kind == "gpu":
            return limits.bound if price.bound else limits.beside_work
        if price.bound:
            return math.inf  # one lane: the work is longer, and none of it overlaps with dispatch
        return limits.beside_work_on_cpu

    def close_call(self) -> str:
        """Return which limit decided the class where another choice of it names another; the nearest one."""
        limits = _Limits()
        decided = self.decided(limits)
        found: list[tuple[float, str]] = []
        for each in fields(limits):
            limit = getattr(limits, each.name)
            for end in (1.0 - CLOSE, 1.0 + CLOSE):

                def other(factor: float, name: str = each.name, limit: float = limit) -> BottleneckClass:
                    return self.decided(replace(limits, **{name: limit * factor}))

                if other(end) is decided:
                    continue
                same, differs = 1.0, end
                for _ in range(12):
                    middle = (same + differs) / 2
                    same, differs = (middle, differs) if other(middle) is decided else (same, middle)
                text = (
                    f"the class was decided by {each.metadata['what']} = {limit * differs:.2f} against a "
                    f"limit of {limit:.2f}, otherwise it would be {other(differs).value}"
                )
                found.append((abs(differs - 1.0), text))
        return min(found, default=(0.0, ""))[1]


def _lowered(verdict: Verdict, close_call: str) -> Verdict:
    """Return the verdict with what decided it closely; it is not certain then."""
    if not close_call:
        return verdict
    return msgspec.structs.replace(
        verdict,
        confidence="medium" if verdict.confidence == "high" else verdict.confidence,
        reason=close_call if verdict.confidence == "high" else f"{close_call}; {verdict.reason}",
    )


def decide(
    facts: Facts,
    findings: Sequence[Finding],
    quality: Quality,
    *,
    fixes: Sequence[tuple[str, float]] = (),
    measured: Mapping[str, float] | None = None,
) -> Verdict:
    """Name the bottleneck class of one rank, or say why there is none.

    Args:
        facts: what is known of the run.
        findings: what was found.
        quality: of the capture.
        fixes: of each fix whose saving is known: the finding that it answers, and that saving in ms.
        measured: of each finding the best saving of its fixes that were tried in the run and helped, in ms.
    """
    if facts.true_ms <= 0:
        return _not_judged(quality)
    trials = trials_of(findings, measured or {})
    prices = with_trials(prices_of(facts, findings), trials)
    case = _Case(
        facts=facts,
        prices=[price for price in prices if price.bottleneck_class is not BottleneckClass.COMPUTE],
        measured_ms={group: trial.cost_ms for group, trial in trials.items()},
        work=_work_share(facts),
        kernels_ms=_kernel_price_ms(facts, findings),
        fixes=fixes,
    )
    limits = _Limits()
    prices = case.ordered(limits)
    first = prices[0] if prices else None
    # Waiting for input is measured in the baseline window; it needs neither trace nor replay.
    told_by_baseline = (
        first is not None
        and CLASSES[first.bottleneck_class].told_by_baseline
        and facts.timeline.kind == "cpu"
        and facts.step.true_is == "measured"
        and first.cost_ms > 0.5 * facts.true_ms
    )
    if quality.grade == "poor" and not told_by_baseline:
        return _told_by_trial(facts, trials, quality) if trials else _not_judged(quality)
    decided = case.decided(limits)
    if decided is BottleneckClass.COMPUTE:
        return _lowered(_compute(facts, quality, first, kernels_ms=case.kernels_ms), case.close_call())
    if decided is BottleneckClass.UNDETERMINED:
        unexplained = facts.timeline.part_ms(Part.UNEXPLAINED) / facts.true_ms
        return _undetermined(
            f"no cause saves more than {percent(NEGLIGIBLE_SHARE)} of the step, and work fills only "
            f"{percent(case.work)} of it ({percent(unexplained)} unexplained)",
            "Trace more steps (--steps 16); if step times vary much, diagnose with inputs of equal size.",
        )
    first = next(price for price in prices if price.bottleneck_class is decided)
    also = [p.bottleneck_class for p in case.rivals(prices, limits) if p is not first]
    first = named_in_place_of(first, findings)
    noise, most = _noise_ms(facts), max(price.rank(limits.bound_weight) for price in prices)
    work_ms = case.work * facts.true_ms
    rivals_work = abs(work_ms - most) < noise and work_ms >= RIVAL_SHARE * most
    if facts.timeline.kind == "cpu" and rivals_work and not first.tried:
        also.append(BottleneckClass.COMPUTE)
    sure = _confidence(facts, quality, effect_ms=first.cost_ms, bound=first.bound)
    confidence, reason = sure.level, sure.reason
    if also:
        rivals = " and ".join(group.value for group in also)
        close = f"{rivals} would save about as much, within the noise"
        reason = close if confidence == "high" else f"{close}; {reason}"
        confidence = "medium" if confidence == "high" else confidence
    verdict = Verdict(
        bottleneck_class=first.bottleneck_class,
        confidence=confidence,
        headline=_headline(facts, first),
        code=first.finding.code,
        also=tuple(also),
        reason=reason,
        doubts=sure.doubts,
    )
    return _lowered(verdict, case.close_call())


def _compute_cause(facts: Facts, findings: Sequence[Finding]) -> Cause | None:
    busy = next((f for f in findings if FINDING_CODES[f.code].is_work), None)
    if busy is None or busy.time_ms is None:
        return None
    return Cause(
        bottleneck_class=BottleneckClass.COMPUTE,
        code=busy.code,
        cost_ms=busy.time_ms,
        share=busy.time_ms / facts.true_ms,
        predicted_ms=max(0.0, facts.true_ms - busy.time_ms),
        headline=busy.title,
        sites=busy.sites,
    )


def order_causes(
    facts: Facts,
    findings: Sequence[Finding],
    verdict: Verdict,
    *,
    measured: Mapping[str, float] | None = None,
) -> tuple[Cause, ...]:
    """List the classes by price; under a compute verdict the work itself comes first.

    What was `measured` (as for `decide`) is the price of a class that has no other.
    """
    if facts.true_ms <= 0:
        return ()
    causes: list[Cause] = []
    prices = prices_of(facts, findings)
    prices += without_price(prices, trials_of(findings, measured or {}))
    if verdict.bottleneck_class is BottleneckClass.COMPUTE:
        work = _compute_cause(facts, findings)
        if work is not None:
            causes.append(work)
            prices = [p for p in prices if p.bottleneck_class is not BottleneckClass.COMPUTE]
    prices = [
        named_in_place_of(p, findings) if p.bottleneck_class is verdict.bottleneck_class else p
        for p in prices
    ]
    # The verdict comes first; a bound never outranks it. The rest follow by cost.
    prices.sort(key=lambda p: (p.bottleneck_class is not verdict.bottleneck_class, -p.cost_ms))
    before: Price | None = None
    for price in prices:
        after = None
        if before is not None and before.question is not None and price.question is not None:
            both = facts.timeline.after.get((before.question, price.question))
            alone = facts.true_ms - before.cost_ms
            after = max(0.0, alone - both) if both is not None else None
        causes.append(
            Cause(
                bottleneck_class=price.bottleneck_class,
                code=price.finding.code,
                cost_ms=price.cost_ms,
                share=price.cost_ms / facts.true_ms,
                predicted_ms=facts.true_ms - price.cost_ms,
                after_previous_ms=after,
                headline=price.finding.title,
                sites=price.finding.sites,
                negligible=price.cost_ms < NEGLIGIBLE_SHARE * facts.true_ms,
            )
        )
        before = before or price  # everything is asked again with the first cause gone
    return tuple(causes)
