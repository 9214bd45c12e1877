"""The report of a run, made by a process of its own.

In: a run folder. Out: the process, which writes diagnosis.json and the reports. No torch, and nothing of the
report's in this process.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def begin_analysis(
    run: Path, into: Path, *, niceness: int = 0, own_session: bool = False
) -> subprocess.Popen[bytes]:
    """Begin to analyse a run, quietly.

    With a session of its own, a Ctrl-C at the terminal is not meant for it.
    """
    code = f"import os; os.nice({niceness}); from torch_bottleneck.cli.main import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, "analyze", "--out", into, run],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=own_session,
    )
