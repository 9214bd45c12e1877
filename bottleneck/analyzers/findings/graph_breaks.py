"""Graph-break-bound: compiled code is left and entered again within one forward.

In: facts. Out: finding BN401.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...model.codes import Part, WhatIf
from ...model.finding import Evidence, Finding
from ...model.words import brief, ms
from ...model.work import BreakRow
from ..base import Analyzer, Facts
from ..sections.compile_facts import compile_summary


def _priced(row: BreakRow) -> str:
    """Return a break in one line: why, how often, and what it costs."""
    text = brief(row.reason, 100)
    told = []
    if row.cost_ms is not None:
        told.append(f"{ms(row.cost_ms)} per step" + (", split evenly" if row.shared else ""))
    if row.seams_per_step:
        told.append(f"crossed {row.seams_per_step:.0f} times")
    return f"{text} ({', '.join(told)})" if told else text


class GraphBreaks(Analyzer):
    """torch.compile breaks the model into several graphs.

    What it means
        Dynamo found something that it cannot put into a graph (.item(), print, a branch on data, an
        unsupported call). It runs the graph so far, falls back to Python, and starts another graph.
        Each seam between two graphs costs guards, bytecode and wrappers, and nothing is fused
        across it.

    How it is measured
        Reasons and user lines come from dynamo's own records in the process, including functions
        that it gave up as a whole (a break in a loop). Each compiled region of the trace names its
        frame, and the frame ends at a known break. So every seam belongs to a break; in backward,
        autograd's sequence numbers show to which. The cost of a seam is the time that it leaves the
        device idle (CPU: the time itself).

    What it costs you
        The step is replayed without the seams and with the graphs back to back. Neighbouring
        kernels that only a seam separates are fused. The total saving is divided among the breaks
        by what each would save alone. Further fusion would save more.

    What it is not
        Not the number of breaks: one in a loop over layers costs more than ten outside the step,
        and a seam costs nothing while the GPU is busy. Compiling block by block makes several
        regions without any break.

    What to do
        Remove the cause at the line shown: log outside the compiled code, use torch.where or
        torch.cond for branches on data, capture_scalar_outputs for .item(). fullgraph=True reports
        any new break.

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
        summary = compile_summary(facts)
        ordered = summary.breaks if summary is not None else ()
        evidence = [
            Evidence(
                text=_priced(item),
                value=item.cost_ms,
                unit="ms/step" if item.cost_ms is not None else "",
                source="dynamo, replay" if item.cost_ms is not None else "dynamo",
                site=item.site,
            )
            for item in ordered[:5]
        ]
        if len(ordered) > 5:
            rest = sum(item.cost_ms or 0.0 for item in ordered[5:])
            evidence.append(Evidence(text=f"and {len(ordered) - 5} more, {ms(rest)}", source="dynamo"))
        if facts.compile is not None and facts.compile.unique_graphs:
            evidence.append(
                Evidence(
                    text=f"{facts.compile.unique_graphs} graphs were compiled",
                    value=float(facts.compile.unique_graphs),
                    unit="graphs",
                    source="dynamo",
                )
            )
        work = facts.timeline.compiled
        if work is not None and work.eager_in_seams:
            evidence.append(
                Evidence(
                    text=f"{work.eager_in_seams:.0f} kernels per step are launched eagerly between graphs",
                    value=work.eager_in_seams,
                    unit="1/step",
                    source="trace",
                )
            )
        crossed = sum(price.per_step for price in facts.timeline.seams) or sum(span.count for span in spans)
        if crossed:
            evidence.append(
                Evidence(
                    text=f"crossed {crossed:.0f} times per step, forward and backward",
                    value=crossed,
                    unit="1/step",
                    source="trace",
                )
            )
        count = len(breaks)
        what = f"{count} graph break{'s' if count != 1 else ''}" if count else "Seams of compiled regions"
        if crossed >= 1.5:
            what += f", crossed {crossed:.0f} times per step,"
        verb = "costs" if count == 1 else "cost"
        price = f"{verb} {ms(answer.saves_ms)} per step" if answer is not None else "found; cost unknown"
        return (
            self.finding(
                facts,
                f"{what} {price}",
                answer=answer,
                time_ms=facts.timeline.part_ms(Part.GRAPH_BREAK) or None,
                evidence=evidence,
                sites=[item.site for item in ordered],
                not_this="The price is the time that the step waits, not the number of breaks.",
                note=answer is None or answer.saves_ms < 0.002 * facts.true_ms,
            ),
        )
