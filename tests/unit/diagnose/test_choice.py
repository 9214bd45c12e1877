"""Which fix stands first: of the verdict's class, an estimate before a bound, then the specific."""

from __future__ import annotations

import msgspec

from torch_bottleneck.diagnose.choice import verdicts_own_first
from torch_bottleneck.model.codes import BottleneckClass
from torch_bottleneck.model.diagnosis import Verdict
from torch_bottleneck.model.fix import Suggestion

INPUT = Verdict(bottleneck_class=BottleneckClass.INPUT, confidence="high", headline="input-bound")


def suggestion(fix: str, finding: str, predicted_ms: float | None, *, bound: bool = False) -> Suggestion:
    return Suggestion(fix=fix, title=fix, finding=finding, predicted_ms=predicted_ms, bound=bound)


CHEAPER = suggestion("FX107", "BN102", 92.1, bound=True)
WORKERS = suggestion("FX101", "BN101", 92.2)
COMPILE = suggestion("FX414", "BN501", 20.0)
ALL = {"BN101", "BN102", "BN501"}


def first(*suggestions: Suggestion, verdict: Verdict = INPUT) -> str:
    return verdicts_own_first(suggestions, verdict, ALL)[0].fix


def test_of_equals_an_estimate_stands_before_a_bound() -> None:
    assert first(CHEAPER, WORKERS, COMPILE) == "FX101"


def test_a_bound_that_promises_clearly_more_stays_first() -> None:
    assert first(msgspec.structs.replace(CHEAPER, predicted_ms=60.0), WORKERS) == "FX107"


def test_a_fix_of_another_class_never_answers_the_verdict() -> None:
    assert first(COMPILE, WORKERS) == "FX101"


def test_a_fix_of_the_class_that_saves_next_to_nothing_does_not_stand_first() -> None:
    idle = msgspec.structs.replace(WORKERS, predicted_ms=99.0, saves_ms=1.0)
    assert first(COMPILE, idle) == "FX414"
    assert first(COMPILE, msgspec.structs.replace(idle, predicted_ms=97.0, saves_ms=3.0)) == "FX101"


def test_a_fix_of_the_class_that_saves_a_fraction_of_the_best_does_not_stand_first() -> None:
    little = msgspec.structs.replace(WORKERS, predicted_ms=97.0, saves_ms=3.0)
    assert first(msgspec.structs.replace(COMPILE, saves_ms=80.0), little) == "FX414"
    assert first(msgspec.structs.replace(COMPILE, predicted_ms=80.0, saves_ms=20.0), little) == "FX101"


def test_without_a_price_in_the_class_the_order_stays() -> None:
    assert first(COMPILE, msgspec.structs.replace(WORKERS, predicted_ms=None)) == "FX414"


def test_nothing_is_lost() -> None:
    ordered = verdicts_own_first((CHEAPER, WORKERS, COMPILE), INPUT, ALL)
    assert {s.fix for s in ordered} == {"FX101", "FX107", "FX414"}
