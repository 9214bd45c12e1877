"""The lines that the device works for, and the calls that several of them belong to, with their prices.

In: what asked for each activity, the program, and who answers questions about it. Out: nodes, the longest
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...model.finding import NEGLIGIBLE_SHARE
from ...model.run import SourceSite
from ...model.view import CodeNode
from ..lanes.ask import Asker
from ..lanes.program import Program
from ..lanes.questions import EAGER
from ..lanes.replay import not_launched
from .by_line import NO_LINE, Asked

_MOST_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LineTeller:
    """Tells both."""

    asked: Asked
    program: Program
    asker: Asker
    device_scale: float
    host_scale: float
    """From traced to true time."""

    def lines(self) -> tuple[CodeNode, ...]:
        """Return the lines, each with those of a package that it calls.

        The step without one lacks its kernels, of forward and backward, and their launches.
        """
        asked = self.asked
        return self._nodes(asked.line, asked.line != NO_LINE)

    def _nodes(self, index: NDArray[np.intp], among: NDArray[np.bool_]) -> tuple[CodeNode, ...]:
        program, asked = self.program, self.asked
        count = len(asked.lines.sites)
        spent = np.bincount(index[among], weights=program.duration[among], minlength=count)
        ms = spent / program.steps / 1e6 * self.device_scale
        of_event = np.full(len(program.kind), NO_LINE)
        of_event[program.event[among]] = index[among]
        its = of_event != NO_LINE
        host_ms = program.work[:, EAGER].sum(axis=1) * self.host_scale
        host = np.bincount(of_event[its], weights=host_ms[its], minlength=count)
        whole = np.maximum(ms, host / program.steps / 1e6)
        found = []
        for at in np.argsort(-whole)[:_MOST_LINES].tolist():
            if whole[at] < NEGLIGIBLE_SHARE * self.asker.true_ms:
                break
            mine = among & (index == at)
            by_node = np.bincount(asked.node[mine], weights=program.duration[mine])
            within = mine & (asked.inner != NO_LINE)
            children = self._nodes(asked.inner, within) if index is asked.line and within.any() else ()
            name = asked.lines.names[int(by_node.argmax())]
            found.append(self._node(at, float(ms[at]), mine, callee=name, children=children))
        return tuple(found)

    def calls(self, lines: Sequence[CodeNode]) -> tuple[CodeNode, ...]:
        """Return the calls that several lines belong to, each dearer than any line, the longest first."""
        program = self.program
        chain = self.asked.chain[program.event]
        known = chain != NO_LINE
        count = len(self.asked.lines.chains)
        spent = np.zeros(count) + np.bincount(chain[known], weights=program.duration[known], minlength=count)
        found = []
        for at, chains in self.asked.calls(spent) if lines else ():
            mine = known & np.append(chains, False)[chain]
            ms = float(program.duration[mine].sum()) / program.steps / 1e6 * self.device_scale
            if ms > max(NEGLIGIBLE_SHARE * self.asker.true_ms, lines[0].ms):
                found.append(self._node(at, ms, mine))
        return tuple(sorted(found, key=lambda node: -node.ms))

    def _node(
        self,
        at: int,
        ms: float,
        mine: NDArray[np.bool_],
        *,
        callee: str = "",
        children: tuple[CodeNode, ...] = (),
    ) -> CodeNode:
        site: SourceSite = self.asked.lines.sites[at]
        true_ms = self.asker.true_ms
        return CodeNode(
            name=self.asked.lines.texts[at] or site.function,
            role="device",
            ms=ms,
            share=ms / true_ms,
            price_ms=max(0.0, true_ms - self.asker.step_ms(not_launched(self.program, mine))),
            file=site.file,
            line=site.line,
            function=site.function,
            callee=callee,
            children=children,
        )
