"""The user's line that recorded each node of the backward's graph, as autograd itself notes it.

In: the first of the steps in which FLOPs are counted, when nothing is timed. Out: `GraphLines` for run.json.
Autograd's anomaly mode notes the Python stack with each node; it is on for that step, without its checks.
What it notes is made here: to write out a whole stack takes milliseconds, two frames of it microseconds.
Nothing is looked at where dynamo has compiled anything, which would compile again, nor without a device:
there the host's samples tell the lines.
"""

from __future__ import annotations

import contextlib
import linecache
import re
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, TypeAlias

import torch

from ...model.run import GraphLines, SourceSite
from .. import torch_private
from ..events.replacing import Replacements
from .sites import is_library, line_of

_FRAME: Final = re.compile(r'\s*File "(.*)", line (\d+), in (.*)\n\s*(.*)')
_TORCH_AND_OURS: Final = (str(Path(torch.__file__).parent), str(Path(__file__).resolve().parents[2]))
_PACKAGES: Final = ("site-packages", "dist-packages")
_LONGEST = 80
_MOST_NODES = 100_000


_Line: TypeAlias = tuple[SourceSite, str]
"""With its source."""


class GraphWatch:
    """One per process, on for one step."""

    def __init__(self) -> None:
        self._replaced = Replacements()
        self._on = self._ours = False
        self._nodes: dict[int, tuple[str, _Line | None, _Line | None]] = {}
        """By sequence number: the node's name, the user's line, and that of a model's package below it."""
        self._known: dict[str, tuple[_Line, bool] | None] = {}
        self._gradients: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        """By name of a node of a function that is written in Python."""

    def begin(self) -> bool:
        """Look at what is recorded from now on; False where nothing is looked at."""
        owner, noter = torch_private.engine_owner(), torch_private.stack_noter()
        on_cpu = torch_private.device_kind() == "cpu"
        if owner is None or noter is None or on_cpu or torch_private.dynamo_counter("stats", "unique_graphs"):
            return False
        self._on = True
        self._replaced.put(*owner, self._make_engine)
        # A script that has the mode on keeps it as it is.
        self._ours = torch_private.note_stacks(on=True)
        if self._ours:
            self._replaced.put(*noter, self._make_noter)
        return True

    def end(self) -> GraphLines | None:
        """Look no more; None where no backward was seen."""
        self._replaced.undo()
        if self._ours:
            torch_private.note_stacks(on=False)
        self._on = self._ours = False
        nodes, self._nodes = self._nodes, {}
        self._known = {}
        gradients, self._gradients = self._gradients, Counter()
        dropped, self._dropped = self._dropped, Counter()
        if not nodes:
            return None
        names: dict[str, int] = {}
        lines: dict[_Line, int] = {}

        def index(line: _Line | None) -> int:
            return -1 if line is None else lines.setdefault(line, len(lines))

        order = [nodes[number] for number in sorted(nodes)]
        return GraphLines(
            node=[names.setdefault(name, len(names)) for name, *_ in order],
            line=[index(line) for _, line, _ in order],
            inner=[index(inner) for *_, inner in order],
            names=list(names),
            sites=[site for site, _ in lines],
            texts=[text for _, text in lines],
            dropped={name: count / gradients[name] for name, count in dropped.items() if count},
        )

    def _make_engine(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if self._on and not torch_private.in_backward():
                try:
                    self._walk(outputs)
                except Exception:
                    self._on = False
            # With the mode on, torch warns of an error that the script may expect.
            ours, self._ours = self._ours, False
            if ours:
                torch_private.note_stacks(on=False)
            try:
                return original(outputs, *args, **kwargs)
            finally:
                if ours and self._on:
                    self._ours = torch_private.note_stacks(on=True)

        return run_backward

    def _make_noter(self, _original: Callable[[], list[str]]) -> Callable[[], list[str]]:
        written: dict[tuple[CodeType, int], str] = {}

        def text_of(frame: FrameType) -> str:
            code, line = frame.f_code, line_of(frame)
            if (code, line) not in written:
                source = linecache.getline(code.co_filename, line, frame.f_globals).strip()
                written[code, line] = (
                    f'  File "{code.co_filename}", line {line}, in {code.co_name}\n    {source}\n'
                )
            return written[code, line]

        def frames_of(frame: FrameType | None) -> list[str]:
            inner = ""
            while frame is not None and is_library(frame.f_code.co_filename):
                if not inner and _is_of_package(frame.f_code.co_filename):
                    inner = text_of(frame)
                frame = frame.f_back
            return [text for text in (text_of(frame) if frame is not None else "", inner) if text]

        def format_stack() -> list[str]:
            # An error here would be one of the script's forward.
            with contextlib.suppress(Exception):
                return frames_of(sys._getframe(1))
            return []

        return format_stack

    def _walk(self, outputs: Any) -> None:
        # Of a tensor, or of an edge of the graph.
        starts = (getattr(output, "grad_fn", None) or getattr(output, "node", None) for output in outputs)
        left = [node for node in starts if node is not None]
        while left and len(self._nodes) < _MOST_NODES:
            node = left.pop()
            number = node._sequence_nr()
            # Where gradients are added up there is no number: all of these have the largest.
            if number in self._nodes or number >= torch_private.NO_SEQUENCE:
                continue
            self._nodes[number] = (node.name(), *self._lines(node.metadata.get("traceback_")))
            left += [after for after, _ in node.next_functions if after is not None]
            if hasattr(node, "_forward_cls"):
                self._replaced.hook(node.register_hook(self._count_dropped(node.name(), node.next_functions)))

    def _count_dropped(self, name: str, edges: Any) -> Callable[[Any, Any], None]:
        """Return a hook that counts what a function computes, and what of it autograd has no use for."""
        needed = [after is not None for after, _ in edges]

        def count(computed: Any, _given: Any) -> None:
            with contextlib.suppress(Exception):
                for gradient, is_needed in zip(computed, needed, strict=False):
                    if gradient is not None:
                        self._gradients[name] += 1
                        self._dropped[name] += not is_needed

        return count

    def _lines(self, stack: list[str] | None) -> tuple[_Line | None, _Line | None]:
        """Return the user's line, and the innermost of another package below it, if there is one."""
        inner: _Line | None = None
        for frame in reversed(stack or []):
            if frame not in self._known:
                self._known[frame] = _read(frame)
            known = self._known[frame]
            if known is not None and known[1]:
                return known[0], inner
            inner = inner or (known[0] if known is not None else None)
        return None, inner


@cache
def _is_of_package(file: str) -> bool:
    """Return whether a file of a library is of an installed package, and neither torch's nor ours."""
    return any(name in file for name in _PACKAGES) and not file.startswith(_TORCH_AND_OURS)


def _read(frame: str) -> tuple[_Line, bool] | None:
    """Return a line, and whether it is the user's; None for one of torch, of Python or of ours."""
    found = _FRAME.match(frame)
    if found is None:
        return None
    file, users = found[1], not is_library(found[1])
    if not users and not _is_of_package(file):
        return None
    site = SourceSite(file=file, line=int(found[2]), function=found[3])
    return (site, found[4].strip()[:_LONGEST]), users
