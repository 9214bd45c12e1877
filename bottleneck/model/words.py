"""How numbers, sizes, places and foreign text are worded, the same in findings and in every report.

In: values as they stand in a diagnosis. Out: short strings, free of control characters.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from .run import SourceSite

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)", re.DOTALL)
# Bidirectional overrides can make a line look like something else.
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)

_ACTIVE = re.compile(
    r"(?P<color>\x1b\[[0-9;]*m)|"
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
"""What a terminal acts on, but for line breaks and tabs."""

_SENTENCE = 240


def clean(text: str) -> str:
    """Make text from a script, a trace or a message safe to print on one line.

    Kernel names, exception texts and paths come from elsewhere: terminal escapes, control
    characters and line breaks in them must not reach the reader's terminal or break a table.
    """
    return " ".join(_UNPRINTABLE.sub(" ", _ESCAPES.sub("", text)).split())


def visible(text: str) -> str:
    r"""Write out what a terminal would act on, as \x1b and \n: one line that still names what it names."""
    return visible_lines(text.replace("\n", "\\n").replace("\t", "\\t"))


def visible_lines(text: str, *, color: bool = False) -> str:
    """Do the same with a block of lines; `color`: its colour codes are ours and stay."""
    return _ACTIVE.sub(
        lambda found: (
            found[0] if color and found["color"] else found[0].encode("unicode_escape").decode("ascii")
        ),
        text,
    )


def clean_code(text: str) -> str:
    """Make a block of code safe to print, keeping its lines and indentation."""
    return "\n".join(_UNPRINTABLE.sub("", _ESCAPES.sub("", line)).rstrip() for line in text.splitlines())


def shorten(text: str, width: int) -> str:
    """Cut the middle out of a long name; kernel names differ most at their ends."""
    if len(text) <= width:
        return text
    if width <= 3:
        return text[:width]
    tail = (width - 1) // 3
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def brief(text: str, width: int) -> str:
    """Cut prose at a word, at its end; a name too long to stand whole is cut in its middle."""
    if len(text) <= width:
        return text
    head = text[: max(width - 1, 0)].rpartition(" ")[0].rstrip(",;:")
    return f"{head} …" if len(head) > width // 2 else shorten(text, width)


def sentence(text: str) -> str:
    """Clean a sentence and keep it to a few lines: a kernel name in it can run to thousands of characters."""
    return brief(clean(text), _SENTENCE)


def milliseconds(value: float | None, *, like: float | None = None) -> str:
    """Word a time in ms without its unit, in three figures or so; `like` fixes the decimals by its size."""
    if value is None:
        return "not measured"
    size = abs(value if like is None else like)
    decimals = 1 if size >= 10 else 2 if size >= 1 else 3
    if size >= 1000:
        decimals = 0
    # Adding zero turns the -0.0 of a rounded negative into 0.0.
    return f"{round(value, decimals) + 0.0:,.{decimals}f}".replace(",", " ")


def ms(value: float | None) -> str:
    """Word a time with its unit: "0.042 ms", "3.14 ms", "412.0 ms"."""
    return milliseconds(value) if value is None else f"{milliseconds(value)} ms"


def duration(seconds: float) -> str:
    """Word a long time: "0.42 s", "52.1 s", "1 min 05 s", "2 h 07 min"."""
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def percent(share: float | None) -> str:
    """Word a share (0..1) as a percentage."""
    if share is None:
        return "-"
    value = share * 100
    if 0.05 <= abs(value) < 0.1:
        return "<0.1 %"
    return f"{round(value, 1) + 0.0:.1f} %" if abs(value) < 10 else f"{value:.0f} %"


def byte_size(value: float) -> str:
    """Write a number of bytes with binary units, as torch's own messages do: "512 B", "1.5 GiB"."""
    amount, unit = float(value), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" or abs(amount) >= 100 else f"{amount:.3g} {unit}"


def times(before: float, after: float) -> str:
    """Word a speed-up."""
    ratio = before / after
    return f"{ratio:.2f}×" if ratio < 10 else f"{ratio:.0f}×"


def step_after(true_ms: float | None, predicted_ms: float, *, bound: bool) -> str:
    """Word a predicted step alone: "33.0 ms (2.65×)", or "at best ..." where it is a bound."""
    text = f"{milliseconds(predicted_ms, like=true_ms)} ms"
    if true_ms is not None and predicted_ms > 0:
        text += f" ({times(true_ms, predicted_ms)})"
    return f"at best {text}" if bound else text


def step_change(true_ms: float | None, predicted_ms: float, *, bound: bool) -> str:
    """Word a prediction: "87.4 → 33.0 ms (2.65×)", or "at best ..." where it is a bound."""
    text = step_after(true_ms, predicted_ms, bound=False)
    if true_ms is not None:
        text = f"{milliseconds(true_ms)} → {text}"
    return f"at best {text}" if bound else text


def place(site: SourceSite, *, root: str = "", width: int = 60) -> str:
    """Word a line of the user's program as file:line (function).

    Paths are shown from `root` on, which ends in a slash; long ones are cut at the front.
    """
    function = f" ({clean(site.function)})" if site.function and not site.function.startswith("<") else ""
    file = site.file.removeprefix(root) if root else site.file
    parts = f"{clean(file)}:{site.line}".split("/")
    short = "/".join(parts)
    while len(short) + len(function) > width and len(parts) > 2:
        parts = parts[1:]
        short = "…/" + "/".join(parts)
    return shorten(short + function, max(width, 20))


def shown(path: Path) -> str:
    """Return a path as short as it can be from where the user stands."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
