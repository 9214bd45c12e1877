"""The account of a job in at most 2,000 tokens, for an assistant or for a program that reads a log.

In: a `Watch`. Out: JSON with stable keys, one per line. Times are in s and ms, shares of the whole job.
"""

from __future__ import annotations

from typing import Any

from ..model.watch import Watch
from ..model.words import brief, clean, place
from .brief import number, within_limit
from .rows.watch import capture_lines, fix_lines, growth_lines, headline, part_name

_LONGEST = 300


def render(watch: Watch) -> str:
    """Return the brief."""
    root = f"{watch.cwd}/"
    told: dict[str, Any] = {
        "headline": brief(headline(watch), _LONGEST),
        "script": brief(clean(" ".join(watch.command)), _LONGEST),
        "outcome": brief(clean(watch.outcome), _LONGEST),
        "exit_code": watch.exit_code,
        "wall_s": number(watch.wall_s),
        "steps": watch.steps,
        "step_ms": number(watch.step_ms),
        "goodput": number(watch.goodput),
        "explained_share": number(watch.explained_share),
        "account": [
            {
                "part": part_name(line.part, watch),
                "s": number(line.s),
                "share": number(line.share),
                "count": line.count,
                "ms_each": number(line.ms_each),
                "at": place(line.site, root=root, width=_LONGEST) if line.site is not None else "",
            }
            for line in sorted(watch.account, key=lambda line: -line.s)
        ],
        "what_to_change": [brief(text, _LONGEST) for text in fix_lines(watch)],
        "steps_that_change": [brief(text, _LONGEST) for text in growth_lines(watch)],
        "captures": [brief(text, _LONGEST) for text in capture_lines(watch)],
        "notes": [brief(clean(text), _LONGEST) for text in watch.notes],
        "problem": brief(clean(watch.problem), _LONGEST),
    }
    return within_limit(told)
