"""A loop of steps that a package has: its lines are told below the user's, with roles by their places."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from torch_bottleneck.model.stacks import StackFrame, Stacks
from torch_bottleneck.timeline.lanes.by_code import code_tree
from torch_bottleneck.timeline.whose.branch import Branch
from torch_bottleneck.timeline.whose.tree import Tree, build_tree

FIT = StackFrame(file="/me/train.py", line=8, function="main", call="trainer.fit()", callee="lightly.Trainer")
OWN = StackFrame(file="/me/train.py", line=30, function="callback", call="log()", via="lightly.call")


def line(number: int, text: str, function: str = "fit") -> StackFrame:
    return StackFrame(file="/site-packages/lightly.py", line=number, function=function, call=text)


LOOP = line(5, "self.step()", "run")
"""Everything goes through it."""
COLLECT, MODEL, LOSS = line(20, "collect()"), line(22, "loss = model(x)"), line(24, "loss.backward()")
CLIP, UPDATE = line(26, "clip()"), line(28, "optimizer.step()")
SEEN = (
    ((FIT,), (LOOP, COLLECT), "", 40.0),
    ((FIT,), (LOOP, MODEL), "forward", 20.0),
    ((FIT,), (LOOP, LOSS), "backward", 20.0),
    ((FIT,), (LOOP, CLIP), "", 10.0),
    ((FIT,), (LOOP, UPDATE), "optimizer", 6.0),
    ((FIT, OWN), (), "", 4.0),
)
AFTER = {COLLECT: "optimizer", MODEL: "optimizer", LOSS: "forward", CLIP: "backward", UPDATE: "backward"}
BEGINS = ((MODEL, "forward"), (LOSS, "backward"), (UPDATE, "optimizer"))


def stacks(*, below: bool = True) -> Stacks:
    """Four steps of 100 ms."""
    frames: dict[StackFrame, int] = {}
    chains: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    phases = ["", "forward", "backward", "optimizer"]
    rows = []

    def note(
        step: int, users: Sequence[StackFrame], package: Sequence[StackFrame], phase: str, us: int
    ) -> None:
        both = (
            tuple(frames.setdefault(frame, len(frames)) for frame in users),
            tuple(frames.setdefault(frame, len(frames)) for frame in package if below),
        )
        after = AFTER.get(package[-1], "optimizer") if package else "optimizer"
        stack = chains.setdefault(both, len(chains))
        rows.append((step, stack, phases.index(phase), phases.index(after), us, int(us > 0)))

    for step in range(4):
        for place, phase in BEGINS:
            note(step, (FIT,), (LOOP, place), phase, 0)
        for users, package, phase, ms in SEEN:
            note(step, users, package, phase, int(1000 * ms))
    columns = [list(column) for column in zip(*rows, strict=True)]
    return Stacks(
        frames=list(frames), stacks=[list(users) for users, _ in chains],
        below=[list(package) for _, package in chains], phases=phases, step_ms=[100.0] * 4,
        step=columns[0], stack=columns[1], phase=columns[2], after=columns[3], us=columns[4],
        counts=columns[5],
    )  # fmt: skip


def tree(*, below: bool = True) -> Tree:
    found = build_tree(stacks(below=below), true_ms=100.0, phases_ms={})
    assert found is not None
    return found


def inside(whole: Tree) -> list[Branch]:
    (through,) = whole.root.in_packages()
    assert through.call == "self.step()"
    return through.in_packages()


def test_what_a_package_calls_before_the_forward_is_input_and_behind_the_backward_extra() -> None:
    told = {branch.call: (branch.role, round(branch.total_ms, 3)) for branch in inside(tree())}
    assert told == {
        "collect()": ("input", 40.0),
        "loss = model(x)": ("forward", 20.0),
        "loss.backward()": ("backward", 20.0),
        "clip()": ("extra", 10.0),
        "optimizer.step()": ("update", 6.0),
    }


def test_the_user_s_lines_are_what_they_were() -> None:
    for found in (tree(), tree(below=False)):
        assert [branch.call for branch in found.root.branches()] == ["log()"]
        assert [branch.call for branch in found.extras()] == ["log()"]
        assert found.root.total_ms == pytest.approx(100.0)


def test_the_diagnosis_has_them_apart_from_the_lines_of_the_user() -> None:
    root = code_tree(tree(), true_ms=100.0, price=lambda branch: (branch.total_ms, False))
    assert [node.name for node in root.children] == ["log()"]
    (through,) = root.below
    assert next(node.name for node in through.below) == "collect()"
    assert root.roles >= {"input", "forward", "backward", "update", "extra"}
    assert [node.name for node in root.told] == ["self.step()", "log()"]
