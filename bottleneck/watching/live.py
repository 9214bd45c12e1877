"""`bottleneck watch --live`: the account so far, and the last minute of it, on the whole screen of stderr.

In: the record that the process of the job rewrites once a second. Out: a screen that is drawn anew, or a line
now and then where stderr is no terminal. It lives in the command, not in the job: a terminal that is resized,
full or gone changes nothing for the script.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from ..clocks import monotonic
from ..errors import InputError
from ..files import read_json
from ..model.watch import RECORD_FILE, JobRecord, in_one_line
from ..model.words import visible
from ..reporters.rows.live import live_lines, live_rows
from ..runs.store import partial_name

EVERY_SECONDS = 1.0
PLAIN_SECONDS = 10.0
LATELY_SECONDS = 60.0
_BAR = 30


class LiveView:
    """One per command."""

    def __init__(
        self, process: Path, *, title: str, say: Callable[[str], None], stream: TextIO | None = None
    ) -> None:
        """Show nothing yet."""
        self._file = partial_name(process) / RECORD_FILE
        self._title = title
        self._say = say
        self._records: deque[JobRecord] = deque()
        self._next = 0.0
        stream = stream if stream is not None else sys.stderr
        self._live = _screen(stream) if stream is not None else None

    def attend(self) -> None:
        """Called again and again while the job runs."""
        if monotonic() < self._next:
            return
        self._next = monotonic() + (PLAIN_SECONDS if self._live is None else EVERY_SECONDS)
        # Not there yet, or not any more.
        with contextlib.suppress(InputError):
            self._show(read_json(self._file, JobRecord))

    def close(self) -> None:
        """Give the terminal back as it was."""
        live, self._live = self._live, None
        if live is not None:
            with contextlib.suppress(OSError, ValueError):
                live.stop()

    def _show(self, record: JobRecord) -> None:
        if self._live is None:
            if record.steps:
                self._say(in_one_line(record))
            return
        self._records.append(record)
        while record.at_ns - self._records[0].at_ns > LATELY_SECONDS * 1e9:
            self._records.popleft()
        before = self._records[0] if len(self._records) > 1 else None
        try:
            self._live.update(_page(self._title, record, before), refresh=True)
        except (OSError, ValueError):
            # The terminal is gone; the job is not.
            self._live = None
            self._next = float("inf")


def _screen(stream: TextIO) -> Any:
    """Return the whole screen of a terminal, taken over; None where there is none."""
    from rich.console import Console
    from rich.live import Live

    try:
        console = Console(file=stream)
        if not console.is_terminal or console.is_dumb_terminal:
            return None
        # Nothing of ours runs between two calls, and the script's own streams stay its own.
        live = Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        live.start()
    except (OSError, ValueError):
        return None
    return live


def _page(title: str, record: JobRecord, before: JobRecord | None) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("part", no_wrap=True)
    for heading in ("so far", "share", "last minute"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in live_rows(record, before):
        bar = "█" * round(_BAR * row.lately_share)
        table.add_row(*map(Text, (row.part, row.time, row.share, row.lately)), Text(bar, style="cyan"))
    lines = [Text(visible(line)) for line in live_lines(record, before)]
    return Group(Text(visible(title), style="bold"), *lines, Text(""), table)
