"""What is known of a class, a part, a question or a finding stands in one record, in model/codes.py."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from torch_bottleneck.model.codes import (
    BUDGET_PARTS,
    CLASS_QUESTIONS,
    CLASSES,
    FINDING_CODES,
    FIX_QUESTIONS,
    WHAT_IFS,
    BottleneckClass,
    Part,
    WhatIf,
    class_of,
    count_twice,
    entry_of,
)
from torch_bottleneck.model.finding import NEGLIGIBLE_SHARE

PACKAGE = Path(__file__).resolve().parents[2] / "bottleneck"
RECORDS = "model/codes.py"
_CODE = re.compile(r"BN\d{3}")
_NAMES = frozenset({"BottleneckClass", "Part", "WhatIf"})
_LOOKS = {"reporters/html/palette.py", "review/lane.py"}
"""Colours by part: how a report looks, which no record says."""


def named_codes(source: str) -> list[str]:
    """Return the strings that are finding codes, but for those that a fix says it addresses."""
    if not _CODE.search(source):
        return []
    tree = ast.parse(source)
    addressed = {
        id(item)
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "addresses"
        for item in ast.walk(node.value)
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and _CODE.fullmatch(node.value)
        and id(node) not in addressed
    ]


def tables(source: str) -> list[str]:
    """Return the constants of a module that are dictionaries with classes, parts or questions for keys."""
    return [
        ast.unparse(node.value)[:80]
        for node in (ast.parse(source).body if any(f"{name}." in source for name in _NAMES) else ())
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Dict)
        if sum(_is_name(key) for key in node.value.keys) > 1
    ]


def _is_name(key: ast.expr | None) -> bool:
    return isinstance(key, ast.Attribute) and isinstance(key.value, ast.Name) and key.value.id in _NAMES


def _modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_finding_codes_are_named_by_analyzers_and_records_only() -> None:
    found = {
        place: codes
        for path in _modules()
        if (place := path.relative_to(PACKAGE).as_posix()) != RECORDS and not place.startswith("analyzers/")
        if (codes := named_codes(path.read_text("utf-8")))
    }
    assert found == {}


def test_no_module_keeps_a_table_of_its_own() -> None:
    found = {
        place: kept
        for path in _modules()
        if (place := path.relative_to(PACKAGE).as_posix()) not in {RECORDS, *_LOOKS}
        if (kept := tables(path.read_text("utf-8")))
    }
    assert found == {}


def test_a_code_or_a_table_elsewhere_would_be_found() -> None:
    assert named_codes('SHOWN = ("BN101", "BN102")') == ["BN101", "BN102"]
    assert named_codes('Fix(id="FX101", addresses=("BN101",))') == []
    assert tables("X = {Part.SYNC: 1, Part.INPUT: 2}") != []
    assert tables("X: dict[WhatIf, int] = {WhatIf.TF32: 1, WhatIf.BF16: 2}") != []


@pytest.mark.parametrize(
    ("kind", "records"), [(BottleneckClass, CLASSES), (Part, BUDGET_PARTS), (WhatIf, WHAT_IFS)]
)
def test_every_name_has_a_record(kind: type, records: dict[object, object]) -> None:
    assert list(records) == list(kind)


def test_every_code_has_a_record_under_its_own_name() -> None:
    assert all(code == entry.code for code, entry in FINDING_CODES.items())
    assert list(FINDING_CODES) == sorted(FINDING_CODES)
    assert entry_of("BN999").bottleneck_class is None


def test_no_part_belongs_to_two_classes() -> None:
    owned = [part for entry in CLASSES.values() for part in entry.parts]
    assert len(owned) == len(set(owned))
    assert class_of(Part.COPIES) is BottleneckClass.TRANSFER
    assert class_of(Part.OPTIMIZER) is None
    assert class_of(Part.DEVICE) is None


def test_no_question_prices_two_classes() -> None:
    assert len(set(CLASS_QUESTIONS)) == len(CLASS_QUESTIONS)
    assert WhatIf.DISPATCH_FREE in CLASS_QUESTIONS
    assert WhatIf.DISPATCH_FREE not in FIX_QUESTIONS
    assert count_twice(WhatIf.COMPILED, WhatIf.FUSED_ATTENTION)
    assert not count_twice(WhatIf.SYNCS_GONE, WhatIf.INPUT_READY)


def test_sections_of_a_report_import_no_findings() -> None:
    """What findings and sections share lies below both."""
    for path in sorted((PACKAGE / "analyzers" / "sections").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            assert "findings" not in (getattr(node, "module", None) or ""), path.name


def shares_without_a_name(source: str) -> list[int]:
    """Return the lines of functions that hold 0.02 bare: what is negligible has one name."""
    return [
        node.lineno
        for function in ast.walk(ast.parse(source))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Constant) and node.value == NEGLIGIBLE_SHARE
    ]


@pytest.mark.parametrize("room", ["analyzers", "diagnose", "reporters", "stats"])
def test_what_is_negligible_is_said_by_its_name(room: str) -> None:
    found = {
        path.name: lines
        for path in sorted((PACKAGE / room).rglob("*.py"))
        if (lines := shares_without_a_name(path.read_text("utf-8")))
    }
    assert found == {}
    assert shares_without_a_name("def f(x):\n    return x < 0.02") == [2]
