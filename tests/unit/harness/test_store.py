"""The run folder while it is written, and how process folders become a run folder."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from torch_bottleneck.errors import InputError
from torch_bottleneck.model.run import Run, ScriptOutcome, StepTable, Window
from torch_bottleneck.runs import store as store_module
from torch_bottleneck.runs.layout import (
    announce,
    collect,
    has_steps,
    holds_steps,
    record_end,
    report_done,
    wait_for_ranks,
)
from torch_bottleneck.runs.leftovers import put_aside
from torch_bottleneck.runs.place import Place, choose_place
from torch_bottleneck.runs.plan import Plan, decode_plan, encode_plan
from torch_bottleneck.runs.store import Store, partial_name, write_atomically

DONE = ScriptOutcome(how="stopped", exit_code=0)


def read(folder: Path) -> Run:
    return msgspec.json.decode((folder / "run.json").read_bytes(), type=Run)


def one_window(steps: int = 3) -> list[Window]:
    table = StepTable(index=list(range(steps)), wall_ms=[1.0] * steps)
    return [Window(name="baseline", status="ok", steps=table)]


def process(working: Path, name: str, *, steps: int = 3, rank: int = 0, world_size: int = 1) -> None:
    store = Store(working / name, run=Run(rank=rank, world_size=world_size))
    store.update(windows=one_window(steps) if steps else [])
    store.finish(DONE)


def test_the_folder_has_a_temporary_name_until_it_is_whole(tmp_path: Path) -> None:
    store = Store(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert read(partial_name(tmp_path / "run")).outcome.how == "running"
    assert store.finish(DONE) == tmp_path / "run"
    assert read(tmp_path / "run").outcome == DONE
    assert not partial_name(tmp_path / "run").exists()


def test_facts_are_on_disk_as_soon_as_they_are_known(tmp_path: Path) -> None:
    store = Store(tmp_path / "run", run=Run(rank=2))
    store.update(step_signal="optimizer", windows=one_window())
    store.warn("w")
    store.warn("w")
    run = read(store.working)
    assert (run.rank, run.step_signal, run.warnings) == (2, "optimizer", ["w"])
    with pytest.raises(TypeError):
        store.update(no_such_field=1)


def test_artefacts_are_named_relative_to_the_folder(tmp_path: Path) -> None:
    store = Store(tmp_path / "run")
    trace = store.path("trace")
    trace.write_bytes(b"12345")
    store.artefact("trace", "ok", path=trace)
    store.artefact("memory", "absent", reason="no device")
    store.write_json("loader", [])
    store.finish(DONE)
    artefacts = read(tmp_path / "run").artefacts
    assert artefacts["trace"].bytes == 5
    assert (tmp_path / "run" / str(artefacts["trace"].path)).is_file()
    assert artefacts["memory"].reason == "no device"
    assert artefacts["loader"].path == "loader.json"
    assert trace.name.endswith(".trace.json.gz")
    assert ".pt.trace" not in trace.name, "the profiler tab reads the adapted copy, not this file"
    assert store.path("trace") != store.path("trace")


def test_a_taken_name_is_never_replaced(tmp_path: Path) -> None:
    store = Store(tmp_path / "run")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/precious").touch()
    assert store.finish(DONE) == tmp_path / "run-2"
    assert (tmp_path / "run/precious").exists()


def test_finishing_twice_keeps_the_last_outcome(tmp_path: Path) -> None:
    store = Store(tmp_path / "run")
    store.finish(DONE)
    store.finish(ScriptOutcome(how="raised", exit_code=1))
    assert read(tmp_path / "run").outcome.how == "raised"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_cannot_write_its_parent_s_folder(tmp_path: Path) -> None:
    store = Store(tmp_path / "run")
    pid = os.fork()
    if pid == 0:
        try:
            store.update(step_signal="from the child")
            store.finish(DONE)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert store.working.is_dir()
    assert read(store.working).step_signal == ""


def test_a_folder_that_the_script_has_cleared_is_made_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "reports/run")
    shutil.rmtree(tmp_path / "reports")
    store.update(step_signal="optimizer")
    assert read(store.working).step_signal == "optimizer"
    shutil.rmtree(tmp_path / "reports")
    assert store.path("trace").parent.is_dir()
    assert store.path("diverted").is_dir()
    store.finish(DONE)
    assert read(tmp_path / "reports/run").outcome == DONE


def test_a_full_disk_does_not_end_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = Store(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "write_atomically", full)
        store.update(step_signal="optimizer")
        store.artefact("trace", "absent", reason="no room")
        assert "No space left" in store.lost
    store.warn("room again")
    assert store.lost == ""
    assert read(store.working).step_signal == "optimizer"


def test_what_a_killed_run_left_is_put_aside_not_taken_for_the_new_one(tmp_path: Path) -> None:
    working = partial_name(tmp_path / "run")
    process(working, "main", steps=7)
    left = put_aside(working, "main", alone=True)
    assert left == tmp_path / "run.left"
    assert len(read(left / "main").windows[0].steps.index) == 7
    process(working, "main", steps=2)
    record_end(working, "main", Plan(script="t.py"), 0)
    collect(working, tmp_path / "run")
    assert len(read(tmp_path / "run").windows[0].steps.index) == 2
    assert put_aside(working, "main", alone=True) is None, "there is nothing any more"


def test_two_runs_cannot_write_one_folder(tmp_path: Path) -> None:
    working = partial_name(tmp_path / "run")
    assert put_aside(working, "main", alone=True) is None
    with pytest.raises(InputError, match=r"Another run is writing .*/run\. "):
        put_aside(working, "main", alone=True)


def test_a_rank_drops_its_own_leftovers_only(tmp_path: Path) -> None:
    working = partial_name(tmp_path / "run")
    for rank in (0, 1):
        process(working, f"rank{rank}", rank=rank, world_size=2)
        report_done(working, f"rank{rank}")
    assert put_aside(working, "rank1", alone=False) is None
    assert wait_for_ranks(working, (0, 1), seconds=0) == [1]
    assert (working / "rank0").is_dir()
    assert not (working / "rank1").exists()


def test_steps_of_any_rank_are_steps_of_the_run(tmp_path: Path) -> None:
    for rank, steps in ((0, 0), (1, 3)):
        process(tmp_path, f"rank{rank}", steps=steps, rank=rank, world_size=2)
    assert not has_steps(tmp_path)
    assert holds_steps(tmp_path)
    assert not holds_steps(tmp_path / "rank0")


def test_a_record_that_is_gone_is_told(tmp_path: Path) -> None:
    outcome = record_end(tmp_path / "gone", "main", Plan(script="t.py"), 0)
    assert any("removed meanwhile" in note for note in outcome.notes)


def test_a_file_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    write_atomically(path, b"1")
    write_atomically(path, b"2")
    assert path.read_bytes() == b"2"
    assert [p.name for p in tmp_path.iterdir()] == ["f.json"]
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/full").touch()
    with pytest.raises(OSError, match="folder"):
        write_atomically(tmp_path / "folder", b"3")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f.json", "folder"]


def test_the_plan_travels_as_one_line_and_its_arguments_beside_it() -> None:
    plan = Plan(script="a b.py", args=("--x", "\udcff"), out="/tmp/ö", steps=3, warmup=0)
    line = encode_plan(plan)
    assert "\n" not in line
    assert decode_plan(line, args=plan.args) == plan
    with pytest.raises(msgspec.ValidationError):
        decode_plan(json.dumps({"steps": "three"}))


def test_one_process_s_files_move_to_the_top(tmp_path: Path) -> None:
    working = tmp_path / ".run.partial"
    process(working, "main")
    folder = collect(working, tmp_path / "run")
    assert folder == tmp_path / "run"
    assert {path.name for path in folder.iterdir()} == {"run.json"}


def test_a_killed_process_s_folder_is_kept_and_says_so(tmp_path: Path) -> None:
    working = tmp_path / ".run.partial"
    Store(working / "main").update(windows=one_window())
    outcome = record_end(working, "main", Plan(script="t.py"), -9)
    folder = collect(working, tmp_path / "run")
    assert read(folder).outcome == outcome
    assert (outcome.how, outcome.exit_code, outcome.exception) == ("killed", -9, "ended by SIGKILL")
    assert has_steps(folder)


def test_a_process_that_left_nothing_still_gets_a_run(tmp_path: Path) -> None:
    working = tmp_path / ".run.partial"
    working.mkdir()
    outcome = record_end(working, "main", Plan(script="t.py", args=("a",)), 1)
    folder = collect(working, tmp_path / "run")
    assert read(folder).command == ["t.py", "a"]
    assert (outcome.how, outcome.exit_code) == ("exited", 1)
    assert not has_steps(folder)


def test_an_outcome_that_the_process_recorded_stands(tmp_path: Path) -> None:
    working = tmp_path / ".run.partial"
    Store(working / "main").finish(ScriptOutcome(how="raised", exit_code=1, exception="E: x"))
    assert record_end(working, "main", Plan(script="t.py"), 1).exception == "E: x"


def test_spawned_ranks_are_named_by_rank_and_their_launcher_goes(tmp_path: Path) -> None:
    working = tmp_path / ".run.partial"
    process(working, "main", steps=0)
    process(working, "child-100", rank=1, world_size=2)
    process(working, "child-99", rank=0, world_size=2)
    process(working, "child-98", steps=0)
    folder = collect(working, tmp_path / "run")
    assert sorted(path.name for path in folder.iterdir()) == ["rank0", "rank1"]
    assert read(folder / "rank1").rank == 1


def test_a_lone_training_child_is_the_run(tmp_path: Path) -> None:
    working = tmp_path / ".run.partial"
    process(working, "main", steps=0)
    process(working, "child-7", steps=4)
    folder = collect(working, tmp_path / "run")
    assert len(read(folder).windows[0].steps.index) == 4


def test_when_the_first_process_trains_it_is_the_run(tmp_path: Path) -> None:
    working = tmp_path / ".run.partial"
    process(working, "main", steps=5)
    process(working, "child-7", steps=4)
    (working / "main/.loader").mkdir()
    folder = collect(working, tmp_path / "run")
    assert len(read(folder).windows[0].steps.index) == 5
    assert sorted(path.name for path in folder.iterdir()) == ["others", "run.json"]


def test_a_rank_counts_as_done_only_when_its_parent_says_so(tmp_path: Path) -> None:
    process(tmp_path, "rank0", world_size=2)
    process(tmp_path, "rank1", rank=1, world_size=2)
    report_done(tmp_path, "rank0")
    assert wait_for_ranks(tmp_path, (0, 1), seconds=0.05) == [1]
    report_done(tmp_path, "rank1")
    assert wait_for_ranks(tmp_path, (0, 1), seconds=0.05) == []


def ranks(monkeypatch: pytest.MonkeyPatch, **values: int) -> None:
    for name in list(os.environ):
        if name.endswith(("RANK", "WORLD_SIZE")) or name.startswith(
            ("SLURM_", "PMI_", "OMPI_", "TORCHELASTIC_")
        ):
            monkeypatch.delenv(name)
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))


def test_ranks_come_to_one_folder_without_talking(monkeypatch: pytest.MonkeyPatch) -> None:
    places = []
    for rank in (0, 1):
        ranks(monkeypatch, RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=2)
        places.append(choose_place(None, Plan(script="a/train it.py")))
    assert places[0].folder == places[1].folder
    assert places[0].folder.name.startswith("train-it-")
    assert [place.process for place in places] == ["rank0", "rank1"]
    assert [place.leads for place in places] == [True, False]


def test_each_machine_has_its_own_folder_unless_they_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks(monkeypatch, RANK=3, WORLD_SIZE=4, LOCAL_RANK=1, LOCAL_WORLD_SIZE=2, GROUP_RANK=1)
    place = choose_place(None, Plan(module="pkg.train"))
    assert place.folder.name.endswith("-node1")
    assert (place.ranks, place.leads) == ((2, 3), False)
    shared = choose_place(Path("out"), Plan(module="pkg.train"))
    assert (shared.folder, shared.ranks) == (Path.cwd() / "out", (0, 1, 2, 3))


def rank_that_has_met(place: Place, rank: int, *, meet: str = "") -> Place:
    """What a rank's process leaves, and where its folder goes."""
    place.prepare()
    store = Store(
        place.working / place.process, run=Run(rank=rank, world_size=4, meet=meet, windows=one_window())
    )
    store.finish(ScriptOutcome(how="stopped"))
    return place.final()


def test_ranks_of_another_machine_come_to_the_folder_that_they_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    places = []
    for rank in range(4):
        ranks(
            monkeypatch,
            RANK=rank,
            WORLD_SIZE=4,
            LOCAL_RANK=rank % 2,
            LOCAL_WORLD_SIZE=2,
            GROUP_RANK=rank // 2,
        )
        places.append(choose_place(None, Plan(script="t.py")))
    places[0].prepare()
    for rank in (2, 3):
        announce(places[0].meet, rank)
    last = [rank_that_has_met(places[rank], rank, meet=str(places[0].meet)) for rank in (3, 2)]
    assert [place.leads for place in last] == [False, False]
    assert not places[2].working.exists(), "the folder of the other machine is empty"
    first = [rank_that_has_met(places[rank], rank) for rank in (1, 0)]
    assert (first[1].leads, first[1].ranks) == (True, (0, 1, 2, 3))
    for place in (*last, *first):
        report_done(place.working, place.process)
    assert not wait_for_ranks(first[1].working, first[1].ranks, seconds=0.0)
    run = collect(first[1].working, first[1].folder)
    assert sorted(path.name for path in run.iterdir()) == ["rank0", "rank1", "rank2", "rank3"]
    assert "node" not in run.name, "it is that of the whole job"


def test_a_rank_whose_meeting_place_is_gone_keeps_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ranks(monkeypatch, RANK=2, WORLD_SIZE=4, LOCAL_RANK=0, LOCAL_WORLD_SIZE=2, GROUP_RANK=1)
    place = choose_place(None, Plan(script="t.py"))
    (tmp_path / "gone").write_text("a file")
    kept = rank_that_has_met(place, 2, meet=str(tmp_path / "gone" / "run"))
    assert (kept, kept.leads) == (place, True)
    assert (place.working / "rank2" / "run.json").is_file()


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda _format: "now")
    places = [choose_place(None, Plan(script="t.py")) for _ in range(3)]
    assert [place.folder.name for place in places] == ["t-now", "t-now-2", "t-now-3"]
    for place in places:
        place.prepare()
        assert place.working.is_dir()


def test_ranks_started_anew_have_a_folder_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    again = {"RANK": 0, "WORLD_SIZE": 2, "TORCHELASTIC_RESTART_COUNT": 1}
    ranks(monkeypatch, **again)
    assert choose_place(None, Plan(script="t.py")).folder.name.endswith("-restart1")
    assert choose_place(Path("out"), Plan(script="t.py")).folder.name == "out-restart1"


def test_ranks_started_by_hand_a_second_time_are_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their common parent, a shell, is the same, and so is the name they come to."""
    monkeypatch.chdir(tmp_path)
    ranks(monkeypatch, RANK=0, WORLD_SIZE=2)
    for expected in ("", "-2"):
        place = choose_place(None, Plan(script="t.py"))
        place.prepare()
        folder = collect(place.working, place.folder)
        (folder / "run.json").touch()
        assert folder.name == place.folder.name + expected


def tasks(monkeypatch: pytest.MonkeyPatch, number: int, out: Path | None) -> Place:
    ranks(monkeypatch, SLURM_PROCID=number, SLURM_STEP_NUM_TASKS=2, SLURM_LOCALID=number)
    place = choose_place(out, Plan(script="t.py"))
    place.prepare()
    return place


def write_process(place: Place, *, world_size: int, rank: int = 0) -> None:
    (place.working / place.process).mkdir()
    run = Run(rank=rank, world_size=world_size)
    (place.working / place.process / "run.json").write_bytes(msgspec.json.encode(run))


@pytest.mark.parametrize("out", [None, Path("run")])
def test_tasks_that_were_one_job_share_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: Path | None
) -> None:
    monkeypatch.chdir(tmp_path)
    places = [tasks(monkeypatch, number, out) for number in (0, 1)]
    assert places[0].working != places[1].working, "who they are is not known yet"
    # The script may number its ranks in another way than the scheduler does.
    for place, rank in zip(places, (1, 0), strict=True):
        write_process(place, world_size=2, rank=rank)
    final = [place.final() for place in places]
    assert final[0].working == final[1].working
    assert [(place.process, place.leads) for place in final] == [("rank1", False), ("rank0", True)]
    assert final[0].ranks == (0, 1)
    assert not any(place.working.exists() for place in places)
    folder = collect(final[1].working, final[1].folder)
    assert {path.name for path in folder.iterdir()} >= {"rank0"}


@pytest.mark.parametrize("out", [None, Path("run")])
def test_tasks_that_knew_nothing_of_each_other_keep_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: Path | None
) -> None:
    """A sweep under srun; and a batch script, whose process bears the number 0 of tasks never started."""
    monkeypatch.chdir(tmp_path)
    places = [tasks(monkeypatch, number, out) for number in (0, 1)]
    for place in places:
        write_process(place, world_size=1)
        assert place.final() is place
    assert all(place.leads and place.process == "main" for place in places)
    if out is not None:
        assert [place.folder.name for place in places] == ["run", "run-task1"]


def test_what_a_killed_launch_has_left_is_not_taken_for_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    left = tasks(monkeypatch, 1, Path("run"))
    write_process(left, world_size=2, rank=1)
    report_done(left.final().working, "rank1")
    first = tasks(monkeypatch, 0, Path("run"))
    write_process(first, world_size=2)
    final = first.final()
    assert wait_for_ranks(final.working, (1,), seconds=0.05) == [1]


def test_a_folder_for_reports_that_cannot_be_made_is_the_users_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reports").touch()
    with pytest.raises(InputError, match="Cannot write"):
        choose_place(None, Plan(script="t.py")).prepare()


def test_a_place_in_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks(monkeypatch)
    (tmp_path / "run").mkdir()
    place = choose_place(tmp_path / "run", Plan(script="t.py"))
    place.prepare()
    (tmp_path / "run/x").touch()
    with pytest.raises(InputError, match="already exists"):
        place.prepare()
    with pytest.raises(InputError, match="Cannot write"):
        choose_place(tmp_path / "run/x/deeper", Plan(script="t.py")).prepare()
