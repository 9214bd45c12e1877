"""Every finding code has an analyzer whose docstring is a whole page of the manual."""

from __future__ import annotations

import inspect
import re

import pytest

from torch_bottleneck.analyzers import HEADINGS, REGISTRY, explain
from torch_bottleneck.errors import UsageError
from torch_bottleneck.model.codes import FINDING_CODES


def test_every_code_has_its_analyzer_and_no_analyzer_is_without_a_code():
    live = {code for code, entry in FINDING_CODES.items() if entry.status != "removed"}
    assert set(REGISTRY) == live


def test_finding_codes_are_append_only():
    """Retire a code with status "removed"; never drop, renumber or rename it."""
    for code, name in {
        "BN001": "capture-quality-too-low",
        "BN101": "waiting-for-input",
        "BN201": "allocator-in-critical-path",
        "BN203": "page-faults-each-step",
        "BN301": "device-busy",
        "BN401": "graph-breaks",
        "BN402": "recompiles-in-steady-state",
        "BN501": "dispatch-decides",
        "BN601": "synchronisation-stalls",
        "BN701": "blocking-copy",
        "BN801": "exposed-communication",
        "BN901": "other-host-work",
    }.items():
        assert FINDING_CODES[code].name == name


@pytest.mark.parametrize("code", sorted(REGISTRY))
def test_a_page_has_every_heading_in_order_with_text_under_each(code):
    text = inspect.getdoc(REGISTRY[code]) or ""
    positions = [text.find(f"\n{heading}\n") for heading in HEADINGS]
    assert all(position > 0 for position in positions), f"{code} lacks a heading"
    assert positions == sorted(positions)
    sections = re.split("|".join(f"\n{heading}\n" for heading in HEADINGS), text)
    assert all(len(section.strip()) > 20 for section in sections), f"{code} has an empty section"
    assert max(map(len, text.splitlines())) <= 100


def test_explain_prints_the_page_and_knows_what_it_does_not_know():
    assert explain("bn101").startswith("BN101 waiting-for-input (input-bound)")
    with pytest.raises(UsageError, match="BN999"):
        explain("BN999")
