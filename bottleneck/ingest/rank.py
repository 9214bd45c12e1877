"""What is known of one process of a capture.

In: facts and paths. Out: `Rank`, whose trace is read when first asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..errors import InputError
from ..model.run import CompileFacts, LoaderFacts, Run
from ..model.stacks import Stacks
from ..model.verify import TriedFixes
from ..timeline.trace.table import Trace
from .reader import read_trace
from .remote import RemoteFiles


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One process: its run record, its side files, and where its trace lies."""

    rank: int
    world_size: int | None = None
    """Ranks of the job, as the process itself recorded; None where it did not."""
    run: Run | None = None
    """None for a bare trace."""
    loaders: tuple[LoaderFacts, ...] | None = None
    """None: not measured; empty: no loader was seen."""
    compile: CompileFacts | None = None
    tried: TriedFixes | None = None
    """Fixes tried in the running process."""
    stacks: Stacks | None = None
    """Samples of the training thread's stack; None where none were taken."""
    trace_path: Path | None = None
    snapshot_path: Path | None = None
    failure_path: Path | None = None
    """Snapshot taken where an allocation failed."""
    folder: Path | None = None
    """The folder of run.json; None for a bare trace."""
    problems: tuple[str, ...] = ()
    """What is missing or broken, each one sentence."""
    remote: RemoteFiles | None = None
    """Where its files are to be fetched from: nothing else but perhaps its number is known yet."""

    @property
    def title(self) -> str:
        """A short name for reports: the script, or the folder or file that it was read from."""
        if self.run is not None and any(self.run.command[:1]):
            return Path(self.run.command[0]).name
        return self.name

    @property
    def name(self) -> str:
        """What it was read from: its run folder, or its trace or snapshot."""
        if self.remote is not None:
            return self.remote.name
        path = self.folder or self.trace_path or self.snapshot_path
        return path.name if path is not None else ""

    @property
    def source(self) -> str:
        """A path or an address that leads to this rank alone."""
        if self.remote is not None:
            return self.remote.address
        return str(self.folder or self.trace_path or self.snapshot_path or "")

    @property
    def trace(self) -> Trace | None:
        """The columns of the trace; None without a trace.

        Raises:
            InputError: a bare trace cannot be read. Inside a run folder that is a problem only
                (`trace_problem`), since the run record still tells much.
        """
        trace, error = self._reading
        if error is not None and self.run is None:
            raise error
        return trace

    @property
    def trace_problem(self) -> str:
        """Why the trace of a run folder could not be read; empty when it could. Reads it."""
        error = self._reading[1]
        return "" if error is None else str(error)

    @cached_property
    def _reading(self) -> tuple[Trace | None, InputError | None]:
        if self.trace_path is None:
            return None, None
        try:
            return read_trace(self.trace_path), None
        except InputError as error:
            return None, error
