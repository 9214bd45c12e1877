"""What a diagnosis says of its own making: quality, overhead, artefacts, how the script ended, notes.

In: the reading that decides the step. Out: `Capture`, and sentences.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from ..analyzers import Facts
from ..analyzers.capture import judge
from ..model.diagnosis import Capture
from ..model.run import BUSY_THREAD, Run, SourceSite
from ..model.words import percent
from ..runs.asking import TRIALS
from ..timeline.steps.drift import growth_note
from .reading import Reading


def capture_of(reading: Reading, facts: Facts, problems: Sequence[str]) -> Capture:
    """Judge the capture, and list its cost and artefacts."""
    quality = judge(facts)
    run, timeline, step = reading.basis.run, reading.timeline, reading.basis.summary
    said = {doubt.code: doubt.sentences for doubt in timeline.doubts}
    reasons = {doubt.code: doubt.text for doubt in quality.reasons if doubt.code not in said}
    sentences = tuple(dict.fromkeys([*reasons.values(), *problems]))
    overhead: dict[str, float] = {}
    if run is not None:
        measured = msgspec.to_builtins(run.overhead)
        overhead = {k: float(v) for k, v in measured.items() if isinstance(v, (int, float))}
    inflation = None
    if step.profiled_ms and step.true_ms and step.true_is != "profiled":
        inflation = step.profiled_ms / step.true_ms
    return Capture(
        quality=quality.grade,
        problems=sentences,
        codes={code: sentences.index(text) for code, text in {**reasons, **said}.items()},
        replay_error=timeline.replay_error,
        dispatch_scale=timeline.dispatch_scale,
        inflation=inflation,
        launches=timeline.launches,
        kernels=timeline.device_activities,
        missing_kernels=timeline.missing_activities,
        overhead=overhead,
        trials_s=reading.rank.tried.seconds if reading.rank.tried is not None else None,
        artefacts=run.artefacts if run is not None else {},
    )


def outcome_of(run: Run | None) -> str:
    """Say how the script ended, unless it ended normally."""
    if run is None:
        return ""
    ended = run.outcome
    if ended.out_of_memory:
        raised = f": {ended.exception}" if ended.exception else "."
        return f"The script ran out of memory{raised}"
    texts = {
        "raised": f"The script raised {ended.exception or 'an exception'}.",
        "exited": f"The script ended with exit code {ended.exit_code}.",
        "interrupted": "The script was interrupted.",
        "killed": "The script was killed before the capture was complete.",
    }
    return texts.get(ended.how, "")


def notes_of(
    reading: Reading, several: int, *, timed: int = 0, told: Collection[SourceSite] = ()
) -> tuple[str, ...]:
    """Return further notes for the reader: which rank is shown, saves that went elsewhere.

    `several` ranks were run, and `timed` of them not traced. Lines in `told` have a finding of their own.
    """
    rare = reading.basis.rare
    notes = [*([rare.note] if rare is not None else []), *reading.basis.notes]
    if reading.basis.growth_ms is not None:
        notes.append(growth_note(reading.basis.growth_ms, reading.rank.stacks))
    if several > 1:
        only = f", {timed} of them only timed" if timed else ""
        notes.append(
            f"{several} ranks{only}; figures are those of rank {reading.rank.rank}, which decides the step."
        )
    run = reading.basis.run
    if run is not None:
        notes += [
            f"Another thread is on a processor for {percent(item.share) if item.share else 'much'} of the "
            f"time, mostly at {Path(item.site.file).name}:{item.site.line} ({item.site.function}): while it "
            "runs Python, the training loop waits for the interpreter lock. In another process it would not "
            "hold that lock."
            for item in run.sites
            if item.phase == BUSY_THREAD and item.site not in told
        ]
        trials = run.artefacts.get(TRIALS)
        if trials is not None and trials.status == "absent":
            notes.append(f"No fix was tried in the running script: {trials.reason}.")
        notes += run.outcome.notes
        if count := len(run.outcome.diverted_saves):
            saves = "One save" if count == 1 else f"{count} saves"
            notes.append(f"{saves} after the stop went to the run folder instead.")
    return tuple(dict.fromkeys(notes))
