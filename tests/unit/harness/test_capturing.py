"""A capture in a watched job: how it is asked for, what it leaves, and that the watch goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from torch_bottleneck.clocks import perf_counter_ns
from torch_bottleneck.errors import InputError
from torch_bottleneck.harness.job.account import Account, Captured, Sample, Stretch
from torch_bottleneck.harness.process.watched import WatchedRun
from torch_bottleneck.harness.windows.presence import active
from torch_bottleneck.harness.windows.table import Row
from torch_bottleneck.model.documents import read_run
from torch_bottleneck.model.run import LoaderFacts
from torch_bottleneck.model.watch import JobRecord, Watch
from torch_bottleneck.runs.captures import ask_for_capture, captures_in, is_asked, next_capture, take_question
from torch_bottleneck.runs.job import write_account
from torch_bottleneck.runs.leftovers import put_aside, release
from torch_bottleneck.runs.plan import Plan
from torch_bottleneck.runs.store import partial_name
from torch_bottleneck.watching import asking
from torch_bottleneck.watching.asking import diagnose_running

MS = 1_000_000


class Job:
    """A watched job in this process."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.process = folder / "main"
        self.began_ns = perf_counter_ns()
        self.run = WatchedRun(Plan(script="train.py", out=str(folder), watch=True, quiet=True, **options))
        self.run.arm()
        self.job = self.run._job

    def close(self, error: BaseException | None = None) -> Watch:
        self.run.close(error)
        wall_s = (perf_counter_ns() - self.began_ns) / 1e9
        told = write_account(
            self.process, began_ns=self.began_ns, wall_s=wall_s, exit_code=0, outcome="it ended."
        )
        assert sum(line.s for line in told.account) == pytest.approx(told.wall_s, rel=0.01)
        return told


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    made: list[Job] = []

    def make(**options: Any) -> Job:
        made.append(Job(tmp_path / "run", **options))
        return made[-1]

    yield make
    for one in made:
        one.run.close(None)


def train(until: Callable[[], bool], *, most: int = 6000, end: Callable[[int], None] | None = None) -> int:
    """Train on a loader until something holds after a step; return the steps."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(400, 8)), batch_size=4)
    steps = 0
    while True:
        for (x,) in loader:
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            time.sleep(0.001)
            optimizer.step()
            steps += 1
            if end is not None:
                end(steps)
            if until() or steps == most:
                return steps


def test_a_question_is_answered_by_a_run_folder_and_the_watch_goes_on(job: Callable[..., Job]) -> None:
    watched = job(max_seconds=2.0)
    original = DataLoader.__iter__
    working = partial_name(watched.process)
    asked: list[Path] = []

    def ask(steps: int) -> None:
        if steps == 150:
            asked.append(ask_for_capture(working))

    steps = train(lambda: bool(watched.job.captures), end=ask)
    assert active() is watched.run.steps
    assert DataLoader.__iter__ is original
    after = train(lambda: False, most=100)
    told = watched.close()
    # The last step is not cut.
    assert told.steps in (steps + after - 1, steps + after)
    assert not told.problem
    assert not is_asked(watched.process)
    (taken,) = told.captures
    assert taken.step >= 100
    assert 20 <= taken.steps < steps
    assert taken.folder == asked[0].relative_to(working).as_posix() == "captures/1"
    parts = {line.part: line for line in told.account}
    assert 0 < parts["bottleneck"].s <= taken.took_s + 1.0
    assert parts["training steps"].count >= told.steps - 20
    assert captures_in(watched.process) == [watched.process / "captures/1"]
    run = read_run(watched.process / "captures/1/run.json")
    assert (run.outcome.how, run.step_signal, run.watched) == ("finished", "optimizer+fetch", False)
    assert run.artefacts["trace"].status == "ok"
    assert {"baseline", "trace"} <= {window.name for window in run.windows}
    assert "harness" not in run.artefacts
    # The loader was built, and its epoch began, before the capture did.
    (loader,) = msgspec.json.decode(
        (watched.process / "captures/1/loader.json").read_bytes(), type=list[LoaderFacts]
    )
    assert (loader.cls, loader.batch_size) == ("DataLoader", 4)


def test_a_script_that_ends_in_a_capture_leaves_what_was_captured(job: Callable[..., Job]) -> None:
    watched = job()

    def ask(steps: int) -> None:
        if steps == 100:
            ask_for_capture(partial_name(watched.process))

    train(lambda: any(partial_name(watched.process).glob("captures/.1.partial")), end=ask)
    train(lambda: False, most=15)
    told = watched.close(ValueError("too bad"))
    assert [taken.folder for taken in told.captures] == ["captures/1"]
    run = read_run(watched.process / "captures/1/run.json")
    assert run.outcome.how == "finished"
    assert active() is None


def test_the_signal_asks_and_is_given_back(job: Callable[..., Job]) -> None:
    watched = job(on_signal="SIGUSR2")
    assert not watched.job.wants_capture
    os.kill(os.getpid(), signal.SIGUSR2)
    assert watched.job.wants_capture
    if (child := os.fork()) == 0:
        left = signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
        os._exit(0 if left else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    told = watched.close()
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
    assert not told.notes


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_handler_of_the_scripts_own_stays_and_is_told(job: Callable[..., Job], when: str) -> None:
    def own(number: int, frame: object) -> None:
        """Of the script."""

    with contextlib.ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGUSR2, signal.SIG_DFL)
        if when == "before":
            signal.signal(signal.SIGUSR2, own)
        watched = job(on_signal="SIGUSR2")
        signal.signal(signal.SIGUSR2, own)
        os.kill(os.getpid(), signal.SIGUSR2)
        told = watched.close()
        assert signal.getsignal(signal.SIGUSR2) is own
    assert not watched.job.wants_capture
    assert len(told.notes) == 1
    assert "its own use for SIGUSR2" in told.notes[0]


def test_what_a_capture_takes_beyond_usual_steps_is_ours() -> None:
    account = Account()
    for i in range(60):
        account.step(
            Stretch(Row(index=i, start_ns=i * 10 * MS, wall_ms=10.0, phases_ns={"forward": 8 * MS})), []
        )
    samples = [Sample(700 * MS, 50 * MS, "evaluation", None), Sample(800 * MS, 30 * MS, "forward", None)]
    account.captured(Captured(600 * MS, 1100 * MS, 20), samples, paused_ns=100 * MS)
    parts = {name: (round(part.s * 1e3), part.count) for name, part in account.parts().items()}
    assert parts == {
        "training steps": (800, 80),
        "validation": (50, 1),
        "pauses": (100, 1),
        "bottleneck": (150, 1),
    }
    assert account.steps == 80


# -- from another terminal -------------------------------------------------------------------------


def test_captures_are_numbered_and_one_under_way_answers(tmp_path: Path) -> None:
    assert next_capture(tmp_path).name == "1"
    assert ask_for_capture(tmp_path) == tmp_path / "captures/1"
    assert take_question(tmp_path)
    assert not take_question(tmp_path)
    (tmp_path / "captures/9").mkdir(parents=True)
    (tmp_path / "captures/.10.partial").mkdir()
    assert ask_for_capture(tmp_path) == tmp_path / "captures/10"
    assert not is_asked(tmp_path)
    assert next_capture(tmp_path).name == "11"
    assert [path.name for path in captures_in(tmp_path)] == ["9"]


def test_a_run_that_does_not_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ANSWER_SECONDS", 0.1)
    run = tmp_path / "run"

    def refused() -> str:
        with pytest.raises(InputError) as error:
            diagnose_running(run, say=print)
        return str(error.value)

    assert "No run is written" in refused()
    process = partial_name(run) / ".main.partial"
    process.mkdir(parents=True)
    assert "was killed" in refused()
    put_aside(partial_name(run), "main", alone=True)
    try:
        assert "just beginning or ending" in refused()
        process.mkdir(parents=True)
        assert "is none of `bottleneck watch`" in refused()
        (process / "watch-record.json").write_bytes(msgspec.json.encode(JobRecord(began_ns=0, at_ns=1)))
        assert "does not answer" in refused()
        assert not is_asked(process)
    finally:
        release()
    run.mkdir()
    assert "has ended" in refused()


def test_the_answer_is_found_also_when_the_job_ends_meanwhile(tmp_path: Path) -> None:
    run = tmp_path / "run"
    put_aside(partial_name(run), "main", alone=True)
    process = partial_name(run) / ".main.partial"
    process.mkdir(parents=True)
    (process / "watch-record.json").write_bytes(msgspec.json.encode(JobRecord(began_ns=0, at_ns=1)))

    def be_the_job() -> None:
        while not take_question(process):
            time.sleep(0.01)
        (process / "captures/1").mkdir(parents=True)
        (process / "captures/1/diagnosis.json").touch()
        partial_name(run).rename(run)
        (run / ".main.partial/captures").rename(run / "captures")
        release()

    other = threading.Thread(target=be_the_job)
    other.start()
    found = diagnose_running(partial_name(run), say=print)
    other.join()
    assert found.relative_to(tmp_path).parts[-2:] == ("captures", "1")
