"""Recorded runs whose fix was measured: reports/accuracy.md says what the code says today, misses too."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from recorded.cases import CASES
from recorded.diagnosed import diagnosis_of

ROOT = Path(__file__).parents[2]
RECORDED = sorted(name for name, case in CASES.items() if (case.folder / "truth.json").is_file())
BREAKS = ("case-nested-breaks", "case-breaks-in-loop", "example-graph-breaks")


@pytest.fixture
def accuracy(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("accuracy", ROOT / "tests" / "benchmarks" / "accuracy.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "accuracy", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", RECORDED)
def test_a_truth_names_its_case_its_fix_and_how_it_was_measured(name: str) -> None:
    truth = json.loads((CASES[name].folder / "truth.json").read_text())
    assert truth["case"] == name
    assert {"fix", "slow_ms", "fixed_ms", "device", "command"} <= truth.keys()


@pytest.mark.parametrize("name", ["case-breaks-in-loop", "case-nested-breaks", "example-launch-bound"])
def test_the_published_table_is_that_of_today(accuracy: ModuleType, name: str) -> None:
    published = (ROOT / "reports" / "accuracy.md").read_text()
    for row in accuracy.rows_of(CASES[name].folder):
        assert row.line() in published, "run python tests/benchmarks/accuracy.py"


@pytest.mark.parametrize("name", BREAKS)
def test_the_prices_of_breaks_add_up_to_that_of_all_seams(name: str) -> None:
    compiled = diagnosis_of(name).compile
    assert compiled is not None
    assert compiled.breaks
    assert sum(row.cost_ms or 0.0 for row in compiled.breaks) == pytest.approx(compiled.seams_ms)


def test_the_break_that_costs_more_to_keep_comes_first() -> None:
    """Mended alone, the eager function gave 11.7 of 23.2 ms back, the logger 5.0."""
    compiled = diagnosis_of("case-nested-breaks").compile
    assert compiled is not None
    assert [row.kind for row in compiled.breaks] == ["disabled", "print"]
    assert compiled.breaks[0].cost_ms == pytest.approx(21.37 - 10.58, rel=0.1)


def test_a_break_in_a_loop_has_a_line_and_a_price() -> None:
    compiled = diagnosis_of("case-breaks-in-loop").compile
    assert compiled is not None
    (row,) = compiled.breaks
    assert row.site is not None
    assert row.site.file.endswith("breaks_in_loop.py")
    assert row.cost_ms == pytest.approx(12.89 - 10.44, rel=0.3)
    assert row.seams_per_step == 30  # 16 blocks, forward and backward


def test_the_rate_of_the_math_is_below_the_peak_and_nearer_to_it_while_math_runs() -> None:
    compute = diagnosis_of("case-attention-by-hand").compute
    assert compute is not None
    assert compute.peak_dtype == "bf16"
    assert compute.flops_cover == pytest.approx(1.0)
    assert compute.achieved_tflops is not None
    assert compute.math_tflops is not None
    assert compute.achieved_tflops < compute.math_tflops < (compute.peak_tflops or 0.0)
    # 6 FLOPs per parameter of a product and token, and the scores: 8 blocks of 12 heads, 8 x 1024 tokens.
    products = 6 * (8 * 12 * 768**2 + 768 * 2048) * 8 * 1024
    scores = 8 * 3 * 2 * 2 * 8 * 12 * 1024**2 * 64
    assert compute.tflop_per_step == pytest.approx((products + scores) / 1e12, rel=0.02)
    assert compute.attention == "scores in memory"


def test_skipped_cuda_graphs_are_priced_and_name_the_line() -> None:
    found = diagnosis_of("case-cudagraph-skip")
    skipped = next(f for f in found.findings if f.code == "BN403")
    assert "cpu device" in skipped.title
    assert skipped.sites[0].file.endswith("cudagraph_skip.py")
    assert found.suggestions[0].fix == "FX413"


def test_recompilations_name_the_dimension_and_all_its_sizes() -> None:
    found = diagnosis_of("case-recompiles-by-shape")
    assert found.verdict.bottleneck_class.value == "compile-bound"
    assert found.compile is not None
    (row,) = [row for row in found.compile.recompiles if row.sizes]
    (size,) = row.sizes
    assert (size.tensor, size.dim) == ("tokens", 1)
    assert len(size.values) == row.count + 1 == 51
    chosen = next(s for s in found.suggestions if s.fix == "FX407")
    assert "mark_dynamic(inputs, 1)" in chosen.code
    # The kernels that the compiler tries go with it.
    assert chosen.predicted_ms is not None
    assert chosen.predicted_ms < 0.03 * (found.step.true_ms or 0.0)
