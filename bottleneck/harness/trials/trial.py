"""One run of an experiment inside the script's process: patches, seeds, losses.

In: a `Trial`, then the life of the process in four calls: `prepare` before anything is imported,
`install` when torch has just been, `follow` when the agent's hooks are in, `conclude` after the
timed steps. Out: trial.json.
"""

from __future__ import annotations

import contextlib
import random
import sys
import traceback
from typing import TYPE_CHECKING, Any

from ...model.verify import Applied, Trial, TrialFacts
from ...runs.store import reason_of
from ..imports import ImportWatch

if TYPE_CHECKING:
    from ...runs.store import Store
    from ..process.agent import Agent
    from .losses import LossBook
    from .patches.base import Patch

ARTEFACT = "trial"
_NUMPY_SEEDS = 2**32


class TrialRun:
    """What an experiment adds to one process."""

    def __init__(self, trial: Trial, store: Store) -> None:
        self._trial = trial
        self._store = store
        self._patches: list[Patch] = []
        self._failed: dict[str, str] = {}
        """Fix -> why its patch could not be put in."""
        self._book: LossBook | None = None
        self._batches: Any = None
        self._numpy = ImportWatch("numpy", self._seed_numpy)
        self._begun = False
        self._concluded = False

    def prepare(self) -> None:
        """Before the script: seed what is there, and numpy when it comes."""
        random.seed(self._trial.seed)
        self._numpy.install()

    def _seed_numpy(self) -> None:
        with contextlib.suppress(Exception):
            sys.modules["numpy"].random.seed(self._trial.seed % _NUMPY_SEEDS)

    def install(self) -> None:
        """Torch is there and the script has built nothing: seed, record losses, patch."""
        import torch

        from .losses import LossBook
        from .patches import make_patches

        torch.manual_seed(self._trial.seed)
        self._book = LossBook()
        self._book.install()
        if self._trial.seed_batches:
            from .seeded_batches import SeededBatches

            self._batches = SeededBatches()
            self._batches.install()
        self._patches = make_patches(self._trial.wishes)
        self._put_in(after_watches=False)

    def follow(self, agent: Agent) -> None:
        """The agent's hooks are in: what belongs around them, and what to learn from it."""
        self._put_in(after_watches=True)
        if self._book is not None:
            self._book.follow(lambda: agent.capture.measuring)
        agent.at_training(self.training_begins)

    def _put_in(self, *, after_watches: bool) -> None:
        for patch in self._patches:
            if patch.after_watches != after_watches:
                continue
            try:
                patch.install()
            except Exception as error:
                self._failed[patch.fix] = reason_of(error)
                with contextlib.suppress(Exception):
                    patch.uninstall()

    def training_begins(self) -> None:
        """The set-up of the script is over."""
        for patch in self._patches:
            if patch.fix not in self._failed:
                try:
                    patch.training_begins()
                except Exception as error:
                    self._failed[patch.fix] = reason_of(error)

    def conclude(self) -> None:
        """Check the patches and write what is known; after the timed steps, or when the script ended."""
        if self._concluded:
            return
        self._concluded = True
        notes: list[str] = []
        losses: list[float | None] = []
        norms: list[float | None] = []
        dtype = ""
        applied = [self._check(patch) for patch in self._patches]
        if self._book is not None:
            try:
                losses = self._book.losses()
                norms = self._book.norms()
            except Exception as error:
                # After a fault of the device nothing on it can be read any more.
                notes.append(f"losses: {reason_of(error)}")
            notes += self._book.notes
            dtype = self._book.dtype
        facts = TrialFacts(
            applied=applied,
            losses=losses,
            loss_dtype=dtype,
            gradient_norms=norms,
            notes=notes,
        )
        try:
            self._store.write_json(ARTEFACT, facts)
        except Exception:
            self._store.artefact(ARTEFACT, "failed", reason=traceback.format_exc(limit=-2))

    def _check(self, patch: Patch) -> Applied:
        if patch.fix in self._failed:
            return patch.not_applied(self._failed[patch.fix])
        try:
            return patch.check()
        except Exception as error:
            return patch.not_applied(f"could not be checked: {reason_of(error)}")

    def uninstall(self) -> None:
        """Take the patches that lie around the agent's hooks off; `finish` takes the others."""
        self._take_out(after_watches=True)

    def finish(self) -> None:
        """Take everything else off, once the agent's hooks are gone."""
        self._numpy.uninstall()
        self._take_out(after_watches=False)
        for part in (self._batches, self._book):
            if part is not None:
                with contextlib.suppress(Exception):
                    part.uninstall()

    def end_helpers(self) -> None:
        """End what torch would wait for at exit: processes that compile, which may still be coming up."""
        with contextlib.suppress(Exception):
            from .. import torch_private

            torch_private.end_compile_workers()

    def _take_out(self, *, after_watches: bool) -> None:
        for patch in reversed(self._patches):
            if patch.after_watches == after_watches:
                with contextlib.suppress(Exception):
                    patch.uninstall()
