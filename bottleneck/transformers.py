"""A callback for the Hugging Face Trainer and what is built on it (TRL): capture, diagnose, train on.

    trainer.add_callback(torch_bottleneck.transformers.Bottleneck(log=trainer.log))

In: the Trainer's events. Out: a run folder; its verdict in the log, its figures in what the trainer
reports to, if `log` is given, and else in the state's `log_history`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from .callback import TrainerCapture

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError("torch_bottleneck.transformers needs it: pip install transformers") from error

__all__ = ["Bottleneck"]


class Bottleneck(TrainerCallback):  # type: ignore[misc]
    """Captures the first steps of a training that are worth it."""

    def __init__(
        self,
        out: str | os.PathLike[str] | None = None,
        *,
        log: Callable[[dict[str, float]], None] | None = None,
        **wishes: Any,
    ) -> None:
        """Choose what to capture.

        Args:
            out: the run folder; None: `bottleneck` in the trainer's `output_dir`.
            log: takes the figures, as `trainer.log`.
            wishes: options of `torch_bottleneck.Harness`, as `steps=8`.
        """
        self.capture = TrainerCapture(out, **wishes)
        self._log = log

    def on_train_begin(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Training begins."""
        log = self._log or (lambda figures: state.log_history.append({**figures, "step": state.global_step}))
        self.capture.begin(args.output_dir, log)

    def on_step_begin(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        """The first batch of a step is there."""
        self.capture.step_begins()

    def on_step_end(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        """The weights were updated."""
        self.capture.step_ends()

    def on_train_end(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        """Training is over."""
        self.capture.end()
