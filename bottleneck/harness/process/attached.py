"""A process that runs already, watched from now on.

In: a plan, on the main thread of that process. Out: the same process folder as of a script that `watch` has
started; its account begins here.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Sequence

from ...runs.plan import decode_plan
from .watched import WatchedRun


def attach(plan: str, args: Sequence[str]) -> None:
    """Watch this process until its interpreter ends.

    Raises:
        RuntimeError: it is watched or captured already.
        OSError: the run folder cannot be written.
    """
    presence = sys.modules.get(f"{__name__.split('.process.')[0]}.windows.presence")
    if presence is not None and presence.active() is not None:
        raise RuntimeError("it is watched or captured already")
    run = WatchedRun(decode_plan(plan, args=tuple(args)))
    run.arm()
    # The error that ends the interpreter has been shown by then.
    atexit.register(lambda: run.close(getattr(sys, "last_value", None)))
