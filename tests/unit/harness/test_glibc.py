"""What glibc's malloc maps on its own is found out, changed, and put back; each case in a new process."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's settings")

TURNS = """
import ctypes, sys
from torch_bottleneck.harness.trials.patches.glibc import Malloc

libc = ctypes.CDLL("libc.so.6")
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
MIB = 2**20

def is_mapped(size):
    block = libc.malloc(size)
    mapped = bool(ctypes.c_size_t.from_address(block - 8).value & 2)
    libc.free(block)
    return mapped

assert is_mapped(int(float(sys.argv[1]) * MIB))
# The heap has room for blocks that would be mapped: no reason to take the size for a larger one.
held = [libc.malloc(100_000) for _ in range(400)]
for block in held[:-1]:
    libc.free(block)
malloc = Malloc()
size = malloc.mapped_from_bytes
for _turn in range(2):
    malloc.keep()
    assert not is_mapped(64 * MIB)
    # Room for large blocks is left beneath one that stays.
    large = libc.malloc(64 * MIB)
    stays = libc.malloc(100)
    libc.free(large)
    malloc.put_back()
    assert is_mapped(64 * MIB) and is_mapped(int(size * 1.05))
    assert abs(Malloc().mapped_from_bytes / size - 1) < 0.03
malloc.close()
print(size / MIB)
"""


@pytest.mark.parametrize("freed", [4.0, 20.0, 31.0])
def test_the_size_is_found_and_is_in_force_again_after_each_turn(freed: float) -> None:
    done = run(TURNS, str(freed))
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(freed, rel=0.03)


def test_a_block_of_more_than_32_mib_raises_nothing() -> None:
    done = run(TURNS, "40")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 4.0


REFUSED = """
import threading
from torch_bottleneck.harness.trials.patches.glibc import Malloc, MallocError

def attempt():
    try:
        Malloc()
    except MallocError as error:
        print(error)

thread = threading.Thread(target=attempt)
thread.start()
thread.join()
attempt()
"""


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"MALLOC_MMAP_THRESHOLD_": "1000000"}, ["the environment sets"] * 2),
        ({}, ["a thread with a heap of its own"]),
    ],
)
def test_settings_that_are_not_its_own_are_left_alone(variables: dict[str, str], said: list[str]) -> None:
    lines = run(REFUSED, **variables).stdout.splitlines()
    assert len(lines) == len(said)
    assert all(words in line for words, line in zip(said, lines, strict=True))


def run(source: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", source, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
