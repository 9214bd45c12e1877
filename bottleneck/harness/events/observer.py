"""What the hooks tell, and to whom: one method per event of the training program.

In: nothing. Out: the protocol that the agent and its tape both speak.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

__all__ = ["Observer"]


class Observer(Protocol):
    """What the hooks report to. `begin_*` may raise StopRun; a True result means "label this"."""

    def mine(self) -> bool:
        """Whether the calling thread is the training thread (or none is known yet)."""

    def begin_fetch(self, at: int | None = None) -> bool:
        """A batch is about to be fetched; `at` is when, if not now (perf_counter_ns).

        False, here and below: the calling thread is not the training thread, and no end is wanted.
        """

    def end_fetch(self, iterator: object, batch: object) -> None:
        """It is here; None when the fetch raised (StopIteration)."""

    def begin_forward(self, module: torch.nn.Module, at: int | None = None) -> str | None:
        """A root module is about to be called; returns the label, or None for no phase."""

    def begin_backward(self, accumulates: bool, at: int | None = None) -> bool:
        """The autograd engine is about to run, for real; `autograd.grad` accumulates nothing."""

    def end_backward(self) -> None:
        """It has returned or raised."""

    def begin_optimizer(self, optimizer: object) -> None:
        """An optimizer step begins."""

    def end_optimizer(self, optimizer: object) -> None:
        """It has ended."""

    def begin_scaler(self, scaler: object) -> None:
        """A GradScaler step begins."""

    def end_scaler(self, optimizer: object) -> None:
        """It has ended or raised."""

    def begin_zero_grad(self, set_to_none: object, at: int | None = None) -> bool:
        """Gradients are about to be cleared."""

    def begin_label(self, name: str) -> None:
        """The program names a stretch of its own."""

    def end_phase(self) -> None:
        """A forward, a zero_grad or a label has ended."""

    def built_optimizer(self, optimizer: object) -> None:
        """An optimizer was constructed."""

    def foreign_profiler(self, *, active: bool) -> None:
        """The script's own profiler begins or ends."""

    def own_profiler_busy(self) -> bool:
        """The profiler that begins or ends now is ours."""

    def begin_copy(self) -> None:
        """A copy from host to device begins."""
