"""How far the capture can be trusted, judged before any verdict.

In: facts. Out: finding BN001 and the quality grade.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..model.codes import Part
from ..model.finding import Evidence, Finding
from ..model.words import ms
from ..model.words import share_text as percent
from .base import Analyzer, Facts

__all__ = ["CaptureQuality", "Quality", "judge"]

_REPLAY_POOR = 0.10
"""Replay error above which no what-if is made from it."""
_MISSING_POOR = 0.05
"""Share of launches without a recorded kernel above which idle time cannot be told."""
_UNEXPLAINED_POOR = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """The grade, and why."""

    grade: Literal["good", "fair", "poor"]
    reasons: tuple[str, ...] = ()
    """What lowers the grade; the first is the worst."""
    remedy: str = ""
    """For a poor capture: what to do."""


def _remedy_for_no_trace(facts: Facts) -> str:
    run = facts.run
    trace = run.artefacts.get("trace") if run is not None else None
    if trace is not None and trace.status == "ok" and facts.timeline.steps == 0:
        return "The trace of this run is gone or cannot be read: run diagnose again."
    if run is not None and facts.timeline.steps == 0 and run.outcome.how in ("finished", "exited", "raised"):
        return "The script ended before the trace: let it make more steps, or use --warmup 2 --steps 3."
    return "Run again and let the trace window finish; use --steps 3 if the trace grew too large."


def _without_a_step_time(facts: Facts) -> tuple[str, str]:
    """Return what there was instead of a step to judge by, and what to do."""
    window = facts.run.window("warm-up") if facts.run is not None else None
    seen = len(window.steps.wall_ms) if window is not None else 0
    if window is None or not seen:
        return (
            "no training step was seen",
            "Let the script run a few optimizer steps, or mark steps with torch_bottleneck.Harness.",
        )
    table = window.steps
    last_ms = table.wall_ms[-1]
    longest = max(table.phases_ms, key=lambda name: table.phases_ms[name][-1], default=None)
    part = ""
    if longest is not None and last_ms > 0:
        spent_ms = table.phases_ms[longest][-1]
        part = f", {ms(spent_ms)} ({percent(spent_ms / last_ms)}) of it in the phase {longest}"
    if seen == 1:
        what = f"the one step that was seen is the script's first ({ms(last_ms)}{part})"
        return f"{what}, and a first step holds the costs of starting", "Let the script make more steps."
    return (
        f"every one of the {seen} steps seen compiled something (the last took {ms(last_ms)}{part})",
        "Let the script make more steps, until nothing is compiled any more.",
    )


def _broken_harness(facts: Facts) -> str:
    """Return why the script could not be watched, or nothing if it was."""
    run = facts.run
    states = [run.artefacts.get(name) for name in ("harness", "capture")] if run is not None else []
    failed = next((state for state in states if state is not None and state.status == "failed"), None)
    if failed is None:
        return ""
    lines = (failed.reason or "").strip().splitlines()
    return lines[-1] if lines else "no reason given"


def _memory_alone(facts: Facts) -> Quality | None:
    """Memory is all that was captured: nothing is wrong with it, but no step can be divided."""
    if not facts.memory or facts.timeline.steps:
        return None
    if facts.run is not None:
        if not facts.run.outcome.out_of_memory or facts.memory[0].out_of_memory is None:
            return None
        what = "timed" if facts.timeline.true_ms <= 0 else "traced"
        return Quality(
            grade="poor",
            reasons=(f"memory ran out before a step was {what}",),
            remedy="Make the run fit (BN213 says what held the memory), then diagnose it again.",
        )
    if facts.timeline.true_ms > 0:
        return None
    return Quality(
        grade="poor",
        reasons=("a memory snapshot tells of memory, not of time",),
        remedy="Give the trace or the run folder beside it; what it says of memory stands below.",
    )


def _profiles_itself(facts: Facts) -> bool:
    return facts.run is not None and any("own profiler" in text for text in facts.run.warnings)


def judge(facts: Facts) -> Quality:
    """Grade the capture of one rank."""
    timeline = facts.timeline
    poor: list[tuple[str, str]] = []
    fair: list[str] = []
    alone = _memory_alone(facts)
    if alone is not None:
        return alone
    if timeline.true_ms <= 0 or facts.step.true_ms is None:
        broken = _broken_harness(facts)
        poor.append(
            (
                f"no training step was seen, since watching failed ({broken})",
                "This is a fault of the tool's, or a torch that it does not know: please report it.",
            )
            if broken
            else _without_a_step_time(facts)
        )
    if timeline.replay_error is not None and (
        timeline.replay_error > _REPLAY_POOR or not timeline.usable_what_ifs
    ):
        poor.append(
            (
                f"the replay misses the traced window by {percent(timeline.replay_error)}",
                "Trace more steps (--steps 16), without other profilers and on a quiet machine.",
            )
        )
    if timeline.launches and timeline.missing_activities:
        missing = timeline.missing_activities / timeline.launches
        if missing > _MISSING_POOR:
            poor.append(
                (
                    f"{percent(missing)} of the launches have no recorded kernel",
                    "The trace lost events: trace fewer steps (--steps 2), or upgrade the driver.",
                )
            )
        elif missing > 0.005:
            fair.append(f"{percent(missing)} of the launches have no recorded kernel")
    unexplained = timeline.part_ms(Part.UNEXPLAINED) / timeline.true_ms if timeline.true_ms > 0 else 0.0
    if unexplained > _UNEXPLAINED_POOR and _profiles_itself(facts):
        poor.append(
            (
                "the script's own torch.profiler records while it is diagnosed, and only one can",
                "Take it out of the loop, or let it end (schedule(..., repeat=1)), and run again. If real "
                "runs have it too, it is the first thing to remove: it records every operator.",
            )
        )
    elif unexplained > _UNEXPLAINED_POOR:
        poor.append(
            (
                f"{percent(unexplained)} of the step is unexplained"
                if timeline.steps
                else "no whole step was traced, so the step cannot be divided",
                _remedy_for_no_trace(facts),
            )
        )
    elif unexplained > 0.15:
        fair.append(f"{percent(unexplained)} of the step is unexplained")
    if facts.step.true_is == "profiled":
        fair.append("no unprofiled step time, so the profiler's own cost is in the figures")
    # Where no step was seen at all, that is the reason, and what follows from it is none.
    seen = timeline.true_ms > 0 and facts.step.true_ms is not None
    if seen and facts.step.true_is == "measured" and facts.step.count < 5:
        steps = "step was" if facts.step.count == 1 else "steps were"
        fair.append(f"only {facts.step.count} unprofiled {steps} timed")
    if seen and timeline.steps < 2 and (timeline.steps or unexplained <= _UNEXPLAINED_POOR):
        fair.append(f"{'one' if timeline.steps else 'no'} whole traced step")
    spread = facts.step.spread_ms
    if spread is not None and facts.step.true_ms and spread > 0.2 * facts.step.true_ms:
        fair.append(f"step times scatter by {percent(spread / facts.step.true_ms)}")
    doubts = ("The traced steps differ", "The machine was busy", "Threads wait for one another")
    fair += [text.partition(". ")[0] for text in timeline.problems if text.startswith(doubts)]
    if poor:
        return Quality(grade="poor", reasons=tuple([p[0] for p in poor] + fair), remedy=poor[0][1])
    return Quality(grade="fair" if fair else "good", reasons=tuple(fair))


class CaptureQuality(Analyzer):
    """The capture does not carry a verdict.

    What it means
        Something that the verdict rests on is missing or contradicts itself, so the tool abstains
        instead of guessing.

    How it is measured
        Launches against recorded kernels, the replay's error on the profiled window, the number of
        whole steps, the spread of step times, what no line of the budget explains, and whether an
        unprofiled step time exists.

    What it costs you
        Nothing in the step. It costs the answer.

    What it is not
        Not a fault of the script: the reasons name what the capture lacks.

    What to do
        What the remedy says: mostly more steps, a quieter machine, or a run that is left to finish.

    Source
        pytorch/pytorch issue 192021 (kernels silently dropped at the start of a session) and this
        tool's design, "Capture quality".
    """

    code = "BN001"
    needs_step = False

    def find(self, facts: Facts) -> Sequence[Finding]:
        """Report a poor capture."""
        quality = judge(facts)
        if quality.grade != "poor":
            return ()
        return (
            self.finding(
                facts,
                "The capture does not carry a verdict: " + quality.reasons[0],
                evidence=[Evidence(text=text, source="capture") for text in quality.reasons],
                not_this="Says nothing about the script's speed.",
                note=True,
            ),
        )
