"""What each class costs: by its dearest finding, by what its fixes reach, and by what a trial measured.

In: facts, findings, savings measured in the run. Out: a `Price` of each class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..model.codes import CLASSES, FINDING_CODES, BottleneckClass, WhatIf
from ..model.diagnosis import WhatIfResult
from ..model.finding import Finding
from ..stats import BOUND_WEIGHT, worth
from .base import Facts

BESIDE_WORK_SHARE = 0.08
"""Least share of the step at which a host-side cause is the verdict while work fills most of the
step. It is twice the replay's usual error (0.4 to 4 %); below it the kernels are the better place
to look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """One class, its most expensive finding and the rank of its price."""

    bottleneck_class: BottleneckClass
    finding: Finding
    cost_ms: float
    bound: bool
    question: WhatIf | None
    reached: WhatIfResult | None = None
    """What the best of its fixes saves, where that is asked."""
    behind_breaks: bool = False
    """Dispatch of compiled code whose graph is broken: a single launch, as a CUDA graph, needs one graph, so
    that saving is out of reach until the breaks are gone."""
    tried: bool = False
    """`cost_ms` is what a fix was measured to save in the run, more than was known of the cause."""

    def weight(self, bound_weight: float = BOUND_WEIGHT) -> float:
        """Return what it counts, in ms, where a bound counts for that share of an estimate."""
        return worth(self.cost_ms, bound=self.bound, weight=bound_weight)

    def rank(self, bound_weight: float = BOUND_WEIGHT) -> float:
        """Return the same, at most what the best of its fixes counts."""
        if self.behind_breaks:
            return 0.0
        mine = self.weight(bound_weight)
        if self.reached is None:
            return mine
        return min(mine, worth(self.reached.saves_ms, bound=self.reached.bound, weight=bound_weight))

    @property
    def vague(self) -> tuple[bool, bool]:
        """Return whether it is the most that can be saved, and whether it names no call of the user's."""
        bound = self.bound if self.reached is None else self.reached.bound
        return bound, not self.finding.call


def prices_of(facts: Facts, findings: Sequence[Finding]) -> list[Price]:
    """Return the dearest finding of each class that has one with a price."""
    best: dict[BottleneckClass, Price] = {}
    for finding in findings:
        group = finding.bottleneck_class
        if finding.note or finding.cost_ms is None or group is None or finding.cost_ms <= 0:
            continue
        known = FINDING_CODES[finding.code]
        if known.within_others or (known.priced_by is not None and facts.ask(known.priced_by) is None):
            continue
        answer = facts.ask(*CLASSES[group].questions)
        same = answer is not None and abs(answer.saves_ms - finding.cost_ms) < 1e-9
        broken = group is BottleneckClass.LAUNCH and _breaks_cost(facts)
        price = Price(
            bottleneck_class=group,
            finding=finding,
            cost_ms=finding.cost_ms,
            bound=answer.bound if same and answer is not None else False,
            question=answer.question if same and answer is not None else None,
            reached=_reached(facts, group),
            behind_breaks=broken,
        )
        if group not in best or price.cost_ms > best[group].cost_ms:
            best[group] = price
    return list(best.values())


def trials_of(findings: Sequence[Finding], measured: Mapping[str, float]) -> dict[BottleneckClass, Price]:
    """Return what the best fix of a class was measured to save; none that holds what counts for others."""
    found: dict[BottleneckClass, Price] = {}
    for finding in findings:
        saves_ms, entry = measured.get(finding.code, 0.0), FINDING_CODES[finding.code]
        group = entry.bottleneck_class
        if finding.note or entry.within_others or group is None or saves_ms <= 0:
            continue
        if group not in found or saves_ms > found[group].cost_ms:
            found[group] = Price(
                bottleneck_class=group,
                finding=finding,
                cost_ms=saves_ms,
                bound=False,
                question=None,
                tried=True,
            )
    return found


def with_trials(prices: Sequence[Price], trials: Mapping[BottleneckClass, Price]) -> list[Price]:
    """Put what a class was measured to save in place of less, or of nothing, that is known of it."""
    out = without_price(prices, trials)
    for price in prices:
        trial = trials.get(price.bottleneck_class)
        if trial is None or trial.cost_ms <= price.rank():
            out.append(price)
        else:
            out.append(replace(trial, finding=price.finding))
    return out


def without_price(prices: Sequence[Price], trials: Mapping[BottleneckClass, Price]) -> list[Price]:
    """Return the trials of classes of which nothing else is known."""
    priced = {price.bottleneck_class for price in prices}
    return [trial for group, trial in trials.items() if group not in priced]


def named_in_place_of(price: Price, findings: Sequence[Finding]) -> Price:
    """Return the price with the dearest finding of its class that names a call, where that costs more.

    Such a call holds waits and dispatch, too, that count for other classes.
    """
    named = max(
        (
            finding
            for finding in findings
            if finding.call and not finding.note and finding.bottleneck_class is price.bottleneck_class
        ),
        key=lambda finding: finding.cost_ms or 0.0,
        default=None,
    )
    if named is None or named.cost_ms is None or named.cost_ms <= price.cost_ms:
        return price
    return replace(price, finding=named, cost_ms=named.cost_ms, bound=False, question=None, tried=False)


def _reached(facts: Facts, group: BottleneckClass) -> WhatIfResult | None:
    questions = set(CLASSES[group].reached_by)
    if facts.is_on("step.varying_shapes"):
        questions.discard(WhatIf.ONE_LAUNCH)  # a graph is of one size
    return facts.ask(*questions)


def _breaks_cost(facts: Facts) -> bool:
    seams = facts.ask(WhatIf.SEAMS_GONE)
    return seams is not None and seams.saves_ms >= BESIDE_WORK_SHARE * facts.true_ms
