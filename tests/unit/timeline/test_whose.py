"""The step by whose code it is: roles by phase and by line, prices by replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from torch_bottleneck.model.codes import WhatIf
from torch_bottleneck.model.diagnosis import WhatIfResult
from torch_bottleneck.model.run import LoaderFacts, LoopTime, Production, Run, SiteTime, SourceSite
from torch_bottleneck.model.stacks import StackFrame, Stacks
from torch_bottleneck.model.view import CodeNode
from torch_bottleneck.timeline.cpu.reading import extra_context
from torch_bottleneck.timeline.lanes.ask import Asker
from torch_bottleneck.timeline.lanes.by_code import (
    code_tree,
    extra_nodes,
    host_gone_ms,
    plain_nodes,
    rare_nodes,
    share_of,
    time_of,
    without,
)
from torch_bottleneck.timeline.lanes.host_work import HostWork
from torch_bottleneck.timeline.lanes.labels import Work
from torch_bottleneck.timeline.lanes.program import host_program
from torch_bottleneck.timeline.lanes.questions import shared_questions
from torch_bottleneck.timeline.lanes.replay import Edit, Replay
from torch_bottleneck.timeline.steps.facts import Facts
from torch_bottleneck.timeline.steps.rare import RareWork
from torch_bottleneck.timeline.steps.supply import InputSupply, input_supply, supply_answers
from torch_bottleneck.timeline.steps.traced import find_steps
from torch_bottleneck.timeline.whose.plain import AboveOperators
from torch_bottleneck.timeline.whose.tree import Tree, build_tree

from .readings import read
from .traces import TraceWriter

LOOP = ((10, 40),)
"""The loop over steps."""


class Seen(NamedTuple):
    """Samples of one stack, in every step."""

    frames: tuple[StackFrame, ...]
    ms: float
    phase: str = ""
    after: str = ""
    begins: bool = False


def at(
    line: int, call: str = "", *, function: str = "main", loops: Sequence[tuple[int, int]] = LOOP, **more: Any
) -> StackFrame:
    return StackFrame(
        file="/me/train.py", line=line, function=function, call=call, loops=tuple(loops), **more
    )


def stacks_of(seen: Sequence[Seen], *, steps: int = 4, longer: dict[int, float] | None = None) -> Stacks:
    frames: dict[StackFrame, int] = {}
    chains: dict[tuple[int, ...], int] = {}
    phases: dict[str, int] = {"": 0}
    rows = []
    for step in range(steps):
        for each in seen:
            chain = tuple(frames.setdefault(frame, len(frames)) for frame in each.frames)
            ms = each.ms * (longer or {}).get(step, 1.0)
            rows.append(
                (
                    step,
                    chains.setdefault(chain, len(chains)),
                    phases.setdefault(each.phase, len(phases)),
                    phases.setdefault(each.after, len(phases)),
                    0 if each.begins else int(ms * 1000),
                    int(not each.begins),
                )
            )
    columns = [list(column) for column in zip(*rows, strict=True)]
    whole = sum(each.ms for each in seen if not each.begins)
    return Stacks(
        frames=list(frames),
        stacks=[list(chain) for chain in chains],
        phases=list(phases),
        step_ms=[whole * (longer or {}).get(step, 1.0) for step in range(steps)],
        step=columns[0], stack=columns[1], phase=columns[2],
        after=columns[3], us=columns[4], counts=columns[5],
    )  # fmt: skip


FORWARD, BACKWARD, UPDATE = at(14, "model()"), at(20, "loss.backward()"), at(24, "optimizer.step()")
TRAINING = (
    Seen((at(10, "loader"),), 5, "data", "optimizer"),
    Seen((FORWARD,), 20, "forward", "data"),
    Seen((FORWARD,), 0, "forward", "data", begins=True),
    Seen((at(16, "cross_entropy()"),), 5, "", "forward"),
    Seen((BACKWARD,), 30, "backward", "forward"),
    Seen((BACKWARD,), 0, "backward", "forward", begins=True),
    Seen((UPDATE,), 10, "optimizer", "backward"),
    Seen((UPDATE,), 0, "optimizer", "backward", begins=True),
)

PHASES_US = [
    ("data", 5000.0), ("forward", 25_000.0), ("copies", 20_000.0), ("backward", 30_000.0),
    ("optimizer", 10_000.0), ("copies", 20_000.0),
]  # fmt: skip


def tree_of(
    *more: Seen,
    true_ms: float | None = None,
    phases_ms: dict[str, float] | None = None,
    grown_ms: float = 0.0,
) -> Tree:
    seen = [*TRAINING, *more]
    total = sum(each.ms for each in seen)
    tree = build_tree(stacks_of(seen), true_ms=true_ms or total, phases_ms=phases_ms or {}, grown_ms=grown_ms)
    assert tree is not None
    return tree


def without_loader(*more: Seen) -> Tree:
    """The tree of steps that fetch no batch, by timed phases."""
    seen = [*TRAINING[1:], *more]
    phases_ms: dict[str, float] = {}
    for each in seen:
        if each.phase:
            phases_ms[each.phase] = phases_ms.get(each.phase, 0.0) + each.ms
    tree = build_tree(stacks_of(seen), true_ms=sum(each.ms for each in seen), phases_ms=phases_ms)
    assert tree is not None
    return tree


def extras_of(tree: Tree) -> dict[str, float]:
    return {branch.call: round(branch.total_ms, 3) for branch in tree.extras()}


def test_a_step_of_training_alone_has_no_extra_work_and_adds_up() -> None:
    tree = tree_of(true_ms=35.0)
    assert tree.extras() == []
    assert tree.root.total_ms == pytest.approx(35.0)
    roles = {branch.call: branch.role for branch in tree.root.branches()}
    assert roles == {
        "loader": "input",
        "model()": "forward",
        "cross_entropy()": "loss",
        "loss.backward()": "backward",
        "optimizer.step()": "update",
    }


@pytest.mark.parametrize(
    ("line", "after", "name"),
    [(30, "optimizer", "save_history()"), (22, "backward", "clip_all()")],
)
def test_what_stands_behind_the_backward_is_extra_work(line: int, after: str, name: str) -> None:
    tree = tree_of(Seen((at(line, name),), 40, "", after))
    assert extras_of(tree) == {name: 40.0}


def test_what_a_backward_follows_behind_the_update_may_train_by_hand() -> None:
    slope = (at(31, "autograd.grad()"),)
    tree = tree_of(
        Seen((at(30, "divergence()"),), 20, "forward", "optimizer"),
        Seen((at(30, "divergence()"),), 5, "", "forward"),
        Seen(slope, 10, "backward", "forward"),
        Seen(slope, 0, "backward", "forward", begins=True),
        Seen((at(32, "save()"),), 7, "", "backward"),
    )
    assert extras_of(tree) == {"save()": 7.0}


def test_where_no_optimizer_updates_what_the_backward_follows_is_recorded_and_what_follows_it_updates() -> (
    None
):
    seen = (
        Seen((at(18, "batch()"),), 5, "", "backward"),
        Seen((at(19, "net.loss()"),), 40, "", "backward"),
        Seen((BACKWARD,), 30, "backward", "backward"),
        Seen((BACKWARD,), 0, "backward", "backward", begins=True),
        Seen((at(25, "w.data - rate * w.grad"),), 10, "", "backward"),
        Seen((at(26, "print()", callee="builtins.print"),), 3, "", "backward"),
    )
    tree = build_tree(stacks_of(seen), true_ms=88.0, phases_ms={})
    assert tree is not None
    assert {branch.call: branch.role for branch in tree.root.branches()} == {
        "batch()": "loss",
        "net.loss()": "loss",
        "loss.backward()": "backward",
        "w.data - rate * w.grad": "update",
        "print()": "extra",
    }


def test_without_a_module_what_the_backward_follows_makes_the_loss() -> None:
    rest = [each for each in TRAINING if FORWARD not in each.frames and each.phase != "data"]
    tree = build_tree(
        stacks_of([*rest, Seen((at(12, "bound()"),), 40, "", "optimizer")]), true_ms=85.0, phases_ms={}
    )
    assert tree is not None
    assert {branch.call: branch.role for branch in tree.root.branches()}["bound()"] == "loss"
    assert not tree.extras()


@pytest.mark.parametrize(
    ("discards", "inner", "leaves_out"),
    [
        (True, "note", "/me/train.py:note"),
        (False, "note", ""),  # its value is used
        (True, "main", ""),  # all in a line of the loop itself
    ],
)
def test_extra_work_can_be_left_out_where_one_function_does_it_and_nobody_takes_its_value(
    discards: bool, inner: str, leaves_out: str
) -> None:
    frames = (at(30, "meter.note()", discards=discards), at(60, "sum()", function=inner, loops=()))
    tree = tree_of(Seen(frames, 40, "", "optimizer"))
    (node,) = extra_nodes(tree, true_ms=110.0, price=lambda branch: None)
    assert node.leaves_out == leaves_out


def test_a_hook_of_the_backward_may_return_nothing() -> None:
    hook = at(50, "histc()", function="on_grad", loops=(), via="torch.utils.hooks.call")
    tree = tree_of(Seen((BACKWARD, hook), 40, "backward", "forward"))
    (node,) = extra_nodes(tree, true_ms=110.0, price=lambda branch: None)
    assert node.leaves_out == "/me/train.py:on_grad"


def test_functions_that_call_no_operator_are_told_with_all_of_their_calls() -> None:
    net = at(60, "layer()", function="forward", loops=())
    checks = at(70, "fits()", function="check", loops=()), at(80, "eval()", function="fits", loops=())
    seen = (
        *TRAINING,
        Seen((FORWARD, net, *checks), 6, "forward", "data"),
        Seen((at(16, "check()"), *checks[:1]), 3, "", "forward"),
        Seen((at(30, "check()"), *checks[:1]), 4, "", "optimizer"),
        Seen((FORWARD, net), 20, "forward", "data"),
    )
    above = AboveOperators([("/me/train.py", "main"), ("/me/train.py", "forward")])
    known = {"true_ms": 103.0, "phases_ms": {}}
    tree = build_tree(stacks_of(seen), above=above, **known)
    assert tree is not None
    (check,) = tree.plain
    assert check.by_phase == {"forward": pytest.approx(6.0), "": pytest.approx(3.0)}, (
        "extra work is no part of it"
    )
    assert tree.plain_ms("forward") == pytest.approx(6.0)
    (node,) = plain_nodes(tree, true_ms=103.0, saves_ms=lambda branch: branch.total_ms)
    assert (node.name, node.price_ms, node.site and node.site.line) == ("check()", pytest.approx(9.0), 70)
    assert [child.name for child in node.children] == ["fits()"]
    without_ms = {"forward": 2.0, "": 0.5}
    assert host_gone_ms(check, lambda ms, phase: without_ms[phase]) == 2.5
    tree = build_tree(stacks_of(seen), **known)
    assert tree is not None
    assert tree.plain == (), "operators were not looked at"


def test_a_loop_that_calls_no_operator_is_told_though_the_function_around_it_does() -> None:
    loops = ((61, 80), (66, 69))
    cut = at(68, "sources.append()", function="take_apart", loops=loops)
    seen = (
        *TRAINING,
        Seen((FORWARD, cut), 6, "forward", "data"),
        Seen((FORWARD, at(67, "", function="take_apart", loops=loops)), 3, "forward", "data"),
        Seen((FORWARD, at(75, "names()", function="take_apart", loops=loops[:1])), 4, "forward", "data"),
        Seen((FORWARD, at(78, "values[a:b]", function="take_apart", loops=loops[:1])), 20, "forward", "data"),
    )
    functions = [("/me/train.py", "main"), ("/me/train.py", "take_apart")]
    for lines, told in (({"/me/train.py": [14, 78]}, 1), ({"/me/train.py": [14, 67, 78]}, 0), ({}, 0)):
        above = AboveOperators(functions, lines)
        tree = build_tree(stacks_of(seen), true_ms=103.0, phases_ms={}, above=above)
        assert tree is not None
        assert len(tree.plain) == told
        assert tree.plain_ms("forward") == pytest.approx(9.0 * told)
        for node in plain_nodes(tree, true_ms=103.0, saves_ms=lambda branch: branch.total_ms):
            assert (node.name, node.line, node.in_rounds) == ("loop in take_apart()", 66, True)
            assert node.children[0].name == "sources.append()"


@pytest.mark.parametrize(("host_ms", "told"), [(60.0, True), (200.0, False)])
def test_a_little_extra_work_says_nothing_of_python_in_the_forward(host_ms: float, told: bool) -> None:
    """On a busy machine makemore's GELU (190 of 197 ms) was to be moved out of the step."""
    tree = tree_of(Seen((at(30, "save_history()"),), 40, "", "optimizer"))
    assert (extra_context(tree, host_ms=host_ms) == {}) is not told
    assert extra_context(tree_of(), host_ms=host_ms) == {} == extra_context(None, host_ms=host_ms)


def test_the_update_s_own_loop_is_named_where_most_of_it_runs_in_one() -> None:
    def inside(line: int, loops: Sequence[tuple[int, int]]) -> tuple[StackFrame, ...]:
        return (UPDATE, at(line, f"{line}", function="step", loops=loops, via="torch.optim.wrapper"))

    loops = ((52, 60), (54, 60))
    tree = tree_of(
        Seen(inside(55, loops), 30, "optimizer", "backward"),
        Seen(inside(58, loops), 10, "optimizer", "backward"),
    )
    found = tree.update_loop()
    assert found is not None
    assert (found.line, found.function) == (54, "step")
    assert tree_of(Seen(inside(55, loops), 8, "optimizer", "backward")).update_loop() is None
    assert tree_of(Seen(inside(70, ()), 80, "optimizer", "backward")).update_loop() is None
    assert tree_of(Seen((UPDATE,), 80, "optimizer", "backward")).update_loop() is None, "the training's loop"


def test_what_stands_before_the_forward_makes_the_batch_unless_it_makes_none_anywhere() -> None:
    tree = tree_of(
        Seen((at(12, "augment()"),), 10, "", "data"),
        Seen((at(11, "gc.collect()", callee="gc.collect"),), 40, "", "data"),
    )
    assert extras_of(tree) == {"gc.collect()": 40.0}
    assert {branch.call: branch.role for branch in tree.root.branches()}["augment()"] == "input"


@pytest.mark.parametrize(
    ("function", "via"), [("__exit__", ""), ("collecting", "contextlib._Manager.__exit__")]
)
def test_the_end_of_a_with_block_stands_where_the_block_ends(function: str, via: str) -> None:
    head = at(12, "")
    enters = at(60, "register()", function="__enter__", loops=())
    leaves = at(70, "handle.remove()", function=function, loops=(), via=via)
    tree = tree_of(Seen((head, enters), 10, "", "data"), Seen((head, leaves), 30, "", "backward"))
    assert extras_of(tree) == {"handle.remove()": 30.0}
    assert tree.root.by_role["input"] == pytest.approx(15.0)


def test_a_loop_of_extra_work_is_none_whose_dispatch_is_asked_for() -> None:
    tests = Seen((at(31, "test()", loops=(*LOOP, (30, 31))),), 40, "evaluation", "optimizer")
    heads = Seen((FORWARD, at(60, "head()", function="forward", loops=((59, 60),))), 40, "forward", "data")
    loops = [
        LoopTime(site=SourceSite(file="/me/train.py", line=first), last_line=first + 1)
        for first in (30, 59, 90)
    ]
    known = Facts(true_ms=150.0, run=Run(loops=loops), stacks=stacks_of([*TRAINING, tests, heads]))
    assert [loop.site.line for loop in known.loops] == [59, 90], "the last was not sampled"
    assert list(Facts(true_ms=150.0, run=Run(loops=loops)).loops) == loops


def test_python_around_the_clearing_of_gradients_is_part_of_it() -> None:
    clears = at(26, "optimizer.zero_grad()")
    tree = tree_of(Seen((clears,), 1, "zero_grad", "optimizer"), Seen((clears,), 4, "", "optimizer"))
    assert extras_of(tree) == {}
    assert tree.root.by_role["update"] == pytest.approx(15.0)


def test_what_grows_from_step_to_step_is_the_extra_work_that_the_samples_show() -> None:
    def found(grown_ms: float, *more: Seen) -> Tree:
        phases = {"data": 5.0, "forward": 20.0, "backward": 30.0, "optimizer": 10.0}
        return tree_of(*more, true_ms=75.0, phases_ms=phases, grown_ms=grown_ms)

    keeps = Seen((at(30, "history.append()"),), 5, "", "optimizer")
    assert extras_of(found(0.0, keeps)) == {"history.append()": 5.0}
    grown = found(8.0, keeps)
    assert extras_of(grown) == {"history.append()": 8.0}
    assert grown.root.total_ms == pytest.approx(75.0)
    assert grown.root.by_role["loss"] == pytest.approx(2.0)
    assert extras_of(found(3.0, keeps)) == {"history.append()": 5.0}, "it takes more than what has grown"
    assert extras_of(found(8.0)) == {}, "no line is known to grow"


def test_hooks_in_the_backward_are_extra_work_and_what_it_consists_of_is_not() -> None:
    def below(via: str, call: str) -> tuple[StackFrame, ...]:
        return (BACKWARD, at(len(call), call, function="look", loops=(), via=via))

    tree = tree_of(
        Seen(below("torch.autograd.graph._engine_run_backward", "torch.histc()"), 25, "backward", "forward"),
        Seen(below("torch.autograd.function.apply", "own_backward()"), 25, "backward", "forward"),
        Seen(below("torch.utils.checkpoint.backward", "block()"), 25, "backward", "forward"),
    )
    assert extras_of(tree) == {"torch.histc()": 25.0}
    assert tree.extra_ms("backward") == pytest.approx(25.0)


def test_an_evaluation_behind_the_update_is_extra_with_the_batches_that_it_gets() -> None:
    loops = (*LOOP, (30, 31))
    tree = tree_of(
        Seen((at(30, "held", loops=loops),), 15, "data", "data"),
        Seen((at(31, "test()", loops=loops),), 60, "evaluation", "data"),
    )
    assert extras_of(tree) == {"test()": 75.0}
    assert tree.evaluation_is_extra
    assert tree.extras()[0].evaluates


def test_a_model_called_behind_the_update_evaluates_with_gradients_too() -> None:
    """GCN in PyTorch (tkipf/pygcn) forgets `no_grad` where it runs the validation nodes in each step."""
    tree = tree_of(
        Seen((at(30, "model()"),), 60, "forward", "optimizer"),
        Seen((at(31, "print()"),), 20, "", "optimizer"),
    )
    assert [(branch.call, branch.evaluates) for branch in tree.extras()] == [
        ("model()", True), ("print()", False),
    ]  # fmt: skip
    assert not any(branch.evaluates for branch in tree.root.branches() if branch.call == "cross_entropy()")


def test_a_model_without_gradients_before_the_update_is_part_of_the_training() -> None:
    tree = tree_of(Seen((at(13, "teacher()"),), 60, "evaluation", "data"))
    assert tree.extras() == []
    assert not tree.evaluation_is_extra


def test_a_loop_inside_the_step_is_one_branch_and_the_training_loop_none() -> None:
    loops = (*LOOP, (30, 33))
    tree = tree_of(
        Seen((at(31, "kept.mul_()", loops=loops),), 20, "", "optimizer"),
        Seen((at(32, "kept.add_()", loops=loops),), 30, "", "optimizer"),
    )
    assert [round(branch.total_ms) for branch in tree.extras()] == [50]
    assert len(tree.extras()[0].children) == 2
    (kept,) = extra_nodes(tree, true_ms=tree.root.total_ms, price=lambda branch: None)
    assert (kept.in_rounds, kept.own_ms()) == (True, pytest.approx(50.0))


def test_frames_that_lead_to_the_training_loop_are_no_part_of_the_tree() -> None:
    start = at(90, "main()", function="<module>", loops=())
    seen = [each._replace(frames=(start, *each.frames)) for each in TRAINING]
    tree = build_tree(stacks_of(seen), true_ms=70.0, phases_ms={})
    assert tree is not None
    assert {branch.call for branch in tree.root.branches()} == {
        "loader", "model()", "cross_entropy()", "loss.backward()", "optimizer.step()",
    }  # fmt: skip


def test_the_way_to_the_loop_is_left_behind_however_little_of_the_user_s_runs_below_it() -> None:
    """A trainer's loop: the line that calls it holds all of the step, most of it in the library."""
    fit = at(90, "trainer.fit()", loops=())
    seen = [
        each._replace(frames=(fit, *each.frames) if each.phase == "forward" else (fit,)) for each in TRAINING
    ]
    tree = build_tree(stacks_of(seen), true_ms=70.0, phases_ms={})
    assert tree is not None
    assert [branch.call for branch in tree.root.branches()] == ["model()"]
    assert tree.root.total_ms == pytest.approx(70.0)


@pytest.mark.parametrize(
    ("callee", "owner"),
    [
        ("transformers.trainer.Trainer.train", "transformers"),
        ("lightning.pytorch.trainer.trainer.Trainer.fit", "lightning"),
        ("train.fit", ""),
    ],
)
def test_the_trainer_that_owns_the_loop_is_known_by_what_the_script_calls(callee: str, owner: str) -> None:
    fit = at(90, "trainer.fit()", loops=(), callee=callee)
    seen = [each._replace(frames=(fit, *each.frames)) for each in TRAINING]
    tree = build_tree(stacks_of(seen), true_ms=70.0, phases_ms={})
    assert tree is not None
    assert tree.owner == owner
    logs = at(17, "self.log()", callee="lightning.pytorch.core.module.LightningModule.log")
    assert tree_of(Seen((logs,), 9, "", "forward")).owner == ""


def test_what_holds_the_update_is_no_extra_work_but_the_lines_beside_it_are() -> None:
    inside = {"function": "step", "loops": ()}
    update, put_away = at(52, "self.optimizer.step()", **inside), at(53, "self.put_away()", **inside)
    saved = at(39, "self.to_host()", function="put_away")
    tree = tree_of(
        *TRAINING[:6],
        Seen((UPDATE, update), 2, "optimizer", "backward"),
        Seen((UPDATE, update), 0, "optimizer", "backward", begins=True),
        Seen((UPDATE, put_away, saved), 38, "", "optimizer"),
    )
    assert extras_of(tree) == {"self.put_away()": pytest.approx(38)}


def test_lines_that_make_the_same_call_are_one_piece_of_extra_work() -> None:
    log = "lightning.pytorch.core.module.LightningModule.log"
    tree = tree_of(
        *(Seen((at(line, "self.log()", callee=log),), ms, "", "forward") for line, ms in ((17, 4), (18, 6)))
    )
    assert extras_of(tree) == {"self.log()": 10.0}
    (whole,) = tree.extras()
    assert whole.frame is not None
    assert whole.frame.line == 18
    assert [round(branch.total_ms) for branch in whole.branches()] == [6, 4]


@pytest.mark.parametrize(
    ("inside", "phase", "whole"),
    [("trace", "forward", 11.0), ("trace", "data", 11.0), ("other", "forward", 6.0)],
    ids=["in the forward", "in the input", "another function of that name"],
)
def test_a_function_called_for_nothing_is_so_in_the_model_too(inside: str, phase: str, whole: float) -> None:
    text = "f'{value}'"
    tree = tree_of(
        Seen((at(36, "trace()"), at(80, text, function="trace", loops=())), 6, "", "forward"),
        Seen((at(22, "net()"), at(60, "trace()", function="run"), at(81, text, function=inside)), 5, phase),
    )
    assert extras_of(tree)["trace()"] == whole
    (extra,) = tree.extras()
    # It records nothing: no part of the backward is its own.
    assert "backward" not in time_of(tree, extra, in_loss=0.5)


@pytest.mark.parametrize(
    ("broken_at", "extra"),
    [
        ((), {"log.debug()": 8.0}),
        ([("/me/train.py", 42)], {}),
        ([("/me/train.py", 43)], {"log.debug()": 8.0}),
    ],
)
def test_where_a_graph_breaks_a_stack_shows_the_call_and_means_what_runs_behind_it(
    broken_at: Sequence[tuple[str, int]], extra: dict[str, float]
) -> None:
    logged = at(42, "log.debug()", function="forward", loops=(), callee="logging.Logger.debug")
    seen = [*TRAINING, Seen((FORWARD, logged), 8, "forward", "data")]
    tree = build_tree(stacks_of(seen), true_ms=78.0, phases_ms={}, broken_at=broken_at)
    assert tree is not None
    assert extras_of(tree) == extra


def test_an_evaluation_does_not_take_the_training_s_forward_along() -> None:
    layer = at(60, "self.layer()", function="run", loops=())
    tree = tree_of(
        Seen((at(22, "run()"), layer), 8, "forward"),
        Seen((at(38, "run()"), layer), 6, "evaluation", "optimizer"),
    )
    assert extras_of(tree) == {"run()": 6.0}


def test_phases_take_their_true_times_and_the_rest_what_is_left() -> None:
    phases = {"data": 10.0, "forward": 20.0, "backward": 30.0, "optimizer": 10.0}
    tree = tree_of(Seen((at(30, "save()"),), 40, "", "optimizer"), true_ms=100.0, phases_ms=phases)
    assert tree.root.by_phase["data"] == pytest.approx(10.0)
    assert tree.root.by_phase["backward"] == pytest.approx(30.0)
    assert tree.root.by_phase[""] == pytest.approx(30.0)
    assert tree.root.total_ms == pytest.approx(100.0)


def test_a_step_with_something_that_the_others_lack_is_left_out() -> None:
    tree = build_tree(stacks_of(TRAINING, steps=6, longer={3: 20.0}), true_ms=70.0, phases_ms={})
    assert tree is not None
    assert tree.steps == 5


SAVING = at(30, "torch.save()", callee="torch.serialization.save")


def saving(*, at_steps: Sequence[int], ms: float) -> Stacks:
    """Twelve steps, some of which save for so long behind the update."""
    seen = stacks_of((*TRAINING, Seen((SAVING,), 1, "", "optimizer")), steps=12)
    for row, (step, stack) in enumerate(zip(seen.step, seen.stack, strict=True)):
        if seen.frames[seen.stacks[stack][-1]] == SAVING:
            seen.us[row] = int(ms * 1000) if step in at_steps else 0
    whole = sum(each.ms for each in TRAINING)
    seen.step_ms[:] = [whole + (ms if step in at_steps else 0.0) for step in range(12)]
    return seen


def test_what_some_steps_hold_is_divided_by_lines_though_it_takes_nearly_all_of_them() -> None:
    stacks = saving(at_steps=(3, 7, 11), ms=20_000.0)
    usual = build_tree(stacks, true_ms=70.0, phases_ms={})
    assert usual is not None
    assert (usual.steps, usual.extras()) == (9, [])
    rare = build_tree(stacks, true_ms=20_070.0, phases_ms={}, steps="rare")
    assert rare is not None
    assert [branch.frame for branch in rare.extras()] == [SAVING]
    assert rare.extras()[0].total_ms == pytest.approx(20_000.0, rel=0.01)


@pytest.mark.parametrize(("at_steps", "known"), [((3, 9), [SAVING]), ((3,), [])])
def test_a_mean_over_all_steps_is_divided_with_those_that_save_but_for_a_single_one(
    at_steps: tuple[int, ...], known: list[StackFrame]
) -> None:
    tree = build_tree(saving(at_steps=at_steps, ms=300.0), true_ms=120.0, phases_ms={}, steps="all")
    assert tree is not None
    assert [branch.frame for branch in tree.extras()] == known


def test_rare_work_is_priced_by_line() -> None:
    rare = RareWork(
        what="other work", evaluates=False, each_ms=300.0, every=4.0, error_ms=0.0,
        steps=np.zeros(0, dtype=np.bool_),
    )  # fmt: skip
    _, (node,) = rare_nodes(saving(at_steps=(3, 7, 11), ms=300.0), rare, ordinary_ms=70.0)
    assert (node.call, node.line) == ("torch.save()", 30)
    assert node.price_ms == pytest.approx(75.0, rel=0.01)


def acting(stacks: Stacks, *, at_steps: Sequence[int], ms: float) -> Stacks:
    """Some steps in which a model acts for so long without gradients, too."""
    acts = at(40, "policy()", function="play", loops=())
    stacks.frames.append(acts)
    stacks.stacks.append([len(stacks.frames) - 1])
    stacks.phases.append("evaluation")
    for step in at_steps:
        stacks.step.append(step)
        stacks.stack.append(len(stacks.stacks) - 1)
        stacks.phase.append(len(stacks.phases) - 1)
        stacks.after.append(stacks.phases.index("optimizer"))
        stacks.us.append(round(1000 * ms))
        stacks.counts.append(1)
        stacks.step_ms[step] += ms
    return stacks


@pytest.mark.parametrize(
    ("saves_at", "acts_at", "over", "known"),
    [
        ((3, 7), (4, 8), 1, [SAVING]),
        ((3, 7), (4, 8), 2, []),
        ((3,), (4, 8), 1, []),
        ((3, 7), (3, 7), 1, []),
        ((3, 7), (), 1, []),
        ((3, 11), (5, 6), 2, []),
    ],
    ids=["other steps", "the steps before", "one of them", "the same steps", "no pass seen", "the last step"],
)
def test_long_steps_without_the_rare_pass_belong_to_the_ordinary_step(
    saves_at: tuple[int, ...], acts_at: tuple[int, ...], over: int, known: list[StackFrame]
) -> None:
    stacks = acting(saving(at_steps=saves_at, ms=300.0), at_steps=acts_at, ms=200.0)
    tree = build_tree(stacks, true_ms=120.0, phases_ms={}, evaluation=over)
    assert tree is not None
    assert [branch.frame for branch in tree.extras()] == known


def acts_for(ms: float, *, over: int = 1) -> RareWork:
    return RareWork(
        what="forward passes", evaluates=False, each_ms=ms, every=4.0, error_ms=0.0, covers=over,
        steps=np.zeros(0, dtype=np.bool_), ungraded=True,
    )  # fmt: skip


def test_the_steps_of_a_rare_pass_are_told_without_other_long_ones() -> None:
    stacks = acting(saving(at_steps=(3, 7), ms=300.0), at_steps=(4, 8), ms=200.0)
    rare, nodes = rare_nodes(stacks, acts_for(200.0), ordinary_ms=120.0)
    assert "torch.save()" not in [node.call for node in nodes] and not rare.beside


@pytest.mark.parametrize(
    ("simulated_ms", "what"), [(300.0, "other work"), (75.0, "other work"), (1.0, "forward passes")]
)
def test_where_a_model_acts_the_rare_work_is_what_takes_most_of_it(simulated_ms: float, what: str) -> None:
    """However long the steps are that hold none of it, here 70 ms."""
    stacks = acting(saving(at_steps=(3, 7, 11), ms=simulated_ms), at_steps=(3, 7, 11), ms=20.0)
    rare = RareWork(
        what="forward passes", evaluates=False, each_ms=simulated_ms + 20.0, every=4.0, error_ms=0.0,
        steps=np.zeros(0, dtype=np.bool_),
    )  # fmt: skip
    assert rare_nodes(stacks, rare, ordinary_ms=70.0)[0].what == what


_VALIDATES, _VALIDATION = at(32, "validate()"), (*LOOP, (70, 76))


def evaluated(
    evaluating: tuple[StackFrame, ...], others: tuple[StackFrame, ...], *, beside: int
) -> tuple[RareWork, tuple[CodeNode, ...]]:
    """Every fourth step takes 100 ms more, so many of them beside the model."""
    more = (Seen(evaluating, 100 - beside, "evaluation", "optimizer"), Seen(others, beside, "", "evaluation"))
    stacks = stacks_of((*TRAINING, *more), steps=12)
    added = {stacks.stacks.index([stacks.frames.index(frame) for frame in each.frames]) for each in more}
    for row, step in enumerate(stacks.step):
        if stacks.stack[row] in added and step not in (3, 7, 11):
            stacks.us[row] = stacks.counts[row] = 0
    stacks.step_ms[:] = [170.0 if step in (3, 7, 11) else 70.0 for step in range(12)]
    rare = RareWork(
        what="evaluation", evaluates=True, each_ms=100.0, every=4.0, error_ms=0.0,
        computes_ms=100.0 - beside, steps=np.zeros(12, dtype=np.bool_),
    )  # fmt: skip
    return rare_nodes(stacks, rare, ordinary_ms=70.0)


@pytest.mark.parametrize(
    ("evaluating", "others", "what"),
    [
        ((_VALIDATES, at(71, "model()", function="validate", loops=())),
         (_VALIDATES, at(74, "metrics()", function="validate", loops=())), "evaluation"),
        ((at(71, "model()", loops=_VALIDATION),), (at(74, "metrics()", loops=_VALIDATION),), "evaluation"),
        ((_VALIDATES, at(71, "model()", function="validate", loops=())), (at(34, "callbacks()"),),
         "other work"),
        ((at(71, "model()", loops=_VALIDATION),), (at(34, "callbacks()"),), "other work"),
    ],
    ids=["metrics of its function", "metrics in its loop", "beside its function", "beside its loop"],
)  # fmt: skip
def test_a_rare_evaluation_is_one_with_all_that_belongs_to_it(
    evaluating: tuple[StackFrame, ...], others: tuple[StackFrame, ...], what: str
) -> None:
    found, nodes = evaluated(evaluating, others, beside=70)
    assert found.what == what and found.beside == ""
    assert [node.call for node in nodes[:1]] == (["callbacks()"] if what == "other work" else [])
    assert ("in the model" in found.note) == (what == "evaluation")


def test_what_is_done_beside_an_evaluation_is_told_with_it() -> None:
    validating = (_VALIDATES, at(71, "model()", function="validate", loops=()))
    found, _ = evaluated(validating, (at(34, "callbacks()"),), beside=30)
    assert (found.what, found.beside) == ("evaluation", "callbacks()")
    assert found.beside_ms == pytest.approx(30.0, rel=0.05)
    assert "in the model and 3" in found.note and "ms in `callbacks()` beside it)" in found.note
    alone, _ = evaluated(
        validating, (_VALIDATES, at(74, "metrics()", function="validate", loops=())), beside=30
    )
    assert alone.beside == "" and "beside" not in alone.note


@pytest.mark.parametrize(("beside", "line"), [(70, 74), (30, None)], ids=["metrics", "the model"])
def test_an_evaluation_stands_where_most_of_its_time_goes(beside: int, line: int | None) -> None:
    metrics = (_VALIDATES, at(74, "metrics()", function="validate", loops=()))
    found, nodes = evaluated(
        (_VALIDATES, at(71, "model()", function="validate", loops=())), metrics, beside=beside
    )
    assert (found.what, nodes) == ("evaluation", ())
    assert (found.site.line if found.site is not None else None) == line


def test_what_makes_the_input_of_many_steps_is_named_by_its_line_and_not_by_a_small_extra_of_these() -> None:
    stacks = saving(at_steps=(3, 7, 11), ms=1.0)
    stacks.frames.append(at(140, "walkers.step()", function="collect", loops=()))
    stacks.stacks.append([len(stacks.frames) - 1])
    for step in (3, 7, 11):
        stacks.step.append(step)
        stacks.stack.append(len(stacks.stacks) - 1)
        stacks.phase.append(stacks.phases.index("data"))
        stacks.after.append(stacks.phases.index("data"))
        stacks.us.append(300_000)
        stacks.counts.append(1)
        stacks.step_ms[step] += 300.0
    elsewhere = SourceSite(file="/me/train.py", line=115, function="estimate")
    rare = RareWork(
        what="forward passes", evaluates=False, each_ms=301.0, every=4.0, error_ms=0.0,
        steps=np.zeros(0, dtype=np.bool_), site=elsewhere,
    )  # fmt: skip
    found, _ = rare_nodes(stacks, rare, ordinary_ms=70.0)
    assert (found.what, found.site and found.site.line) == ("forward passes", 140)


_LAUNCHES_FROM = {"forward": 0.0, "backward": 5000.0, "optimizer": 10_000.0}
_AHEAD = 20_000.0


@pytest.mark.parametrize("place", ["first in the step", "last in the step", "in the forward"])
def test_extra_work_on_a_gpu_costs_its_time_wherever_it_stands_and_none_of_the_forward_s(
    place: str,
) -> None:
    """20 ms of Python in steps of 33; in the forward they are the model's, and a small extra stays small."""
    writer, step_us = TraceWriter(), 33_000.0
    edges = [k * step_us for k in range(8)]
    writer.steps(edges)
    in_forward = place == "in the forward"
    for edge in edges[:-1]:
        begins = edge + (_AHEAD if place == "first in the step" else 100.0)
        for phase, at_us in _LAUNCHES_FROM.items():
            until = begins + at_us + (_AHEAD if in_forward and phase != "forward" else 0.0)
            longer = _AHEAD if in_forward and phase == "forward" else 0.0
            writer.row(phase, "user_annotation", until, (2000.0 if phase == "optimizer" else 5000.0) + longer)
            for i in range(9 if phase == "optimizer" else 24):
                t = until + 10 + i * 200 + (longer if i >= 12 else 0.0)
                writer.row("aten::add", "cpu_op", t, 190)
                writer.launch(t + 20, 10, start=t + 40, length=50)
    extra_ms = 0.4 if in_forward else 20.0
    seen = (
        Seen((FORWARD,), 25 if in_forward else 5, "forward", "optimizer"),
        Seen((FORWARD,), 0, "forward", "optimizer", begins=True),
        Seen((BACKWARD,), 5, "backward", "forward"),
        Seen((BACKWARD,), 0, "backward", "forward", begins=True),
        Seen((UPDATE,), 2, "optimizer", "backward"),
        Seen((UPDATE,), 0, "optimizer", "backward", begins=True),
        Seen((at(30, "tracker.update()"),), extra_ms, "", "optimizer"),
    )
    trace = writer.build()
    found = read(trace, find_steps(trace), true_ms=step_us / 1e3, stacks=stacks_of(seen, steps=7))
    assert found.what_ifs[WhatIf.HOST_WORK_GONE].saves_ms == pytest.approx(20.5, abs=1.0)
    (node,) = found.extras
    assert node.price_ms is not None
    if in_forward:
        assert node.price_ms < 2.0
    else:
        assert node.price_ms == pytest.approx(20.5, abs=0.5)


def test_without_samples_there_is_no_tree() -> None:
    assert build_tree(Stacks(), true_ms=10.0, phases_ms={}) is None


def program_ms(**phases: float) -> Replay:
    names = ("", *phases)
    work = np.zeros((len(names), len(Work)))
    work[0, Work.HOST] = 45e6
    for k, ms in enumerate(phases.values(), start=1):
        work[k, Work.MATH] = ms * 1e6
    none = np.zeros((len(names), 0))
    return Replay(host_program(names, work, seam_work=none, host_work=HostWork(
        edges=np.asarray([0, 1]), work=np.asarray([0], dtype=np.int8), group=np.asarray([-1], dtype=np.int16),
    )))  # fmt: skip


def test_a_branch_is_priced_by_the_step_without_it_and_never_beyond_its_phase() -> None:
    tree = tree_of(Seen((at(30, "save()"),), 40, "", "optimizer"))
    replay = program_ms(data=5.0, forward=20.0, backward=30.0, optimizer=10.0)
    asker = Asker(replay, Edit(), true_ms=110.0)

    def price(branch, in_loss=None):
        return 110.0 - asker.step_ms(without(replay.program, tree, branch, in_loss=in_loss))

    by_call = {branch.call: branch for branch in tree.root.branches()}
    assert price(by_call["save()"]) == pytest.approx(40.0)
    assert price(by_call["optimizer.step()"]) == pytest.approx(10.0)
    assert price(by_call["model()"]) == pytest.approx(20.0)
    # What records the graph takes its part of the backward along.
    assert price(by_call["model()"], 0.2) == pytest.approx(20.0 + 0.8 * 30.0)
    assert price(by_call["cross_entropy()"], 0.2) == pytest.approx(5.0 + 0.2 * 30.0)

    by_call["save()"].ms = {("", "extra"): 400.0}
    assert price(by_call["save()"]) <= 45.0 + 1e-6


def test_nodes_have_names_prices_and_no_crumbs() -> None:
    crumbs = [Seen((at(31 + k, f"crumb_{k}()"),), 0.4, "", "optimizer") for k in range(9)]
    tree = tree_of(Seen((at(30, "save()"),), 40, "", "optimizer"), *crumbs)
    total = tree.root.total_ms
    found = code_tree(tree, true_ms=total, price=lambda branch: (branch.total_ms, False))
    assert found.ms == total
    names = [node.name for node in found.children]
    assert names[0] == "save()"
    assert not any(name.startswith("crumb") for name in names)
    extra = extra_nodes(tree, true_ms=total, price=lambda branch: None)
    assert [(node.name, node.price_ms) for node in extra] == [("save()", None)]


def test_what_sums_up_an_expression_has_the_name_of_what_the_expression_calls() -> None:
    inner = at(30, "play()", function="<genexpr>"), at(60, "act()", function="play", loops=())
    play = (at(30, "sum()"), *inner)
    (found,) = extra_nodes(tree_of(Seen(play, 40, "", "optimizer")), true_ms=100.0, price=lambda branch: None)
    assert (found.name, found.line, found.function) == ("play()", 30, "main")
    assert [child.name for child in found.children] == ["act()"]


def test_on_a_gpu_input_costs_its_share_of_what_ready_batches_save_and_a_copy_has_no_part_in_it() -> None:
    made = [Seen((at(12, f"make_{k}()"),), ms, "", "optimizer") for k, ms in enumerate((30.0, 10.0))]
    tree = tree_of(*made, Seen((at(13, "x.to()"),), 40, "h2d", "optimizer"))
    before = tree.root.ms["", "input"] + tree.root.ms["data", "input"]
    of = {branch.call: branch for branch in tree.root.branches()}
    price = share_of(tree, {"input": 8.0})
    assert price(of["make_0()"]) == (pytest.approx(8.0 * of["make_0()"].total_ms / before), True)
    assert price(of["x.to()"]) is None
    assert price(of["model()"]) is None
    assert share_of(tree, {"extra": 8.0})(of["make_0()"]) is None


def test_a_call_before_the_forward_whose_value_is_thrown_away_makes_no_batch() -> None:
    call = Seen((at(12, "model.train()", discards=True),), 20, "", "optimizer")
    assert extras_of(tree_of(call)) == {}, "where a loader's batch may be what it changes in place"
    tree = without_loader(call)
    assert extras_of(tree) == {"model.train()": 20.0}
    inside = (at(12, "next(batches)"), at(40, "shuffle(rows)", function="batches", discards=True))
    assert extras_of(without_loader(Seen(inside, 20, "", "optimizer"))) == {}, "a part of making one"
    assert (tree.own_input_ms(), tree.own_input_share) == (0.0, 0.0)


def test_where_no_step_fetches_a_batch_what_makes_it_has_the_price_of_the_hosts_time() -> None:
    tree = without_loader(Seen((at(12, "memory.sample()"),), 20, "", "optimizer"))
    call = next(branch for branch in tree.root.branches() if branch.call == "memory.sample()")
    assert (call.role, extras_of(tree)) == ("input", {})
    asked = []

    def without_ms(host_ms: float, _phase: str) -> float:
        asked.append(host_ms)
        return 0.9 * host_ms

    assert share_of(tree, {"extra": 5.0}, without_ms)(call) == (pytest.approx(18.0), True)
    assert asked == [pytest.approx(20.0)]
    # The host waits there for what it has launched.
    assert share_of(tree, {"extra": 5.0}, lambda host_ms, _: 0.1 * host_ms)(call) is None
    assert share_of(tree, {"extra": 5.0, "input": 10.0}, without_ms)(call) == (pytest.approx(10.0), True)
    assert share_of(tree, {})(call) is None


def test_input_that_the_step_makes_itself_is_no_part_of_what_extra_work_costs() -> None:
    batch = Seen((at(12, "memory.sample()"),), 30, "", "optimizer")
    tree = without_loader(batch, Seen((at(30, "log()", discards=True),), 10, "", "optimizer"))
    (log,) = tree.extras()
    assert share_of(tree, {"extra": 36.0})(log) == (pytest.approx(9.0), True)
    assert share_of(tree, {"extra": 9.0, "input": 27.0})(log) == (pytest.approx(9.0), True)


@pytest.mark.parametrize(
    ("callee", "price"),
    [("torch._VariableFunctionsClass.tensor", (pytest.approx(0.9 * 12), True)), ("torch.index_copy", None)],
)
def test_on_a_gpu_a_line_of_the_model_that_makes_tensors_of_lists_has_the_price_of_the_hosts_time(
    callee: str, price: tuple[float, bool] | None
) -> None:
    made = at(37, "made()", function="forward", loops=(), callee=callee)
    tree = tree_of(Seen((FORWARD, made), 12, "forward", "data"))
    line = next(branch for branch in tree.root.walk() if branch.call == "made()")
    phases = {"forward": 0.9}
    assert share_of(tree, {}, lambda host_ms, phase: phases[phase] * host_ms)(line) == price
    assert share_of(tree, {})(line) is None


def test_a_step_makes_its_batch_by_what_stands_before_the_forward_and_has_a_value() -> None:
    batch = Seen((at(12, "memory.sample()"),), 30, "", "optimizer")
    logs = Seen((at(30, "log()", discards=True),), 10, "", "optimizer")
    tree = without_loader(batch, logs)
    assert [branch.call for branch in tree.extras()] == ["log()"]
    assert tree.own_input_ms() == pytest.approx(30.0)
    assert tree.own_input_share == pytest.approx(0.75)
    loads = Seen((at(12, "learner.load_state_dict()", discards=True),), 300, "", "optimizer")
    line = without_loader(loads, Seen((at(13, "memory.sample()"),), 90, "", "optimizer")).input_line()
    assert line is not None
    assert line.call == "memory.sample()"


def test_a_line_that_has_a_model_act_makes_no_batch() -> None:
    acts = at(12, "play()")
    draws = Seen((acts, at(60, "multinomial()", function="play", loops=())), 40, "", "optimizer")
    model = Seen((acts, at(61, "policy()", function="play", loops=())), 2, "evaluation", "optimizer")
    assert tree_of(draws, model).own_input_share == 0.0
    assert tree_of(draws).own_input_share == 1.0


def test_a_function_of_the_users_before_the_forward_counts_once() -> None:
    loads = (
        at(12, "school.enter()", discards=True),
        at(56, "learner.load_state_dict()", function="enter", loops=()),
    )
    (enter,) = without_loader(Seen(loads, 20, "", "optimizer")).extras()
    tree = without_loader(Seen(loads, 20, "", "optimizer"))
    assert (enter.call, enter.role, enter.total_ms) == ("school.enter()", "extra", pytest.approx(20.0))
    assert share_of(tree, {"extra": 5.0}, lambda host_ms, _: host_ms)(enter) == (pytest.approx(20.0), True)


def test_on_a_gpu_extra_work_costs_what_the_step_saves_without_its_host_time_where_that_is_more() -> None:
    tree = tree_of(Seen((at(30, "copy()"),), 40, "", "optimizer"))
    (copy,) = tree.extras()
    assert share_of(tree, {"extra": 12.0})(copy) == (pytest.approx(12.0), True)
    assert share_of(tree, {"extra": 12.0}, lambda ms, _: 0.9 * ms)(copy) == (pytest.approx(36.0), True)
    assert share_of(tree, {"extra": 12.0}, lambda *_: 3.0)(copy) == (pytest.approx(12.0), True)


@pytest.mark.parametrize(
    ("works", "costs"), [(0.01, pytest.approx(40.0, rel=0.1)), (1.6, pytest.approx(0.0, abs=0.5))]
)
def test_operators_of_extra_work_are_in_its_price_unless_the_device_hides_them(
    works: float, costs: object
) -> None:
    """20 copies of 2 ms, half of them behind the forward; the device works that long on each phase."""
    writer, at_us, ready_us = TraceWriter(), 0.0, 0.0
    writer.steps([k * 110_000.0 for k in range(4)])
    for phase, us in 3 * PHASES_US:
        if phase == "copies":
            for copy in range(10):
                began = at_us + 2000 * copy
                writer.row("aten::clone", "cpu_op", began, 1990)
                ready_us = max(ready_us, began + 1910)
                writer.launch(began + 1900, 5, start=ready_us, length=10)
                ready_us += 10
        else:
            writer.row(phase, "user_annotation", at_us, us)
            writer.row("aten::mm", "cpu_op", at_us, us - 100)
            ready_us = max(ready_us, at_us + 20)
            writer.launch(at_us + 10, 5, start=ready_us, length=works * us)
            ready_us += works * us
        at_us += us
    trace = writer.build()
    copies = [Seen((at(30, "copy()"),), 20, "", after) for after in ("forward", "optimizer")]
    stacks = stacks_of([*TRAINING, *copies], steps=3)
    extras = read(trace, find_steps(trace), true_ms=110.0, stacks=stacks).extras
    assert [node.name for node in extras] == ["copy()"]
    assert extras[0].price_ms == costs


def test_python_on_the_line_of_forward_backward_or_update_is_its_own() -> None:
    tree = tree_of(
        Seen((FORWARD,), 4, "", "optimizer"),
        Seen((BACKWARD,), 5, "", "backward"),
        Seen((UPDATE,), 6, "", "optimizer"),
    )
    assert tree.extras() == []
    by_role = tree.root.by_role
    assert by_role["input"] == pytest.approx(5 + 4), "what the forward is called with"
    assert by_role["backward"] == pytest.approx(30 + 5)
    assert by_role["update"] == pytest.approx(10 + 6)


def test_a_large_evaluation_is_no_rare_step_and_a_checkpoint_is() -> None:
    every_other = {0: 9.0, 2: 9.0, 4: 9.0}
    tree = build_tree(stacks_of(TRAINING, steps=6, longer=every_other), true_ms=70.0, phases_ms={})
    assert tree is not None
    assert tree.steps == 6


@pytest.mark.parametrize(("checked", "saves_ms"), [(True, 10.0), (False, None), (None, None)])
def test_calls_of_distributions_have_a_price_while_they_check_their_arguments(
    checked: bool | None, saves_ms: float | None
) -> None:
    calls = Seen(
        (at(17, "dist.log_prob()", callee="torch.distributions.normal.log_prob"),), 10, "", "forward"
    )
    stacks = stacks_of([*TRAINING, calls])
    work = np.zeros((1, len(Work)))
    work[0, [Work.DISPATCH, Work.MATH]] = 30e6, 50e6
    recorded = HostWork(
        edges=np.asarray([0, 1]), work=np.zeros(1, dtype=np.int8), group=np.full(1, -1, dtype=np.int16)
    )
    program = host_program(("",), work, seam_work=np.zeros((1, 0)), host_work=recorded)
    settings = {} if checked is None else {"distributions.checked": checked}
    known = Facts(true_ms=80.0, run=Run(settings=settings), stacks=stacks)
    found = Asker(Replay(program), Edit(), true_ms=80.0).ask(shared_questions(program, known)).results
    answer = found.get(WhatIf.DISTRIBUTIONS_UNCHECKED)
    assert (None if answer is None else answer.saves_ms) == (saves_ms and pytest.approx(saves_ms))
    assert answer is None or answer.bound


def test_a_module_called_behind_the_backward_makes_what_stands_above_no_input() -> None:
    """A loss whose parts are modules, and a parameter behind one that is printed after the backward."""
    loss, printed = at(16, "mll()", callee="library.Module.__call__"), at(22, "kernel.lengthscale")
    seen = [
        Seen((at(15, "model()", callee="library.Module.__call__"),), 3, "", "optimizer"),
        Seen((loss,), 0, "forward", "optimizer", begins=True),
        Seen((loss,), 20, "", "forward"),
        *TRAINING[4:6],
        Seen((printed,), 0, "forward", "backward", begins=True),
        *TRAINING[6:],
    ]
    tree = build_tree(stacks_of(seen), true_ms=63.0, phases_ms={})
    assert tree is not None
    assert tree.root.by_role["loss"] == pytest.approx(20.0)
    assert tree.root.by_role["input"] == pytest.approx(3.0), "nothing else told from what makes it"


FETCH = at(10, "loader", callee="torch.utils.data.dataloader._BaseDataLoaderIter.__next__")
READ = at(60, "read()", function="__getitem__", via="torch.utils.data._utils.fetch._MapDatasetFetcher.fetch")
DRAWN = at(5, "np.random.choice()", function="__iter__", via="torch.utils.data.sampler.BatchSampler.__iter__")


class Supplied(NamedTuple):
    supply: InputSupply
    answers: dict[WhatIf, WhatIfResult]
    tree: Tree
    loader: LoaderFacts


def supplied(drawn_ms: float, *, workers: int, made_ms: float = 150.0, fetch: StackFrame = FETCH) -> Supplied:
    """A step of 70 ms without its input, whose fetches take 40 ms, some of them in the sampler."""
    makes = (fetch, READ) if not workers else (fetch,)
    tree = tree_of(
        Seen(makes, 35.0 - drawn_ms, "data", "optimizer"),
        Seen((fetch, DRAWN), drawn_ms, "data", "optimizer"),
    )
    made = Production(
        where="workers" if workers else "main",
        batches=20,
        fetch_ms=[made_ms] * 20,
        rows_share=0.2,
        sites=[SiteTime(site=SourceSite(file="/me/data.py", line=60, function="read"), phase="", count=9)],
    )
    loader = LoaderFacts(
        id=1, cls="DataLoader", num_workers=workers, fetches=20, iterators=1, length=1000, production=made,
        wait_ms=[40.0] * 20, wait_step=list(range(20)),
    )  # fmt: skip
    supply = input_supply([loader], wait_ms=40.0, cores=16, fetching=tree.in_fetches())
    assert supply is not None
    answers = supply_answers(supply, rest_ms=65.0, true_ms=105.0, cores=16, first_cores=16, baseline=None)
    return Supplied(supply, answers, tree, loader)


def test_what_a_sampler_does_in_the_training_process_no_workers_take_over() -> None:
    supply, answers, tree, loader = supplied(30.0, workers=1)
    assert supply.own_ms == pytest.approx(30.0)
    assert supply.main_call is not None and supply.main_call.site.line == 5
    cheaper = answers[WhatIf.PRODUCTION_CHEAPER]
    assert cheaper.saves_ms == pytest.approx(30.0) and "np.random.choice()" in cheaper.basis
    assert cheaper.call == "np.random.choice()"
    assert answers[WhatIf.INPUT_WORKERS].step_ms == pytest.approx(95.0, rel=0.01)
    root = code_tree(tree, true_ms=105.0, price=lambda branch: (branch.total_ms, False), loaders=[loader])
    ms = {node.line: node.ms for node in root.walk() if node.role == "input" and not node.children}
    assert ms == {5: pytest.approx(30.0), 60: pytest.approx(10.0)}


def test_a_sampler_that_takes_little_of_the_wait_is_not_what_the_input_waits_for() -> None:
    supply, answers, *_ = supplied(4.0, workers=1)
    assert supply.own_call is None and supply.own_ms == pytest.approx(4.0)
    assert answers[WhatIf.INPUT_WORKERS].step_ms == pytest.approx(69.0, rel=0.01)


def test_what_a_sampler_does_no_workers_would_take_over_where_there_are_none_yet() -> None:
    supply, answers, *_ = supplied(30.0, workers=0, made_ms=10.0)
    assert supply.own_ms == pytest.approx(30.0)
    assert supply.main_call is not None and supply.main_call.site.line == 5
    assert answers[WhatIf.PRODUCTION_CHEAPER].call == "np.random.choice()"
    assert answers[WhatIf.INPUT_WORKERS].step_ms == pytest.approx(95.0, rel=0.01)
    # What makes the batch is none of it, though it runs in the same process.
    few = supplied(4.0, workers=0, made_ms=31.0)
    assert few.supply.own_ms == pytest.approx(4.0)
    assert few.supply.own_call is None
    assert few.answers[WhatIf.INPUT_WORKERS].step_ms == pytest.approx(69.0, rel=0.01)


def test_a_generator_that_goes_through_the_loader_for_ever_makes_no_batch_itself() -> None:
    endless = at(10, "(yield from loader)", function="endless", loops=[(9, 10)], callee=FETCH.callee)
    supply, answers, *_ = supplied(4.0, workers=0, made_ms=31.0, fetch=endless)
    assert supply.own_ms == pytest.approx(4.0), "the sampler's, not the dataset's"
    assert answers[WhatIf.INPUT_WORKERS].step_ms == pytest.approx(69.0, rel=0.01)


@pytest.mark.parametrize(("workers", "price_ms"), [(1, 36.0), (2, 6.0), (8, 0.0)])
def test_a_line_of_workers_that_keep_up_is_not_what_the_step_waits_for(workers: int, price_ms: float) -> None:
    """All of the 150 ms that a batch takes are spent in it; the rest of the step takes 69 ms."""
    *_, tree, loader = supplied(4.0, workers=workers)
    root = code_tree(tree, true_ms=105.0, price=lambda _: None, loaders=[loader])
    (line,) = [node for node in root.walk() if node.line == 60]
    assert line.ms == pytest.approx(36.0)
    assert line.price_ms == pytest.approx(price_ms)


def test_the_line_that_makes_the_input_is_named_where_no_loader_knows_it() -> None:
    sized = Seen((at(11, "len(loader)"), at(70, "sorted()", function="__len__")), 25, "", "data")
    line = tree_of(sized).input_line()
    assert line is not None and (line.site.line, line.call) == (70, "sorted()")
    waits = tree_of(Seen((FETCH,), 30, "data", "optimizer"))
    assert waits.input_line() is None, "what takes most of it is waiting"


@pytest.mark.parametrize(("workers", "seen", "named"), [(0, 0, True), (0, 9, False), (2, 0, False)])
def test_in_the_training_process_the_step_s_samples_tell_what_makes_a_batch(
    workers: int, seen: int, *, named: bool
) -> None:
    """The loader's own are of the warm-up: they come first where there are enough of them."""
    fetch = at(10, "loader", callee="torch.utils.data.dataloader._BaseDataLoaderIter.__next__")
    item = at(50, "self.tabularize()", function="__getitem__", loops=(), via="torch.utils.data._utils.fetch")
    other = at(51, "self.meta", function="__getitem__", loops=(), via="torch.utils.data._utils.fetch")
    rows = (*TRAINING[1:], Seen((fetch, item), 30, "data", "optimizer"), Seen((fetch, other), 10, "data"))
    site = SourceSite(file="/me/train.py", line=52, function="__getitem__")
    read = SiteTime(site=site, phase="fetch", call="read()", count=seen)
    loader = LoaderFacts(
        id=1, cls="DataLoader", num_workers=workers, fetches=4, wait_ms=[40.0] * 4, wait_step=[0, 1, 2, 3],
        production=Production(where="main", fetch_ms=[40.0], sites=[read] * bool(seen), samples=10),
    )  # fmt: skip
    supply = Facts(true_ms=105.0, loaders=[loader], stacks=stacks_of(rows)).supply
    assert supply is not None
    call = supply.call.call if supply.call is not None else ""
    assert call == ("self.tabularize()" if named else "read()" if seen else "")
    if named:
        assert supply.call_share == pytest.approx(0.75)


def test_a_function_that_makes_most_of_the_input_on_several_lines_is_named() -> None:
    def cuts(line: int, ms: float) -> tuple[Seen, Seen]:
        outer = at(line, "vectorize()")
        inner = at(54, "self.tokenize()", function="txt2vec", loops=())
        deepest = at(50, "findall()", function="tokenize", loops=())
        return (
            Seen((outer, inner, deepest), ms, "", "optimizer"),
            Seen((outer, at(80, "tensor()", function="to_bags", loops=())), 0.7 * ms, "", "optimizer"),
        )

    line = without_loader(*cuts(12, 20.0), *cuts(13, 18.0)).input_line()
    assert line is not None
    assert (line.call, line.site.line, line.total_ms) == ("self.tokenize()", 54, pytest.approx(38.0))


C10D = "torch.distributed.distributed_c10d."


@pytest.mark.parametrize(
    ("line", "name", "phase", "after", "role"),
    [
        (22, "all_reduce", "", "backward", "communication"),
        (17, "all_gather", "", "forward", "communication"),
        (60, "all_reduce", "backward", "forward", "communication"),
        (60, "broadcast", "optimizer", "backward", "communication"),
        (22, "barrier", "", "backward", "extra"),
        (30, "all_reduce", "", "optimizer", "communication"),
        (30, "all_gather_object", "", "optimizer", "extra"),
    ],
)
def test_what_training_sends_between_ranks_is_no_extra_work(
    line: int, name: str, phase: str, after: str, role: str
) -> None:
    sends = at(line, f"dist.{name}()", callee=C10D + name)
    whole = (sends,) if line < 60 else (BACKWARD, sends)
    tree = tree_of(Seen(whole, 40, phase, after))
    assert tree.root.by_role[role] >= 40.0  # type: ignore[index]
    assert tree.sent_ms(phase) == pytest.approx(40.0)
    assert tree.extra_ms(phase) == pytest.approx(0.0), "waiting for other ranks has a place of its own"
    assert extras_of(tree) == ({f"dist.{name}()": 40.0} if role == "extra" else {})


def test_asking_for_the_rank_sends_nothing() -> None:
    tree = tree_of(Seen((at(22, "dist.get_rank()", callee=f"{C10D}get_rank"),), 40, "", "backward"))
    assert (tree.sent_ms(""), tree.extra_ms("")) == (0.0, pytest.approx(40.0))


def test_what_is_sent_to_be_waited_for_later_is_communication_too() -> None:
    sends = at(22, "dist.all_reduce()", callee=f"{C10D}all_reduce")
    tree = tree_of(Seen((sends,), 1, "", "backward"), Seen((at(23, "work.wait()"),), 39, "", "backward"))
    assert (tree.sent_ms(""), extras_of(tree)) == (pytest.approx(40.0), {})
    other = at(23, "process.wait()", callee="subprocess.Popen.wait")
    assert extras_of(tree_of(Seen((other,), 39, "", "backward"))) == {"process.wait()": 39.0}


def test_a_helper_for_gradients_and_for_the_log_is_no_extra_work_where_it_averages_gradients() -> None:
    def average(line: int) -> tuple[StackFrame, ...]:
        inner = at(61, "dist.all_reduce()", function="average", callee=f"{C10D}all_reduce", loops=())
        return at(line, "average()"), inner

    logs = (at(30, "average()"), at(62, "print()", function="average", callee="builtins.print", loops=()))
    tree = tree_of(Seen(average(22), 40, "", "backward"), Seen(logs, 5, "", "optimizer"))
    assert extras_of(tree) == {"average()": 5.0}


def test_what_the_system_did_is_known_by_phase_and_role() -> None:
    stacks = stacks_of(TRAINING, steps=4)
    rows = len(stacks.us)
    counted = msgspec.structs.replace(stacks, faults=[8] * rows, system_us=[4000] * rows)
    tree = build_tree(counted, true_ms=70.0, phases_ms={})
    assert tree is not None
    assert tree.system["backward", "backward"] == (8.0, 4.0), "per step"
    assert tree.system["data", "input"] == (8.0, 4.0)
    assert tree_of().system == {}, "a recording of before"


def test_a_line_with_nearly_all_of_the_step_is_no_way_to_the_loop_if_training_stands_beside_it() -> None:
    """As a batch whose indices are shuffled anew, all of them: what it calls for nothing makes the batch."""
    made = at(12, "get_batch()")
    shuffles = at(40, "random.shuffle()", function="get_batch", callee="random.Random.shuffle", discards=True)
    tree = build_tree(
        stacks_of([*TRAINING[1:], Seen((made, shuffles), 5000, "", "optimizer")]),
        true_ms=5065.0,
        phases_ms={"forward": 20.0, "backward": 30.0, "optimizer": 10.0},
    )
    assert tree is not None
    assert [branch.frame.line for branch in tree.root.branches() if branch.frame is not None][:1] == [12]
    assert not tree.extras()
