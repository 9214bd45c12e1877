"""The account of a whole job: watch.json, and the record that it is made of.

In: JSON. Out: frozen structs. The process of the script rewrites its `JobRecord` once a second, so that a
job that is killed leaves one; the process that started the script makes the `Watch` of it when the script has
ended.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from .run import SourceSite
from .words import duration, milliseconds, percent

WATCH_SCHEMA = 1
WATCH_FILE = "watch.json"
RECORD_FILE = "watch-record.json"
STEPS_FILE = "watch-steps.jsonl"
"""One JSON list per stretch of usual steps: its first step, how many, and the ms of one; only appended to."""

FIRST_STEPS = 10
"""Steps that are apart from the usual ones: they compile, tune and allocate."""

GARBAGE = "garbage collections"
PARTS = (
    "interpreter and imports",
    "set-up",
    "first steps",
    "training steps",
    "epoch starts",
    "validation",
    "checkpoints",
    "between steps",
    "recompilations",
    GARBAGE,
    "pauses",
    "after the last step",
    "bottleneck",
    "exit",
    "unexplained",
)
"""Every part of a job, in the order in which a report shows them.

first steps: what the first ten steps took beyond usual ones. between steps: what some steps do beside
training, as at intervals of logging. bottleneck: looks at what grows, and captures.
"""


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every stored struct; unknown fields are ignored on reading."""


class SiteSeconds(_Record, frozen=True, kw_only=True):
    """A line of the user's program, and the seconds for which samples saw it."""

    site: SourceSite
    s: float


class PartTime(_Record, frozen=True, kw_only=True):
    """One part of the job so far."""

    s: float
    count: int
    """How often it came; for most parts the number of steps that it lay in."""
    again_s: float = 0.0
    """Of `s`: epochs that started workers although an epoch before them had."""
    places: list[SiteSeconds] = []
    """The most frequent first."""


class Growth(_Record, frozen=True, kw_only=True):
    """Steps that become slower, and what grows beside them."""

    what: str
    """The name behind which something grows, like `self.outputs`; "step" where nothing was found to grow."""
    site: SourceSite | None = None
    """The line that adds to it, as far as the source shows one."""
    ms_per_1000_steps: float
    low: float
    """95 % interval of the ms."""
    high: float
    objects_per_step: float | None = None
    """None where nothing was found to grow."""
    kind: str = ""
    """Of what grows: "tensors in list", "hooks", "autograd nodes", ..."""
    looked: bool = True
    """False: the job ended before it was looked for what grows."""
    step_ms: float
    """The usual step when the growth was last measured."""
    at_step: int
    """Steps that had ended by then."""

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("an interval ends before it begins")


class Change(_Record, frozen=True, kw_only=True):
    """A step from which on all steps are slower or faster."""

    step: int
    ratio: float
    """The step after it over the step before it."""
    beside: list[str] = []
    """What else changed there, one sentence each."""


class MemoryGrowth(_Record, frozen=True, kw_only=True):
    """Memory that grows while the job trains, and when it will be full."""

    where: str
    """"host", or "device 0"."""
    bytes_per_s: float
    low: float
    """95 % interval of the bytes per second."""
    high: float
    bytes_per_step: float
    used_bytes: int
    """By this process, when it was last measured."""
    limit_bytes: int
    """What it could use in all, others taking what they take now."""
    full_in_s: float
    """At this pace, from the last measurement on."""
    what: str = ""
    """The name behind which something grows beside it; empty where nothing was found to grow."""
    kind: str = ""
    site: SourceSite | None = None
    objects_per_step: float | None = None
    looked: bool = True
    """See `Growth`."""


class Timeline(_Record, frozen=True, kw_only=True):
    """When the parts of a job lay, in stretches of equal length."""

    begin_s: float = 0.0
    """From the beginning of the process to the first stretch."""
    stretch_s: float
    steps: list[int] = []
    """Steps that had ended by the end of each stretch."""
    parts: dict[str, list[float]] = {}
    """Part -> its s in each stretch."""


class CaptureTaken(_Record, frozen=True, kw_only=True):
    """A capture in the middle of the job, as `diagnose` makes one; its folder is a run folder."""

    folder: str
    """Within that of the process."""
    step: int
    """Steps that had ended when it began."""
    steps: int
    at_s: float
    """Of the job, when it began."""
    took_s: float
    says: str = ""
    """The verdict, one sentence; empty while it is not diagnosed."""


class JobRecord(_Record, frozen=True, kw_only=True):
    """watch-record.json: what the process of the script knows of its job; times are perf_counter_ns()."""

    began_ns: int
    """The script begins here; the interpreter and our own imports lie before."""
    at_ns: int
    """The account reaches up to here."""
    ended: bool = False
    """The script has ended and this record is whole; False also while it runs."""
    parts: dict[str, PartTime] = {}
    acts: bool = False
    """See `Watch`."""
    steps: int = 0
    usual_ms: float | None = None
    """A usual step of late; None before there were some."""
    best_ms: float | None = None
    """A usual step in the fastest tenth of the job."""
    growth: list[Growth] = []
    changes: list[Change] = []
    memory: list[MemoryGrowth] = []
    timeline: Timeline | None = None
    captures: list[CaptureTaken] = []
    notes: list[str] = []
    """Sentences for the report."""
    problem: str = ""
    """Why the watching ended before the job did; empty for most."""


def in_one_line(record: JobRecord) -> str:
    """Return where a job is, in a few words."""
    seconds = (record.at_ns - record.began_ns) / 1e9
    text = f"{duration(seconds)}, step {record.steps}"
    if record.usual_ms is not None and record.best_ms is not None and seconds > 0:
        text += f", {milliseconds(record.usual_ms)} ms"
        text += f", goodput {percent(min(1.0, record.steps * record.best_ms / 1e3 / seconds))}"
    if record.growth:
        text += f", growing by {milliseconds(record.growth[0].ms_per_1000_steps)} ms per 1000 steps"
    return text


class WithFix(_Record, frozen=True, kw_only=True):
    """What a part would be with a change, as arithmetic on what was measured says."""

    change: str
    """What is done: "on a tenth of the batches"."""
    s: float
    share: float
    """Of the job, which is then shorter by as much."""
    at_best: bool = False
    """True: the part may keep more than that."""
    fix: str = ""
    """The catalogue's entry; empty where it has none."""


class AccountLine(_Record, frozen=True, kw_only=True):
    """One part of the job."""

    part: str
    s: float
    share: float
    count: int
    ms_each: float | None
    """None for parts that do not come one by one."""
    again_s: float = 0.0
    """See `PartTime`."""
    site: SourceSite | None = None
    places: list[SiteSeconds] = []
    with_fix: WithFix | None = None
    """None where nothing is known to shorten it, or too little would be gained."""


class StepTimes(_Record, frozen=True, kw_only=True):
    """Usual steps over the job, as columns of equal length: at most some hundred stretches."""

    step: list[int] = []
    """The first step of each stretch."""
    ms: list[float] = []
    """Of a usual step in it."""


class RankAccount(_Record, frozen=True, kw_only=True):
    """One rank of a job of several, in short; its own watch.json is in its folder."""

    rank: int
    exit_code: int
    wall_s: float
    seconds: dict[str, float]
    """By part; together `wall_s`."""
    explained_share: float
    goodput: float | None
    steps: int
    step_ms: float | None


class Watch(_Record, frozen=True, kw_only=True):
    """watch.json: the account of a job; its lines add up to `wall_s`."""

    schema: int = WATCH_SCHEMA
    command: list[str]
    cwd: str
    outcome: str
    """How the script ended, one sentence."""
    exit_code: int
    wall_s: Annotated[float, msgspec.Meta(gt=0.0)]
    account: list[AccountLine]
    acts: bool = False
    """The part "validation" is none, or lacks `model.eval()`: all modules that run without gradients are in
    training mode, as in a rollout, or act in an environment whose library is loaded."""
    explained_share: float
    goodput: float | None
    """Share of the wall-clock in which training steps ran at their best speed; None without steps."""
    steps: int
    step_ms: float | None
    best_ms: float | None = None
    """A usual step in the fastest tenth of the job."""
    growth: list[Growth]
    changes: list[Change]
    memory: list[MemoryGrowth] = []
    ranks: list[RankAccount] = []
    """Every rank that left an account, where there are several; all else in this file is the first one's."""
    step_times: StepTimes = StepTimes()
    timeline: Timeline | None = None
    captures: list[CaptureTaken] = []
    notes: list[str] = []
    """Sentences for the report."""
    problem: str = ""
