"""The log folder of a run: whole or absent, the same run in every tab, hostile text harmless."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from recorded.cases import CASES
from recorded.diagnosed import diagnosed, diagnosis_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from unit.reporters.sample import hostile, sample

from torch_bottleneck.errors import InputError
from torch_bottleneck.model.diagnosis import Diagnosis
from torch_bottleneck.review.events import hyperparameters, scalars
from torch_bottleneck.review.logdir import prepare_run
from torch_bottleneck.review.page import PAGE_FILE

PATTERN = r"rank_\d+\.pt\.trace\.json\.gz"


@pytest.fixture(scope="module")
def input_bound() -> Diagnosis:
    return diagnosis_of("example-input-bound")


def page_of(folder: Path) -> dict[str, Any]:
    page: dict[str, Any] = json.loads((folder / PAGE_FILE).read_text())
    return page


def test_it_holds_traces_events_and_page_and_nothing_half_done(
    tmp_path: Path, input_bound: Diagnosis
) -> None:
    prepared = prepare_run(input_bound, [CASES["example-input-bound"].folder], tmp_path / "run")
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert (
        names[0] == PAGE_FILE
        and names[1].startswith("events.out.tfevents.")
        and names[2] == "rank_0.pt.trace.json.gz"
    )
    assert len(names) == 3 and [path.name for path in tmp_path.iterdir()] == ["run"]
    assert prepared.problems == () and prepared.traces[0].worker == "rank_0"


def test_made_again_it_replaces_what_is_there(tmp_path: Path, input_bound: Diagnosis) -> None:
    source = CASES["example-input-bound"].folder
    prepare_run(input_bound, [source], tmp_path / "run")
    (tmp_path / "run" / "stale").touch()
    prepare_run(input_bound, [source], tmp_path / "run")
    assert not (tmp_path / "run" / "stale").exists()
    assert len(list((tmp_path / "run").glob("events.out*"))) == 1


@pytest.mark.parametrize("name", ["run.json", "thesis.txt"])
def test_what_was_not_prepared_here_is_never_replaced(
    input_bound: Diagnosis, tmp_path: Path, name: str
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text("precious")
    with pytest.raises(InputError, match="would be replaced"):
        prepare_run(input_bound, [], tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert (tmp_path / "run" / name).read_text() == "precious"


def test_every_rank_is_a_worker_of_one_run(tmp_path: Path) -> None:
    folder = CASES["ddp-h200"].folder
    prepared = prepare_run(diagnosed(folder), [folder], tmp_path / "run")
    assert [(t.worker, t.rank) for t in prepared.traces] == [("rank_0", 0), ("rank_1", 1)]


def test_each_cause_has_its_place_on_the_lane_of_the_trace(tmp_path: Path, input_bound: Diagnosis) -> None:
    prepare_run(input_bound, [CASES["example-input-bound"].folder], tmp_path / "run")
    page = page_of(tmp_path / "run")
    place = page["places"][input_bound.causes[0].code]
    events = json.loads(gzip.decompress((tmp_path / "run" / "rank_0.pt.trace.json.gz").read_bytes()))[
        "traceEvents"
    ]
    lane = [e for e in events if e.get("cat") == "diagnosis"]
    (block,) = [e for e in lane if e["args"].get("step") == place["step"]]
    assert "input-bound" in block["name"]
    begin = block["ts"] + place["offset_us"]
    (spot,) = [e for e in lane if abs(e["ts"] - begin) < 1 and abs(e["dur"] - place["dur_us"]) < 1]
    assert spot["args"]["budget line"] == "waiting for input"
    loads = [e for e in events if e["name"].startswith("enumerate(DataLoader)")]
    assert any(e["ts"] < begin + place["dur_us"] / 2 < e["ts"] + e["dur"] for e in loads), (
        "it is where the batch is fetched"
    )
    idle = sum(e["dur"] for e in lane if e["args"].get("budget line") == "waiting for input")
    assert idle / 1e3 / 2 == pytest.approx(89.5, rel=0.05), "in each of the two steps"
    assert {
        e["args"]["sort_index"]
        for e in events
        if e["name"] == "process_sort_index" and e["pid"] == "Diagnosis"
    } == {-1}


def lane_of(folder: Path, rank: int) -> list[dict[str, Any]]:
    file = folder / f"rank_{rank}.pt.trace.json.gz"
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    return [e for e in events if e.get("cat") == "diagnosis" and "budget line" in e["args"]]


def test_every_rank_has_its_idle_time_by_cause_and_it_adds_up_with_its_work(tmp_path: Path) -> None:
    folder = CASES["ddp-h200"].folder
    prepare_run(diagnosed(folder), [folder], tmp_path / "run")
    for rank in (0, 1):
        lane = lane_of(tmp_path / "run", rank)
        ends = [e["ts"] + e["dur"] for e in lane]
        assert all(end <= e["ts"] + 0.01 for end, e in zip(ends, lane[1:], strict=False)), "no piece overlaps"
        raw = json.loads(gzip.decompress((folder / f"rank{rank}.pt.trace.json.gz").read_bytes()))[
            "traceEvents"
        ]
        work = [e for e in raw if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
        low, high = lane[0]["ts"], max(ends)
        covered = sum(max(0.0, min(e["ts"] + e["dur"], high) - max(e["ts"], low)) for e in (*work, *lane))
        assert covered >= 0.999 * (high - low), "every moment is work or a piece of idle time"


def test_where_there_are_too_many_pieces_the_longest_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = CASES["launch-h200"].folder
    prepare_run(diagnosed(folder), [folder], tmp_path / "all")
    everything = lane_of(tmp_path / "all", 0)
    monkeypatch.setattr("torch_bottleneck.review.lane._MOST_PIECES", 100)
    prepare_run(diagnosed(folder), [folder], tmp_path / "few")
    few = lane_of(tmp_path / "few", 0)
    assert len(everything) > 1000 and 100 <= len(few) < 150
    assert min(e["dur"] for e in few) >= sorted(e["dur"] for e in everything)[-150]


def test_without_a_gpu_the_lane_is_the_step_that_the_report_shows(tmp_path: Path) -> None:
    folder = CASES["input-bound-cpu"].folder
    diagnosis = diagnosed(folder)
    prepare_run(diagnosis, [folder], tmp_path / "run")
    lane = lane_of(tmp_path / "run", 0)
    assert diagnosis.timeline is not None
    assert sum(e["dur"] for e in lane) == pytest.approx(diagnosis.timeline.length_us, rel=0.01)


def test_the_event_file_carries_text_figures_and_settings(tmp_path: Path, input_bound: Diagnosis) -> None:
    prepare_run(input_bound, [CASES["example-input-bound"].folder], tmp_path / "run", run="before")
    found = EventAccumulator(str(tmp_path / "run"))
    found.Reload()
    tags = set(found.Tags()["tensors"])
    assert {"diagnosis", "step_ms/true", "step_ms/baseline", "budget_ms/waiting_for_input"} <= tags
    (text,) = found.Tensors("diagnosis")
    assert (
        text.tensor_proto.string_val[0].decode().startswith("# input\\_bound.py: input-bound")
        or b"input-bound" in text.tensor_proto.string_val[0]
    )
    (step,) = found.Tensors("step_ms/true")
    assert step.tensor_proto.float_val[0] == pytest.approx(input_bound.step.true_ms)
    assert [t.step for t in found.Tensors("step_ms/baseline")] == list(range(4, 14))
    metadata = found.SummaryMetadata("_hparams_/session_start_info")
    assert metadata.plugin_data.plugin_name == "hparams"
    assert b"before" in metadata.plugin_data.content and b"DataLoader workers" in metadata.plugin_data.content


def test_budget_scalars_add_up_to_the_step(input_bound: Diagnosis) -> None:
    budget = sum(value for tag, _, value, _ in scalars(input_bound) if tag.startswith("budget_ms/"))
    assert budget == pytest.approx(input_bound.step.true_ms, rel=1e-6)


def test_hyperparameters_are_what_tensorboard_takes() -> None:
    values = hyperparameters(sample())
    assert values["verdict"] == "input-bound"
    assert all(isinstance(value, (float, str)) for value in values.values())
    assert {"on", "off"} <= set(values.values()), "states, not sentences"


def test_a_run_without_a_trace_has_its_page_all_the_same(tmp_path: Path) -> None:
    prepare_run(sample(), [], tmp_path / "run")
    page = page_of(tmp_path / "run")
    assert page["traces"] == [] and page["headline"] and page["fixes"]


def test_hostile_text_is_one_line_of_text_everywhere(tmp_path: Path) -> None:
    prepare_run(hostile(), [], tmp_path / "run")
    page = page_of(tmp_path / "run")

    def strings(value: object) -> list[str]:
        if isinstance(value, str):
            return [value]
        if isinstance(value, dict):
            return [s for key, item in value.items() if key != "code" for s in strings(item)]
        return [s for item in value for s in strings(item)] if isinstance(value, list) else []

    for text in strings(page):
        assert "\x1b" not in text and "\n" not in text and "\u202e" not in text
    found = EventAccumulator(str(tmp_path / "run"))
    found.Reload()
    assert "diagnosis" in found.Tags()["tensors"]


def test_a_broken_trace_costs_its_trace_only(tmp_path: Path, input_bound: Diagnosis) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(CASES["example-input-bound"].folder, folder)
    for trace in (folder / "trace").iterdir():
        trace.write_bytes(b"\x1f\x8bnot really")
    prepared = prepare_run(input_bound, [folder], tmp_path / "run")
    assert prepared.traces == () and "no trace here" in prepared.problems[0]
    assert page_of(tmp_path / "run")["problems"][-1] == prepared.problems[0]
    assert not list((tmp_path / "run").glob("*.trace.json*"))


def test_a_trace_beyond_the_limit_is_left_out_and_said_so(tmp_path: Path, input_bound: Diagnosis) -> None:
    prepared = prepare_run(
        input_bound, [CASES["example-input-bound"].folder], tmp_path / "run", most_bytes=100
    )
    assert prepared.traces == () and "left out" in prepared.problems[0]


def test_where_nothing_can_be_written_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="Cannot write"):
        prepare_run(sample(), [], tmp_path / "file" / "run")


def test_without_tensorboard_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.plugins.hparams", None)
    monkeypatch.delitem(sys.modules, "tensorboard.plugins.hparams.summary_v2", raising=False)
    with pytest.raises(InputError, match="pip install"):
        prepare_run(sample(), [], tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_the_page_has_the_format_that_the_plugin_reads(tmp_path: Path) -> None:
    from torch_bottleneck.review import page, plugin

    assert page.PAGE_FILE == plugin._PAGE and page.PAGE_FORMAT == plugin._FORMAT
    assert (
        msgspec.json.decode(msgspec.json.encode(page.make_page(sample(), traces=(), places={})))["format"]
        == 1
    )
