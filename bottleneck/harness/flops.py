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
import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from torch import profiler

from ..model.run import FlopCount
from .torch_private import operator_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .torch_private import OperatorCall

__all__ = ["COUNTED", "FlopStep", "count_flops"]


_DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::BFloat16": "bfloat16",
    "c10::Half": "float16",
    "c10::complex<float>": "complex64",
}


def _size(shape: Sequence[int]) -> int:
    return math.prod(shape)


def _product(left: Sequence[int], right: Sequence[int]) -> float:
    """(..., m, k) x (..., k, n)."""
    return 2.0 * _size(left) * right[-1]


def _attention(call: OperatorCall, query: int, key: int, value: int) -> float:
    """Two products over the scores; a causal mask leaves half of them."""
    q, k, v = (call.shapes[i] for i in (query, key, value))
    scores = _size(q[:-1]) * k[-2]
    causal = 0.5 if any(v is True for v in call.values) else 1.0
    return 2.0 * scores * (q[-1] + v[-1]) * causal


def _convolution(call: OperatorCall) -> float:
    """Each output element takes one product per weight of its filter."""
    data, weight = call.shapes[0], call.shapes[1]
    stride, padding, dilation, transposed = call.values[3:7]
    if transposed:
        return 2.0 * _size(data) * _size(weight[1:])
    out = 1
    for i, (length, kernel) in enumerate(zip(data[2:], weight[2:], strict=True)):
        step, pad, spread = (v[min(i, len(v) - 1)] for v in (stride, padding, dilation))
        out *= (length + 2 * pad - spread * (kernel - 1) - 1) // step + 1
    return 2.0 * data[0] * out * _size(weight)


def _convolution_backward(call: OperatorCall) -> float:
    """One convolution for the gradient of the data, one for that of the weight."""
    gradient, data, weight = call.shapes[:3]
    transposed, mask = call.values[7], call.values[10]
    once = 2.0 * (
        _size(data) * _size(weight[1:]) if transposed else gradient[0] * _size(gradient[2:]) * _size(weight)
    )
    return once * sum(bool(wanted) for wanted in mask[:2])


COUNTED: dict[str, Callable[[OperatorCall], float]] = {
    "aten::mm": lambda c: _product(c.shapes[0], c.shapes[1]),
    "aten::bmm": lambda c: _product(c.shapes[0], c.shapes[1]),
    "aten::addmm": lambda c: _product(c.shapes[1], c.shapes[2]),
    "aten::_addmm_activation": lambda c: _product(c.shapes[1], c.shapes[2]),
    "aten::baddbmm": lambda c: _product(c.shapes[1], c.shapes[2]),
    "aten::_scaled_mm": lambda c: _product(c.shapes[0], c.shapes[1]),
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    # Backward computes the scores again and four products more: 2.5 times the forward.
    **{
        f"aten::_scaled_dot_product_{name}": lambda c: _attention(c, 0, 1, 2)
        for name in (
            "flash_attention",
            "efficient_attention",
            "cudnn_attention",
            "flash_attention_for_cpu",
        )
    },
    **{
        f"aten::_scaled_dot_product_{name}": lambda c: 2.5 * _attention(c, 1, 2, 3)
        for name in (
            "flash_attention_backward",
            "efficient_attention_backward",
            "cudnn_attention_backward",
            "flash_attention_for_cpu_backward",
        )
    },
}
"""Operator -> its FLOPs. Only leaves: aten::linear and aten::matmul end in one of these."""


def count_flops(calls: Iterable[OperatorCall]) -> tuple[dict[str, float], dict[str, float], int]:
    """Sum the FLOPs of operator calls.

    Returns:
        (FLOPs by dtype of the operands, FLOPs by operator, calls that could not be counted).
    """
    by_dtype: dict[str, float] = defaultdict(float)
    by_operator: dict[str, float] = defaultdict(float)
    lost = 0
    for call in calls:
        rule = COUNTED.get(call.name)
        if rule is None:
            continue
        try:
            flops = rule(call)
        except (IndexError, TypeError, ValueError):
            lost += 1
            continue
        by_operator[call.name.removeprefix("aten::")] += flops
        # The first operand of addmm is the bias; the last that has a shape is always a factor.
        kind = next((d for d, s in zip(call.dtypes, call.shapes, strict=False) if len(s) > 1), "")
        by_dtype[_DTYPES.get(kind, kind.rpartition("::")[2] or "unknown")] += flops
    return dict(by_dtype), dict(by_operator), lost


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
