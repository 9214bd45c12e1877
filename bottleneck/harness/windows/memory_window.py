"""The memory window: the allocator's history, notes beside it, and the lines that wait for the device.

In: begin and end at safe points, the rows of the window. Out: the memory artefact. Like
`TraceWindow`, each method notes why it failed and goes on.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ...files import json_of
from ...runs.store import reason_of, write_atomically
from ..facts.memory_notes import notes_path
from .memory import RING_ENTRIES, MemoryHistory, SyncSites

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...runs.store import Store
    from ..facts.memory_notes import NoteBook
    from .book import WindowBook

__all__ = ["MemoryWindow"]


class MemoryWindow:
    """The allocator's part of a capture."""

    def __init__(
        self, store: Store, book: WindowBook, *, notes: NoteBook, found_sync: Callable[[], None]
    ) -> None:
        """Nothing is attached yet.

        Args:
            store: receives the artefact.
            book: holds the rows of the window.
            notes: is open while the window is.
            found_sync: called at each synchronising call in it.
        """
        self._store = store
        self._book = book
        self._notes = notes
        self._history = MemoryHistory()
        self._syncs = SyncSites(found_sync)

    def why_not(self) -> str | None:
        """Return why no history can be recorded here, or None if it can."""
        return self._history.why_not()

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
        self._book.note_overhead(memory_dump_ms=self._history.dump_ms)
