"""Reports of single ranks beside that of all: of the few that are worth a look.

In: the diagnosis of all ranks, and the folder that it is written to. Out: the same diagnosis with links to
reports of ranks, in folders of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from ..errors import BottleneckError
from ..model.diagnosis import Diagnosis, RankRow
from ..reporters.output import PAGE_FILE, refuse_foreign_reports, save
from ..reporters.rows.fleet import worth_a_look
from .compose import diagnose_paths

__all__ = ["linked", "write_own_reports"]

_MOST = 4
"""Each is read again, alone."""


def write_own_reports(
    diagnosis: Diagnosis,
    folder: Path,
    *,
    true_step_ms: float | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Diagnosis:
    """Write the reports of the ranks worth a look into `folder`/rank<number>, and link to them.

    Args:
        diagnosis: that of all ranks.
        folder: where its own report is going to be.
        true_step_ms: the step without a profiler, where it was given, ms.
        tell: is told of a rank whose report could not be made.
    """
    written = {}
    for row in worth_a_look(diagnosis)[:_MOST]:
        place = folder / f"rank{row.rank}"
        try:
            refuse_foreign_reports(place)
            save(diagnose_paths([row.source], true_step_ms=true_step_ms), place)
        except (BottleneckError, OSError) as error:
            tell(f"Rank {row.rank} has no report of its own: {error}")
            continue
        written[row.rank] = f"{place.name}/{PAGE_FILE}"
    return _with_links(diagnosis, lambda row: written.get(row.rank, ""))


def linked(diagnosis: Diagnosis, folder: Path) -> Diagnosis:
    """Keep the links that lead to a report, seen from a folder; add those in ranks' run folders."""

    def link(row: RankRow) -> str:
        beside = Path(row.source) / PAGE_FILE
        if row.source and beside.is_file() and beside.resolve().is_relative_to(folder.resolve()):
            return beside.resolve().relative_to(folder.resolve()).as_posix()
        return row.report if row.report and (folder / row.report).is_file() else ""

    return _with_links(diagnosis, link)


def _with_links(diagnosis: Diagnosis, link: Callable[[RankRow], str]) -> Diagnosis:
    rows = tuple(msgspec.structs.replace(row, report=link(row)) for row in diagnosis.ranks)
    return msgspec.structs.replace(diagnosis, ranks=rows)
