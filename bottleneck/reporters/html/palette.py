"""Colours of the step budget's lines, the same in every chart of the page.

In: a part. Out: its colour in light and in dark. Device work is cool, what keeps the device idle is
warm, what nobody caused is grey. Colour is never alone: each swatch has its name and figure beside it.
"""

from __future__ import annotations

from ...model.codes import Part
from ...model.watch import PARTS

COLOURS: dict[Part, tuple[str, str]] = {
    Part.TENSOR_CORE: ("#1f5fa8", "#5b9ce6"),
    Part.OTHER_MATH: ("#4f97d8", "#8fc3f5"),
    Part.MEMORY_BOUND: ("#1f9e8b", "#4fcbb6"),
    Part.OPTIMIZER: ("#7a63c7", "#a996ee"),
    Part.COMMUNICATION: ("#3f4b8c", "#8390dd"),
    Part.COPIES: ("#8b6f3d", "#c9a866"),
    Part.INPUT: ("#d43d51", "#ff7185"),
    Part.SYNC: ("#e8703a", "#ff9a6b"),
    Part.ALLOCATOR: ("#c48a00", "#eebb3d"),
    Part.COMPILE: ("#b0359b", "#e27fd2"),
    Part.GRAPH_BREAK: ("#8f2d56", "#d9739f"),
    Part.DISPATCH: ("#f0a35c", "#f2b880"),
    Part.HOST: ("#9a5b3c", "#c98f70"),
    Part.DEVICE: ("#9aa5b5", "#7f8b9c"),
    Part.UNEXPLAINED: ("#c6cbd3", "#596273"),
}


JOB_COLOURS: dict[str, tuple[str, str]] = {
    "interpreter and imports": ("#8f7cc9", "#b3a2ee"),
    "set-up": ("#5b4a9c", "#8b7bd6"),
    "first steps": ("#b0359b", "#e27fd2"),
    "training steps": ("#1f5fa8", "#5b9ce6"),
    "epoch starts": ("#d43d51", "#ff7185"),
    "validation": ("#1f9e8b", "#4fcbb6"),
    "checkpoints": ("#c48a00", "#eebb3d"),
    "between steps": ("#f0a35c", "#f2b880"),
    "recompilations": ("#8f2d56", "#d9739f"),
    "garbage collections": ("#9a5b3c", "#c98f70"),
    "pauses": ("#3f4b8c", "#8390dd"),
    "after the last step": ("#8b6f3d", "#c9a866"),
    "bottleneck": ("#e8703a", "#ff9a6b"),
    "exit": ("#9aa5b5", "#7f8b9c"),
    "unexplained": ("#c6cbd3", "#596273"),
}
"""Parts of a whole job, likewise: training is blue, what waits is red, what comes once is violet."""


def job_variables(*, dark: bool) -> str:
    """Return the CSS custom properties --job-N, N being the part's position in `PARTS`."""
    return " ".join(f"--job-{i}: {JOB_COLOURS[part][dark]};" for i, part in enumerate(PARTS))


def variables(*, dark: bool) -> str:
    """Return the CSS custom properties --part-N, N being the part's position among all parts."""
    return " ".join(f"--part-{i}: {COLOURS[part][dark]};" for i, part in enumerate(Part))
