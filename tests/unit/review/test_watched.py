"""A watched job in TensorBoard: step times and account over steps, its own report, its page."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from recorded.watched_job import RUN, recorded
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from torch_bottleneck.errors import InputError
from torch_bottleneck.review.events import job_scalars
from torch_bottleneck.review.page import PAGE_FILE
from torch_bottleneck.review.prepare import expand, prepare_runs


def refuse(path: Path) -> None:
    raise AssertionError(f"{path} needs no diagnosis")


def test_it_is_prepared_without_a_diagnosis(tmp_path: Path) -> None:
    told: list[str] = []
    prepare_runs(expand([RUN]), tmp_path / "logs", diagnose=refuse, say=told.append)  # type: ignore[arg-type]
    folder = tmp_path / "logs" / "run"
    assert not told
    page = json.loads((folder / PAGE_FILE).read_text())
    assert page["classes"] == ["watched"]
    assert page["budget_title"] == "Where the job goes"
    assert sum(row["share"] for row in page["budget"]) == pytest.approx(1.0, abs=0.01)
    assert "The job over time" in (folder / "report.html").read_text()
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    tags = events.Tags()["tensors"]
    assert {"step_ms/job", "job_s/validation", "job/goodput", "diagnosis"} <= set(tags)
    assert len(events.Tensors("step_ms/job")) == len(recorded().step_times.step)


def test_the_parts_grow_over_the_steps_up_to_what_the_account_says() -> None:
    columns: dict[str, list[tuple[int, float]]] = {}
    for tag, step, value, _ in job_scalars(recorded()):
        columns.setdefault(tag, []).append((step, value))
    for line in recorded().account:
        column = columns[f"job_s/{line.part.replace(' ', '_').replace('-', '-')}"]
        assert all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(column)), line.part
        if line.part in ("training steps", "validation", "epoch starts"):
            assert column[-1][1] == pytest.approx(line.s, abs=0.02)


def test_a_folder_of_someone_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="not prepared by bottleneck"):
        prepare_runs([RUN], tmp_path, diagnose=refuse, say=print)  # type: ignore[arg-type]
    assert (tmp_path / "run" / "thesis.txt").exists()
