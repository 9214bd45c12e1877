"""The nodes of the backward's graph: the user's line that recorded each, and which of them work for nobody.

In: the first of the steps in which FLOPs are counted, when nothing is timed. Out: `GraphLines` for run.json.
Autograd's anomaly mode notes the Python stack with each node; it is on for that step, without its checks.
What it notes is made here: to write out a whole stack takes milliseconds, two frames of it microseconds.
Nothing is looked at where dynamo has compiled anything, which would compile again. Without a device no lines
are noted: there the host's samples tell them.
"""

from __future__ import annotations

import contextlib
import linecache
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any, Final

from ...model.run import GraphLines, SourceSite, UnreadGradients
from .. import autograd_private, torch_private
from ..events.replacing import Replacements
from .backward_graph import Conversions, Joins, described, is_python, nodes_of, roots_of, sequence_number
from .chains import LONGEST, MOST_FRAMES, Line, LineTable, is_of_package, leading_to, source_of
from .gradient_reads import GradientReads, held_by
from .output_rows import OutputRows
from .sites import is_library, line_of

_FRAME: Final = re.compile(r'\s*File "(.*)", line (\d+), in (.*)\n\s*(.*)')


class GraphWatch:
    """One per process, on for one step."""

    def __init__(self, optimizers: Callable[[], Iterable[Any]] = tuple) -> None:
        """`optimizers` returns those of the script."""
        self._replaced = Replacements()
        self._on = self._ours = False
        self._nodes: dict[int, tuple[str, tuple[Line, ...], Line | None]] = {}
        """By sequence number: the node's name, the user's lines that were being run, the innermost first, and
        that of a model's package below them."""
        self._known: dict[str, tuple[Line, bool] | None] = {}
        self._gradients: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        """By name of a node of a function that is written in Python."""
        self._reads = GradientReads(lambda: held_by(optimizers()), one_step=True)
        self._rows = OutputRows(self._replaced)
        self._conversions, self._joins = Conversions(), Joins()
        self._sees_reads = self._notes_lines = False

    def begin(self) -> bool:
        """Look at what is recorded from now on; return whether lines are noted, which takes time."""
        owner, noter = autograd_private.engine_owner(), autograd_private.stack_noter()
        if owner is None or torch_private.dynamo_looks():
            return False
        self._on = True
        self._sees_reads = self._reads.begin()
        self._replaced.put(*owner, self._make_engine)
        self._notes_lines = noter is not None and torch_private.device_kind() != "cpu"
        if noter is None or not self._notes_lines:
            return False
        # A script that has the mode on keeps it as it is.
        self._ours = autograd_private.note_stacks(on=True)
        if self._ours:
            self._replaced.put(*noter, self._make_noter)
        return True

    def end(self, join_at: Callable[[int], SourceSite | None] = lambda _: None) -> GraphLines | None:
        """Look no more; None where no backward was seen, or nothing of it is known.

        `join_at` tells the line of a node that joins, by its number, where no lines are noted here.
        """
        self._replaced.undo()
        self._reads.end()
        if self._ours:
            autograd_private.note_stacks(on=False)
        self._on = self._ours = False
        nodes, self._nodes = self._nodes, {}
        self._known = {}
        gradients, self._gradients = self._gradients, Counter()
        dropped, self._dropped = self._dropped, Counter()
        unread, shares = self._unread()
        idle = self._idle()
        self._reads.forget()
        self._rows.forget()
        again, self._conversions = self._conversions, Conversions()
        joined, self._joins = self._joins.again, Joins()
        if not nodes or not (self._notes_lines or dropped or unread or idle or again.again or joined):
            return None
        names: dict[str, int] = {}
        table = LineTable()
        for number in joined:
            name, own, inner = nodes[number]
            site = join_at(number) if not own else None
            if site is not None:
                nodes[number] = name, ((site, source_of(site.file, site.line)),), inner
        order = [nodes[number] for number in sorted(nodes)]
        return GraphLines(
            node=[names.setdefault(name, len(names)) for name, *_ in order],
            line=[table.line(lines[0] if lines else None) for _, lines, _ in order],
            inner=[table.line(inner) for *_, inner in order],
            chain=[table.chain(lines) for _, lines, _ in order],
            chains=table.chains,
            names=list(names),
            sites=table.sites,
            texts=table.texts,
            dropped={name: count / gradients[name] for name, count in dropped.items() if count},
            unread=[shares.get(number, 0.0) for number in sorted(nodes)] if unread else [],
            unread_by=unread,
            idle=[idle.get(number, 0.0) for number in sorted(nodes)] if idle else [],
            again=[float(number in again.again) for number in sorted(nodes)] if again.again else [],
            weights_again=again.of_weights,
            joined=[float(number in joined) for number in sorted(nodes)] if joined else [],
        )

    def _unread(self) -> tuple[list[UnreadGradients], dict[int, float]]:
        """Return the backwards that make gradients for nobody, and the share of each node's work for them."""
        found: list[UnreadGradients] = []
        shares: dict[int, float] = {}
        with contextlib.suppress(Exception):
            all_unread = [self._reads.unread(one) for one in self._reads.passes]
            passes = list(zip(self._reads.passes, all_unread, strict=True))
            read = {line for one, unread in passes if not unread for line in one.lines}
            for one, unread in passes:
                its = dict(self._reads.shares(one, unread))
                # A graph that several backwards go through works for one of them, if for any.
                for node in one.graph:
                    if node.leaf is None:
                        shares[node.key] = min(its.get(node.key, 0.0), shares.get(node.key, 1.0))
                if unread and one.lines:
                    # A function may be called for gradients that are read, too: then the call tells which.
                    site = next((line for line in one.lines if line not in read), one.lines[0])
                    found.append(UnreadGradients(site=site, tensors=len(one.made), unread=len(unread)))
        return found, shares

    def _idle(self) -> dict[int, float]:
        """Return the share of the rows that each node worked on for nothing, by its number."""
        with contextlib.suppress(Exception):
            return dict(self._rows.shares())
        return {}

    def _make_engine(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if self._on and not autograd_private.in_backward():
                try:
                    nodes = nodes_of(outputs)
                    self._walk(nodes)
                    self._conversions.note(nodes)
                    self._joins.note(nodes, roots_of(outputs))
                    graph = described(nodes)
                    # A gradient that is zero is none to speak of where its own gradient is wanted.
                    if not autograd_private.records_itself(args):
                        self._rows.backward(nodes, graph)
                    if self._sees_reads and autograd_private.fills_all_leaves(args, kwargs):
                        self._reads.backward(graph)
                except Exception:
                    self._on = False
            # With the mode on, torch warns of an error that the script may expect.
            ours, self._ours = self._ours, False
            if ours:
                autograd_private.note_stacks(on=False)
            try:
                return original(outputs, *args, **kwargs)
            finally:
                if ours and self._on:
                    self._ours = autograd_private.note_stacks(on=True)

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

        def format_stack() -> list[str]:
            # An error here would be one of the script's forward.
            with contextlib.suppress(Exception):
                users, inner = leading_to(sys._getframe(1))
                return [text_of(each) for each in (*reversed(users), *([inner] if inner else []))]
            return []

        return format_stack

    def _walk(self, nodes: list[Any]) -> None:
        for node in nodes:
            number = sequence_number(node)
            if number is None or number in self._nodes:
                continue
            self._nodes[number] = (node.name(), *self._lines(node.metadata.get("traceback_")))
            if is_python(node):
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

    def _lines(self, stack: list[str] | None) -> tuple[tuple[Line, ...], Line | None]:
        """Return the user's lines, and the innermost of another package below them, if there is one."""
        inner: Line | None = None
        users: list[Line] = []
        for frame in reversed(stack or []):
            if frame not in self._known:
                self._known[frame] = _read(frame)
            known = self._known[frame]
            if known is not None and known[1]:
                users.append(known[0])
            elif not users:
                inner = inner or (known[0] if known is not None else None)
        return tuple(users[:MOST_FRAMES]), inner


def _read(frame: str) -> tuple[Line, bool] | None:
    """Return a line, and whether it is the user's; None for one of torch, of Python or of ours."""
    found = _FRAME.match(frame)
    if found is None:
        return None
    file, users = found[1], not is_library(found[1])
    if not users and not is_of_package(file):
        return None
    site = SourceSite(file=file, line=int(found[2]), function=found[3])
    return (site, found[4].strip()[:LONGEST]), users
