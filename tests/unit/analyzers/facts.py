"""Facts written down by hand: a timeline with the parts and answers that a test is about."""

from __future__ import annotations

from collections.abc import Mapping

from torch_bottleneck.analyzers import Facts
from torch_bottleneck.model.codes import Part, WhatIf
from torch_bottleneck.model.diagnosis import BudgetLine, StepSummary, WhatIfResult
from torch_bottleneck.model.run import CompileFacts, LoaderFacts, Run
from torch_bottleneck.timeline.result import HostSpan, Timeline

STEP_MS = 100.0


def facts(
    kind: str = "gpu",
    *,
    parts: Mapping[Part, float] | None = None,
    saves: Mapping[WhatIf, float] | None = None,
    bounds: tuple[WhatIf, ...] = (),
    after: Mapping[tuple[WhatIf, WhatIf], float] | None = None,
    context: Mapping[str, object] | None = None,
    spans: tuple[HostSpan, ...] = (),
    loaders: tuple[LoaderFacts, ...] = (),
    compile_facts: CompileFacts | None = None,
    run: Run | None = None,
    noise_ms: float = 0.5,
    true_is: str = "measured",
    count: int = 30,
    **timeline: object,
) -> Facts:
    """A step of 100 ms; what `parts` leave over is compute."""
    given = dict(parts or {})
    rest = STEP_MS - sum(given.values())
    given[Part.OTHER_MATH] = given.get(Part.OTHER_MATH, 0.0) + max(rest, 0.0)
    budget = tuple(BudgetLine(part=part, ms=ms, share=ms / STEP_MS) for part, ms in given.items())
    answers = {
        question: WhatIfResult(
            question=question,
            step_ms=STEP_MS - ms,
            saves_ms=ms,
            basis="written by hand",
            bound=question in bounds,
        )
        for question, ms in (saves or {}).items()
    }
    fields: dict[str, object] = {"profiled_ms": 110.0, "steps": 8, "spans": spans, **timeline}
    return Facts(
        timeline=Timeline(
            kind=kind,  # type: ignore[arg-type]
            true_ms=STEP_MS,
            budget=budget,
            what_ifs=answers,
            after=dict(after or {}),
            **fields,  # type: ignore[arg-type]
        ),
        step=StepSummary(
            true_ms=STEP_MS,
            true_ci_ms=(STEP_MS - noise_ms, STEP_MS + noise_ms),
            count=count,
            true_is=true_is,  # type: ignore[arg-type]
            spread_ms=1.0,
        ),
        context=dict(context or {}),  # type: ignore[arg-type]
        loaders=loaders,
        compile=compile_facts,
        flops=run.flops if run is not None else None,
        run=run,
    )
