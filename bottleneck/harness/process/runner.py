"""Running someone else's program as python itself would.

In: a plan. Out: the program's own effects: `__main__`, argv, `sys.path[0]`, exit code and
tracebacks are those of `python train.py` or `python -m pkg.mod`. `runpy.run_path` differs in
`__file__`, `__package__`, `__builtins__` and in restoring `__main__` afterwards, so it is not used.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import os
import sys
import threading
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import NoReturn

from ...runs.environment import first_affinity
from ...runs.plan import Plan, decode_plan
from ...runs.store import reason_of
from . import relaunches
from .session import Session
from .stopping import StopRun
from .watched import WatchedRun

OURS = str(Path(__file__).resolve().parents[2]) + os.sep
"""Frames of these files are taken out of the user's tracebacks."""


def main(working_folder: str | None) -> None:
    """Run the plan in `sys.argv[1]` with the arguments behind it, then end as the script ends.

    `working_folder` is what python put first on the path for `-m` and has been taken off it: None in
    safe-path mode.
    """
    plan = decode_plan(sys.argv[1], args=tuple(sys.argv[2:]))
    first_affinity.cache_clear()
    first_affinity()
    _die_with_parent()
    if plan.watch:
        _watch(plan, working_folder)
        return
    session = Session(plan, child=plan.child)
    session.arm()
    try:
        _run(plan, working_folder)
    except StopRun:
        _leave(session)
    except BaseException as error:
        if session.stopper.under_way:
            # What a `finally` of the script raised while it was being stopped is our doing.
            session.note(f"while stopping, the script raised {reason_of(error)}")
            _leave(session)
        if session.was_trying(error):
            _leave(session)
        session.close(error)
        _show_without_our_frames()
        raise
    if session.stopper.under_way:
        # The stop ended a training thread, or was swallowed, and the main thread came to its end.
        _leave(session)
    session.close(None)
    relaunches.wait()


def _watch(plan: Plan, working_folder: str | None) -> None:
    """Run the plan to its end; nothing of ours stops it."""
    watched = WatchedRun(plan)
    watched.arm()
    try:
        _run(plan, working_folder)
    except BaseException as error:
        watched.close(error)
        _show_without_our_frames()
        raise
    watched.close(None)


def _run(plan: Plan, working_folder: str | None) -> None:
    """Execute the script, and wait for its threads as python does."""
    if working_folder is not None:
        # As late as this: our own imports are done.
        sys.path.insert(0, _first_path(plan, working_folder))
    _execute(plan)
    _join_threads()


def prepare_script(path: str) -> tuple[types.ModuleType, types.CodeType]:
    """Return a fresh `__main__` and the code of a script, as `python path` makes them.

    Relative paths are kept unresolved in `__file__`, as python does.

    Raises:
        OSError: the script cannot be read.
        SyntaxError: it is not Python.
    """
    full = path if os.path.isabs(path) else os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH117, PTH118 - pathlib would normalise
    code = compile(Path(full).read_bytes(), full, "exec", dont_inherit=True)
    module = _fresh_main()
    module.__file__ = full
    module.__loader__ = SourceFileLoader("__main__", full)
    module.__dict__["__cached__"] = None
    return module, code


def prepare_module(name: str) -> tuple[types.ModuleType, types.CodeType]:
    """Return a fresh `__main__` and the code of a module, as `python -m name` makes them.

    Raises:
        SystemExit: there is no such module, with python's own message.
    """
    import runpy

    try:
        # The same private function in 3.7 to 3.13; it imports the parent packages.
        _, spec, code = runpy._get_module_details(name, _ModuleError)  # type: ignore[attr-defined]
    except _ModuleError as error:
        raise SystemExit(f"{sys.executable}: {error}") from None
    module = _fresh_main()
    module.__file__ = spec.origin
    module.__loader__ = spec.loader
    module.__package__ = spec.parent
    module.__spec__ = spec
    module.__dict__["__cached__"] = spec.cached
    return module, code


def strip_frames(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Return the traceback without frames of this package. It may be as deep as a recursion error's."""
    # `__file__` of an imported module may pass through a link; compare what python compiled.
    ours = (OURS, _ours_as_imported())
    kept: list[types.TracebackType] = []
    while trace is not None:
        code = trace.tb_frame.f_code
        # What is called in place of a caller's stands in its file.
        if not code.co_filename.startswith(ours) and code.co_varnames[:1] != ("_bottleneck_calls",):
            kept.append(trace)
        trace = trace.tb_next
    rest = None
    while kept:
        entry = kept.pop()
        rest = types.TracebackType(rest, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return rest


def _first_path(plan: Plan, working_folder: str) -> str:
    if plan.script is None:
        return working_folder
    return os.path.dirname(os.path.realpath(plan.script))  # noqa: PTH120 - as python does


class _ModuleError(Exception):
    """What runpy is told to raise when there is no such module."""


def _fresh_main() -> types.ModuleType:
    module = types.ModuleType("__main__")
    module.__dict__.update(__builtins__=builtins)
    if sys.version_info < (3, 14):
        module.__dict__.update(__annotations__={})
    return module


def _execute(plan: Plan) -> None:
    if plan.script is not None:
        sys.argv = [plan.script, *plan.args]
        module, code = prepare_script(plan.script)
    else:
        assert plan.module is not None
        sys.argv = ["-m", *plan.args]
        module, code = prepare_module(plan.module)
        sys.argv[0] = str(module.__file__)
    # Who asks which modules the frames of a stack are from (inspect.stack) looks through all modules, in
    # every call, for a file that is none of them; the file that began is one under its full name.
    sys.modules.setdefault(f"{__package__.rpartition('.')[0]}.__main__", sys.modules["__main__"])
    # It stays there: threads and exit functions of the script pickle against it.
    sys.modules["__main__"] = module
    exec(code, module.__dict__)  # noqa: S102 - running the user's program is the purpose


def _join_threads() -> None:
    """Wait for the script's threads as the interpreter would: training may run in one.

    By its own function, which does nothing when the interpreter calls it again. It first tells the threads of
    executors to end, which wait for work otherwise; torch.compile leaves some.
    """
    threading._shutdown()  # type: ignore[attr-defined]


def _leave(session: Session) -> NoReturn:
    """End a stopped process: exit functions run, then it is over, whatever threads still do.

    Daemon threads inside torch make a normal interpreter exit abort with "terminate called without
    an active exception"; a prefetcher blocked on a queue would keep it from exiting at all.
    """
    session.stopper.wait_for_thread()
    session.close(None)
    relaunches.wait()
    atexit._run_exitfuncs()
    session.amend()
    flush()
    os._exit(0)


def flush() -> None:
    """Flush the standard streams; a closed or broken one is not an error here."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):
            if stream is not None:
                stream.flush()


def _show_without_our_frames() -> None:
    """Have the exception that is about to leave shown as python would, minus our frames.

    Propagating it natively keeps exit codes, `sys.last_value` and finalisation as they are.
    """
    previous = sys.excepthook

    def excepthook(
        kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
    ) -> None:
        # An error in a hook is shown before the error that it was called for: ours are not worth that.
        with contextlib.suppress(Exception):
            _strip_causes(error)
            trace = strip_frames(trace)
            error = error.with_traceback(trace)
        previous(kind, error, trace)

    sys.excepthook = excepthook


def _strip_causes(error: BaseException) -> None:
    """Take our frames out of what led to an exception."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error.__cause__, error.__context__]
    while pending:
        inner = pending.pop()
        if inner is not None and id(inner) not in seen:
            seen.add(id(inner))
            inner.__traceback__ = strip_frames(inner.__traceback__)
            pending += [inner.__cause__, inner.__context__]


def _ours_as_imported() -> str:
    return str(Path(__file__).parents[2]) + os.sep  # as imported: not resolved


def _die_with_parent() -> None:
    """Ask Linux for SIGTERM when the parent is killed, so that no training is left behind."""
    if sys.platform != "linux":
        return
    import ctypes
    import signal

    pr_set_pdeathsig = 1  # linux/prctl.h
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM, 0, 0, 0)
