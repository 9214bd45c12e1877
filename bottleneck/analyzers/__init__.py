"""One file per class of bottleneck: facts in, findings out; docstrings are `bottleneck explain`.

In: `Facts`. Out: `find_all` runs every analyzer; `explain` returns the page of a code; `REGISTRY`
lists them.
"""

from __future__ import annotations

from ..model.finding import Finding
from . import capture, findings  # noqa: F401 - analyzers register when they are imported
from .base import HEADINGS, REGISTRY, Analyzer, Facts, explain

__all__ = ["HEADINGS", "REGISTRY", "Analyzer", "Facts", "explain", "find_all"]


def find_all(facts: Facts) -> tuple[Finding, ...]:
    """Run every analyzer; sort findings by cost, then those without a price, then notes.

    Of findings with one price, which one answer of the replay gives, the one with fewer places is
    the more concrete, and comes first.
    """
    # Without a single step there is nothing to price: only the capture itself can be judged.
    codes = [code for code in sorted(REGISTRY) if facts.true_ms > 0 or not REGISTRY[code].needs_step]
    found = [finding for code in codes for finding in REGISTRY[code]().find(facts)]
    return tuple(sorted(found, key=_rank))


def _rank(finding: Finding) -> tuple[bool, bool, float, int, str]:
    cost, places = finding.cost_ms, len(finding.sites) or 1_000
    return finding.note, cost is None, -(cost or 0.0), 0 if cost is None else places, finding.code
