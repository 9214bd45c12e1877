"""Compile-bound: the program is still compiling when it should be training.

In: facts. Out: findings BN402 and BN403.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...model.codes import Part, WhatIf
from ...model.finding import Evidence, Finding
from ...model.run import SourceSite
from ...model.words import ms
from ..base import Analyzer, Facts
from ..sections.compile_facts import compile_summary, skip_cause, skip_site, skip_words


def _steps_compiled(facts: Facts) -> tuple[int, int]:
    """(baseline steps with a compilation, baseline steps)."""
    window = facts.run.window("baseline") if facts.run is not None else None
    if window is None:
        return 0, 0
    return sum(window.steps.compiled), len(window.steps.wall_ms)


class RecompilesInSteadyState(Analyzer):
    """Code is compiled again while the training runs.

    What it means
        A guard failed: a size, a flag or an object that dynamo had taken as fixed changed, so the
        frame is compiled again. After the recompile limit it runs eagerly from then on.

    How it is measured
        Dynamo's own records show which steps of the baseline window contain a compilation; these
        are compared with the others. The same records hold the guards that failed. From these come
        the dimensions that changed, and their sizes.

    What it costs you
        The mean step less the mean step without a compilation. Where the limit was reached and no
        compiled code is left: what the replay says of the model compiled.

    What it is not
        Not the compilation in the first steps, which fall into the warm-up and are not counted.

    What to do
        mark_dynamic or dynamic=True for the size that changes; buckets or padding; no plain ints
        that change as arguments of compiled code; or compile only the sub-modules with stable
        shapes.

    Source
        PyTorch documentation, torch.compile, "Recompilation" and "Dynamic shapes".
    """

    code = "BN402"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price steady-state compilation and name the guards."""
        answer = facts.ask(WhatIf.NO_COMPILE)
        with_compile, steps = _steps_compiled(facts)
        recompiles = facts.compile.recompiles if facts.compile is not None else []
        limit = facts.compile.limit_hit if facts.compile is not None else []
        compiling = facts.timeline.part_ms(Part.COMPILE)
        cost = answer.saves_ms if answer is not None else compiling
        if cost <= 0 and not recompiles and not limit:
            return
        steady = with_compile > 0 or compiling > 0
        evidence = []
        if steps:
            evidence.append(
                Evidence(
                    text=f"{with_compile} of {steps} baseline steps contain a compilation",
                    value=float(with_compile),
                    unit="steps",
                    source="baseline window",
                )
            )
        summary = compile_summary(facts)
        rows = summary.recompiles if summary is not None else ()
        for row in rows[:4]:
            evidence.append(
                Evidence(
                    text=f"{row.function} compiled again {row.count} time{'s' if row.count != 1 else ''}"
                    + (f", {row.seconds:.1f} s in all" if row.seconds else "")
                    + f": {(row.guard.strip() or 'guard unknown').splitlines()[0][:140]}",
                    value=float(row.count),
                    unit="recompiles",
                    source="dynamo",
                    site=row.site,
                )
            )
            if row.advice:
                evidence.append(Evidence(text=f"to compile only once: {row.advice}", source="failed guards"))
        evidence += [Evidence(text=f"recompile limit reached: {text}", source="dynamo") for text in limit[:2]]
        sites: list[SourceSite | None] = [row.site for row in rows]
        if compiling > 0:
            title = f"Compiling costs {ms(cost)} per step, in steady state"
        elif limit:
            at_best = "up to " if answer is not None and answer.bound else ""
            costs = f": compiled, the step would be {at_best}{ms(cost)} shorter" if cost > 0 else ""
            title = f"The recompile limit was reached, some code now always runs eagerly{costs}"
        else:
            count = sum(item.count for item in recompiles)
            title = f"{count} recompilation{'s' if count != 1 else ''} before the step time became stable"
        yield self.finding(
            facts,
            title,
            answer=answer,
            cost_ms=cost if cost > 0 else None,
            evidence=evidence,
            sites=sites,
            not_this="The first compilation of each graph is not counted.",
            note=not steady and not limit,
        )


class CudagraphsSkipped(Analyzer):
    """mode="reduce-overhead" is set, but CUDA graphs are not used.

    What it means
        Inductor refused to capture a graph (inputs mutated, work on the CPU, dynamic shapes...), so
        the kernels are still launched one by one.

    How it is measured
        Inductor's own reasons for skipping, counted in the process.

    What it costs you
        The step is replayed with one launch per compiled region.

    What it is not
        Not a problem where the GPU is busy anyway: then launches overlap with kernels.

    What to do
        Remove the reason that is given: do not change inputs in place, keep everything on the
        device, use fixed shapes.

    Source
        PyTorch documentation, "CUDAGraph Trees".
    """

    code = "BN403"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Report skips, priced by one launch per region."""
        skips = facts.compile.cudagraph_skips if facts.compile is not None else []
        if not skips:
            return
        yield self.finding(
            facts,
            f"CUDA graphs were skipped: {skip_words(skips[0])[:100]}",
            answer=facts.ask(WhatIf.ONE_LAUNCH),
            evidence=[
                Evidence(
                    text=skip_words(text)[:160] + (f": {skip_cause(text)}" if skip_cause(text) else ""),
                    source="inductor",
                    site=skip_site(text),
                )
                for text in skips[:4]
            ],
            sites=[skip_site(text) for text in skips],
            not_this="Costs time only where the device waits for launches.",
        )
