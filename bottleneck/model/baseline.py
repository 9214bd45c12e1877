"""A baseline: everything about one side of a comparison that comparing needs, and nothing else.

In: nothing. Out: frozen structs. A baseline is committed beside the code it speaks of, so it is
small, has no time in it that changes without a reason, and reads in a diff. `BASELINE_FORMAT` is
raised when an older reader would misread a newer file; compare/baseline_file.py migrates.
"""

from __future__ import annotations

import msgspec

from .codes import BottleneckClass
from .counters import StepCounters
from .diagnosis import BudgetLine
from .run import JsonValue, SourceSite
from .work import Workload

__all__ = ["BASELINE_FORMAT", "Baseline", "FindingKey", "Machine", "RunTime", "StateRow"]

BASELINE_FORMAT = 1


class Machine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the runs ran."""

    device_kind: str = ""
    """"cuda", "rocm", "cpu"; empty where a bare trace does not tell."""
    device_name: str = ""
    cpu: str = ""
    cores: int | None = None
    python: str = ""
    torch: str = ""
    cuda: str | None = None


class RunTime(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The unprofiled step time of one run."""

    step_ms: float
    """Mean of the steps that belong, as `diagnose` reports it."""
    count: int = 0
    """Steps behind it."""
    error: float | None = None
    """Standard error of the run's step time as told from its own steps, relative; the difference
    between two runs is larger."""


class FindingKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One finding, by what it is recognised and priced by."""

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
