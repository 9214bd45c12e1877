"""Colours of the step budget's lines, the same in every chart of the page.

In: a part. Out: its colour in light and in dark. Device work is cool, what keeps the device idle is
warm, what nobody caused is grey. Colour is never alone: each swatch has its name and figure beside it.
"""

from __future__ import annotations

from ...model.codes import Part

__all__ = ["COLOURS", "variables"]

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


def variables(*, dark: bool) -> str:
    """Return the CSS custom properties --part-N, N being the part's position among all parts."""
    return " ".join(f"--part-{i}: {COLOURS[part][dark]};" for i, part in enumerate(Part))
