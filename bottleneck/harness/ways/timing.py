"""A call, and the other ways to its result, timed in turns on the call's own arguments.

In: an `Instead`. Out: what each takes, forward and backward; None where none gives the same and is faster.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ...clocks import perf_counter_ns
from .. import autograd_private, torch_private
from ..events.replacing import Replacements
from ..lines.functions import tensors_of
from .way import Instead, same

_TURNS = 5
_TURNS_APART = 3
_LONGEST_AHEAD_NS = 100_000_000
_ENOUGH_NS = 1_500_000_000
"""Of turns of one call; one is made in any case."""


@dataclass(frozen=True, slots=True)
class Took:
    """What one way took, in ns."""

    ns: int
    on_host_ns: int
    on_device_ns: int
    """As on the host and as the whole, where the two cannot be timed apart."""


@dataclass(frozen=True, slots=True)
class Timed:
    """What one call took, and what the best other way did."""

    own: Took
    other: Took
    way: int
    """Which of the others."""
    calls: int = 1
    """How many calls of the script either stands for."""

    @property
    def saves_ns(self) -> int:
        """What the other way saves, alone or behind other work of the device."""
        own, other = self.own, self.other
        return max(own.ns - other.ns, own.on_device_ns - other.on_device_ns)


def timed(instead: Instead) -> Timed | None:
    """Time all ways in turns, each with its backward where the call has one.

    These are no backward passes of the script's: nobody who watches those sees them.
    """
    owner, engine, unseen = autograd_private.engine_owner(), autograd_private.plain_engine(), Replacements()
    if owner is not None and engine is not None:
        unseen.set(*owner, engine)
    try:
        return _timed(instead)
    finally:
        unseen.undo()


def _timed(instead: Instead) -> Timed | None:
    graded = torch.is_grad_enabled()
    leaves = tuple(
        each.detach().requires_grad_(graded and each.requires_grad and _has_gradients(each))
        for each in instead.inputs
    )
    own = _Runs(instead.own, leaves)
    ways = {k: _Runs(other, leaves) for k, other in enumerate(instead.others) if own.worked}
    ways = {k: way for k, way in ways.items() if way.worked and _agree(instead, own, way)}
    if not ways:
        return None
    begun_ns = perf_counter_ns()
    for turn in range(_TURNS):
        if turn and perf_counter_ns() - begun_ns > _ENOUGH_NS:
            break
        own.run()
        for way in ways.values():
            way.run()
    # A difference that does not show in each turn may be one of the machine; one turn may be disturbed.
    sure = {k for k, way in ways.items() if sorted(way.took_ns)[-2:][0] < min(own.took_ns)}
    apart = _apart(own, ways, sure)
    found = (_compared(instead, own, ways[k], k, turns) for k, turns in apart.items())
    return max(found, key=lambda each: each.saves_ns, default=None)


def _apart(own: _Runs, ways: dict[int, _Runs], sure: set[int]) -> dict[int, list[tuple[int, int, int, int]]]:
    """Time ways in turns behind other work of the device: where a step fills it, the host's part is hidden.

    Returns those that are faster, `sure` among them, with what each turn took, ns: the own way on the host
    and on the device, then the other one. No turns where the two cannot be timed apart.
    """
    found: dict[int, list[tuple[int, int, int, int]]] = {k: [] for k in ways}
    for _ in range(_TURNS_APART):
        mine = own.apart() if found else None
        for k in list(found):
            its = ways[k].apart() if mine is not None else None
            if mine is not None and its is not None:
                found[k].append((*mine, *its))
            if k not in sure and (mine is None or its is None or its[1] >= mine[1]):
                del found[k]
    return found


def _compared(
    instead: Instead, own: _Runs, other: _Runs, way: int, turns: list[tuple[int, int, int, int]]
) -> Timed:
    own_ns, other_ns = min(own.took_ns), min(other.took_ns)
    if not turns:
        return Timed(Took(own_ns, own_ns, own_ns), Took(other_ns, other_ns, other_ns), way, instead.calls)
    own_host, own_device, host, device = (min(each) for each in zip(*turns, strict=True))
    # The host makes the one call for more rounds than were tried.
    host = host * instead.calls // max(instead.calls, instead.rounds)
    return Timed(Took(own_ns, own_host, own_device), Took(other_ns, host, device), way, instead.calls)


@contextlib.contextmanager
def saved_as_usual() -> Iterator[None]:
    """Keep what autograd saves meanwhile from the script's hooks: a checkpoint counts what is saved."""
    with contextlib.ExitStack() as stack:
        # Where torch.func forbids hooks there are none.
        with contextlib.suppress(RuntimeError):
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is))
        yield


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def stands_in(instead: Instead, way: int) -> bool:
    """Return whether a program that gets this other way's result can go on with it as with its own."""
    own, other = instead.own(*instead.inputs), instead.others[way](*instead.inputs)
    pairs = zip(tensors_of(own), tensors_of(other), strict=True)
    return (
        type(own) is type(other)
        and all(a.dtype is b.dtype and a.shape == b.shape for a, b in pairs)
        and instead.alike(own, other)
    )


def _has_gradients(x: torch.Tensor) -> bool:
    return bool(x.is_floating_point() or x.is_complex())


def _agree(instead: Instead, own: _Runs, way: _Runs) -> bool:
    try:
        if not instead.alike(own.out, way.out):
            return False
        # Where the values are compared in a way of their own, what they are the gradients of differs.
        pairs = zip(own.gradients, way.gradients, strict=True) if instead.alike is same else ()
        return all(a is None or b is None or same(a, b) for a, b in pairs)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return False


def _summed(gradient: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    repeated = [axis for axis, step in enumerate(leaf.stride()) if step == 0]
    return gradient.sum(repeated) if repeated else gradient


class _Runs:
    """One way, run again and again; the first time shows whether it works."""

    def __init__(self, function: Callable[..., Any], leaves: tuple[torch.Tensor, ...]) -> None:
        self._function, self._leaves = function, leaves
        self._wanted = [each for each in leaves if each.requires_grad]
        self._ones: list[torch.Tensor] | None = None
        self.out: Any = None
        self._gradients: tuple[torch.Tensor | None, ...] = ()
        self.took_ns: list[int] = []
        try:
            self.run()
            self.worked = True
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
            self.worked = False  # for these arguments
        self.took_ns.clear()

    @property
    def gradients(self) -> list[torch.Tensor | None]:
        """Of what is repeated, as of the one that is."""
        return [
            gradient if gradient is None else _summed(gradient, leaf)
            for gradient, leaf in zip(self._gradients, self._wanted, strict=False)
        ]

    def run(self) -> None:
        torch_private.wait_for_device()
        since_ns = perf_counter_ns()
        self.out = self._once()
        torch_private.wait_for_device()
        self.took_ns.append(perf_counter_ns() - since_ns)

    def apart(self) -> tuple[int, int] | None:
        """Return what it takes on the host and on the device, in ns."""
        ahead_ns = min(_LONGEST_AHEAD_NS, 2 * min(self.took_ns))
        return torch_private.timed_apart(self._once, ahead_ns=ahead_ns)

    def _once(self) -> Any:
        out = self._function(*self._leaves)
        graded = [each for each in tensors_of(out) if each.requires_grad] if self._wanted else []
        if graded:
            if self._ones is None:
                self._ones = [torch.ones_like(each) for each in graded]
            self._gradients = torch.autograd.grad(graded, self._wanted, self._ones, allow_unused=True)
        return out
