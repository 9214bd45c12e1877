"""How long each window lasts: decided from the step times and from how many steps are left.

In: rows of finished steps, the plan, perhaps the number of steps that are left. Out: whether the
warm-up has settled, a `Schedule` of the windows after it, whether the baseline is long enough.
Pure functions of numbers; nothing here touches torch or a clock.

All limits serve one rule: a trace is worth more than a longer baseline. Scripts of 15 to 50 steps
are common, and where a script ends cannot be known: so the trace comes early, and the baseline
goes on after it.
"""

from __future__ import annotations

import math
from statistics import fmean, median

import msgspec

from ...runs.plan import Plan
from .table import Row, counted_ms

__all__ = [
    "Schedule", "awaits_evaluation", "baseline_is_enough", "has_settled", "make_schedule", "steps_to_hold",
    "warmup_is_over",
]  # fmt: skip

SLOW_MS = 2000.0
"""Steps beyond this are too dear to wait for more than two alike."""
ALIKE = 1.15
"""Longest over shortest of the very first steps that may be taken for settled."""
WARMUP_CAP_UNKNOWN = 10
WARMUP_CAP_PLENTY = 20
WARMUP_CAP_MS = 30_000.0
COMPILING_CAP = 15
"""So many steps with a compilation each: it will not settle, and that is the finding."""
PLENTY = 150
"""Steps left in the epoch alone; a test script that breaks off after 50 is still possible."""
FIRST_STRETCH = 5
"""Baseline steps before the trace where the script may end at any moment."""
BASELINE_MIN = 10
BASELINE_UNKNOWN = 20
BASELINE_PLENTY = 40
BASELINE_MS = 20_000.0
TARGET = 0.02
"""Half-width of the 95 % interval of the mean, relative."""
QUEUE_CAP = 150
TRIAL_STEPS = 300
TRIAL_MS = 2000.0
"""An experiment looks for differences of 2 %: it takes this long, or so many steps, where it can."""
TRIAL_SOFT_MS = 3000.0
"""How long steps are is known late where the host runs ahead of its device: their times in the warm-up
are then those of the host. From here on, fewer steps will do."""
TRIAL_FEW = 20
AFTER_STEPS = 5
AWAITED_STEPS = 200
"""After one evaluation so many more steps are watched for the next one, which tells how often they come..."""
AWAITED_MS = 15_000.0
"""...or so long."""
AWAITED_SHARE = 0.02
"""An evaluation that takes less than this of all the steps until then is not waited for."""
LOOK_EVERY = 5
"""Steps between two looks at whether the window is long enough."""
MOST_TOGETHER = 64
"""And which has no more steps left than these: more would be kept for long before they are looked at."""
STEPS_HELD = 10
"""Steps whose events are held and handed over together, while steps are timed."""
HELD_STEP_MS = 50.0
"""Steps longer than this are looked at one by one: what the hooks cost does not matter in them."""
WHOLE_MS = 500.0
"""A window that is over so soon is looked at only when it is."""
MEMORY_STEPS = 5
"""So many that what two steps later is still alive can be told from what the next step replaces."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of steps for the windows after the warm-up."""

    baseline_min: int
    baseline_max: int
    baseline_ms: float
    """Time limit of the baseline; infinite where ranks must count alike."""
    traced: int
    trace_warmup: int
    """Steps that the profiler runs without recording first."""
    memory: int
    after: int
    resume: bool = False
    """The end of the script is not known, so the trace comes early: the baseline is cut in two,
    and the steps after the captures complete it if they agree with those before."""
    soft_ms: float = math.inf
    """Once the baseline has lasted this long, `soft_min` steps are its least and twice that its most."""
    soft_min: int = 0


def has_settled(times_ms: list[float]) -> bool:
    """Compare the median of the last steps with that of as many before them.

    Two to six steps a side, as many as there are (three steps in all if they are alike). They may
    differ by 10 %, or by what the last ones' own spread (median absolute deviation) explains:
    variable-length batches never settle to 10 %, and that is no reason to wait.
    """
    half = max(2, min(6, len(times_ms) // 2))
    if len(times_ms) < 2 * half:
        last = times_ms[-3:]
        few = 2 if last and min(last) > SLOW_MS else 3
        return len(last) >= few and max(last) < ALIKE * min(last)
    recent, earlier = times_ms[-half:], times_ms[-2 * half : -half]
    now, then = median(recent), median(earlier)
    spread = 1.4826 * median(abs(t - now) for t in recent)
    return abs(now - then) <= max(0.1 * now, 2.5 * spread * math.sqrt(2 / half))


def warmup_is_over(rows: list[Row], *, plan: Plan, left: int | None, queued: int = 0) -> tuple[bool, bool]:
    """Return (over, settled) for the steps seen since the step rule had learned the cycle.

    Args:
        rows: all steps so far, the first one of the program included (it holds start-up costs).
        plan: a fixed `warmup` counts every step.
        left: steps left if known.
        queued: batches that the loader's workers hold ready when they keep up. What they made
            while the script set up hides what they cost: an experiment first uses it up, unless
            the epoch is too short for that.
    """
    if plan.trial is not None and plan.warmup is None and queued:
        whole = (left or 0) + len(rows)
        if len(rows) < min(2 * queued, QUEUE_CAP, whole // 3):
            return False, False
    times = counted_ms(rows[1:])
    settled = has_settled(times) and not any(row.compiled for row in rows[-2:])
    if plan.warmup is not None:
        return len(rows) >= plan.warmup, settled
    if settled:
        return True, True
    plenty = left is not None and left >= PLENTY
    cap = WARMUP_CAP_PLENTY if plenty else WARMUP_CAP_UNKNOWN
    compiling = sum(row.compiled for row in rows)
    over = len(times) >= cap or compiling >= COMPILING_CAP or (sum(times) > WARMUP_CAP_MS and len(times) >= 2)
    return over, False


def make_schedule(
    step_ms: float,
    *,
    plan: Plan,
    left: int | None,
    gpu: bool,
    workers: int = 0,
    queued: int = 0,
    ranks: int = 1,
) -> Schedule:
    """Divide the time limit among the windows.

    Args:
        step_ms: a typical step.
        plan: wishes; an explicit `baseline_steps` is kept to.
        left: steps left at least, if known; only `PLENTY` makes a difference.
        gpu: a device is traced: the profiler needs a warm-up step, memory has a window.
        workers: batches come in bursts of as many; the baseline must see several bursts.
        queued: batches that the workers hold ready; an experiment times more than these.
        ranks: with several, the baseline has one fixed length, the same everywhere.
    """
    step_ms = max(step_ms, 1e-3)
    limit_ms = plan.max_seconds * 1000
    share = min(BASELINE_MS, limit_ms / 3)
    affordable = max(1 if step_ms > share / 2 else 2, int(share / step_ms))
    plenty = left is not None and left >= PLENTY
    # While it records, a step may take twice its time.
    traced = min(plan.steps, max(1, int(limit_ms / 3 / (2 * step_ms))))
    after = max(1, min(AFTER_STEPS, int(limit_ms / 12 / step_ms)))
    resume, soft_ms, soft_min = False, math.inf, 0
    if plan.baseline_steps is not None:
        shortest = longest = max(1, plan.baseline_steps)
    elif plan.trial is not None:
        # Nothing follows the baseline, so it need not be cut short for a trace.
        wanted = min(TRIAL_STEPS, max(BASELINE_PLENTY, int(TRIAL_MS / step_ms), 4 * queued))
        shortest = max(1, min(wanted // 2, affordable))
        longest = max(shortest, min(wanted, affordable))
        soft_ms, soft_min = TRIAL_SOFT_MS, min(shortest, max(TRIAL_FEW, 4 * queued))
    elif ranks > 1:
        shortest = longest = min(BASELINE_UNKNOWN, affordable)
    elif plenty:
        shortest = min(max(BASELINE_MIN, min(3 * workers, BASELINE_PLENTY)), affordable)
        longest = min(BASELINE_PLENTY, affordable)
    else:
        resume = True
        total = min(max(BASELINE_UNKNOWN, min(3 * workers, BASELINE_PLENTY)), affordable)
        shortest = longest = min(max(FIRST_STRETCH, min(2 * workers, BASELINE_MIN)), total)
        after = max(after, total - longest)
    return Schedule(
        baseline_min=shortest,
        baseline_max=longest,
        baseline_ms=1e12 if ranks > 1 else share,
        traced=traced,
        trace_warmup=1 if gpu or step_ms < SLOW_MS else 0,
        memory=max(2, min(MEMORY_STEPS, int(limit_ms / 12 / step_ms))) if gpu and plan.memory else 0,
        after=after,
        resume=resume,
        # Several ranks must end it at the same step, which they do by counting alone.
        soft_ms=soft_ms if ranks == 1 else math.inf,
        soft_min=soft_min,
    )


def steps_to_hold(count: int, *, shortest: int, longest: int, step_ms: float) -> int:
    """Return for how many steps of a timed window events may be held: until the next look at it.

    Args:
        count: steps it has.
        shortest: steps it must have.
        longest: steps that end it.
        step_ms: a typical step.
    """
    if step_ms > HELD_STEP_MS:
        return 1
    rest = longest - count
    if 0 < rest <= MOST_TOGETHER and rest * step_ms <= WHOLE_MS:
        return rest
    look = max(shortest, count + 1 + LOOK_EVERY)
    look += -look % LOOK_EVERY
    if count < longest:
        look = min(look, longest)
    return min(STEPS_HELD, look - count)


def baseline_is_enough(rows: list[Row], schedule: Schedule) -> bool:
    """Return whether the mean of these steps is known to `TARGET`, or a limit is reached.

    The mean, since waits that recur every few steps (bursts of a data loader) hide from a median.
    """
    taken = len(rows)
    spent_ms = (rows[-1].start_ns - rows[0].start_ns) / 1e6 + rows[-1].wall_ms
    least, most = schedule.baseline_min, schedule.baseline_max
    if spent_ms >= schedule.soft_ms:
        least, most = min(least, schedule.soft_min), min(most, 2 * schedule.soft_min)
    last_chance = taken >= most or spent_ms >= schedule.baseline_ms
    # Between two looks a cut costs nothing: this runs inside the window.
    if taken < max(2, least) or not (last_chance or taken % LOOK_EVERY == 0):
        return spent_ms >= schedule.baseline_ms
    times = counted_ms(rows)
    count = len(times)
    if count >= most or spent_ms >= schedule.baseline_ms:
        return True
    if taken >= most + 10:
        return True
    if count < max(2, least):
        return False
    mean = fmean(times)
    # statistics.stdev computes in fractions and takes a hundred times as long.
    variance = sum([(ms - mean) ** 2 for ms in times]) / (count - 1)
    return 1.96 * math.sqrt(variance / count) <= TARGET * mean


def awaits_evaluation(evaluations: list[Row], *, steps: int, waited_ms: float, step_ms: float) -> bool:
    """Return whether to watch on for a second evaluation: of one alone nobody can tell what it costs a step.

    Args:
        evaluations: steps with an evaluation so far. The program's first step is none to go by: what
            runs without gradients in every step is new in it, too.
        steps: steps of the window that is open.
        waited_ms: how long it has lasted.
        step_ms: a typical step.
    """
    if len(evaluations) != 1 or evaluations[0].index == 0:
        return False
    if steps >= AWAITED_STEPS or waited_ms >= AWAITED_MS:
        return False
    return evaluations[0].wall_ms - step_ms > AWAITED_SHARE * AWAITED_STEPS * step_ms
