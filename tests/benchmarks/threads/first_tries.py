"""Puts all unseen threads on one page: what was right at the first try, set by set.

In: reports/threads-unseen*.md. Out: reports/threads-first-tries.md.

    python tests/benchmarks/threads/first_tries.py
"""

from __future__ import annotations

import re
from pathlib import Path

REPORTS = Path(__file__).resolve().parents[3] / "reports"
PAGE = REPORTS / "threads-first-tries.md"
_NAME = re.compile(r"threads-unseen(\d*)(-gpu)?\.md")
_PARTS = ("verdict", "line", "fix", "price", "avoided")
_LAST = 10
"""Sets whose sum is told: the tool changes with each."""

_HEAD = """\
# Threads that the tool had not seen, at first try

Each set was written by somebody who knew the titles of the catalogue and nothing else of the tool: scripts
after public issue threads with a confirmed cause, and traps. What was missed was looked at afterwards, so
that no set can be used twice. A fix counts as missed where the catalogue has no entry for it, a price where
it is more than 15 % off, bounds included. What each miss was stands in the set's own report.

**The last {last} sets together: verdict {verdict}, line {line}, fix {fix}, price {price};
traps avoided {traps}.**

| set | machine | verdict | line | fix | price | traps avoided |
| --- | --- | --- | --- | --- | --- | --- |"""


def page() -> str:
    """Return the page, the newest set first."""
    found = []
    for report in REPORTS.glob("threads-unseen*.md"):
        number, gpu = _NAME.fullmatch(report.name).groups()  # type: ignore[union-attr]
        told = next(line for line in report.read_text().splitlines() if line.startswith("**Verdict"))
        found.append((int(number or 1), bool(gpu), report.name, _counts(told)))
    found.sort(key=lambda each: (-each[0], each[1]))
    rows = [
        f"| [{number}]({name}) | {'GPU' if gpu else 'two cores'} | "
        + " | ".join(f"{right} of {of}" if of else "-" for right, of in counts)
        + " |"
        for number, gpu, name, counts in found
    ]
    sums = [
        (
            sum(counts[part][0] for *_, counts in found[:_LAST]),
            sum(counts[part][1] for *_, counts in found[:_LAST]),
        )
        for part in range(len(_PARTS))
    ]
    verdict, line, fix, price, traps = (f"{right} of {of} ({right / of:.0%})" for right, of in sums)
    told = _HEAD.format(last=_LAST, verdict=verdict, line=line, fix=fix, price=price, traps=traps)
    return "\n".join([told, *rows, "", "Written by `python tests/benchmarks/threads/first_tries.py`.", ""])


def _counts(told: str) -> list[tuple[int, int]]:
    """Return (right, of how many) for each part of what a report says in its bold line."""
    out = []
    for part in _PARTS:
        match = re.search(rf"{part} (\d+) of (\d+)", told, re.IGNORECASE)
        out.append((int(match[1]), int(match[2])) if match else (0, 0))
    return out


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE.read_text())
