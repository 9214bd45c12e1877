"""Running `bottleneck verify` as a user does, for the tests that need it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import forked

SECONDS = 1200


def verify(cwd: Path, *words: str, seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
    return forked.run(
        [sys.executable, "-m", "torch_bottleneck", "verify", *words],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
