"""The text of a line of the user's program, as it was when the program ran.

In: a `SourceSite` and the run it comes from. Out: the line, or "" where it cannot be told: the file is
not here, or was written after the run began, so that its lines need not be those that ran.
"""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from pathlib import Path

from ..errors import InputError
from ..files import named, path_of, read_file
from ..model.run import Run, SourceSite

_WIDTH = 120
_MOST_BYTES = 4_000_000


def line_text(site: SourceSite, run: Run) -> str:
    """Return the line without its indentation, cut at 120 characters."""
    try:
        began = dt.datetime.fromisoformat(run.created.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return ""
    lines = _lines(str(path_of(run.cwd) / named(site.file)), began)
    return lines[site.line - 1].strip()[:_WIDTH] if 0 < site.line <= len(lines) else ""


@lru_cache(maxsize=256)
def _lines(path: str, began: float) -> tuple[str, ...]:
    try:
        # `created` is told in whole seconds.
        if Path(path).stat().st_mtime > began + 1.0:
            return ()
        return tuple(read_file(path, most_bytes=_MOST_BYTES).decode(errors="replace").splitlines())
    except (InputError, OSError, ValueError):
        return ()
