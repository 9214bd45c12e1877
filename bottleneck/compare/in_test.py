"""A training step held against its baseline from within a test: captured and compared in one process.

In: a `with` block around a training loop, the baseline's file, the settings. Out: `Held`.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from ..errors import UndeterminedError
from ..model.baseline import Baseline
from ..model.compare import Comparison
from ..model.gate import GateSettings
from ..runs.layout import holds_steps
from .baseline_file import read_baseline
from .gate import Held, counting_plan, hold, windows_of
from .sides import Side, read_side

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from ..harness.process.api import Harness

Batch = TypeVar("Batch")
_NOT_OURS_ALONE = {"peak_allocated_bytes": "other tests of the process have held memory, too"}
"""Counters that depend on what ran before in the same process."""


class StepGate:
    """Captures the training steps of its block; at the end they are compared.

    A loop over `gate.steps(loader)` ends by itself once enough is measured. Any other loop is watched
    like that of a script: an update of the weights ends a step, or the end of `with gate.step():`.
    """

    def __init__(
        self,
        name: str,
        *,
        baseline: Path,
        out: Path,
        root: Path,
        update: bool,
        settings: GateSettings,
        windows: dict[str, int],
        judge: Callable[[StepGate], None],
    ) -> None:
        """Choose what to compare with.

        Args:
            name: how reports call the loop.
            baseline: its file.
            out: the run folder to write.
            root: folder that source paths are told from.
            update: the file is to be written anew.
            settings: limits.
            windows: lengths that the test itself has chosen.
            judge: takes the gate when everything is measured, and fails the test if it must.
        """
        self.name = name
        self.baseline = baseline
        self.folder = out
        self.settings = settings
        self._root = root
        self._update = update
        self._judge = judge
        stored = read_baseline(baseline) if baseline.exists() or not update else None
        self._stored = stored
        self._windows = windows_of(settings, None if update else stored) | windows
        self._harness: Harness | None = None
        self._captured = False

    # -- the block -----------------------------------------------------------------------------

    def __enter__(self) -> Self:
        from ..harness.process.api import Harness

        plan = counting_plan(self._windows, script=self.name, out=str(self.folder), run_to_end=True)
        self._harness = Harness.by_plan(plan)
        self._harness.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        harness, self._harness = self._harness, None
        assert harness is not None
        harness.__exit__(kind, error, trace)
        if kind is None:
            self._captured = harness.folder is not None
            self._judge(self)

    @overload
    def steps(self) -> Iterator[int]: ...
    @overload
    def steps(self, source: Iterable[Batch]) -> Iterator[Batch]: ...
    def steps(self, source: Iterable[Any] | None = None) -> Iterator[Any]:
        """Yield a batch for each step until enough is measured, from the start again where they run out.

        Without a loader the number of the step is all there is to yield.

        Raises:
            UndeterminedError: the source has no batch.
        """
        harness = self._inside()
        taken = 0
        while True:
            before = taken
            for batch in harness.batches(source) if source is not None else itertools.count():
                with harness.step():
                    yield batch
                taken += 1
                # Where another capture watches this process, this one is never done.
                if harness.done or (not harness.captures and taken >= sum(self._windows.values())):
                    return
            if taken == before:
                raise UndeterminedError(
                    f"The batches of {self.name!r} ran out after {taken} steps.",
                    remedy="Give a loader that can be read again, or fewer warmup, baseline_steps and steps.",
                )

    def step(self) -> contextlib.AbstractContextManager[None]:
        """Mark one training step, where the loop is the test's own."""
        return self._inside().step()

    @property
    def done(self) -> bool:
        """Enough is measured: more steps add nothing."""
        return self._inside().done

    def _inside(self) -> Harness:
        if self._harness is None:
            raise RuntimeError(
                "step_gate is a context manager: mark steps inside `with step_gate(...) as gate:`"
            )
        return self._harness

    # -- the result ----------------------------------------------------------------------------

    def hold(self) -> Held | None:
        """Compare what was measured; None where another capture watches this process.

        Raises:
            UndeterminedError: too little was measured.
            InputError: a file cannot be read or written.
        """
        if not self._captured:
            return None
        if not holds_steps(self.folder):
            wanted = sum(self._windows.values())
            raise UndeterminedError(
                f"The block of {self.name!r} trained too few steps: the windows alone have {wanted}.",
                remedy="Write `for batch in gate.steps(loader):`, which ends by itself, or give a smaller"
                " warmup, baseline_steps or steps.",
            )
        with warnings.catch_warnings():
            # What reading a trace warns of is not the test's concern.
            warnings.simplefilter("ignore")
            measured = read_side([self.folder], root=self._root).baseline
            head = Side(label=self.name, baseline=self._own(measured))
            if head.baseline.counters is None or not head.baseline.counters.values:
                raise UndeterminedError(f"No counter was measured in the block of {self.name!r}.")
            base = Side(label=self.baseline.name, baseline=self._stored) if self._stored is not None else None
            return hold(base, head, self._windows, settings=self.settings)

    def _own(self, measured: Baseline) -> Baseline:
        """Leave out what is of the test run, and not of the step."""
        counters = measured.counters
        if counters is not None:
            counters = msgspec.structs.replace(
                counters,
                values={n: v for n, v in counters.values.items() if n not in _NOT_OURS_ALONE},
                absent={**counters.absent, **_NOT_OURS_ALONE},
            )
        return msgspec.structs.replace(measured, title=self.name, command=(), counters=counters)


def fails(comparison: Comparison, settings: GateSettings) -> bool:
    """Return whether a comparison fails its test.

    Undecided counters do: a check went missing. A step time that is only suspicious does not, unless the
    settings ask for it: one run tells little, and less where workers of a session share the cores.
    """
    if comparison.outcome != "undecided":
        return comparison.outcome != "ok"
    uncounted = any(row.status in ("unstable", "unknown") for row in comparison.counters)
    return settings.undecided == "fail" or (settings.undecided == "stop" and uncounted)
