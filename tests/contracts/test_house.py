"""The folders say what is where: none is crowded, and those that build on each other do it one way."""

from __future__ import annotations

from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "bottleneck"
FOLDERS = sorted({path.parent for path in PACKAGE.rglob("*.py")})
MOST_FILES = 20
"""Past it a folder holds more than one idea."""


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(PACKAGE.parent)))
def test_a_folder_holds_few_files(folder: Path) -> None:
    files = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert len(files) <= MOST_FILES, sorted(files)
