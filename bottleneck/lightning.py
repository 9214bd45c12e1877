"""A callback for Lightning: capture a window of the training, log what it waits on, go on training.

    trainer = Trainer(callbacks=[torch_bottleneck.lightning.Bottleneck()])

or no line at all: with `BOTTLENECK=1` in the environment Lightning finds it by itself (an entry point).

In: Lightning's hooks. Out: a run folder, and its verdict and figures in the loggers of the trainer.
Works with `lightning` and with `pytorch_lightning`, whichever the program uses.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from .callback import TrainerCapture, wanted_by_environment

__all__ = ["Bottleneck", "for_lightning", "for_pytorch_lightning"]

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


class _Hooks:
    """What both packages call."""

    def __init__(self, out: str | os.PathLike[str] | None = None, **wishes: Any) -> None:
        """Choose what to capture.

        Args:
            out: the run folder; None: `bottleneck` in the trainer's `default_root_dir`.
            wishes: options of `torch_bottleneck.Harness`, as `steps=8`.
        """
        super().__init__()
        self.capture = TrainerCapture(out, **wishes)
        self._updates = 0

    def on_train_start(self, trainer: Any, _module: Any) -> None:
        """Training begins, after the check of validation."""

        def log(figures: dict[str, float]) -> None:
            for logger in trainer.loggers:
                logger.log_metrics(figures, step=trainer.global_step)

        self._updates = trainer.global_step
        self.capture.begin(trainer.default_root_dir, log)

    def on_train_batch_start(self, _trainer: Any, _module: Any, _batch: Any, _index: int) -> None:
        """A batch is there; the first of a step has begun it when it was waited for."""
        self.capture.step_begins()

    def on_train_batch_end(self, trainer: Any, _module: Any, _outputs: Any, _batch: Any, _index: int) -> None:
        """A batch is done: the step is, if the weights were updated."""
        if trainer.global_step != self._updates:
            self._updates = trainer.global_step
            self.capture.step_ends()

    def on_train_end(self, _trainer: Any, _module: Any) -> None:
        """Training is over."""
        self.capture.end()

    def on_exception(self, _trainer: Any, _module: Any, _exception: BaseException) -> None:
        """Training has failed: keep what there is."""
        self.capture.end()


def _callback(package: str) -> type[Any]:
    base = importlib.import_module(package).Callback
    made = type("Bottleneck", (_Hooks, base), {"__doc__": _Hooks.__init__.__doc__, "__module__": __name__})
    # As the attribute of this name, so that the callback can be pickled.
    globals()["Bottleneck"] = made
    return made


def for_lightning() -> list[Any]:
    """Return the callback for `lightning`, if the environment asks for one (an entry point)."""
    return [_callback(_PACKAGES[0])()] if wanted_by_environment() else []


def for_pytorch_lightning() -> list[Any]:
    """Return the callback for `pytorch_lightning`, if the environment asks for one (an entry point)."""
    return [_callback(_PACKAGES[1])()] if wanted_by_environment() else []


if TYPE_CHECKING:

    class Bottleneck(_Hooks):
        """See `_Hooks`."""


def __getattr__(name: str) -> Any:
    if name != "Bottleneck":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    loaded = [package for package in _PACKAGES if package in sys.modules]
    for package in loaded or _PACKAGES:
        try:
            return _callback(package)
        except ImportError:
            continue
    raise ImportError("torch_bottleneck.lightning needs Lightning: pip install lightning")
