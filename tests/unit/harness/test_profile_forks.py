"""A process whose destructors would wait for ever ends before they run, with what it has written."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, sys, threading
from torch_bottleneck.harness import profile_forks, torch_private

libc = ctypes.CDLL(None)
# As Kineto's destructor does behind a profile of CUDA: it waits for a thread that nothing wakes.
stays = {device!r} == "cuda" and not {goes}
libc.__cxa_atexit(ctypes.cast(libc.pause if stays else libc.abort, ctypes.c_void_p), None, None)
if {goes}:
    profile_forks._GOES_SECONDS = 50  # at most: it goes as soon as this machine lets it
torch_private.device_kind = lambda: {device!r}
called = threading.Event()
torch_private.wait_for_device = lambda: called.set() if {goes} else None
with profile_forks.profile_ends():
    threading.Thread(target=called.wait, daemon=True).start()
profile_forks.program_ends()
libc.printf(b"buffered by C")
sys.exit(7)
"""

linux = pytest.mark.skipif(sys.platform != "linux", reason="glibc's exit handlers")


def ended(**given: object) -> tuple[int, bytes]:
    script = SCRIPT.format(**given)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=False)
    return done.returncode, done.stdout


@linux
def test_where_a_profile_has_left_a_thread_behind_the_process_ends_before_destructors() -> None:
    assert ended(device="cuda", goes=False) == (7, b"buffered by C")


@linux
@pytest.mark.parametrize(("device", "goes"), [("cuda", True), ("cpu", False)])
def test_where_none_is_left_destructors_run_as_ever(device: str, goes: bool) -> None:
    assert ended(device=device, goes=goes)[0] == -6, "of abort()"
