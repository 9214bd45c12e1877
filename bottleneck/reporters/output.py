"""The one owner of what reports are written to: standard output, a file, a run folder.

In: text, or a diagnosis and a folder. Out: bytes on a stream, or files that are whole or not there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ..errors import InputError, UsageError
from ..model.documents import DIAGNOSIS_FILE, write_text
from ..model.watch import WATCH_FILE
from .base import FORMATS
from .stream import is_terminal, show, tell

if TYPE_CHECKING:
    from collections.abc import Mapping

    import msgspec

    from ..model.diagnosis import Diagnosis
    from ..model.watch import Watch

REPORT_FILE = "report.md"
PAGE_FILE = "report.html"

_LONGER = ("terminal", "markdown", "compare.terminal")
"""Modules whose reports are longer with `verbose`; the others say everything, or as little as they can."""
_MIN_WIDTH = 40
_MAX_WIDTH = 100
"""Wider lines are harder to read, and a report is pasted into tickets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What the stream that a report goes to can show."""

    width: int = 80
    color: bool = False
    unicode: bool = True


def traits(stream: TextIO | None, *, environ: Mapping[str, str] | None = None) -> Traits:
    """Find out what `stream` can show.

    Colour needs a terminal that is not dumb; `NO_COLOR` (any value, https://no-color.org) forbids it,
    `FORCE_COLOR` asks for it elsewhere too. The width is the terminal's, or `COLUMNS`, else 80.
    """
    environ = os.environ if environ is None else environ
    terminal = False
    if stream is not None:
        with contextlib.suppress(ValueError):  # a closed stream
            terminal = stream.isatty()
    color = (terminal and environ.get("TERM") != "dumb") or bool(environ.get("FORCE_COLOR"))
    if environ.get("NO_COLOR"):
        color = False
    width = 80
    columns = environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        width = int(columns)
    elif terminal:
        width = shutil.get_terminal_size((80, 24)).columns
    encoding = (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "").replace("_", "")
    return Traits(width=max(_MIN_WIDTH, min(width, _MAX_WIDTH)), color=color, unicode=encoding == "utf8")


def render_for(
    document: msgspec.Struct, name: str, *, stream: TextIO | None = None, verbose: bool = False
) -> str:
    """Render in one of the formats of its kind; "text" suits itself to `stream` (None: a plain file).

    Raises:
        UsageError: there is no such format.
    """
    formats = FORMATS[type(document).__name__]
    if name not in formats:
        raise UsageError(f"There is no format {name!r} here.", remedy=f"Formats: {', '.join(formats)}.")
    module, _, function = formats[name].partition(":")
    options: dict[str, Any] = asdict(traits(stream)) if name == "text" and stream is not None else {}
    if module in _LONGER:
        options["verbose"] = verbose
    text: str = getattr(import_module(f".{module}", __package__), function or "render")(document, **options)
    return text


def fits_terminal(name: str, stream: TextIO | None) -> bool:
    """Return whether the format `name` can go to `stream`: a page of a megabyte is not for a terminal."""
    if name != "html" or stream is None:
        return True
    try:
        return not stream.isatty()
    except ValueError:  # a closed stream
        return True


def emit(text: str, *, out: str | Path | None = None) -> None:
    """Print `text` (out None or "-"), or write it to the file `out` and say so on stderr.

    A reader that goes away early (`| head`) or a closed stdout is not an error: the report was asked
    for, and whoever asked has seen enough.
    """
    if out is not None and str(out) != "-":
        write_text(Path(out), text)
        tell(f"Wrote {out}")
        return
    stream = sys.stdout
    if stream is None:
        return
    try:
        show(text, stream, color=traits(stream).color)
    except BrokenPipeError:
        _forget_stdout()
    except OSError as error:
        _forget_stdout()  # what is still buffered cannot be written either
        raise InputError(
            f"Cannot write to standard output: {error.strerror or error}.",
            remedy="Free some space, or send the output elsewhere.",
        ) from None
    except ValueError:  # closed stream
        return


def print_diagnosis(diagnosis: Diagnosis, name: str, *, verbose: bool = False) -> None:
    """Print the report on a script that has just ended, as text where a terminal would get the HTML page."""
    if is_terminal():
        tell("")  # a progress bar that was stopped has left no line end
    if not fits_terminal(name, sys.stdout):
        name = "text"
    emit(render_for(diagnosis, name, stream=sys.stdout, verbose=verbose))


def save_watch(watch: Watch, folder: Path) -> None:
    """Write watch.json, report.md and report.html into `folder`; what cannot be written is said on stderr.

    The job has ended as it has, and its exit code is the script's, not that of a full disk.
    """
    for name, kind in ((WATCH_FILE, "json"), (REPORT_FILE, "md"), (PAGE_FILE, "html")):
        try:
            write_text(folder / name, render_for(watch, kind))
        except InputError as error:
            tell(str(error))


def save(diagnosis: Diagnosis, folder: Path) -> tuple[Path, ...]:
    """Write diagnosis.json, report.md and report.html into `folder`, and return their paths.

    Raises:
        InputError: the folder cannot be written to.
    """
    written = []
    for name, kind in ((DIAGNOSIS_FILE, "json"), (REPORT_FILE, "md"), (PAGE_FILE, "html")):
        path = folder / name
        write_text(path, render_for(diagnosis, kind, verbose=True))
        written.append(path)
    return tuple(written)


def _forget_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not complain."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)


def refuse_foreign_reports(out: Path) -> None:
    """Refuse to overwrite a report that is not ours: our reports are next to their diagnosis.json.

    Raises:
        InputError: there is such a report.
    """
    for name in (REPORT_FILE, PAGE_FILE):
        if (out / name).exists() and not (out / DIAGNOSIS_FILE).exists():
            raise InputError(
                f"{out / name} exists without a diagnosis next to it. It would be overwritten.",
                remedy="Name another folder with --out.",
            )
