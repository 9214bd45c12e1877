"""A process whose destructors would wait for ever ends before they run, with what it has written."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, sys
from torch_bottleneck.harness import profile_forks, torch_private

libc = ctypes.CDLL(None)
# As Kineto's destructor does behind a profile of CUDA: it waits for a thread that nothing wakes.
libc.__cxa_atexit(ctypes.cast(libc.pause, ctypes.c_void_p), None, None)
torch_private.device_kind = lambda: {device!r}
profile_forks.profile_ends()
profile_forks.profile_ends()
libc.printf(b"buffered by C")
sys.exit(7)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's exit handlers")
def test_where_a_profile_of_a_gpu_has_ended_the_process_ends_before_destructors() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(device="cuda")], capture_output=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout) == (7, b"buffered by C"), ended.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's exit handlers")
def test_without_a_gpu_destructors_run_as_ever() -> None:
    script = SCRIPT.format(device="cpu").replace("libc.pause", "libc.abort")
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=False)
    assert ended.returncode < 0
