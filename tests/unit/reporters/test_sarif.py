"""SARIF as code scanning takes it: results at lines, with rules, and nothing hostile in them."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
from unit.reporters.sample import empty, hostile, sample

from torch_bottleneck.model.codes import entry_of
from torch_bottleneck.model.run import SourceSite
from torch_bottleneck.reporters.sarif import render


def _run(text: str) -> dict[str, Any]:
    log = json.loads(text)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(set(rules)) == len(rules)
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        assert result["message"]["text"]
        for location in result.get("locations", ()):
            place = location["physicalLocation"]
            assert place["region"]["startLine"] >= 1
            assert place["artifactLocation"]["uri"].isascii()
    return dict(run)


@pytest.mark.parametrize("make", [sample, empty, hostile])
def test_it_is_what_the_schema_asks_for(make: Any) -> None:
    _run(render(make()))
    assert "\\u001b" not in render(make())


def test_a_cause_stands_at_its_lines_and_the_first_is_the_warning() -> None:
    diagnosis = sample()
    results = _run(render(diagnosis))["results"]
    causes = [c for c in diagnosis.causes if not c.negligible and not entry_of(c.code).is_work]
    assert [result["ruleId"] for result in results] == [cause.code for cause in causes]
    assert [result["level"] for result in results] == ["warning", *["note"] * (len(results) - 1)]
    for cause, result in zip(causes, results, strict=True):
        places = [location["physicalLocation"] for location in result.get("locations", ())]
        assert [place["region"]["startLine"] for place in places] == [site.line for site in cause.sites]
        assert all(place["artifactLocation"]["uri"] for place in places)


def test_a_file_is_relative_to_where_the_script_was_started_and_a_name_is_encoded() -> None:
    diagnosis = sample()
    cause = msgspec.structs.replace(
        diagnosis.causes[0], sites=(SourceSite(file="/home/me/a b%/train.py", line=3, function="f"),)
    )
    diagnosis = msgspec.structs.replace(diagnosis, causes=(cause,), findings=(), command=("train.py",))
    (result,) = _run(render(diagnosis))["results"]
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert unquote(uri) == "train.py"


def test_the_fingerprint_outlives_the_numbers() -> None:
    diagnosis = sample()
    causes = tuple(msgspec.structs.replace(cause, cost_ms=2 * cause.cost_ms) for cause in diagnosis.causes)
    marks = []
    for each in (diagnosis, msgspec.structs.replace(diagnosis, causes=causes)):
        marks.append([result["partialFingerprints"] for result in _run(render(each))["results"]])
    assert marks[0] == marks[1]
    assert len({json.dumps(mark) for mark in marks[0]}) == len(marks[0])
