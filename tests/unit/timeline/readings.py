"""Whole readings of small traces."""

from __future__ import annotations

from typing import Any

from torch_bottleneck.timeline.reading import read_timeline
from torch_bottleneck.timeline.result import Timeline
from torch_bottleneck.timeline.steps.facts import Facts
from torch_bottleneck.timeline.steps.traced import Steps
from torch_bottleneck.timeline.trace.table import Trace


def read(trace: Trace | None, steps: Steps | None, **known: Any) -> Timeline:
    """Read a rank; `known` is what `Facts` holds."""
    timeline = read_timeline(trace, steps, Facts(**known))
    assert timeline is not None
    return timeline
