"""Which of the user's lines lead to what is called, one in the other, and that of a package below them.

In: a frame. Out: frames, and a table of lines as run.json holds them.
"""

from __future__ import annotations

import linecache
import os
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Final, TypeAlias

import torch

from ...model.run import SourceSite
from .sites import is_library, line_of

MOST_FRAMES = 32
"""Of the user's, one in the other."""
LONGEST = 80
"""Of a line's source."""
_TORCH_AND_OURS: Final = tuple(
    f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).resolve().parents[2])
)
_PACKAGES: Final = ("site-packages", "dist-packages")

Line: TypeAlias = tuple[SourceSite, str]
"""With its source."""


@cache
def is_of_package(file: str) -> bool:
    """Return whether a file of a library is of an installed package, and neither torch's nor ours."""
    return any(name in file for name in _PACKAGES) and not file.startswith(_TORCH_AND_OURS)


def source_of(file: str, line: int) -> str:
    """Return a line's source, shortened; empty where the file does not tell."""
    return linecache.getline(file, line).strip()[:LONGEST]


def leading_to(frame: FrameType | None) -> tuple[list[FrameType], FrameType | None]:
    """Return the user's frames, the innermost first, and the innermost of a package below them."""
    inner: FrameType | None = None
    users: list[FrameType] = []
    while frame is not None and len(users) < MOST_FRAMES:
        file = frame.f_code.co_filename
        if not is_library(file):
            users.append(frame)
        elif not (users or inner) and is_of_package(file):
            inner = frame
        frame = frame.f_back
    return users, inner


def sites_leading_to(frame: FrameType | None) -> list[SourceSite]:
    """Return the user's lines that lead to a frame, the innermost first."""
    users, _ = leading_to(frame)
    return [SourceSite(file=f.f_code.co_filename, line=line_of(f), function=f.f_code.co_name) for f in users]


class LineTable:
    """Lines and chains of them, each once."""

    def __init__(self) -> None:
        self._lines: dict[Line, int] = {}
        self._chains: dict[tuple[int, ...], int] = {}

    def line(self, line: Line | None) -> int:
        """Return the index of a line; -1 for none."""
        return -1 if line is None else self._lines.setdefault(line, len(self._lines))

    def chain(self, lines: tuple[Line, ...]) -> int:
        """Return the index of a chain of lines."""
        return self._chains.setdefault(tuple(map(self.line, lines)), len(self._chains))

    @property
    def sites(self) -> list[SourceSite]:
        """Return the lines, in the order of their indices."""
        return [site for site, _ in self._lines]

    @property
    def texts(self) -> list[str]:
        """Return their source, shortened."""
        return [text for _, text in self._lines]

    @property
    def chains(self) -> list[tuple[int, ...]]:
        """Return the chains, in the order of their indices."""
        return list(self._chains)
