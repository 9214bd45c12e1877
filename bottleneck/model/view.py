"""What reports draw: step times over the run, the timeline of one step, loaders.

In: nothing. Out: frozen structs of bounded size, carried in the diagnosis. A trace of any length gives
a timeline of one step, thinned by a rule that the lane itself states.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import msgspec

from .codes import Part
from .run import SourceSite

NO_PART = -1
"""`Span.part` of what is no line of the budget: a phase label, an operator around others, a launch."""
ONE_CALL = 0.8
"""Share of the time of what calls it from which a call, or a line of a loop, stands for that."""


class Span(msgspec.Struct, frozen=True, array_like=True):
    """One block of a lane, written as an array: many of them make up most of a diagnosis."""

    start_us: float
    """Measured from the beginning of the step shown."""
    dur_us: float
    name: int
    """Index into `StepTimeline.names`."""
    part: int = NO_PART
    """Index into `StepTimeline.parts`, or NO_PART."""
    depth: int = 0
    """Nesting, 0 outermost."""
    count: int = 1
    """Events drawn as this block. If above 1, the name is that of the longest event, and the part
    the one with most time."""


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the timeline: a thread, a stream, or the device's idle time."""

    kind: Literal["phases", "idle", "stream", "calls", "operators", "work"]
    """phases: labels of the training thread. idle: device idle by what the host did. stream: device
    work. calls: the device's API on the host. operators: nested operators of a thread. work: CPU runs,
    the training thread's time with nothing left out."""
    name: str
    spans: tuple[Span, ...] = ()
    """By start, then depth; inside the step, in time order."""
    events: int = 0
    """Number of events in the spans."""
    merged_below_us: float = 0.0
    """Events shorter than this that begin within the same stretch of this length are one block; 0:
    every event is drawn."""


class StepTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """One traced step as recorded: profiled, so the host is slower than without the profiler."""

    length_us: float
    lanes: tuple[Lane, ...] = ()
    names: tuple[str, ...] = ()
    """Text from the trace: untrusted, long names cut in the middle."""
    parts: tuple[Part, ...] = ()
    start_ns: int = 0
    """Begin of the step on the trace's own clock (its `ts`, in ns)."""
    step: int | None = None
    """The profiler's number of the step, or its position."""
    of_steps: int = 1
    """Whole traced steps that it was chosen from."""
    chosen: str = ""
    """How it was chosen, in words."""
    rank: int = 0
    """The rank whose trace it is from."""
    lanes_left_out: int = 0
    """Lanes with less time than those shown."""


OPERATORS = ("torch._VariableFunctionsClass.", "torch._tensor.", "torch.functional.")
"""How names of torch's operators begin, as far as a line tells them."""
MAKES_TENSORS = re.compile(
    r"torch\.(_VariableFunctionsClass\.(tensor|as_tensor|asarray)"
    r"|(BFloat16|Bool|Byte|Char|Double|Float|Half|Int|Long|Short)?Tensor)"
)
"""Functions that read lists value by value."""
_C10D = "torch.distributed.distributed_c10d."
BARRIERS = (f"{_C10D}barrier", f"{_C10D}monitored_barrier")
"""Functions by which ranks only wait for each other: nothing is sent."""
WAITS = f"{_C10D}Work.wait"
"""Name for the end of what was sent with async_op=True."""
ALL_REDUCE = f"{_C10D}all_reduce"
COLLECTIVES = (
    *BARRIERS,
    WAITS,
    *(
        _C10D + each
        for each in (
            "all_", "batch_isend_irecv", "broadcast", "gather", "irecv", "isend", "recv", "reduce", "scatter",
            "send",
        )
    ),
    "torch.distributed._functional_collectives.",
    "torch.distributed.nn.functional.",
    "torch.distributed.tensor._api.DTensor.full_tensor",
    "torch.distributed.tensor._api.DTensor.redistribute",
)  # fmt: skip
"""How names of the functions begin that send between ranks, or wait for them."""
Role = Literal[
    "step", "input", "forward", "no-grad forward", "loss", "backward", "communication", "update", "extra",
    "device",
]  # fmt: skip
"""What code of the step does. communication: sends what training needs between ranks. extra: neither of the
others; training goes on without it. device: what the device does for a line, forward and backward together,
whenever that is."""


class CodeNode(msgspec.Struct, frozen=True, kw_only=True):
    """Part of the step by whose code it is: a line of the user's, or of a package, with all below it."""

    name: str
    """The call as written, or the function; for people."""
    role: Role
    """Of most of its time."""
    ms: float
    """Per step, with all below it."""
    share: float
    price_ms: float | None = None
    """What the step saves without it, by replay; None where the trace cannot tell."""
    bound: bool = False
    """The price is an upper bound."""
    samples: int = 0
    file: str = ""
    line: int = 0
    function: str = ""
    call: str = ""
    """As written at that line: `gc.collect()`; empty where the source does not tell."""
    callee: str = ""
    """`module.name` of a library function that it calls; "evaluation" where most of its time is a model
    that runs without gradients."""
    leaves_out: str = ""
    """`file:name` of a function of the user's that does all of it, if nobody takes its value; else empty."""
    in_rounds: bool = False
    """It is what the rounds of a loop of the user's run, of one that does not hold the training."""
    children: tuple[CodeNode, ...] = ()
    """The longest first; without those below 1 % of the step."""
    below: tuple[CodeNode, ...] = ()
    """The same of lines of packages, where training runs in them: told, and no cause or fix names them."""
    trains: bool = False
    """Training runs in lines of packages below it."""

    @property
    def site(self) -> SourceSite | None:
        """Its line; None for the step itself."""
        return SourceSite(file=self.file, line=self.line, function=self.function) if self.file else None

    def walk(self) -> Iterator[CodeNode]:
        """Yield this one and all below."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def told(self) -> list[CodeNode]:
        """What it calls, lines of packages too, the longest first."""
        return sorted((*self.children, *self.below), key=lambda node: -node.ms)

    @property
    def roles(self) -> set[Role]:
        """Its own, and those of all that is told below it."""
        return {self.role}.union(*(node.roles for node in self.told))

    def parts(self, role: Role) -> list[CodeNode]:
        """Return what has a role, without what it calls."""
        return (
            [self] if self.role == role else [part for child in self.children for part in child.parts(role)]
        )

    def collectives(self, *, in_rounds: bool = False) -> Iterator[tuple[CodeNode, bool]]:
        """Yield the lines that call collectives, and whether the rounds of a loop do."""
        in_rounds = in_rounds or self.in_rounds
        if self.callee.startswith(COLLECTIVES):
            yield self, in_rounds
            return
        for child in self.children:
            yield from child.collectives(in_rounds=in_rounds)

    @property
    def sends_in_rounds(self) -> bool:
        """The rounds of a loop sum something up over the ranks each."""
        return any(in_rounds and line.callee == ALL_REDUCE for line, in_rounds in self.collectives())

    @property
    def mostly_sends(self) -> bool:
        """Most of its time is in collectives."""
        return 2 * sum(line.ms for line, _ in self.collectives()) >= self.ms

    def own_ms(self) -> float:
        """Return the time of the user's own Python and of torch's operators in it, ms per step.

        What else a library does, as writing a file, is not counted.
        """
        beneath_ms = sum(child.ms for child in self.children)
        is_own = not self.callee or self.callee.startswith(OPERATORS)
        return sum(child.own_ms() for child in self.children) + (self.ms - beneath_ms) * is_own

    def making_tensors(self) -> list[CodeNode]:
        """Return the lines with a price that mostly make tensors value by value, the longest first.

        None of extra work, which has a finding of its own, and another cure: it need not be there.
        """
        if self.role == "extra":
            return []
        if self.price_ms is not None and MAKES_TENSORS.fullmatch(self.callee):
            return [self]
        found = [node for child in self.children for node in child.making_tensors()]
        return sorted(found, key=lambda node: -node.ms)


class WindowSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Step times of one window of the run; columns of equal length."""

    name: str
    """warm-up, baseline, trace, between, memory, after; "trace" alone for a bare trace."""
    status: str = "ok"
    reason: str = ""
    clock: Literal["device", "host", "trace"] = "host"
    """device: between device events at the cuts. host: the host's clock. trace: profiler's ranges."""
    index: tuple[int, ...] = ()
    """Step number from the start of the program; of a bare trace, the profiler's."""
    ms: tuple[float | None, ...] = ()
    """None where that step was not measured."""
    left_out: tuple[int, ...] = ()
    """Step numbers that the step time leaves out: evaluation, late compilation, stragglers."""
    compiled: tuple[int, ...] = ()
    """Step numbers that contain a compilation."""
    of_steps: int = 0
    """Number of steps that ran; can exceed the columns, where only the slowest of several steps is kept."""


class JobPart(msgspec.Struct, frozen=True, kw_only=True):
    """What the job does once, beside its usual steps, as far as the run has seen it."""

    part: str
    """import of torch, set-up, first batch, compiling, first steps."""
    s: float
    """Seconds, once per job."""
    what: str = ""
    site: SourceSite | None = None


class LoaderRow(msgspec.Struct, frozen=True, kw_only=True):
    """One DataLoader as actually constructed, and how it kept up."""

    cls: str
    role: str = ""
    dataset: str = ""
    site: SourceSite | None = None
    batch_size: int | None = None
    num_workers: int = 0
    pin_memory: bool = False
    persistent_workers: bool = False
    prefetch_factor: int | None = None
    start_method: str | None = None
    wait_ms: float | None = None
    """Mean time blocked per fetch, baseline window; None if not measured."""
    production_ms: float | None = None
    """Mean cost of one batch where it is produced: fetching its samples and collating them."""
    produced_in: str = ""
    startup_ms: float | None = None
    """Median time from a new iterator to its first batch."""
    batch: str = ""
    """The tensors of a typical batch."""
    batch_bytes: int | None = None
