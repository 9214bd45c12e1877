"""How a script ended, and the machine that it ran on: what the record of each run closes with.

In: what left the script, if anything did. Out: fields of run.json.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import TYPE_CHECKING

from ...model.run import ScriptOutcome
from ...runs.store import reason_of

if TYPE_CHECKING:
    from ...runs.store import Store

TERMINATED = 128 + signal.SIGTERM
_BEYOND_LONG = 1 << 63


def read_machine(store: Store) -> None:
    """Record machine and devices if no window has; torch must have been used for it."""
    run = store.run
    if "torch" not in sys.modules or (run.devices and run.host.torch):
        return
    with contextlib.suppress(Exception):
        from ..facts.devices import read_devices, read_host

        store.update(host=read_host(), devices=run.devices or read_devices())


def process_group() -> tuple[int, int] | None:
    """Return this process's rank and how many there are; None while it belongs to no group."""
    distributed = sys.modules.get("torch.distributed")
    # It may be asked from another thread than the one that imports it.
    initialized = getattr(distributed, "is_initialized", None)
    if distributed is None or initialized is None or not initialized():
        return None
    return int(distributed.get_rank()), int(distributed.get_world_size())


def outcome_of(
    error: BaseException | None,
    *,
    notes: list[str] | None = None,
    terminated: bool = False,
) -> ScriptOutcome:
    """Return how a script ended that nobody stopped."""
    notes = notes or []
    if error is None:
        return ScriptOutcome(how="finished", exit_code=0, notes=notes)
    if isinstance(error, SystemExit):
        code = exit_code(error)
        message = error.code if isinstance(error.code, str) else None
        return ScriptOutcome(
            how="finished" if code == 0 else "killed" if code == TERMINATED and terminated else "exited",
            exit_code=code,
            exception=f"SystemExit: {message}" if message else None,
            notes=notes,
        )
    if isinstance(error, KeyboardInterrupt):
        return ScriptOutcome(how="interrupted", exit_code=128 + signal.SIGINT, notes=notes)
    return ScriptOutcome(
        how="raised",
        exit_code=1,
        exception=reason_of(error),
        out_of_memory=is_out_of_memory(error),
        notes=notes,
    )


def exit_code(error: SystemExit) -> int:
    """Return the exit code that python makes of a SystemExit."""
    if error.code is None:
        return 0
    if not isinstance(error.code, int):
        return 1
    # To python, what no long of C holds is -1.
    return error.code & 0xFF if -_BEYOND_LONG <= error.code < _BEYOND_LONG else 0xFF


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an exception means that memory ran out, on the device or on the host."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    # RuntimeError is what torch's CPU allocator and cuBLAS raise.
    text = str(error)
    return isinstance(error, RuntimeError) and any(
        sign in text
        for sign in (
            "out of memory",
            "can't allocate memory",
            "not enough memory",
            "CUBLAS_STATUS_ALLOC_FAILED",
        )
    )
