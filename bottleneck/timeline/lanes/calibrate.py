"""Bring the replay from the profiled step to the true one.

In: a `Replay`, the profiled window, the true step time. Out: `Calibration`: the edit under which the
replay runs at true speed, and how far the plain replay was from the window it was read from.

The profiler's cost sits in the host lane, where operators and calls are recorded; it makes waiting
for input look shorter (workers go on producing meanwhile) and leaves kernels alone. So host work
that dispatches is scaled, each category as far as operators and calls were recorded in it (between
compiled graphs there is little but Python, and the profiler costs little there), until the replay
gives the true step; waiting for input takes the value measured without the profiler. Where the phases
tell the host's own speed, what is left is shared with Python between operators, and with a device
that was slower while steps were timed; else it is one unknown, found by root finding. Kernels are
shortened only where the host cannot reach the true step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ...model.codes import Part
from ...model.finding import NEGLIGIBLE_SHARE, Doubt, DoubtCode
from .gaps import DISPATCH_WORK
from .labels import Work
from .program import NO_WAIT, PARTS, EventKind, Program, first_counted
from .replay import Edit, Replay, step_ends

MAX_REPLAY_ERROR = 0.10
"""Above it no what-if is drawn from the replay."""

TYPICAL_SCALE = 0.62
"""Dispatch scale where the true step does not reveal it, since the device decides. Launch-bound
steps measured on an H200 with torch 2.11 had 0.55 to 0.68."""

_LEAST_LEFT = 0.2
_LOW, _HIGH = 0.05, 3.0
_SHORTEST = 0.5
"""No kernel takes less of its traced time than this, nor Python between operators."""
_PROBE = 0.02
"""Relative change of a factor by which it is found what the step depends on."""
_DEVICE = 2
"""Place of the device's factor behind those of dispatch and of Python between operators."""
_CLOSE = 0.005
"""Share of the step without its wait for input by which a replay may miss the step."""
_DECIDES = 0.9
"""Share of the step from which the device's work is the step."""
_AHEAD = 0.5
"""Share of such a step at which the host is done with it, where it has waited for nothing."""
_FEWEST_AHEAD = 3
"""Such steps; of fewer one may have been disturbed."""
_EXACT = 2e-5
"""Relative miss at which a factor counts as found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The edit that makes the replay run at true speed."""

    base: Edit
    dispatch_scale: float
    device_scale: float
    replay_error: float
    """|replayed - observed| / observed of the profiled window, no edit."""
    observed_ms: float
    replayed_true_ms: float
    """The calibrated replay's step; equals the true step where it could be reached."""
    varying: bool
    """Steps differ in device work, so the traced ones need not be the baseline's."""
    doubts: tuple[Doubt, ...] = ()


def observed_step_ns(program: Program) -> float:
    """Return the profiled mean step, by the same definition that the replay uses."""
    host = np.zeros(len(program.kind))
    host[program.marks] = program.mark_ns - program.origin_ns
    ends = step_ends(program, host, program.observed_end - program.origin_ns)
    first = first_counted(program.steps)
    return float(ends[-1] - ends[first]) / (len(ends) - 1 - first)


def _carried(program: Program) -> dict[Work, float]:
    """Return how many events were recorded per time in each category that dispatches, relative to all.

    An event costs the profiler about the same wherever it is recorded (2 to 3 us on the machines of the
    recorded runs), so a category's share of the profiler's cost is its share of the events.
    """
    works = [work for work in DISPATCH_WORK if work is not Work.SYNC]
    spent = program.work[:, works].sum(axis=0)
    events = program.recorded[works].astype(np.float64)
    out = dict.fromkeys(DISPATCH_WORK, 1.0)
    if events.sum() <= 0 or spent.sum() <= 0:
        return out
    overall = events.sum() / spent.sum()
    # What a read costs beside its wait has no length of its own in the trace: it takes the average.
    out |= {work: n / ns / overall for work, n, ns in zip(works, events, spent, strict=True) if ns > 0}
    return out


def _device_work(program: Program) -> tuple[float, float]:
    """Return what the device computes per step, and its spread; copies and collectives stretch by waiting."""
    work = np.zeros(program.steps)
    step = program.step
    computes = program.part < PARTS.index(Part.COMMUNICATION)
    inside = (step >= 0) & (step < program.steps) & computes
    np.add.at(work, step[inside], program.duration[inside])
    return float(work.mean()), float(work.std())


def _solve(run: Callable[[float], float], target: float, low: float, high: float) -> float:
    """Return the x in [low, high] where the non-decreasing `run` comes nearest to `target`.

    False position with halving of the end that stays (the Illinois rule): a replay is piecewise
    linear in a factor on its work, so that a handful of runs suffice.
    """
    below, above = run(low) - target, run(high) - target
    if below >= 0:
        return low
    if above <= 0:
        return high
    x = low
    for _ in range(40):
        x = (low * above - high * below) / (above - below)
        miss = run(x) - target
        if abs(miss) <= _EXACT * target:
            return x
        if miss < 0:
            low, below, above = x, miss, above / 2
        else:
            high, above, below = x, miss, below / 2
    return x


def _fit(
    run: Callable[[NDArray[np.float64]], float],
    target: float,
    where: NDArray[np.bool_],
    factor: NDArray[np.float64],
    floor: float,
) -> NDArray[np.float64]:
    """Return `factor` with the entries at `where` set so that `run` comes nearest to `target`."""
    x = _solve(lambda x: run(np.where(where, x, factor)), target, floor, 1.0)
    return np.where(where, x, factor)


def _shorten_device(
    program: Program, run: Callable[[NDArray[np.float64]], float], target: float
) -> tuple[NDArray[np.float64], float]:
    """Shorten device work until the step fits, the most elastic first.

    A copy from pageable memory runs at the speed of the host's staging, and a collective lasts until
    the slowest rank arrives: both stretch when profiled hosts fall behind. Other kernels hardly do.

    Returns:
        Factors per activity, and the one that other kernels got.
    """
    staged = np.zeros(len(program.event), dtype=bool)
    staged[program.kind[program.event] == EventKind.COPY] = True
    collective = program.part == PARTS.index(Part.COMMUNICATION)
    factor = np.ones(len(program.event))
    for elastic, floor in ((staged, 0.3), (collective, 0.02)):
        if not elastic.any():
            continue

        shortest = np.where(elastic, floor, factor)
        if run(shortest) <= target:
            return _fit(run, target, elastic, factor, floor), 1.0
        factor = shortest
    if run(np.where(staged | collective, factor, 0.95)) > target and (staged | collective).any():
        # It is the host that must be faster than assumed, not the kernels.
        return factor, 1.0
    fixed = ~(staged | collective)
    fitted = _fit(run, target, fixed, factor, _SHORTEST)
    return fitted, float(fitted[fixed][0]) if fixed.any() else 1.0


@dataclass(slots=True, kw_only=True)
class _Speed:
    """A replay whose dispatching work is scaled, beside edits that hold at any speed."""

    replay: Replay
    target_ns: float
    carried: dict[Work, float]
    """Relative number of recorded events, from `_carried`."""
    factors: dict[Work, float]
    """On what is not dispatched."""

    @property
    def near_ns(self) -> float:
        """By how much the step may be missed: little of what is left beside the wait for input."""
        program = self.replay.program
        input_ns = self.factors.get(Work.INPUT, 1.0) * program.per_step_ns(program.work[:, Work.INPUT])
        return _CLOSE * max(self.target_ns - input_ns, _CLOSE * self.target_ns)

    def edit(self, scale: float, device: NDArray[np.float64] | float = 1.0) -> Edit:
        # A category of nothing but short operators can lose no more than most of its time.
        own = {
            work: max(min(scale, _LEAST_LEFT), 1.0 - (1.0 - scale) * self.carried[work])
            for work in DISPATCH_WORK
        }
        return Edit(work={**self.factors, **own}, duration=device)

    def step(self, scale: float, device: NDArray[np.float64] | float = 1.0) -> float:
        return self.replay.run(self.edit(scale, device)).step_ns

    def hold_input(self, edit: Edit) -> Edit:
        """Keep the wait for input as measured where the factors do not reach the true step.

        Readers scale all by what is missing, which the rest alone then takes.
        """
        if Work.INPUT not in self.factors:
            return edit

        def held(x: float) -> Edit:
            return edit.and_also(Edit(work={Work.INPUT: x}))

        def as_read(x: float) -> float:
            return x * self.target_ns / self.replay.run(held(x)).step_ns

        return held(_solve(as_read, 1.0, 0.2, 5.0))

    def of_host(self, host_ms: float) -> float:
        """Return the scale at which the host's work alone takes this long for a step."""
        program = self.replay.program
        spent = np.array([program.per_step_ns(program.work[:, work]) for work in Work])
        return _solve(lambda scale: float(spent @ self.edit(scale).factors()), host_ms * 1e6, _LOW, _HIGH)

    def fit_compiling(self) -> None:
        """Scale compiling alone: it takes as long with the profiler as without."""
        edit = self.edit(TYPICAL_SCALE)
        self.factors[Work.COMPILE] = _solve(
            lambda x: self.replay.run(edit.and_also(Edit(work={Work.COMPILE: x}))).step_ns,
            self.target_ns,
            0.2,
            5.0,
        )

    def fit(self, prior: float, *, measured: bool) -> _Fit:
        """Find the factors on dispatch and on the device that give the true step.

        `measured`: the prior is the host's own speed.
        """
        target, near = self.target_ns, self.near_ns
        if abs(self.step(prior) - target) <= near:
            return _Fit(scale=prior)
        if measured and (fit := self._nearest(prior)) is not None:
            return fit
        least = self.step(_LOW)
        if least > target + near:
            return self._shorter_device(prior)
        if self.step(_HIGH) < target - near:
            device = _solve(lambda d: self.step(1.0, d), target, 1.0, 2.0)
            return _Fit(scale=1.0, device=device, device_scale=device, doubt=_SLOWER)
        # Where the device alone is as long, the host may take as much and no less.
        scale = _solve(self.step, target if least < target else target + near, _LOW, _HIGH)
        return _Fit(scale=scale, doubt=_disturbed(scale) if scale > 1.25 else None)

    def _nearest(self, prior: float) -> _Fit | None:
        """Change dispatch, Python between operators and the device until they give the true step.

        Each by as much as the step depends on it: of all ways to get there, the one of the smallest changes
        (least squares), so that a device that decides the step alone leaves the host as it was measured.
        To a shorter step the host alone is changed, since kernels take as long with the profiler as without;
        None where that does not do.
        """

        def step(factors: NDArray[np.float64]) -> float:
            dispatch, host, device = factors.tolist()
            edit = self.edit(prior * dispatch, device).and_also(Edit(work={Work.HOST: host}))
            return self.replay.run(edit).step_ns

        target, plain = self.target_ns, step(np.ones(3))
        shorter = plain > target
        probe = -_PROBE if shorter else _PROBE
        slopes = np.array([step(1.0 + probe * each) / plain - 1.0 for each in np.eye(3)]) / probe
        if shorter:
            slopes[_DEVICE] = 0.0
        slopes = np.maximum(slopes / max(float(slopes.max()), _EXACT), 0.0)
        low, high = 0.0, _HIGH / prior
        if shorter:
            room = np.array([1.0 - _LOW / prior, 1.0 - _SHORTEST, 0.0])
            low, high = -float((room[slopes > 0] / slopes[slopes > 0]).min(initial=1.0)), 0.0
        factors = 1.0 + slopes * _solve(lambda x: step(1.0 + slopes * x), target, low, high)
        if shorter and step(factors) > target + self.near_ns:
            return None
        dispatch, host, device = factors.tolist()
        self.factors[Work.HOST] = host
        slower = not shorter and self.step(_HIGH) < target - self.near_ns
        return _Fit(
            scale=prior * dispatch, device=device, device_scale=device, doubt=_SLOWER if slower else None
        )

    def _shorter_device(self, prior: float) -> _Fit:
        """Even a free host is too slow: the device was slower while it was traced."""
        scale, target, near = prior, self.target_ns, self.near_ns
        program = self.replay.program
        device, device_scale = _shorten_device(program, lambda d: self.step(scale, d), target)
        both = _solve(lambda x: self.step(prior * x, x), target, _SHORTEST, 1.0)
        if device_scale < both**2:
            # The host alone is too slow, too: less has to change where both are faster.
            scale *= both
            target += near
            device, device_scale = _shorten_device(program, lambda d: self.step(scale, d), target)
        if self.step(scale, device) > target + near:
            scale = _solve(lambda x: self.step(x, device), target, _LOW, scale)
        doubt = _shared(device_scale) if device_scale < 0.95 else None
        return _Fit(scale=scale, device=device, device_scale=device_scale, doubt=doubt)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    scale: float
    device: NDArray[np.float64] | float = 1.0
    device_scale: float = 1.0
    doubt: Doubt | None = None


_SLOWER = Doubt(
    code=DoubtCode.BASELINE_SLOWER,
    text="The true step is slower than the trace can explain; the run may have been disturbed while the "
    "baseline was timed",
    remedy="Run again.",
)


def _shared(device_scale: float) -> Doubt:
    return Doubt(
        code=DoubtCode.DEVICE_SHARED,
        text=f"Kernels took {100 * (1 / device_scale - 1):.0f} % longer while traced than the true step "
        "allows; other work may have shared the device",
        remedy="Run again on an idle device.",
    )


def _disturbed(scale: float) -> Doubt:
    return Doubt(
        code=DoubtCode.BASELINE_DISTURBED,
        text=f"Steps ran faster under the profiler than without (dispatch x{scale:.2f}); the baseline was "
        "probably disturbed",
        remedy="Run again on an idle machine.",
    )


def calibrate(
    replay: Replay,
    true_ms: float | None,
    *,
    input_ms: float | None = None,
    host_scale: float | None = None,
    walls_ms: Sequence[float] = (),
) -> Calibration:
    """Find the edit under which the replay gives the true step time.

    `input_ms` is the mean time per step blocked on input in the baseline window. Where the step does not
    reveal the dispatch scale, one of two does: those of `walls_ms`, the host's times for the steps of the
    baseline, in which it waits for nothing; else `host_scale`, the host time in forward, backward and
    optimizer without the profiler over that with it. The `base` edit of the result belongs under every
    what-if.
    """
    program = replay.program
    observed = observed_step_ns(program)
    plain = replay.run().step_ns
    work_ns, spread_ns = _device_work(program)
    varying = spread_ns > 0.10 * work_ns
    # Of steps that differ, those that were timed may be longer or shorter than those that were traced.
    other = varying and spread_ns > NEGLIGIBLE_SHARE * plain
    factors: dict[Work, float] = {Work.OVERHEAD: 0.0}
    fit = _Fit(scale=1.0)
    base = Edit(work=factors)
    if true_ms is not None:
        traced_input = program.per_step_ns(program.work[:, Work.INPUT])
        if input_ms is not None and traced_input > 0:
            factors[Work.INPUT] = input_ms * 1e6 / traced_input
        speed = _Speed(replay=replay, target_ns=true_ms * 1e6, carried=_carried(program), factors=factors)
        # The compiler's time differs from step to step, and the phases' times tell its speed, not that
        # of dispatching.
        compiling = program.work[:, Work.COMPILE].sum() > 0.5 * program.work.sum()
        # A profiler speeds no host up: a ratio above 1 is of a host that waits for the device in each phase.
        waits = host_scale is None or host_scale >= 1.0
        prior = TYPICAL_SCALE if waits or compiling else max(0.3, host_scale or 0.0)
        decides = work_ns > _DECIDES * true_ms * 1e6 and not (program.wait != NO_WAIT).any()
        # The first steps after a pause, until as many launches wait for the device as can.
        ahead_ms = [ms for ms in walls_ms if ms < _AHEAD * true_ms]
        if decides and not (compiling or other) and len(ahead_ms) >= _FEWEST_AHEAD:
            alone = speed.of_host(median(ahead_ms))
            if alone < 1.0:
                prior, waits = alone, False
        if compiling and not other:
            speed.fit_compiling()
        fit = _Fit(scale=prior) if other or compiling else speed.fit(prior, measured=not waits)
        base = speed.hold_input(speed.edit(fit.scale, fit.device))
    return Calibration(
        base=base,
        dispatch_scale=fit.scale,
        device_scale=fit.device_scale,
        replay_error=abs(plain - observed) / observed if observed else 1.0,
        observed_ms=observed / 1e6,
        replayed_true_ms=replay.run(base).step_ns / 1e6,
        varying=varying,
        doubts=(fit.doubt,) if fit.doubt is not None else (),
    )
