"""Patches of memory allocation: on the device, and of malloc where training runs on the CPU.

In: allocator settings, `empty_cache`, malloc. Out: the same script on another allocator policy.
Settings that are read when the process starts come with the environment; here they are checked.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ....model.verify import Applied
from ....runs.environment import variables
from ... import torch_private
from ...facts.settings import malloc_library
from .base import LeftOut, NotSwitchable, Patch, Program, plural
from .glibc import M_MMAP_MAX, M_TRIM_THRESHOLD, Malloc, MallocError

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


class Expandable(Patch):
    """Segments that grow."""

    fix = "FX201"
    why_not_live = "segments that were reserved before do not grow, and those that do stay"

    def install(self) -> None:
        """Settings that the script wrote into the environment before importing torch are kept."""
        made = variables(self.environment, self.options, os.environ)
        os.environ.update(made)
        # Of the old name and the new one, which torch reads from 2.9 on, the new one wins.
        self._text = list(made.values())[-1]

    def training_begins(self) -> None:
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            # Once more through torch: it may have read the environment while it was imported.
            torch_private.set_allocator_settings(self._text)

    def check(self) -> Applied:
        """Look at the segments themselves."""
        if torch_private.device_kind() != "cuda":
            return self.not_applied("no NVIDIA GPU was used")
        segments = torch.cuda.memory_snapshot()
        growing = sum(bool(segment.get("is_expandable")) for segment in segments)
        if not growing:
            return self.not_applied("no segment of the allocator is expandable")
        self.count = growing
        return self.applied(f"{growing} of {plural(len(segments), 'segment')} expandable")


class Preheat(Patch):
    """One allocation as large as the memory that training came to hold, before it begins."""

    fix = "FX203"
    why_not_live = "it changes what the first steps reserve, which is long done"

    def training_begins(self) -> None:
        if self.count or not (torch.cuda.is_available() and torch.cuda.is_initialized()):
            return
        free, _total = torch.cuda.mem_get_info()
        wanted = int(self.option("bytes", 0)) - int(torch.cuda.memory_reserved())
        size = min(wanted, int(free * 0.9))
        if size <= 0:
            self.passed(
                "it is not known how much memory the script comes to reserve: run it from a run folder"
            )
            return
        try:
            block = torch.empty(size, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            self.passed(f"{size} bytes could not be had in one piece")
            return
        del block
        self.acted(None, bytes=size)


class KeepCache(LeftOut):
    """Calls of empty_cache() do nothing."""

    fix = "FX204"
    says = ("{} of empty_cache() left out", "call")
    nothing_to_do = "empty_cache() was never called during training"

    def functions(self) -> Sequence[tuple[Any, str]]:
        """Return where the functions are and what they call: a script may hold them by their names."""
        return torch_private.cache_emptiers()


class MallocSettings(Patch):
    """Freed memory stays in the process (glibc)."""

    fix = "FX205"
    live = True
    settles = 3
    says = ("mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD) accepted", "time")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._malloc: Malloc | None = None
        """While the script trains."""

    def install(self) -> None:
        try:
            libc = ctypes.CDLL("libc.so.6")
            done = libc.mallopt(M_MMAP_MAX, 0) and libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        except (OSError, AttributeError):
            self.passed("there is no glibc in this process")
            return
        if done:
            self.acted(None)
        else:
            self.passed("mallopt() refused the settings")

    def put_in(self, program: Program) -> None:  # noqa: ARG002 - the method's signature
        if torch_private.device_kind() != "cpu":
            raise NotSwitchable("the training runs on a GPU")
        if (library := malloc_library()) != "glibc":
            raise NotSwitchable(f"{library} serves this process, not glibc")
        try:
            if self._malloc is None:
                self._malloc = Malloc()
            self._malloc.keep()
        except MallocError as error:
            raise NotSwitchable(str(error)) from None
        self.acted(None)

    def take_out(self) -> None:
        if self._malloc is not None:
            self._malloc.put_back()

    def close(self) -> None:
        if self._malloc is not None:
            self._malloc.close()
            self._malloc = None

    def check(self) -> Applied:
        library = malloc_library()
        if library != "glibc":
            return self.not_applied(f"{library} serves this process, not glibc")
        return super().check()


class OtherMalloc(Patch):
    """Jemalloc or tcmalloc, preloaded by the environment."""

    fix = "FX206"
    why_not_live = "malloc is replaced before the process starts"

    def check(self) -> Applied:
        """Look at what is mapped into the process."""
        library = malloc_library()
        if library in ("glibc", "unknown"):
            return self.not_applied("neither jemalloc nor tcmalloc is installed here")
        self.count = 1
        return self.applied(f"{library} is loaded")


class HugePages(Patch):
    """Huge pages, asked for by THP_MEM_ALLOC_ENABLE in the environment."""

    fix = "FX208"
    why_not_live = "torch reads the setting once, and what is allocated stays as it is"

    def check(self) -> Applied:
        """See whether the kernel grants huge pages and this process has some."""
        with contextlib.suppress(OSError):
            if "[never]" in HUGE_PAGES.read_text():
                return self.not_applied("the kernel grants no transparent huge pages")
        size = 0
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
                if line.startswith("AnonHugePages:"):
                    size = int(line.split()[1]) * 1024
        if not size:
            return self.not_applied("no memory of this process lies in huge pages")
        self.count = 1
        return self.applied(f"{size // 2**20} MiB in huge pages")
