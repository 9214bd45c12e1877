"""Recorded runs of two ranks over NCCL: sharded parameters, and gradients that are averaged."""

from __future__ import annotations

import json

import pytest
from recorded.cases import CASES
from recorded.diagnosed import diagnosis_of

from torch_bottleneck.model.fix import Suggestion


def compiling(name: str) -> list[Suggestion]:
    found = diagnosis_of(name)
    return [s for s in (*found.suggestions, *found.applicable) if s.fix in ("FX412", "FX414")]


def test_a_sharded_model_is_read_as_one_run_of_two_ranks() -> None:
    found, facts = diagnosis_of("fsdp-h200"), CASES["fsdp-h200"].facts
    assert len(found.ranks) == int(facts["ranks"])
    assert found.step.true_ms == pytest.approx(float(facts["measured_slow_ms"]), rel=0.02)
    assert found.verdict.bottleneck_class.value == facts["expected_class"]
    assert "BN801" in {finding.code for finding in found.findings}


def test_communication_names_the_line_of_backward() -> None:
    """It is gradients that are sent: the line is what a fix for it stands at."""
    found = diagnosis_of("fsdp-h200")
    sites = next(finding.sites for finding in found.findings if finding.code == "BN801")
    run = json.loads((CASES["fsdp-h200"].folder / f"rank{found.rank}" / "run.json").read_text())
    backward = [(s["site"]["file"], s["site"]["line"]) for s in run["sites"] if s["phase"] == "backward"]
    assert backward
    assert [(site.file, site.line) for site in sites] == backward[: len(sites)]
    assert next(s.site for s in found.suggestions if s.finding == "BN801") == sites[0]


def test_a_rank_that_only_the_profiler_made_late_does_not_decide() -> None:
    """Both hosts ran ahead of their devices (44 ms a step, 50); traced, rank 1 was late all the same."""
    found = diagnosis_of("fsdp-h200")
    assert "BN802" not in {finding.code for finding in found.findings}
    assert found.step.true_ms is not None
    classes = {cause.bottleneck_class.value: cause for cause in found.causes}
    assert "launch-bound" not in classes, "the host is no reason to wait"
    assert 0.1 < classes["communication-bound"].share < 0.2
    assert found.suggestions[0].fix in ("FX604", "FX605"), "gathering ahead, not compiling"


def test_a_rank_that_comes_late_by_itself_does() -> None:
    found = diagnosis_of("ddp-straggler-h200")
    assert "BN802" in {finding.code for finding in found.findings}
    assert found.causes[0].bottleneck_class.value == "host-bound"


def test_what_compiling_brings_is_a_bound_where_forward_gathers_parameters_part_by_part() -> None:
    sharded, averaged = compiling("fsdp-h200"), compiling("ddp-h200")
    assert sharded
    assert all(s.bound and "collectives are launched between" in s.basis for s in sharded)
    assert averaged
    assert not any(s.bound for s in averaged)


def test_buffers_that_are_sent_before_each_forward_are_told_at_the_line_that_wraps_the_model() -> None:
    found = diagnosis_of("ddp-buffers-cpu")
    assert found.verdict.bottleneck_class.value == "communication-bound"
    buffers = next(finding for finding in found.findings if finding.code == "BN804")
    assert [(site.line, site.function) for site in buffers.sites] == [(33, "main")]
    first = found.suggestions[0]
    assert first.fix == "FX609"
    assert first.measured is not None
    assert first.measured.verdict == "faster"
