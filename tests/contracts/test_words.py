"""Times and shares are worded in one place, so that a report shows one number in one way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import torch_bottleneck
from torch_bottleneck.model.words import milliseconds, ms, shorten

PACKAGE = Path(torch_bottleneck.__file__).parent
OWN_WORDING = re.compile(r"\{[^{}]*:,?\.\d[fg]\} ms|\{[^{}]*:\.\d%\}")
APART = ("model/words.py", "harness/", "cli/")
"""The one place; progress lines during a run; tables of options."""


@pytest.mark.parametrize(
    "file",
    [f for f in sorted(PACKAGE.rglob("*.py")) if not f.relative_to(PACKAGE).as_posix().startswith(APART)],
    ids=lambda file: file.relative_to(PACKAGE).as_posix(),
)
def test_no_module_words_a_time_or_a_share_of_its_own(file: Path) -> None:
    assert OWN_WORDING.findall(file.read_text()) == []


def test_the_search_finds_what_it_looks_for() -> None:
    assert OWN_WORDING.search('f"{row.ms:.2f} ms per step"')
    assert OWN_WORDING.search('f"{share:.0%} of the step"')


@pytest.mark.parametrize("value", [0.0421, 0.5, 3.14159, 41.2, 412.04, 12_345.6])
def test_with_its_unit_a_time_is_worded_as_without(value: float) -> None:
    assert ms(value) == f"{milliseconds(value)} ms"


def test_a_long_name_keeps_its_beginning_and_its_end() -> None:
    cut = shorten("a" * 100 + "z" * 100, 60)
    assert len(cut) == 60
    assert cut.startswith("a" * 40)
    assert cut.endswith("…" + "z" * 19)
