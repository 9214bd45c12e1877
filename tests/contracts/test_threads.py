"""The benchmark of real threads: its table fits its scripts and the catalogue, its judge can say no."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torch_bottleneck.catalog.registry import FIXES
from torch_bottleneck.model.codes import BottleneckClass

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks" / "threads"
TELLING = re.compile(r"slow|bottleneck|planted|\bbug|cured|wasteful|needless|\bFX\d|\bBN\d", re.IGNORECASE)


@pytest.fixture(scope="module", autouse=True)
def beside_the_runner() -> Iterator[None]:
    """Its modules import each other as scripts of one folder do."""
    before = set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))
    for name in {path.stem for path in FOLDER.glob("*.py")} - before:
        sys.modules.pop(name, None)


def scripts() -> list[Path]:
    return sorted(FOLDER.glob("*/*.py"))


def threads() -> list[Any]:
    from run import SETS

    return [thread for each in SETS.values() for thread in each]


def test_the_table_names_lines_classes_and_fixes_that_exist() -> None:
    tables = threads()
    classes, fixes = {c.value for c in BottleneckClass}, {fix.id for fix in FIXES}
    assert len({t.id for t in tables}) == len(tables)
    for t in tables:
        assert t.path.is_file(), t.id
        assert {*t.verdicts, *t.not_verdicts} <= classes, t.id
        assert {*t.fixes, *t.not_fixes} <= fixes, t.id
        assert t.trap or t.places(), f"{t.id}: a line must be expected"
        assert t.trap != bool(t.fixes or t.no_entry), t.id


def test_every_script_has_one_switch_and_prints_its_step() -> None:
    used = {t.path for t in threads()}
    for path in scripts():
        source = path.read_text()
        ast.parse(source)
        assert not TELLING.search(source), f"{path.name} gives its cause away"
        if path in used:
            assert source.count('os.environ.get("VARIANT", "a")') == 1, path.name
            assert "ms per step" in source, path.name


def diagnosis(**changes: Any) -> dict[str, Any]:
    site = {"file": "/home/me/stereo_depth.py", "line": changes.pop("line", 70), "function": "main"}
    suggestion = {
        "fix": changes.pop("fix", "FX511"), "title": "t", "site": site, "note": False, "bound": False,
        "predicted_ms": 50.0, "saves_ms": 50.0,
    }  # fmt: skip
    return {
        "verdict": {"class": changes.pop("said", "host-bound"), "confidence": "high", "headline": "h"},
        "step": {"true_ms": 100.0},
        "causes": [{"class": "host-bound", "sites": [site], "predicted_ms": 50.0}],
        "suggestions": [suggestion],
    }


@pytest.mark.parametrize(
    ("changes", "fixed_ms", "missed"),
    [
        ({}, 52.0, []),
        ({"said": "compute-bound"}, 52.0, ["verdict"]),
        ({"line": 10}, 52.0, ["line"]),
        ({"fix": "FX414"}, 52.0, ["fix"]),
        ({}, 80.0, ["price"]),
        ({"said": "compute-bound", "fix": "FX414"}, 52.0, ["verdict", "fix", "price"]),
    ],
)
def test_each_part_of_an_answer_is_judged_apart(
    changes: dict[str, Any], fixed_ms: float, missed: list[str]
) -> None:
    from measure import Times
    from score import judge
    from truth import THREADS

    thread = next(t for t in THREADS if t.id == "T29")
    score = judge(thread, Times([100.0], [fixed_ms]), diagnosis(**changes))
    assert score.missed == missed


@pytest.mark.parametrize(
    ("changes", "fallen"),
    [
        ({"said": "compute-bound", "fix": "FX414"}, False),
        ({"said": "input-bound"}, True),
        ({"fix": "FX105"}, True),
    ],
)
def test_a_trap_is_fallen_into_by_a_class_or_by_a_promise(changes: dict[str, Any], *, fallen: bool) -> None:
    from measure import Times
    from score import judge
    from truth import THREADS

    thread = next(t for t in THREADS if t.id == "N10")
    score = judge(thread, Times([100.0], [99.0]), diagnosis(**changes))
    assert bool(score.why) is fallen
    assert score.verdict is not fallen


def test_a_cause_without_effect_here_is_not_counted() -> None:
    from measure import Times
    from score import shows
    from truth import THREADS

    thread, trap = (next(t for t in THREADS if t.id == name) for name in ("T29", "N10"))
    assert shows(thread, Times([100.0, 90.0], [80.0, 75.0])) and not shows(thread, Times([100.0], [95.0]))
    assert shows(trap, Times([100.0], [95.0])) and not shows(trap, Times([100.0], [80.0]))


def test_the_page_of_first_tries_is_that_of_the_reports() -> None:
    """Made anew by `python tests/benchmarks/threads/first_tries.py`; the README tells its sums."""
    import first_tries

    page = first_tries.PAGE.read_text()
    assert page == first_tries.page()
    told = page.partition("**The last ")[2].partition("**")[0]
    readme = (FOLDER.parents[2] / "README.md").read_text().replace("\n", " ")
    for part in ("verdict", "line", "fix", "price"):
        share = re.search(rf"{part} \d+ of \d+ \((\d+)%\)", told)
        assert share is not None
        assert f"{part} {share[1]} %" in readme
