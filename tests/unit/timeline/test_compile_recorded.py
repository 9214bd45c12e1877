"""Eager loops on an H200, diagnosed, then measured with torch.compile: prediction beside measurement.

The recordings were made by tests/benchmarks/record_compile.py; truth.json holds what was measured.
"""

from __future__ import annotations

import json
from statistics import median

import pytest
from recorded.cases import CASES
from recorded.diagnosed import diagnosed

from torch_bottleneck.model.codes import WhatIf

NAMES = sorted(name for name in CASES if name.startswith("compile-"))
SLOWER = {"compile-mlp", "compile-adversarial"}
"""Small models that plain torch.compile made slower."""
QUESTION = {"FX414": WhatIf.COMPILED, "FX412": WhatIf.ONE_LAUNCH, "FX310": WhatIf.CHANNELS_LAST}


def gains(name: str) -> list[tuple[str, float, float]]:
    """Return (fix, predicted gain, measured gain)."""
    folder = CASES[name].folder
    truth = json.loads((folder / "truth.json").read_text())
    found = diagnosed(folder)
    assert found.step.true_ms is not None
    rows = []
    for fix, times in ((truth["fix"], truth), *truth.get("also", {}).items()):
        answer = next(a for a in found.what_ifs if a.question is QUESTION[fix])
        measured = median(times["slow_ms"]) / median(times["fixed_ms"])
        rows.append((fix, found.step.true_ms / answer.step_ms, measured))
    return rows


def test_all_eight_kinds_are_here() -> None:
    assert len(NAMES) == 8


@pytest.mark.parametrize("name", NAMES)
def test_the_gain_of_compiling_or_of_another_layout_is_predicted_within_a_fifth(name: str) -> None:
    for fix, predicted, measured in gains(name):
        assert predicted == pytest.approx(measured, rel=0.2), fix


@pytest.mark.parametrize("name", NAMES)
def test_whether_compiling_helps_at_all_is_right(name: str) -> None:
    (_, predicted, measured), *_ = gains(name)
    assert (measured < 1) == (name in SLOWER)
    assert (predicted < 1) == (measured < 1)


@pytest.mark.parametrize("name", NAMES)
def test_plain_compiling_is_suggested_only_where_it_gains(name: str) -> None:
    found = diagnosed(CASES[name].folder)
    offered = {s.fix for s in found.suggestions}
    assert not (name in SLOWER and "FX414" in offered)
    if name not in SLOWER:
        assert offered & {"FX412", "FX414"}
