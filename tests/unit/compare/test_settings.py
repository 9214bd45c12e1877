"""[tool.bottleneck.gate]: found, understood, schema-checked; misspelt names are errors."""

from __future__ import annotations

import json

import jsonschema
import pytest

from torch_bottleneck.compare.settings import find_settings, read_settings, with_options
from torch_bottleneck.errors import BottleneckError
from torch_bottleneck.model.gate import (
    GATE_SCHEMA_FILE,
    CounterLimit,
    GateSettings,
    gate_schema,
    gate_schema_text,
)

TABLE = """
[tool.bottleneck.gate]
repeat = 5
baseline-steps = 12
times = "report"
time-tolerance = 0.1
undecided = "ok"
allow = ["torch"]
history = "reports/history"

[tool.bottleneck.gate.counters]
operators = { tolerance = 0.1 }
flops = { gate = false }
syncs = { slack = 2 }
"""


def written(tmp_path, text: str):
    file = tmp_path / "pyproject.toml"
    file.write_text(text)
    return file


def test_every_setting_is_read(tmp_path):
    found = read_settings(written(tmp_path, TABLE))
    assert (found.repeat, found.baseline_steps, found.times, found.undecided) == (5, 12, "report", "ok")
    assert (found.time_tolerance, found.allow, found.history) == (0.1, ("torch",), "reports/history")
    assert found.counters["operators"] == CounterLimit(tolerance=0.1)
    assert found.counters["flops"] == CounterLimit(gate=False)


def test_the_nearest_table_upwards_counts_and_no_table_is_the_defaults(tmp_path):
    written(tmp_path, TABLE)
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "a" / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert find_settings(inner).repeat == 5
    (inner / ".git").mkdir()
    assert find_settings(inner) == GateSettings(), "another repository's settings are not ours"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[tool.bottleneck.gate]\nrepeats = 3", "repeat"),
        ("[tool.bottleneck.gate.counters]\nsync = {}", "syncs"),
        ("[tool.bottleneck.gate.counters]\nsyncs = { tolerence = 1 }", "tolerence"),
        ("[tool.bottleneck.gate]\nrepeat = 0", "repeat"),
        ("[tool.bottleneck.gate]\ntimes = 'sometimes'", "times"),
        ("[tool.bottleneck]\ngate = 3", "not a table"),
        ("[tool.bottleneck.gate", "not valid TOML"),
    ],
)
def test_what_is_wrong_is_said_with_the_file(tmp_path, text, says):
    file = written(tmp_path, text)
    with pytest.raises(BottleneckError) as caught:
        read_settings(file)
    assert says in str(caught.value)
    assert str(file) in str(caught.value)


def test_options_win_and_what_is_not_given_stays(tmp_path):
    found = with_options(
        read_settings(written(tmp_path, TABLE)), repeat=7, times=None, ungated=("syncs", "kernels")
    )
    assert (found.repeat, found.times) == (7, "report")
    assert found.counters["syncs"] == CounterLimit(slack=2, gate=False)
    assert not found.counters["kernels"].gate


def test_the_schema_is_fresh_and_accepts_what_we_accept(tmp_path):
    import sys

    toml = __import__("tomllib" if sys.version_info >= (3, 11) else "tomli")
    assert GATE_SCHEMA_FILE.read_text() == gate_schema_text(), "run: make schema"
    table = toml.loads(TABLE)["tool"]["bottleneck"]["gate"]
    schema = json.loads(gate_schema_text())
    assert schema == json.loads(json.dumps(gate_schema()))
    jsonschema.validate(table, schema)
    for name, definition in schema["$defs"]["GateSettings"]["properties"].items():
        assert definition.get("description"), name
    for wrong in ({"repeats": 3}, {"counters": {"sync": {}}}, {"repeat": 0}, {"times": "never"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
