"""A page of fixed width for the terminal: the only place that touches the terminal library.

In: pieces of text with styles. Out: lines, with colour codes only where asked for, and nothing but ASCII
where the stream can show no more.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType

_ASCII = str.maketrans(
    {
        "→": "->",
        "×": "x",
        "±": "+/-",
        "µ": "u",
        "μ": "u",
        "…": "...",
        "\u2013": "-",
        "\u2014": "-",
        "·": "|",
        "─": "-",
        "\u201c": '"',
        "\u201d": '"',
        "\u2019": "'",
        "≤": "<=",
        "≥": ">=",
    }
)


class Page:
    """Lays lines on a page of fixed width; the only place that touches the terminal library."""

    def __init__(self, *, width: int, color: bool, unicode: bool) -> None:
        self._file = io.StringIO()
        self.width = width
        self.unicode = unicode
        self._console = Console(
            file=self._file,
            width=width,
            force_terminal=color,
            color_system="standard" if color else None,
            no_color=not color,
            markup=False,
            emoji=False,
            highlight=False,
            legacy_windows=False,
            force_jupyter=False,  # in a notebook it would print each line by itself
            # The environment was read by whoever chose width and colour; rich must not read it again.
            _environ={},
        )

    def plain(self, text: str) -> str:
        """Return the text with what the stream can show."""
        return text if self.unicode else text.translate(_ASCII)

    def line(self, *pieces: str | tuple[str, str], indent: int = 0) -> None:
        """Print pieces (text, or text and style) as one line, wrapped under its own indent."""
        text = Text(overflow="fold", no_wrap=False)
        for piece in pieces:
            words, style = (piece, "") if isinstance(piece, str) else piece
            text.append(self.plain(words), style=style)
        self._console.print(Padding(text, (0, 0, 0, indent)) if indent else text)

    def columns(self, left: tuple[str, str], right: str, middle: tuple[str, str] = ("", "")) -> None:
        """Print `left` and `middle`, with `right` at the right edge, or else on a line below."""
        right = self.plain(right)
        gap = self.width - len(self.plain(left[0])) - len(self.plain(middle[0])) - len(right)
        if not right or gap >= 1:
            self.line(left, middle, " " * gap if right else "", right)
        else:
            self.line(left, middle)
            self.line(right, indent=6)

    def code(self, code: str, *, indent: int) -> None:
        """Print lines of code; a line too long is folded, never cut, so that it can be copied."""
        for line in code.splitlines():
            self.line((line, "cyan"), indent=indent)

    def show(self, renderable: RenderableType) -> None:
        """Print something of the terminal library's own, such as a table."""
        self._console.print(renderable)

    def heading(self, title: str, right: str = "") -> None:
        """Print a heading after an empty line."""
        gap = " " * max(self.width - len(title) - len(right), 1) if right else ""
        self._console.print()
        self.line((title, "bold"), gap, (right, "dim"))

    def text(self) -> str:
        """Return the page, without blanks at line ends."""
        return "\n".join(line.rstrip() for line in self._file.getvalue().splitlines()) + "\n"
