"""The user's line that recorded each node of the backward's graph, as autograd itself notes it.

In: the first of the steps in which FLOPs are counted, when nothing is timed. Out: `GraphLines` for run.json.
Autograd's anomaly mode notes the Python stack with each node; it is on for that step, without its checks.
Nothing is looked at where dynamo has compiled anything, which would compile again, nor without a device:
there the host's samples tell the lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from ...model.run import GraphLines, SourceSite
from .. import torch_private
from ..events.replacing import Replacements
from .sites import is_library

_FRAME: Final = re.compile(r'\s*File "(.*)", line (\d+), in (.*)\n\s*(.*)')
_LONGEST = 80
_MOST_NODES = 100_000


class GraphWatch:
    """One per process, on for one step."""

    def __init__(self) -> None:
        self._replaced = Replacements()
        self._on = self._ours = False
        self._nodes: dict[int, tuple[str, tuple[SourceSite, str] | None]] = {}
        """By sequence number: the node's name, and the line with its text."""
        self._known: dict[str, tuple[SourceSite, str] | None] = {}

    def begin(self) -> bool:
        """Look at what is recorded from now on; False where nothing is looked at."""
        owner = torch_private.engine_owner()
        on_cpu = torch_private.device_kind() == "cpu"
        if owner is None or on_cpu or torch_private.dynamo_counter("stats", "unique_graphs"):
            return False
        self._on = True
        self._replaced.put(*owner, self._make_engine)
        # A script that has the mode on keeps it as it is.
        self._ours = torch_private.note_stacks(on=True)
        return True

    def end(self) -> GraphLines | None:
        """Look no more; None where no backward was seen."""
        self._replaced.undo()
        if self._ours:
            torch_private.note_stacks(on=False)
        self._on = self._ours = False
        nodes, self._nodes = self._nodes, {}
        self._known = {}
        if not nodes:
            return None
        names: dict[str, int] = {}
        lines: dict[tuple[SourceSite, str], int] = {}
        order = [nodes[number] for number in sorted(nodes)]
        return GraphLines(
            node=[names.setdefault(name, len(names)) for name, _ in order],
            line=[-1 if line is None else lines.setdefault(line, len(lines)) for _, line in order],
            names=list(names),
            sites=[site for site, _ in lines],
            texts=[text for _, text in lines],
        )

    def _make_engine(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if self._on and not torch_private.in_backward():
                try:
                    self._walk(outputs)
                except Exception:
                    self._on = False
            return original(outputs, *args, **kwargs)

        return run_backward

    def _walk(self, outputs: Any) -> None:
        left = [node for output in outputs if (node := getattr(output, "grad_fn", None)) is not None]
        while left and len(self._nodes) < _MOST_NODES:
            node = left.pop()
            number = node._sequence_nr()
            # Where gradients are added up there is no number: all of these have the largest.
            if number in self._nodes or number >= torch_private.NO_SEQUENCE:
                continue
            self._nodes[number] = (node.name(), self._line(node.metadata.get("traceback_")))
            left += [after for after, _ in node.next_functions if after is not None]

    def _line(self, stack: list[str] | None) -> tuple[SourceSite, str] | None:
        return next(filter(None, map(self._user_line, reversed(stack or []))), None)

    def _user_line(self, frame: str) -> tuple[SourceSite, str] | None:
        if frame not in self._known:
            self._known[frame] = next(_user_lines(frame), None)
        return self._known[frame]


def _user_lines(frame: str) -> Iterator[tuple[SourceSite, str]]:
    found = _FRAME.match(frame)
    if found is not None and not is_library(found[1]):
        site = SourceSite(file=found[1], line=int(found[2]), function=found[3])
        yield site, found[4].strip()[:_LONGEST]
