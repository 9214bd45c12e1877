"""The result of one check.

In: nothing. Out: `Check`, and a way to try something in a separate process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Literal

import msgspec

Area = Literal[
    "versions", "GPU", "processors", "TensorBoard", "profiler", "space and permissions", "files"
]  # fmt: skip
Level = Literal["ok", "note", "warning", "problem"]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """The result. problem: something does not work; warning: something may not work."""

    area: Area
    level: Level
    text: str
    remedy: str = ""


def try_apart(*arguments: str, seconds: float) -> tuple[int | None, str, str]:
    """Run this interpreter with `arguments`; what crashes there does not crash here.

    Returns:
        Return code (None: it took longer than `seconds` and was ended), stdout and stderr.
    """
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
            # Python 3.11 and newer then leave the working folder out of the import path.
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )
    except subprocess.TimeoutExpired:
        return None, "", ""
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
