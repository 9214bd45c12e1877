"""Recorded real runs: where their traces lie and what is known to be true of them.

In: the folders beside this file, each with CASE.md. Out: `CASES`. The facts that tests use stand in
CASE.md as a table of `key | value`; the rest of that file is for people.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CASES", "Case"]

_ROW = re.compile(r"^\| *([a-z_]+) *\| *(.*?) *\|$", re.MULTILINE)


@dataclass(frozen=True)
class Case:
    """One recorded run."""

    name: str
    folder: Path
    facts: dict[str, str]

    @property
    def traces(self) -> list[Path]:
        """The trace files, one per rank."""
        return sorted(self.folder.glob("**/*.trace.json.gz"))

    @property
    def true_step_ms(self) -> float | None:
        """The step time without a profiler, if it was measured."""
        value = self.facts.get("true_step_ms")
        return float(value) if value else None


CASES: dict[str, Case] = {
    file.parent.name: Case(file.parent.name, file.parent, dict(_ROW.findall(file.read_text("utf-8"))))
    for file in sorted(Path(__file__).parent.glob("*/CASE.md"))
}
