"""Ways of loops: a call in each round, where one call could have all rounds.

In: calls, with what is known of the one before at the same place. Out: one call on the arguments of all
rounds, where no round needs what the one before has made; for RNNs, where only their state does.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from statistics import median_high
from typing import Any

import torch

from .. import torch_private
from ..lines.functions import tensors_of
from .way import TIMES_LARGER, Call, Instead, Made, Round, Way, is_plain, same

LOOP = 4
"""Calls; fewer are no loop, but a model that is called more than once (BN507)."""
_AT_ONCE = 64
"""Of more rounds, so many are timed."""
_CHANGES = ("out", "max_norm")
"""What lets a call change something."""


class OneForAll(Way):
    """The arguments of all rounds in one tensor, further along its first axis."""

    callee = "way:rounds"
    shown = "calls in the rounds of a loop"
    functions = (
        "linear", "matmul", "mm", "bmm", "baddbmm", "addmm", "einsum", "conv1d", "conv2d", "conv3d",
        "softmax", "log_softmax", "tanh", "sigmoid", "relu", "gelu", "silu", "softplus", "layer_norm",
        "group_norm", "cat", "add", "sub", "mul", "div", "exp", "log", "sqrt", "pow", "masked_fill",
        "where", "embedding", "cdist", "logsumexp", "sum", "mean", "amax", "max_pool2d", "interpolate",
        "grid_sample", "fft_rfft", "fft_fft", "linalg_solve", "linalg_inv", "linalg_cholesky",
        "scaled_dot_product_attention",
    )  # fmt: skip
    stands_in = False
    in_loop = True

    def instead(self, call: Call, made: Made) -> Instead | None:
        before, tensors = call.before, call.tensors()
        if before is None or before.count < LOOP or len(before.given) != len(tensors):
            return None
        if not is_plain(*tensors) or any(call.kwargs.get(name) is not None for name in _CHANGES):
            return None
        new = [k for k, x in enumerate(tensors) if before.given[k]() is not x]
        if not new or self.forbids(call) or any(not tensors[k].dim() for k in new):
            return None
        rounds = min(before.count, before.together)
        count, width = _at_once(rounds, (tensors[k] for k in new)), len(tensors)
        if count < LOOP:
            return None
        wide = tuple(_repeated(tensors[k], count, 0) for k in new)

        def own(*given: torch.Tensor) -> tuple[Any, ...]:
            return tuple(call.on(*given[:width]) for _ in range(count))

        def other(*given: torch.Tensor) -> Any:
            one = list(given[:width])
            for k, whole in zip(new, given[width:], strict=True):
                one[k] = whole
            return call.on(*one)

        return Instead((*tensors, *wide), own, (other,), alike=_alike, calls=count, rounds=rounds)

    def forbids(self, call: Call) -> bool:
        return call.before is not None and call.before.together < LOOP


def _at_once(rounds: int, tensors: Iterable[torch.Tensor]) -> int:
    """Return for how many rounds there is room for the arguments, results and gradients."""
    each: int = sum(x.nbytes for x in tensors)
    # Half of what is free: the arguments of all rounds are made before it is asked whether both ways fit.
    return min(rounds, _AT_ONCE, torch_private.free_memory() // (2 * TIMES_LARGER) // max(1, each))


def _repeated(x: torch.Tensor, count: int, axis: int) -> torch.Tensor:
    x, graded = x.detach(), x.requires_grad
    whole = torch.stack([x] * count) if x.dim() == 1 else torch.cat([x] * count, axis)
    return whole.requires_grad_(graded)


def _alike(own: Any, other: Any) -> bool:
    """Return whether the results of all rounds are those of the one call, one after the other."""
    return same(torch.cat([each.flatten() for each in tensors_of(own)]), other.flatten())


class WholeSequence(Way):
    """An RNN that takes one time step per call gets all of them, and hands its state on by itself."""

    callee = "way:sequence"
    shown = "an RNN that takes one time step per call"
    functions = (
        "lstm",
        "gru",
        "rnn_tanh",
        "rnn_relu",
        "lstm_cell",
        "gru_cell",
        "rnn_tanh_cell",
        "rnn_relu_cell",
    )
    stands_in = False
    in_loop = True

    def instead(self, call: Call, made: Made) -> Instead | None:
        before, tensors = call.before, call.tensors()
        if before is None or before.count < LOOP or not is_plain(*tensors) or call.kwargs:
            return None
        x, cell = tensors[0], call.name.endswith("_cell")
        states = 2 if call.name.startswith("lstm") else 1
        if (
            self.forbids(call)
            or x.dim() != (2 if cell else 3)
            or not (cell or isinstance(call.args[2], list))
        ):
            return None
        axis = 1 if not cell and call.args[-1] else 0
        count, width = _at_once(before.count, tensors), len(tensors)
        if count < LOOP:
            return None
        whole = torch.stack([x.detach()] * count).requires_grad_(x.requires_grad) if cell else _repeated(
            x, count, axis
        )  # fmt: skip

        def own(x: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
            state, weights = given[:states], given[states : width - 1]
            outs = []
            for _ in range(count):
                out = call.on(x, *state, *weights)
                out = out if isinstance(out, tuple) else (out,)
                outs.append(out[0])
                state = out[-states:]
            return torch.stack(outs) if cell else torch.cat(outs, axis)

        def other(_: torch.Tensor, *given: torch.Tensor) -> Any:
            state, weights = given[:states], given[states : width - 1]
            if not cell:
                return call.on(given[-1], *state, *weights)[0]
            run = getattr(torch, call.name.removesuffix("_cell"))
            first = tuple(each[None] for each in state)
            hx = first if states == 2 else first[0]
            return run(given[-1], hx, list(weights), len(weights) == 4, 1, 0.0, True, False, False)[0]

        return Instead((*tensors, whole), own, (other,), alike=_same_values, calls=count, rounds=before.count)

    def forbids(self, call: Call) -> bool:
        return call.before is not None and call.before.needs(call.tensors()[0])


def _same_values(own: Any, other: Any) -> bool:
    """Return whether values are the same; what they are the gradients of differs."""
    return same(own, other)


_TELLS_PYTHON = {
    "item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__len__", "__contains__",
    "equal", "allclose",
}  # fmt: skip
_WRITES = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__")
_CALLS = 5_000
"""Of a step, that are told apart: each has a bit in a number."""
_NODES = 5_000
"""Of a graph, looked through before a call counts as one that needs the round before."""

Kind = tuple[Any, Hashable]
"""The place of a call, and the sizes of what it is given."""


@dataclass(slots=True)
class _Group:
    """Calls at one place, one after the other, that need none of each other."""

    bits: int = 0
    numbers: set[int] = field(default_factory=set)
    """Of the nodes that they have made, which grow with time."""
    first: int = 0
    """The least of these."""
    is_known: bool = True
    """Each of them has made a node."""
    others: set[int] = field(default_factory=set)
    """Nodes with none of these behind them: they were there before."""

    def add(self, bit: int, number: int | None) -> None:
        """Take a call in."""
        self.bits |= bit
        if number is None:
            self.is_known = False
            return
        self.first = min(self.first, number) if self.numbers else number
        self.numbers.add(number)

    def is_behind(self, x: torch.Tensor) -> bool:
        """Return whether the graph behind a tensor has a node of theirs."""
        nodes: list[Any] = [x.grad_fn]
        left = _NODES
        while nodes:
            node = nodes.pop()
            if node is None or (its := int(node._sequence_nr())) < self.first or its in self.others:
                continue
            left -= 1
            if its in self.numbers or not left:
                self.others.clear()
                return True
            self.others.add(its)
            nodes += [each for each, _ in node.next_functions]
        return False


class Flow:
    """What the calls of one step make from what others have made.

    By the calls themselves, which also sees numbers without gradients, and by the graph, which also sees what
    is made by no function of torch's.
    """

    def __init__(self) -> None:
        self._count = self._told = 0
        self._from: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        """Tensor -> from which calls that may be rounds of a loop, a bit for each of `_count`."""
        self._last: dict[object, tuple[tuple[weakref.ref[torch.Tensor], ...], _Group]] = {}
        """Place -> what its last call was given, and that call by itself."""
        self._groups: defaultdict[Kind, list[_Group]] = defaultdict(list)

    def clear(self) -> None:
        """A step begins, or has ended."""
        # `_told`: the calls whose results the script has looked at: it may do anything with them.
        self._count = self._told = 0
        for known in (self._from, self._last, self._groups):
            known.clear()

    def together(self) -> dict[Kind, int]:
        """Return by kind how many calls in a row needed none of each other; the median."""
        return {
            kind: median_high(group.bits.bit_count() for group in groups)
            for kind, groups in self._groups.items()
        }

    def note(self, name: str, given: tuple[Any, ...], out: Any, kind: Kind | None = None) -> None:
        """A call has been made; its `kind` where it may be a round of a loop."""
        origin = 0
        for each in tensors_of(given):
            origin |= self._origin(each)
        if kind is not None and self._count < _CALLS:
            origin |= self._join(kind, given, origin, _number(tensors_of(out)))
        if not origin:
            return
        if name in _TELLS_PYTHON:
            self._told |= origin
        writes = name.endswith("_") and (not name.endswith("__") or name in _WRITES)
        changed = given[0][:1] if writes else ()
        for each in tensors_of((out, changed)):
            self._from[id(each)] = weakref.ref(each), origin

    def _join(self, kind: Kind, given: tuple[Any, ...], origin: int, number: int | None) -> int:
        """Add a call to those before it of its kind, unless it needs one of them; return its bit."""
        self._count += 1
        bit, groups, call = 1 << self._count, self._groups[kind], _Group()
        if not groups or self._needs(groups[-1], tensors_of(given), origin):
            groups.append(_Group())
        for group in (groups[-1], call):
            group.add(bit, number)
        self._last[kind[0]] = tuple(map(weakref.ref, tensors_of(given))), call
        return bit

    def _needs(self, calls: _Group, given: Iterable[torch.Tensor], origin: int) -> bool:
        """Return whether something is made from what these calls have made, or may be."""
        if not calls.is_known or (self._told | origin) & calls.bits:
            return True
        return any(map(calls.is_behind, given))

    def before(self, place: object, count: int, together: int) -> Round | None:
        """Return what is known of the call before at a place.

        Args:
            place: of the call.
            count: calls of this kind that it makes in a step.
            together: how many of its calls in a row need none of each other.
        """
        if place not in self._last or self._count >= _CALLS:
            return None
        given, call = self._last[place]
        return Round(count, together, given, lambda x: self._needs(call, [x], self._origin(x)))

    def _origin(self, x: torch.Tensor) -> int:
        known = self._from.get(id(x))
        return known[1] if known is not None and known[0]() is x else 0


def _number(made: Iterable[torch.Tensor]) -> int | None:
    """Return the number of the node that made them, which grows with time; None where none did."""
    node = next((each.grad_fn for each in made if each.grad_fn is not None), None)
    return None if node is None else int(node._sequence_nr())
