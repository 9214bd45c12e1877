"""Answers a script's process that has captured everything and asks what to try.

In: the folder of a run that is under way. Out: an answer, if a process of it asks.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from ..errors import BottleneckError
from ..model.verify import TrialRequest
from ..runs.asking import answer
from .compose import diagnose_paths
from .trials import request_of


def answer_with_trials(folder: Path, seconds: float) -> None:
    """Analyse a process folder and tell its process what to try."""
    request = TrialRequest()
    # Why it cannot be analysed is said by the report, once the run is over.
    with contextlib.suppress(BottleneckError):
        request = request_of(diagnose_paths([folder]), seconds)
    answer(folder, request)
