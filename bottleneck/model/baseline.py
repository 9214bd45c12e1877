"""A baseline: everything about one side that a comparison needs, and nothing else.

In: nothing. Out: frozen structs. A baseline is committed together with its code. So it is small,
readable in a diff, and has no timestamps that change without a reason. `BASELINE_FORMAT` is raised
when an older reader would misread a newer file; compare/baseline_file.py migrates.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from .codes import BottleneckClass, LateCause
from .counters import StepCounters
from .diagnosis import BudgetLine
from .run import JsonValue, SourceSite
from .work import Workload

BASELINE_FORMAT = 1


class Machine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the runs ran."""

    device_kind: str = ""
    """"cuda", "rocm", "cpu"; empty where a bare trace does not contain it."""
    device_name: str = ""
    cpu: str = ""
    cores: int | None = None
    python: str = ""
    torch: str = ""
    cuda: str | None = None


class GrowthKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the steps of one job grow."""

    ms_per_1000_steps: float
    low: float
    """95 % interval."""
    high: float
    what: str = ""
    """What grows beside them; empty where nothing was found."""
    site: SourceSite | None = None


class JobTimes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One watched job."""

    wall_s: Annotated[float, msgspec.Meta(gt=0.0)]
    steps: int = 0
    seconds: dict[str, float] = {}
    """By part, as in `model.watch.PARTS`."""
    counts: dict[str, int] = {}
    """Of the parts that come one by one."""
    growth: GrowthKey | None = None


class RankTimes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The ranks of one run, in ms of a step."""

    size: int
    """Ranks of the job."""
    shown: int = 0
    """The rank that decides the step: counters apart, the run's other figures are of it."""
    waits_ms: float
    """Waiting for other ranks, the mean over the ranks."""
    transfer_ms: float
    own_ms: dict[str, float] = {}
    """Own work, by rank."""
    late: dict[str, LateCause] = {}
    """Why a rank is late, for those that are."""


class RunTime(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The unprofiled times of one run."""

    step_ms: Annotated[float, msgspec.Meta(gt=0.0)]
    """Mean of the steps that count, as `diagnose` reports it; of several ranks, their median."""
    count: int = 0
    """Number of steps in the mean."""
    error: Annotated[float, msgspec.Meta(ge=0.0)] | None = None
    """Relative standard error of the run's step time, from its own steps. The difference between
    two runs is larger."""
    job: JobTimes | None = None
    """The whole of it, where it was watched."""
    ranks: RankTimes | None = None
    """Where several were compared."""


class FindingKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One finding: how it is recognised, and its price."""

    code: str
    title: str
    bottleneck_class: BottleneckClass | None = msgspec.field(name="class", default=None)
    cost_ms: float | None = None
    sites: tuple[SourceSite, ...] = ()


class StateRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One switch of the acceleration state."""

    name: str
    state: str
    value: str = ""


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """One side: one or several runs of the same thing."""

    format: int = BASELINE_FORMAT
    tool_version: str = ""
    title: str = ""
    command: tuple[str, ...] = ()
    plan: dict[str, int] = {}
    """Window lengths that the gate fixed, so that the same steps are counted each time."""
    machine: Machine = Machine()
    workload: Workload | None = None
    """Without its step times, which are in `runs`."""
    counters: StepCounters | None = None
    """Over all runs: the lower median of each counter, with the range where runs or steps differ."""
    unstable: dict[str, tuple[float, float]] = {}
    """Counters that differ from run to run -> least and most."""
    runs: tuple[RunTime, ...] = ()
    verdict: BottleneckClass | None = None
    step_ms: float | None = None
    """True step time that `budget` adds up to."""
    budget: tuple[BudgetLine, ...] = ()
    findings: tuple[FindingKey, ...] = ()
    settings: dict[str, JsonValue] = {}
    acceleration: tuple[StateRow, ...] = ()

    @property
    def jobs(self) -> tuple[JobTimes, ...]:
        """The runs that were watched."""
        return tuple(run.job for run in self.runs if run.job is not None)

    @property
    def ranks(self) -> tuple[RankTimes, ...]:
        """The runs of several ranks."""
        return tuple(run.ranks for run in self.runs if run.ranks is not None)
