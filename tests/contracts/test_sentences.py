"""No decision reads a sentence: with gibberish for all that people read, every answer stays the same."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.golden import decisions, sentences
from gibberish import MARK, PACKAGE, copy_with_gibberish
from recorded.diagnosed import diagnosis_of

CASES = (
    "alloc-cap-h200",
    "breaks-h200",
    "case-recompiles-by-shape",
    "cpu-anomaly-mode",
    "cpu-background-decoder",
    "cpu-compiled-branches",
    "cpu-eval-every-20",
    "cpu-gc-collect",
    "cpu-loss-in-numpy",
    "cpu-one-worker",
    "cpu-per-sample-gradients",
    "cpu-replay-deque",
    "cpu-samples-in-python",
    "cpu-short-epochs",
    "ddp-straggler-h200",
    "empty-cache-h200",
    "example-allocator-thrashing",
    "example-graph-breaks-cpu",
    "example-transfer-bound",
    "launch-h200",
    "sync-harmless-h200",
)
"""GPU and CPU, compiled and not, several ranks, memory, loops, rare work, doubtful captures."""

_ANSWERS = """
import json, sys
from pathlib import Path
import torch_bottleneck
assert Path(torch_bottleneck.__file__).parent == Path(sys.argv[1]), torch_bottleneck.__file__
from golden import CASES, decisions, sentences
from torch_bottleneck.diagnose import diagnose_paths
out = {}
for name in sys.argv[2:]:
    found = diagnose_paths([CASES[name].folder])
    out[name], out["sentences " + name] = decisions(found), sentences(found)
print(json.dumps(out))
"""


def answers(package: Path, *names: str) -> dict[str, Any]:
    """Return what a copy of the package says about recorded runs: decisions, and apart its sentences."""
    benchmarks = Path(__file__).resolve().parents[1] / "benchmarks"
    path = os.pathsep.join([str(package.parent), str(benchmarks)])
    done = subprocess.run(
        [sys.executable, "-c", _ANSWERS, str(package), *names],
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def plain(name: str) -> Any:
    """Return what the package says as it is, as JSON gives it back."""
    return json.loads(json.dumps(decisions(diagnosis_of(name))))


def test_gibberish_for_every_sentence_changes_no_code_grade_rank_or_figure(tmp_path: Path) -> None:
    package = tmp_path / "torch_bottleneck"
    assert copy_with_gibberish(package) > 1000
    gibberish = answers(package, *CASES)
    for name in CASES:
        assert gibberish[name] == plain(name), name
        assert all(MARK in text for text in gibberish[f"sentences {name}"])
        assert not any(MARK in text for text in sentences(diagnosis_of(name)))


@pytest.mark.parametrize(
    ("module", "by_code", "by_sentence", "case"),
    [
        (
            "analyzers/capture.py",
            "if doubt.code in _LOWER_THE_GRADE",
            'if doubt.text.startswith(("The traced steps differ", "The machine was busy", "Threads wait"))',
            "cpu-short-epochs",
        ),
        (
            "analyzers/sections/context.py",
            "if span.kind in kinds)",
            'if span.what in ("Python after forward", "Python in backward"))',
            "cpu-replay-deque",
        ),
    ],
)
def test_a_decision_by_a_sentence_would_be_found(
    tmp_path: Path, module: str, by_code: str, by_sentence: str, case: str
) -> None:
    """The same rewriting of a copy that decides by a sentence again changes its answer."""
    package = tmp_path / "torch_bottleneck"
    copy_with_gibberish(package)
    path = package / module
    before = path.read_text("utf-8")
    assert by_code in before
    path.write_text(before.replace(by_code, by_sentence), "utf-8")
    assert answers(package, case)[case] != plain(case)


_SENTENCES = frozenset(
    {"headline", "reason", "remedy", "text", "basis", "what", "detail", "problems", "notes"}
)
"""Fields that hold what people read."""
_TESTS = frozenset({"startswith", "endswith", "find", "index", "count"})


def questions_to_sentences(source: str) -> list[str]:
    """Return where a program asks what a sentence says: `x.reason in y`, `x.text.startswith(y)`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        asked: list[ast.expr] = []
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn, ast.Eq, ast.NotEq)):
            asked = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _TESTS:
            asked = [node.func.value]
        if any(isinstance(item, ast.Attribute) and item.attr in _SENTENCES for item in asked):
            found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("room", ["timeline", "analyzers", "catalog", "diagnose", "reporters", "model"])
def test_nobody_asks_what_a_sentence_says(room: str) -> None:
    found = {
        str(path.relative_to(PACKAGE)): asked
        for path in sorted((PACKAGE / room).rglob("*.py"))
        if (asked := questions_to_sentences(path.read_text("utf-8")))
    }
    assert found == {}


def test_who_asks_is_found() -> None:
    assert questions_to_sentences("verdict.reason not in verdict.headline") != []
    assert questions_to_sentences("doubt.text.startswith('The machine')") != []
    assert questions_to_sentences("text = doubt.text; doubt.code in codes") == []
