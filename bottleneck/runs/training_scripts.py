"""Which files of a folder are training scripts.

In: a folder. Out: names of scripts, those called so first.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

_TRAINS = (
    re.compile(
        r"^\s*(import|from)\s+(torch|lightning|pytorch_lightning|transformers|accelerate)\b", re.MULTILINE
    ),
    re.compile(r"\.(backward|fit|train)\("),
)
"""A file that imports a library of training, and calls for it."""
_MOST_FILES = 200
_MOST_CHARACTERS = 200_000
_MOST_SHOWN = 3


def training_scripts(folder: Path) -> list[str]:
    """Return the Python files of a folder that train something with torch: few, those called so first."""
    found = []
    for file in sorted(folder.glob("*.py"))[:_MOST_FILES]:
        with contextlib.suppress(OSError), file.open(encoding="utf-8", errors="replace") as opened:
            text = opened.read(_MOST_CHARACTERS)
            if all(pattern.search(text) for pattern in _TRAINS):
                found.append(file.name)
    return sorted(found, key=lambda name: (not name.startswith("train"), name))[:_MOST_SHOWN]
