"""When StopRun is raised, and what happens when it does not help."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from torch_bottleneck.harness.process.progress import Progress
from torch_bottleneck.harness.process.runner import strip_frames
from torch_bottleneck.harness.process.stopping import Stopper, StopRun


@pytest.fixture
def stopper() -> Iterator[Stopper]:
    """A stopper whose watchdog does not outlive the test."""
    made = Stopper(max_raises=3, grace_seconds=60, patience_seconds=0.05)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGRTMAX - 3)}
    yield made
    made.stand_down()
    made.uninstall_signals()
    assert {number: signal.getsignal(number) for number in before} == before, "a handler stayed behind"


class Ended(Exception):
    """Stands for the end of the process."""


def end(reason: str) -> None:
    raise Ended(reason)


def test_nothing_is_raised_unless_asked_for(stopper: Stopper) -> None:
    stopper.safe_point()
    assert not stopper.requested
    assert not stopper.under_way


def test_a_request_is_raised_at_each_safe_point_until_enough_is_enough(stopper: Stopper) -> None:
    stopper.last_resort(end)  # type: ignore[arg-type]
    calls: list[str] = []
    stopper.before_raise(lambda: calls.append("divert"))
    stopper.request()
    for _ in range(3):
        with pytest.raises(StopRun):
            stopper.safe_point()
    with pytest.raises(Ended, match="swallowed"):
        stopper.safe_point()
    assert calls == ["divert"], "once, before the first"


def test_an_except_exception_does_not_see_it(stopper: Stopper) -> None:
    def script() -> None:
        try:
            stopper.safe_point()
        except Exception:
            pytest.fail("seen")

    stopper.request()
    with pytest.raises(StopRun):
        script()


def test_after_release_no_more_is_raised(stopper: Stopper) -> None:
    stopper.request()
    stopper.release()
    stopper.safe_point()


def test_the_watchdog_ends_a_process_that_hangs() -> None:
    ended = threading.Event()

    def hold_it_for_good(_reason: str) -> NoReturn:
        # Returning, even after a long sleep, would let it end the process that runs the tests.
        ended.set()
        while True:
            threading.Event().wait()

    stopper = Stopper(grace_seconds=0.05)
    stopper.last_resort(hold_it_for_good)
    stopper.request()
    with pytest.raises(StopRun):
        stopper.safe_point()
    assert ended.wait(5)


def test_the_first_safe_point_is_announced_once(stopper: Stopper) -> None:
    calls: list[int] = []
    stopper.at_first_safe_point(lambda: calls.append(1))
    stopper.safe_point()
    stopper.safe_point()
    assert calls == [1]


def test_ctrl_c_before_training_is_python_s(stopper: Stopper) -> None:
    stopper.install_signals()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert not stopper.requested


def test_ctrl_c_while_training_stops_at_the_next_safe_point(
    stopper: Stopper, capsys: pytest.CaptureFixture[str]
) -> None:
    stopper.install_signals()
    stopper.safe_point()
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)  # the same press, handed on by the parent
    assert stopper.interrupted
    assert "Ctrl-C again" in capsys.readouterr().err
    with pytest.raises(StopRun):
        stopper.safe_point()


def test_ctrl_c_without_a_safe_point_stops_wherever_it_stands(stopper: Stopper) -> None:
    stopper.install_signals()
    stopper.safe_point()
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(StopRun):
        time.sleep(60)


def test_a_handler_of_the_script_s_own_is_left_alone(stopper: Stopper) -> None:
    mine = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        stopper.install_signals()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        stopper.uninstall_signals()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, mine)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the progress line sees; it passes when a test says so."""
    now = [0.0]
    monkeypatch.setattr("torch_bottleneck.harness.process.progress.monotonic", lambda: now[0])
    return now


@pytest.mark.usefixtures("clock")
def test_progress_is_a_plain_line_now_and_then_away_from_a_terminal() -> None:
    stream = io.StringIO()
    progress = Progress(stream=stream)
    progress.window("baseline", 20)
    for number in range(20):
        progress.step(number, 1.5)
    progress.note("said")
    progress.window("trace", 1)
    told = "bottleneck: baseline window, 20 steps\nbottleneck: said\nbottleneck: trace window, 1 step\n"
    assert stream.getvalue() == told


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_rewrites_one_line_on_a_terminal_and_takes_it_away(clock: list[float]) -> None:
    stream = Terminal()
    progress = Progress(stream=stream)
    progress.window("trace", 8)
    progress.step(2, 12.345)
    clock[0] = 0.11
    progress.step(3, 12.345)
    progress.clear()
    text = stream.getvalue()
    assert "step 2" not in text
    assert "trace: step 3 of 8, 12.3 ms" in text
    assert "\n" not in text
    assert text.endswith("\r\x1b[K")


@pytest.mark.parametrize("closed", [True, False])
def test_progress_never_fails_the_script(closed: bool) -> None:
    stream = io.StringIO()
    progress = Progress(stream=stream, quiet=not closed)
    if closed:
        stream.close()
    progress.window("trace", 8)
    progress.note("x")
    assert closed or stream.getvalue() == ""


def test_another_rank_is_silent_until_it_turns_out_to_be_the_first() -> None:
    stream = io.StringIO()
    progress = Progress(stream=stream, rank=1)
    progress.note("one")
    progress.speak_for(0)
    progress.note("two")
    assert stream.getvalue() == "bottleneck: two\n"


def test_frames_of_ours_are_taken_out_of_a_traceback_wherever_they_stand() -> None:
    space: dict[str, object] = {}
    ours = strip_frames.__code__.co_filename
    exec(compile("def relay(f): f()", ours, "exec"), space)

    def fails() -> None:
        raise ValueError

    with pytest.raises(ValueError) as caught:
        space["relay"](fails)  # type: ignore[operator]
    names = []
    trace = strip_frames(caught.value.__traceback__)
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert names[-1] == "fails"
    assert "relay" not in names


def sleep_until_stopped(seconds: float) -> bool:
    """Stand for a parent that waits for a result; say whether it was stopped."""
    try:
        time.sleep(seconds)
    except StopRun:
        return True
    return False


def test_a_parent_that_waits_behind_its_stopped_children_is_stopped(
    stopper: Stopper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch_bottleneck.harness.process.stopping.CHILDREN_SECONDS", 0.3)
    stopper.install_signals()
    alive_until = time.monotonic() + 0.5
    stopper.follow_children(lambda: time.monotonic() < alive_until)
    assert stopper.wake is not None
    signal.raise_signal(stopper.wake)  # type: ignore[arg-type]  # a real-time one has no name
    assert sleep_until_stopped(60)
    assert time.monotonic() >= alive_until, "not before the last child has gone"


def test_a_parent_that_trains_as_well_goes_on(stopper: Stopper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_bottleneck.harness.process.stopping.CHILDREN_SECONDS", 0.2)
    stopper.install_signals()
    stopper.follow_children(lambda: False)
    stopper.safe_point()
    assert stopper.wake is not None
    signal.raise_signal(stopper.wake)  # type: ignore[arg-type]  # a real-time one has no name
    assert not sleep_until_stopped(1.0)
    assert not stopper.requested


def test_a_process_that_is_ended_at_once_leaves_no_folder_of_multiprocessing(tmp_path: Path) -> None:
    program = """
import multiprocessing, multiprocessing.util, os
from torch_bottleneck.harness.process.session import _remove_shared_folder
folder = multiprocessing.util.get_temp_dir()
child = multiprocessing.get_context("fork").Process(target=_remove_shared_folder)
child.start(); child.join()
kept = os.path.exists(folder)
_remove_shared_folder()
print(kept, os.path.exists(folder), flush=True)
os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.stdout.split() == ["True", "False"], "of its own, and not of its parent"
    assert list(tmp_path.iterdir()) == []
