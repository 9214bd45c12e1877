"""A loop of steps that a package has: its lines are told below the user's, with roles by their places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from torch_bottleneck.model.stacks import StackFrame, Stacks
from torch_bottleneck.model.view import CodeNode
from torch_bottleneck.timeline.lanes.by_code import code_tree
from torch_bottleneck.timeline.whose.branch import Branch
from torch_bottleneck.timeline.whose.tree import Tree, build_tree

FIT = StackFrame(
    file="/me/train.py", line=8, function="main", call="trainer.fit()", callee="lightly.fit", discards=True
)
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


Row = tuple[tuple[StackFrame, ...], tuple[StackFrame, ...], str, float]


def stacks(seen: Sequence[Row] = SEEN, *, below: bool = True) -> Stacks:
    """Four steps of these stacks of the user's, and of a package below them, by phase and ms."""
    frames: dict[StackFrame, int] = {}
    chains: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    phases = ["", "forward", "backward", "optimizer", "evaluation"]
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
        for users, package, phase, ms in seen:
            note(step, users, package, phase, int(1000 * ms))
    columns = [list(column) for column in zip(*rows, strict=True)]
    return Stacks(
        frames=list(frames), stacks=[list(users) for users, _ in chains],
        below=[list(package) for _, package in chains], phases=phases,
        step_ms=[sum(row[3] for row in seen)] * 4,
        step=columns[0], stack=columns[1], phase=columns[2], after=columns[3], us=columns[4],
        counts=columns[5],
    )  # fmt: skip


def tree(
    seen: Sequence[Row] = SEEN, *, below: bool = True, phases_ms: dict[str, float] | None = None
) -> Tree:
    whole_ms = sum(row[3] for row in seen)
    found = build_tree(stacks(seen, below=below), true_ms=whole_ms, phases_ms=phases_ms or {})
    assert found is not None
    return found


def inside(whole: Tree) -> list[Branch]:
    (through,) = whole.root.in_packages() or whole.root.branches()[0].in_packages()
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


TRAINING = SEEN[1:3] + SEEN[4:5]


@pytest.mark.parametrize("place", [COLLECT, line(32, "self.logger.write()")], ids=["before", "behind"])
def test_the_call_that_trains_is_no_extra_work_whatever_takes_most_of_it(place: StackFrame) -> None:
    phases_ms = {"forward": 20.0, "backward": 20.0, "optimizer": 6.0}
    found = tree([*TRAINING, ((FIT,), (LOOP, place), "", 2000.0)], phases_ms=phases_ms)
    assert found.extras() == []
    roles = {branch.call: branch.role for branch in inside(found)}
    assert roles[place.call] == ("input" if place is COLLECT else "extra")


def test_what_a_package_samples_makes_input_and_what_acts_does_not() -> None:
    acts = line(60, "policy(seen)", "act")
    found = tree([*SEEN, ((FIT,), (LOOP, line(18, "self.act()"), acts), "evaluation", 30.0),
                  ((FIT,), (LOOP, line(18, "self.act()")), "", 10.0)])  # fmt: skip
    assert found.own_input_ms() == pytest.approx(40.0)


def test_lines_of_a_package_take_no_place_of_the_user_s() -> None:
    calls = StackFrame(file="/me/train.py", line=5, function="main", call="model(x)")
    deep: list[Row] = [
        (
            (calls,),
            tuple(line(100 * layer + n, f"layer_{layer}()", f"f{n}") for n in range(depth)),
            "forward",
            50.0 if depth == 30 else 0.1,
        )
        for layer in range(8)
        for depth in range(1, 31)
    ]
    own: list[Row] = [
        ((StackFrame(file="/me/train.py", line=100 + k, function="main"),), (), "", 20.0) for k in range(30)
    ]
    found = tree([*deep, *own])
    root = code_tree(found, true_ms=found.root.total_ms, price=lambda _: None)
    assert len(root.children) == 31
    assert sum(1 for _ in packages(root)) == 200


def packages(node: CodeNode) -> Iterator[CodeNode]:
    for child in node.told:
        yield from packages(child)
    yield from node.below


def test_the_call_is_known_to_train_however_little_the_training_takes() -> None:
    root = code_tree(
        tree([*[(users, package, phase, 0.1) for users, package, phase, _ in TRAINING], SEEN[0]]),
        true_ms=40.3, price=lambda _: None,
    )  # fmt: skip
    (fit,) = root.children
    assert fit.trains
    (through,) = fit.below
    assert through.trains
    assert [(node.name, node.trains) for node in through.below] == [("collect()", False)]
