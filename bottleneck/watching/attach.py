"""`bottleneck watch --attach PID`: watch a process that runs already, up to its end.

In: a process of the same user and the same Python, 3.14 or newer. Out: as of a job that `watch` has started;
the account begins with the attaching. Python itself carries a script into the process (`sys.remote_exec`,
PEP 768), which runs on its main thread between two instructions.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from ..clocks import monotonic, perf_counter_ns, sleep
from ..errors import InputError, UsageError
from ..files import read_json
from ..model.words import shown
from ..runs.launch import Ended
from ..runs.layout import run_of
from ..runs.plan import Plan, encode_plan
from ..runs.store import partial_name

ANSWER_SECONDS = 30.0
"""For the process to come to its next instruction of Python, and to import what watches it."""
_POLL_SECONDS = 0.05
_SCRIPT = """\
def _bottleneck_attaches():
    import json, os, sys
    paths = [path for path in {paths!r} if path not in sys.path]
    sys.path += paths
    try:
        from {package}.harness.process.attached import attach
        attach({plan!r}, {args!r})
        problem = ""
    except BaseException as error:
        problem = f"{{type(error).__name__}}: {{error}}"
    finally:
        sys.path[:] = [path for path in sys.path if path not in paths]
    with open({answer!r} + ".tmp", "w") as file:
        json.dump({{"problem": problem}}, file)
    os.replace({answer!r} + ".tmp", {answer!r})
_bottleneck_attaches()
"""


def plan_of_process(pid: int, plan: Plan) -> Plan:
    """Return a plan with the script of a process, once it is known that it can be attached to.

    Raises:
        UsageError: this Python is too old.
        InputError: there is no such process, or it is another user's.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not hasattr(sys, "remote_exec"):
        raise UsageError(
            f"Attaching needs Python 3.14 or newer (sys.remote_exec), here and there; this is {version}.",
            remedy="Start the job with `bottleneck watch` instead.",
        )
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="surrogateescape").split("\0")[:-1]
        owner = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        raise InputError(f"There is no process {pid}.") from None
    if owner != os.geteuid():
        # Root may attach, but the process could not read what it is to run, and would say so on its stderr.
        raise InputError(f"Process {pid} is another user's.", remedy=f"Attach as user {owner}.")
    words = words[1:]
    while words and words[0].startswith("-") and words[0] != "-m":
        words.pop(0)
    if words[:1] == ["-m"] and len(words) > 1:
        return msgspec.structs.replace(plan, module=words[1], args=tuple(words[2:]))
    script = words[0] if words else f"process-{pid}"
    return msgspec.structs.replace(plan, script=script, args=tuple(words[1:]))


def attach_and_wait(pid: int, attend: Callable[[], None], say: Callable[[str], None], plan: Plan) -> Ended:
    """Attach to a process, and wait for its end.

    Raises:
        InputError: it cannot be attached to.
    """
    began_ns = perf_counter_ns()
    try:
        _attach(pid, plan)
    except InputError:
        with contextlib.suppress(OSError):
            Path(plan.out).rmdir()
        raise
    where = shown(Path(plan.out))
    say(f"watching process {pid}; it goes on if you leave with Ctrl-C, and its folder is {where}")
    while Path(f"/proc/{pid}").exists() and _state(pid) != "Z":
        attend()
        sleep(_POLL_SECONDS)
    return Ended(
        returncode=_exit_code(Path(plan.out) / "main"),
        began_ns=began_ns,
        seconds=(perf_counter_ns() - began_ns) / 1e9,
    )


def _attach(pid: int, plan: Plan) -> None:
    folder = Path(tempfile.mkdtemp(prefix="bottleneck-"))
    script, answer = folder / "attach.py", folder / "answer.json"
    script.write_text(
        _SCRIPT.format(
            paths=[os.path.realpath(path) for path in sys.path if path],
            package=__name__.split(".")[0],
            plan=encode_plan(plan),
            args=list(plan.args),
            answer=str(answer),
        )
    )
    root = Path(f"/proc/{pid}/root")
    if root.exists() and not Path(f"{root}{script}").exists():
        shutil.rmtree(folder)
        raise InputError(
            f"Cannot attach to process {pid}: it does not see the files of {folder.parent}.",
            remedy="Attach in the container in which it runs.",
        )
    try:
        sys.remote_exec(pid, str(script))  # type: ignore[attr-defined,unused-ignore]
    except (OSError, RuntimeError, ValueError) as error:
        shutil.rmtree(folder)
        raise InputError(
            f"Cannot attach to process {pid}: {error}.",
            remedy="It must run the same version of Python, as the same user, and allow remote debugging"
            " (no `-X disable-remote-debug`; ptrace may be forbidden in containers).",
        ) from None
    deadline = monotonic() + ANSWER_SECONDS
    while not answer.exists():
        if monotonic() > deadline:
            # Python may still come to read it, and would complain in the job if it were gone.
            script.write_text("")
            raise InputError(
                f"Process {pid} did not answer within {ANSWER_SECONDS:.0f} s.",
                remedy="It may hang outside of Python; try again while it trains.",
            )
        sleep(_POLL_SECONDS)
    problem = read_json(answer, dict[str, str])["problem"]
    shutil.rmtree(folder, ignore_errors=True)
    if problem:
        raise InputError(f"Process {pid} cannot be watched: {problem}.")


def _state(pid: int) -> str:
    """Return the letter of a process's state; "Z" also for one that has gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "Z"


def _exit_code(process: Path) -> int:
    """Return the exit code of a process that is nobody's child here, as far as it has recorded it itself."""
    run = run_of(process) or run_of(partial_name(process))
    if run is None or run.outcome.how == "running":
        return 1
    return run.outcome.exit_code or 0
