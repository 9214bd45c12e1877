"""The Python API for people who own their loop: the same windows, with steps where they say.

In: a program that marks its steps. Out: the same run folder that `bottleneck diagnose` writes, for
`bottleneck analyze`.

    with torch_bottleneck.Harness(out="runs/first") as h:
        for batch in h.batches(loader):
            with h.step():
                with h.label("augment"):
                    batch = augment(batch)
                loss = model(batch)
                ...

With `watch=True` nothing is captured: the whole job is watched, as `bottleneck watch` does, for `bottleneck
report`.

The program is never stopped; once all windows are captured every call here is a no-op.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ...clocks import perf_counter_ns
from ...model.run import ScriptOutcome
from ...runs.job import write_account
from ...runs.plan import Plan, beginning_run, check_interpreter
from ...runs.store import Store
from .. import loader_private, torch_private
from ..events.table import LABEL
from ..windows.presence import active
from ..windows.steps import ManualRule
from ..windows.trace import prepare_environment
from .agent import Agent
from .progress import Progress
from .stopping import NeverStop
from .watched import WatchedRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from typing_extensions import Self

    from ..windows.observer import StepObserver

Batch = TypeVar("Batch")


class Harness:
    """Captures the steps that the program marks. Use it as a context manager.

    Inside a script that already runs under `bottleneck diagnose`, labels are passed on to that
    capture and everything else here does nothing.
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        *,
        steps: int = 8,
        warmup: int | None = None,
        baseline_steps: int | None = None,
        memory: bool = True,
        with_stack: bool = False,
        max_seconds: float = 60.0,
        quiet: bool = False,
        watch: bool = False,
        find_steps: bool = False,
    ) -> None:
        """Choose what to capture; nothing happens before `with`.

        Args:
            out: the run folder to write; with several ranks, `rank0`, `rank1`, ... inside it.
            steps: steps to trace.
            warmup: steps to skip first; None: until the step times have settled.
            baseline_steps: steps to time with nothing attached; None: enough for a narrow interval.
            memory: record the allocator's history (GPU runs).
            with_stack: Python stacks in the trace; far dearer.
            max_seconds: limit on the windows after warm-up, together.
            quiet: no progress lines on stderr.
            watch: do not capture: watch everything up to the end of the `with` block, as `bottleneck watch`
                does a script, and write watch.json. The options of windows then mean nothing.
            find_steps: until the program marks its first step, find them as in a script.

        Raises:
            ValueError: a window would have no step, or no time.
            UsageError: this interpreter has no global lock.
        """
        for name, value, least in (
            ("steps", steps, 1),
            ("warmup", warmup, 0),
            ("baseline_steps", baseline_steps, 1),
        ):
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}")
        if not (max_seconds > 0 and math.isfinite(max_seconds)):
            raise ValueError(f"max_seconds must be a time, not {max_seconds}")
        # A notebook, a prompt: what stands in argv started the kernel, and is no script to run again.
        words = sys.argv if hasattr(sys.modules.get("__main__"), "__file__") else []
        self._set_up(
            Plan(
                script=words[0] if words else "",
                args=tuple(words[1:]),
                out=str(Path(out).absolute()),
                steps=steps,
                warmup=warmup,
                baseline_steps=baseline_steps,
                memory=memory,
                with_stack=with_stack,
                max_seconds=max_seconds,
                run_to_end=True,
                quiet=quiet,
                watch=watch,
            ),
            ManualRule(marked=not find_steps),
        )

    @classmethod
    def by_plan(cls, plan: Plan) -> Self:
        """Capture as a plan says; steps are found as in a script, until the program marks its first one.

        What this process has compiled so far is dropped: what is compiled from now on is then counted
        alike whatever ran before.
        """
        torch_private.forget_compiled([], everything=True)
        made = cls.__new__(cls)
        made._set_up(plan, ManualRule(marked=False))
        return made

    def _set_up(self, plan: Plan, rule: ManualRule) -> None:
        check_interpreter()
        self._plan = plan
        self._rule = rule
        self._agent: StepObserver[Any] | None = None
        self._watched: WatchedRun | None = None
        self._began_ns = 0
        self._store: Store | None = None
        self._owner = self._entered = False
        self.folder: Path | None = None
        """The run folder, once the `with` block has ended."""

    # -- life ----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._entered = True
        self._began_ns = perf_counter_ns()
        self._agent = active()
        if self._agent is not None:
            return self
        prepare_environment()
        rank, count = torch_private.world()
        folder = Path(self._plan.out)
        self._store = Store(
            folder / f"rank{rank}" if count > 1 else folder,
            run=beginning_run(
                self._plan,
                rank=rank,
                world_size=count,
                local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            ),
        )
        self._owner = True
        if self._plan.watch:
            self._watched = WatchedRun(self._plan, store=self._store, rule=self._rule)
            self._watched.arm()
            self._agent = self._watched.steps
            return self
        progress = Progress(quiet=self._plan.quiet, rank=rank)
        self._agent = Agent(self._plan, self._store, NeverStop(), progress, rule=self._rule)
        self._agent.install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        agent, store, watched = self._agent, self._store, self._watched
        self._agent = self._store = self._watched = None
        if not self._owner or store is None:
            return
        self._owner = False
        if watched is not None:
            self._end_watching(watched, store, error)
            return
        assert isinstance(agent, Agent)
        agent.finish()
        agent.uninstall()
        how = ScriptOutcome(how="finished", exit_code=0)
        if error is not None:
            how = ScriptOutcome(how="raised", exception=f"{type(error).__name__}: {error}")
        # A full disk must not turn into the program's failure.
        with contextlib.suppress(OSError):
            self.folder = store.finish(how)

    def _end_watching(self, watched: WatchedRun, store: Store, error: BaseException | None) -> None:
        """Complete the folder, with the account of what the `with` block did."""
        watched.close(error)
        wall_s = (perf_counter_ns() - self._began_ns) / 1e9
        outcome = "the block ended by itself."
        if error is not None:
            outcome = f"the block was left by {type(error).__name__}: {error}"
        # Neither a full disk nor a fault of ours may become the program's failure.
        with contextlib.suppress(Exception):
            self.folder = store.folder
            write_account(
                store.folder,
                began_ns=self._began_ns,
                wall_s=wall_s,
                exit_code=int(error is not None),
                outcome=outcome,
            )

    # -- marks ---------------------------------------------------------------------------------

    def batches(self, source: Iterable[Batch]) -> Iterator[Batch]:
        """Yield from any iterable; the time it takes to give the next batch is the phase `data`."""
        iterator = iter(source)
        while True:
            try:
                if isinstance(iterator, loader_private.LoaderIterator):
                    # Its own hook opens the phase.
                    self._begin()
                    batch = next(iterator)
                else:
                    with self._waiting():
                        batch = next(iterator)
            except StopIteration:
                return
            yield batch

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Mark one training step; the step ends here, and what follows belongs to the next one.

        Raises:
            RuntimeError: outside of the `with` block nothing is captured; behind it steps go unmarked.
        """
        self.step_begins()
        yield
        self.step_ends()

    def step_begins(self) -> None:
        """Mark the beginning of a training step, where no `with` can stand around it.

        Raises:
            RuntimeError: see `step`.
        """
        if not self._entered:
            raise RuntimeError("Harness is a context manager: mark steps inside `with Harness(...) as h:`")
        self._begin()

    def step_ends(self) -> None:
        """Mark the end of the training step that has begun; what follows belongs to the next one."""
        if self._owner and self._agent is not None:
            self._agent.end_step()

    @property
    def captures(self) -> bool:
        """This process is captured here, and not by a capture around it."""
        return self._owner

    @property
    def done(self) -> bool:
        """Everything is captured; more steps add nothing."""
        return self._owner and isinstance(self._agent, Agent) and self._agent.capture.done

    @contextlib.contextmanager
    def label(self, name: str) -> Iterator[None]:
        """Name a stretch of the program; it becomes a phase of the step and a range in the trace."""
        agent = self._agent
        if agent is None or not agent.buffer.begin(LABEL, name):
            yield
            return
        try:
            if torch_private.profiler_running():
                with torch_private.record_function(name):
                    yield
            else:
                yield
        finally:
            agent.buffer.end(LABEL, name)

    def _begin(self) -> None:
        if self._owner and self._agent is not None:
            self._rule.mark()
            self._agent.begin_step()

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        self._begin()
        with self.label("data"):
            yield
