"""The memory window: the CUDA allocator's history over a few steps, with Python stacks.

In: begin and end at safe points, the rows of the window. Out: the memory artefact, a snapshot pickle as
pytorch.org/memory_viz reads it, with notes beside it; and user lines of synchronising calls, by torch's own
sync debug mode. Like `TraceWindow`, each method notes why it failed and goes on.

The history costs 0 to 8 % of a step without Python stacks and about 25 % with them (H200), which
is why it has a window of its own and the ring is bounded.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ...files import json_of
from ...runs.store import Store, reason_of, write_atomically
from .. import torch_private
from ..facts.memory_notes import NoteBook, notes_path
from .book import WindowBook

RING_ENTRIES = 200_000


class MemoryHistory:
    """The allocator's recording switch, on for one window."""

    @staticmethod
    def why_not() -> str | None:
        """Return why no history can be recorded here, or None if it can."""
        if torch_private.device_kind() == "cpu":
            return "no CUDA device was used"
        if not hasattr(torch.cuda.memory, "_record_memory_history"):
            return f"torch {torch.__version__} has no memory history"
        is_recording = getattr(torch._C, "_cuda_isHistoryEnabled", None)
        if is_recording is not None and is_recording():
            return "the script records its own memory history"
        return None

    @staticmethod
    def start() -> None:
        """Begin to record into a ring of `RING_ENTRIES`."""
        torch.cuda.memory._record_memory_history(
            enabled="all", context="all", stacks="python", max_entries=RING_ENTRIES
        )

    @staticmethod
    def stop(target: Path | None) -> None:
        """Dump the snapshot to `target` (None: drop it) and end the recording."""
        try:
            if target is not None:
                torch.cuda.memory._dump_snapshot(str(target))
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)


class SyncSites:
    """User lines that make the host wait for the device, from `torch.cuda.set_sync_debug_mode`.

    The warnings that this mode makes are taken before the script or its logs can see them.
    """

    def __init__(self, found: Callable[[], None]) -> None:
        """Report each synchronising call by calling `found` on the thread that makes it."""
        self._found = found
        self._catcher: warnings.catch_warnings[Any] | None = None

    def start(self) -> None:
        """Begin to watch."""
        if self._catcher is not None or torch.cuda.get_sync_debug_mode() != 0:
            return
        catcher = warnings.catch_warnings()
        catcher.__enter__()
        self._catcher = catcher
        previous = warnings.showwarning
        warnings.filterwarnings("always", message=".*synchronizing CUDA operation")

        def show(message: Any, category: Any, *rest: Any, **options: Any) -> None:
            if "synchronizing CUDA operation" in str(message):
                self._found()
            elif "Synchronization debug mode is a prototype" not in str(message):
                previous(message, category, *rest, **options)

        warnings.showwarning = show
        torch.cuda.set_sync_debug_mode(1)

    def stop(self) -> None:
        """Put everything back."""
        if self._catcher is None:
            return
        torch.cuda.set_sync_debug_mode(0)
        self._catcher.__exit__(None, None, None)
        self._catcher = None


class MemoryWindow:
    """The allocator's part of a capture."""

    def __init__(
        self, store: Store, book: WindowBook, *, notes: NoteBook, found_sync: Callable[[], None]
    ) -> None:
        """Nothing is attached yet."""
        self._store = store
        self._book = book
        self._notes = notes
        self._history = MemoryHistory()
        self._syncs = SyncSites(found_sync)

    def lack(self, reason: str) -> None:
        """There is no history, and this is why."""
        self._store.artefact("memory", "absent", reason=reason)

    def begin(self) -> bool:
        """Start recording; False if that failed."""
        try:
            self._notes.start()
            self._history.start()
            self._syncs.start()
        except Exception as error:
            self._store.artefact("memory", "failed", reason=reason_of(error))
            self._syncs.stop()
            with contextlib.suppress(Exception):
                self._history.stop(None)
            self._notes.abandon()
            return False
        return True

    def end(self) -> None:
        """Stop recording and write the snapshot and its notes."""
        try:
            self._syncs.stop()
            try:
                target = self._store.path("memory")
            except OSError:
                self._history.stop(None)
                raise
            self._history.stop(target)
            self._notes.rows = self._book.rows
            write_atomically(notes_path(target), json_of(self._notes.stop(ring_entries=RING_ENTRIES)))
            self._store.artefact("memory", "ok", path=target)
        except Exception as error:
            self._notes.abandon()
            self._store.artefact("memory", "failed", reason=reason_of(error))
