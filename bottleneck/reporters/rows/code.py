"""The step by whose code it is, as rows: what costs most beside forward, backward and update, and the flame.

In: a diagnosis. Out: rows of short, clean strings and numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ...model.diagnosis import Diagnosis
from ...model.finding import NEGLIGIBLE_SHARE
from ...model.view import ONE_CALL, CodeNode
from ...model.words import clean, milliseconds, percent, place
from .diagnosis import root_of

_MOST_ROWS = 5
_MOST_LINES = 3
_TRAINING = ("step", "forward", "backward", "update")
"""What every step consists of."""
_NAME = 60
_TARGET = re.compile(r"return |[^=(]+? [-+*/@|&^%]?= ")
"""What comes before the expression of a line: the call is what a reader looks for."""
_SEEN = 0.004
"""Share of the step below which a block is too narrow to be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeRow:
    """One line of the user's, or of a package that trains, with all that it calls."""

    name: str
    role: str
    ms: str
    share: str
    where: str
    without: str
    """The step without it; empty where no price is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlameBlock:
    """One block of the flame graph, in percent of the step."""

    label: str
    title: str
    role: str
    left: float
    width: float
    depth: int


def _named(node: CodeNode) -> str:
    """Return what a line calls; of one that the device works for, the beginning of what it computes."""
    text = clean(node.name)
    if node.role == "device":
        text = text[found.end() :] if (found := _TARGET.match(text)) else text
        text = text if text.count("(") == text.count(")") else f"{text}…"
    return text[:_NAME]


def code_rows(diagnosis: Diagnosis) -> list[CodeRow]:
    """Return what costs most beside forward, backward and update, and the lines that the device works for.

    None is inside another, but for what the device does for a line of the host's, or for a call that leads to
    several lines, and for the lines of a package of models that one of the user's calls. Where a package
    trains, its lines are among them.
    """
    root, true_ms = root_of(diagnosis), diagnosis.step.true_ms
    beside = _beside(diagnosis.tree) if diagnosis.tree is not None else ()
    found = [node for node in beside if node.share >= NEGLIGIBLE_SHARE]
    # What the device does behind a host that decides is no way to a shorter step.
    least_ms = NEGLIGIBLE_SHARE * (true_ms or 0.0)
    device = [each for node in diagnosis.device_lines[:_MOST_LINES] for each in (node, *node.children)]
    calls = diagnosis.device_calls[:_MOST_LINES]
    device = [*calls, *(node for node in device if node.site not in {call.site for call in calls})]
    found += [node for node in device if (node.price_ms or 0.0) >= least_ms]
    found.sort(key=lambda node: -(node.price_ms or node.ms))
    return [
        CodeRow(
            name=_named(node),
            role=node.role,
            ms=milliseconds(node.ms, like=true_ms),
            share=percent(node.share),
            where=place(node.site, root=root) if node.site is not None else "",
            without=_without(node, true_ms),
        )
        for node in found[:_MOST_ROWS]
    ]


def _without(node: CodeNode, true_ms: float | None) -> str:
    if node.price_ms is None or true_ms is None:
        return ""
    return f"{'≥ ' if node.bound else ''}{milliseconds(true_ms - node.price_ms, like=true_ms)} ms"


def _beside(node: CodeNode) -> Iterator[CodeNode]:
    for child in node.told:
        # A function that runs the model among other things is none of them.
        if child.trains or not child.roles.isdisjoint(_TRAINING):
            yield from _beside(child)
            continue
        # The wait for a batch is best told by the line that makes it.
        made = [each for each in child.children if each.ms >= ONE_CALL * child.ms]
        yield made[0] if child.role == "input" and made else child


def flame_blocks(diagnosis: Diagnosis) -> list[FlameBlock]:
    """Return the tree as blocks, each above what it calls."""
    if diagnosis.tree is None:
        return []
    return list(_blocks(diagnosis.tree, diagnosis, root_of(diagnosis), left=0.0, depth=0))


def _blocks(
    node: CodeNode, diagnosis: Diagnosis, root: str, *, left: float, depth: int
) -> Iterator[FlameBlock]:
    if node.share < _SEEN:
        return
    true_ms = diagnosis.step.true_ms
    told = [f"{milliseconds(node.ms, like=true_ms)} ms ({percent(node.share)})", node.role]
    if node.site is not None:
        told.append(place(node.site, root=root))
    without = _without(node, true_ms)
    if without:
        told.append(f"step without it: {without}")
    name = clean(node.name)[:_NAME]
    yield FlameBlock(
        label=name,
        title=f"{name}: {', '.join(told)}",
        role=node.role.replace(" ", "-"),
        left=round(100 * left, 3),
        width=round(100 * min(node.share, 1.0 - left), 3),
        depth=depth,
    )
    for child in node.told:
        yield from _blocks(child, diagnosis, root, left=left, depth=depth + 1)
        left += child.share
