"""One run of a script, with the process stood in for by a function."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torch_bottleneck.errors import InputError, UsageError
from torch_bottleneck.model.run import Run, ScriptOutcome, StepTable, Window
from torch_bottleneck.runs import run_script as module
from torch_bottleneck.runs.launch import Ended
from torch_bottleneck.runs.layout import holds_steps, report_done
from torch_bottleneck.runs.place import Place, choose_place
from torch_bottleneck.runs.plan import Plan
from torch_bottleneck.runs.run_script import run_script
from torch_bottleneck.runs.store import Store

PLAN = Plan(script="train.py")


def process(*names: str, returncode: int = 0, whole: bool = True) -> Callable[[Plan], Ended]:
    """Return a stand-in for a launched script: its processes train three steps, and may die in the middle."""

    def start(plan: Plan) -> Ended:
        for name in names:
            rank, size = (int(name.removeprefix("rank")), 2) if name.startswith("rank") else (0, 1)
            store = Store(Path(plan.out) / name, run=Run(rank=rank, world_size=size))
            table = StepTable(index=[0, 1, 2], wall_ms=[1.0] * 3)
            store.update(windows=[Window(name="baseline", status="ok", steps=table)])
            if whole:
                store.finish(ScriptOutcome(how="stopped", exit_code=0))
        return Ended(returncode=returncode, began_ns=0, seconds=1.0)

    return start


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(tmp_path)
    return choose_place(tmp_path / "run", PLAN)


def test_a_run_is_gathered_under_its_final_name(place: Place) -> None:
    run = run_script(PLAN, place=place, start=process("main"))
    assert run.folder == place.folder
    assert holds_steps(place.folder)
    assert (run.outcome.how, run.missing, run.world_size) == ("stopped", (), 1)
    assert sorted(path.name for path in place.folder.parent.iterdir()) == ["run"]


def test_a_process_that_was_killed_still_leaves_a_run_and_why(place: Place) -> None:
    run = run_script(PLAN, place=place, start=process("main", returncode=-signal.SIGKILL, whole=False))
    assert run.folder is not None
    assert holds_steps(run.folder)
    assert run.outcome.how == "killed"
    assert "SIGKILL, which is also what the kernel sends" in run.failure
    assert not run.ended_by_ctrl_c
    assert run_script(
        PLAN, place=choose_place(Path("again"), PLAN), start=process(returncode=-signal.SIGINT)
    ).ended_by_ctrl_c


def test_a_failure_is_one_sentence_whatever_the_exception_says(place: Place) -> None:
    said = "UnpicklingError: You have two options, \x1b[1mdo them\x1b[0m. "

    def start(plan: Plan) -> Ended:
        store = Store(Path(plan.out) / "main", run=Run())
        store.finish(ScriptOutcome(how="raised", exit_code=1, exception=said))
        return Ended(returncode=1, began_ns=0, seconds=1.0)

    failure = run_script(PLAN, place=place, start=start).failure
    assert failure == "the script failed with UnpicklingError: You have two options, do them."


def test_what_was_left_is_told_before_the_script_starts(place: Place) -> None:
    process("main")(Plan(out=str(place.working)))
    told: list[str] = []

    def start(plan: Plan) -> Ended:
        assert told == ["moved an earlier run that was killed to run.left"]
        return process("main")(plan)

    run_script(PLAN, place=place, start=start, say=told.append)
    assert told


def test_the_place_is_held_while_the_script_runs_and_no_longer(place: Place) -> None:
    def start(plan: Plan) -> Ended:
        with pytest.raises(InputError, match="Another run is writing"):
            run_script(PLAN, place=place, start=process("main"))
        return process("main")(plan)

    run_script(PLAN, place=place, start=start)
    place.working.mkdir()
    place.folder.rename(place.folder.with_name("first"))
    assert run_script(PLAN, place=place, start=process("main")).folder == place.folder


@pytest.mark.parametrize("other", ["reports", "is missing"])
def test_the_leading_rank_waits_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    monkeypatch.setattr(module, "RANKS_SECONDS", 0.0)
    leading = Place(folder=tmp_path / "run", process="rank0", leads=True, ranks=(0, 1))
    if other == "reports":
        process("rank1")(Plan(out=str(leading.working)))
        report_done(leading.working, "rank1")
    run = run_script(PLAN, place=leading, start=process("rank0"))
    assert run.folder is not None
    assert run.world_size == 2
    assert (run.folder / "rank1").is_dir() == (other == "reports")
    assert run.missing == (() if other == "reports" else (1,))
    if run.missing:
        assert run.absence == "ranks [1] left no complete folder within 0 s"


def test_a_rank_that_does_not_lead_leaves_the_folder_to_the_one_that_does(tmp_path: Path) -> None:
    following = Place(folder=tmp_path / "run", process="rank1", leads=False, ranks=(0, 1))
    run = run_script(PLAN, place=following, start=process("rank1"))
    assert run.folder is None
    assert not following.folder.exists()
    assert sorted(path.name for path in following.working.iterdir()) == [".rank1.done", "rank1"]


@pytest.mark.parametrize("locked", [True, False])
def test_threads_that_run_at_once_are_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, locked: bool
) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: locked, raising=False)
    place = choose_place(tmp_path / "run", PLAN)
    if locked:
        assert run_script(PLAN, place=place, start=process("process-1")).folder is not None
        return
    with pytest.raises(UsageError, match="free-threaded"):
        run_script(PLAN, place=place, start=process("process-1"))
    assert not list(tmp_path.rglob("run.json"))
