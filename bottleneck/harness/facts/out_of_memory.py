"""What held the memory when an allocation failed: a snapshot taken on the spot.

In: the allocator's own report of the failure, before the exception is raised and the stack unwinds.
Out: `memory/<name>.oom.snapshot.pickle` with its notes, artefact "out-of-memory". Scripts that catch
the error and go on are left alone; of several failures the last of the first `MAX_DUMPS` is kept.

Without a recorded history (failures come when they like) the snapshot has no stacks, but sizes and
addresses; the notes tell whose they are. The fallback, for a torch without an observer, is a snapshot
while the traceback still holds the frames.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch

from ...clocks import epoch_ns
from ...files import json_of
from ...model.run import SourceSite
from ...model.snapshot import FAILURE_SUFFIX, SNAPSHOT_SUFFIX, NotedFailure
from ...runs.store import Store, reason_of, write_atomically
from .. import torch_private
from ..lines.frames import site_in, stack_of
from ..lines.sites import site_of_error
from .memory_notes import NoteBook, notes_path

ARTEFACT = "out-of-memory"
MAX_DUMPS = 3


class FailureWatch:
    """Listens for failed allocations of one process."""

    def __init__(
        self,
        store: Store,
        book: NoteBook,
        where: Callable[[], tuple[str, int, str, int | None]],
    ) -> None:
        """Not attached yet: that would start CUDA in a program that may never use it.

        `where` returns (phase, step, window, training thread) as of now.
        """
        self._store = store
        self._book = book
        self._where = where
        self._target: Path | None = None
        self._dumps = 0
        self._live = False
        self._attached = False
        self._busy = False

    def attach(self) -> None:
        """Listen from now on, if the program has started CUDA; cheap to call again."""
        if self._attached or torch_private.device_kind() == "cpu":
            return
        self._live = True
        # Where this torch offers no observer there is nothing to try a second time.
        self._attached = True
        torch_private.watch_out_of_memory(self._failed)

    def detach(self) -> None:
        """Listen no more; torch has no way to take an observer out again."""
        self._live = False

    def ended(self, error: BaseException | None) -> None:
        """The script ended with an out-of-memory error: take the snapshot if no observer did."""
        if error is None or self._dumps or torch_private.device_kind() == "cpu":
            return
        if type(error).__name__ == "OutOfMemoryError":
            failure = _failure(torch.cuda.current_device(), 0, None, None, self._where())
            self._dump(msgspec.structs.replace(failure, site=site_of_error(error)))

    def _failed(self, device: int, requested: int, limit: int, free: int) -> None:
        """The allocator gives up: called before the exception, on the thread that allocates."""
        if not self._live or self._busy or self._dumps >= MAX_DUMPS:
            return
        self._busy = True
        try:
            self._dump(_failure(device, requested, limit, free, self._where()))
        except Exception as error:
            with contextlib.suppress(Exception):
                self._store.artefact(ARTEFACT, "failed", reason=reason_of(error))
        finally:
            self._busy = False

    def _dump(self, failure: NotedFailure) -> None:
        self._dumps += 1
        if self._target is None:
            plain = self._store.path("memory")
            stem = plain.name.removesuffix(SNAPSHOT_SUFFIX)
            self._target = plain.with_name(stem + FAILURE_SUFFIX)
        notes = self._book.failed(failure)
        torch.cuda.memory._dump_snapshot(str(self._target))
        write_atomically(notes_path(self._target), json_of(notes))
        self._store.artefact(ARTEFACT, "ok", path=self._target)


def _failure(
    device: int,
    requested: int,
    limit: int | None,
    free: int | None,
    where: tuple[str, int, str, int | None],
) -> NotedFailure:
    phase, step, window, thread = where
    return NotedFailure(
        at_us=epoch_ns() // 1000,
        device=device,
        requested_bytes=requested,
        limit_bytes=limit,
        device_free_bytes=free,
        site=_site(thread),
        phase=phase,
        step=step,
        window=window,
    )


def _site(thread: int | None) -> SourceSite | None:
    """The user's line on the training thread: the autograd thread, which may ask, runs no Python."""
    return site_in((stack_of(thread) if thread is not None else []) or stack_of(threading.get_ident()))
