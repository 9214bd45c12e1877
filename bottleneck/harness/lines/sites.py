"""Which line of the user's program is running: the first frame outside libraries.

In: the Python stack. Out: `SourceSite`s, counted. For Lightning or HF Trainer this is always the
`.fit()` or `.train()` line: no more precise line of the user's exists there.
"""

from __future__ import annotations

import contextlib
import dis
import gc
import inspect
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from ...model.run import SiteTime, SourceSite
from ...runs.store import reason_of

_LIBRARY = tuple(
    {
        os.path.join(path, "")  # noqa: PTH118 - a prefix of strings, with its separator
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        for path in (sysconfig.get_path(name), os.path.realpath(sysconfig.get_path(name)))
    }
) + tuple(
    # As imported and as it lies on disk: an installation may be a link.
    {os.path.join(str(own.parents[2]), "") for own in (Path(__file__), Path(__file__).resolve())}  # noqa: PTH118
)
_GENERATED = f"{os.sep}torchinductor_"
"""In the name of the folder that inductor writes compiled code into, unless TORCHINDUCTOR_CACHE_DIR says
another: what is below that is taken for the user's. Dynamo sees this code, so nothing is looked up here."""
_known: dict[str, bool] = {}


def is_library(file: str) -> bool:
    """Return whether a `co_filename` is no file of the user's: stdlib, site-packages, ours, generated."""
    known = _known.get(file)
    if known is None:
        known = (
            file.startswith((*_LIBRARY, "<"))
            or _GENERATED in file
            or f"{os.sep}site-packages{os.sep}" in file
            or f"{os.sep}dist-packages{os.sep}" in file
        )
        _known[file] = known
    return known


def user_frame(skip: int = 1) -> FrameType | None:
    """Return the innermost frame of the user's program, or None; `skip` frames are ours."""
    return user_frame_of(sys._getframe(skip))


def user_frame_of(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the user's program at or above this one, or None."""
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def line_of(frame: FrameType) -> int:
    """Return the line that a frame is at; its first one where it is between lines, as another thread sees."""
    return frame.f_lineno or frame.f_code.co_firstlineno


def name_of(value: object, *, frame: FrameType) -> str:
    """Return the name by which a frame knows an object, like "model" or "self.model"; "" where by none."""
    local = list(names_in(frame))
    for name, bound in (*local, *list(frame.f_globals.items())):
        if bound is value:
            return name
    own = next((bound for name, bound in local if name == "self"), None)
    attributes = getattr(own, "__dict__", {})
    for name, bound in (*list(attributes.items()), *list((attributes.get("_modules") or {}).items())):
        if bound is value:
            return f"self.{name}"
    return ""


def names_in(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Yield the names of a frame of this thread, leaving everything as it is.

    Until 3.12 `f_locals` is one dict per frame, filled anew when it is asked for. One that the program has
    asked for itself (`options = locals()`) must not change; one of ours must not keep a graph alive.
    """
    code = frame.f_code
    if not code.co_flags & inspect.CO_NEWLOCALS:
        yield from list(frame.f_globals.items())
        return
    if sys.version_info >= (3, 13):
        yield from list(frame.f_locals.items())
        return
    names = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    for held in gc.get_referents(frame):
        if type(held) is dict and held and names.issuperset(held):
            return
    fresh = frame.f_locals
    items = list(fresh.items())
    fresh.clear()
    yield from items


def user_site(skip: int = 2) -> SourceSite | None:
    """Return the user's line that is running, or None; about 1 us."""
    return site_of_frame(user_frame(skip))


def site_of_frame(frame: FrameType | None) -> SourceSite | None:
    """Return the line at which a frame is; None of none."""
    if frame is None:
        return None
    code = frame.f_code
    return SourceSite(file=code.co_filename, line=line_of(frame), function=code.co_name)


def site_of_error(error: BaseException) -> SourceSite | None:
    """Return the user's line in which an exception was raised; if there is none, the one that is running."""
    found, trace = None, error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not is_library(code.co_filename):
            found = SourceSite(file=code.co_filename, line=trace.tb_lineno, function=code.co_name)
        trace = trace.tb_next
    return found if found is not None else user_site()


def told_of_error(error: BaseException) -> str:
    """Return kind, message and line of an exception."""
    site = site_of_error(error)
    return reason_of(error) + (f", in {site.file}:{site.line}" if site is not None else "")


def raised_by_script(error: BaseException) -> bool:
    """Return whether a statement of the user's program raised this; a `next()` past the end counts, too.

    Then no library failed, and no operation.
    """
    if isinstance(error, StopIteration):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or is_library(trace.tb_frame.f_code.co_filename):
        return False
    return dis.opname[trace.tb_frame.f_code.co_code[trace.tb_lasti]] == "RAISE_VARARGS"


class SiteBook:
    """Counts user lines by phase."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, int, str], int] = {}
        self._leading: set[tuple[CodeType, int]] = set()
        """All lines of the user's that lead to a forward."""

    def note(self, phase: str, skip: int = 3) -> None:
        """Count the line that is running now under this phase.

        Of an evaluation it is the innermost that leads to no forward of the training, if there is one.
        """
        found = innermost = user_frame(skip)
        if phase == "forward":
            frame = innermost
            while frame is not None:
                self._leading.add((frame.f_code, line_of(frame)))
                frame = user_frame_of(frame.f_back)
        elif phase == "evaluation":
            while found is not None and (found.f_code, line_of(found)) in self._leading:
                found = user_frame_of(found.f_back)
        if (found := found or innermost) is not None:
            code = found.f_code
            key = (phase, code.co_filename, line_of(found), code.co_name)
            self._counts[key] = self._counts.get(key, 0) + 1

    def naming(self, word: str) -> None:
        """Take the first line of the program's own files that names this, if one does, as its phase."""
        for file in [getattr(module, "__file__", None) for module in list(sys.modules.values())]:
            if not isinstance(file, str) or not file.endswith(".py") or is_library(file):
                continue
            with contextlib.suppress(OSError, UnicodeDecodeError):
                for number, line in enumerate(Path(file).read_text("utf-8").splitlines(), 1):
                    if word in line and not line.lstrip().startswith("#"):
                        self._counts[word, file, number, "<module>"] = 1
                        return

    def entries(self) -> list[SiteTime]:
        """Return all counts, the most frequent of each phase first."""
        ordered = sorted(self._counts.items(), key=lambda item: (item[0][0], -item[1]))
        return [
            SiteTime(site=SourceSite(file=file, line=line, function=function), phase=phase, count=count)
            for (phase, file, line, function), count in ordered
        ]
