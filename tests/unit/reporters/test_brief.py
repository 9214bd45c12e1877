"""The brief stays brief, whatever is in the diagnosis, and keeps what counts most."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from unit.reporters.sample import empty, hostile, sample

from torch_bottleneck.model.diagnosis import Diagnosis
from torch_bottleneck.reporters.brief import MOST_CHARACTERS, render

KEYS = {
    "verdict", "also", "confidence", "headline", "why", "remedy", "script", "device", "step_ms",
    "step_interval_ms", "causes", "code", "fixes", "does_not_help", "rest_of_the_job", "capture", "next",
    "left_out",
}  # fmt: skip


@pytest.mark.parametrize("make", [sample, empty, hostile])
def test_it_is_short_and_json_and_has_the_known_keys(make: Any) -> None:
    text = render(make())
    assert len(text) <= MOST_CHARACTERS
    assert set(json.loads(text)) <= KEYS
    assert "\x1b" not in text


def test_it_says_what_the_report_says() -> None:
    diagnosis = sample()
    told = json.loads(render(diagnosis))
    assert told["verdict"] == diagnosis.verdict.bottleneck_class.value
    assert told["step_ms"] == pytest.approx(diagnosis.step.true_ms, rel=1e-3)
    worth = [cause for cause in diagnosis.causes if not cause.negligible]
    assert [row["finding"] for row in told["causes"]] == [cause.code for cause in worth]
    assert told["causes"][0]["costs_ms"] == pytest.approx(worth[0].cost_ms, rel=1e-3)
    assert told["fixes"][0]["fix"] == diagnosis.suggestions[0].fix
    assert told["fixes"][0]["code"]
    assert told["fixes"][0]["predicted_ms"] == pytest.approx(diagnosis.suggestions[0].predicted_ms, rel=1e-3)
    (page,) = told["next"]
    assert page.startswith("bottleneck explain BN")
    able = [msgspec.structs.replace(suggestion, can_try=True) for suggestion in diagnosis.suggestions]
    told = json.loads(render(msgspec.structs.replace(diagnosis, suggestions=tuple(able))))
    assert told["next"] == ["bottleneck verify RUN", page]


def test_what_does_not_fit_is_left_out_from_the_end_and_counted() -> None:
    diagnosis: Diagnosis = sample()
    first = diagnosis.suggestions[0]
    long = msgspec.structs.replace(first, code="x = 1  # a line of code that goes on and on\n" * 39)
    told = json.loads(render(msgspec.structs.replace(diagnosis, suggestions=(first, long, long, long, long))))
    assert told["fixes"][0]["fix"] == first.fix
    assert told["left_out"]["fixes"] == 4 - len(told["fixes"]) > 0
    assert len(told["causes"]) == len(json.loads(render(diagnosis))["causes"])
