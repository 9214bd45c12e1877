"""Losses with a fix are judged against losses without, and against what the script does by itself."""

from __future__ import annotations

import math

import numpy as np
import pytest

from torch_bottleneck.catalog.tolerances import BF16, EXACT, OTHER_SAMPLES, REORDERED, tolerance_of, widened
from torch_bottleneck.verify.parity import EARLY, compare, reproduction, steps_to_loss


def curve(count: int = 60, *, noise: float = 0.02, seed: int = 0, rate: float = 20.0) -> list[float]:
    rng = np.random.default_rng(seed)
    return [float(1 + 3 * math.exp(-i / rate) + rng.normal(0, noise)) for i in range(count)]


def scaled(losses: list[float], share: float, start: int = 0) -> list[float | None]:
    return [x * (1 + share) if i >= start else x for i, x in enumerate(losses)]


def judge(a: list[float], b: list[float | None], tolerance: object = EXACT, own: object = "exact") -> str:
    itself = reproduction([a, a]) if own == "exact" else own
    return compare(a, b, tolerance=tolerance, against_itself=itself).verdict  # type: ignore[arg-type]


def test_equal_losses_are_the_same() -> None:
    a = curve()
    found = compare(a, list(a), tolerance=EXACT, against_itself=reproduction([a, a]))
    assert (found.verdict, found.text, found.early) == ("same", "The losses are equal.", 0.0)
    assert found.compared == 60


def test_an_exact_fix_that_changes_the_first_loss_is_harmful_and_a_reordering_one_is_not() -> None:
    a = curve()
    b = scaled(a, 3e-4)
    assert judge(a, b, EXACT) == "harmful"
    assert judge(a, b, REORDERED) == "close"


def test_reduced_precision_may_differ_but_not_drift() -> None:
    a = curve()
    assert judge(a, scaled(a, 0.01), BF16) == "close"
    assert judge(a, scaled(a, 0.2, start=30), BF16) == "harmful"


def test_steps_that_get_other_samples_are_judged_by_their_mean() -> None:
    a, b = curve(noise=0.3, seed=1), curve(noise=0.3, seed=2)
    assert judge(a, b, REORDERED) == "harmful"
    assert judge(a, b, OTHER_SAMPLES) == "close"
    assert judge(a, scaled(b, 0.5, start=30), OTHER_SAMPLES) == "harmful"
    assert tolerance_of(["FX303", "FX113"]) is OTHER_SAMPLES


def test_a_lower_loss_is_no_harm() -> None:
    a = curve()
    assert judge(a, scaled(a, -0.2, start=30), BF16) == "close"


def test_rounding_that_has_grown_into_another_trajectory_is_judged_by_its_mean() -> None:
    a = curve(seed=1)
    other = curve(seed=2)
    b: list[float | None] = [*a[:EARLY], *other[EARLY:]]
    assert judge(a, b, REORDERED) == "close"


@pytest.mark.parametrize("at", [0, 7, 59])
def test_a_loss_that_is_not_finite_is_harmful_wherever_it_begins(at: int) -> None:
    a = curve()
    b: list[float | None] = list(a)
    b[at] = None
    found = compare(a, b, tolerance=BF16, against_itself=None)
    assert found.verdict == "harmful"
    assert f"from backward {at + 1} on" in found.text


def test_what_is_not_finite_by_itself_is_not_held_against_the_fix() -> None:
    a: list[float | None] = list(curve())
    a[3] = None
    assert compare(a, list(a), tolerance=EXACT, against_itself=None).verdict == "same"


def test_a_script_that_does_not_repeat_itself_widens_the_verdict_or_withholds_it() -> None:
    a = curve()
    close = reproduction([a, scaled(a, 1e-3)])
    assert close is not None
    assert "does not repeat itself exactly" in close.text
    assert judge(a, scaled(a, 2e-3), EXACT, close) == "close"
    assert judge(a, scaled(a, 2e-2), EXACT, close) == "harmful"
    wild = reproduction([a, scaled(a, 0.5)])
    assert wild is not None
    assert not wild.comparable
    assert judge(a, scaled(a, 2e-3), EXACT, wild) == "not comparable"


def test_nan_is_harmful_even_where_losses_cannot_be_compared() -> None:
    a = curve()
    wild = reproduction([a, scaled(a, 0.5)])
    b: list[float | None] = [*a[:30], *[None] * 30]
    assert judge(a, b, EXACT, wild) == "harmful"


def test_few_losses_say_nothing() -> None:
    assert judge([1.0, 2.0], [1.0, 2.0]) == "not measured"
    assert reproduction([[1.0] * 5]) is None


def test_a_loss_around_zero_is_measured_by_its_range() -> None:
    rng = np.random.default_rng(0)
    a = [float(x) for x in rng.normal(0, 1, 60)]
    assert judge(a, [x + 1e-7 for x in a], EXACT) == "same"


def test_slower_learning_shows_in_steps_to_the_same_loss() -> None:
    fast, slow = curve(200, noise=0.01, rate=30), curve(200, noise=0.01, rate=60)
    found = steps_to_loss(fast, slow)
    assert found is not None
    without, with_fix = found
    assert with_fix is None or with_fix > 1.4 * without
    back = steps_to_loss(slow, fast)
    assert back is not None
    assert back[1] is not None
    assert back[1] < 0.8 * back[0]


def test_a_flat_curve_has_no_steps_to_a_loss() -> None:
    rng = np.random.default_rng(0)
    flat = [float(x) for x in 2 + rng.normal(0, 0.1, 60)]
    assert steps_to_loss(flat, flat) is None


def test_tolerances_are_those_of_the_widest_fix() -> None:
    assert tolerance_of(["FX101"]) is EXACT
    assert tolerance_of(["FX101", "FX303", "FX311"]) is BF16
    assert tolerance_of([]) is EXACT


def test_a_loss_in_bfloat16_may_differ_by_its_own_rounding() -> None:
    a = curve()
    assert judge(a, scaled(a, 0.0034), EXACT) == "harmful"
    assert judge(a, scaled(a, 0.0034), widened(EXACT, ["float32", "bfloat16"])) == "close"
    assert judge(a, scaled(a, 0.03), widened(EXACT, ["bfloat16"])) == "harmful"
    assert widened(EXACT, ["float32", ""]) is EXACT
    assert widened(BF16, ["bfloat16"]).early == BF16.early


def test_gradients_that_are_not_finite_are_harmful_and_others_are_shown() -> None:
    a = curve()
    norms: list[float | None] = [1.0, 2.0, 4.0]
    found = compare(a, list(a), tolerance=EXACT, against_itself=None, norms=(norms, [1.0, 2.02, 4.0]))
    assert found.verdict == "same"
    assert found.gradient_norm == pytest.approx(0.02 / 3)
    broken = compare(a, list(a), tolerance=EXACT, against_itself=None, norms=(norms, [1.0, None, 4.0]))
    assert (broken.verdict, broken.text) == ("harmful", "The gradients are not finite at update 2.")
    assert compare(a, list(a), tolerance=EXACT, against_itself=None, norms=([], [])).gradient_norm is None
