"""Run folders and traces, from us or from anyone, into columns and facts.

In: paths. Out: `read_trace` gives a `Trace`, `bundle.load` everything that belongs together.
"""

from __future__ import annotations

from .reader import read_trace

__all__ = ["read_trace"]
