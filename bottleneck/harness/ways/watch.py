"""Which calls of a step are made faster another way, by steps in which their own arguments try it.

In: the calls of torch's functions in two steps, in which nothing else is timed. In the first each call that
has another way is timed as it is; in the second those that take a part of the step worth naming are tried.
Out: the calls, by the places of their operators in a step, with what the other way leaves of their time.
"""

from __future__ import annotations

import functools
import threading
import warnings
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.autograd.profiler import record_function

from ...clocks import perf_counter_ns
from ...model.run import CostlyCalls, SourceSite
from .. import autograd_private, torch_private
from ..events.replacing import Replacements
from ..lines.functions import Functions, call_from, read_by, tensors_of
from ..lines.sites import line_of, user_frame
from ..lines.step_loops import loops_around
from ..profiled import operators_inside, record_operators
from . import algebra, attention, einsums, elements, factors, links, rounds, sums, windows
from .rounds import LOOP, Flow, Kind
from .timing import Timed, Took, saved_as_usual, timed
from .way import FOLLOWED, TIMES_LARGER, WAYS, Call, Instead, Way, whole_of

__all__ = [
    "WAYS", "WayWatch", "algebra", "attention", "einsums", "elements", "factors", "links", "rounds", "sums",
    "windows",
]  # fmt: skip

_WORTH = 0.02
"""Of the step, what a call must take to be tried; as with causes."""
_PART = 0.1
"""Of that, what a call must take that is one of several in a loop."""
_LONGEST_NS = 6_000_000_000
"""Of trying; what comes later is not tried."""
_KEPT = 24
"""Calls whose results may be the begin of a chain."""
_SHAPES = 3
"""Of calls at one place, those whose arguments have other sizes are tried apart."""
_MARK = "bottleneck.call "

_Place = tuple[str, CodeType, int]
"""A function, and the user's code that calls it, with the instruction."""


@dataclass(slots=True)
class _Tried:
    """What a way was found to bring at one place."""

    site: SourceSite
    took: list[Timed] = field(default_factory=list)
    shapes: set[Hashable] = field(default_factory=set)
    calls: int = 0
    marks: set[str] = field(default_factory=set)
    """Of all its calls in the step, with those before them in the chain."""

    def spent(self, clock: Callable[[Took], int]) -> NDArray[np.float64]:
        """Return what the calls of a step take, and what the other way does, (2,), ns."""
        each = [np.array((clock(its.own), clock(its.other))) / its.calls for its in self.took]
        return np.sum(each, axis=0) * self.calls / max(1, len(self.shapes)) if each else np.zeros(2)

    @property
    def saves_ns(self) -> float:
        """Of a step, alone or behind other work of the device."""
        spent = (self.spent(clock) for clock in (lambda took: took.ns, lambda took: took.on_device_ns))
        return max(float(own - other) for own, other in spent)


@dataclass(slots=True)
class _Output:
    """A tensor that a call has made."""

    of: Callable[[], torch.Tensor | None]
    version: int
    call: Call
    kind: Kind
    mark: str
    ns: int = 0
    before_ns: int = 0
    """What the calls before it took that made its arguments."""
    uses: int = 0
    """Calls that it was given to."""

    @property
    def place(self) -> Any:
        """Where the call stands."""
        return self.kind[0]


def _left(spent: list[NDArray[np.float64]]) -> float:
    own, other = np.sum(spent, axis=0)
    return float(other / own)


def _show_nothing(*_args: Any, **_kwargs: Any) -> None:
    """Stand in for what shows warnings."""


def _sizes(call: Call) -> Hashable:
    return tuple((each.shape, each.dtype) for each in call.tensors())


def _site(frame: FrameType, *, in_loop: bool) -> SourceSite:
    """Return the line of a call, or the one in the innermost loop that leads to it."""
    at: FrameType | None = frame if in_loop else None
    while at is not None and not loops_around(
        at.f_code.co_filename, line_of(at), since=at.f_code.co_firstlineno
    ):
        at = at.f_back
    at = at or frame
    return SourceSite(file=at.f_code.co_filename, line=line_of(at), function=at.f_code.co_name)


def _fits(call: Call, instead: Instead) -> bool:
    """Return whether a call can be made again, and another way, with room to spare: none may fail for it."""
    needed = sum(each.nbytes for each in {*call.tensors(), *instead.inputs})
    return bool(TIMES_LARGER * needed <= torch_private.free_memory())


class WayWatch:
    """One per process, on while a step is looked at."""

    def __init__(self) -> None:
        self._mode, self._quiet, self._engine = Functions(self._see), Replacements(), Replacements()
        self._on = self._tries = False
        self._is_sound = True
        self._thread = self._calls = 0
        self._worker: int | None = None
        """The thread of the device, in backward passes."""
        self._begun_ns = self._step_ns = self._looped_ns = self._trying_ns = self._flow_ns = self._room = 0
        self._spent_ns: Counter[_Place] = Counter()
        self._uses: defaultdict[_Place, int] = defaultdict(int)
        """Of what a call makes, in how many others at most."""
        self._looped: set[_Place] = set()
        """Places in loops."""
        self._rounds: Counter[Kind] = Counter()
        """Calls of the first step by kind."""
        self._flow = Flow()
        self._together: dict[Kind, int] = {}
        """By kind, how many calls in a row of the first step need none of each other."""
        self._outputs: dict[int, _Output] = {}
        self._before: dict[int, tuple[Callable[[], torch.Tensor | None], int]] = {}
        """What calls were given in the first step, with its version."""
        self._tried: dict[tuple[Way, _Place], _Tried] = {}
        self._ruled_out: set[tuple[Way, _Place]] = set()

    def begin(self, *, tries: bool = False) -> bool:
        """Look at the next step; False where it cannot. `tries`: at other ways of what took long before."""
        if torch_private.dynamo_looks():
            return False
        self._tries, self._thread, self._calls = tries, threading.get_ident(), 0
        self._on, self._worker = self._mode.turn_on(), None
        if self._on and (owner := autograd_private.engine_owner()) is not None:
            self._engine.put(*owner, self._make_backward)
        self._room = torch_private.free_memory() // 4
        self._begun_ns, self._flow_ns = perf_counter_ns(), 0
        return self._on

    def end(self) -> bool:
        """A step has ended; return whether something in it is worth trying."""
        if self._on:
            self._engine.undo()
            self._mode.turn_off()
        self._on = False
        self._outputs.clear()
        if not self._tries:
            self._together = self._flow.together()
            self._step_ns = perf_counter_ns() - self._begun_ns - self._flow_ns
            self._looped = {place for (place, _), count in self._rounds.items() if count >= LOOP}
            self._looped_ns = sum(self._spent_ns[place] for place in self._looped)
        self._flow.clear()
        return self._is_sound and any(map(self._is_worth, self._spent_ns))

    def _make_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            # While a function of torch's is handled, as `backward()` is one, the mode is off.
            if threading.get_ident() != self._thread or torch_private.is_on(self._mode):
                return original(*args, **kwargs)
            self._mode.__enter__()
            try:
                return original(*args, **kwargs)
            finally:
                torch_private.leave(self._mode)  # unless the step has ended in it

        return run_backward

    def found(self, profile: Any) -> list[CostlyCalls]:
        """Return the calls for which another way is faster, from the profile of the step that tried them."""
        best: dict[_Place, tuple[Way, _Tried]] = {}
        for (way, place), tried in self._tried.items():
            if (way, place) not in self._ruled_out and tried.saves_ns > (
                best[place][1].saves_ns if place in best else 0.0
            ):
                best[place] = way, tried
        marks = {mark for _, tried in best.values() for mark in tried.marks}
        inside, counts = operators_inside(profile, marks)
        by_callee: defaultdict[str, list[tuple[Way, _Tried]]] = defaultdict(list)
        for way, tried in best.values():
            by_callee[way.callee].append((way, tried))
        found = []
        for callee, its in by_callee.items():
            way, main = max(its, key=lambda each: each[1].saves_ns)
            left, left_on_host = (
                _left([tried.spent(clock) for _, tried in its])
                for clock in (lambda took: took.on_device_ns, lambda took: took.on_host_ns)
            )
            places: defaultdict[str, set[int]] = defaultdict(set)
            for name, at in (each for _, tried in its for mark in tried.marks for each in inside[mark]):
                places[name].add(at)
            found += [
                CostlyCalls(
                    operator=name, callee=callee, places=sorted(where), of=counts[name], left=left,
                    left_on_host=left_on_host, site=main.site, shown=way.shown,
                )
                for name, where in places.items()
            ]  # fmt: skip
        return found

    def _is_worth(self, place: _Place) -> bool:
        # Of loops all calls count together.
        least = _WORTH * self._step_ns
        if place in self._looped and self._looped_ns > least:
            least *= _PART
        return self._spent_ns[place] > least

    def _see(self, caller: FrameType, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function; time it, or try the ways to what it computes."""
        noted = None
        if self._looks():
            try:
                noted = self._note(function, args, kwargs)
            except Exception:  # what is looked at may be of any kind; the script goes on as if nobody had
                self._is_sound = False
        if noted is None:
            out = call_from(caller, function, args, kwargs)
            self._flows(function, args, kwargs, out)
            return out
        if self._tries:
            with record_function(noted.mark):
                out = call_from(caller, function, args, kwargs)
            self._flows(function, args, kwargs, out, noted)
        else:
            torch_private.wait_for_device()
            since_ns = perf_counter_ns()
            out = call_from(caller, function, args, kwargs)
            torch_private.wait_for_device()
            noted = replace(noted, ns=perf_counter_ns() - since_ns)
            self._spent_ns[noted.place] += noted.ns + noted.before_ns
            self._flows(function, args, kwargs, out, noted)
        try:
            self._keep(out, noted)
        except Exception:  # as above
            self._is_sound = False
        return out

    def _flows(
        self, function: Callable[..., Any], args: Any, kwargs: Any, out: Any, noted: _Output | None = None
    ) -> None:
        if not self._looks():
            return
        since_ns = perf_counter_ns()
        try:
            kind = None if noted is None else noted.kind
            self._flow.note(getattr(function, "__name__", ""), (args, kwargs), out, kind)
        except Exception:  # as in `_see`
            self._is_sound = False
        self._flow_ns += perf_counter_ns() - since_ns

    def _looks(self) -> bool:
        if not self._is_sound or torch_private.is_capturing() or torch_private.in_transform():
            return False
        thread = threading.get_ident()
        if not autograd_private.in_backward():
            return thread == self._thread
        # One that the script has written, perhaps on a thread that ours waits for; of several, the first.
        # With gradients on, it is a block that is computed again.
        if thread != self._thread and self._worker is None:
            self._worker = thread
        return thread in (self._thread, self._worker) and not torch.is_grad_enabled()

    def _note(self, function: Callable[..., Any], args: Any, kwargs: Any) -> _Output | None:
        """Return what is to be kept of a call that is made now; None if it is of no interest."""
        name = getattr(function, "__name__", "")
        name = "real" if name == "__get__" else name
        for known in map(self._output, read_by(name, args, kwargs)):
            if known is not None:
                known.uses += 1
                self._uses[known.place] = max(self._uses[known.place], known.uses)
        frame = user_frame(3)
        if frame is None or not (name in WAYS or name in FOLLOWED):
            return None
        call, place = Call(function, name, args, kwargs, self._stays), (name, frame.f_code, frame.f_lasti)
        kind = place, _sizes(call)
        if self._tries:
            before = self._flow.before(place, self._rounds[kind], self._together.get(kind, 1))
            call = replace(call, before=before)
        self._calls += 1
        mark = f"{_MARK}{self._calls}"
        if self._tries and self._is_worth(place) and kwargs.get("out") is None:
            record_operators(False)
            # Filters are left alone: with others, Python shows again what it has shown before.
            self._quiet.set(warnings, "showwarning", _show_nothing)
            try:
                with saved_as_usual():
                    self._try(call, place, frame, mark)
            finally:
                self._quiet.undo()
                record_operators(True)
        if not self._tries:
            given = (whole_of(each) for each in call.tensors() if not each.is_inference())
            self._before.update((id(each), (weakref.ref(each), each._version)) for each in given)
            self._rounds[kind] += 1
        before_ns = sum(each.ns for each in map(self._output, call.tensors()) if each is not None)
        return _Output(lambda: None, 0, call, kind, mark, before_ns=before_ns)

    def _try(self, call: Call, place: _Place, frame: FrameType, mark: str) -> None:
        sizes = tuple((each.shape, each.stride(), each.dtype) for each in call.tensors())
        for way in WAYS.get(call.name, ()):
            tried = self._tried.get((way, place))
            if way.forbids(call):
                self._ruled_out.add((way, place))
            if tried is not None and sizes in tried.shapes and not way.follows:
                tried.calls += 1
                tried.marks.add(mark)
                continue
            if (instead := self._instead(way, call)) is None:
                continue
            if tried is None:
                tried = self._tried[way, place] = _Tried(_site(frame, in_loop=way.in_loop))
            if sizes not in tried.shapes and len(tried.shapes) < _SHAPES:
                if _fits(call, instead):
                    self._time(instead, tried)
                tried.shapes.add(sizes)
            tried.calls += 1
            before = (each.mark for each in self._outputs.values() if each.call in instead.after)
            tried.marks |= {mark, *before}

    def _instead(self, way: Way, call: Call) -> Instead | None:
        try:
            return way.instead(call, self._maker)
        except (RuntimeError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError):
            return None  # given in another form than ways know

    def _time(self, instead: Instead, tried: _Tried) -> None:
        since_ns = perf_counter_ns()
        if self._trying_ns < _LONGEST_NS and (took := timed(instead)) is not None:
            tried.took.append(took)
        self._trying_ns += perf_counter_ns() - since_ns

    def _maker(self, value: Any) -> Call | None:
        known = self._output(value)
        return known.call if known is not None and self._uses[known.place] <= 1 else None

    def _stays(self, x: torch.Tensor) -> bool:
        x = whole_of(x)
        before = self._before.get(id(x))
        return before is not None and x._version == before[1] and before[0]() is x

    def _output(self, value: Any) -> _Output | None:
        known = self._outputs.get(id(value))
        if known is None or (made := known.of()) is None or made is not value:
            return None
        return known if known.version == made._version else None

    def _keep(self, out: Any, output: _Output) -> None:
        if output.call.name not in FOLLOWED:
            return
        given = output.call.tensors()
        for each in tensors_of(out):
            # A cast that changes nothing gives what it was given.
            if not each.is_inference() and all(each is not x for x in given):
                forget = functools.partial(self._forget, id(each))
                self._outputs[id(each)] = replace(output, of=weakref.ref(each, forget), version=each._version)
        # What is kept to be called again may be what the script lets go of.
        while self._outputs and (len(self._outputs) > _KEPT or self._held() > self._room):
            del self._outputs[next(iter(self._outputs))]

    def _held(self) -> int:
        return sum(each.nbytes for output in self._outputs.values() for each in output.call.tensors())

    def _forget(self, key: int, _: object) -> None:
        self._outputs.pop(key, None)
