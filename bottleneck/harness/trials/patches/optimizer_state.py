"""What an optimizer's implementations do not agree on, kept to be put back.

In: an optimizer. Out: its switches as they were, and its counts of steps where they were: fused
implementations want them on the device, the others on the host. What was counted meanwhile stays.
"""

from __future__ import annotations

from typing import Any

import torch

SWITCHES = ("fused", "foreach", "capturable")
MARKS = ("_step_supports_amp_scaling", "_need_device_dtype_check_for_fused", "_opt_called")
"""What constructors note of a fused optimizer on the optimizer itself, and schedulers of its steps."""
_ABSENT = object()


class OptimizerState:
    """One optimizer as it was before another implementation took over."""

    def __init__(self, optimizer: Any) -> None:
        """Keep what is there now."""
        self._optimizer = optimizer
        self._groups = [
            (group, {name: group[name] for name in SWITCHES if name in group})
            for group in optimizer.param_groups
        ]
        self._marks = {name: vars(optimizer).get(name, _ABSENT) for name in MARKS}
        self._steps = {
            parameter: state["step"]
            for parameter, state in optimizer.state.items()
            if isinstance(state.get("step"), torch.Tensor)
        }

    def place_steps(self, *, fused: bool) -> None:
        """Put the counts of steps where the implementation wants them, unless they are there."""
        for group, _switches in self._groups:
            on_device = fused or group.get("capturable")
            for parameter in group["params"]:
                step = self._steps.get(parameter)
                if step is not None:
                    dtype = torch.float32 if fused else step.dtype
                    moved = step.to(parameter.device if on_device else "cpu", dtype)
                    self._optimizer.state[parameter]["step"] = moved

    def put_back(self) -> None:
        """Have everything as it was, with the steps that were made since."""
        for group, switches in self._groups:
            group.update(switches)
        for name, value in self._marks.items():
            if value is _ABSENT:
                vars(self._optimizer).pop(name, None)
            else:
                vars(self._optimizer)[name] = value
        for group, _switches in self._groups:
            for parameter in group["params"]:
                state = self._optimizer.state.get(parameter, {})
                if isinstance(now := state.get("step"), torch.Tensor):
                    state["step"] = self._step_of(parameter, group, now)

    def _step_of(self, parameter: Any, group: dict[str, Any], now: torch.Tensor) -> torch.Tensor:
        """Return the count in the tensor that held it, or a new one where the first step came meanwhile."""
        before = self._steps.get(parameter)
        if before is not None:
            return before if before is now else before.copy_(now)
        on_device = group.get("fused") or group.get("capturable")
        return now.to(parameter.device if on_device else "cpu")
