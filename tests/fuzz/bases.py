"""Small documents from recorded runs, to be damaged: the seeds of the fuzzing.

In: the folders of tests/recorded. Out: values as their files hold them.
"""

from __future__ import annotations

import gzip
import json
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from torch_bottleneck.compare.baseline_file import baseline_text
from torch_bottleneck.compare.sides import read_side
from torch_bottleneck.diagnose import diagnose_paths

RECORDED = Path(__file__).parents[1] / "recorded"
RUNS = ("cpu-pairwise-temporaries", "cpu-dense-embedding", "example-launch-bound", "memory-oom-caught-h200")
SNAPSHOTS = ("memory-oom-fragmented-h200", "memory-oom-caught-h200")
DIAGNOSED = ("cpu-dense-embedding", "memory-oom-caught-h200", "cpu-pairwise-temporaries")
_MOST_EVENTS = 500
CONFIG = """\
[project]
name = "x"
dependencies = ["torch>=2.6"]

[tool.bottleneck.gate]
times = "gate"
time-tolerance = 0.05
undecided = "ok"
history = "history"
history-runs = 12
allow = ["torch"]

[tool.bottleneck.gate.counters]
synchronisations = { tolerance = 0.1, slack = 2, gate = false }
"""


def _shortened(trace: dict[str, Any]) -> dict[str, Any]:
    """Keep the names of threads, and the events of the first steps."""
    events = trace["traceEvents"]
    if len(events) <= _MOST_EVENTS:
        return trace
    named = [event for event in events if event.get("ph") == "M"]
    timed = sorted((event for event in events if event.get("ph") == "X"), key=lambda event: event["ts"])
    end = timed[_MOST_EVENTS]["ts"]
    steps = [event for event in timed if event["name"].startswith("ProfilerStep")]
    kept = [event for event in timed if event["ts"] < end and event not in steps]
    return trace | {"traceEvents": named + steps + kept}


def _traces(name: str) -> dict[str, Any]:
    files = sorted((RECORDED / name).glob("trace/*.json.gz"))
    return {file.stem: _shortened(json.loads(gzip.decompress(file.read_bytes()))) for file in files}


def _with_shapes(trace: dict[str, Any]) -> dict[str, Any]:
    """Add what `record_shapes` writes, by which FLOPs are counted; the recorded runs were without it."""
    shapes = {
        "Input Dims": [[8, 16], [16, 32]],
        "Input type": ["float", "float"],
        "Concrete Inputs": ["", ""],
    }
    events = [
        event | {"args": event.get("args", {}) | shapes} if event.get("name") == "aten::mm" else event
        for number, event in enumerate(trace["traceEvents"])
        if number % 20 == 0 or event["ph"] != "X" or event["name"].startswith(("ProfilerStep", "aten::mm"))
    ]
    return trace | {"record_shapes": 1, "traceEvents": events}


@cache
def traces() -> list[Any]:
    """Return the traces of small runs, with and without a GPU, and one with shapes."""
    found = [trace for name in RUNS for trace in _traces(name).values()]
    return [*found, _with_shapes(found[0])]


@cache
def runs() -> list[dict[str, Any]]:
    """Return run folders: the path of each file in it -> what it holds; traces and notes are JSON too."""
    found = []
    for name in RUNS:
        files = [file for file in (RECORDED / name).glob("*.json") if file.name != "truth.json"]
        run: dict[str, Any] = {file.name: json.loads(file.read_text("utf-8")) for file in files}
        run["run.json"]["artefacts"]["trace"] = {"status": "ok", "path": None}
        run |= {f"trace/{file}": trace for file, trace in _traces(name).items()}
        for file in (RECORDED / name).glob("memory/*.notes.json"):
            run[f"memory/{file.name}"] = json.loads(file.read_text("utf-8"))
        found.append(run)
    return found


@cache
def snapshots() -> list[Any]:
    """Return the contents of memory snapshots."""
    files = [file for name in SNAPSHOTS for file in (RECORDED / name).glob("memory/*.oom.snapshot.pickle.gz")]
    found = [pickle.loads(gzip.decompress(file.read_bytes())) for file in files]
    return [json.loads(json.dumps(content)) for content in found]  # nothing in it twice


@cache
def diagnoses() -> list[Any]:
    """Return diagnoses as diagnosis.json holds them."""
    found = [diagnose_paths([RECORDED / name]) for name in DIAGNOSED]
    return [json.loads(msgspec.json.encode(diagnosis)) for diagnosis in found]


@cache
def watched() -> dict[str, Any]:
    """Return the files of a watched job's run folder."""
    folder = RECORDED / "watched" / "run"
    return {name: json.loads((folder / name).read_text("utf-8")) for name in ("watch.json", "run.json")}


@cache
def baselines() -> list[Any]:
    """Return baselines as `gate --update-baseline` writes them."""
    sides = [read_side([RECORDED / name]) for name in (*DIAGNOSED[:2], "watched/run")]
    return [json.loads(baseline_text(side.baseline)) for side in sides]
