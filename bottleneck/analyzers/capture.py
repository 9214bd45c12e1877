"""How far the capture can be trusted, judged before any verdict.

In: facts. Out: finding BN001 and the quality grade.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..model.codes import Part
from ..model.finding import WATCHED_REMEDY, Doubt, DoubtCode, Evidence, Finding
from ..model.words import ms, percent
from .base import Analyzer, Facts

_MISSING_POOR = 0.05
"""Share of launches without a recorded kernel above which idle time cannot be determined."""
_MISSING_FAIR = 0.005
_UNEXPLAINED_POOR = 0.5
_OF_THE_MACHINE = (DoubtCode.MACHINE_BUSY, DoubtCode.THREADS_WAIT)
_LOWER_THE_GRADE = (DoubtCode.STEPS_DIFFER, *_OF_THE_MACHINE)
"""Doubts of the reading itself that make a capture fair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """The grade, and why."""

    grade: Literal["good", "fair", "poor"]
    reasons: tuple[Doubt, ...] = ()
    """What lowers the grade, the worst first; its remedy is shown for a poor capture."""


def _remedy_for_no_trace(facts: Facts) -> str:
    run = facts.run
    trace = run.artefacts.get("trace") if run is not None else None
    if trace is not None and trace.status == "ok" and facts.timeline.steps == 0:
        return "The trace of this run is missing or cannot be read: run diagnose again."
    if run is not None and run.watched:
        return WATCHED_REMEDY
    if run is not None and facts.timeline.steps == 0 and run.outcome.how in ("finished", "exited", "raised"):
        return "The script ended before the trace: let it make more steps, or use --warmup 2 --steps 3."
    return "Run again and let the trace window finish; use --steps 3 if the trace grew too large."


def _without_a_step_time(facts: Facts) -> Doubt:
    """Return why no step could be used, and what to do."""
    window = facts.run.window("warm-up") if facts.run is not None else None
    seen = len(window.steps.wall_ms) if window is not None else 0
    if window is None or not seen:
        return Doubt(
            code=DoubtCode.NO_STEP_SEEN,
            text="no training step was seen",
            remedy="Let the script run a few optimizer steps, or mark steps with torch_bottleneck.Harness. If"
            " processes of others train (Ray), put `with torch_bottleneck.diagnosing():` into their loop.",
        )
    table = window.steps
    last_ms = table.wall_ms[-1]
    longest = max(table.phases_ms, key=lambda name: table.phases_ms[name][-1], default=None)
    part = ""
    if longest is not None and last_ms > 0:
        spent_ms = table.phases_ms[longest][-1]
        part = f", {ms(spent_ms)} ({percent(spent_ms / last_ms)}) of it in the phase {longest}"
    if seen == 1:
        what = f"the only step that was seen is the script's first ({ms(last_ms)}{part})"
        return Doubt(
            code=DoubtCode.NO_STEP_SEEN,
            text=f"{what}, and a first step includes one-time start-up work",
            remedy="Let the script make more steps.",
        )
    return Doubt(
        code=DoubtCode.NO_STEP_SEEN,
        text=f"every one of the {seen} steps seen compiled something (the last took {ms(last_ms)}{part})",
        remedy="Let the script make more steps, until nothing more is compiled.",
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


def _memory_alone(facts: Facts) -> Doubt | None:
    """Only memory was captured: that is no error, but no step can be divided."""
    if not facts.memory or facts.timeline.steps:
        return None
    if facts.run is not None:
        if not facts.run.outcome.out_of_memory or facts.memory[0].out_of_memory is None:
            return None
        what = "timed" if facts.timeline.true_ms <= 0 else "traced"
        return Doubt(
            code=DoubtCode.MEMORY_ALONE,
            text=f"memory ran out before a step was {what}",
            remedy="Make the run fit into memory (BN213 says what held it), then diagnose it again.",
        )
    if facts.timeline.true_ms > 0:
        return None
    return Doubt(
        code=DoubtCode.MEMORY_ALONE,
        text="a memory snapshot says nothing about time",
        remedy="Also give the trace, or the run folder. What the snapshot says about memory is shown below.",
    )


def judge(facts: Facts) -> Quality:
    """Grade the capture of one rank."""
    timeline = facts.timeline
    poor: list[Doubt] = []
    fair: list[Doubt] = []
    alone = _memory_alone(facts)
    if alone is not None:
        return Quality(grade="poor", reasons=(alone,))
    if timeline.true_ms <= 0 or facts.step.true_ms is None:
        broken = _broken_harness(facts)
        poor.append(
            Doubt(
                code=DoubtCode.NO_STEP_SEEN,
                text=f"no training step was seen, because the tool failed to watch the script ({broken})",
                remedy="This is a bug, or the tool does not know this torch version: please report it.",
            )
            if broken
            else _without_a_step_time(facts)
        )
    if timeline.replay_error is not None and not timeline.usable_what_ifs:
        poor.append(
            Doubt(
                code=DoubtCode.REPLAY_MISSES,
                text=f"the replay misses the traced window by {percent(timeline.replay_error)}",
                remedy="Trace more steps (--steps 16), without other profilers and on a quiet machine.",
            )
        )
    if timeline.launches and timeline.missing_activities:
        missing = timeline.missing_activities / timeline.launches
        if missing > _MISSING_FAIR:
            (poor if missing > _MISSING_POOR else fair).append(
                Doubt(
                    code=DoubtCode.KERNELS_MISSING,
                    text=f"{percent(missing)} of the launches have no recorded kernel",
                    remedy="The trace lost events: trace fewer steps (--steps 2), or upgrade the driver.",
                )
            )
    unexplained = timeline.part_ms(Part.UNEXPLAINED) / timeline.true_ms if timeline.true_ms > 0 else 0.0
    if unexplained > _UNEXPLAINED_POOR and facts.run is not None and facts.run.profiles_itself:
        poor.append(
            Doubt(
                code=DoubtCode.OWN_PROFILER,
                text="the script runs its own torch.profiler, and only one profiler can record at a time",
                remedy="Remove it from the loop, or let it end (schedule(..., repeat=1)), and run again. "
                "If your normal runs have it too, remove it there first: it records every operator.",
            )
        )
    elif blind := [doubt for doubt in timeline.doubts if doubt.code is DoubtCode.NO_DEVICE_ACTIVITY]:
        poor += blind
    elif unexplained > _UNEXPLAINED_POOR:
        poor.append(
            Doubt(
                code=DoubtCode.UNEXPLAINED,
                text=f"{percent(unexplained)} of the step is unexplained"
                if timeline.steps
                else "no whole step was traced, so the step cannot be divided",
                remedy=_remedy_for_no_trace(facts),
            )
        )
    elif unexplained > 0.15:
        fair.append(
            Doubt(code=DoubtCode.UNEXPLAINED, text=f"{percent(unexplained)} of the step is unexplained")
        )
    if facts.step.true_is == "profiled":
        fair.append(
            Doubt(
                code=DoubtCode.PROFILED_TIMES,
                text="there is no unprofiled step time, so the figures include the profiler's own cost",
            )
        )
    # Where no step was seen at all, that is the reason; its consequences are not listed too.
    seen = timeline.true_ms > 0 and facts.step.true_ms is not None
    if seen and facts.step.true_is == "measured" and facts.step.count < 5:
        steps = "step was" if facts.step.count == 1 else "steps were"
        fair.append(
            Doubt(code=DoubtCode.FEW_TIMED_STEPS, text=f"only {facts.step.count} unprofiled {steps} timed")
        )
    if seen and timeline.steps < 2 and (timeline.steps or unexplained <= _UNEXPLAINED_POOR):
        many = "one" if timeline.steps else "no"
        fair.append(Doubt(code=DoubtCode.FEW_WHOLE_STEPS, text=f"{many} whole traced step"))
    spread = facts.step.spread_ms
    if spread is not None and facts.step.true_ms and spread > 0.2 * facts.step.true_ms:
        text = f"step times vary by {percent(spread / facts.step.true_ms)}"
        fair.append(Doubt(code=DoubtCode.STEPS_SCATTER, text=text))
    lower = [doubt for doubt in timeline.doubts if doubt.code in _LOWER_THE_GRADE]
    # Of few steps and of times that scatter, a busy machine is the reason.
    ranks = {code: rank for rank, code in enumerate(_OF_THE_MACHINE)}
    fair = sorted([*fair, *lower], key=lambda doubt: ranks.get(doubt.code, len(ranks)))
    return Quality(grade="poor" if poor else "fair" if fair else "good", reasons=(*poor, *fair))


class CaptureQuality(Analyzer):
    """The capture does not support a verdict.

    What it means
        Something that a verdict depends on is missing or contradictory. The tool gives no verdict
        instead of guessing.

    How it is measured
        Several checks: are there kernels for all launches, does the replay reproduce the profiled
        window, how many whole steps are there, how much do step times vary, how much of the step is
        unexplained, and is there an unprofiled step time.

    What it costs you
        Nothing in the step, but there is no answer.

    What it is not
        Not an error in the script: the reasons say what the capture lacks.

    What to do
        Follow the remedy that the report shows: usually more steps, a quieter machine, or letting
        the run finish.

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
                "The capture does not support a verdict: " + quality.reasons[0].text,
                evidence=[Evidence(text=doubt.text, source="capture") for doubt in quality.reasons],
                not_this="This says nothing about the script's speed.",
                note=True,
            ),
        )
