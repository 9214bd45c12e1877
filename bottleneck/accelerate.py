"""A tracker of Accelerate: the training between `init_trackers` and `end_training` is captured and diagnosed.

    tracker = torch_bottleneck.accelerate.Bottleneck(log=lambda figures: accelerator.log(figures))
    accelerator = Accelerator(log_with=[tracker, "tensorboard"])

In: what Accelerate tells its trackers. Out: a run folder; its verdict in the log, its figures wherever `log`
takes them. Ours stands first, so that the others are still open when the training ends.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from .callback import TrainerCapture

try:
    from accelerate import PartialState
    from accelerate.tracking import GeneralTracker
except ImportError as error:
    raise ImportError("torch_bottleneck.accelerate needs it: pip install accelerate") from error

__all__ = ["Bottleneck"]

_log = logging.getLogger("torch_bottleneck")


class Bottleneck(GeneralTracker):  # type: ignore[misc]
    """Captures the first steps of a training that are worth it; a step ends with an update of the weights."""

    name = "bottleneck"
    requires_logging_directory = False

    def __init__(
        self,
        out: str | os.PathLike[str] | None = None,
        *,
        log: Callable[[dict[str, float]], object] = dict,
        **wishes: Any,
    ) -> None:
        """Choose what to capture.

        Args:
            out: the run folder; None: `bottleneck` in the working folder.
            log: takes the figures, once.
            wishes: options of `torch_bottleneck.Harness`, as `steps=8`.
        """
        super().__init__()
        self.capture = TrainerCapture(out, **{"find_steps": True, **wishes})
        self._log = log

    @property
    def tracker(self) -> TrainerCapture:
        """What Accelerate hands out as the tracker itself."""
        return self.capture

    def start(self) -> None:
        """Training begins; Accelerate tells that to the tracker of the main process only."""
        if PartialState().num_processes > 1:
            self.capture.failed = True
            _log.warning(
                "bottleneck: several processes: accelerate launch ... -m torch_bottleneck diagnose train.py"
            )
        self.capture.begin(".", self._log)

    def store_init_configuration(self, _values: dict[str, Any]) -> None:
        """Training begins, where Accelerate has no `start` yet (1.2): give `init_trackers` a config there."""
        self.start()

    def log(self, _values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        """The training logs something: a moment to see how far the capture is."""
        del step
        self.capture.look()

    def finish(self) -> None:
        """Training is over."""
        self.capture.end()
