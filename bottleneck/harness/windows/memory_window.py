"""The memory window: the CUDA allocator's history over a few steps, with Python stacks.

In: begin and end at safe points, the rows of the window. Out: the memory artefact, a snapshot pickle as
pytorch.org/memory_viz reads it, with notes beside it; and user lines of synchronising calls, by torch's own
sync debug mode, and of those that empty the cache. Like `TraceWindow`, each method notes why it failed and
goes on.

The history costs 0 to 8 % of a step without Python stacks and about 25 % with them (H200), which
is why it has a window of its own and the ring is bounded. Only what is asked for has a stack. Where an
exception of Python passes through C++, what is freed on its way is recorded, too, and reading a stack
there loses the exception: with context="all" checkpoints without re-entry, which end each recomputation by
one, ended the script with "SystemError: error return without exception set" (torch 2.11).
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
from ..events.replacing import Replacements
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
            enabled="all", context="alloc", stacks="python", max_entries=RING_ENTRIES
        )

    @staticmethod
    def stop(target: Path | None) -> None:
        """Dump the snapshot to `target` (None: drop it) and end the recording."""
        try:
            if target is not None:
                torch.cuda.memory._dump_snapshot(str(target))
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)


class CallSites:
    """User lines that make the host wait for the device, and those that empty the allocator's cache.

    The first are from `torch.cuda.set_sync_debug_mode`: the warnings that this mode makes are taken before
    the script or its logs can see them.
    """

    def __init__(self, found: Callable[[str], None]) -> None:
        """Report each such call by calling `found` on the thread that makes it."""
        self._found = found
        self._replaced = Replacements()
        self._catcher: warnings.catch_warnings[Any] | None = None

    def start(self) -> None:
        """Begin to watch."""
        for owner, name in torch_private.cache_emptiers():
            if owner is torch._C:
                self._replaced.put(owner, name, self._emptying)
        if self._catcher is not None or torch.cuda.get_sync_debug_mode() != 0:
            return
        catcher = warnings.catch_warnings()
        catcher.__enter__()
        self._catcher = catcher
        previous = warnings.showwarning
        warnings.filterwarnings("always", message=".*synchronizing CUDA operation")

        def show(message: Any, category: Any, *rest: Any, **options: Any) -> None:
            if "synchronizing CUDA operation" in str(message):
                self._found("synchronisation")
            elif "Synchronization debug mode is a prototype" not in str(message):
                previous(message, category, *rest, **options)

        warnings.showwarning = show
        torch.cuda.set_sync_debug_mode(1)

    def stop(self) -> None:
        """Put everything back."""
        self._replaced.undo()
        if self._catcher is None:
            return
        torch.cuda.set_sync_debug_mode(0)
        self._catcher.__exit__(None, None, None)
        self._catcher = None

    def _emptying(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def empty(*args: Any, **kwargs: Any) -> Any:
            self._found("empty_cache")
            return original(*args, **kwargs)

        return empty


class MemoryWindow:
    """The allocator's part of a capture."""

    def __init__(
        self, store: Store, book: WindowBook, *, notes: NoteBook, found: Callable[[str], None]
    ) -> None:
        """Nothing is attached yet."""
        self._store = store
        self._book = book
        self._notes = notes
        self._history = MemoryHistory()
        self._calls = CallSites(found)

    def lack(self, reason: str) -> None:
        """There is no history, and this is why."""
        self._store.artefact("memory", "absent", reason=reason)

    def begin(self) -> bool:
        """Start recording; False if that failed."""
        try:
            self._notes.start()
            self._history.start()
            self._calls.start()
        except Exception as error:
            self._store.artefact("memory", "failed", reason=reason_of(error))
            self._calls.stop()
            with contextlib.suppress(Exception):
                self._history.stop(None)
            self._notes.abandon()
            return False
        return True

    def end(self) -> None:
        """Stop recording and write the snapshot and its notes."""
        try:
            self._calls.stop()
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
