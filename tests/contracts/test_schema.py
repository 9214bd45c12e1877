"""The shipped JSON Schema is fresh, strict enough to catch mistakes, and what we write obeys it."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import jsonschema
import pytest
from unit.reporters.sample import empty, hostile, sample

from torch_bottleneck.errors import InputError
from torch_bottleneck.model import schema as schemas
from torch_bottleneck.model.diagnosis import SCHEMA, Diagnosis
from torch_bottleneck.model.documents import load_diagnosis
from torch_bottleneck.model.watch import Watch
from torch_bottleneck.reporters import json as json_reporter


def shipped() -> dict[str, Any]:
    text = resources.files("torch_bottleneck.model").joinpath("diagnosis.schema.json").read_text()
    schema: dict[str, Any] = json.loads(text)
    return schema


def test_the_shipped_schema_is_fresh() -> None:
    assert schemas.shipped(Diagnosis).read_text() == schemas.schema_text(Diagnosis), "run: make schema"
    assert shipped() == json.loads(json.dumps(schemas.schema_of(Diagnosis)))


def test_the_shipped_schema_of_a_watched_job_is_fresh_and_valid() -> None:
    assert schemas.shipped(Watch).read_text() == schemas.schema_text(Watch), "run: make schema"
    jsonschema.Draft202012Validator.check_schema(schemas.schema_of(Watch))


def test_the_schema_is_itself_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(shipped())


@pytest.mark.parametrize("make", [sample, empty, hostile])
def test_what_is_written_obeys_the_schema(make: Any) -> None:
    jsonschema.validate(json.loads(json_reporter.render(make())), shipped())


@pytest.mark.parametrize(
    "path",
    [
        "schema",
        "verdict.class",
        "verdict.confidence",
        "verdict.headline",
        "verdict.also",
        "step.true_ms",
        "step.true_ci_ms",
        "step.profiled_ms",
        "step.count",
        "budget.0.part",
        "budget.0.ms",
        "budget.0.share",
        "causes.0.class",
        "causes.0.code",
        "causes.0.cost_ms",
        "causes.0.predicted_ms",
        "findings.0.code",
        "suggestions.0.fix",
        "suggestions.0.title",
        "suggestions.0.predicted_ms",
        "suggestions.0.basis",
        "suggestions.0.how",
        "capture.quality",
        "capture.overhead",
        "capture.replay_error",
        "settings",
        "device",
    ],
)
def test_the_fields_that_others_rely_on_are_always_written(path: str) -> None:
    value: Any = json.loads(json_reporter.render(sample()))
    for key in path.split("."):
        value = value[int(key)] if key.isdigit() else value[key]


def broken(change: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json_reporter.render(sample()))
    change(document)
    return document


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["verdict"].update({"class": "slow"}),
        lambda d: d["verdict"].pop("headline"),
        lambda d: d["budget"][0].update({"ms": "many"}),
        lambda d: d.pop("step"),
        lambda d: d["suggestions"][0].update({"risk": "none at all"}),
        lambda d: d["capture"].update({"quality": "excellent"}),
    ],
    ids=["class", "headline", "ms", "step", "risk", "quality"],
)
def test_a_wrong_document_is_refused_by_schema_and_reader_alike(change: Any, tmp_path: Any) -> None:
    document = broken(change)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, shipped())
    path = tmp_path / "diagnosis.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"is not a diagnosis\.json"):
        load_diagnosis(path)


def test_a_newer_schema_is_refused_with_the_remedy(tmp_path: Any) -> None:
    path = tmp_path / "diagnosis.json"
    path.write_text(json.dumps(broken(lambda d: d.update({"schema": SCHEMA + 1}))))
    with pytest.raises(InputError, match="Upgrade torch-bottleneck"):
        load_diagnosis(path)


def test_fields_of_a_later_minor_version_are_ignored(tmp_path: Any) -> None:
    path = tmp_path / "diagnosis.json"
    path.write_text(json.dumps(broken(lambda d: d.update({"later": 1}))))
    assert load_diagnosis(path) == sample()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'"diagnosis"', b"null"])
def test_what_is_no_diagnosis_is_refused(content: bytes, tmp_path: Any) -> None:
    path = tmp_path / "diagnosis.json"
    path.write_bytes(content)
    with pytest.raises(InputError):
        load_diagnosis(path)


def test_a_folder_without_a_diagnosis_says_how_to_make_one(tmp_path: Any) -> None:
    with pytest.raises(InputError, match="bottleneck analyze"):
        load_diagnosis(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        load_diagnosis(tmp_path / "missing.json")
