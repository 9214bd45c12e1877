"""What is said of the rest of the job: what comes once, beside the steps.

In: a diagnosis. Out: rows and a sentence of clean text.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...model.diagnosis import Diagnosis
from ...model.words import clean, duration, place
from .diagnosis import root_of


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One thing that the job does once."""

    part: str
    time: str
    what: str
    where: str


def job_rows(diagnosis: Diagnosis) -> list[JobRow]:
    """Return what comes once, in the order in which it happens."""
    root = root_of(diagnosis)
    return [
        JobRow(
            part=clean(part.part),
            time=duration(part.s),
            what=clean(part.what),
            where=place(part.site, root=root) if part.site is not None else "",
        )
        for part in diagnosis.job
    ]


def job_line(diagnosis: Diagnosis) -> str:
    """Return it as one line, the longest first; empty where nothing is known."""
    longest = sorted(diagnosis.job, key=lambda part: -part.s)
    return ", ".join(f"{clean(part.part)} {duration(part.s)}" for part in longest)
