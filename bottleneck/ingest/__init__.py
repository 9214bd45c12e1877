"""Run folders and traces, from us or from anyone, into columns and facts.

In: paths. Out: `read_trace` gives a `Trace`, `load` everything that belongs together.
"""

from __future__ import annotations

from .bundle import Bundle, Rank, load
from .reader import read_trace

__all__ = ["Bundle", "Rank", "load", "read_trace"]
