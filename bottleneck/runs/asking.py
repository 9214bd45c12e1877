"""How a script's process asks the one that started it what to try, and gets its answer.

In: the process folder of a run that is still being written. Out: two files in it, both gone at the end. The
script's process has captured everything and waits; the other one analyses the folder meanwhile. No torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from ..clocks import monotonic, sleep
from ..errors import InputError
from ..files import read_json
from ..model.verify import TrialRequest
from .store import write_atomically

TRIALS = "trials"
"""Artefact that a process states once it has captured everything and tries fixes."""
_QUESTION = ".to-try"
_ANSWER = ".trials"
_POLL_SECONDS = 0.02


def ask(folder: Path, *, seconds: float, unless: Callable[[], bool]) -> TrialRequest | None:
    """Ask what to try, and wait for the answer; None where none came.

    The folder must be complete enough to be analysed.
    """
    question, reply = folder / _QUESTION, folder / _ANSWER
    deadline = monotonic() + seconds
    try:
        question.touch()
        while not unless() and monotonic() < deadline:
            if reply.exists():
                return read_json(reply, TrialRequest)
            sleep(_POLL_SECONDS)
    except (InputError, OSError, ValueError):
        return None
    finally:
        for file in (question, reply):
            with contextlib.suppress(OSError):
                file.unlink()
    return None


def find_question(working: Path) -> Path | None:
    """Return the process folder, of those in a run that is under way, whose process asks."""
    for question in working.glob(f".*/{_QUESTION}"):
        if not (question.parent / _ANSWER).exists():
            return question.parent
    return None


def answer(folder: Path, request: TrialRequest) -> None:
    """Give the process that asked its answer; one that has gone meanwhile needs none."""
    with contextlib.suppress(OSError):
        write_atomically(folder / _ANSWER, msgspec.json.encode(request))
