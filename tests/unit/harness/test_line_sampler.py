"""A sample of the producing belongs to the user's line, or to what torch or another library does there."""

from __future__ import annotations

import abc
import sys
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset
from torch.utils.data._utils.collate import default_collate

from torch_bottleneck.harness.lines.calls import Position
from torch_bottleneck.harness.lines.frames import Frame
from torch_bottleneck.harness.lines.line_sampler import Line, _user_line, as_sites, rows_share
from torch_bottleneck.harness.loading import worker

TIMED = next(
    code
    for code in worker.time_fetcher.__code__.co_consts
    if isinstance(code, CodeType) and code.co_name == "timed_fetch"
)
TORCHS = "torch.utils.data"


def frame_of(function: Any, module: str) -> Frame:
    code = function if isinstance(function, CodeType) else function.__code__
    return Frame(code, 0, code.co_firstlineno, {"__name__": module})


LOADING = [frame_of(TIMED, "torch_bottleneck.harness.loading.worker")]
FETCHED = [frame_of(TensorDataset.__getitem__, "torch.utils.data.dataset"), *LOADING]
COLLATED = [frame_of(default_collate, "torch.utils.data._utils.collate"), *LOADING]


@pytest.mark.parametrize(
    ("stack", "name"),
    [
        (FETCHED, TORCHS),
        ([frame_of(abc.ABCMeta.__instancecheck__, "abc"), *COLLATED], TORCHS),
        ([frame_of(pytest.approx, "decoder.images"), *LOADING], "decoder.images.approx"),
        # What a library calls is that library's.
        (
            [
                frame_of(abc.ABCMeta.__instancecheck__, "abc"),
                frame_of(pytest.raises, "decoder.codec"),
                frame_of(pytest.approx, "decoder.images"),
                *LOADING,
            ],
            "decoder.images.approx",
        ),
    ],
    ids=["rows", "collate", "library", "below a library"],
)
def test_without_a_line_of_the_user_s_it_is_the_library_that_torch_calls(
    stack: list[Frame], name: str
) -> None:
    line = _user_line(stack)
    assert line is not None
    assert line[:2] == ("", name)


def test_the_innermost_line_of_the_user_s_comes_first() -> None:
    def decode() -> None: ...

    assert isinstance(decode, FunctionType)
    line = _user_line([frame_of(pytest.approx, "decoder"), frame_of(decode, "data"), *LOADING])
    assert line is not None
    assert line[:2] == (__file__, "decode")


def test_rows_are_what_torch_does_and_no_library_s_work() -> None:
    at = (0, None, None, None)
    counts: dict[Line, int] = {
        ("", TORCHS, at): 6,
        ("", "torch.storage.share", at): 1,
        ("", "PIL.open", at): 3,
    }
    assert rows_share(counts) == pytest.approx(0.7)
    assert rows_share({}) is None


def test_an_index_is_a_row_s_in_what_gives_the_row_and_work_in_what_is_called_for_it(tmp_path: Path) -> None:
    file = tmp_path / "molecules.py"
    file.write_text("gap = places[i] - places[j]\n")
    at = (1, 1, 6, 15)
    lines = [(str(file), function, at) for function in ("__getitem__", "<listcomp>", "pairs", "collate")]
    assert [rows_share({line: 1}) for line in lines] == [1.0, 1.0, 0.0, 0.0]


def test_a_line_that_workers_run_is_told_with_the_library_function_that_it_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "import torch as t\n\ndef collate(rows):\n    return t.tensor(rows)\n"
    file = tmp_path / "batches.py"
    file.write_text(source)
    at: Position = (4, 4, 11, 25)
    (unknown,) = as_sites({(str(file), "collate", at): 3})
    assert (unknown.call, unknown.callee) == ("t.tensor()", "")
    module = ModuleType("batches")
    module.__file__, module.__dict__["t"] = str(file), torch
    monkeypatch.setitem(sys.modules, "batches", module)
    (known,) = as_sites({(str(file), "collate", at): 3})
    assert known.callee.endswith("tensor")
    assert known.callee.startswith("torch.")
