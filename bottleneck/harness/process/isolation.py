"""Makes a forked copy of the script's process harmless: what it does reaches neither the script nor the disk.

In: a process that has just been forked, with one thread. Out: the same process, whose files, shared memory
and signals are its own, and which is told of each attempt to change something outside of it. What C code
writes into a file that it opens by itself is not seen.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import re
import signal
import stat
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from ..lines.sites import is_library, user_site

MOST_COPIED_BYTES = 1 << 30
"""Shared memory and files open for reading and writing, together: beyond this a copy costs too much."""
_OPEN_FILES = Path("/proc/self/fd")
_PR_SET_PDEATHSIG = 1
_HARMLESS_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_SHARED = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) .w.s \S+ \S+ \S+ *(.*)$")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
EFFECTS = frozenset(
    {
        *("os.chmod", "os.chown", "os.exec", "os.kill", "os.killpg", "os.link", "os.mkdir", "os.posix_spawn"),
        *("os.remove", "os.rename", "os.rmdir", "os.spawn", "os.symlink", "os.system", "os.truncate"),
        *("os.utime", "os.setxattr", "os.removexattr", "sqlite3.connect", "subprocess.Popen"),
        *("socket.bind", "socket.connect", "socket.sendmsg", "socket.sendto"),
    }
)
"""Audit events of Python after which the world is not what it was; `open` is looked at by its mode."""
_HELPERS = (
    *("torch._inductor", "torch._functorch", "torch._dynamo.convert_frame", "torch.utils.cpp_extension"),
    "triton",
    # How tensors come from the workers of a loader, and what is cleared away for it.
    *("multiprocessing.resource_sharer", "multiprocessing.util"),
)
"""Modules that change the world in a way of their own, which nobody sees."""
_OUR_PATCHES = f"{__name__.partition('.harness.')[0]}.harness.trials.patches"


class NotPrivateError(Exception):
    """The process shares something with its copy that cannot be taken apart; the text says what."""


def isolate(*, keep: int) -> None:
    """Give this process its own files, shared memory and signals. It ends with the process it is a copy of.

    The file `keep` both may write.

    Raises:
        NotPrivateError: something stays shared.
    """
    _end_with_parent()
    for number in signal.valid_signals():
        with contextlib.suppress(OSError, ValueError):
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
    # Ctrl-C is for the script's process, which ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    copied = _own_shared_memory()
    _own_files(MOST_COPIED_BYTES - copied, keep=keep)
    # What the script imports only now must not leave compiled modules behind.
    sys.dont_write_bytecode = True


def tell_of_effects(tell: Callable[[str], None], *, allowed: Path) -> None:
    """From now on, call `tell` before something outside of this process is changed.

    Compilers may write, and so may what belongs to a fix, and what brings batches from workers. In processes
    that this one starts (workers of a DataLoader) the attempt is an error.

    Args:
        tell: takes what the script is about to do, and where; does not return.
        allowed: a folder in which files may change.
    """
    folder, own_pid = f"{allowed}{os.sep}", os.getpid()

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args[:3]
            writes = any(c in mode for c in "wax+") if isinstance(mode, str) else bool(flags & _WRITING)
            if not writes or isinstance(path, int):
                return
        elif event not in EFFECTS:
            return
        target = args[0] if args and isinstance(args[0], (str, bytes, os.PathLike)) else ""
        where = os.path.abspath(os.fsdecode(target)) if target else ""  # noqa: PTH100 - links stay
        if where in _HARMLESS_DEVICES or where.startswith(folder) or not _is_scripts(sys._getframe(1)):
            return
        if os.getpid() != own_pid:
            raise PermissionError(f"{event} {where}: this is a copy of the script's process")
        site = user_site(0)
        place = f" at {site.file}:{site.line}" if site is not None else ""
        tell(f"{'writes ' + where if event == 'open' else event + (where and ' ' + where)}{place}")

    sys.addaudithook(hook)


def _is_scripts(frame: FrameType | None) -> bool:
    """Say whether the script or a library of its does this, and neither a helper of torch's nor a patch."""
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith((*_HELPERS, _OUR_PATCHES)):
            return False
        if not is_library(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return True


def _end_with_parent() -> None:
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    with contextlib.suppress(OSError):
        # Where memory runs out, the copy goes and the script stays.
        Path("/proc/self/oom_score_adj").write_text("1000")


# -- shared memory ---------------------------------------------------------------------------------


def _own_shared_memory() -> int:
    """Put a private copy in the place of all memory that others see; return its size."""
    regions = list(_shared_regions(Path("/proc/self/maps").read_text().splitlines()))
    size = sum(end - start for start, end in regions)
    if size > MOST_COPIED_BYTES:
        raise NotPrivateError(f"the script shares {size >> 20} MB of memory with other processes or files")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    for start, end in regions:
        content = ctypes.string_at(start, end - start)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
        if libc.mmap(start, end - start, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) != start:
            raise NotPrivateError("shared memory cannot be made private")
        ctypes.memmove(start, content, len(content))
    return size


_MAP_FIXED = 0x10


def _shared_regions(lines: Iterable[str]) -> Iterable[tuple[int, int]]:
    """Yield where memory begins and ends that is written to and shared; that of devices is none."""
    for line in lines:
        found = _SHARED.match(line)
        if found is None:
            continue
        start, end, name = found.groups()
        is_device = name.startswith("/dev/") and not name.startswith(("/dev/shm/", "/dev/zero"))  # noqa: S108
        if not is_device and not name.startswith("anon_inode"):
            yield int(start, 16), int(end, 16)


# -- files -----------------------------------------------------------------------------------------


def _own_files(most_bytes: int, *, keep: int) -> None:
    """Open each file anew, which gives it a position of its own; what leads to others leads nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for place in list(_OPEN_FILES.iterdir()):
        number = int(place.name)
        try:
            facts = os.fstat(number)
        except OSError:
            continue  # that of the listing itself
        if number in (nowhere, keep) or stat.S_ISDIR(facts.st_mode) or _is_harmless(number):
            continue
        if not stat.S_ISREG(facts.st_mode):
            _take_place(nowhere, number)
            continue
        how = fcntl.fcntl(number, fcntl.F_GETFL)
        if how & os.O_ACCMODE == os.O_WRONLY:
            _take_place(nowhere, number)
            continue
        if how & os.O_ACCMODE == os.O_RDWR:
            most_bytes -= facts.st_size
            if most_bytes < 0:
                raise NotPrivateError("the script reads and writes a file that is too large to copy")
            own = _copy_of(number, facts.st_size)
        else:
            own = _opened_anew(number)
        os.lseek(own, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
        _take_place(own, number)
        os.close(own)


def _is_harmless(number: int) -> bool:
    with contextlib.suppress(OSError):
        return str((_OPEN_FILES / str(number)).readlink()) in _HARMLESS_DEVICES
    return False


def _opened_anew(number: int) -> int:
    try:
        return os.open(_OPEN_FILES / str(number), os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        path = (_OPEN_FILES / str(number)).readlink()
        raise NotPrivateError(f"{path}, which the script reads, cannot be opened again") from error


def _copy_of(number: int, size: int) -> int:
    own = os.memfd_create("bottleneck")
    position = 0
    while position < size:
        data = os.pread(number, 1 << 20, position)
        if not data:
            break
        os.write(own, data)
        position += len(data)
    return own


def _take_place(own: int, number: int) -> None:
    os.dup2(own, number, inheritable=os.get_inheritable(number))
