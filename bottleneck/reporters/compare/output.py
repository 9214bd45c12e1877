"""The formats of a comparison, and where CI systems want them.

In: a comparison and the name of a format. Out: text, or files. On GitHub the summary of the job is
written as well.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from ...errors import UsageError
from ...model.compare import Comparison
from ...model.documents import write_text
from ..base import FORMATS
from ..output import emit, render_for
from ..stream import tell

COMPARE_FORMATS = tuple(FORMATS["Comparison"])
SUFFIXES = {".md": "md", ".json": "json", ".xml": "junit", ".txt": "text", ".sarif": "sarif"}
"""Format by the end of a file's name, for --report FILE."""


def wished_reports(reports: tuple[str, ...]) -> dict[Path, str]:
    """Return file -> format for every --report.

    Raises:
        UsageError: a name tells no format.
    """
    wishes: dict[Path, str] = {}
    for text in reports:
        head, colon, rest = text.partition(":")
        if colon and head in COMPARE_FORMATS and rest:
            wishes[Path(rest)] = head
        elif Path(text).suffix in SUFFIXES:
            wishes[Path(text)] = SUFFIXES[Path(text).suffix]
        else:
            raise UsageError(
                f"--report {text} does not say which format.",
                remedy=f"End it in {', '.join(SUFFIXES)}, or write FORMAT:FILE"
                f" with {', '.join(COMPARE_FORMATS)}.",
            )
    return wishes


def print_comparison(
    comparison: Comparison, name: str, *, wishes: Mapping[Path, str], verbose: bool = False
) -> None:
    """Print the report in the format `name`, and write it wherever else it is wanted.

    Raises:
        InputError: a place cannot be written to.
    """
    emit(render_for(comparison, name, stream=sys.stdout, verbose=verbose))
    write_reports(comparison, wishes, verbose=verbose)
    write_job_summary(comparison)


def write_reports(comparison: Comparison, wishes: Mapping[Path, str], *, verbose: bool = False) -> None:
    """Write each file in its format.

    Raises:
        InputError: a place cannot be written to.
    """
    for path, name in wishes.items():
        write_text(path, render_for(comparison, name, verbose=verbose))
        tell(f"Wrote {path}")


def write_job_summary(comparison: Comparison, *, environ: Mapping[str, str] | None = None) -> None:
    """Append the Markdown report to the summary of a GitHub job, where there is one.

    A summary that cannot be written must not turn a green gate red: it is said, and that is all.
    """
    place = (os.environ if environ is None else environ).get("GITHUB_STEP_SUMMARY")
    if not place:
        return
    try:
        with Path(place).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(render_for(comparison, "md") + "\n")
    except OSError as error:
        tell(f"The job summary {place} could not be written: {error.strerror or error}.")
