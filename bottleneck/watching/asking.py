"""`bottleneck watch --diagnose RUN`: ask a job that runs for a capture, and wait for its diagnosis.

In: the run folder that the job was told to write. Out: the folder of the capture, diagnosed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from ..clocks import monotonic, sleep
from ..errors import InputError
from ..model.documents import DIAGNOSIS_FILE
from ..model.watch import RECORD_FILE
from ..model.words import shown
from ..runs.captures import ask_for_capture, is_asked, take_question
from ..runs.layout import run_of
from ..runs.leftovers import is_written
from ..runs.store import final_name, partial_name

ANSWER_SECONDS = 30.0
"""For the job to see the question: it looks once a second."""
_POLL_SECONDS = 0.1
_FIRST = re.compile(r"\.(main|rank0)\.partial$")


def diagnose_running(run: Path, *, say: Callable[[str], None]) -> Path:
    """Have a capture made by a job that runs, and return its folder, which holds a diagnosis.json.

    Raises:
        InputError: no job runs there, or it ended before it was captured.
    """
    folder = final_name(run.absolute())
    process = _first_process(folder)
    try:
        capture = ask_for_capture(process)
    except OSError as error:
        raise InputError(f"Cannot write to {shown(process)}: {error.strerror}.") from None
    _wait_until_seen(process, folder)
    say("the job captures its next steps, and goes on")
    number = capture.relative_to(process)
    while True:
        if (capture / DIAGNOSIS_FILE).exists():
            return capture
        if not _is_alive(process):
            return _after_the_end(folder, final_name(process).name, number)
        sleep(_POLL_SECONDS)


def _first_process(folder: Path) -> Path:
    """Return the folder of the first process of a job that runs.

    Raises:
        InputError: none does.
    """
    working = partial_name(folder)
    found = [path for path in sorted(working.glob(".*.partial")) if _FIRST.match(path.name)]
    if found and _is_alive(found[0]):
        # A first record comes a second after the start.
        _wait((found[0] / RECORD_FILE).exists)
        if (found[0] / RECORD_FILE).exists():
            return found[0]
        raise InputError(f"The run in {shown(folder)} is none of `bottleneck watch`.")
    if folder.is_dir():
        why = f"The run in {shown(folder)} has ended."
    elif is_written(working):
        why = f"The run in {shown(folder)} is just beginning or ending."
    elif working.is_dir():
        why = f"The run in {shown(folder)} was killed."
    else:
        why = f"No run is written to {shown(folder)}."
    raise InputError(why, remedy="Name the folder of a running `bottleneck watch`; --out chooses it.")


def _is_alive(process: Path) -> bool:
    """Return whether a job runs: its command holds the folder, or, of several ranks, its process is there."""
    if is_written(process.parent):
        return True
    run = run_of(process)
    return run is not None and bool(run.pid) and Path(f"/proc/{run.pid}").exists()


def _wait(for_what: Callable[[], bool]) -> None:
    deadline = monotonic() + ANSWER_SECONDS
    while not for_what() and monotonic() < deadline:
        sleep(_POLL_SECONDS)


def _wait_until_seen(process: Path, folder: Path) -> None:
    _wait(lambda: not is_asked(process))
    if is_asked(process):
        take_question(process)
        raise InputError(
            f"The job in {shown(folder)} does not answer: it is stopped, its watch has ended, or it runs on"
            " another machine that does not share the folder."
        )


def _after_the_end(folder: Path, process: str, capture: Path) -> Path:
    """The job has ended meanwhile: its command may still diagnose what it captured."""
    places = [folder / capture, folder / process / capture]
    _wait(lambda: any((place / DIAGNOSIS_FILE).exists() for place in places))
    for place in places:
        if (place / DIAGNOSIS_FILE).exists():
            return place
    raise InputError("The job ended before a capture of it was complete.")
