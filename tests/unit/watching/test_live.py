"""The live view of a job: what it shows, and that a terminal that goes away is no error."""

from __future__ import annotations

import io
import signal
from pathlib import Path

import msgspec
import pytest

from torch_bottleneck.model.watch import RECORD_FILE, CaptureTaken, Change, Growth, JobRecord, PartTime
from torch_bottleneck.reporters.rows.live import live_lines, live_rows
from torch_bottleneck.runs.store import partial_name
from torch_bottleneck.watching import live as module
from torch_bottleneck.watching.live import LiveView

SECOND = 1_000_000_000


def record(seconds: float, **parts: float) -> JobRecord:
    """A job after so many seconds, with seconds by part."""
    return JobRecord(
        began_ns=0,
        at_ns=round(seconds * SECOND),
        parts={name.replace("_", " "): PartTime(s=s, count=1) for name, s in parts.items()},
        steps=round(parts.get("training_steps", 0.0) * 100),
        usual_ms=10.0,
        best_ms=9.0,
    )


class Terminal(io.StringIO):
    """A terminal that may go away."""

    gone = False

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.gone:
            raise OSError(5, "Input/output error")
        return super().write(text)


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a job that runs, and a clock that stands until it is moved."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "30")
    partial_name(tmp_path / "main").mkdir()
    return tmp_path / "main"


def write(process: Path, told: JobRecord) -> None:
    (partial_name(process) / RECORD_FILE).write_bytes(msgspec.json.encode(told))


def test_the_last_minute_has_shares_of_its_own() -> None:
    ago = record(140, validation=85, training_steps=55)
    rows = live_rows(record(200, validation=100, training_steps=100), ago)
    assert [(row.part, row.share, row.lately) for row in rows] == [
        ("training steps", "50 %", "75 %"),
        ("validation", "50 %", "25 %"),
    ]
    assert [row.lately for row in live_rows(record(10, training_steps=10), None)] == ["100 %"]


def test_the_lines_tell_pace_growth_changes_and_captures() -> None:
    grown = Growth(
        what="self.outputs", ms_per_1000_steps=3.1, low=2, high=4, objects_per_step=1.0,
        kind="tensors in list", step_ms=10.0, at_step=500,
    )  # fmt: skip
    now = msgspec.structs.replace(
        record(120, training_steps=100.0),
        growth=[grown],
        changes=[Change(step=700, ratio=1.3)],
        captures=[CaptureTaken(folder="captures/1", step=90, steps=20, at_s=1.0, took_s=2.0)],
        notes=["The script has its own use for SIGUSR1."],
    )
    lines = list(live_lines(now, msgspec.structs.replace(record(60), usual_ms=8.0)))
    assert lines[0].startswith("2 min 00 s, step 10000, 10.0 ms, goodput 75 %, growing by 3.10 ms")
    assert "10.0 ms now, 8.00 ms 1 min 00 s ago" in lines[1]
    assert "self.outputs gains 1 a step" in lines[2]
    assert "1.30 times" in lines[3]
    assert "captures/1" in lines[4]
    assert "SIGUSR1" in lines[5]


def test_a_terminal_is_taken_over_and_given_back(process: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, said = Terminal(), list[str]()
    before = signal.getsignal(signal.SIGWINCH)
    view = LiveView(process, title="train.py --lr 1", say=said.append, stream=terminal)
    view.attend()
    write(process, record(10, training_steps=10.0))
    for now in (1e9, 1e9 + 0.5, 1e9 + 2):
        monkeypatch.setattr(module, "monotonic", lambda now=now: now)
        view.attend()
    assert signal.getsignal(signal.SIGWINCH) == before
    shown = terminal.getvalue()
    assert "\x1b[?1049h" in shown and "\x1b[?1049l" not in shown
    assert shown.count("train.py --lr 1") == 2
    assert "training steps" in shown and "last minute" in shown
    view.close()
    view.close()
    assert terminal.getvalue().count("\x1b[?1049l") == 1
    assert not said


def test_a_terminal_that_goes_away_disturbs_nothing(process: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    view = LiveView(process, title="train.py", say=lambda text: pytest.fail(text), stream=terminal)
    write(process, record(10, training_steps=10.0))
    view.attend()
    terminal.gone = True
    for now in (1e9, 2e9):
        monkeypatch.setattr(module, "monotonic", lambda now=now: now)
        view.attend()
    view.close()


def test_elsewhere_there_is_a_line_now_and_then(process: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    view = LiveView(process, title="train.py", say=said.append, stream=io.StringIO())
    for second in range(25):
        monkeypatch.setattr(module, "monotonic", lambda second=second: 1e6 + second)
        write(process, record(second, training_steps=second))
        view.attend()
    view.close()
    assert said == ["10.0 s, step 1000, 10.0 ms, goodput 90 %", "20.0 s, step 2000, 10.0 ms, goodput 90 %"]
