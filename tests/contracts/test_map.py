"""The two folders with the most modules say in their docstrings where each is to be found."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["harness", "timeline"])
def test_every_module_stands_on_the_map_of_its_folder(name: str) -> None:
    package = importlib.import_module(f"torch_bottleneck.{name}")
    named = set(re.findall(r"`(\w+)`", (package.__doc__ or "").partition("Where to look")[2]))
    there = {path.stem for path in Path(str(package.__file__)).parent.glob("*.py")} - {"__init__"}
    assert there - named == set(), "say in the package's docstring what they are for"
    assert named - there - {"verify"} == set()
