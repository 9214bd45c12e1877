"""How long each window lasts: decided from the step times and from how many steps are left.

In: rows of finished steps, the plan, perhaps the number of steps that are left. Out: whether the
warm-up has settled, a `Schedule` of the windows after it. Pure functions of numbers; nothing here
touches torch or a clock.

The baseline is timed in stretches before, between and after the other windows. A trace is worth more
than a longer baseline. Scripts of 15 to 50 steps are common, and where a script ends cannot be known: so
the trace comes early then, and the baseline is completed after it.
"""

from __future__ import annotations

import math
from statistics import median

import msgspec

from ...runs.plan import Plan
from .table import Row, counted_ms

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
"""Steps left; a test script that breaks off after 50 is still possible."""
FIRST_STRETCH = 5
"""Baseline steps before the trace where the script may end at any moment..."""
FIRST_STRETCH_WORKERS = 10
"""...and where they come in bursts of as many as the loader has workers."""
BASELINE_SHARE = 1 / 3
"""The baseline takes no more of the time limit than this."""
LEAST_STEPS = 200
LEAST_MS = 1000.0
"""Before the captures at least so many steps are timed, and for so long..."""
SOFT_MS = 3000.0
"""...but after this long fewer steps will do: nothing has disturbed these, a plain run is like them."""
BEFORE_SHARE = 2 / 3
"""They are so much of the baseline. The rest tells whether steps are still the same behind the captures."""
FEW_STEPS = 10
BURSTS_STEPS = 40
"""Of a loader with workers: three bursts, as long as they are no more steps than these."""
MOST_STEPS = 2000
"""Of very short steps: more tell nothing new, and each is a row of run.json."""
TARGET = 0.02
"""Half-width of the 95 % interval of the mean, relative: of the whole baseline..."""
TARGET_BEFORE = 0.025
"""...and of its steps before the captures."""
BETWEEN_SHARE = 1 / 8
"""So much of the baseline lies between trace and memory window."""
EARLY_SHARE = 3
"""Before the trace, at most one part in so many of the steps that are left."""
QUEUE_CAP = 150
TRIAL_STEPS = 300
TRIAL_LEAST = 40
TRIAL_MS = 2000.0
"""An experiment looks for differences of 2 %: it takes this long, or so many steps, where it can."""
TRIAL_FEW = 20
AFTER_STEPS = 5
AWAITED_STEPS = 200
"""After one evaluation so many more steps are watched for the next one, which tells how often they come..."""
AWAITED_MS = 15_000.0
"""...or so long."""
AWAITED_SHARE = 0.02
"""An evaluation that takes less than this of all the steps until then is not waited for."""
MOST_TOGETHER = 64
"""A stretch that has no more steps left than these may be held as a whole: more would be kept for long
before they are looked at."""
STEPS_HELD = 10
"""Steps whose events are held and handed over together, while steps are timed."""
HELD_STEP_MS = 50.0
"""Events of steps longer than this are held for one step at a time."""
WHOLE_MS = 500.0
"""A stretch that is over so soon is looked at only when it is."""
STACKS_MS = 1500.0
"""About as many samples: what takes a tenth of the step is then known to a tenth of itself."""
FEWEST_STACKS, LEAST_STACKS, MOST_STACKS = 5, 2, 400
STACKS_LONGEST_MS = 10_000.0
"""Of long steps there are fewer, but `LEAST_STACKS`."""
FIRST_STACKS = 30
"""Steps sampled before the last stretch, which needs steps as well: a script may end soon."""
MEMORY_STEPS = 5
"""So many that what two steps later is still alive can be told from what the next step replaces."""
FOREVER_MS = 1e12
"""No limit, in a number that JSON knows: schedules are sent from rank to rank."""


class Enough(msgspec.Struct, frozen=True, kw_only=True):
    """When steps that are timed are enough: between `least` and `most`, once their mean is known."""

    least: int
    most: int
    most_ms: float
    """Time limit; none where ranks must count alike."""
    soft_ms: float = FOREVER_MS
    """Once they have lasted so long, `soft_least` are their least and `soft_most` their most."""
    soft_least: int = 0
    soft_most: int = MOST_STEPS
    within: float = TARGET
    """Relative half-width of the interval of the mean at which it counts as known."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of steps for the windows after the warm-up."""

    before: Enough
    """The stretch of the baseline before the trace."""
    between: Enough | None = None
    """The one between trace and memory window; None without a memory window, or where the script may end
    before it."""
    whole: Enough
    """All stretches together, whose last one lies behind the captures."""
    after: int
    """The least of the last stretch."""
    settle: int = 0
    """Steps before each stretch that follows a pause: their batches were made while we paused."""
    joins: bool = True
    """Later stretches become part of the baseline; not where the number of its steps was asked for."""
    traced: int
    trace_warmup: int
    """Steps that the profiler runs without recording first."""
    memory: int
    stacks: int = 0
    """Steps whose stacks are sampled before the last stretch."""


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
            while the script set up hides what they cost: it is used up first, by an experiment or where
            steps are plenty.
    """
    plenty = left is not None and left >= PLENTY
    waits = plan.warmup is None and (plan.trial is not None or plenty)
    if waits and len(rows) < steps_on_stock(queued, steps=(left or 0) + len(rows)):
        return False, False
    times = counted_ms(rows[1:])
    settled = has_settled(times) and not any(row.compiled for row in rows[-2:])
    if plan.warmup is not None:
        return len(rows) >= plan.warmup, settled
    if settled:
        return True, True
    cap = WARMUP_CAP_PLENTY if plenty else WARMUP_CAP_UNKNOWN
    compiling = sum(row.compiled for row in rows)
    over = len(times) >= cap or compiling >= COMPILING_CAP or (sum(times) > WARMUP_CAP_MS and len(times) >= 2)
    return over, False


def steps_on_stock(queued: int, *, steps: int | None) -> int:
    """Return for how many steps a loader's stock of batches hides what they cost.

    The workers fill it while the training pauses, and go on while it is used up.

    Args:
        queued: batches that the workers hold ready.
        steps: steps of the script, as far as known: no more than a third of them is given to this.
    """
    wanted = min(2 * queued, QUEUE_CAP)
    return wanted if steps is None else min(wanted, steps // 3)


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
        ranks: several end a window at the same step, which they do by counting alone.
    """
    step_ms = max(step_ms, 1e-3)
    limit_ms = plan.max_seconds * 1000
    share = limit_ms * BASELINE_SHARE
    affordable = max(1 if step_ms > share / 2 else 2, int(share / step_ms))
    # While it records, a step may take twice its time.
    traced = min(plan.steps, max(1, int(limit_ms / 3 / (2 * step_ms))))
    memory = max(2, min(MEMORY_STEPS, int(limit_ms / 12 / step_ms))) if gpu and plan.memory else 0
    after = max(1, min(AFTER_STEPS, int(limit_ms / 12 / step_ms)))
    between = None
    if plan.baseline_steps is not None:
        before = whole = _exactly(max(1, plan.baseline_steps), share if ranks == 1 else FOREVER_MS)
    elif plan.trial is not None:
        # Nothing follows the baseline, so it need not be cut short for a trace.
        wanted = min(TRIAL_STEPS, max(TRIAL_LEAST, int(TRIAL_MS / step_ms), 4 * queued))
        least = max(1, min(wanted // 2, affordable))
        most = max(least, min(wanted, affordable))
        # How long steps are is known late where the host runs ahead of its device: their times in the
        # warm-up are then those of the host. In that case fewer steps will do.
        few = min(least, max(TRIAL_FEW, 4 * queued))
        before = whole = Enough(
            least=least, most=most, most_ms=share, soft_ms=SOFT_MS, soft_least=few, soft_most=2 * few
        )
        if ranks > 1:
            before = whole = _exactly(least, FOREVER_MS)
    else:
        bursts = min(3 * workers, BURSTS_STEPS)
        least, soft_ms = round(LEAST_STEPS / BEFORE_SHARE), SOFT_MS / BEFORE_SHARE
        if ranks > 1:
            most = max(FEW_STEPS, bursts, min(least, int(soft_ms / step_ms)))
            whole = _exactly(min(most, affordable), FOREVER_MS)
        else:
            whole = Enough(
                least=min(MOST_STEPS, max(least, int(LEAST_MS / BEFORE_SHARE / step_ms))),
                most=MOST_STEPS,
                most_ms=share,
                soft_ms=min(soft_ms, share),
                soft_least=min(max(FEW_STEPS, bursts), affordable),
            )
        if left is not None and left >= PLENTY:
            before = _part(whole, BEFORE_SHARE, most=left // EARLY_SHARE, within=TARGET_BEFORE)
            if ranks == 1:
                # However uncertain the mean still is: the script may break off, and the rest comes later.
                before = msgspec.structs.replace(before, most_ms=before.soft_ms)
            if memory:
                between = _part(whole, BETWEEN_SHARE, most=left // EARLY_SHARE, within=1.0)
        else:
            known = min((left or 0) // EARLY_SHARE, int(SOFT_MS / step_ms))
            first = max(FIRST_STRETCH, min(2 * workers, FIRST_STRETCH_WORKERS), known)
            before = _exactly(min(first, affordable), whole.most_ms)
    if ranks > 1:
        after = max(after, whole.most - before.most - (between.most if between is not None else 0))
    return Schedule(
        before=before,
        between=between,
        whole=whole,
        after=after,
        settle=steps_on_stock(queued, steps=left),
        joins=plan.baseline_steps is None,
        traced=traced,
        trace_warmup=1 if gpu or step_ms < SLOW_MS else 0,
        memory=memory,
        stacks=min(FIRST_STACKS, steps_to_sample(step_ms)),
    )


def steps_to_sample(step_ms: float) -> int:
    """Return of how many steps the stacks are sampled, a sample a millisecond."""
    step_ms = max(step_ms, 1e-3)
    wanted = max(FEWEST_STACKS, min(MOST_STACKS, int(STACKS_MS / step_ms)))
    return max(LEAST_STACKS, min(wanted, int(STACKS_LONGEST_MS / step_ms)))


def _exactly(steps: int, most_ms: float) -> Enough:
    return Enough(least=steps, most=steps, most_ms=most_ms)


def _part(whole: Enough, share: float, *, most: int, within: float) -> Enough:
    """Return one stretch of `whole`: that share of its least, and never more than `most` steps."""
    least = min(most, math.ceil(whole.least * share))
    forever = whole.most_ms == FOREVER_MS
    return Enough(
        least=least,
        most=least if forever else max(least, min(most, int(whole.most * share))),
        most_ms=whole.most_ms if forever else whole.most_ms * share,
        soft_ms=whole.soft_ms if forever else whole.soft_ms * share,
        soft_least=min(least, max(FIRST_STRETCH, math.ceil(whole.soft_least * share))),
        within=within,
    )


def steps_to_hold(rest: int, *, step_ms: float) -> int:
    """Return for how many steps of a timed window events may be held; 0 where a wish to stop cannot wait."""
    if step_ms > HELD_STEP_MS:
        return int(step_ms <= SLOW_MS)
    if rest <= MOST_TOGETHER and rest * step_ms <= WHOLE_MS:
        return max(1, rest)
    return min(STEPS_HELD, rest)


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
