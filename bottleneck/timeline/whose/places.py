"""What each sampled stack does for the step: input, forward, loss, backward, update, or none of these.

In: `Stacks`. Out: the role of each sample. A phase tells most of it. For what lies outside the phases, the
line does: in the function where a stack parts from those of forward and update, it stands above or below
them. Where no line tells (a trainer's callbacks), the phase that had ended last does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from ...model.stacks import StackFrame, Stacks
from ...model.view import BARRIERS, COLLECTIVES, WAITS, Role

Chain = tuple[StackFrame, ...]
_Place = Literal["before", "loss", "gradients", "update", "after"]
_OF_PHASE: dict[str, Role] = {
    "forward": "forward",
    "backward": "backward",
    "optimizer": "update",
    "zero_grad": "update",
    "h2d": "input",
}
_OF_PLACE: dict[str, Role] = {
    "before": "input", "loss": "loss", "gradients": "extra", "update": "update", "after": "extra",
}  # fmt: skip
HOOKS = ("torch.autograd.graph.", "torch.utils.hooks.")
"""Modules whose functions call hooks of the user's in the backward; those that call code which the
backward itself consists of are others (torch.autograd.function, torch.utils.checkpoint)."""
_SCHEDULERS = "torch.optim."
_OUTSIDE = ("", "evaluation", "forward")
_WHOLE = "torch.distributed.tensor._api.DTensor.full_tensor"
_EXITS = ("__exit__", "__aexit__")
_ASIDE = (
    "gc", "json", "pickle", "csv", "logging", "copy", "shutil", "subprocess", "sqlite3",
    "torch.serialization", "torch.cuda.memory", "torch.utils.tensorboard", "tensorboardX", "wandb",
    "mlflow", "matplotlib", "tqdm", "builtins.print", "lightning.pytorch.core.module.LightningModule.log",
    "pytorch_lightning.core.module.LightningModule.log",
)  # fmt: skip
"""Modules whose functions make neither a batch nor a loss, wherever in the loop they are called."""


def order(here: Chain, there: Chain) -> int:
    """Return -1 where `here` stands above `there` in the function where they part, 1 below, 0 if unknown."""
    for at, (one, other) in enumerate(zip(here, there, strict=False)):
        if (one.file, one.function) != (other.file, other.function):
            return 0
        if one.line != other.line:
            # A block of `with` ends on the line where it began.
            leaves = any(_leaves(below) for below in here[at + 1 : at + 2])
            return 0 if leaves else 1 if one.line > other.line else -1
    return 0


def _leaves(frame: StackFrame) -> bool:
    return frame.function in _EXITS or frame.via.endswith(_EXITS)


def _on_one_line(here: Chain, there: Chain) -> bool:
    """Return whether a stack stands on the line of an anchor: Python around the call itself."""
    return len(here) == len(there) and all(
        (one.file, one.line) == (other.file, other.line) for one, other in zip(here, there, strict=True)
    )


def with_waits(frames: Sequence[StackFrame]) -> list[StackFrame]:
    """Return the frames, with a name for waiting for what was sent with async_op=True, which no stack names.

    That is a `wait()` that is not written in Python, as those of events, threads and processes are.
    """
    return [
        msgspec.structs.replace(frame, callee=WAITS)
        if frame.call.endswith(".wait()") and not frame.callee
        else frame
        for frame in frames
    ]


def with_packages(stacks: Stacks, chains: Sequence[Chain], packages: Sequence[Chain]) -> list[Chain]:
    """Return the chains, those with lines of packages below them that the user's lines cannot tell apart.

    These are the ones below which both backward and update begin: a package has the loop of steps.
    """
    begun: dict[str, set[Chain]] = {"backward": set(), "optimizer": set()}
    for stack, phase, counts in zip(stacks.stack, stacks.phase, stacks.counts, strict=True):
        if not counts and stacks.phases[phase] in begun:
            begun[stacks.phases[phase]].add(chains[stack])
    loops = set.intersection(*begun.values())
    return [chain + below if chain in loops else chain for chain, below in zip(chains, packages, strict=True)]


@dataclass(frozen=True, slots=True)
class _Anchors:
    """Stacks with which phases began."""

    forward: tuple[Chain, ...]
    backward: tuple[Chain, ...]
    update: tuple[Chain, ...]


class Roles:
    """The role of samples, by their stack and phases."""

    def __init__(
        self, stacks: Stacks, chains: Sequence[Chain], *, broken_at: Collection[tuple[str, int]] = ()
    ) -> None:
        """Learn where forward, backward and update stand.

        `broken_at`: lines (file, number) of graph breaks. There a stack shows the call that dynamo gave up
        at, while it runs what dynamo has made of the lines behind.
        """
        self._broken_at = frozenset(broken_at)
        begun: dict[str, dict[Chain, None]] = {}
        clearing: dict[Chain, None] = {}
        for stack, phase, counts in zip(stacks.stack, stacks.phase, stacks.counts, strict=True):
            if not counts:
                begun.setdefault(stacks.phases[phase], {})[chains[stack]] = None
            elif stacks.phases[phase] == "zero_grad":
                clearing[chains[stack]] = None
        self._clearing = tuple(clearing)
        forward, backward, update = (
            tuple(begun.get(name, ())) for name in ("forward", "backward", "optimizer")
        )
        # What is called below every backward, to print what a module holds, is in no loss.
        trains = tuple(one for one in forward if {order(one, there) for there in backward} != {1})
        self._at = _Anchors(trains or forward, backward, update)
        self.training = (*self._at.backward, *self._at.update)
        """Stacks that every loop of the training holds: over steps, over micro-batches."""

    def of(self, chain: Chain, phase: str, after: str) -> Role:
        """Return the role of a sample.

        `phase` is the innermost that was open, empty outside of all; `after` the last that had ended.
        """
        called = chain[-1].callee if chain else ""
        if called.startswith(COLLECTIVES) and phase != "data":
            # What else is sent behind the update may be the weights, as where ranks average their models.
            copies = phase in _OUTSIDE and ("_object" in called or called.startswith(_WHOLE))
            beside = called in BARRIERS or (copies and self._place(chain, after) == "after")
            return "extra" if beside else "communication"
        if phase == "backward" and any(frame.via.startswith(HOOKS) for frame in chain):
            return "extra"
        if phase not in ("", "evaluation", "data", "forward"):
            return _OF_PHASE.get(phase, "extra")
        if phase == "forward" and chain and (chain[-1].file, chain[-1].line) in self._broken_at:
            return "forward"
        if phase != "data" and called.startswith(_ASIDE):
            return "extra"
        if phase == "data":
            return "input"
        if phase == "" and any(_on_one_line(chain, there) for there in (*self._at.update, *self._clearing)):
            return "update"
        if phase == "" and any(_on_one_line(chain, there) for there in self._at.backward):
            return "backward"
        place = self._place(chain, after)
        if phase == "forward":
            # A model that is called behind the update with gradients on trains nothing by it.
            return "extra" if place == "after" and self._is_told(chain) else "forward"
        if phase == "evaluation":
            return "extra" if place == "after" else "no-grad forward"
        return "update" if called.startswith(_SCHEDULERS) else _OF_PLACE[place]

    def _is_told(self, chain: Chain) -> bool:
        return any(order(chain, there) > 0 for there in self._at.update)

    def _place(self, chain: Chain, after: str) -> _Place:
        forward = {order(chain, there) for there in self._at.forward} - {0}
        backward = {order(chain, there) for there in self._at.backward} - {0}
        update = {order(chain, there) for there in self._at.update} - {0}
        if -1 in backward and not self._at.forward:
            # Without a module, what the backward follows is recorded for it.
            return "loss"
        if backward and not self._at.update:
            # No optimizer updates anything: what follows the backward updates by hand.
            return "update" if -1 not in backward else "before" if forward == {-1} else "loss"
        # What a backward follows may train by hand, with no update of an optimizer's.
        if update == {1} and -1 not in backward:
            return "after"
        if forward == {-1}:
            return "before"
        if forward and update:
            return "gradients" if backward == {1} else "loss"
        by_time: dict[str, _Place] = {"optimizer": "after", "backward": "gradients", "forward": "loss"}
        place = by_time.get(after, "before")
        # The line of the forward makes its arguments first.
        return "before" if place == "after" and update == {-1} else place
