"""The loss of every step and the first gradient norms, recorded without waiting for the device.

In: what is given to each backward, and the optimizers' parameters. Out: numbers, read once at the
end. Between, each is a one-element tensor on its device: cloned, since a replayed CUDA graph
overwrites its outputs, and since a script may change its loss in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import optimizer as optim_module

from ...runs.store import reason_of
from .. import autograd_private
from ..events.replacing import Replacements

_is_compiling = torch.compiler.is_compiling
MAX_LOSSES = 20_000
"""At some 500 bytes each; a run of an experiment is far shorter."""
MAX_NORMS = 64


class LossBook:
    """Losses and gradient norms of one process."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._losses: list[Any] = []
        self._norms: list[Any] = []
        self._replaced = Replacements()
        self._timing: Callable[[], bool] = lambda: False
        self._scaled = False

    def install(self) -> None:
        """Begin to record; before the harness's own hooks, which then lie around ours."""
        owner = autograd_private.engine_owner()
        if owner is None:
            self.notes.append("losses: this torch offers no place to see them")
        else:
            self._replaced.put(*owner, self._make_backward)
        scaler = getattr(torch.amp, "GradScaler", None)
        if scaler is not None:
            self._replaced.put(scaler, "step", self._make_scaler_step)
        self._replaced.hook(optim_module.register_optimizer_step_pre_hook(self._before_step))

    def follow(self, timing: Callable[[], bool]) -> None:
        """Learn from the agent whether the step under way is one that is timed."""
        self._timing = timing

    def uninstall(self) -> None:
        """Put everything back."""
        self._replaced.undo()

    def _make_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        is_real_loss = autograd_private.is_real_loss

        def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not _is_compiling() and kwargs.get("accumulate_grad", False) and is_real_loss(t_outputs):
                self._note(t_outputs)
            return original(t_outputs, *args, **kwargs)

        return _engine_run_backward

    def _note(self, outputs: Any) -> None:
        if len(self._losses) >= MAX_LOSSES or autograd_private.in_backward():
            return
        loss = copy_of_loss(outputs)
        if loss is not None:
            self._losses.append(loss)

    def _make_scaler_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            # Gradients may still carry the scale here, which is no property of the training.
            self._scaled = self._scaled or bool(scaler.is_enabled())
            return original(scaler, *args, **kwargs)

        return step

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Take the norm of all gradients; a few kernels, so never in a timed step."""
        if _is_compiling() or self._timing() or self._scaled or len(self._norms) >= MAX_NORMS:
            return
        try:
            gradients = [
                p.grad.detach()
                for group in optimizer.param_groups
                for p in group["params"]
                if p.grad is not None and not p.grad.is_sparse
            ]
            if gradients:
                norms = torch._foreach_norm(gradients)
                self._norms.append(torch.linalg.vector_norm(torch.stack([n.float() for n in norms])))
        except (RuntimeError, TypeError, NotImplementedError) as error:
            if not any(note.startswith("gradient norms") for note in self.notes):
                self.notes.append(f"gradient norms: {reason_of(error)}")

    # -- at the end ----------------------------------------------------------------------------

    def losses(self) -> list[float | None]:
        """Return the losses, None where not finite. Waits for the device."""
        return read_losses(self._losses)

    @property
    def dtype(self) -> str:
        """Type of the first loss; empty without any."""
        return str(self._losses[0].dtype).removeprefix("torch.") if self._losses else ""

    def norms(self) -> list[float | None]:
        """Return the gradient norms before the timed steps. Waits for the device."""
        return [] if self._scaled else read_losses(self._norms)


def copy_of_loss(outputs: Any) -> Any:
    """Return a copy of the loss that is given to a backward, on its device; None where it is no loss."""
    first = outputs[0] if isinstance(outputs, (tuple, list)) else outputs
    return first.detach().clone() if torch.is_tensor(first) and first.numel() == 1 else None


def read_losses(values: list[Any]) -> list[float | None]:
    """Return one-element tensors as numbers, None where not finite. Waits for their devices."""
    if not values:
        return []
    with torch.no_grad():
        by_device: dict[Any, list[int]] = {}
        for i, value in enumerate(values):
            by_device.setdefault(value.device, []).append(i)
        read: list[float] = [math.nan] * len(values)
        for places in by_device.values():
            joined = torch.stack([values[i].reshape(()).double() for i in places]).cpu().tolist()
            for i, number in zip(places, joined, strict=True):
                read[i] = number
    return [number if math.isfinite(number) else None for number in read]
