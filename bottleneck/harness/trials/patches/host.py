"""Patches of the host's side: the script's profiler, collector, threads, NUMA node; the user's change.

In: nothing of the script's. Out: the process set up otherwise, and read back after the timed steps. The
user's own change is in the sources already: how many of the changed files this process has loaded.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.autograd import profiler

from ....model.verify import Applied
from ....runs.environment import first_affinity, usable_cores
from ... import torch_private
from ...lines.sites import is_library
from .base import LeftOut, NotSwitchable, Patch, Program, plural
from .second_loader import depth_of

NODES = Path("/sys/devices/system/node")


class NoProfiler(Patch):
    """The script's own profiler records nothing."""

    fix = "FX519"
    live = True
    for_ranks = True
    says = ("the script's profiler left off {}", "time")
    nothing_to_do = "the script began no profiler of torch"

    def put_in(self, program: Program) -> None:
        if torch_private.profiler_running():
            raise NotSwitchable("the script's profiler records across the update")
        super().put_in(program)

    def install(self) -> None:
        for name in torch_private.PROFILER_CALLS:
            self.replaced.put(profiler, name, self._make)

    def _make(self, original: Callable[..., Any]) -> Callable[..., Any]:
        begins = original.__name__ == "_enable_profiler"

        def call(*_args: Any, **_kwargs: Any) -> None:
            if begins:
                self.acted_here()

        return call


class NotTraced(Patch):
    """What Python calls for each line or call is not called on the training thread.

    Only functions of Python: what is written in C, as coverage is, loses count of the frames meanwhile, or
    cannot be put back by Python.
    """

    fix = "FX533"
    live = True
    for_ranks = True

    def install(self) -> None:
        self._tracers: tuple[Any, Any] = (None, None)

    def training_begins(self) -> None:
        """End it.

        Raises:
            NotSwitchable: nothing is called, or what is cannot be put back.
        """
        if any(self._tracers):
            return
        tracers = sys.gettrace(), sys.getprofile()
        if not any(tracers):
            raise NotSwitchable("nothing traces the script's Python")
        if not all(each is None or inspect.isroutine(each) for each in tracers):
            raise NotSwitchable("what is called is written in C, and would not work as before")
        self._tracers = tracers
        sys.settrace(None)
        sys.setprofile(None)
        self.acted(None)

    def uninstall(self) -> None:
        super().uninstall()
        (trace, profile), self._tracers = self._tracers, (None, None)
        # What the script has begun meanwhile stays.
        if trace is not None and sys.gettrace() is None:
            sys.settrace(trace)
        if profile is not None and sys.getprofile() is None:
            sys.setprofile(profile)

    def evidence(self) -> str:
        return "nothing was called for each line or call of Python"


class NoCollector(Patch):
    """What exists when training begins is not walked again, and nothing is collected."""

    fix = "FX505"
    live = True
    for_ranks = True

    def install(self) -> None:
        self._rests = self._froze = False

    def training_begins(self) -> None:
        if not self._rests:
            self._rests = True
            self._was = gc.isenabled()
            gc.collect()
            # What the script has frozen itself could not be told from ours when it is to be thawed.
            self._froze = not gc.get_freeze_count()
            if self._froze:
                gc.freeze()
            gc.disable()
            self.acted(None)

    def uninstall(self) -> None:
        super().uninstall()
        if self._rests:
            self._rests = False
            if self._froze:
                gc.unfreeze()
            if self._was:
                gc.enable()

    def check(self) -> Applied:
        if self.count and not self._was:
            return self.not_applied("the script disables the collector itself")
        if gc.isenabled():
            return self.not_applied("the script enabled the collector again" if self.count else "")
        return self.applied(f"collector off, {gc.get_freeze_count()} objects frozen")


class NoCollections(LeftOut):
    """Calls of gc.collect() in the script's own files do nothing; Python collects by itself as before."""

    fix = "FX518"
    of_the_script = True
    says = ("{} of gc.collect() left out", "call")
    nothing_to_do = "the script's own files never called gc.collect() during training"

    def functions(self) -> Sequence[tuple[Any, str]]:
        return ((gc, "collect"),)


class NoWaiting(LeftOut):
    """Calls of torch.cuda.synchronize() in the script's own files do nothing.

    What torch waits for itself, as before it records a graph, it needs.
    """

    fix = "FX527"
    of_the_script = True
    says = ("{} of torch.cuda.synchronize() left out", "call")
    nothing_to_do = "the script's own files never called torch.cuda.synchronize() during training"

    def functions(self) -> Sequence[tuple[Any, str]]:
        return ((torch.cuda, "synchronize"),)


class NoSideWork(Patch):
    """A function of the user's, whose value nobody takes, does nothing."""

    fix = "FX504"
    live = True

    def install(self) -> None:
        self._bodies: list[tuple[FunctionType, CodeType]] = []

    def training_begins(self) -> None:
        """Give every function of that file and name a body that does nothing.

        Raises:
            NotSwitchable: there is none that can have one.
        """
        file, _, name = str(self.option("function", "")).rpartition(":")
        found = [each for each in _functions_of_modules() if each.__code__.co_name == name]
        found = [each for each in found if each.__code__.co_filename == file]
        if not found:
            raise NotSwitchable(
                f"no function {name or 'to leave out'} is known to a module or class of the script"
            )
        if any(each.__code__.co_freevars or each.__code__.co_flags & _RUNS_LATER for each in found):
            raise NotSwitchable(f"{name}() is a closure, a generator or a coroutine")
        self._bodies = [(each, each.__code__) for each in found]
        for each in found:
            each.__code__ = _NOTHING
        self.count = len(found)

    def uninstall(self) -> None:
        for each, body in self._bodies:
            each.__code__ = body
        self._bodies = []

    def evidence(self) -> str:
        name = str(self.option("function", "")).rpartition(":")[2]
        return f"{name}() did nothing; what it does was not needed for these steps"


_RUNS_LATER = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_NOTHING = (lambda *_args, **_kwargs: None).__code__


def _functions_of_modules() -> Iterator[FunctionType]:
    """Yield the functions of the script's modules and of their classes, each once."""
    # An attribute of a module, and the class of an object, may load what stands behind it.
    named = ((name, getattr(module, "__dict__", {})) for name, module in list(sys.modules.items()))
    own = {
        name: names
        for name, names in named
        if isinstance(file := names.get("__file__"), str) and not is_library(file)
    }
    pending = [value for names in own.values() for value in list(names.values())]
    seen: set[int] = set()
    while pending:
        each = pending.pop()
        each = each.__func__ if issubclass(type(each), (staticmethod, classmethod)) else each
        each = inspect.unwrap(each) if type(each) is FunctionType else each
        if id(each) in seen:
            continue
        seen.add(id(each))
        if type(each) is FunctionType:
            yield each
        elif issubclass(type(each), type) and each.__module__ in own:
            pending += vars(each).values()


class Threads(Patch):
    """As many intra-op threads as cores (also by OMP_NUM_THREADS, in the environment)."""

    fix = "FX506"
    live = True
    is_guarded = True

    def install(self) -> None:
        self._wanted = int(self.option("threads", usable_cores()))
        self._before: int | None = None

    def training_begins(self) -> None:
        now = torch.get_num_threads()
        if now != self._wanted:
            self._before = now
            torch.set_num_threads(self._wanted)
            self.acted(None, threads=self._wanted)

    def put_in(self, program: Program) -> None:
        super().put_in(program)
        if self._before is None:
            raise NotSwitchable(f"there are {plural(self._wanted, 'intra-op thread')} already")

    def uninstall(self) -> None:
        super().uninstall()
        if self._before is not None and torch.get_num_threads() == self._wanted:
            torch.set_num_threads(self._before)
        self._before = None

    def check(self) -> Applied:
        now = torch.get_num_threads()
        if now != self._wanted:
            return self.not_applied(f"the script set {plural(now, 'thread')} again")
        told = f"{self._before} -> " if self._before is not None else ""
        # The environment may have done it before we could see another number.
        self.count = max(self.count, 1)
        self.values["threads"] = now
        return self.applied(f"{told}{plural(now, 'intra-op thread')}")


class CoresOfTheStart(Patch):
    """The cores with which the process began, for its threads and for the processes that it has started."""

    fix = "FX522"
    live = True
    nothing_to_do = "the process may use the cores with which it began"

    def install(self) -> None:
        self._before: dict[int, set[int]] = {}

    def training_begins(self) -> None:
        cores = first_affinity()
        for thread in _threads_under(os.getpid()):
            with contextlib.suppress(OSError):  # it has ended
                now = os.sched_getaffinity(thread)
                if now < cores:
                    os.sched_setaffinity(thread, cores)
                    self._before[thread] = now
        if self._before:
            self.acted(None, cores=len(cores))

    def put_in(self, program: Program) -> None:
        super().put_in(program)
        if not self._before:
            raise NotSwitchable(self.nothing_to_do)

    def settle_steps(self, program: Program) -> int:
        """What workers had made ready does not count."""
        return self.settles + (depth_of(program.loader) if program.loader is not None else 0)

    def uninstall(self) -> None:
        super().uninstall()
        for thread, cores in self._before.items():
            with contextlib.suppress(OSError):
                os.sched_setaffinity(thread, cores)
        self._before = {}

    def evidence(self) -> str:
        return f"{plural(int(str(self.values['cores'])), 'core')} for this process and its workers"


def _threads_under(pid: int) -> Iterator[int]:
    """Return the threads of a process and of all that it has started, as the system numbers them."""
    with contextlib.suppress(OSError):  # it has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            yield int(thread.name)
            for child in (thread / "children").read_text().split():
                yield from _threads_under(int(child))


class OneNode(Patch):
    """The cores of one NUMA node only."""

    fix = "FX507"
    why_not_live = "threads that run already stay on their cores, and memory on its node"

    def install(self) -> None:
        nodes = [_cores(path) for path in sorted(NODES.glob("node[0-9]*/cpulist"))]
        nodes = [node for node in nodes if node]
        if len(nodes) < 2:
            self.passed("the machine has one NUMA node")
            return
        allowed = os.sched_getaffinity(0)
        best = max((node & allowed for node in nodes), key=len)
        if not best or best == allowed:
            self.passed("the process may use one node only already")
            return
        self._before = allowed
        os.sched_setaffinity(0, best)
        self.acted(None, cores=len(best))

    def uninstall(self) -> None:
        super().uninstall()
        if self.count:
            os.sched_setaffinity(0, self._before)

    def evidence(self) -> str:
        return f"bound to {plural(int(str(self.values['cores'])), 'core')} of one node"


def _cores(path: Path) -> set[int]:
    """Return the cores of a list like "0-3,8-11"."""
    try:
        text = path.read_text().strip()
    except OSError:
        return set()
    cores: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    return cores


class OwnChange(Patch):
    """The program was started in a folder in which its sources are changed."""

    fix = "own"
    why_not_live = "it is a change of the source"
    nothing_to_do = "none of the changed files was loaded: the script takes them from another folder"
    says = ("{} of the change in use", "file")

    def install(self) -> None:
        self._cwd = Path.cwd()  # the script may go elsewhere

    def check(self) -> Applied:
        files = set(self.options.get("files", ()))
        python = {file for file in files if file.endswith(".py")}
        named = (getattr(module, "__dict__", {}).get("__file__") for module in list(sys.modules.values()))
        loaded = {str(Path(self._cwd, name).resolve()) for name in named if isinstance(name, str)}
        self.count = len(python & loaded) if python else len(files)
        return super().check()
