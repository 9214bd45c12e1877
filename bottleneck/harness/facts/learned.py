"""What the first events teach about the program: its lines, settings, optimizers and root modules.

In: events of the training thread, as the agent sees them. Out: facts for the store. Lines and
settings are looked at for a number of events, then never again: what they cost must not be in the
steps that are timed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ...model.run import DEFAULT_DEVICE, LAUNCH_BLOCKING, NO_CACHING
from .. import torch_private
from ..events.copied import CopiedBook
from ..lines.loop_lines import LoopLines
from ..lines.sites import SiteBook
from .devices import read_devices, read_host
from .optimizers import OptimizerBook
from .settings import Seen, read_settings
from .tracked import open_runs

if TYPE_CHECKING:
    import torch

    from ...model.run import SiteTime
    from ...runs.store import Store
    from ..windows.phases import PhaseClock

EVENTS = 200
"""Looked at, of all kinds together."""


class Learned:
    """One per process."""

    def __init__(self, clock: PhaseClock) -> None:
        """Know nothing yet; `clock` tells the phase that the loop is in."""
        self.sites = SiteBook()
        self.lines = LoopLines(clock)
        self.optimizers = OptimizerBook()
        self.copied = CopiedBook()
        self.roots: set[type] = set()
        """Classes of modules that the program itself calls."""
        self.submodules = 0
        """Modules below the roots, once facts were read."""
        self._seen = Seen()
        self._looked = 0

    @property
    def looking(self) -> bool:
        """There is still something to be learned from events."""
        return self._looked < EVENTS

    def stop_looking(self) -> None:
        """Learn nothing from events any more."""
        self._looked = EVENTS

    def look(self, phase: str) -> None:
        """Note the user's line under this phase."""
        if self._looked < EVENTS:
            self._looked += 1
            self.sites.note(phase)

    def forward(self, module: torch.nn.Module) -> None:
        """The program calls a module that is to be trained."""
        self.look("forward")
        self.lines.forward()
        self._seen.root_forward(module)

    def without_gradients(self, module: torch.nn.Module, *, fed: bool = False) -> None:
        """The program calls a module while gradients are off: the first such call of a step.

        `fed`: there is a loader by then, whose batches do not come of such calls.
        """
        self.sites.note("evaluation")
        self._seen.ungraded_modes.add(module.training)
        self._seen.without_gradients(module, fed=fed)

    def backward(self, *, is_update: bool) -> None:
        """A backward begins; in a program without optimizers the update follows it."""
        self._seen.updated = True
        self.look("backward")
        if is_update:
            self.lines.update()

    def update(self, optimizer: object) -> None:
        """An optimizer steps."""
        self._seen.updated = True
        self.look("optimizer")
        self.lines.update()
        self.optimizers.met(optimizer)

    def zero_grad(self, set_to_none: object) -> None:
        """Gradients are cleared."""
        self._seen.zero_grad(bool(set_to_none))
        self.look("zero_grad")

    def grad_scaler(self, scaler: object) -> None:
        """A GradScaler steps."""
        self._seen.grad_scaler(scaler)

    def at_cut(self, *, warming_up: bool) -> None:
        """A step has ended; the loop's lines are looked at from the second step of the warm-up on."""
        if warming_up:
            self.lines.at_cut()
            self.lines.begin()
        else:
            self.lines.end()

    def write_settings(self, store: Store) -> None:
        """Record what is in force now: settings, optimizers, machine."""
        store.update(
            settings=read_settings(self._seen, self.optimizers.living()),
            optimizers=self.optimizers.facts(),
            host=read_host(),
            devices=read_devices(),
            tracked=open_runs(),
        )
        roots = self._seen.roots
        self.submodules = sum(sum(1 for _ in root.modules()) - 1 for root in roots)
        self._seen.release()
        if os.environ.get(LAUNCH_BLOCKING) == "1":
            self.sites.naming(LAUNCH_BLOCKING)
        if NO_CACHING in os.environ:
            self.sites.naming(NO_CACHING)
        if torch_private.default_device() is not None:
            self.sites.naming(DEFAULT_DEVICE)
        store.update(gradient_buckets=torch_private.gradient_buckets(roots))

    def entries(self) -> list[SiteTime]:
        """Return the user's lines, by phase and by part of the loop."""
        return [*self.sites.entries(), *self.lines.entries()]
