"""The events of a training program, one row each.

In: nothing. Out: the rows that hooks, buffer, account and agent all go by. Most events have a beginning and
an end, and what lies between is a phase of the step; an instant has a beginning alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """One kind of event."""

    name: str
    phase: str | None = None
    """Of the step, empty for what is outside of all; a label brings its own, an instant has none."""
    ends_step: Literal["fetch", "forward", "backward", "zero_grad", "closure", ""] = ""
    """The question to the step rule whether the step ends right before it: a safe point, too."""
    says_subject: bool = False
    """Its beginning says what it is about, beside the time."""
    ends_with: Callable[[Any, Any], Any] | None = None
    """What its end says beside the time: of what it is about, and of what a fetch returned."""
    flushed: Literal["at a cut", "at once"] = "at a cut"
    """While steps are timed; otherwise every event is taken at once."""
    updates: bool = False
    """Its end is an update of the parameters; nothing in it is a safe point, but a call of its closure."""
    follows_update: bool = False
    """It does not lie inside an update: one that seems to be open was left by an exception."""
    hides_calls: bool = False
    """Calls of modules inside it are parts of it."""
    names_thread: bool = False
    """The thread that it is first seen on is the training thread."""


def _source(iterator: object, batch: object) -> tuple[weakref.ref[Any], bool] | None:
    """Where a batch is from, and whether gradients are on; None where there is none."""
    return None if batch is None else (weakref.ref(iterator), torch.is_grad_enabled())


FETCH = Event("fetch", "data", "fetch", ends_with=_source, follows_update=True, hides_calls=True)
"""A loader is asked for a batch. Transforms of torchvision are modules, and no model of the program."""
WORKERS = Event("workers", "data", "fetch", follows_update=True)
"""A loader starts its workers: waiting for data, too, though no batch comes of it."""
FORWARD = Event("forward", "forward", "forward", hides_calls=True)
"""The program calls a module."""
EVALUATION = Event("evaluation", "evaluation", "forward", hides_calls=True)
"""It does so without gradients."""
BACKWARD = Event("backward", "backward", "backward", says_subject=True, hides_calls=True, names_thread=True)
"""The autograd engine runs; about whether gradients accumulate, which those of `autograd.grad` do not."""
OPTIMIZER = Event(
    "optimizer", "optimizer", ends_with=lambda optimizer, _: id(optimizer), updates=True, names_thread=True
)
CLOSURE = Event("closure", "", "closure")
"""The optimizer calls the training code that its step was given (Lightning, LBFGS): no update itself. A step
may end there where the optimizer does the whole training in one of its own."""
SCALER = Event("scaler", "optimizer", ends_with=lambda pair, _: id(pair[1]), updates=True)
"""`GradScaler.step`; about the scaler and the optimizer."""
ZERO_GRAD = Event("zero_grad", "zero_grad", "zero_grad", follows_update=True)
LABEL = Event("label", says_subject=True)
"""The program names a stretch of its own."""
COPY = Event("copy", "h2d", flushed="at once")
"""A copy from host to device, seen in the trace window only."""
SAVE = Event("save", "checkpoint", flushed="at once")
"""`torch.save`; seen while a whole job is watched, only."""

UPDATE_ELSEWHERE = Event("update elsewhere")
"""An optimizer steps on another thread: in a backward hook on the device's."""
COLLECTED = Event("collected", says_subject=True)
"""Python's garbage collector has run for so many ns."""
OPTIMIZER_BUILT = Event("optimizer built", flushed="at once")
MODEL_WRAPPED = Event("model wrapped", flushed="at once")
"""A model is put into DistributedDataParallel."""
ANOMALIES = Event("anomalies looked for", flushed="at once")
"""Anomaly detection is switched on, for the first time."""
SCRIPT_PROFILER = Event("script profiler", flushed="at once")
"""A profiler begins or ends."""

EVENTS = (
    *(FETCH, WORKERS, FORWARD, EVALUATION, BACKWARD, OPTIMIZER, CLOSURE, SCALER, ZERO_GRAD, LABEL, COPY),
    *(SAVE, UPDATE_ELSEWHERE, COLLECTED, OPTIMIZER_BUILT, MODEL_WRAPPED, ANOMALIES, SCRIPT_PROFILER),
)
