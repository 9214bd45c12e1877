"""The adapted copy of a trace: complete, bounded, readable by the plugin; the trace itself untouched."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from recorded.cases import CASES
from recorded.diagnosed import diagnosis_of

from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.errors import NotATraceError
from torch_bottleneck.review.copy import Copied, copy_trace


def copy(name: str, target: Path, **options: Any) -> tuple[Copied, dict[str, Any], dict[str, Any]]:
    source = CASES[name].traces[0]
    before = hashlib.sha256(source.read_bytes()).hexdigest()
    copied = copy_trace(source, target / "rank_0.pt.trace.json.gz", lane=lambda *_: [], **options)
    assert hashlib.sha256(source.read_bytes()).hexdigest() == before
    return (
        copied,
        json.loads(gzip.decompress(copied.path.read_bytes())),
        json.loads(gzip.decompress(source.read_bytes())),
    )


def test_nothing_is_lost_of_a_trace_that_fits(tmp_path: Path) -> None:
    copied, made, raw = copy("launch-h200", tmp_path)
    assert len(made["traceEvents"]) == len(raw["traceEvents"]) == copied.events
    assert copied.steps == (2, 3) and copied.how == "ProfilerStep"
    assert copied.bytes == copied.path.stat().st_size
    spans = [(e["ts"], e["dur"], e["pid"], e["tid"]) for e in made["traceEvents"] if e["ph"] == "X"]
    assert spans == [(e["ts"], e["dur"], e["pid"], e["tid"]) for e in raw["traceEvents"] if e["ph"] == "X"]


def test_the_head_says_what_the_plugin_asks_for_and_the_events_come_last(tmp_path: Path) -> None:
    copied, made, raw = copy("ddp-h200", tmp_path)
    assert made["deviceProperties"] == raw["deviceProperties"]
    assert made["distributedInfo"]["rank"] == raw["distributedInfo"]["rank"]
    assert list(made)[-1] == "traceEvents", "the plugin puts its counters behind the last bracket"
    text = gzip.decompress(copied.path.read_bytes()).rstrip()
    assert text.endswith(b"]}") and text.rfind(b"]") == len(text) - 2
    assert all("cat" in e for e in made["traceEvents"] if e["ph"] == "X")


@pytest.mark.parametrize("most", [12_000, 100])
def test_a_large_trace_is_cut_to_its_last_whole_steps(tmp_path: Path, most: int) -> None:
    copied, made, raw = copy("input-h200", tmp_path, most_events=most)
    assert copied.of_steps == 4
    assert copied.steps == ((4, 5) if most == 12_000 else (5,)), "at least one step is always there"
    assert len(made["traceEvents"]) < 0.75 * len(raw["traceEvents"])
    calls = {e["args"].get("correlation") for e in made["traceEvents"] if e.get("cat") == "runtime"}
    kernels = [e for e in made["traceEvents"] if e.get("cat") == "kernel"]
    assert kernels and {e["args"]["correlation"] for e in kernels} <= calls


def test_a_first_step_whose_begin_the_device_does_not_know_is_set_aside(tmp_path: Path) -> None:
    _, made, _ = copy("fp32-h200", tmp_path)
    marks = [(e["name"], e["cat"]) for e in made["traceEvents"] if e["name"].startswith("ProfilerStep#")]
    assert ("ProfilerStep#2", "step_without_work") in marks
    assert ("ProfilerStep#3", "user_annotation") in marks
    _, made, _ = copy("launch-h200", tmp_path)
    marks = [e["cat"] for e in made["traceEvents"] if e["name"].startswith("ProfilerStep#")]
    assert "step_without_work" not in marks, "where the device waits for the host, all steps count"


def test_steps_that_nobody_marked_are_marked(tmp_path: Path) -> None:
    trace = json.loads(gzip.decompress(CASES["launch-h200"].traces[0].read_bytes()))
    trace["traceEvents"] = [
        e for e in trace["traceEvents"] if not str(e.get("name")).startswith("ProfilerStep#")
    ]
    source = tmp_path / "bare.json"
    source.write_text(json.dumps(trace))
    copied = copy_trace(source, tmp_path / "rank_0.pt.trace.json.gz", lane=lambda *_: [])
    made = json.loads(gzip.decompress(copied.path.read_bytes()))
    marks = [e for e in made["traceEvents"] if e["name"].startswith("ProfilerStep#")]
    assert copied.how == "optimizer" and len(marks) == len(copied.steps) >= 1
    assert all(isinstance(e["tid"], int) and e["dur"] > 0 for e in marks)


def test_a_trace_that_was_cut_off_gives_what_is_there(tmp_path: Path) -> None:
    whole = gzip.decompress(CASES["launch-h200"].traces[0].read_bytes())
    source = tmp_path / "cut.json"
    source.write_bytes(whole[: len(whole) // 2])
    copied = copy_trace(source, tmp_path / "rank_0.pt.trace.json.gz", lane=lambda *_: [])
    made = json.loads(gzip.decompress(copied.path.read_bytes()))
    assert 1000 < len(made["traceEvents"]) == copied.events


def test_invalid_json_as_torch_writes_it_becomes_valid(tmp_path: Path) -> None:
    source = tmp_path / "quoted.json"
    source.write_text(
        '{"schemaVersion": 1, "traceEvents": [\n'
        '  {\n    "ph": "X", "cat": "user_annotation", "name": "say "hi"", "pid": 1, "tid": 1,\n'
        '    "ts": 1.0, "dur": 2.0, "args": {"x": NaN}\n  },\n'
        '  {\n    "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1,\n'
        '    "ts": 1.5, "dur": 1.0, "args": {}\n  }\n]}\n'
    )
    copied = copy_trace(source, tmp_path / "rank_0.pt.trace.json.gz", lane=lambda *_: [])
    made = json.loads(gzip.decompress(copied.path.read_bytes()))
    assert {"aten::mm", 'say "hi"'} <= {e["name"] for e in made["traceEvents"]}


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "notes.json"
    source.write_text("hello")
    with pytest.raises(NotATraceError):
        copy_trace(source, tmp_path / "rank_0.pt.trace.json.gz", lane=lambda *_: [])


@pytest.mark.parametrize("name", ["launch-h200", "input-h200"])
def test_the_copy_is_still_the_trace_to_us(tmp_path: Path, name: str) -> None:
    copy(name, tmp_path)
    ours, again = diagnosis_of(name), diagnose_paths([tmp_path])
    assert again.verdict.bottleneck_class is ours.verdict.bottleneck_class
    # Labels that became operators hide a pause or two between operators.
    assert {line.part: line.ms for line in again.budget} == pytest.approx(
        {line.part: line.ms for line in ours.budget}, abs=0.03
    )


PARSE = """
import logging, sys
logging.disable(logging.CRITICAL)
import torch_tb_profiler.plugin
from torch_tb_profiler.profiler.data import RunProfileData
from torch_tb_profiler.profiler.run_generator import RunGenerator
data = RunProfileData.parse("rank_0", None, sys.argv[1], sys.argv[2])
RunGenerator("rank_0", None, data).generate_run_profile()
print(len(data.events), data.steps_names)
"""


@pytest.mark.parametrize("field", ["ts", "dur", "cat", "name", "tid", "pid", "args"])
def test_the_plugin_s_own_parser_reads_a_copy_of_a_trace_with_holes(tmp_path: Path, field: str) -> None:
    trace = json.loads(gzip.decompress(CASES["example-input-bound"].traces[0].read_bytes()))
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X" and not e["name"].startswith("ProfilerStep")]
    for k, span in enumerate(spans[::7]):
        if k % 2:
            del span[field]
        else:
            span[field] = None
    source = tmp_path / "holes.json"
    source.write_text(json.dumps(trace))
    copied = copy_trace(source, tmp_path / "rank_0.pt.trace.json.gz", lane=lambda *_: [])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PARSE, str(copied.path), str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[0]) > 500 and "'3'" in done.stdout
