"""report.html of a watched job: its parts over time, its steps over the job, the account.

In: a `Watch`. Out: one page without a script, drawn as SVG; Jinja2 escapes all text in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

from ... import __version__
from ...model.watch import PARTS, Growth, StepTimes, Watch
from ...model.words import clean, duration, milliseconds, percent, place
from ..rows.watch import (
    capture_lines,
    fix_lines,
    fix_words,
    growth_lines,
    headline,
    part_name,
    rank_lines,
    trouble_lines,
)
from .environment import environment, static
from .head import Figure
from .how import JOB_HOW
from .palette import job_variables

WIDTH, HEIGHT = 1000.0, 100.0
"""Of a drawing, in its own units; the page stretches it."""
_HEADROOM = 1.08
_CLIPPED = 3.0
"""Steps of more than so many times the usual are drawn at the edge."""


def render(watch: Watch) -> str:
    """Return the page."""
    from markupsafe import Markup

    page = _build(watch)
    return (
        environment()
        .get_template("watch.html")
        .render(
            page=page,
            how=JOB_HOW,
            # Ours: the only text that autoescape does not touch.
            style=Markup(static("report.css") + static("watch.css")),  # noqa: S704
            # Numbers only; they may be longer than any text.
            drawn={part.name: Markup(part.path) for part in page.parts if part.path},  # noqa: S704
            line=Markup(page.steps.line if page.steps is not None else ""),  # noqa: S704
            light=Markup(job_variables(dark=False)),  # noqa: S704
            dark=Markup(job_variables(dark=True)),  # noqa: S704
        )
    )


def _build(watch: Watch) -> SimpleNamespace:
    command = clean(" ".join(watch.command))
    parts = _parts(watch)
    return SimpleNamespace(
        title=command.partition(" ")[0] or "The job",
        headline=headline(watch),
        trouble=tuple(trouble_lines(watch)),
        figures=_figures(watch),
        parts=parts,
        ticks=tuple(duration(watch.wall_s * i / 4) if i else "0" for i in range(5)),
        steps=_steps(watch),
        growth=tuple(growth_lines(watch)),
        changes=tuple(fix_lines(watch)),
        ranks=_ranks(watch),
        of_ranks=tuple(rank_lines(watch)),
        captures=tuple(capture_lines(watch)),
        command=command,
        cwd=clean(watch.cwd),
        version=__version__,
    )


def _figures(watch: Watch) -> tuple[Figure, ...]:
    found = [Figure(label="The job took", value=duration(watch.wall_s), note=f"{watch.steps} training steps")]
    if watch.goodput is not None:
        found.append(Figure(label="Goodput", value=percent(watch.goodput), how="goodput"))
    if watch.step_ms is not None:
        best = f"{milliseconds(watch.best_ms)} ms at their best" if watch.best_ms is not None else ""
        found.append(
            Figure(
                label="A usual step", value=milliseconds(watch.step_ms), unit="ms", note=best, how="job_step"
            )
        )
    explained = Figure(
        label="Explained", value=percent(watch.explained_share), note="of the time", how="account"
    )
    return (*found, explained)


def _parts(watch: Watch) -> tuple[SimpleNamespace, ...]:
    """Return the lines of the account: `index` names the colour, `path` is empty without a known time."""
    root = f"{watch.cwd}/"
    paths = _paths(watch)
    largest = max((line.share for line in watch.account), default=0.0)
    return tuple(
        SimpleNamespace(
            index=PARTS.index(line.part) if line.part in PARTS else len(PARTS) - 1,
            name=clean(part_name(line.part, watch)),
            time=duration(line.s),
            share=percent(line.share),
            width=round(100 * max(line.share, 0.0) / largest, 2) if largest > 0 else 0.0,
            times=f"{line.count}" if line.ms_each is not None else "",
            each=milliseconds(line.ms_each) if line.ms_each is not None else "",
            places=tuple(place(seen.site, root=root) for seen in line.places[:3]),
            fix=fix_words(line),
            path=paths.get(line.part, ""),
        )
        for line in watch.account
    )


def _ranks(watch: Watch) -> tuple[SimpleNamespace, ...]:
    """Return each rank's parts side by side, on the longest's scale: colour, part, time, begin, width."""
    longest_s = max((sum(rank.seconds.values()) for rank in watch.ranks), default=0.0)
    made = []
    for rank in watch.ranks if longest_s > 0 else []:
        boxes, at = [], 0.0
        for index, part in enumerate(PARTS):
            s = max(0.0, rank.seconds.get(part, 0.0))
            width = WIDTH * s / longest_s
            if width >= 1:
                boxes.append((index, part, duration(s), round(at, 2), round(width, 2)))
            at += width
        made.append(SimpleNamespace(name=f"rank {rank.rank}", boxes=tuple(boxes)))
    return tuple(made)


def _paths(watch: Watch) -> dict[str, str]:
    """Return what each part covers of the drawing: the whole height at a time when it alone ran."""
    timeline = watch.timeline
    if timeline is None or watch.wall_s <= 0 or not timeline.stretch_s:
        return {}
    scale = WIDTH / watch.wall_s
    boxes: dict[str, list[str]] = {}

    def cover(part: str, begin_s: float, end_s: float, low: float, high: float) -> None:
        x, width = begin_s * scale, (end_s - begin_s) * scale
        y, height = HEIGHT * (1 - high), HEIGHT * (high - low)
        if width > 0 and height > 0:
            boxes.setdefault(part, []).append(f"M{x:.2f} {y:.2f}h{width:.2f}v{height:.2f}h-{width:.2f}z")

    ran = [line.part for line in watch.account]
    cover(PARTS[0], 0.0, timeline.begin_s, 0.0, 1.0)
    end_s = timeline.begin_s
    last = max(map(len, timeline.parts.values()), default=0) - 1
    for i in range(last + 1):
        begin_s = timeline.begin_s + i * timeline.stretch_s
        seconds = {
            p: column[i] for p in ran if i < len(column := timeline.parts.get(p, [])) and column[i] > 0
        }
        took_s = sum(seconds.values())
        low = 0.0
        if not took_s:
            continue
        # The last stretch is not full: it is as long as what lies in it.
        end_s = min(
            begin_s + (min(took_s, timeline.stretch_s) if i == last else timeline.stretch_s), watch.wall_s
        )
        for part, s in seconds.items():
            cover(part, begin_s, end_s, low, low + s / took_s)
            low += s / took_s
    cover("exit" if "exit" in ran else PARTS[-1], end_s, watch.wall_s, 0.0, 1.0)
    return {part: "".join(made) for part, made in boxes.items()}


def _steps(watch: Watch) -> SimpleNamespace | None:
    """Return the drawing of step times: lines, the growth's 95 % interval as a band, ticks from the top."""
    times = watch.step_times
    if len(times.step) < 2 or len(times.ms) != len(times.step) or times.step[-1] <= times.step[0]:
        return None
    first, last = times.step[0], times.step[-1]
    usual = sorted(times.ms)[len(times.ms) // 2]
    slopes = watch.growth[:1]
    most = max(
        min(max(times.ms), _CLIPPED * usual), *(_on_line(g, g.ms_per_1000_steps, last) for g in slopes), 1e-9
    )
    most *= _HEADROOM

    def at(step: float, ms: float) -> str:
        x = WIDTH * (step - first) / (last - first)
        return f"{x:.2f},{HEIGHT * (1 - min(max(ms, 0.0), most) / most):.2f}"

    lines = [
        (at(first, _on_line(g, g.ms_per_1000_steps, first)), at(last, _on_line(g, g.ms_per_1000_steps, last)))
        for g in slopes
    ]
    return SimpleNamespace(
        line=_joined(at, times),
        growth=" ".join(lines[0]) if lines else "",
        band=" ".join(
            at(step, _on_line(g, slope, step)) for g in slopes for step, slope in _edges(g, first, last)
        ),
        changes=tuple(round(WIDTH * (c.step - first) / (last - first), 2) for c in watch.changes),
        ticks=tuple(f"{milliseconds(most * i / 4, like=most)} ms" if i else "0" for i in (4, 3, 2, 1, 0)),
        first=f"step {first}",
        last=f"step {last}",
    )


def _joined(at: Callable[[float, float], str], times: StepTimes) -> str:
    return " ".join(at(step, ms) for step, ms in zip(times.step, times.ms, strict=True))


def _on_line(growth: Growth, slope: float, step: int) -> float:
    """Return the ms at a step; the line goes through the last step that was measured."""
    return growth.step_ms + slope * (step - growth.at_step) / 1000


def _edges(growth: Growth, first: int, last: int) -> Sequence[tuple[int, float]]:
    """Return the corners of the interval: two lines that cross where the growth was measured."""
    low, high = growth.low, growth.high
    at = min(max(growth.at_step, first), last)
    return ((first, high), (at, high), (last, low), (last, high), (at, low), (first, low))
