"""Python processes that begin with torch imported: forks of one server, in place of new interpreters.

Importing torch takes a second or two of processor time, and the end-to-end tests start hundreds of
processes. Where a test is not about how the interpreter starts, ends and is isolated, it takes `Popen`
and `run` from here: the same arguments, pipes, signals and exit codes as subprocess's.

In: a command of this interpreter, `[sys.executable, script | -m module, ...]`. Out: a process with a
`__main__`, argv, path, environment and working folder of its own. torch is hidden from it until it
says `import torch`, so that who waits for that import sees it. What our command line starts as the
script's process is a fork as well, and so is our command line behind torchrun. Anything else (options
of the interpreter, variables that are read when it starts, a terminal, a machine with a GPU, whose
driver forbids forks) is a real start.

`python forked.py FD PADDING` is the server: it forks, tells process numbers and exit codes, and ends
when nobody can ask it any more.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import importlib.machinery
import io
import json
import os
import pkgutil
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Mapping
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["Popen", "run"]

AT_START = (
    "PYTHON", "LD_", "GLIBC_", "MALLOC_", "OMP_", "MKL_", "KMP_", "OPENBLAS_", "TORCH_", "TORCHDYNAMO_",
    "TORCHINDUCTOR_", "PYTORCH_", "CUDA_", "KINETO_",
)  # fmt: skip
"""Beginnings of variables that are read when the interpreter starts or torch is imported."""
LATER = (
    "TORCHINDUCTOR_CACHE_DIR", "TORCH_NCCL_", "PYTHONHASHSEED", "PYTORCH_NVML_BASED_CUDA_CHECK",
    "KMP_DUPLICATE_LIB_OK",
)  # fmt: skip
"""Not so these; hashes are the same in all forks anyway, as this variable is to make them. The last two are
set for good by importing accelerate and threadpoolctl: all that a process starts from then on would be real
starts."""
HARNESS = str(Path(__file__).resolve().parents[1] / "bottleneck" / "harness" / "__main__.py")
BENCHMARKS = str(Path(__file__).resolve().parent / "benchmarks")
COMMAND, PROCESS = ["-m", "torch_bottleneck"], ["-m", "torch_bottleneck.harness"]
NEEDED = ("numpy.ma", "isal.igzip", "jinja2", "rich.console", "rich.padding", "torchgen")
"""What our modules import when they first need it: once in the server, not once in each process."""
LONGEST = 100_000
"""Bytes of a request; longer ones are real starts."""
PADDING = 16_384
"""Bytes of the server's command line, over which each fork writes its own, for `ps` and for tests."""

allowed = True
"""False: every process is a new interpreter."""
_ask: socket.socket | None = None
"""Where to ask for forks; None where nobody has asked yet, or where nobody may."""
_variables: dict[str, str] = {}
"""Variables of the server's start that matter."""
_possible = True
_ours_only = False
"""In a fork nothing but our own commands are forks in turn."""


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """`subprocess.Popen`, whose process is a fork of the server where that makes no difference."""

    _status: socket.socket | None = None

    def _execute_child(  # type: ignore[override]
        self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any, env: Any,
        startupinfo: Any, creationflags: Any, shell: Any, p2cread: int, p2cwrite: int, c2pread: int,
        c2pwrite: int, errread: int, errwrite: int, *rest: Any,
    ) -> None:  # fmt: skip
        """Ask for a fork, or start a process as ever. `rest` is longer since Python 3.11."""
        plain = not (executable or preexec_fn or pass_fds or shell) and close_fds
        words = _words_of(args) if plain and rest[6:] in ((), (-1,)) else []
        request = {
            "words": words,
            "cwd": str(Path(os.fsdecode(cwd or ".")).absolute()),
            "env": {os.fsdecode(k): os.fsdecode(v) for k, v in (os.environ if env is None else env).items()},
            "session": bool(rest[5]),
            "unbuffered": "-u" in args[1:2],
        }
        fds = [own if fd == -1 else fd for own, fd in enumerate((p2cread, c2pwrite, errwrite))]
        self._status = _fork(request, fds) if words else None
        number = self._status.recv(64) if self._status is not None else b""
        if not number:
            if self._status is not None:
                self._status.close()
            self._status = None
            super()._execute_child(  # type: ignore[misc]
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags,
                shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *rest,
            )  # fmt: skip
            return
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]
        self.pid = int(number)
        self._child_created = True

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """Hear of the end, as waitpid tells it."""
        if self._status is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc,no-any-return]
        if self._status.fileno() == -1:
            return self.pid, signal.SIGKILL
        if wait_flags and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        said = self._status.recv(64)
        self._status.close()
        # Nothing: the server itself was killed.
        return self.pid, int(said) if said else signal.SIGKILL

    def _internal_poll(self, _deadstate: int | None = None, *_: Any, **__: Any) -> int | None:
        if self._status is None:
            return super()._internal_poll(_deadstate)  # type: ignore[misc,no-any-return]
        # A signal's handler may ask while the code that it interrupts waits.
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):  # type: ignore[attr-defined]
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


def run(
    command: Any, *, input: Any = None, capture_output: bool = False, timeout: float | None = None,  # noqa: A002
    check: bool = False, **how: Any,
) -> subprocess.CompletedProcess[Any]:  # fmt: skip
    """`subprocess.run`."""
    if input is not None:
        how["stdin"] = subprocess.PIPE
    if capture_output:
        how["stdout"] = how["stderr"] = subprocess.PIPE
    with Popen(command, **how) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


# ------------------------------------------------------------------------------------------ asking


def _words_of(args: Any) -> list[str]:
    """Return the script or `-m` module and what follows it; nothing for any other kind of command."""
    if isinstance(args, (str, bytes)):
        return []
    words = [os.fsdecode(word) for word in args]
    # Said by variables, and so the server's as well: what our command line starts repeats them.
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    for given in (["-u"], flags, []):
        start = 1 + len(given)
        if words[:start] == [sys.executable, *given] and len(words) > start:
            break
    else:
        return []
    rest = words[start:]
    if _ours_only:
        return rest if rest[0] == HARNESS or rest[:2] in (COMMAND, PROCESS) else []
    return rest if rest[0] == "-m" or (rest[0].endswith(".py") and not rest[0].startswith("-")) else []


def _starts_ours(words: list[str]) -> bool:
    """Say whether a command starts commands of ours, or the script's process: then it may ask as well."""
    if words[:2] == PROCESS:
        return '"torch.distributed.run"' in words[2]  # the script is the launcher, which starts ranks
    return words[:2] in (COMMAND, ["-m", "torch.distributed.run"]) or words[0].startswith(BENCHMARKS)


def remember() -> None:
    """Take the variables of now for those of the server, whatever a test sets before it asks for a fork."""
    _variables.update(_read_at_start(os.environ))


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in env.items() if k.startswith(AT_START) and not k.startswith(LATER)}


def _fork(request: dict[str, Any], fds: list[int]) -> socket.socket | None:
    """Return where the fork tells its number, then its exit; None where it must be a real process."""
    from torch_bottleneck.runs.launch import ENVIRONMENT

    wanted = _read_at_start(request["env"])
    if not allowed or not _serve() or not Path(request["cwd"]).is_dir() or any(os.isatty(fd) for fd in fds):
        return None
    if {**ENVIRONMENT, **wanted} != {**ENVIRONMENT, **_variables}:
        return None
    text = json.dumps(request).encode()
    if len(text) > LONGEST:
        return None
    assert _ask is not None
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            asks = [_ask.fileno()] if _starts_ours(request["words"]) else []
            socket.send_fds(_ask, [text], [*fds, theirs.fileno(), *asks])
        except OSError:
            ours.close()
            return None
    return ours


def _serve() -> bool:
    """Start the server unless it runs; say whether there is one."""
    global _ask, _possible
    if _ask is not None or not _possible:
        return _ask is not None
    _possible = hasattr(os, "pidfd_open") and not Path("/dev/nvidiactl").exists()
    if not _possible:
        return False
    from torch_bottleneck.runs.launch import ENVIRONMENT

    if not _variables:
        remember()
    others = {k: v for k, v in os.environ.items() if k not in _read_at_start(os.environ)}
    _ask, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words = [sys.executable, __file__, str(theirs.fileno()), json.dumps(_variables), "-" * PADDING]
    with theirs:
        server = subprocess.Popen(
            words,
            env={**ENVIRONMENT, **others, **_variables, "PYTHONHASHSEED": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )

    def end() -> None:
        assert _ask is not None
        _ask.close()
        server.wait()

    atexit.register(end)
    return True


# ----------------------------------------------------------------------------------------- serving


def _wait_for_requests(listen: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each request. Returns in the forks alone: what was asked for, and its streams."""
    running: dict[int, tuple[int, int]] = {}
    poll = select.poll()
    poll.register(listen, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd in running:
                pid, channel = running.pop(fd)
                _, status = os.waitpid(pid, 0)
                with contextlib.suppress(OSError):  # whoever asked may be gone
                    os.write(channel, str(status).encode())
                poll.unregister(fd)
                os.close(fd)
                os.close(channel)
                continue
            text, fds, _, _ = socket.recv_fds(listen, LONGEST, 5)
            if not text:
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                for other, (_, channel) in running.items():
                    os.close(other)
                    os.close(channel)
                listen.close()
                return json.loads(text), fds
            for number, fd in enumerate(fds):
                if number != 3:
                    os.close(fd)
            watched = os.pidfd_open(pid)
            running[watched] = (pid, fds[3])
            poll.register(watched, select.POLLIN)


def _become(request: dict[str, Any], fds: list[int]) -> None:
    """Take the streams, folder, variables and arguments of a process that has just been started."""
    if request["session"]:
        os.setsid()
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    # Made anew: those of the server have learned that /dev/null can seek, which a pipe cannot.
    for name, number in (("stdout", 1), ("stderr", 2)):
        had = getattr(sys, name)
        through = request["unbuffered"] or had.write_through
        raw = open(number, "wb", 0 if through else -1, closefd=False)  # noqa: SIM115
        lines = had.line_buffering or os.isatty(number)
        stream = io.TextIOWrapper(raw, had.encoding, had.errors, line_buffering=lines, write_through=through)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.argv = request["words"]
    _show_as([sys.executable, *sys.argv])
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    os.write(fds[3], str(os.getpid()).encode())
    os.close(fds[3])


def _show_as(words: list[str]) -> None:
    """Write another command line over the server's, which is long enough."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    text = b"\0".join(os.fsencode(word) for word in words) + b"\0"
    ctypes.memmove(begin, text[: end - begin].ljust(end - begin, b"\0"), end - begin)


def _run_main() -> None:
    """Run what `sys.argv` names as python does, up to whatever ends it."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __annotations__={})
    sys.modules["__main__"] = main
    if sys.argv[0] == "-m":
        name = sys.argv[1]
        sys.argv = sys.argv[1:]
        sys.path[0] = str(Path.cwd())
        runpy._run_module_as_main(name)  # type: ignore[attr-defined]
        return
    path = os.path.abspath(sys.argv[0])  # noqa: PTH100 - links stay in it
    sys.path[0] = str(Path(path).resolve().parent)
    main.__dict__.update(__file__=path, __cached__=None)
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), main.__dict__)


def _run_to_the_end() -> NoReturn:
    """End as python does, but for taking apart all that the server has imported, which takes longer."""
    code = 0
    try:
        _run_main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if code and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def _without_our_frames(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


class _Hidden(MetaPathFinder):
    """Modules that are imported and do not show: importing one puts it, and what it brought, back."""

    def __init__(self, *names: str) -> None:
        self._modules: dict[str, tuple[types.ModuleType, Any]] = {}
        self._brought: dict[str, list[str]] = {}
        for name in names:
            before = set(sys.modules)
            importlib.import_module(name)
            came = [new for new in sys.modules if new not in before and new.startswith("torch")]
            self._modules.update((new, (sys.modules[new], sys.modules[new].__spec__)) for new in came)
            self._brought[name] = came

    def hide(self) -> None:
        """Take them all away."""
        for name in self._brought:
            parent, _, last = name.rpartition(".")
            if parent:
                # `torch` itself imports it when it is first asked for it.
                sys.modules[parent].__dict__.pop(last, None)
        for name in self._modules:
            del sys.modules[name]
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Find what is hidden."""
        del path, target
        if fullname not in self._modules:
            return None
        return importlib.machinery.ModuleSpec(fullname, _Back(self), is_package=True)

    def module(self, name: str) -> types.ModuleType:
        """Return one of them."""
        return self._modules[name][0]

    def put_back(self, name: str) -> None:
        """Have a module be imported, and what it brought."""
        for new in (name, *self._brought.get(name, ())):
            if new in self._modules:
                module, spec = self._modules.pop(new)
                if module.__spec__ is not spec:
                    module.__spec__ = spec  # importing had given it another
                sys.modules[new] = module


class _Back(Loader):
    def __init__(self, hidden: _Hidden) -> None:
        self._hidden = hidden

    def create_module(self, spec: Any) -> types.ModuleType:
        return self._hidden.module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        assert module.__spec__ is not None
        self._hidden.put_back(module.__spec__.name)


def _serve_forks() -> None:
    """Import, then fork for whoever asks; returns in the forks alone, ready to run."""
    global _ask, _ours_only
    listen = socket.socket(fileno=int(sys.argv[1]))
    _variables.update(json.loads(sys.argv[2]))
    hidden = _Hidden("torch", "torch._dynamo", "torch._inductor.compile_fx")
    import torch_bottleneck

    ours = [found.name for found in pkgutil.walk_packages(torch_bottleneck.__path__, "torch_bottleneck.")]
    for name in (*(name for name in ours if not name.endswith(("__main__", ".plugin"))), *NEEDED):
        with contextlib.suppress(ImportError):  # isal, and what some of ours are for, is not everywhere
            importlib.import_module(name)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "threads do not come along in a fork"
    gc.freeze()  # what is there already is not looked through again and again, and so stays shared
    request, fds = _wait_for_requests(listen)
    _become(request, fds[:4])
    hidden.hide()
    sys.excepthook = _without_our_frames
    if len(fds) > 4:
        _ask, _ours_only = socket.socket(fileno=fds[4]), True
        subprocess.Popen = Popen  # type: ignore[misc]


if __name__ == "__main__":
    _serve_forks()
    _run_to_the_end()
