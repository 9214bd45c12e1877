"""Run folders and traces, from us or from anyone, into columns and facts.

In: paths. Out: `read_trace` gives a `Trace`, `load` everything that belongs together.
"""

from __future__ import annotations

from .bundle import Bundle, Rank, load
from .reader import read_trace
from .shapes import flops_from_shapes

__all__ = ["Bundle", "Rank", "flops_from_shapes", "load", "read_trace"]
