"""What is said of a whole job.

In: a `Watch`. Out: rows and sentences, without widths and colours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...model.watch import AccountLine, Change, Growth, MemoryGrowth, Watch
from ...model.words import byte_size, clean, duration, milliseconds, percent, place

_SMALL = 0.005
"""Parts of less than this share of the job are one line."""
_APART = 0.02
"""Ranks differ in a part by at least this share of the job, or it is not told."""
_FAR = 100_000
"""The step to which a growth is continued, so that its size can be felt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRow:
    """One part of the job."""

    part: str
    time: str
    share: str
    times: str
    """How often, and how long each; empty for what comes once."""
    where: str


def headline(watch: Watch) -> str:
    """Return the job in one sentence."""
    if not watch.steps:
        return f"{duration(watch.wall_s)}, and no training step was seen in this process"
    steps = next((line for line in watch.account if line.part == "training steps"), None)
    share = percent(steps.share) if steps is not None else "none"
    return f"{duration(watch.wall_s)}, of which {share} in {watch.steps} training steps"


def under_headline(watch: Watch) -> list[str]:
    """Return what else there is to say of the whole."""
    out = []
    if watch.step_ms is not None:
        out.append(f"a usual step, of late: {milliseconds(watch.step_ms)} ms")
    if watch.goodput is not None:
        out.append(
            f"goodput {percent(watch.goodput)}: the share of the job that the steps take at their best speed"
        )
    return [*(["; ".join(out)] if out else []), *trouble_lines(watch)]


def trouble_lines(watch: Watch) -> Iterator[str]:
    """Yield how the job failed, and how the watching did."""
    if watch.exit_code:
        yield clean(watch.outcome)
    if watch.problem:
        yield f"The watching ended before the job did: {clean(watch.problem)}"
    yield from map(clean, watch.notes)


def capture_lines(watch: Watch) -> Iterator[str]:
    """Yield what captures in the middle of the job say, and where they are."""
    for taken in watch.captures:
        says = clean(taken.says) or "not diagnosed"
        yield (
            f"{clean(taken.folder)}: {taken.steps} steps from step {taken.step} on, {duration(taken.at_s)}"
            f" after the start, in {duration(taken.took_s)}. {says}"
        )


def part_name(part: str, watch: Watch) -> str:
    """Return how a part is called in reports."""
    if part == "validation" and watch.acts:
        return "passes without gradients"
    return "this watching" if part == "bottleneck" else part


def part_rows(watch: Watch) -> list[PartRow]:
    """Return the parts, in the order of the job; small ones are added up at the end."""
    root = f"{watch.cwd}/"
    rows, small = [], []
    for line in watch.account:
        if line.share < _SMALL and line.part != "unexplained":
            small.append(line)
            continue
        times = f"{line.count} × {milliseconds(line.ms_each)} ms" if line.ms_each is not None else ""
        where = place(line.site, root=root) if line.site is not None else ""
        rows.append(
            PartRow(
                part=part_name(line.part, watch),
                time=duration(line.s),
                share=percent(line.share),
                times=times,
                where=where,
            )
        )
    if small:
        names = ", ".join(part_name(line.part, watch) for line in small)
        total = sum(line.s for line in small)
        rows.append(
            PartRow(
                part=f"{len(small)} smaller",
                time=duration(total),
                share=percent(total / watch.wall_s),
                times="",
                where=names,
            )
        )
    return rows


def lists(watch: Watch) -> list[tuple[str, list[str]]]:
    """Return what follows the account, under its headings; without those that have nothing to say."""
    found = {
        "What to change": fix_lines(watch),
        "Ranks": list(rank_lines(watch)),
        "What changes over the job": list(growth_lines(watch)),
        "Captures": list(capture_lines(watch)),
    }
    return [(title, lines) for title, lines in found.items() if lines]


def rank_lines(watch: Watch) -> Iterator[str]:
    """Yield a line for each rank, and one for each part in which they differ."""
    for rank in watch.ranks:
        step = f" of {milliseconds(rank.step_ms)} ms" if rank.step_ms is not None else ""
        goodput = f", goodput {percent(rank.goodput)}" if rank.goodput is not None else ""
        failed = f", exit code {rank.exit_code}" if rank.exit_code else ""
        yield f"rank {rank.rank}: {duration(rank.wall_s)}, {rank.steps} steps{step}{goodput}{failed}"
    for part in dict.fromkeys(part for rank in watch.ranks for part in rank.seconds):
        seconds = {rank.rank: rank.seconds.get(part, 0.0) for rank in watch.ranks}
        least, most = min(seconds, key=seconds.__getitem__), max(seconds, key=seconds.__getitem__)
        if seconds[most] - seconds[least] >= _APART * watch.wall_s:
            longest, shortest = duration(seconds[most]), duration(seconds[least])
            yield f"{part}: {longest} in rank {most}, {shortest} in rank {least}"


def _memory_lines(watch: Watch) -> Iterator[str]:
    """Yield what is said of memory that grows."""
    for memory in watch.memory:
        yield (
            f"The {memory.where}'s memory grows by {byte_size(memory.bytes_per_s * 3600)} an hour"
            f" ({byte_size(memory.bytes_per_step)} a step); at this pace its {byte_size(memory.limit_bytes)}"
            f" are full in {duration(memory.full_in_s)}."
            f" {_named(memory, root=f'{watch.cwd}/') or _not_named(memory)}."
        )


def fix_lines(watch: Watch) -> list[str]:
    """Return what parts would be with their fix, what gains most first."""
    lines = []
    for line in watch.account:
        fix = line.with_fix
        if fix is not None:
            often = (
                f", every {round(watch.steps / line.count)} steps" if _comes_at_intervals(line, watch) else ""
            )
            takes = f"{percent(line.share)} of the job ({duration(line.s)})"
            text = f"{line.part}{often}: {takes}; {fix_words(line)}"
            lines.append((fix.s - line.s, text))
    return [text for _, text in sorted(lines)]


def fix_words(line: AccountLine) -> str:
    """Return what one part would be with its fix; empty where none is known."""
    fix = line.with_fix
    if fix is None:
        return ""
    entry = f", {fix.fix}" if fix.fix else ""
    return f"{fix.change} {'at best ' if fix.at_best else ''}{percent(fix.share)} ({duration(fix.s)}{entry})"


def _comes_at_intervals(line: AccountLine, watch: Watch) -> bool:
    return line.ms_each is not None and 0 < line.count <= watch.steps / 2


def growth_lines(watch: Watch) -> Iterator[str]:
    """Yield what is said of steps that grow, of changes of pace, and of memory that grows."""
    for i, growth in enumerate(watch.growth):
        yield _growth(growth, root=f"{watch.cwd}/", first=i == 0)
    for change in watch.changes:
        yield _change(change)
    yield from _memory_lines(watch)


def _named(growth: Growth | MemoryGrowth, *, root: str) -> str:
    if growth.objects_per_step is None:
        return ""
    at = f" ({place(growth.site, root=root)})" if growth.site is not None else ""
    return f"{clean(growth.what)}{at} gains {growth.objects_per_step:.3g} a step ({growth.kind})"


def _growth(growth: Growth, *, root: str, first: bool) -> str:
    named = _named(growth, root=root)
    if not first:
        return f"Beside it, {named}."
    slope = growth.ms_per_1000_steps
    later = 1 + slope * (_FAR - growth.at_step) / 1000 / growth.step_ms
    text = (
        f"The step grows by {milliseconds(slope)} ms per 1000 steps"
        f" (95 %: {milliseconds(growth.low)} to {milliseconds(growth.high)})"
    )
    if growth.at_step < _FAR:
        text += f"; at step {_FAR} it takes {later:.1f} times as long as at step {growth.at_step}"
    return f"{text}. {named or _not_named(growth)}."


def _not_named(growth: Growth | MemoryGrowth) -> str:
    if growth.looked:
        return "Nothing was found that grows with it"
    return "The job ended before it was looked for what grows with it"


def _change(change: Change) -> str:
    kind = "slower" if change.ratio > 1 else "faster"
    text = f"From step {change.step} on or so, steps are {kind}: {change.ratio:.2f} times the time before."
    return f"{text} Beside it, {'; '.join(map(clean, change.beside))}." if change.beside else text
