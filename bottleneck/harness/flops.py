"""The flop-counter step: the FLOPs of one step, from the shapes that its operators were called with.

In: one step at the very end of the capture, after all that is timed. Out: `FlopCount` for run.json.

A profiler session of its own, CPU activities only: recording shapes costs a fifth of the step more
than plain tracing, so the trace window goes without, and CUPTI stays off here. Unlike a dispatch
mode (torch.utils.flop_counter) it leaves compiled code alone. Counted are matrix products,
convolutions and fused attention, multiply and add as two operations; what a kernel template of the
compiler computes in their place, a CUDA graph replays, or cuDNN's recurrent layers do, is not seen.
"""

from __future__ import annotations

import contextlib
from typing import Any

from torch import profiler

from ..model.flops import COUNTED, count_flops
from ..model.run import FlopCount
from .torch_private import operator_calls

__all__ = ["FlopStep"]


class FlopStep:
    """One step under the counting session."""

    def __init__(self) -> None:
        self._profile: Any = None
        self.busy = False
        """Inside start or stop: the profiler that begins or ends now is ours."""

    def start(self) -> None:
        """Begin to record operators with their shapes."""
        self._profile = profiler.profile(
            activities=[profiler.ProfilerActivity.CPU], record_shapes=True, acc_events=False
        )
        self.busy = True
        try:
            self._profile.start()
        finally:
            self.busy = False

    def stop(self, step: int) -> FlopCount:
        """End the recording and count.

        Args:
            step: number of the step that was recorded.

        Raises:
            RuntimeError: this torch does not tell the shapes, or a call could not be counted.
        """
        profile, self._profile = self._profile, None
        self.busy = True
        try:
            profile.stop()
        finally:
            self.busy = False
        calls = operator_calls(profile, set(COUNTED))
        if calls is None:
            raise RuntimeError("this torch does not give the shapes of recorded operators")
        by_dtype, by_operator, lost = count_flops(calls)
        if lost:
            raise RuntimeError(f"{lost} calls have shapes that the count does not understand")
        return FlopCount(
            step=step,
            flops=sum(by_operator.values()),
            by_dtype=by_dtype,
            by_operator=by_operator,
            operators=sorted(COUNTED),
        )

    def abandon(self) -> None:
        """Stop after a failure, so that nothing goes on recording."""
        with contextlib.suppress(Exception):
            if self._profile is not None:
                self._profile.stop()
        self._profile = None
