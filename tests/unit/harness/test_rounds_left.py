"""How many rounds loops have left, read from their source and the names of the frame."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torch_bottleneck.harness.lines.rounds_left import rounds_left
from torch_bottleneck.harness.windows.horizon import Horizon


@pytest.fixture
def left_in(tmp_path: Path) -> Callable[..., list[int | None]]:
    """Run source text as a file of the user's, and return what was left at each call of `step()`."""

    def run(source: str, **names: Any) -> list[int | None]:
        file = tmp_path / f"train{len(list(tmp_path.iterdir()))}.py"
        file.write_text(source)
        seen: list[int | None] = []
        # In a test of ours the loops of pytest are around it too, none of which can be read.
        exec(compile(source, str(file), "exec"), {"step": lambda: seen.append(rounds_left()), **names})
        return seen

    return run


ARGS = argparse.Namespace(steps=4)


@pytest.mark.parametrize(
    ("head", "left"),
    [
        ("for i in range(4)", [3, 2, 1, 0]),
        ("for i in range(args.steps)", [3, 2, 1, 0]),
        ("for _ in range(2, 10, 2)", [3, 2, 1, 0]),
        ("for i in range(len(data) * 2 - 4)", [3, 2, 1, 0]),
        ("for i in range(options['steps'])", [3, 2, 1, 0]),
        ("for i, x in enumerate(data, 1)", [3, 2, 1, 0]),
        ("for i, x in enumerate(tqdm(data))", [3, 2, 1, 0]),
        ("for i in tqdm(range(4))", [3, 2, 1, 0]),
        ("for x in data", [None] * 4),
        ("for x in iter(data)", [None] * 4),
    ],
)
def test_the_head_of_a_for_loop_tells(left_in: Callable[..., Any], head: str, left: list[int | None]) -> None:
    names = {"args": ARGS, "options": {"steps": 4}, "data": [1, 2, 3, 4], "tqdm": lambda x: x}
    assert left_in(f"{head}:\n    step()\n", **names) == left


def test_a_name_that_an_inner_loop_takes_tells_nothing_of_the_outer_one(left_in: Callable[..., Any]) -> None:
    inside = left_in("for _ in range(90):\n    for _ in range(2):\n        step()\n")
    assert inside == [1, 0] * 90
    behind = left_in("for _ in range(3):\n    for _ in range(2):\n        pass\n    step()\n")
    assert behind == [None] * 3


def test_loops_around_it_multiply_in_functions_too(left_in: Callable[..., Any]) -> None:
    source = """
def train(epochs, data):
    for epoch in range(epochs):
        for x in data:
            step()

def main():
    for fold in range(2):
        train(3, [1, 2])

main()
"""
    # A list does not tell where its loop is, so that what is left of it counts as nothing.
    assert left_in(source) == [10, 10, 8, 8, 6, 6, 4, 4, 2, 2, 0, 0]


def test_a_break_and_the_test_of_a_while_loop_end_it_where_numbers_can_be_read(
    left_in: Callable[..., Any],
) -> None:
    breaks = "for i in range(1000):\n    if done and i >= 3:\n        break\n    step()\n"
    assert left_in(breaks, done=True) == [3, 2, 1]
    assert left_in("i = 0\nwhile i < 3:\n    i += 1\n    step()\n") == [2, 1, None]
    endless = "i = 0\nwhile True:\n    i += 1\n    if i > 4: break\n    if i % 2 == 0: continue\n    step()\n"
    assert left_in(endless) == [3, 1]


def test_nothing_of_the_program_is_called(left_in: Callable[..., Any]) -> None:
    class Trap:
        @property
        def steps(self) -> int:
            raise AssertionError("a property was read")

        def __getattr__(self, name: str) -> Any:
            raise AssertionError("an attribute was computed")

        def __len__(self) -> int:
            raise AssertionError("a length was asked for")

    over = "for i in range(2):\n    for x in {head}:\n        step()\n"
    for head in ("range(trap.steps if i > 1 else 2)", "[trap.other if i > 1 else 0]"):
        assert left_in(over.format(head=head), trap=Trap())
    stops = "for i in range(2):\n    step()\n    if i > 9 and {test}:\n        break\n"
    for test in ("i == trap.steps", "i == trap.other", "i == len(trap)"):
        assert left_in(stops.format(test=test), trap=Trap()) == [1, 0]


def test_steps_of_several_rounds_and_loaders_whose_epochs_are_counted() -> None:
    horizon = Horizon()
    found = []
    for micro in range(100):
        if micro % 4 == 3:
            horizon.at_cut()
            found.append(horizon.steps_left())
    # The first cut cannot tell how many rounds a step has.
    assert found[1:4] == [23, 22, 21]
    assert found[-1] == 0

    horizon, left = Horizon(), []
    for _epoch in range(5):
        for _ in iter([0, 0, 0, 0]):
            horizon.at_cut()
            left.append(horizon.steps_left())
    assert left[:4] == [None, 4, 8, 12], "each of the four epochs to come has as many as this one so far"
