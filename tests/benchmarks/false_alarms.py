"""How often the gate raises a false alarm, and how often it detects a slow-down, by simulation.

    python tests/benchmarks/false_alarms.py        # writes reports/false-alarms.md

In: nothing. Out: a table of false alarms on pure noise and of detections at given slow-downs. A run's
time is drawn as exp(noise); what a gate sees is one time per run and side. Kinds of noise:

    normal      log-normal, each run by itself
    outliers    the same, and one run in ten takes half as long again
    heavy       Student's t with three degrees of freedom, scaled to the same spread
    drifting    half of the noise is the machine's own slow walk, which both runs of a pair share
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from torch_bottleneck.stats.gate import decide_times, repeats_needed
from torch_bottleneck.stats.trend import find_trend

TRIALS = 1000
TOLERANCE = 0.05
NOISES = (0.05, 0.15, 0.30)
REPEATS = (3, 5, 10, 20)
EFFECTS = (0.05, 0.10, 0.20, 0.50)
SEED = 20261121
REPORT = Path(__file__).resolve().parents[2] / "reports" / "false-alarms.md"

Times = tuple[np.ndarray, np.ndarray]


def normal(rng: np.random.Generator, noise: float, n: int) -> Times:
    return rng.normal(0, noise, n), rng.normal(0, noise, n)


def outliers(rng: np.random.Generator, noise: float, n: int) -> Times:
    base, head = normal(rng, noise, n)
    for side in (base, head):
        side[rng.random(n) < 0.1] += np.log(1.5)
    return base, head


def heavy(rng: np.random.Generator, noise: float, n: int) -> Times:
    scale = noise / np.sqrt(3.0)
    return rng.standard_t(3, n) * scale, rng.standard_t(3, n) * scale


def drifting(rng: np.random.Generator, noise: float, n: int) -> Times:
    """base head head base base head ...: one run after the other on a machine that walks."""
    walk = np.cumsum(rng.normal(0, noise / np.sqrt(2.0 * 2 * n), 2 * n))
    own = rng.normal(0, noise / np.sqrt(2.0), 2 * n)
    both = (walk + own).reshape(n, 2)
    both[1::2] = both[1::2, ::-1]
    return both[:, 0].copy(), both[:, 1].copy()


KINDS: dict[str, Callable[[np.random.Generator, float, int], Times]] = {
    "normal": normal,
    "outliers": outliers,
    "heavy": heavy,
    "drifting": drifting,
}


def rates(
    kind: str, *, noise: float, repeats: int, effect: float = 0.0, paired: bool = True, trials: int = TRIALS
) -> dict[str, float]:
    """Return the share of trials that ended in each decision.

    Args:
        kind: of noise.
        noise: relative standard deviation of one run's time.
        repeats: runs per side.
        effect: true slow-down of head, relative.
        paired: the sides ran in turns.
        trials: simulated gates.
    """
    rng = np.random.default_rng([SEED, list(KINDS).index(kind), round(noise * 1000), repeats])
    found: dict[str, int] = {}
    for _ in range(trials):
        base, head = KINDS[kind](rng, noise, repeats)
        decision = decide_times(
            np.exp(base), np.exp(head + np.log1p(effect)), tolerance=TOLERANCE, paired=paired
        ).decision
        found[decision] = found.get(decision, 0) + 1
    return {decision: count / trials for decision, count in found.items()}


def drift_rate(noise: float, *, per_run: float, points: int = 20, trials: int = TRIALS) -> float:
    """Return the share of histories in which a trend is found; each point is a median of three runs."""
    rng = np.random.default_rng([SEED, 99, round(noise * 1000), round(per_run * 1e6)])
    rising = 0
    for _ in range(trials):
        runs = np.median(rng.normal(0, noise, (points, 3)), axis=1)
        trend = find_trend(np.exp(runs + np.log1p(per_run) * np.arange(points)), tolerance=TOLERANCE)
        rising += trend is not None and trend.rising
    return rising / trials


def percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def table(heads: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(f"| {' | '.join(r)} |" for r in rows)]


def report(trials: int) -> str:
    noises = [percent(noise).replace(".0", "") for noise in NOISES]
    lines = [
        "# False alarms and detections of the gate",
        "",
        f"By simulation, {trials} gates per cell, tolerance {TOLERANCE:.0%}. Noise is the relative standard",
        "deviation of one run's step time. Written by `python tests/benchmarks/false_alarms.py`.",
        "",
        "## False alarms: nothing changed, but the gate says slower",
        "",
    ]
    rows = []
    worst = 0.0
    for kind in KINDS:
        for repeats in REPEATS:
            shares = [rates(kind, noise=n, repeats=repeats, trials=trials).get("slower", 0.0) for n in NOISES]
            worst = max(worst, *shares)
            rows.append([kind, str(repeats), *map(percent, shares)])
    lines += table(["noise", "repeats", *noises], rows)
    lines += ["", f"Worst cell: {percent(worst)}. With one or two repeats the gate never says slower.", ""]
    lines += ["## Detections: the step got slower by this much, and the gate says slower", ""]
    rows = []
    for noise in NOISES:
        for repeats in REPEATS:
            shares = [
                rates("normal", noise=noise, repeats=repeats, effect=effect, trials=trials).get("slower", 0.0)
                for effect in EFFECTS
            ]
            rows.append([percent(noise).replace(".0", ""), str(repeats), *map(percent, shares)])
    lines += table(["noise", "repeats", *(f"+{effect:.0%}" for effect in EFFECTS)], rows)
    lines += [
        "",
        "A slow-down that is neither found nor ruled out is *undecided*; it never passes silently.",
        "",
        "An increase of exactly the tolerance is found at most half of the time: half of the estimates",
        "fall below it.",
        "",
        "## Repeats per side that distinguish a slow-down from noise, four times in five",
        "",
    ]
    rows = []
    for noise in NOISES:
        needed = [repeats_needed(noise, effect) for effect in EFFECTS]
        rows.append(
            [percent(noise).replace(".0", ""), *("over 500" if n is None else str(n) for n in needed)]
        )
    lines += table(["noise", *(f"+{effect:.0%}" for effect in EFFECTS)], rows)
    lines += [
        "",
        "So a shared machine with 15 % noise should gate on counters, which have no noise.",
        "",
        "## Slow drift over a history of 20 runs",
        "",
    ]
    rows = []
    for per_run in (0.0, 0.005, 0.01, 0.02):
        shares = [drift_rate(noise, per_run=per_run, trials=trials) for noise in NOISES]
        rows.append(
            ["none (false alarms)" if not per_run else f"+{per_run:.1%} per run", *map(percent, shares)]
        )
    lines += table(["drift", *noises], rows)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--print", action="store_true", help="print instead of writing the report")
    options = parser.parse_args()
    text = report(options.trials)
    if options.print:
        sys.stdout.write(text)
    else:
        REPORT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
