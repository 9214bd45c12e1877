"""The account of a job from its record: what lies around it, and a file of steps that was cut off."""

from __future__ import annotations

import shutil
from pathlib import Path

import jsonschema
import msgspec
import pytest
from recorded.watched_job import RUN

from torch_bottleneck.files import read_json
from torch_bottleneck.model.schema import schema_of
from torch_bottleneck.model.watch import RECORD_FILE, STEPS_FILE, JobRecord, Watch
from torch_bottleneck.runs.job import UNKNOWN_CODE, left_account, write_account


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUN, tmp_path / "run"))


def account_in(folder: Path) -> Watch:
    """The recorded process, as if it had begun 2 s before its script and ended 1 s after it."""
    record = read_json(folder / RECORD_FILE, JobRecord)
    took_s = (record.at_ns - record.began_ns) / 1e9
    return write_account(
        folder, began_ns=record.began_ns - 2_000_000_000, wall_s=took_s + 3.0, exit_code=0, outcome=""
    )


def test_it_adds_up_and_says_when_its_parts_lay(folder: Path) -> None:
    watch = account_in(folder)
    assert sum(line.s for line in watch.account) == pytest.approx(watch.wall_s, abs=1e-3)
    parts = {line.part: line for line in watch.account}
    assert parts["exit"].s == pytest.approx(1.0, abs=1e-3)
    timeline = watch.timeline
    assert timeline is not None
    assert timeline.begin_s == 2.0
    for part, column in timeline.parts.items():
        before_s = 2.0 if part == "interpreter and imports" else 0.0
        assert sum(column) + before_s == pytest.approx(parts[part].s, abs=0.02), part
    assert timeline.steps[-1] == watch.steps
    jsonschema.validate(msgspec.to_builtins(watch), schema_of(Watch))


def test_a_line_that_was_cut_off_is_left_out(folder: Path) -> None:
    whole = account_in(folder).step_times
    file = folder / STEPS_FILE
    file.write_bytes(file.read_bytes()[:-3])
    cut = account_in(folder).step_times
    assert len(cut.step) == len(whole.step) - 1
    file.unlink()
    assert account_in(folder).step_times.step == []


def test_many_lines_become_few_points_with_the_same_mean(folder: Path) -> None:
    lines = [f"[{i * 8},8,{2.0 + i % 2}]" for i in range(5000)]
    (folder / STEPS_FILE).write_text("\n".join(lines))
    times = account_in(folder).step_times
    assert 200 < len(times.step) <= 400
    assert times.step == sorted(times.step)
    assert sum(times.ms) / len(times.ms) == pytest.approx(2.5, abs=0.02)


@pytest.mark.parametrize("place", [".run.partial/.main.partial", "run.left/main", "run"])
def test_a_job_that_was_killed_with_its_command_is_told_as_far_as_it_had_written(
    tmp_path: Path, place: str
) -> None:
    shutil.copytree(RUN, tmp_path / place)
    (tmp_path / place / "watch.json").unlink()
    watch = left_account(tmp_path / ("run.left" if "left" in place else "run"))
    assert watch is not None
    assert watch.steps == 2560
    assert watch.exit_code == UNKNOWN_CODE
    assert "was killed" in watch.outcome
    assert sum(line.s for line in watch.account) == pytest.approx(watch.wall_s, rel=0.01)
    assert not list(tmp_path.glob("**/watch.json"))


def test_a_folder_without_a_record_has_no_account(tmp_path: Path) -> None:
    assert left_account(tmp_path) is None
    assert left_account(tmp_path / "nothing") is None
