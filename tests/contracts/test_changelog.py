"""The changelog lists every code and fix under the headings where users look for them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torch_bottleneck.catalog.registry import FIXES
from torch_bottleneck.model.codes import FINDING_CODES

TEXT = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()


def listed(heading: str) -> set[str]:
    """Return the ids under a heading, ranges ("BN101 to BN104") spelt out."""
    section = TEXT.partition(f"### {heading}\n")[2].partition("\n### ")[0]
    found = set(re.findall(r"[A-Z]{2}\d{3}", section))
    for first, last in re.findall(r"([A-Z]{2}\d{3}) to ([A-Z]{2}\d{3})", section):
        found |= {f"{first[:2]}{number}" for number in range(int(first[2:]), int(last[2:]) + 1)}
    return found


@pytest.mark.parametrize(
    ("heading", "ids"),
    [("Findings", set(FINDING_CODES)), ("Catalogue", {fix.id for fix in FIXES})],
    ids=["findings", "fixes"],
)
def test_the_changelog_lists_what_there_is(heading: str, ids: set[str]) -> None:
    assert listed(heading) == ids
