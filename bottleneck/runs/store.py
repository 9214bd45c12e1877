"""The run folder while it is being written: under a temporary name, renamed when whole.

In: facts of the run as they become known. Out: run.json and its neighbours, always complete on
disk, so that a process killed at any moment leaves what was known at the last window's end.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..clocks import epoch_ns
from ..files import json_of
from ..model.run import Artefact, Run, ScriptOutcome

_PARTIAL = re.compile(r"\.(.+)\.partial")
RAW_RECORDS = ".loader"
"""Sub-folder for what DataLoader workers append to while the run is on; gone when it is whole."""


def partial_name(folder: Path) -> Path:
    """Return the temporary name under which `folder` is written."""
    return folder.with_name(f".{folder.name}.partial")


def final_name(working: Path) -> Path:
    """Return the name that a folder has once it is written; a folder that has it already keeps it."""
    found = _PARTIAL.fullmatch(working.name)
    return working if found is None else working.with_name(found[1])


def reason_of(error: BaseException) -> str:
    """Return an error on one line: its kind, and the first line of what it says, if it says anything."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that is either the old one or the new one, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        # On a full disk the half that was written is in the way of whatever comes next.
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


class Store:
    """Writes one run folder; every method is safe to call from any thread.

    Only the process that made the store writes: a forked child that inherits it is ignored, so
    that it cannot finish its parent's folder, or wait for a lock that one of its parent's threads held.
    """

    def __init__(self, folder: Path | str, *, run: Run | None = None) -> None:
        """Create the folder under its temporary name and write the first run.json.

        Raises:
            OSError: the place cannot be written.
        """
        self.folder = Path(folder).absolute()
        self.working = partial_name(self.folder)
        """Where files go until `finish`."""
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._run = run if run is not None else Run(pid=self._pid)
        self._finished = False
        self.lost = ""
        """Why the last write failed; empty while all of them succeed."""
        self.working.mkdir(parents=True, exist_ok=True)
        self._run = msgspec.structs.replace(self._run, place=self.working.parent.stat().st_ino)
        self._write_run()

    @property
    def run(self) -> Run:
        """The run as recorded so far."""
        return self._run

    def path(self, kind: str) -> Path:
        """Return where an artefact of this kind goes; its folder exists afterwards.

        "trace" and "memory" give a new file name per call (`<host>_<pid>.<ns>.trace.json.gz`,
        `.snapshot.pickle`), "diverted" a folder, any other name `<kind>.json`.
        """
        base = self.folder if self._finished else self.working
        if kind == "diverted":
            target = base / kind
            target.mkdir(parents=True, exist_ok=True)
            return target
        stem = f"{socket.gethostname()}_{os.getpid()}.{epoch_ns()}"
        if kind == "trace":
            # Not `.pt.trace.json`: TensorBoard's profiler tab would show it beside the adapted copy
            # (review/dialect.py), with the wrong figures that the copy is there to put right.
            target = base / "trace" / f"{stem}.trace.json.gz"
        elif kind == "memory":
            target = base / "memory" / f"{stem}.snapshot.pickle"
        else:
            target = base / f"{kind}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def write_trace_path(self) -> Path:
        """Return a new trace file name (`path("trace")`)."""
        return self.path("trace")

    def artefact(
        self,
        name: str,
        status: Literal["ok", "absent", "failed"],
        *,
        path: Path | str | None = None,
        reason: str | None = None,
    ) -> None:
        """State what became of one artefact; the last statement counts."""
        relative, size = None, None
        if path is not None:
            file = Path(path)
            size = file.stat().st_size if file.is_file() else None
            relative = (
                file.relative_to(self.working).as_posix()
                if file.is_relative_to(self.working)
                else file.as_posix()
            )
        if not self._is_mine():
            return
        with self._lock:
            entry = Artefact(status=status, path=relative, reason=reason, bytes=size)
            self.update(artefacts={**self._run.artefacts, name: entry})

    def update(self, **fields: Any) -> None:
        """Replace fields of the run and rewrite run.json; `lost` says where that failed.

        Raises:
            TypeError: not a field of `Run`.
        """
        if not self._is_mine():
            return
        with self._lock:
            self._run = msgspec.structs.replace(self._run, **fields)
            self._write()

    def warn(self, text: str) -> None:
        """Add a warning for the report, once."""
        if not self._is_mine():
            return
        with self._lock:
            if text not in self._run.warnings:
                self.update(warnings=[*self._run.warnings, text])

    def write_json(self, name: str, obj: object) -> Path:
        """Write `<name>.json` (a msgspec struct or plain data) and mark the artefact ok."""
        target = self.path(name)
        if self._is_mine():
            write_atomically(target, msgspec.json.format(json_of(obj)))
            self.artefact(name, "ok", path=target)
        return target

    def finish(self, outcome: ScriptOutcome) -> Path:
        """Record how the script ended; return the folder, by its final name. May be called twice."""
        if not self._is_mine():
            return self.folder
        with self._lock:
            self.update(outcome=outcome)
            if not self._finished:
                self.folder = publish(self.working, self.folder)
                self._finished = True
            return self.folder

    def _is_mine(self) -> bool:
        return os.getpid() == self._pid

    def _write(self) -> None:
        """Write run.json. It is called in the script's own loop, which a full disk must not end."""
        try:
            self._write_run()
        except OSError as error:
            self.lost = reason_of(error)
        else:
            self.lost = ""

    def _write_run(self) -> None:
        base = self.folder if self._finished else self.working
        data = json_of(self._run)
        try:
            write_atomically(base / "run.json", data)
        except FileNotFoundError:
            # The script has cleared the folder that its runs go to: go on in a new one.
            base.mkdir(parents=True, exist_ok=True)
            write_atomically(base / "run.json", data)


def publish(working: Path, folder: Path) -> Path:
    """Rename a whole folder to its final name, with "-2", "-3", ... where that holds anything; return it."""
    target, number = folder, 1
    while True:
        try:
            # On POSIX this replaces an empty folder and refuses any other.
            working.rename(target)
        except OSError:
            if not target.exists():
                raise
            number += 1
            target = folder.with_name(f"{folder.name}-{number}")
        else:
            return target
