"""What a process tells beside its steps: settings, machine, probes, our own cost, and how steps were found.

In: what the events have taught, once the trace has ended, all windows are over, or the script has
ended. Out: entries of run.json, loader.json and compile.json. Each is guarded by itself: one that
fails becomes its artefact's reason, and the others are still written.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec
import torch

from ...runs.store import reason_of
from . import probes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager
    from typing import Any

    from ...runs.store import Store
    from ..loading.watch import LoaderWatch
    from ..windows.capture import Capture
    from ..windows.tracker import Tracker
    from .compiler import CompileWatch
    from .learned import Learned
    from .own_cost import OwnCost


class FactWriter:
    """One per process."""

    def __init__(self, store: Store, learned: Learned, own_cost: OwnCost) -> None:
        """Begin with nothing written."""
        self.has_settings = False
        """The settings in force were recorded."""
        self._store = store
        self._learned = learned
        self._own_cost = own_cost

    def guarded(self, artefact: str, call: Callable[[], object]) -> None:
        """Call; a failure becomes the artefact's status, and nothing is raised."""
        try:
            call()
        except Exception as error:
            with contextlib.suppress(Exception):
                self._store.artefact(artefact, "failed", reason=reason_of(error))

    def write_settings(self) -> None:
        """Record what is in force now: settings, optimizers, machine; the trace window has ended."""
        self.has_settings = True
        self._learned.write_settings(self._store)
        self._own_cost.submodules = self._learned.submodules

    def write_copied(self, step: int) -> None:
        """Record what is known of the copies to the device, if any were looked at; they no longer are."""

        def write() -> None:
            copied = self._learned.copied.facts(step)
            if copied is not None:
                self._store.update(copied=copied)

        self.guarded("facts", write)

    def probe(
        self,
        tracker: Tracker,
        capture: Capture,
        *,
        as_when_timed: Callable[[Iterable[type]], AbstractContextManager[None]],
        plain_call: Callable[..., Any],
        over: bool,
    ) -> None:
        """Measure this machine, and the hooks through themselves; no event counts any more.

        `as_when_timed` has the hooks as they were while steps were timed, for roots of these classes; `over`:
        the script is stopped after this.
        """
        self.guarded("probes", lambda: probes.measure(self._store, over=over))

        def probe_hooks() -> None:
            self._learned.stop_looking()
            phases = tracker.clock.entered / max(1, tracker.steps)
            with as_when_timed([self._own_cost.MODULE]), torch.enable_grad():
                cost = self._own_cost.per_step_us(phases=phases, original=plain_call)
            capture.note_hook_cost(cost)

        self.guarded("probes", probe_hooks)

    def write_ending(
        self, tracker: Tracker, capture: Capture, *, loaders: LoaderWatch, compiles: CompileWatch
    ) -> None:
        """The script has ended: record what was collected all along."""
        self.guarded("loader", loaders.write)
        self.guarded("compile", compiles.write)
        self.guarded("facts", lambda: self.write_summary(tracker, capture))

    def write_summary(self, tracker: Tracker, capture: Capture) -> None:
        """Record how steps were found, the user's lines, and what the captures cost."""
        self._store.update(
            step_signal=tracker.rule.description,
            step_period=tracker.rule.period,
            sites=self._learned.entries(),
            loops=self._learned.lines.loops(),
            core_wait_share=self._learned.lines.core_wait_share(),
            overhead=msgspec.structs.replace(capture.overhead, total_seconds=capture.spent_ms / 1e3),
        )
