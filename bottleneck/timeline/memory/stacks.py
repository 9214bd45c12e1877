"""What a recorded stack says: the user's line, the phase, and what kind of work asked.

In: a snapshot's stacks, Python frames alone or with C++ frames between them. Out: `StackFacts`, one
row per stack. Names of frames are torch's own, the same from 2.1 to 2.15 unless noted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ...model.run import SourceSite
from ...model.snapshot import Frame, Snapshot

Phase = Literal["", "forward", "backward", "optimizer", "zero_grad", "set-up"]

_LIBRARY = re.compile(
    r"(^|/)(site-packages|dist-packages|python3\.\d+|torchinductor_[^/]*|torch_bottleneck|bottleneck/harness)/"
    r"|^torch/|^<(?!ipython-input)|^$|^\?\?$"
)
_NODE = re.compile(r"\b(\w+Backward\d*|AccumulateGrad)(?:::apply|_apply)")
_OPERATOR = re.compile(r"at::_ops::(\w+)::call")
_LOSS_NAMES = ("cross_entropy", "nll_loss", "log_softmax", "cross_entropy_loss", "nll_loss_nd")
_RECOMPUTES = ("unpack_hook", "recompute_fn", "backward")
"""Of torch/utils/checkpoint.py: on the autograd thread, whose Python stack begins there."""
_MAKES_PARAMETERS = ("reset_parameters", "_apply", "convert", "to_empty", "__init__")


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFacts:
    """One stack."""

    site: SourceSite | None
    """Innermost frame of the user's program."""
    where: str
    """Without one: the library function that asked."""
    phase: Phase
    python: bool
    """Has a frame of Python."""
    cpp: bool
    accumulates: bool
    """Asked for by AccumulateGrad: a gradient."""
    loss: bool
    """Inside a cross-entropy or log-softmax."""
    checkpoint: bool
    """Inside torch.utils.checkpoint."""
    empties_cache: bool
    makes_parameters: bool
    """A module being built, moved or initialised."""


def _is_python(frame: Frame) -> bool:
    return frame.file.endswith((".py", ".ipynb")) or frame.file.startswith("<")


def user_site(frames: tuple[Frame, ...]) -> SourceSite | None:
    """Return the innermost frame that is no library's, or None."""
    for frame in frames:
        if _is_python(frame) and not _LIBRARY.search(frame.file):
            return SourceSite(file=frame.file, line=frame.line, function=frame.name)
    return None


def _phase(frames: tuple[Frame, ...]) -> Phase:
    """Return the innermost phase that the stack passes through.

    An optimizer step with a closure contains forward and backward; recomputation runs a forward
    inside backward, and belongs to backward.
    """
    forward = False
    for frame in frames:
        name, file = frame.name, frame.file
        if name.startswith("torch::autograd::Engine::") or name == "_engine_run_backward":
            return "backward"
        if file.endswith("torch/_tensor.py") and name == "backward":
            return "backward"
        if file.endswith("torch/utils/checkpoint.py") and name in _RECOMPUTES:
            return "backward"
        if "/optim/" in file and name in {"step", "_init_group"}:
            return "forward" if forward else "optimizer"
        if name == "zero_grad":
            return "zero_grad"
        if file.endswith("torch/nn/modules/module.py"):
            if name in {"_call_impl", "_wrapped_call_impl", "__call__"}:
                forward = True
            elif name in {"_apply", "to", "cuda"}:
                return "set-up"
    return "forward" if forward else ""


def _where(frames: tuple[Frame, ...], python: list[Frame]) -> str:
    """Name what asked where no line of the user's did: a node of backward, an operator, a function."""
    for pattern in (_NODE, _OPERATOR):
        for frame in frames:
            found = pattern.search(frame.name)
            if found:
                return found[1]
    return python[0].name if python else ""


def _facts(frames: tuple[Frame, ...]) -> StackFacts:
    python = [frame for frame in frames if _is_python(frame)]
    names = {frame.name for frame in frames}
    site = user_site(frames)
    return StackFacts(
        site=site,
        where="" if site else _where(frames, python),
        phase=_phase(frames),
        python=bool(python),
        cpp=len(python) < len(frames),
        accumulates=any(name.startswith("torch::autograd::AccumulateGrad") for name in names),
        loss=bool(names.intersection(_LOSS_NAMES))
        or any("nll_loss" in name or "log_softmax" in name.lower() for name in names),
        checkpoint=any(frame.file.endswith("torch/utils/checkpoint.py") for frame in python),
        empties_cache="empty_cache" in names or any("::emptyCache" in name for name in names),
        makes_parameters=any(frame.name in _MAKES_PARAMETERS and "/nn/" in frame.file for frame in python),
    )


def read_stacks(snapshot: Snapshot) -> tuple[StackFacts, ...]:
    """Return the facts of every stack, by its number."""
    return tuple(_facts(snapshot.stack_frames(number)) for number in range(len(snapshot.stacks)))
