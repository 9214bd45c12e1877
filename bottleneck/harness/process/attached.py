"""A process that runs already, watched from now on.

In: a plan, on the main thread of that process. Out: the same process folder as of a script that `watch` has
started; its account begins here.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Sequence

from ...runs.plan import check_interpreter, decode_plan
from .watched import WatchedRun


def attach(plan: str, args: Sequence[str]) -> None:
    """Watch this process until its interpreter ends.

    Raises:
        RuntimeError: it is watched or captured already, or is in the middle of importing torch.
        UsageError: its interpreter has no global lock.
        OSError: the run folder cannot be written.
    """
    check_interpreter()
    presence = sys.modules.get(f"{__name__.split('.process.')[0]}.windows.presence")
    if presence is not None and presence.active() is not None:
        raise RuntimeError("it is watched or captured already")
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    if getattr(spec, "_initializing", False):
        raise RuntimeError("it is importing torch; try again once it trains")
    run = WatchedRun(decode_plan(plan, args=tuple(args)))
    run.arm()
    # The error that ends the interpreter has been shown by then.
    atexit.register(lambda: run.close(getattr(sys, "last_value", None)))
