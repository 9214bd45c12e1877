"""Whose code the step runs: the stack of the training thread, a thousand times a second, in untraced steps.

In: the training thread, and the clock of its phases. Out: `Stacks`: each sample with the time that it
stands for, the page faults and the system time of the process meanwhile, the step, the phase, and the phase
that had ended before it.

A sample stands for the time since the one before: a call that keeps the interpreter lock (`gc.collect()`,
`json.dumps`) lets no other thread look until it has returned, and is then still the call that runs. With
plain counts it would be one sample of 160 ms.
"""

from __future__ import annotations

import _thread
import contextlib
import resource
import threading
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import msgspec

from ...clocks import perf_counter_ns, sleep
from ...model.stacks import StackFrame, Stacks
from ..signals import signals_go_elsewhere
from .calls import is_entry, name_of, place_of, position_of
from .chains import MOST_FRAMES, is_of_package, source_of
from .frames import stack_of, threads
from .sites import is_library
from .switching import short_switches

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType

    from ..windows.phases import PhaseClock
    from .frames import Frame

INTERVAL_SECONDS = 0.001
MOST_SAMPLES = 20_000
ENDING_SECONDS = 2.0
_OURS = __name__.partition(".")[0]
_ANCHORS = ("forward", "backward", "optimizer")
"""Phases whose beginnings are noted with their stack: they tell what stands before and behind them."""
_NOTED = 4
"""Of beginnings with one stack: the first may lie in a step that does not count."""
_MOST_BEGINNINGS = 256
"""Of a phase, that are looked at: a loss may run many small backward passes before the one that trains."""
_DIVIDES = (*_ANCHORS, "data")
"""Phases that say, when they have ended, in which part of the step the thread is."""
_ASKS_FOR_ITEMS = {
    "",
    *(f"builtins.{name}" for name in ("enumerate", "iter", "list", "next", "tuple", "zip")),
}
"""Of these the function below says what is called: they only ask what they are given for its items."""

_Chain = tuple[StackFrame, ...]
_Stack = tuple[tuple[int, int], ...]
"""(identity of the code, instruction) of each frame, the innermost first."""
_System = tuple[int, int]
"""Minor page faults, and system time in us."""
_DEEPEST = 64
"""Phases that are looked at for the innermost open one."""


class StackSampler:
    """Samples one thread between `begin` and `stop`, once or several times."""

    def __init__(self, clock: PhaseClock) -> None:
        self._clock = clock
        self._rows: list[tuple[int, int, _Stack, str, _System]] = []
        """When, for how many ns, where; the phase that begins, of an anchor; the system's work meanwhile."""
        self._codes: dict[int, CodeType] = {}
        self._namespaces: dict[int, dict[str, Any]] = {}
        """Globals of each code. Let go of as soon as its lines are known: what they hold, like a file that is
        flushed when it goes, must not outlive the script."""
        self._chains: dict[_Stack, tuple[_Chain, _Chain]] = {}
        """The user's frames, and those of packages below them."""
        self._packages: dict[tuple[int, int], StackFrame] = {}
        # No `Counter`: what it does for a new key is Python, which dynamo would look at.
        self._noted: dict[tuple[str, _Stack], int] = {}
        self._begun: dict[str, int] = {}
        self._log: list[tuple[str, int, int]] = []
        self._wanted = False
        self._ended: threading.Event | None = None
        """Set by the other thread at its end; None while there is none."""

    def begin(self) -> None:
        """Look at the calling thread from now on."""
        self._clock.log = []
        self._wanted = True
        self._ended = threading.Event()
        # The script may count its threads: this one is not among those that `threading` knows.
        with signals_go_elsewhere():
            _thread.start_new_thread(self._run, (threading.get_ident(), self._ended))

    def note(self, phase: str | None) -> None:
        """A phase begins on the training thread."""
        if self._wanted and phase in _ANCHORS and self._begun.get(phase, 0) < _MOST_BEGINNINGS:
            self._begun[phase] = self._begun.get(phase, 0) + 1
            stack = self._stack(stack_of(threading.get_ident()))
            self._noted[phase, stack] = noted = self._noted.get((phase, stack), 0) + 1
            if noted <= _NOTED:
                self._rows.append((perf_counter_ns(), 0, stack, phase, (0, 0)))

    def stop(self) -> None:
        """Look no more, until another `begin`."""
        self._wanted = False
        if self._ended is not None:
            self._ended.wait(ENDING_SECONDS)
            self._ended = None
        self._log += self._clock.log or []
        self._clock.log = None

    def seen(self, steps: Sequence[tuple[int, int]]) -> Stacks:
        """Return what was seen in these steps."""
        phases = _Phases(self._log)
        frames: dict[StackFrame, int] = {}
        chains: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        known: dict[_Stack, int] = {}
        leads: set[_Chain] = set()
        """Chains of the user's whose last line runs training."""
        out: list[tuple[int, ...]] = []
        names: dict[str, int] = {"": 0}
        begins = [begin for begin, _ in steps]
        rows: list[tuple[int, _Stack, str, str, int, int, _System]] = []
        for when, for_ns, stack, anchor, system in sorted(self._rows, key=lambda row: row[0]):
            step = bisect_right(begins, when) - 1
            if step < 0 or when > steps[step][1]:
                continue
            if stack not in self._chains:
                self._chains[stack] = self._chain(stack)
            inside, before = phases.at(when)
            if (anchor or inside) in _ANCHORS:
                leads.add(self._chains[stack][0])
            rows.append((step, stack, anchor or inside, before, for_ns // 1000, int(not anchor), system))
        for step, stack, inside, before, us, counts, system in rows:
            if stack not in known:
                users, below = self._chains[stack]
                chain, inner = (
                    tuple(frames.setdefault(frame, len(frames)) for frame in part)
                    for part in (users, below if users in leads else ())
                )
                known[stack] = chains.setdefault((chain, inner), len(chains))
            phase, after = (names.setdefault(name, len(names)) for name in (inside, before))
            out.append((step, known[stack], phase, after, us, counts, *system))
        self._namespaces = {}
        columns = list(zip(*out, strict=True)) or [()] * 8
        return Stacks(
            frames=list(frames),
            stacks=[list(chain) for chain, _ in chains],
            below=[list(inner) for _, inner in chains],
            phases=list(names),
            step_ms=[round((end - begin) / 1e6, 3) for begin, end in steps],
            step=list(columns[0]),
            stack=list(columns[1]),
            phase=list(columns[2]),
            after=list(columns[3]),
            us=list(columns[4]),
            counts=list(columns[5]),
            faults=list(columns[6]),
            system_us=list(columns[7]),
        )

    def abandon(self) -> None:
        """What was seen is not wanted."""
        self.stop()
        self._log, self._rows = [], []
        # Together: without its code an identity may be another one's, and its lines then are, too.
        self._codes, self._namespaces, self._chains, self._packages = {}, {}, {}, {}

    # -- the other thread ------------------------------------------------------------------------

    def _run(self, thread: int, ended: threading.Event) -> None:
        # What fails here ends the sampling, and nothing is printed among what the script prints.
        with contextlib.suppress(Exception):
            self._sample(thread)
        ended.set()

    def _sample(self, thread: int) -> None:
        own = threading.get_ident()
        with short_switches():
            before, system = perf_counter_ns(), _system()
            while self._wanted and len(self._rows) < MOST_SAMPLES:
                sleep(INTERVAL_SECONDS)
                now = perf_counter_ns()
                stack = self._look(thread, own)
                if stack is None:
                    break
                faults, system_us = _system()
                meanwhile = (faults - system[0], system_us - system[1])
                self._rows.append((now, now - before, stack, "", meanwhile))
                before, system = now, (faults, system_us)

    def _look(self, thread: int, own: int) -> _Stack | None:
        """Return the stack of the thread; None if it has ended."""
        frames = stack_of(thread)
        if not frames:
            return None
        if "backward" in self._clock.open_phases:
            # Hooks run on the device's thread of autograd, which no Python has started.
            for ident in threads():
                other = stack_of(ident) if ident not in (thread, own) else []
                if other and other[-1].code.co_name not in ("_bootstrap", "<module>"):
                    frames = other + frames
        return self._stack(frames)

    def _stack(self, frames: list[Frame]) -> _Stack:
        for code, _, _, namespace in frames:
            self._codes.setdefault(id(code), code)
            self._namespaces.setdefault(id(code), namespace)
        return tuple((id(frame.code), frame.instruction) for frame in frames)

    # -- afterwards ------------------------------------------------------------------------------

    def _chain(self, stack: _Stack) -> tuple[_Chain, _Chain]:
        """Return the frames of the user's, the outermost first, each with what it calls in a library.

        And those of packages below them.
        """
        out: list[StackFrame] = []
        below: list[StackFrame] = []
        above = between = ""
        for key, instruction in reversed(stack):
            code, namespace = self._codes[key], self._namespaces[key]
            if is_library(code.co_filename):
                name = name_of(code, namespace)
                if name.startswith(f"{_OURS}."):
                    continue
                above = name
                if out and out[-1].callee in _ASKS_FOR_ITEMS:
                    out[-1] = msgspec.structs.replace(out[-1], callee=name)
                if not is_of_package(code.co_filename):
                    between = name
                    if below and not below[-1].callee:
                        below[-1] = msgspec.structs.replace(below[-1], callee=name)
                elif len(below) < MOST_FRAMES:
                    below.append(msgspec.structs.replace(self._of_package(key, instruction), via=between))
                    between = ""
                continue
            below.clear()
            between = ""
            place = place_of(code, instruction, namespace)
            out.append(
                StackFrame(
                    file=code.co_filename,
                    line=place.line,
                    function=code.co_name,
                    call=place.call,
                    callee=place.callee,
                    via=above,
                    loops=place.loops,
                    discards=place.discards,
                )
            )
            above = ""
        return tuple(out), tuple(below)

    def _of_package(self, key: int, instruction: int) -> StackFrame:
        """Return a frame with the source of its line: to take the files of packages apart takes long."""
        if (key, instruction) not in self._packages:
            code = self._codes[key]
            position = position_of(code, instruction)
            text = "" if is_entry(position) else source_of(code.co_filename, position[0])
            text = text.partition("  #")[0]
            self._packages[key, instruction] = StackFrame(
                file=code.co_filename,
                line=position[0],
                # Methods of one name in one file are several functions.
                function=getattr(code, "co_qualname", code.co_name),
                call=f"{text}...)" if text.endswith("(") else text,
            )
        return self._packages[key, instruction]


def _system() -> _System:
    """Return what the system has done until now for all threads of the process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt, round(usage.ru_stime * 1e6)


class _Phases:
    """What the clock's log says of a moment."""

    def __init__(self, log: list[tuple[str, int, int]]) -> None:
        self._log = sorted(log, key=lambda entry: (entry[1], -entry[2]))
        self._begins = [begin for _, begin, _ in self._log]
        ended = sorted((end, name) for name, _, end in log if name in _DIVIDES)
        self._ends = [end for end, _ in ended]
        self._ended = [name for _, name in ended]

    def at(self, when: int) -> tuple[str, str]:
        """Return the innermost phase that is open, and the last that has ended."""
        k = bisect_right(self._ends, when) - 1
        before = self._ended[k] if k >= 0 else ""
        # Phases nest a few deep: the innermost open one is among the last that began.
        for name, begin, end in reversed(self._log[: bisect_right(self._begins, when)][-_DEEPEST:]):
            if begin <= when < end:
                return name, before
        return "", before
