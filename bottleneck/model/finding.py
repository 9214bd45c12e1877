"""Findings: what was found, what it costs, and on what evidence.

In: nothing. Out: frozen structs made by analyzers and carried unchanged into diagnosis.json.
"""

from __future__ import annotations

import msgspec

from .codes import BottleneckClass
from .run import SourceSite

NEGLIGIBLE_SHARE = 0.02
"""Below this share of the step nothing matters. Such a cause is listed but never headlined, such a gain is
no reason to start with a fix, and such a change of a measured step does not count."""


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A two-sided 95 % interval in milliseconds."""

    low_ms: float
    high_ms: float


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One number or fact, with its unit and where it was measured."""

    text: str
    """A whole short statement, ready to print: "18 cudaFree calls per step"."""
    value: float | None = None
    unit: str = ""
    source: str = ""
    """Which window or artefact it comes from: "baseline window", "trace", "loader.json" ..."""
    site: SourceSite | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One cause (or fact) found by one analyzer.

    `cost_ms` is what the step would save if the cause were gone (by replay), None when it cannot
    be priced; it is not the time spent in it, which, where known, is `time_ms`.
    """

    code: str
    bottleneck_class: BottleneckClass | None = msgspec.field(name="class", default=None)
    title: str
    cost_ms: float | None = None
    cost_share: float | None = None
    """cost_ms over the true step time, 0..1."""
    interval: Interval | None = None
    time_ms: float | None = None
    predicted_step_ms: float | None = None
    evidence: tuple[Evidence, ...] = ()
    sites: tuple[SourceSite, ...] = ()
    not_this: str = ""
    """What the finding does not mean: the misreading that it guards against."""
    call: str = ""
    """Of one line of the user's: what it calls, as written there."""
    callee: str = ""
    """`module.name` of that in a library; "evaluation" where it runs a model without gradients."""
    note: bool = False
    """True: worth knowing, never a cause of the verdict."""
    ranks: tuple[int, ...] = ()
