"""A run with a GPU and a run without one are read by the same code; only what the device decides is apart."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import torch_bottleneck
from torch_bottleneck.timeline.lanes.labels import PART_OF_WORK, Work

TIMELINE = Path(torch_bottleneck.__file__).parent / "timeline"
FILES = sorted(TIMELINE.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Return the rooms of timeline/ that a file imports from, types included."""
    depth = len(path.relative_to(TIMELINE).parts)
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == depth and node.module:
            rooms.add(node.module.partition(".")[0])
    return rooms


@pytest.mark.parametrize(("room", "other"), [("gpu", "cpu"), ("cpu", "gpu")])
def test_the_rooms_of_the_two_devices_do_not_know_each_other(room: str, other: str) -> None:
    files = sorted((TIMELINE / room).rglob("*.py"))
    assert len(files) > 5
    assert [str(path) for path in files if other in imported(path)] == []


def test_the_lanes_know_neither_device() -> None:
    files = sorted((TIMELINE / "lanes").glob("*.py"))
    assert [path.name for path in files if imported(path) & {"gpu", "cpu"}] == []


def test_only_the_common_reading_makes_a_timeline() -> None:
    makers = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Timeline":
                makers.append(path.name)
    assert makers == ["reading.py"]
    assert not {path.parent.name for path in FILES if path.name == "what_ifs.py"}


def names_defined(path: Path) -> set[str]:
    """Return the names that a file gives to classes and constants of its own."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.parametrize("name", ["Work", "PYTHON_GAP_NS", "PART_OF_WORK", "WORK_OF_WAIT", "PHASE_OF_WORK"])
def test_what_host_time_is_spent_on_is_said_in_one_table(name: str) -> None:
    pattern = re.compile(f"_?{name.removeprefix('_')}")
    places = [path.name for path in FILES if any(pattern.fullmatch(each) for each in names_defined(path))]
    assert places == ["labels.py"]
    assert set(PART_OF_WORK) == set(Work)
