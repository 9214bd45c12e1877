"""The step by whose code it is, as the reports show it."""

from __future__ import annotations

import msgspec
import pytest
from unit.reporters.drawn import drawn

from torch_bottleneck.model.diagnosis import Diagnosis
from torch_bottleneck.model.view import CodeNode, Role
from torch_bottleneck.reporters import markdown, terminal
from torch_bottleneck.reporters.html.page import build
from torch_bottleneck.reporters.rows.code import code_rows, flame_blocks


def with_room() -> Diagnosis:
    """Return a diagnosis whose other sections leave room on the screen."""
    shown = drawn()
    kept = tuple(s for s in shown.suggestions if s.helps is not False)
    return msgspec.structs.replace(shown, suggestions=kept)


def test_rows_name_what_is_neither_forward_backward_nor_update() -> None:
    rows = code_rows(drawn())
    assert [(row.name, row.role) for row in rows] == [("evaluate()", "extra"), ("torch.histc()", "extra")]
    assert rows[0].where.endswith("train.py:70 (main)")
    assert rows[0].without.startswith("≥ ")
    assert rows[1].without == "", "no price, no figure"


def test_a_function_that_runs_the_model_is_told_by_what_else_it_calls() -> None:
    """`select_action` of REINFORCE in pytorch/examples: the step without it is none."""

    def node(name: str, role: str, ms: float, *children: CodeNode) -> CodeNode:
        return CodeNode(name=name, role=role, ms=ms, share=ms / 100.0, file="a.py", line=1, children=children)

    acts = node("act()", "loss", 60.0, node("policy()", "forward", 25.0), node("Categorical()", "loss", 35.0))
    tree = node("step", "step", 100.0, acts)
    rows = code_rows(msgspec.structs.replace(drawn(), tree=tree))
    assert [row.name for row in rows] == ["Categorical()"]


def test_lines_of_a_package_that_trains_are_rows_and_blocks() -> None:
    def node(name: str, role: Role, ms: float, *below: CodeNode) -> CodeNode:
        return CodeNode(name=name, role=role, ms=ms, share=ms / 100.0, file="a.py", line=1, below=below)

    update = node("train()", "input", 60.0, node("sample()", "input", 30.0), node("step()", "update", 30.0))
    fit = node(
        "fit()", "input", 100.0, node("run()", "input", 100.0, node("collect()", "input", 40.0), update)
    )
    shown = msgspec.structs.replace(drawn(), tree=node("step", "step", 100.0, fit))
    assert [row.name for row in code_rows(shown)] == ["collect()", "sample()"]
    assert [(b.label, b.depth) for b in flame_blocks(shown)][:4] == [
        ("step", 0), ("fit()", 1), ("run()", 2), ("train()", 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("activity, speaker = losses(model, labels)", "losses(model, labels)"),
        ("total += self.head(x[:, i])", "self.head(x[:, i])"),
        ("return (0.3 * r + 0.6 * g).unsqueeze(-3)", "(0.3 * r + 0.6 * g).unsqueeze(-3)"),
        ("losses = torch.stack([F.binary_cross_entropy(pre", "torch.stack([F.binary_cross_entropy(pre…"),
        ("loss.backward()", "loss.backward()"),
        ("pool(x, kernel_size=2) == y", "pool(x, kernel_size=2) == y"),
    ],
)
def test_a_line_of_the_device_is_named_by_what_it_computes(source: str, named: str) -> None:
    line = CodeNode(
        name=source, role="device", ms=40.0, share=0.4, price_ms=40.0, file="a.py", line=1, function="f"
    )
    shown = msgspec.structs.replace(with_room(), tree=None, device_lines=(line,), device_calls=())
    assert [row.name for row in code_rows(shown)] == [named]
    text = terminal.render(shown, width=80)
    assert (named if len(named) < 22 else f"{named[:16]}") in text


def test_blocks_lie_inside_what_calls_them_and_side_by_side() -> None:
    blocks = flame_blocks(drawn())
    step, backward, hook, evaluation = blocks
    assert (step.left, step.width, step.depth) == (0.0, 100.0, 0)
    assert backward.depth == evaluation.depth == 1
    assert hook.depth == 2
    assert hook.left >= backward.left
    assert hook.left + hook.width <= backward.left + backward.width
    assert evaluation.left == pytest.approx(backward.left + backward.width)
    assert "step without it: ≥ " in evaluation.title
    assert "step without it" not in hook.title


def test_each_report_shows_them_and_none_a_section_without_a_tree() -> None:
    with_tree, without = with_room(), msgspec.structs.replace(with_room(), tree=None)
    for render in (terminal.render, markdown.render):
        assert "Whose code" in render(with_tree)
        assert "Whose code" not in render(without)
    assert build(with_tree).flame
    assert not build(without).flame
    lines = terminal.render(with_tree).splitlines()
    row = next(line for line in lines if "evaluate()" in line)
    assert "train.py:70" in row
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 40


def test_a_wide_terminal_and_one_without_unicode_show_them_too() -> None:
    for width in (80, 120):
        text = terminal.render(with_room(), width=width, unicode=False)
        assert "evaluate()" in text
        assert max(map(len, text.splitlines())) <= width


def test_a_long_name_loses_its_module_and_its_role_before_its_middle() -> None:
    def row(name: str, role: str) -> str:
        shown = with_room()
        assert shown.tree is not None
        node = msgspec.structs.replace(shown.tree.children[1], name=name, role=role)
        tree = msgspec.structs.replace(shown.tree, children=(node,))
        lines = terminal.render(msgspec.structs.replace(shown, tree=tree)).splitlines()
        return next(line for line in lines if "train.py:70" in line and " ms " in line).partition("  ")[0]

    assert row("torch.nn.utils.clip_grad_norm_()", "extra") == "extra: clip_grad_norm_()"
    assert row("self.nets[0.5].target_network()", "extra") == "extra: target_network()"
    assert row("target_network()", "no-grad forward") == "target_network()"
    assert row("[torch.rand(9) for _ in ten]", "extra") == "[torch.rand(9) f…in ten]"
