"""A process asks what to try and waits; the one that started it answers."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from torch_bottleneck.model.verify import TrialRequest, TryWish, Wish
from torch_bottleneck.runs.asking import answer, ask, find_question

REQUEST = TrialRequest(wishes=(TryWish(wish=Wish(fix="FX301")),), seconds=3.0)


def process_folder(working: Path) -> Path:
    folder = working / ".main.partial"
    folder.mkdir(parents=True)
    return folder


def test_the_answer_arrives_and_no_file_is_left(tmp_path: Path) -> None:
    folder = process_folder(tmp_path)

    def attend() -> None:
        while (asks := find_question(tmp_path)) is None:
            time.sleep(0.01)
        answer(asks, REQUEST)

    thread = threading.Thread(target=attend)
    thread.start()
    assert ask(folder, seconds=30.0, unless=lambda: False) == REQUEST
    thread.join()
    assert list(folder.iterdir()) == []


def test_nobody_asks_nobody_answers(tmp_path: Path) -> None:
    folder = process_folder(tmp_path)
    assert find_question(tmp_path) is None
    assert ask(folder, seconds=0.05, unless=lambda: False) is None
    assert list(folder.iterdir()) == []


def test_a_wish_to_stop_ends_the_wait(tmp_path: Path) -> None:
    assert ask(process_folder(tmp_path), seconds=60.0, unless=lambda: True) is None


def test_a_question_is_answered_once(tmp_path: Path) -> None:
    folder = process_folder(tmp_path)
    (folder / ".to-try").touch()
    assert find_question(tmp_path) == folder
    answer(folder, REQUEST)
    assert find_question(tmp_path) is None


def test_an_answer_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    folder = process_folder(tmp_path)
    (folder / ".trials").write_bytes(b"{")
    assert ask(folder, seconds=5.0, unless=lambda: False) is None


def test_a_process_that_has_gone_needs_no_answer(tmp_path: Path) -> None:
    answer(tmp_path / "gone", REQUEST)


def test_a_script_that_freezes_the_clocks_and_takes_sleep_away_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the script's process that asks."""
    folder = process_folder(tmp_path)
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    monkeypatch.setattr("time.sleep", None)
    assert ask(folder, seconds=0.05, unless=lambda: False) is None
    assert list(folder.iterdir()) == []
