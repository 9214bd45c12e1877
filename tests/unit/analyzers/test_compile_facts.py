"""What was compiled: kinds of breaks, sizes behind recompilations, prices shared out, skips explained."""

from __future__ import annotations

import re

import pytest

from torch_bottleneck.analyzers import Facts
from torch_bottleneck.analyzers.findings.graph_breaks import GraphBreaks
from torch_bottleneck.analyzers.sections.compile_facts import (
    break_kind,
    changed_sizes,
    compile_summary,
    skip_cause,
    skip_site,
    skip_words,
)
from torch_bottleneck.model.codes import WhatIf
from torch_bottleneck.model.run import (
    CompileEvent,
    CompileFacts,
    GraphBreak,
    Recompile,
    Run,
    SourceSite,
    StepTable,
    Window,
)
from torch_bottleneck.model.work import BreakRow, CompileSummary
from torch_bottleneck.timeline.result import CompiledWork, SeamPrice

from .facts import facts

SITE = SourceSite(file="model.py", line=7, function="forward")


@pytest.mark.parametrize(
    ("reason", "hint", "kind"),
    [
        ("Unsupported Tensor.item() call with capture_scalar_outputs=False", "", "item"),
        ("logging.Logger method not supported for non-export cases", "", "print"),
        (
            "Attempted to call function marked as skipped",
            "cannot trace the builtin `time.perf_counter.`",
            "print",
        ),
        ("Data-dependent branching", "", "branch"),
        ("generic_jump TensorVariable()", "", "branch"),
        ("Skip calling `torch.compiler.disable()`d function", "", "disabled"),
        (
            "Attempted to call function marked as skipped",
            "a third-party C/C++ Python extension: wrap it into a PyTorch-understood custom operator",
            "unsupported",
        ),
        ("call_function BuiltinVariable(id)", "", "other"),
        ("Encountered tensor.is_inference() during tracing", "This graph break is fundamental", "other"),
        ("Unsupported context manager", "Dynamo does not know how to enter a `lock`", "other"),
    ],
)
def test_the_kind_of_a_break_is_told_from_dynamo_s_words(reason: str, hint: str, kind: str) -> None:
    assert break_kind(GraphBreak(reason=reason, hint=hint)) == kind


def test_every_size_of_a_dimension_is_gathered_from_all_failed_guards() -> None:
    found = changed_sizes(
        [
            "tensor 'x' size mismatch at index 1. expected 65, actual 118",
            "tensor 'x' size mismatch at index 1. expected 118, actual 70",
            "tensor 'mask' size mismatch at index 0. expected 3, actual 4",
            "tensor 'x' requires_grad mismatch. expected requires_grad=0",
        ]
    )
    assert [(s.tensor, s.dim, s.values) for s in found] == [("mask", 0, (3, 4)), ("x", 1, (65, 70, 118))]


@pytest.mark.parametrize(
    ("guard", "tensor", "dim", "values"),
    [
        ("L['x'].size()[0] == 8", "L['x']", 0, (8,)),
        ("2 <= L['x'].size()[0] <= 64", "L['x']", 0, ()),
        ("L['step'] == 17", "L['step']", None, (17,)),
    ],
)
def test_guards_on_symbols_and_numbers_are_read(
    guard: str, tensor: str, dim: int | None, values: tuple[int, ...]
) -> None:
    (found,) = changed_sizes([guard])
    assert (found.tensor, found.dim, found.values) == (tensor, dim, values)


def test_a_skipped_graph_is_explained_where_the_reason_is_known() -> None:
    assert "device" in skip_cause("skipping cudagraphs due to cpu device (arg3_1)")
    assert "in place" in skip_cause("skipping cudagraphs due to mutated inputs (2 instances)")
    assert skip_cause("something new") == ""


def test_a_skip_names_the_line_and_says_its_reason_once() -> None:
    said = (
        "skipping cudagraphs due to skipping cudagraphs due to cpu device (primals_150). Found from : \n"
        '   File "model.py", line 24, in forward\n    return x * self.scale.to(x.device)\n'
    )
    assert skip_words(said) == "cpu device (primals_150)"
    site = skip_site(said)
    assert site is not None
    assert (site.file, site.line, site.function) == ("model.py", 24, "forward")
    assert (skip_words(""), skip_site("mutated inputs")) == ("", None)


def broken(**changes: object) -> Facts:
    given = {
        "breaks": [
            GraphBreak(reason="first\nmore", site=SITE, stacks=[[SITE]]),
            GraphBreak(reason="second", site=SITE, skipped=[SITE]),
        ],
        **changes,
    }
    compiled = CompileFacts(used=True, mode="default", **given)  # type: ignore[arg-type]
    prices = (
        SeamPrice(owners=(1,), per_step=10.0, host_ms=6.0, cost_ms=9.0),
        SeamPrice(owners=(0, 1), per_step=4.0, host_ms=2.0, cost_ms=3.0),
    )
    return facts(
        compile_facts=compiled,
        saves={WhatIf.SEAMS_GONE: 12.0},
        seams=prices,
        compiled=CompiledWork(kernel_share=0.9, time_share=0.8, eager_in_seams=5.0, graph_launches=0.0),
        run=Run(windows=[Window(name="baseline", status="ok", steps=StepTable(index=[20, 21]))]),
    )


def summary(**changes: object) -> CompileSummary:
    found = compile_summary(broken(**changes))
    assert found is not None
    return found


def by_reason(found: CompileSummary) -> dict[str, BreakRow]:
    return {row.reason: row for row in found.breaks}


def test_prices_add_up_to_that_of_all_seams_and_the_dearest_comes_first() -> None:
    found = summary()
    assert [row.reason for row in found.breaks] == ["second", "first"]
    assert sum(row.cost_ms or 0 for row in found.breaks) == pytest.approx(found.seams_ms)
    assert by_reason(found)["second"].cost_ms == pytest.approx(10.5)
    assert by_reason(found)["second"].seams_per_step == pytest.approx(12.0)


def test_title_evidence_and_rows_say_one_figure_of_how_often_breaks_are_crossed() -> None:
    (finding,) = GraphBreaks().find(broken())
    told = [finding.title, *(item.text for item in finding.evidence)]
    said = [int(count) for text in told for count in re.findall(r"crossed (\d+) times", text)]
    of_title, *of_rows, of_all = said
    assert of_title == of_all == sum(of_rows) == sum(row.seams_per_step or 0 for row in summary().breaks)
    assert not any("seams" in text for text in told)


def test_what_cannot_be_told_apart_is_split_evenly_and_says_so() -> None:
    assert [row.shared for row in summary().breaks] == [True, True]


def test_without_a_trace_a_break_has_no_price_rather_than_none_to_pay() -> None:
    compiled = CompileFacts(used=True, breaks=[GraphBreak(reason="x")])
    found = compile_summary(facts(compile_facts=compiled))
    assert found is not None
    assert (found.breaks[0].cost_ms, found.breaks[0].seams_per_step, found.seams_ms) == (None, None, None)
    assert found.compiled_kernel_share is None


def test_nothing_compiled_is_no_summary() -> None:
    assert compile_summary(facts()) is None
    assert compile_summary(facts(compile_facts=CompileFacts())) is None


def event(number: str, step: int, seconds: float, reason: str | None = None) -> CompileEvent:
    return CompileEvent(
        frame="forward" if reason is not None else "",
        compile_id=number,
        site=SITE,
        step=step,
        seconds=seconds,
        recompile_reason=reason,
    )


def test_a_recompilation_is_charged_with_its_backward_and_counted_from_the_steady_state_on() -> None:
    guards = [f"tensor 'x' size mismatch at index 1. expected 64, actual {n}" for n in (70, 90, 100)]
    found = summary(
        breaks=[],
        recompiles=[Recompile(frame="forward", site=SITE, guard=guards[0], count=3, steps=[3, 20, 21])],
        compiles=[
            event("0/0", 0, 5.0),
            *(event(f"0/{k + 1}", step, 1.0, guards[k]) for k, step in enumerate((3, 20, 21))),
            event("0/1", 3, 0.5),  # backward of the first of them
        ],
    )
    (row,) = found.recompiles
    assert (row.count, row.steady, row.seconds) == (3, 2, 3.5)
    assert row.sizes[0].values == (64, 70, 90, 100)
    assert "mark_dynamic(x, 1)" in row.advice
    assert (found.compile_seconds, found.before_steady_seconds) == (8.5, 6.5)


def test_buckets_hold_every_size_and_are_few() -> None:
    guards = [f"tensor 'x' size mismatch at index 1. expected {n}, actual {n + 1}" for n in range(65, 250)]
    found = summary(
        breaks=[],
        recompiles=[Recompile(frame="forward", site=SITE, guard=guards[0], count=1, steps=[1])],
        compiles=[event(f"0/{k + 1}", 1, 1.0, guard) for k, guard in enumerate(guards)],
    )
    offered = [int(n) for n in found.recompiles[0].advice.rpartition("pad to ")[2].split(",")]
    assert len(offered) <= 4
    assert max(offered) >= 250
    assert all(n % 8 == 0 for n in offered)
