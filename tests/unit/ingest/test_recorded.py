"""The recorded real runs read as what they are, whole or with an end cut off."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from recorded.cases import CASES, Case

from torch_bottleneck.ingest import load, read_trace
from torch_bottleneck.timeline.steps.traced import find_steps
from torch_bottleneck.timeline.trace.dialect import DEVICE_KINDS, HOST_CALL_KINDS

if TYPE_CHECKING:
    from pathlib import Path

STATED = sorted(name for name, case in CASES.items() if "step_numbers" in case.facts)
ON_GPU = [name for name in STATED if "H200" in CASES[name].facts["device"]]
BARE = sorted(name for name in STATED if not list(CASES[name].folder.rglob("run.json")))


def numbers(case: Case) -> list[int]:
    return [int(n) for n in case.facts["step_numbers"].split(",")]


@pytest.mark.parametrize("name", STATED)
def test_every_event_is_read_as_a_json_library_reads_it(name: str) -> None:
    for path in CASES[name].traces:
        raw = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        complete = [e for e in raw if e["ph"] == "X"]
        complete.sort(key=lambda e: (round(e["ts"] * 1000), -round(e["dur"] * 1000)))
        trace = read_trace(path)
        assert trace.ts_ns.tolist() == [round(e["ts"] * 1000) for e in complete]
        assert trace.dur_ns.tolist() == [round(e["dur"] * 1000) for e in complete]
        assert [trace.names[i] for i in trace.name] == [e["name"] for e in complete]
        assert [trace.cats[i] for i in trace.cat] == [e["cat"] for e in complete]
        got = trace.correlation.tolist()
        assert got == [e.get("args", {}).get("correlation", -1) for e in complete]
        assert trace.meta.warnings == ()


@pytest.mark.parametrize("name", STATED)
def test_the_steps_are_those_that_were_profiled(name: str) -> None:
    case = CASES[name]
    for path in case.traces:
        trace = read_trace(path)
        steps = find_steps(trace)
        assert steps.how == "ProfilerStep"
        assert steps.numbers.tolist() == numbers(case)
        mean_ms = float(np.mean(steps.end_ns - steps.start_ns)) / 1e6
        assert mean_ms == pytest.approx(float(case.facts["profiled_step_ms"]), rel=0.1)
        assert steps.thread in steps.threads
        # With a GPU, autograd has a thread of its own.
        assert len(steps.threads) >= (2 if name in ON_GPU else 1)


@pytest.mark.parametrize("name", ON_GPU)
def test_every_kernel_has_its_launch(name: str) -> None:
    for path in CASES[name].traces:
        trace = read_trace(path)
        kind = trace.kind
        device = trace.correlation[np.isin(kind, DEVICE_KINDS)]
        calls = trace.correlation[np.isin(kind, HOST_CALL_KINDS)]
        assert len(device) > 300
        assert np.isin(device, calls).mean() > 0.999


@pytest.mark.parametrize("name", BARE)
def test_a_folder_of_traces_is_its_ranks(name: str) -> None:
    case = CASES[name]
    bundle = load(case.folder)
    ranks = int(case.facts.get("ranks", 1))
    assert [r.rank for r in bundle.ranks] == list(range(ranks))
    assert [r.trace_path for r in bundle.ranks] == case.traces
    assert bundle.folder is None
    assert bundle.problems == ()


def test_a_recorded_run_folder_has_all_its_pieces() -> None:
    bundle = load(CASES["input-bound-cpu"].folder / "run")
    (rank,) = bundle.ranks
    assert rank.run is not None
    assert rank.run.window("baseline") is not None
    assert rank.loaders is not None
    assert rank.loaders[0].num_workers == 0
    assert rank.compile is not None
    assert not rank.compile.used
    assert rank.problems == ()
    assert rank.trace is not None
    numbers = find_steps(rank.trace).numbers
    assert len(numbers) == 8


@pytest.mark.parametrize("share", [0.2, 0.6, 0.95])
def test_a_real_file_cut_off_is_read_up_to_the_cut(tmp_path: Path, share: float) -> None:
    path = CASES["alloc-cap-h200"].traces[0]
    whole = read_trace(path)
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])

    trace = read_trace(cut)

    assert trace.meta.truncated
    assert share * 0.6 < len(trace) / len(whole) < 1
    assert set(trace.ts_ns.tolist()) <= set(whole.ts_ns.tolist())
    assert len(find_steps(trace)) >= 1
