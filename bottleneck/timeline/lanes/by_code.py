"""What each part of the user's code costs: the tree of the step, with what the replay says of each.

In: the tree, a program, the replay. Out: `CodeNode`s, and the edit that leaves out a branch. A branch
is host work of the phases that it was sampled in, taken out of each in proportion. Without a GPU, what
records a graph takes its part of the backward along: that of the operators behind the forward for a line
of the loss, that of those in the forward for a line of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from ...model.run import LoaderFacts, Production
from ...model.stacks import Stacks
from ...model.view import MAKES_TENSORS, ONE_CALL, CodeNode, Role
from ..steps.rare import OTHER, RareWork
from ..steps.supply import made_every_ms, sampled_total, training_loader
from ..trace.dialect import Kind
from ..trace.operators import NODE
from ..trace.table import Trace
from ..whose.branch import Branch
from ..whose.tree import LOADER, Tree, build_tree
from .program import Program
from .recompute import recorders
from .replay import Edit

_LEAST_SHARE = 0.01
_MOST_NODES = 200
_MODELS: frozenset[Role] = frozenset({"forward", "loss"})
_HOST_TIMES = frozenset({"", "forward"})
"""Phases in which the host's time is that of the lines that are sampled."""
_GENERATOR = "<genexpr>"

Pricer = Callable[["Branch"], "tuple[float, bool] | None"]
"""Returns what the step saves without a branch, ms, and whether that is a bound; None if unknown."""


def recorded_in_loss(trace: Trace | None) -> float | None:
    """Return the share of the backward that belongs to operators outside the forward; None if not known."""
    if trace is None:
        return None
    nodes = trace.rows(Kind.OP, named=NODE)
    labels = trace.rows(Kind.ANNOTATION, named="forward")
    made = recorders(trace)
    if not made or not len(labels):
        return None
    rows = np.asarray(list(made.values()), dtype=np.intp)
    inside = dict(zip(made, trace.inside(rows, labels).tolist(), strict=True))
    spent = {True: 0, False: 0}
    for number, ns in zip(trace.sequence[nodes].tolist(), trace.dur_ns[nodes].tolist(), strict=True):
        if number in inside:
            spent[inside[number]] += ns
    total = sum(spent.values())
    return spent[False] / total if total else None


def without(program: Program, tree: Tree, branch: Branch, *, in_loss: float | None) -> Edit:
    """Return the edit in which a branch does not run (runs without a GPU).

    `in_loss` is from `recorded_in_loss`; None: the backward stays.
    """
    spent = time_of(tree, branch, in_loss=in_loss)
    gone = np.zeros_like(program.work)
    for k, phase in enumerate(program.phases):
        total = float(program.work[k].sum())
        if total > 0 and phase in spent:
            gone[k] = program.work[k] * min(1.0, spent[phase] * 1e6 / total)
    return Edit(gone=gone)


def time_of(tree: Tree, branch: Branch, *, in_loss: float | None) -> dict[str, float]:
    """Return the time of a branch by phase, with its part of the backward, ms per step; see `without`."""
    spent = dict(branch.by_phase)
    if in_loss is not None:
        shares: dict[Role, float] = {"loss": in_loss, "forward": 1.0 - in_loss}
        backward = tree.root.ms.get(("backward", "backward"), 0.0)
        whole = tree.root.by_role
        for role, ms in branch.by_role.items():
            if role in shares and whole.get(role, 0.0) > 0:
                spent["backward"] = spent.get("backward", 0.0) + backward * shares[role] * ms / whole[role]
    return spent


def share_of(
    tree: Tree, saves_ms: Mapping[Role, float], without_ms: Callable[[float, str], float] | None = None
) -> Pricer:
    """Return what prices extra work and input (runs with a GPU).

    The samples are the host's time, and what a line launches may run long after it. Two replays tell
    something of extra work: the one in which the host spends as much less outside of the phases
    (`without_ms` tells what the step saves then, by ms and phase, empty outside of all), all launches
    remaining, and the one without all that stands between backward and forward, but for the update, of which
    the branch has a share. Each leaves something in, so the greater counts. Input has its share of the step
    with every batch ready; where the steps fetch none and make it themselves, it has the price of the host's
    time: see `input_gone_ms`. What a hook in the backward costs is not known, and copies to the device are no
    production. Calls in the forward that belong to extra work are not in its price. A line of the model that
    makes tensors of lists launches no more than their copy: it has the price of the host's time, too.
    `saves_ms` is of each role of which the replay can tell it.
    """

    def ms_of(branch: Branch, role: Role) -> float:
        return sum(branch.ms.get((phase, role), 0.0) for phase in ("", "evaluation", "data"))

    whole = {role: ms_of(tree.root, role) for role in saves_ms}
    if "extra" in whole and "input" not in whole:
        # The host's time for the input that the step makes itself is gone with it.
        whole["extra"] += tree.own_input_ms()

    def price(branch: Branch) -> tuple[float, bool] | None:
        role = branch.role
        if role in _MODELS and without_ms is not None and MAKES_TENSORS.fullmatch(branch.callee):
            return host_gone_ms(branch, without_ms), True
        mine, whole_ms = ms_of(branch, role), whole.get(role, 0.0)
        elsewhere = branch.total_ms - branch.by_phase.get("forward", 0.0)
        if mine < ONE_CALL * elsewhere:
            return None
        if role == "input" and role not in saves_ms and without_ms is not None:
            return (gone_ms, True) if (gone_ms := input_gone_ms(mine, without_ms)) else None
        if whole_ms <= 0:
            return None
        share_ms = saves_ms[role] * mine / whole_ms
        return max(
            share_ms, without_ms(mine, "") if role == "extra" and without_ms is not None else 0.0
        ), True

    return price


def host_gone_ms(branch: Branch, without_ms: Callable[[float, str], float]) -> float:
    """Return what the step saves without the host's time in a branch of the model or the loss."""
    return sum(without_ms(ms, phase) for phase, ms in branch.by_phase.items() if phase in _HOST_TIMES)


def input_gone_ms(host_ms: float, without_ms: Callable[[float, str], float]) -> float:
    """Return what the step saves without so much of the host's time for its input; 0 where that is not known.

    Where the host waits for what it has launched, its time tells nothing.
    """
    saves = without_ms(host_ms, "")
    return saves if saves >= ONE_CALL * host_ms > 0 else 0.0


def code_tree(tree: Tree, *, true_ms: float, price: Pricer, loaders: Sequence[LoaderFacts] = ()) -> CodeNode:
    """Return the tree for reports, priced, without what is below 1 % of the step.

    The wait for the loader that feeds the training goes on to the lines of its workers.
    """
    left = _Left()
    root = CodeNode(
        name="step",
        role="step",
        ms=true_ms,
        share=1.0,
        samples=tree.root.samples,
        children=_nodes(tree.root.branches(), true_ms, price, left),
        below=_nodes(tree.root.in_packages(), true_ms, price, left.in_packages),
    )
    waits = [node for node in root.walk() if node.callee.startswith(LOADER) and node.role == "input"]
    made = training_loader(loaders)
    if not waits or made is None or made.production is None or made.production.where != "workers":
        return root
    wait = max(waits, key=lambda node: node.ms)
    return _replaced(root, wait, _in_workers(wait, made, made.production, true_ms))


def _replaced(node: CodeNode, old: CodeNode, new: CodeNode) -> CodeNode:
    if node is old:
        return new
    children = tuple(_replaced(child, old, new) for child in node.children)
    return msgspec.structs.replace(node, children=children)


def _in_workers(wait: CodeNode, loader: LoaderFacts, production: Production, true_ms: float) -> CodeNode:
    """Return the wait for a batch with the lines that its workers make it in.

    While the step waits for production, its length is that of production: a line that takes half of it takes
    half of the step, until nothing is waited for. Workers that keep up with the rest of the step have no line
    that it waits for. What the training process itself does stays.
    """
    total = sampled_total(production)
    waited_ms = wait.ms - sum(child.ms for child in wait.told)
    made_ms = made_every_ms(loader) or true_ms
    rest_ms = true_ms - waited_ms

    def saves_ms(share: float) -> float:
        return max(0.0, min(waited_ms, made_ms - max(rest_ms, made_ms * (1.0 - share))))

    children = wait.children + tuple(
        CodeNode(
            name=item.call or item.site.function,
            role="input",
            ms=waited_ms * item.count / total,
            share=waited_ms / wait.ms * wait.share * item.count / total,
            price_ms=saves_ms(item.count / total),
            samples=item.count,
            file=item.site.file,
            line=item.site.line,
            function=item.site.function,
            call=item.call,
            callee=item.callee,
        )
        for item in production.sites
        if item.count >= _LEAST_SHARE * total
    )
    return msgspec.structs.replace(wait, children=children)


def extra_nodes(tree: Tree, *, true_ms: float, price: Pricer) -> tuple[CodeNode, ...]:
    """Return the extra work of the step, the most expensive first, each with what it consists of."""
    left = _Left()
    return tuple(
        _node(branch, true_ms, price, left)
        for branch in tree.extras()
        if branch.total_ms >= _LEAST_SHARE * true_ms
    )


def plain_nodes(
    tree: Tree, *, true_ms: float, saves_ms: Callable[[Branch], float] | None
) -> tuple[CodeNode, ...]:
    """Return the functions below which no operator is called, with what the step saves without them."""
    if saves_ms is None:
        return ()
    left = _Left()
    return tuple(
        _made(
            branch,
            branch,
            true_ms,
            lambda branch: (saves_ms(branch), False),
            children=_nodes(branch.branches(), true_ms, lambda _: None, left),
        )
        for branch in tree.plain
        if branch.total_ms >= _LEAST_SHARE * true_ms
    )


def rare_nodes(
    stacks: Stacks, rare: RareWork, *, ordinary_ms: float
) -> tuple[RareWork, tuple[CodeNode, ...]]:
    """Return the rare work by what it mostly is, and the lines that it consists of, per step.

    An evaluation stays one, by its own lines, unless most of the time goes to what is done beside it.
    """
    usual_ms = rare.covers * ordinary_ms
    tree = build_tree(
        stacks,
        true_ms=(usual_ms + rare.each_ms) / rare.every,
        phases_ms={},
        steps="rare",
        evaluation=rare.ungraded_over,
    )
    if tree is None:
        return rare, ()
    extras = tree.extras()
    whole_ms = tree.root.total_ms - usual_ms / rare.every
    if rare.evaluates:
        aside = bool(extras) and _is_beside(extras[0], extras, tree)
    else:
        # A model may act there, and what its actions meet takes longer; a rollout is left as it is.
        aside = bool(extras) and not (extras[0].evaluates or extras[0].leaves_out)
    aside = aside and 2 * extras[0].total_ms >= whole_ms
    if aside:
        rare = replace(rare, what=OTHER, waits_ms=0.0, computes_ms=0.0)
    elif rare.evaluates:
        named = next((each for each in extras if each.call and _is_beside(each, extras, tree)), None)
        if named is not None:
            rare = replace(rare, beside=named.call, beside_ms=named.total_ms * rare.every)
        if not extras or extras[0].evaluates:
            return rare, ()
    # Also of an evaluation that is no model for most of its time, but draws or counts what that says.
    if (most := tree.root.most(beside_training=True).site_time()) is not None:
        rare = replace(rare, site=most.site)
    if rare.evaluates and not aside:
        return rare, ()
    nodes = extra_nodes(
        tree,
        true_ms=ordinary_ms + rare.ms,
        price=lambda branch: (min(branch.total_ms, rare.ms), False),
    )
    return rare, nodes


def _is_beside(branch: Branch, extras: Sequence[Branch], tree: Tree) -> bool:
    """Return whether a line is no part of an evaluation: it runs none, and is in no loop of one that does.

    Loops in which the training runs, too, are those of steps and epochs.
    """

    def loops(*lines: Branch) -> set[tuple[str, str, tuple[int, int]]]:
        frames = [line.frame for line in lines if line.frame is not None]
        return {(frame.file, frame.function, loop) for frame in frames for loop in frame.loops}

    evaluating = loops(*(each for each in extras if each.runs_ungraded))
    training = loops(*(each for each in tree.root.branches() if each.trains))
    return not branch.runs_ungraded and loops(branch).isdisjoint(evaluating - training)


class _Left:
    """How many nodes may be made yet: lines of packages take none of those of the user's."""

    def __init__(self, *, of_packages: bool = False) -> None:
        self.nodes = _MOST_NODES
        self.in_packages: _Left = self if of_packages else _Left(of_packages=True)


def _nodes(branches: Sequence[Branch], true_ms: float, price: Pricer, left: _Left) -> tuple[CodeNode, ...]:
    out = []
    for branch in branches:
        if branch.total_ms >= _LEAST_SHARE * true_ms and left.nodes > 0:
            left.nodes -= 1
            out.append(_node(branch, true_ms, price, left))
    return tuple(out)


def _node(branch: Branch, true_ms: float, price: Pricer, left: _Left) -> CodeNode:
    named = branch
    for inner in _by_other_names(branch):
        named = inner
    return _made(
        named,
        branch,
        true_ms,
        price,
        children=_nodes(named.branches(), true_ms, price, left),
        below=_nodes(named.in_packages(), true_ms, price, left.in_packages),
    )


def _by_other_names(branch: Branch) -> Iterator[Branch]:
    """Yield a loop's one line, which has the name of both; and of `sum()` what its expression calls."""
    in_loop = False
    while below := branch.branches():
        outer, inner = branch.frame, below[0].frame
        if outer is None or inner is None or outer.file != inner.file:
            return
        if inner.function != _GENERATOR:
            if in_loop or inner.function != outer.function:
                return
            in_loop = True
        if below[0].total_ms < ONE_CALL * branch.total_ms:
            return
        branch = below[0]
        yield branch


def _made(
    named: Branch,
    priced: Branch,
    true_ms: float,
    price: Pricer,
    *,
    children: tuple[CodeNode, ...],
    below: tuple[CodeNode, ...] = (),
) -> CodeNode:
    frame, around = named.frame, priced.frame
    assert frame is not None
    assert around is not None
    found = price(priced)
    return CodeNode(
        name=named.call or frame.function,
        role=priced.role,
        ms=priced.total_ms,
        share=priced.total_ms / true_ms,
        price_ms=None if found is None else found[0],
        bound=found is not None and found[1],
        samples=priced.samples,
        file=frame.file,
        line=frame.line,
        function=around.function,
        call=named.call,
        callee="evaluation" if priced.evaluates else named.callee,
        leaves_out=":".join(priced.leaves_out or ()) if priced.role == "extra" else "",
        in_rounds=priced.is_loop,
        children=children,
        below=below,
        trains=bool(named.below) and named.trains,
    )
