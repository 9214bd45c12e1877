"""What one captured run is to do: the command line's options, passed to the user's process.

In: options of `bottleneck diagnose`. Out: `Plan`, which travels as JSON (to the script's process)
or by pickling (to the processes that the script itself starts).
"""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from .. import __version__
from ..errors import UsageError
from ..model.run import Run
from ..model.verify import Trial

if TYPE_CHECKING:
    from .tasks import Task


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one captured run; nothing in it depends on the machine or on torch."""

    script: str | None = None
    """Path of the script as typed; None when `module` is given."""
    module: str | None = None
    """Dotted name after `-m`."""
    args: tuple[str, ...] = ()
    """The script's own arguments, unchanged."""
    out: str = ""
    """Absolute path of the run folder. Several ranks write sub-folders rank0, rank1, ... of it."""
    meet: str = ""
    """Absolute path of the folder into which ranks on other machines put theirs, if they can see it."""
    ranks: str = ""
    """Ranks to trace, as in "0,8-15", or "all"; empty: of many only some. The others are timed."""
    steps: int = 8
    """Steps to trace."""
    warmup: int | None = None
    """Steps to skip first; None: until the step times are stable."""
    baseline_steps: int | None = None
    """Steps to time without the profiler; None: 200 or 3 s, until the mean is known."""
    run_to_end: bool = False
    """Leave the script running after the capture instead of stopping it."""
    memory: bool = True
    """Record the allocator's history (GPU runs)."""
    with_stack: bool = False
    """Python stacks in the trace: names the line of every operator, but costs much more."""
    lines: bool = False
    """Write the user's line into the trace at each read of a tensor's value."""
    max_seconds: float = 60.0
    """Limit for all windows after warm-up together. Several ranks count steps instead."""
    trace_bytes_cap: int = 200_000_000
    """Uncompressed size that the trace should not exceed; fewer steps are traced if needed."""
    trial: Trial | None = None
    """A run of an experiment: fixes applied, losses recorded, and the baseline window only."""
    trial_seconds: float = 0.0
    """For trying fixes in the process once everything is captured; 0: none, or nobody would say which."""
    watch: bool = False
    """Watch the whole job and attach nothing; no window is captured, and nothing stops the script."""
    on_signal: str = ""
    """Of a watched job: the signal by which the user asks for a capture; empty: none."""
    child: bool = False
    """Started by the script's own process: because it starts itself again, or is a launcher."""
    launched: bool = False
    """The user named a launcher, and this is what it launches."""
    quiet: bool = False
    """No progress lines."""
    verbose: bool = False

    @property
    def target(self) -> str:
        """The script as typed, or `-m module`: how the run is named to the user."""
        return self.script if self.script is not None else f"-m {self.module}"


def check_interpreter() -> None:
    """Refuse an interpreter whose threads run at once: the buffer of events counts on one at a time.

    Raises:
        UsageError: it is a free-threaded build with its lock turned off.
    """
    is_locked = getattr(sys, "_is_gil_enabled", None)
    if is_locked is not None and not is_locked():
        raise UsageError(
            "This Python is a free-threaded build, and its threads run without the global lock.",
            remedy="Use an ordinary build, or set PYTHON_GIL=1 for this run.",
        )


def beginning_run(plan: Plan, *, task: Task | None = None, **known: Any) -> Run:
    """Return what is known of the run of a plan when its process begins, which is this one."""
    if task is not None:
        known |= {"rank": task.rank, "world_size": task.size, "local_rank": task.local_rank}
    return Run(
        tool_version=__version__,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=[plan.target, *plan.args],
        cwd=str(Path.cwd()),
        pid=os.getpid(),
        **known,
    )


def encode_plan(plan: Plan) -> str:
    """Return the plan as one line of ASCII, without `args`, which travel as real arguments.

    Names of files may contain bytes that are not UTF-8, which Python's own JSON keeps.
    """
    return json.dumps(msgspec.to_builtins(msgspec.structs.replace(plan, args=()), str_keys=True))


def decode_plan(text: str, *, args: tuple[str, ...] = ()) -> Plan:
    """Return the plan of `encode_plan` with its arguments put back.

    Raises:
        msgspec.ValidationError: the text is not a plan.
    """
    return msgspec.structs.replace(msgspec.convert(json.loads(text), Plan, str_keys=True), args=args)
