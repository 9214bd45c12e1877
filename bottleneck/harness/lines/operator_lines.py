"""The user's lines below which operators are called, also those that record nothing for a backward.

In: the calls of torch's functions in a step in which operators are recorded. Out: `OperatorLines` for
run.json. A mark around each call, which the profiler records as it does the operators, is named for the lines
that lead to it. Without a device nothing is marked: there the host's samples tell the lines.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any, TypeAlias

from torch import distributed

from ...model.run import OperatorLines, SourceSite
from ...model.view import COLLECTIVES
from .. import torch_private
from ..events.replacing import Replacements
from ..profiled import Mark, mark_of, operators_inside
from .chains import Line, LineTable, leading_to, source_of
from .sites import line_of

_MARK = "bottleneck: lines "
_GIVEN_TO_P2P = ("isend", "irecv")
_At: TypeAlias = tuple[CodeType, int]


class OperatorMarks:
    """One per process, on for one step."""

    def __init__(self) -> None:
        self.on = False
        self._marks: dict[tuple[tuple[_At, ...], _At | None], str] = {}
        """The user's lines that lead to a call, the innermost first, and that of a package below them."""
        self._around: Mark | None = None
        self._thread = 0
        self._replaced = Replacements()

    def begin(self) -> None:
        """Mark calls from now on, where there is a device, and torch has marks that are no operators."""
        self.on = torch_private.device_kind() != "cpu" and mark_of("") is not None
        self._thread = threading.get_ident()
        for owner, name in _collectives() if self.on else ():
            self._replaced.put(owner, name, self._make_collective)

    def end(self) -> None:
        """Mark no more; a step may end inside a call."""
        self.on = False
        self._replaced.undo()
        self.leave()

    def _make_collective(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a collective with a mark: before torch 2.13 a mode of functions does not see it."""

        def collective(*args: Any, **kwargs: Any) -> Any:
            marked = threading.get_ident() == self._thread and self.enter(sys._getframe(1))
            try:
                return original(*args, **kwargs)
            finally:
                if marked:
                    self.leave()

        return collective

    def forget(self) -> None:
        """Let go of what is known of the script."""
        self._marks = {}

    def enter(self, caller: FrameType) -> bool:
        """Begin the mark of a call; False for one inside another, which belongs to that one's lines."""
        if not self.on or self._around is not None:
            return False
        users, inner = leading_to(caller)
        if not users:
            return False
        key = tuple(map(_at, users)), _at(inner) if inner is not None else None
        self._around = mark_of(self._marks.setdefault(key, f"{_MARK}{len(self._marks)}"))
        if self._around is not None:
            self._around.__enter__()
        return self._around is not None

    def leave(self) -> None:
        """End the mark that `enter` has begun, if it is not over."""
        around, self._around = self._around, None
        if around is not None:
            around.__exit__(None, None, None)

    def read(self, profile: Any) -> OperatorLines | None:
        """Return the lines of the step's operators, from its stopped profile; None where none has any."""
        marks, self._marks = self._marks, {}
        if not marks:
            return None
        inside, counts = operators_inside(profile, marks.values())
        marked = [(at, inside[mark]) for at, mark in marks.items() if inside[mark]]
        calls: dict[str, list[int]] = {}
        for chain, (_, operators) in enumerate(marked):
            for name, call in operators:
                calls.setdefault(name, [-1] * counts[name])[call] = chain
        if not calls:
            return None
        table = LineTable()
        return OperatorLines(
            calls=calls,
            # Two stacks may differ in the line of a package alone: each has an entry of its own.
            chains=[tuple(table.line(_line(at)) for at in users) for (users, _), _ in marked],
            inner=[table.line(_line(at) if at is not None else None) for (_, at), _ in marked],
            sites=table.sites,
            texts=table.texts,
        )


def _collectives() -> Iterator[tuple[Any, str]]:
    """Yield (module, name) of the functions that send between ranks; none where no ranks have met.

    Not of those that `torch.distributed.P2POp` is given, which compares them with its own.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    for name, function in list(vars(distributed.distributed_c10d).items()):
        if name in _GIVEN_TO_P2P:
            continue
        if type(function) is FunctionType and f"{function.__module__}.{name}".startswith(COLLECTIVES):
            yield distributed.distributed_c10d, name
            if vars(distributed).get(name) is function:
                yield distributed, name


def _at(frame: FrameType) -> _At:
    return frame.f_code, line_of(frame)


def _line(at: _At) -> Line:
    code, line = at
    site = SourceSite(file=code.co_filename, line=line, function=code.co_name)
    return site, source_of(code.co_filename, line)
