"""Whatever path is given: run folders, ranks, left-overs of killed runs, traces of anyone."""

from __future__ import annotations

import gzip
import json
import pickle
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from unit.ingest.layouts import document, kineto_from_2_13

from torch_bottleneck.errors import InputError, NotATraceError, RunFolderError
from torch_bottleneck.ingest import bare, load
from torch_bottleneck.model.run import RUN_FORMAT, Artefact, CompileFacts, LoaderFacts, Run

if TYPE_CHECKING:
    from pathlib import Path

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 5.0, "dur": 1.0}


def trace(path: Path, *, rank: int | None = None) -> Path:
    content: dict[str, Any] = document([EVENT])
    del content["distributedInfo"]
    if rank is not None:
        content = {"distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 4}} | content
    path.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(content).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def run_folder(folder: Path, *, with_trace: bool = True, **fields: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    artefacts: dict[str, Artefact] = fields.pop("artefacts", {})
    if with_trace:
        trace(folder / "trace" / "host_1.2.pt.trace.json.gz")
        artefacts = {"trace": Artefact(status="ok", path="trace/host_1.2.pt.trace.json.gz")} | artefacts
    run = Run(command=["train.py", "--lr", "1"], artefacts=artefacts, **fields)
    (folder / "run.json").write_bytes(msgspec.json.encode(run))
    return folder


# ---------------------------------------------------------------------------------------- run folders


def test_a_run_folder(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    loaders = [LoaderFacts(id=0, cls="DataLoader", num_workers=2)]
    (folder / "loader.json").write_bytes(msgspec.json.encode(loaders))
    (folder / "compile.json").write_bytes(msgspec.json.encode(CompileFacts(used=True)))
    (folder / "memory").mkdir()
    (folder / "memory" / "host_1.2.snapshot.pickle").write_bytes(pickle.dumps({}))

    bundle = load(folder)

    assert bundle.folder == folder
    assert bundle.ranks[0].title == "train.py"
    assert not bundle.partial
    assert bundle.problems == ()
    (rank,) = bundle.ranks
    assert rank.loaders == tuple(loaders)
    assert rank.compile == CompileFacts(used=True)
    assert rank.snapshot_path == folder / "memory" / "host_1.2.snapshot.pickle"
    assert rank.problems == ()
    assert rank.trace is not None
    assert len(rank.trace) == 1
    assert rank.trace is rank.trace, "read once"


def test_run_json_stands_for_its_folder(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    assert load(folder / "run.json").folder == folder


def test_what_was_not_measured_is_none_not_empty(tmp_path: Path) -> None:
    (rank,) = load(run_folder(tmp_path / "run", with_trace=False)).ranks
    assert rank.loaders is None
    assert rank.compile is None
    assert rank.trace is None
    assert rank.trace_problem == ""


def test_a_failed_artefact_is_a_problem_with_its_reason(tmp_path: Path) -> None:
    artefacts = {"trace": Artefact(status="failed", reason="the disk is full")}
    (rank,) = load(run_folder(tmp_path / "run", with_trace=False, artefacts=artefacts)).ranks
    assert any("trace" in p and "the disk is full" in p for p in rank.problems)


def test_a_snapshot_that_was_not_wanted_is_no_problem(tmp_path: Path) -> None:
    artefacts = {"memory": Artefact(status="absent", reason="no CUDA device was used")}
    assert load(run_folder(tmp_path / "run", artefacts=artefacts)).ranks[0].problems == ()


def test_a_stated_trace_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    artefacts = {"trace": Artefact(status="ok", path="trace/gone.json.gz")}
    (rank,) = load(run_folder(tmp_path / "run", with_trace=False, artefacts=artefacts)).ranks
    assert rank.trace is None
    assert any("gone.json.gz" in p for p in rank.problems)


def test_a_trace_that_no_artefact_names_is_found(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", with_trace=False)
    path = trace(folder / "trace" / "w.5.pt.trace.json.gz")
    assert load(folder).ranks[0].trace_path == path


def test_a_broken_trace_in_a_run_folder_leaves_the_rest(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    (folder / "trace" / "host_1.2.pt.trace.json.gz").write_bytes(b"")
    (rank,) = load(folder).ranks
    assert rank.trace is None
    assert "empty" in rank.trace_problem


@pytest.mark.parametrize("name", ["loader.json", "compile.json"])
def test_a_broken_side_file_is_a_problem_only(tmp_path: Path, name: str) -> None:
    folder = run_folder(tmp_path / "run")
    (folder / name).write_text('{"used": tr')
    (rank,) = load(folder).ranks
    assert rank.loaders is None
    assert rank.compile is None
    assert any(name in p for p in rank.problems)


def test_fields_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    content = json.loads((folder / "run.json").read_bytes())
    (folder / "run.json").write_text(json.dumps(content | {"something_new": [1]}))
    assert load(folder).ranks[0].run is not None


def test_a_newer_format_names_the_version_that_reads_it(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", format=RUN_FORMAT + 1, tool_version="9.1.0")
    with pytest.raises(RunFolderError, match=rf"format {RUN_FORMAT + 1}.*9\.1\.0"):
        load(folder)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b'{"format": 1, "comm', "cut off"),
        (b'{"a": 1}', "no format number"),
        (b"[]", "no format number"),
        (b'{"format": 1, "rank": "first"}', "does not hold"),
    ],
)
def test_an_unreadable_run_json_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    folder = run_folder(tmp_path / "run")
    (folder / "run.json").write_bytes(content)
    with pytest.raises(RunFolderError, match=says) as caught:
        load(folder)
    assert "run.json" in str(caught.value)


# ---------------------------------------------------------------------------------------------- ranks


def test_ranks_in_sub_folders_come_in_order(tmp_path: Path) -> None:
    for rank in (10, 2, 0):
        run_folder(tmp_path / "run" / f"rank{rank}", rank=rank, world_size=3)
    bundle = load(tmp_path / "run")
    assert [r.rank for r in bundle.ranks] == [0, 2, 10]
    assert bundle.folder == tmp_path / "run"
    assert bundle.problems == ()


def test_missing_ranks_are_counted(tmp_path: Path) -> None:
    run_folder(tmp_path / "run" / "rank0", rank=0, world_size=4)
    assert "1 of 4 ranks" in load(tmp_path / "run").problems[0]


def test_a_broken_rank_does_not_cost_the_others(tmp_path: Path) -> None:
    for rank in range(2):
        run_folder(tmp_path / "run" / f"rank{rank}", rank=rank, world_size=2)
    (tmp_path / "run" / "rank1" / "run.json").write_bytes(b"{")
    bundle = load(tmp_path / "run")
    assert [r.rank for r in bundle.ranks] == [0]
    assert any("rank1 is left out" in p for p in bundle.problems)


def test_several_folders_given_are_ranks(tmp_path: Path) -> None:
    paths = [run_folder(tmp_path / f"node{i}", rank=i, world_size=2) for i in (1, 0)]
    assert [r.folder for r in load(*paths).ranks] == [paths[1], paths[0]]


def test_two_runs_that_claim_one_rank_are_numbered_and_it_is_said(tmp_path: Path) -> None:
    paths = [run_folder(tmp_path / name) for name in ("a", "b")]
    bundle = load(*paths)
    assert [r.rank for r in bundle.ranks] == [0, 1]
    assert "same rank" in bundle.problems[0]


# ---------------------------------------------------------------------------------------- killed runs


def test_the_folder_of_a_killed_run_is_found_under_its_final_name(tmp_path: Path) -> None:
    left = run_folder(tmp_path / ".run.partial")
    bundle = load(tmp_path / "run")
    assert bundle.folder == left
    assert bundle.partial
    assert "killed" in bundle.ranks[0].problems[0]


def test_a_run_killed_together_with_its_parent_leaves_a_folder_in_a_folder(tmp_path: Path) -> None:
    left = run_folder(tmp_path / ".run.partial" / ".main.partial")
    for path in (tmp_path / "run", tmp_path / ".run.partial"):
        bundle = load(path)
        assert [r.folder for r in bundle.ranks] == [left]
        assert bundle.partial


def test_a_finished_rank_counts_before_its_left_over(tmp_path: Path) -> None:
    whole = run_folder(tmp_path / "run" / "rank0")
    run_folder(tmp_path / "run" / ".rank0.partial")
    assert [r.folder for r in load(tmp_path / "run").ranks] == [whole]


def test_a_killed_rank_stands_beside_the_whole_ones(tmp_path: Path) -> None:
    run_folder(tmp_path / "run" / "rank0", rank=0, world_size=2)
    run_folder(tmp_path / "run" / ".rank1.partial", rank=1, world_size=2)
    bundle = load(tmp_path / "run")
    assert [r.rank for r in bundle.ranks] == [0, 1]
    assert bundle.partial
    assert bundle.ranks[0].problems == ()
    assert bundle.ranks[1].problems != ()


# --------------------------------------------------------------------------------------- bare traces


def test_a_bare_trace(tmp_path: Path) -> None:
    path = trace(tmp_path / "my_trace.json")
    bundle = load(path)
    assert bundle.folder is None
    assert bundle.ranks[0].title == "my_trace.json"
    (rank,) = bundle.ranks
    assert (rank.rank, rank.run, rank.loaders, rank.compile) == (0, None, None, None)
    assert rank.trace is not None


def test_ranks_of_bare_traces_come_from_the_trace_then_the_name_then_the_order(tmp_path: Path) -> None:
    stated = trace(tmp_path / "a" / "trace_rank7.json", rank=2)
    named = trace(tmp_path / "a" / "trace_rank-1.json.gz")
    plain = trace(tmp_path / "a" / "t.json")
    bundle = load(plain, stated, named)
    assert [(r.rank, r.trace_path) for r in bundle.ranks] == [(0, plain), (1, named), (2, stated)]


def test_a_tensorboard_folder_gives_the_last_span_of_each_worker(tmp_path: Path) -> None:
    trace(tmp_path / "log" / "host_1.100.pt.trace.json.gz", rank=0)
    last = trace(tmp_path / "log" / "host_1.200.pt.trace.json.gz", rank=0)
    other = trace(tmp_path / "log" / "host_2.150.pt.trace.json", rank=1)
    (tmp_path / "log" / "notes.json").write_text("{}")
    bundle = load(tmp_path / "log")
    assert [r.trace_path for r in bundle.ranks] == [last, other]
    assert "the last of each of 2 workers" in bundle.problems[0]


def test_a_folder_of_traces_with_other_names_passes_over_other_json(tmp_path: Path) -> None:
    path = trace(tmp_path / "step5" / "trace.json")
    (tmp_path / "config.json").write_text('{"lr": 1}')
    assert [r.trace_path for r in load(tmp_path).ranks] == [path]


def test_a_snapshot_alone_and_beside_its_trace(tmp_path: Path) -> None:
    snapshot = tmp_path / "job.snapshot.pickle"
    snapshot.write_bytes(pickle.dumps({"segments": []}))
    (rank,) = load(snapshot).ranks
    assert rank.snapshot_path == snapshot
    assert rank.trace is None
    (rank,) = load(trace(tmp_path / "job.pt.trace.json"), snapshot).ranks
    assert rank.snapshot_path == snapshot
    assert rank.trace is not None


def test_a_snapshot_that_fits_no_trace_is_left_out_and_named(tmp_path: Path) -> None:
    for rank in range(2):
        trace(tmp_path / f"r{rank}.pt.trace.json", rank=rank)
    (tmp_path / "other.pickle").write_bytes(pickle.dumps({}))
    bundle = load(tmp_path)
    assert len(bundle.ranks) == 2
    assert "other.pickle" in bundle.problems[0]


# ------------------------------------------------------------------------------------ folders of runs


def test_what_cannot_be_read_in_a_folder_of_traces_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace(tmp_path / "a.json")
    trace(tmp_path / "locked.json")
    (tmp_path / "killed.json").touch()
    (tmp_path / "settings.json").write_text('{"lr": 0.1}')
    original = bare.open_source

    def locked(path: Path) -> object:
        if path.name == "locked.json":
            raise InputError(f"{path} cannot be read: Permission denied.")
        return original(path)

    monkeypatch.setattr(bare, "open_source", locked)
    bundle = load(tmp_path)
    assert [rank.trace_path.name for rank in bundle.ranks if rank.trace_path] == ["a.json"]
    assert len(bundle.problems) == 2
    assert any("locked.json is left out" in text and "Permission denied" in text for text in bundle.problems)
    assert any("killed.json is left out" in text and "empty" in text for text in bundle.problems)


def test_a_folder_with_one_run_in_it_stands_for_that_run(tmp_path: Path) -> None:
    inner = run_folder(tmp_path / "reports" / "train-1")
    assert load(tmp_path / "reports").folder == inner


def test_of_a_folder_with_several_runs_one_must_be_chosen(tmp_path: Path) -> None:
    run_folder(tmp_path / "reports" / "train-1")
    run_folder(tmp_path / "reports" / "train-2" / "rank0")
    with pytest.raises(InputError, match="2 runs: train-1, train-2"):
        load(tmp_path / "reports")


# ----------------------------------------------------------------------------------- what is neither


def test_what_cannot_be_analysed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        load(tmp_path / "nowhere")
    with pytest.raises(NotATraceError, match="neither a run"):
        load(tmp_path)
    script = tmp_path / "train.py"
    script.write_text("import torch")
    with pytest.raises(NotATraceError, match=r"train\.py"):
        load(script)
    with pytest.raises(ValueError, match="at least one"):
        load()


def test_a_bare_trace_is_refused_when_it_is_given_not_when_it_is_read(tmp_path: Path) -> None:
    broken = tmp_path / "t.json"
    broken.write_bytes(kineto_from_2_13([EVENT])[:40])
    with pytest.raises(NotATraceError):
        load(broken)
