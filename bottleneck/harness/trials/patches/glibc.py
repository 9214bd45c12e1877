"""The settings of glibc's malloc, changed and put back while the process runs.

In: nothing. Out: a `Malloc`, which has found out from which size on blocks are mapped one by one. glibc
tells nobody: it raises that size each time a mapped block is freed. Blocks are asked for, and never written
to, until one is mapped or the heap grows for one. From the first change on glibc adapts nothing any more; in
a process that has long been training the size no longer moves.
"""

from __future__ import annotations

import ctypes
import os
import threading

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # malloc.h of glibc
LEAST, MOST = 128 * 1024, 32 * 1024 * 1024
"""The size at the start, and up to which glibc raises it."""
MOST_MAPPED = 65_536
CLOSE = 1.02
"""Two sizes that are told apart no further."""
_WORD = ctypes.sizeof(ctypes.c_size_t)
_IS_MAPPED = 0x2
_MOST_ASKED_BYTES = 64 * 2**30
"""Of address space, none of which is used."""
_SET_OUTSIDE = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_")


class MallocError(Exception):
    """There is no glibc, or its settings cannot be told or made."""


class Malloc:
    """Of this process; made on the main thread, whose heap is the one that grows."""

    def __init__(self) -> None:
        """Find out the size.

        Raises:
            MallocError: the settings are not glibc's own.
        """
        if any(os.environ.get(name) for name in _SET_OUTSIDE) or "glibc.malloc" in os.environ.get(
            "GLIBC_TUNABLES", ""
        ):
            raise MallocError("the environment sets malloc's thresholds")
        if threading.current_thread() is not threading.main_thread():
            raise MallocError("the training runs on a thread with a heap of its own")
        try:
            # Holding the interpreter's lock: nobody else asks for memory of this heap meanwhile.
            self._libc = ctypes.PyDLL("libc.so.6")
            self._libc.mallopt  # noqa: B018 - other libraries of that name have none
        except (OSError, AttributeError):
            raise MallocError("there is no glibc in this process") from None
        self._libc.malloc.restype = self._libc.sbrk.restype = ctypes.c_void_p
        self._libc.malloc.argtypes = [ctypes.c_size_t]
        self._libc.free.argtypes = [ctypes.c_void_p]
        self._libc.sbrk.argtypes = [ctypes.c_ssize_t]
        self._held: list[int] = []
        try:
            self.mapped_from_bytes = self._search()
        except MallocError:
            self._give_back()
            raise

    def keep(self) -> None:
        """Map no block on its own, and keep what is freed."""
        self._set(mapped=0, trim_bytes=2**31 - 1, mapped_from_bytes=self.mapped_from_bytes)
        self._give_back()

    def put_back(self) -> None:
        """Make the settings what they were, give the kernel what was kept, and occupy the room that is left.

        What was mapped before would otherwise find room in the heap, between blocks that came meanwhile.
        """
        trim = LEAST if self.mapped_from_bytes <= LEAST * CLOSE else 2 * self.mapped_from_bytes
        self._set(mapped=MOST_MAPPED, trim_bytes=trim, mapped_from_bytes=self.mapped_from_bytes)
        self._libc.malloc_trim(0)
        if self._is_mapped(int(self.mapped_from_bytes * CLOSE)):
            self._libc.free(self._held.pop())

    def close(self) -> None:
        """Give up what occupies room."""
        self._give_back()

    def _set(self, *, mapped: int, trim_bytes: int, mapped_from_bytes: int) -> None:
        wanted = ((M_MMAP_THRESHOLD, mapped_from_bytes), (M_TRIM_THRESHOLD, trim_bytes), (M_MMAP_MAX, mapped))
        if not all(self._libc.mallopt(name, value) for name, value in wanted):
            raise MallocError("mallopt() refused the settings")

    def _search(self) -> int:
        if not self._is_mapped(2 * MOST):
            raise MallocError("large blocks come from the heap already")
        low, high = LEAST, MOST
        if self._is_mapped(low):
            return low
        while high > low * CLOSE:
            middle = int((low * high) ** 0.5)
            if self._is_mapped(middle):
                high = middle
            else:
                low = middle
        return high

    def _is_mapped(self, size: int) -> bool:
        """Ask for such blocks until one is mapped, or the heap has grown for it: free space goes first."""
        end = self._libc.sbrk(0)
        for _ in range(_MOST_ASKED_BYTES // size):
            block = self._libc.malloc(size)
            if not block:
                raise MallocError("there is too little memory to find out malloc's thresholds")
            self._held.append(block)
            if ctypes.c_size_t.from_address(block - _WORD).value & _IS_MAPPED:
                return True
            if self._libc.sbrk(0) != end:
                return False
        raise MallocError("malloc's thresholds could not be found out")

    def _give_back(self) -> None:
        while self._held:
            self._libc.free(self._held.pop())
