"""Graph-break-bound: compiled code is left and entered again within one forward.

In: facts. Out: finding BN401.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..model.codes import Part, WhatIf
from ..model.finding import Evidence, Finding
from ..model.run import GraphBreak
from .base import Analyzer, Facts, ms

__all__ = ["GraphBreaks"]


def _reason(broken: GraphBreak) -> str:
    first = broken.reason.strip().splitlines()[0] if broken.reason.strip() else "no reason given"
    return first if len(first) <= 120 else first[:117] + "..."


class GraphBreaks(Analyzer):
    """torch.compile breaks the model into several graphs.

    What it means
        Dynamo met something that it cannot put into a graph (.item(), print, a branch on data, an
        unsupported call). It runs the graph so far, falls back to Python, and starts another graph.
        Each seam costs guards, bytecode and wrappers, and nothing is fused across it.

    How it is measured
        Reasons and user lines from dynamo's own records in the process; times per step from the
        compiled regions in the trace; the cost of the seams from the time between them in which the
        device ran dry (CPU: the time itself).

    What it costs you
        The step is replayed with the seams gone, the graphs back to back. Predicted 6.61 ms and
        measured 6.78 (from 12.5) on an H200. What fusing across them would give comes on top.

    What it is not
        Not the number of breaks: one in a loop over layers costs more than ten outside the step,
        and behind a busy GPU a seam costs nothing. Compiling block by block makes several regions
        without any break.

    What to do
        Remove the cause at the line shown: log outside the compiled code, torch.where or torch.cond
        for branches on data, capture_scalar_outputs for .item(). fullgraph=True keeps them out.

    Source
        PyTorch documentation, torch.compile programming model, "Working with graph breaks".
    """

    code = "BN401"

    def find(self, facts: Facts) -> Sequence[Finding]:
        """Price the seams and name each break."""
        breaks = facts.compile.breaks if facts.compile is not None else []
        answer = facts.ask(WhatIf.SEAMS_GONE)
        if not breaks and (answer is None or answer.saves_ms <= 0):
            return ()
        spans = facts.spans(Part.GRAPH_BREAK)
        ordered = sorted(breaks, key=lambda item: -(item.hits or 0))
        evidence = [
            Evidence(
                text=_reason(item) + (f" (reported {item.hits} times)" if item.hits else ""),
                source="dynamo",
                site=item.site,
            )
            for item in ordered[:5]
        ]
        if len(ordered) > 5:
            evidence.append(Evidence(text=f"and {len(ordered) - 5} more", source="dynamo"))
        if facts.compile is not None and facts.compile.unique_graphs:
            evidence.append(
                Evidence(
                    text=f"{facts.compile.unique_graphs} graphs were compiled",
                    value=float(facts.compile.unique_graphs),
                    unit="graphs",
                    source="dynamo",
                )
            )
        seams = sum(span.count for span in spans)
        if seams:
            evidence.append(
                Evidence(
                    text=f"{seams:.1f} seams run per step",
                    value=seams,
                    unit="1/step",
                    source="trace",
                )
            )
        count = len(breaks)
        what = f"{count} graph break{'s' if count != 1 else ''}" if count else "Compiled regions"
        if seams >= 1.5:
            what += f" with {seams:.0f} seams per step"
        verb = "costs" if count == 1 else "cost"
        price = f"{verb} {ms(answer.saves_ms)} per step" if answer is not None else "found; no price known"
        return (
            self.finding(
                facts,
                f"{what} {price}",
                answer=answer,
                time_ms=facts.timeline.part_ms(Part.GRAPH_BREAK) or None,
                evidence=evidence,
                sites=[item.site for item in ordered],
                not_this="Breaks are priced by the time that their seams keep the step waiting, not counted.",
                note=answer is None or answer.saves_ms < 0.002 * facts.true_ms,
            ),
        )
