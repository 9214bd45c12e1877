"""Slow drift: told from a series of runs, and only from runs that belong to one series."""

from __future__ import annotations

import datetime as dt
import os

import pytest
from unit.compare.sides import baseline, counters, runs

from torch_bottleneck.cli.main import run
from torch_bottleneck.compare.baseline_file import write_baseline
from torch_bottleneck.compare.history import Entry, append, entry_of, find_drifts, read_history
from torch_bottleneck.errors import InputError
from torch_bottleneck.model.gate import CounterLimit, GateSettings

NOISE = (0.3, -0.2, 0.1, -0.4, 0.2, 0.0, -0.1, 0.4, -0.3, 0.1, 0.2, -0.2)


def series(times, **counters_of) -> list[Entry]:
    return [
        Entry(
            created=f"2026-01-{day + 1:02}",
            series="s",
            step_ms=ms,
            runs=3,
            counters={name: values[day] for name, values in counters_of.items()},
        )
        for day, ms in enumerate(times)
    ]


def test_a_rise_that_no_single_run_shows_is_drift():
    rising = [10.0 + 0.12 * day + 0.2 * NOISE[day] for day in range(12)]
    drifts = find_drifts(series(rising), GateSettings())
    assert [drift.what for drift in drifts] == ["time"]
    assert 0.1 < drifts[0].growth < 0.2


def test_noise_alone_is_none():
    assert find_drifts(series([10 + noise for noise in NOISE]), GateSettings()) == ()


def test_a_rise_below_the_tolerance_is_none_however_certain():
    assert find_drifts(series([10.0 + 0.02 * day for day in range(12)]), GateSettings()) == ()


def test_few_runs_show_no_drift():
    assert find_drifts(series([10.0, 11.0, 12.0, 13.0]), GateSettings()) == ()


def test_a_falling_step_is_no_drift():
    assert find_drifts(series([20.0 - day for day in range(12)]), GateSettings()) == ()


def test_counters_that_creep_within_their_tolerance_are_drift():
    creeping = [200.0, 203.0, 206.0, 209.0]
    drifts = find_drifts(series([10.0] * 4, operators=creeping), GateSettings())
    assert [(drift.what, drift.p_value) for drift in drifts] == [("operators", None)]
    limits = {"operators": CounterLimit(gate=False)}
    assert find_drifts(series([10.0] * 4, operators=creeping), GateSettings(counters=limits)) == ()


def test_counters_that_went_up_and_down_are_none():
    assert find_drifts(series([10.0] * 4, operators=[200.0, 210.0, 205.0, 209.0]), GateSettings()) == ()


def test_only_the_last_runs_are_looked_at():
    entries = series([10.0 + 0.3 * day for day in range(12)] + [13.6] * 10)
    assert find_drifts(entries, GateSettings(history_runs=10)) == ()


def test_entries_come_back_in_order_and_a_new_baseline_begins_a_new_series(tmp_path):
    start = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    for day in (2, 0, 1):
        head = baseline(runs=runs(10.0 + day))
        append(tmp_path, entry_of(head, against="one", now=start + dt.timedelta(days=day)))
    key = entry_of(baseline(), against="one").series
    assert [entry.step_ms for entry in read_history(tmp_path, key)] == [10.0, 11.0, 12.0]
    assert read_history(tmp_path, entry_of(baseline(), against="two").series) == []
    other = entry_of(baseline(title="other.py"), against="one")
    assert other.series != key


def test_a_folder_that_is_not_there_yet_has_no_history(tmp_path):
    assert read_history(tmp_path / "none", "s") == []


def test_old_entries_are_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr("torch_bottleneck.compare.history._KEPT", 3)
    start = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    for day in range(5):
        append(tmp_path, entry_of(baseline(counters=counters()), now=start + dt.timedelta(days=day)))
    assert len(list(tmp_path.glob("*.json"))) == 3


@pytest.mark.parametrize("text", ["", "[]", '{"created": 1}', '{"format": 9, "created": "", "series": "s"}'])
def test_a_file_that_is_no_entry_is_named(tmp_path, text):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(InputError, match=r"bad\.json"):
        read_history(tmp_path, "s")


def test_an_entry_that_another_gate_drops_meanwhile_is_passed_over(tmp_path):
    append(tmp_path, entry_of(baseline()))
    (tmp_path / "gone.json").symlink_to("nowhere")
    assert len(read_history(tmp_path, entry_of(baseline()).series)) == 1


def test_gates_that_write_at_once_lose_nothing(tmp_path):
    """Each entry is a file of its own; one process stands for each gate."""
    start = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    children = []
    for _ in range(8):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for day in range(10):
                    append(tmp_path, entry_of(baseline(), now=start + dt.timedelta(days=day)))
                    read_history(tmp_path, "s")
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 8
    assert len(read_history(tmp_path, entry_of(baseline()).series)) == 80


def test_a_history_that_cannot_be_written_is_said_before_anything_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    write_baseline(baseline(), tmp_path / "base.json")
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, how: "locked" not in str(path) and allowed(path, how))
    (tmp_path / "locked").mkdir()
    assert run(["gate", "--baseline", "base.json", "--history", "locked/past", "train.py"]) == 2
    assert "no permission in" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
