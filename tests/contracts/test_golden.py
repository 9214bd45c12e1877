"""What the tool says about every recorded run is what it said before: tests/golden/ is the memory.

A difference is either a mistake or an improvement; an improvement is written with
`python tests/benchmarks/golden.py`, and its commit says why the new answer is right.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from recorded.cases import CASES
from recorded.diagnosed import diagnosis_of

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def golden() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden", TESTS / "benchmarks" / "golden.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["golden"] = module
    spec.loader.exec_module(module)
    return module


def test_every_recorded_run_has_a_golden_file_and_no_file_is_left_over() -> None:
    assert {path.stem for path in (TESTS / "golden").glob("*.json")} == set(CASES)


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_answer_is_what_it_was(golden: ModuleType, name: str) -> None:
    before = json.loads((TESTS / "golden" / f"{name}.json").read_text())
    assert golden.differences(before, golden.summary(diagnosis_of(name))) == []


def test_a_difference_beyond_rounding_is_seen(golden: ModuleType) -> None:
    before = json.loads((TESTS / "golden" / "launch-h200.json").read_text())
    assert golden.differences(before, {**before, "class": "input-bound"}) == [
        "class: launch-bound -> input-bound"
    ]
    first, *rest = before["causes"]
    dearer = {**before, "causes": [{**first, "cost_ms": first["cost_ms"] * 1.002}, *rest]}
    assert [line.partition(":")[0] for line in golden.differences(before, dearer)] == ["causes[0].cost_ms"]
