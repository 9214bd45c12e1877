"""The stack of any thread, read in one piece: no other thread runs in between.

In: a thread. Out: its frames, as values. Never a frame object that outlives the call: where a frame ends
while someone still holds its object, the interpreter has to hand its memory over. For the frames that
dynamo makes this goes wrong on 3.11, and the walk along `f_back` was a segmentation fault in the user's
program. Python code that walks can be interrupted after each instruction, so C code does all of it.
"""

from __future__ import annotations

import gc
import sys
from itertools import chain, compress, starmap, takewhile
from operator import attrgetter, itemgetter, methodcaller
from types import CodeType
from typing import Any, NamedTuple

from ...model.run import SourceSite
from .calls import position_of
from .sites import is_library

_VALUES = attrgetter("f_code", "f_lasti", "f_lineno", "f_globals")
_CALLER = attrgetter("f_back")
_ONCE: tuple[tuple[()]] = ((),)


class Frame(NamedTuple):
    """What a frame was when it was read."""

    code: CodeType
    instruction: int
    """Its `f_lasti`."""
    traced_line: int | None
    """Its `f_lineno`; None between two lines."""
    namespace: dict[str, Any]
    """Its globals."""

    @property
    def file(self) -> str:
        """The file of its code."""
        return self.code.co_filename

    @property
    def line(self) -> int:
        """The line that it is at, or was at last where it is between lines."""
        return self.traced_line or position_of(self.code, self.instruction)[0]


def stack_of(thread: int) -> list[Frame]:
    """Return the frames of a thread, the innermost first; none if no such thread runs Python."""
    frames: list[Any] = []
    collected: list[bool] = []
    values: list[Any] = []
    # One call of C. `filter` drops what the side effects return. Until 3.11 a new frame object may start
    # garbage collection, and with it Python code; so there is none meanwhile.
    values.extend(
        filter(
            None,
            chain(
                map(collected.append, starmap(gc.isenabled, _ONCE)),
                starmap(gc.disable, _ONCE),
                map(frames.append, map(methodcaller("get", thread), starmap(sys._current_frames, _ONCE))),
                # `frames` grows while it is read, until a frame has no caller.
                map(
                    itemgetter(0),
                    zip(
                        map(_VALUES, takewhile(bool, frames)),
                        map(frames.append, map(_CALLER, frames)),
                        strict=False,
                    ),
                ),
                starmap(frames.clear, _ONCE),
                starmap(gc.enable, compress(_ONCE, collected)),
            ),
        )
    )
    return [Frame(*value) for value in values]


def threads() -> list[int]:
    """Return the threads that run Python."""
    found: list[int] = []
    found.extend(chain.from_iterable(starmap(sys._current_frames, _ONCE)))
    return found


def site_in(stack: list[Frame]) -> SourceSite | None:
    """Return the innermost line of the user's in a stack; None if a library runs by itself."""
    for frame in stack:
        if not is_library(frame.file):
            return SourceSite(file=frame.file, line=frame.line, function=frame.code.co_name)
    return None
