"""Conditions: true, false, or unknown, never guessed."""

from __future__ import annotations

from typing import Any

import pytest

from torch_bottleneck.catalog.conditions import evaluate, fill
from torch_bottleneck.model.fix import Condition


def holds(op: Any, value: Any, actual: Any, key: str = "host.cores") -> bool | None:
    return evaluate(Condition(key=key, op=op, value=value), {key: actual})


@pytest.mark.parametrize(
    ("op", "value", "actual", "expected"),
    [
        ("==", 4, 4, True),
        ("==", "cuda", "cpu", False),
        ("!=", "fused", "foreach", True),
        ("<", 4, 3, True),
        ("<", 4, 4, False),
        ("<=", 4, 4, True),
        (">", 0.5, 0.6, True),
        (">=", 8.0, 7.5, False),
        ("in", ["cuda", "rocm"], "rocm", True),
        ("not in", ["cuda", "rocm"], "rocm", False),
        ("contains", "item", ["print", "item"], True),
        ("contains", "item", ["print"], False),
        ("known", None, 0, True),
        ("known", None, False, True),
    ],
)
def test_operators(op: str, value: Any, actual: Any, expected: bool) -> None:
    assert holds(op, value, actual) is expected


def test_what_was_not_measured_is_unknown_except_to_known() -> None:
    for op in ("==", "!=", "<", ">=", "in", "contains"):
        assert evaluate(Condition(key="host.cores", op=op, value=["x"]), {}) is None
    assert evaluate(Condition(key="host.cores", op="known"), {}) is False
    assert holds("known", None, None) is False


def test_a_fact_of_another_type_is_unknown_rather_than_an_error() -> None:
    assert holds("<", 4, "many") is None
    assert holds("contains", "item", 3) is None


@pytest.mark.parametrize(
    ("actual", "op", "value", "expected"),
    [
        ("2.10", ">=", "2.6", True),
        ("2.10.0+cu126", "<", "2.9", False),
        ("2.13.0a0+git1234", ">=", "2.13", True),
        ("2.6", "==", "2.6", True),
        ("1.13.1", "<", "2.0", True),
    ],
)
def test_versions_are_compared_part_by_part(actual: str, op: str, value: str, expected: bool) -> None:
    assert holds(op, value, actual, key="torch.version") is expected


def test_a_value_can_refer_to_another_fact() -> None:
    few = Condition(key="loader.num_workers", op="<", value="@loader.needed_workers")
    assert evaluate(few, {"loader.num_workers": 2, "loader.needed_workers": 6}) is True
    assert evaluate(few, {"loader.num_workers": 6, "loader.needed_workers": 6}) is False
    assert evaluate(few, {"loader.num_workers": 6}) is None


def test_fill_replaces_only_where_every_figure_is_known() -> None:
    code = "loader = DataLoader(dataset, num_workers=4)"
    fills = {"num_workers=4": "num_workers={min(loader.needed_workers, host.cores)}"}
    assert fill(code, fills, {"loader.needed_workers": 9, "host.cores": 6}).endswith("num_workers=6)")
    assert fill(code, fills, {"loader.needed_workers": 9}) == code
    assert fill(code, {"4": "{max(host.cores, host.cores)}"}, {"host.cores": 3}).endswith("=3)")
