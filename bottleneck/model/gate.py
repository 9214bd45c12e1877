"""Settings of the gate: the table [tool.bottleneck.gate] of a project's pyproject.toml.

In: nothing. Out: `GateSettings` and its JSON Schema, which ships as `gate.schema.json`;
`python -m torch_bottleneck.model.gate` writes it anew and a test keeps it fresh.
"""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from .counters import COUNTERS

GATE_SCHEMA_FILE = Path(__file__).with_name("gate.schema.json")

Share = Annotated[float, msgspec.Meta(ge=0.0)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class CounterLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How far one counter may grow: to base x (1 + tolerance) + slack."""

    tolerance: Share | None = None
    """Relative to the base. Default: as `bottleneck compare --help` lists."""
    slack: Share | None = None
    """In the counter's own unit."""
    gate: bool = True
    """False: only reported, never a failure."""


class GateSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="kebab"):
    """[tool.bottleneck.gate]; options of the command line win over it."""

    repeat: Count = 3
    """Runs per side."""
    warmup: Annotated[int, msgspec.Meta(ge=0)] = 8
    """Steps skipped first; fixed, so that the same steps are counted each time."""
    baseline_steps: Annotated[int, msgspec.Meta(ge=2)] = 20
    """Steps timed without a profiler."""
    steps: Annotated[int, msgspec.Meta(ge=1)] = 4
    """Steps traced."""
    times: Literal["auto", "gate", "report", "off"] = "auto"
    """gate: the step time counts for the outcome. report: it is only reported. off: it is not
    compared. auto: gate if the runs of both sides were made in turns, otherwise report. With fewer
    than three runs per side, a step that is slower than its noise explains makes the outcome
    undecided."""
    time_tolerance: Annotated[float, msgspec.Meta(gt=0.0, lt=10.0)] = 0.05
    """Increase of the step time that matters, relative."""
    undecided: Literal["stop", "ok", "fail"] = "stop"
    """Exit code if the outcome is undecided: stop 3, ok 0, fail 1."""
    allow: tuple[Literal["device", "batch", "world-size", "torch", "step"], ...] = ()
    """What may differ between the sides."""
    history: str | None = None
    """Folder of the rolling history."""
    history_runs: Annotated[int, msgspec.Meta(ge=8)] = 20
    """Number of runs of the history in which a trend is searched."""
    counters: dict[str, CounterLimit] = {}
    """Counter -> its limit; names as in `bottleneck compare --help`."""


def _descriptions(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return what the docstring under each field says, by the field's encoded name."""
    (tree,) = ast.parse(inspect.getsource(struct)).body
    assert isinstance(tree, ast.ClassDef)
    names = {field.name: field.encode_name for field in msgspec.structs.fields(struct)}
    out: dict[str, str] = {}
    for field, text in pairwise(tree.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            told = text.value if isinstance(text, ast.Expr) else None
            if isinstance(told, ast.Constant) and isinstance(told.value, str):
                out[names[field.target.id]] = " ".join(told.value.split())
    return out


def gate_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of [tool.bottleneck.gate]."""
    schema = msgspec.json.schema(GateSettings)
    for struct in (GateSettings, CounterLimit):
        properties = schema["$defs"][struct.__name__]["properties"]
        for name, text in _descriptions(struct).items():
            properties[name]["description"] = text
    definition = schema["$defs"]["GateSettings"]
    definition["properties"]["counters"]["propertyNames"] = {"enum": sorted(COUNTERS)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "[tool.bottleneck.gate] of pyproject.toml",
        **schema,
    }


def gate_schema_text() -> str:
    """Return the text of `gate.schema.json`."""
    compact = msgspec.json.encode(gate_schema(), order="sorted")
    return msgspec.json.format(compact, indent=2).decode() + "\n"


if __name__ == "__main__":
    GATE_SCHEMA_FILE.write_text(gate_schema_text(), encoding="utf-8")
