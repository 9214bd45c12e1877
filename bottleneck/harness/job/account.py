"""Divides the time of a job: every nanosecond belongs to one part.

In: steps, with the clocks of the events in them, and samples of the training thread's stack, each with the
time that it stands for. Out: seconds by part, with the user's lines that were seen in it.

One rule for all parts of a step: what has a clock of its own (a collection, a save, the start of an epoch) is
taken out; of the rest the step keeps its usual time, and what lies beyond that belongs to what happened in
this step and in no usual one (a compilation, an evaluation, or a line of the user's that samples saw outside
of forward, backward and update). What lies before the first step and after the last is divided by samples
alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from ...model.run import SourceSite
from ...model.watch import FIRST_STEPS, GARBAGE, PartTime, SiteSeconds
from ..windows.table import Row

__all__ = ["Account", "Captured", "Counted", "Evaluated", "Sample", "Stretch", "waited_in"]

KNOWN = 32
"""Usual steps whose medians are the usual step."""
WAITS_NS = 20_000_000_000
"""After so many ns of steps fewer of them will do: a job that is killed loses what is not divided yet."""
ASK_AGAIN = 8
"""Usual steps after which the medians are taken anew."""
NOTICED = 0.25
"""Of a usual step: less than this beyond it is how steps differ, and nothing to be looked into."""
DEVIATIONS = 6.0
"""Of what lies outside of all phases, from the median: likewise."""
PLACES = 4
STARTS = "epoch starts"
_TRAINING = ("data", "h2d", "forward", "backward", "optimizer", "zero_grad")
_DIRECT = {"checkpoint": "checkpoints", "evaluation": "validation"}
"""Phases of which a sample says the part at once."""


class Sample(NamedTuple):
    """One look at the stack of the training thread."""

    at_ns: int
    for_ns: int
    """The time that it stands for: since the look before."""
    phase: str
    """Innermost phase that was open; "importing" and "compiling" where the stack or dynamo says so."""
    site: SourceSite | None
    waited_ns: int = 0
    """Of it, the thread was able to run and had no core."""


class Evaluated(NamedTuple):
    """From the first forward of an evaluation, with its batch, to what comes of the last one's outputs."""

    begin_ns: int
    end_ns: int
    saved_ns: int
    """Of it, in saves."""
    outside_ns: int
    """Of it, outside of all phases: what is computed of the outputs."""


class Stretch(NamedTuple):
    """A step, or what lies after the last one, with what else has a clock."""

    row: Row
    starting: tuple[int, SourceSite | None] = (0, None)
    """For how many ns workers started and the first batch was waited for, if an epoch begins; and where."""
    restarted: bool = False
    """Workers were started that an epoch before had started as well."""
    evaluated: Evaluated | None = None
    looked_ns: int = 0
    """Looks of ours at what grows."""
    paused_ns: int = 0
    """The process was stopped."""
    waited_ns: int = 0
    """At most so long the thread waited for a core."""
    learned: bool = True
    """The cycle of a step was known."""
    tail: bool = False
    """No step: what lies after the last one."""
    whole: bool = False
    """Of a tail: it begins with a whole step that no event has ended."""

    @property
    def begin_ns(self) -> int:
        """When it began."""
        return self.row.start_ns

    @property
    def end_ns(self) -> int:
        """When it ended."""
        return self.row.start_ns + _wall_ns(self)


class Counted(NamedTuple):
    """Steps of which only the ends are known."""

    first: int
    """Its number among all steps."""
    ends_ns: list[int]
    """The first of them is the end of the step before."""
    garbage_ns: list[tuple[int, int]]
    """Collections: when each had ended, and how long it took."""

    @property
    def begin_ns(self) -> int:
        """When the first began."""
        return self.ends_ns[0]

    @property
    def end_ns(self) -> int:
        """When the last ended."""
        return self.ends_ns[-1]


class Captured(NamedTuple):
    """Steps during which windows were captured, as `diagnose` does."""

    begin_ns: int
    end_ns: int
    steps: int


class _Usual(NamedTuple):
    step_ns: float
    data_ns: float
    outside_ns: float
    """Outside of every phase."""


class Account:
    """Seconds by part; fed by one thread."""

    def __init__(self) -> None:
        self.steps = 0
        self.usual_ms: float | None = None
        self._ns: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._again_ns = 0
        """Starts of workers after the first."""
        self._sites: dict[str, Counter[SourceSite]] = {}
        self._plain: deque[_Usual] = deque(maxlen=KNOWN)
        self._usual: _Usual | None = None
        self._noticed_ns = 0.0
        self._usual_lines: set[SourceSite | None] = set()
        """Outside of all phases, in usual steps."""
        self._since = 0
        self._waiting_ns = 0
        self._aside_ns = self._owed_ns = 0.0
        """Of steps that were only counted: what was last seen to lie beside one; and how much more the looks
        at such steps stand for than these were given, as looks miss most of what is short."""
        self._early: list[tuple[Stretch, list[Sample]]] = []
        """Steps that came before it was known what is usual."""

    def parts(self) -> dict[str, PartTime]:
        """Return what there is so far."""
        return {
            part: PartTime(
                s=round(ns / 1e9, 6),
                count=self._counts[part],
                again_s=round(self._again_ns / 1e9, 6) if part == STARTS else 0.0,
                places=[
                    SiteSeconds(site=site, s=round(weight / 1e9, 3))
                    for site, weight in self._sites.get(part, Counter()).most_common(PLACES)
                ],
            )
            for part, ns in self._ns.items()
            if ns > 0
        }

    @property
    def sums_ns(self) -> Counter[str]:
        """The parts so far; what waits to be divided is in none of them."""
        return self._ns

    def seen_at(self, part: str, site: SourceSite | None) -> None:
        """An event of this part has begun at a line; it may be too short for a sample."""
        if site is not None:
            self._sites.setdefault(part, Counter())[site] += 1

    def outside(self, samples: list[Sample], *, part: str, took_ns: int) -> None:
        """Divide a stretch in which no step lies, by samples: `part` but for imports, saves and the like."""
        seen = sum(sample.for_ns for sample in samples)
        for sample in samples:
            share = sample.for_ns * min(1.0, took_ns / seen) if seen else 0
            if sample.phase == "importing" and part == "set-up":
                self._add("interpreter and imports", share, sample.site)
            elif sample.phase:
                self._add(_DIRECT.get(sample.phase, part), share, sample.site)
            else:
                self._add(part, share, sample.site)
        self._ns["unexplained"] += max(0, took_ns - seen)
        self._counts[part] = 1

    def paused(self, took_ns: int) -> None:
        """The process was stopped for so long, outside of steps."""
        self._take("pauses", took_ns, took_ns)

    def worked(self, took_ns: int) -> None:
        """Work of ours at the end took so long."""
        self._take("bottleneck", took_ns, took_ns)

    def step(self, stretch: Stretch, samples: list[Sample]) -> float | None:
        """Take in a step with the samples taken in it; return its ms, or None for one that is not usual."""
        self.steps += stretch.whole or not stretch.tail
        plain = self._note_plain(stretch)
        if self._usual is None:
            self._early.append((stretch, samples))
            self._waiting_ns += _wall_ns(stretch)
            if len(self._plain) >= (KNOWN // 2 if self._waiting_ns < WAITS_NS else 1):
                self._take_usual()
                self.settle()
        else:
            self._divide(stretch, samples)
        return plain

    def counted(self, counted: Counted, samples: list[Sample], *, paused_ns: int) -> list[float]:
        """Take in steps of which only the ends are known; return the ms of each.

        Most take what is usual, and are added at once. Of one that takes longer, the samples tell the phases.
        """
        assert self._usual is not None
        ends_ns = counted.ends_ns
        walls_ns = [end - begin for begin, end in pairwise(ends_ns)]
        garbage_ns: Counter[int] = Counter()
        for at_ns, took_ns in counted.garbage_ns:
            garbage_ns[max(0, bisect_left(ends_ns, at_ns) - 1)] += took_ns
        nets_ns = list(walls_ns)
        for step, ns in garbage_ns.items():
            nets_ns[step] -= ns
        limit_ns = self._usual.step_ns + self._noticed_ns
        most_ns = max(nets_ns)
        longer = [step for step, ns in enumerate(nets_ns) if ns > limit_ns] if most_ns > limit_ns else []
        others = samples
        for step in longer:
            begin_ns, end_ns, wall_ns = ends_ns[step], ends_ns[step + 1], walls_ns[step]
            own = [sample for sample in samples if begin_ns < sample.at_ns <= end_ns]
            beyond_ns = wall_ns - garbage_ns[step] - self._usual.step_ns
            others = [sample for sample in others if sample not in own]
            row = Row(
                index=counted.first + step,
                start_ns=begin_ns,
                wall_ms=wall_ns / 1e6,
                gc_ms=garbage_ns.pop(step, 0) / 1e6,
            )
            unusual = [s for s in own if not s.phase and s.site not in self._usual_lines]
            if unusual:
                row.phases_ns = _phases_of(own, begin_ns, wall_ns)
                self._aside_ns = beyond_ns
                self._owed_ns += sum(sample.for_ns for sample in unusual) - beyond_ns
            elif not own and beyond_ns > self._aside_ns / 2 and self._owed_ns > beyond_ns / 2:
                self._owed_ns -= beyond_ns
            else:
                # Nothing was seen but what is in any step, or nothing at all: a slower step.
                row.phases_ns = {"forward": wall_ns}
            paused = paused_ns if wall_ns == max(walls_ns) else 0
            waited_ns = waited_in(samples, begin_ns, end_ns)
            self._divide(Stretch(row, paused_ns=paused, waited_ns=waited_ns), own)
        self.steps += len(nets_ns)
        self._ns["training steps"] += sum(nets_ns) - sum(nets_ns[step] for step in longer)
        self._counts["training steps"] += len(nets_ns) - len(longer)
        # What is left lies in usual steps.
        self._ns[GARBAGE] += sum(garbage_ns.values())
        self._counts[GARBAGE] += len(garbage_ns)
        self._usual_lines.update(sample.site for sample in others if not sample.phase)
        self._name(others, None, aside="training steps")
        return [ns / 1e6 for ns in nets_ns]

    def captured(self, captured: Captured, samples: list[Sample], *, paused_ns: int) -> None:
        """Take in the steps of a capture: what they take beyond usual ones, and between them, is ours."""
        left = float(captured.end_ns - captured.begin_ns)
        left -= self._take("pauses", paused_ns, left)
        for phase, part in _DIRECT.items():
            left -= self._take(part, sum(s.for_ns for s in samples if s.phase == phase), left)
        steps_ns = captured.steps * (self._usual.step_ns if self._usual is not None else 0)
        took = self._take("training steps", steps_ns, left)
        self._counts["training steps"] += captured.steps - (took > 0)
        self._take("bottleneck", left - took, left - took)
        self.steps += captured.steps

    def settle(self) -> None:
        """Divide the steps that wait; there are no more steps, or it is known now what is usual."""
        if self._usual is None and self._plain:
            self._take_usual()
        waiting, self._early = self._early, []
        for stretch, samples in waiting:
            self._divide(stretch, samples)

    # -- one step ------------------------------------------------------------------------------

    def _note_plain(self, stretch: Stretch) -> float | None:
        row = stretch.row
        odd = stretch.starting[0] or stretch.looked_ns or row.validation or row.compiled or stretch.tail
        if odd or not stretch.learned or stretch.paused_ns:
            return None
        # There are jobs that save in every step.
        base = _wall_ns(stretch) - row.gc_ms * 1e6 - row.phases_ns.get("checkpoint", 0)
        if row.index >= FIRST_STEPS or (row.index > 0 and self._usual is None):
            self._plain.append(_Usual(base, row.phases_ns.get("data", 0), _outside_ns(row)))
            self._since += 1
            if self._usual is not None and self._since >= ASK_AGAIN:
                self._take_usual()
        return base / 1e6 if row.index >= FIRST_STEPS else None

    def _take_usual(self) -> None:
        # Of the first steps the later ones, which are what the others will be.
        known = list(self._plain)[-KNOWN if self._usual is not None else -max(1, len(self._plain) // 2) :]
        self._usual = _Usual(*(median(column) for column in zip(*known, strict=True)))
        self.usual_ms = self._usual.step_ns / 1e6
        middle = self._usual.outside_ns
        deviation = median(abs(step.outside_ns - middle) for step in known)
        self._noticed_ns = max(NOTICED * self._usual.step_ns, DEVIATIONS * deviation)
        self._since = 0

    def _divide(self, stretch: Stretch, samples: list[Sample]) -> None:
        row, phases = stretch.row, stretch.row.phases_ns
        usual = self._usual if self._usual is not None else _Usual(_wall_ns(stretch), 0, 0)
        left = float(_wall_ns(stretch))
        for part, ns in (
            ("pauses", stretch.paused_ns),
            ("bottleneck", stretch.looked_ns),
            ("checkpoints", phases.get("checkpoint", 0)),
            (GARBAGE, row.gc_ms * 1e6),
            (STARTS, stretch.starting[0] - usual.data_ns),
        ):
            took = self._take(part, ns, left)
            left -= took
            if part == STARTS and stretch.restarted:
                self._again_ns += took
        evaluated = stretch.evaluated
        if evaluated is not None:
            span_ns = evaluated.end_ns - evaluated.begin_ns - evaluated.saved_ns
            left -= self._take("validation", span_ns, left - (0 if stretch.tail else usual.step_ns))
        if stretch.starting[0]:
            self.seen_at(STARTS, stretch.starting[1])
        if stretch.tail:
            if stretch.whole:
                left -= self._take("training steps", min(usual.step_ns, sum(phases.values())), left)
            self._tail(stretch, samples, left)
            return
        first = row.index < FIRST_STEPS or not stretch.learned
        aside = "training steps"
        beyond = left - usual.step_ns
        if first or row.compiled:
            aside = "first steps" if first else "recompilations"
            left -= self._take(aside, beyond, left)
        elif beyond > self._noticed_ns:
            # What lies outside of all phases and beyond the usual; that within phases is a slower step.
            known = stretch.paused_ns + stretch.looked_ns + row.gc_ms * 1e6
            known += evaluated.outside_ns if evaluated is not None else 0
            extra = min(beyond, _outside_ns(row) - known - usual.outside_ns)
            # At the lines of any step it may be the machine that was slow, or a neighbour on it; at any line
            # a step that waits for a core is slower, and nothing more is done in it.
            lines = {sample.site for sample in samples if not sample.phase}
            least = self._noticed_ns if lines - self._usual_lines else usual.step_ns
            if extra - stretch.waited_ns > max(least, self._noticed_ns):
                aside = "between steps"
                took = self._take(aside, extra, left)
                left -= took
                samples = [sample._replace(for_ns=min(sample.for_ns, took)) for sample in samples]
        else:
            self._usual_lines.update(sample.site for sample in samples if not sample.phase)
        self._take("training steps", left, left)
        self._name(samples, evaluated, aside=aside)

    def _name(self, samples: list[Sample], evaluated: Evaluated | None, *, aside: str) -> None:
        """Note the lines that samples saw in a step.

        What a step does aside is at lines of no usual step, if any were seen.
        """
        lines = {sample.site for sample in samples if sample.phase not in _TRAINING}
        usual = self._usual_lines if lines - self._usual_lines else set()
        for sample in samples:
            trains = sample.phase in _TRAINING or sample.site in usual
            part = _DIRECT.get(sample.phase, "training steps" if trains else aside)
            if _is_in(sample, evaluated):
                part = "validation"
            if sample.site is not None:
                self._sites.setdefault(part, Counter())[sample.site] += sample.for_ns

    def _tail(self, stretch: Stretch, samples: list[Sample], left: float) -> None:
        """Divide what lies after the last step, by samples where nothing in it has a clock."""
        inside = [sample for sample in samples if _is_in(sample, stretch.evaluated)]
        self._name(inside, stretch.evaluated, aside="validation")
        others = [s for s in samples if s not in inside and s.phase not in ("evaluation", "checkpoint")]
        self.outside(others, part="after the last step", took_ns=round(left))

    # -- adding up -----------------------------------------------------------------------------

    def _take(self, part: str, ns: float, left: float) -> int:
        """Give a part its time, of what is left; return how much that was."""
        took = round(min(max(ns, 0), left))
        if took > 0:
            self._ns[part] += took
            self._counts[part] += 1
        return took

    def _add(self, part: str, ns: float, site: SourceSite | None) -> None:
        self._ns[part] += round(ns)
        self._counts[part] = max(1, self._counts[part])
        if site is not None:
            self._sites.setdefault(part, Counter())[site] += round(ns)


def waited_in(samples: list[Sample], begin_ns: int, end_ns: int) -> int:
    """Return for how long at most the thread waited for a core between two times."""
    return sum(
        min(sample.waited_ns, max(0, min(sample.at_ns, end_ns) - max(sample.at_ns - sample.for_ns, begin_ns)))
        for sample in samples
    )


def _is_in(sample: Sample, evaluated: Evaluated | None) -> bool:
    return evaluated is not None and evaluated.begin_ns < sample.at_ns <= evaluated.end_ns


def _wall_ns(stretch: Stretch) -> int:
    return round(stretch.row.wall_ms * 1e6)


def _phases_of(samples: list[Sample], begin_ns: int, wall_ns: int) -> dict[str, int]:
    """Return the phases of a step as its samples saw them."""
    seen: Counter[str] = Counter()
    for sample in samples:
        seen[sample.phase] += min(sample.for_ns, sample.at_ns - begin_ns)
    share = wall_ns / max(1, seen.total())
    return {phase: round(ns * share) for phase, ns in seen.items() if phase}


def _outside_ns(row: Row) -> float:
    return row.wall_ms * 1e6 - sum(row.phases_ns.values())
