"""Lines of reads: told exactly, gone without a trace, neutral to compiled code."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch
from torch import profiler

from torch_bottleneck.harness.lines.read_lines import READ_LABEL, ReadLines


@pytest.fixture
def lines():
    watch = ReadLines()
    watch.start()
    yield watch
    watch.stop()


def labels(run) -> list[str]:
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU]) as session:
        run()
    return [event.name for event in session.events() if event.name.startswith(READ_LABEL)]


def this_line() -> int:
    return sys._getframe(1).f_lineno


def test_each_way_of_reading_is_labelled_with_the_line_that_reads(lines):
    value = torch.tensor(2.0)
    first = this_line()

    def reads():
        value.item()
        float(value)
        int(value)
        bool(value)
        value.tolist()
        return [0, 1, 2][torch.tensor(1)]

    found = labels(reads)
    numbers = [int(label.rpartition("(")[2].partition(")")[0]) for label in found]
    assert sorted(set(numbers)) == [first + i for i in range(3, 9)]
    assert all(label.startswith(f"{READ_LABEL}{__file__}(") and label.endswith("): reads") for label in found)


def test_a_read_inside_a_library_names_the_line_that_led_there(lines):
    value = torch.tensor([1.0, 2.0])
    found = labels(lambda: str(value))
    assert found
    assert all("<lambda>" in label and __file__ in label for label in found)


def test_reading_gives_what_it_gave(lines):
    assert torch.tensor(3).item() == 3
    assert float(torch.tensor(1.5)) == 1.5
    assert not torch.tensor(0)
    with pytest.raises(RuntimeError, match="Boolean value"):
        bool(torch.tensor([1, 2]))


def test_stopping_leaves_the_class_as_it_was():
    before = dict(vars(torch.Tensor))
    watch = ReadLines()
    watch.start()
    watch.start()
    assert dict(vars(torch.Tensor)) != before
    watch.stop()
    watch.stop()
    assert dict(vars(torch.Tensor)) == before


COMPILED = """
    import torch
    from torch._dynamo.utils import counters
    from torch_bottleneck.harness.lines.read_lines import ReadLines

    @torch.compile(backend="eager")
    def step(x):
        y = x * 2
        if y.sum().item() > 0:
            y = y + 1
        return y

    x = torch.ones(4)
    for _ in range(3):
        step(x)
    before = {group: dict(counts) for group, counts in counters.items()}
    watch = ReadLines()
    watch.start()
    for _ in range(3):
        step(x)
    watch.stop()
    step(x)
    after = {group: dict(counts) for group, counts in counters.items()}
    assert after == before, (before, after)

    @torch.compile(backend="eager")
    def other(x):
        return x.sum().item() + 1

    watch.start()
    other(x)
    watch.stop()
    count = counters["stats"]["unique_graphs"]
    other(x)
    assert counters["stats"]["unique_graphs"] == count, "compiled under it, it holds without it"
"""


def test_compiled_code_neither_sees_it_nor_is_compiled_again():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(COMPILED)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
