"""A sampled frame is named by the user's own words."""

from __future__ import annotations

import concurrent.futures
import copy
import dis
import gc
import json
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from torch_bottleneck.harness.lines.calls import call_at, is_read_by_index, name_of, place_of, position_of

SOURCE = """
def run(look, table, gc, deepcopy, json):
    gc.collect(
        look(1)
    )
    deepcopy(look(2))
    for item in table:
        json.dumps([item, look(3)])
    return table[
        look(4)
    ]
"""


def looked(tmp_path: Path) -> dict[int, tuple[FrameType, int]]:
    """Run SOURCE from a file and return, per call of `look`, its caller's frame and instruction."""
    path = tmp_path / "script.py"
    path.write_text(SOURCE)
    seen: dict[int, tuple[FrameType, int]] = {}

    def look(number: int) -> int:
        frame = sys._getframe(1)
        seen[number] = (frame, frame.f_lasti)
        return 0

    space: dict[str, Any] = {}
    exec(compile(SOURCE, str(path), "exec"), space)
    space["run"](look, [1, 2], gc, copy.deepcopy, json)
    return seen


def test_a_frame_is_named_by_the_call_that_runs(tmp_path: Path) -> None:
    seen = looked(tmp_path)
    for number, line in ((1, 4), (2, 6), (3, 8), (4, 10)):
        frame, instruction = seen[number]
        place = place_of(frame.f_code, instruction, frame.f_globals)
        assert place.line == line
        if sys.version_info >= (3, 11):
            assert place.call == "look()"
        assert place.loops == (((7, 8),) if number == 3 else ())
        assert place.discards == (number != 4), "only what is returned is used"


@pytest.mark.parametrize(
    ("text", "call", "callee"),
    [
        ("gc.collect()", "gc.collect()", "gc.collect"),
        ("deepcopy(model)", "copy.deepcopy()", "copy.deepcopy"),
        ("json.dumps(history)", "json.dumps()", "json.dumps"),
        ("wait(jobs)", "concurrent.futures.wait()", "concurrent.futures._base.wait"),
        ("gelu(x)", "torch._C._nn.gelu()", "torch._C._nn.gelu"),
        ("np.random.choice(9, 3)", "np.random.choice()", "numpy.random"),
        ("print(loss)", "print()", "builtins.print"),
        ("next(self.batches, None)", "next(self.batches)", "builtins.next"),
        ("own(1)", "own()", ""),
        ("table.iloc[3]", "table.iloc[3]", ""),
        ("writer.add_scalar('loss', 1)", "writer.add_scalar()", ""),
    ],
)
def test_names_are_looked_up_where_the_frame_would(tmp_path: Path, text: str, call: str, callee: str) -> None:
    import numpy as np

    path = tmp_path / "train.py"
    path.write_text(f"{text}\n")
    own = eval("lambda n: n", {"__name__": "__main__"})
    own.__module__ = "train_of_the_user"
    space = {
        "gc": gc,
        "deepcopy": copy.deepcopy,
        "json": json,
        "wait": concurrent.futures.wait,
        "gelu": torch.nn.functional.gelu,
        "np": np,
        "own": own,
        "__builtins__": __builtins__,
    }
    found, called = call_at(str(path), (1, 1, 0, len(text)), space)
    assert found == call
    assert called.startswith(callee) if callee else not called


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("kept = copy.deepcopy(model)", "copy.deepcopy()"),
        ("kept = text = json.dumps(history)", "json.dumps()"),
        ("loss = torch.sum(x)", "loss = ..."),
        ("loss = own(x)", "loss = ..."),
        ("kept = copy.deepcopy(x) + 1", "kept = ..."),
    ],
)
def test_what_is_freed_when_a_name_is_given_belongs_to_the_call_of_a_library_that_made_it(
    tmp_path: Path, text: str, call: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"{text}\n")
    own = eval("lambda n: n", {"__name__": "__main__"})
    own.__module__ = "train_of_the_user"
    space = {"copy": copy, "json": json, "torch": torch, "own": own}
    assert call_at(str(path), (1, 1, 0, 4), space)[0] == call


def test_a_loop_is_named_by_what_it_goes_over_and_not_by_its_last_call(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("for batch in loader:\n    train(batch)\n")
    assert call_at(str(path), (1, 2, 0, 16), {})[0] == "loader"


def test_source_that_is_not_there_names_nothing() -> None:
    assert call_at("/nowhere/train.py", (1, 1, 0, 5), {}) == ("", "")


def test_the_way_back_of_a_loop_is_at_the_line_before_it() -> None:
    """It belongs to no line where a condition ends the loop, and is where another thread looks in."""
    text = "def cut(edges, end):\n    found = []\n    for a, b in edges:\n        if a < end:\n"
    text += "            found.append(a)\n            found.append(b)\n    return found\n"
    space: dict[str, Any] = {}
    exec(compile(text, "cut.py", "exec"), space)
    code = space["cut"].__code__
    lines = {
        position_of(code, step.offset)[0]
        for step in dis.get_instructions(code)
        if "JUMP_BACKWARD" in step.opname or "JUMP_ABSOLUTE" in step.opname
    }
    assert lines and lines <= {3, 4, 6}


def test_a_function_is_named_with_its_module() -> None:
    assert name_of(json.dumps.__code__, json.dumps.__globals__) == "json.dumps"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="lines alone do not tell")
@pytest.mark.parametrize(("key", "by_index"), [("0", True), ("k", True), ("'data'", False)])
def test_what_is_read_by_its_name_is_no_row(tmp_path: Path, key: str, *, by_index: bool) -> None:
    path = tmp_path / "data.py"
    path.write_text(f"table[{key}]\n")
    assert is_read_by_index(str(path), (1, 1, 0, len(f"table[{key}]"))) is by_index


@pytest.mark.skipif(sys.version_info < (3, 11), reason="lines alone do not tell")
def test_reading_by_an_index_is_told_from_calls(tmp_path: Path) -> None:
    path = tmp_path / "data.py"
    text = "def row(look, table):\n    return table[0], look(table[1])\n"
    path.write_text(text)
    space: dict[str, Any] = {}
    exec(compile(text, str(path), "exec"), space)
    code = space["row"].__code__
    names = {step.offset: step.opname for step in dis.get_instructions(code)}
    found = {
        name: is_read_by_index(str(path), position_of(code, offset))
        for offset, name in names.items()
        if name in ("RESUME", "BINARY_SUBSCR", "BINARY_OP", "CALL", "BUILD_TUPLE")
    }
    reads = found.pop("BINARY_SUBSCR", None)
    assert reads or found.pop("BINARY_OP"), "3.14 has no instruction of its own for it"
    assert found == {"RESUME": True, "CALL": False, "BUILD_TUPLE": False}
