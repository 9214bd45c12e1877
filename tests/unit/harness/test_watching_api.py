"""`Harness(watch=True)`: the job of a program that marks its own steps, watched and left alone."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import jsonschema
import msgspec
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from torch_bottleneck import Harness
from torch_bottleneck.harness.windows.presence import active
from torch_bottleneck.harness.windows.tracker import Tracker
from torch_bottleneck.model.documents import load_watch, read_run
from torch_bottleneck.model.schema import schema_of
from torch_bottleneck.model.watch import Watch
from torch_bottleneck.reporters.output import render_for

EPOCHS, BATCHES = 3, 20


def train(harness: Harness, *, fails: bool = False) -> None:
    """Sixty steps without an optimizer, which no step rule would find, and a pause after each epoch."""
    model = torch.nn.Linear(4, 4)
    loader = DataLoader(TensorDataset(torch.randn(BATCHES * 2, 4)), batch_size=2)
    for _ in range(EPOCHS):
        for (x,) in harness.batches(loader):
            with harness.step(), harness.label("mine"):
                model(x).sum().backward()
                time.sleep(0.005)
        with torch.no_grad():
            for _ in range(4):
                model(torch.randn(2, 4))
                time.sleep(0.02)
    if fails:
        raise ValueError("too bad")


def watched(folder: Path) -> Watch:
    watch = load_watch(folder)
    jsonschema.validate(msgspec.to_builtins(watch), schema_of(Watch))
    assert sum(line.s for line in watch.account) == pytest.approx(watch.wall_s, rel=0.01)
    return watch


def test_the_marked_steps_and_what_lies_beside_them_are_accounted(tmp_path: Path) -> None:
    original, threads = DataLoader.__iter__, threading.active_count()
    began = time.perf_counter()
    with Harness(tmp_path / "run", watch=True, quiet=True) as harness:
        assert not harness.done
        train(harness)
    took_s = time.perf_counter() - began
    assert harness.folder == tmp_path / "run"
    watch = watched(harness.folder)
    assert watch.steps == EPOCHS * BATCHES
    assert watch.wall_s == pytest.approx(took_s, rel=0.2)
    assert watch.explained_share >= 0.9
    parts = {line.part: line for line in watch.account}
    assert parts["training steps"].count >= EPOCHS * BATCHES - 1
    assert parts["validation"].count == EPOCHS
    assert (watch.exit_code, watch.outcome) == (0, "the block ended by itself.")
    assert "Where the job goes" in render_for(watch, "text")
    run = read_run(harness.folder / "run.json")
    assert (run.step_signal, run.outcome.how, run.watched) == ("api", "finished", True)
    # Nothing of ours stays.
    assert DataLoader.__iter__ is original
    assert threading.active_count() == threads
    assert active() is None


def test_an_error_of_the_program_passes_and_is_told(tmp_path: Path) -> None:
    harness = Harness(tmp_path / "run", watch=True, quiet=True)
    with pytest.raises(ValueError, match="too bad"), harness:
        train(harness, fails=True)
    assert harness.folder is not None
    watch = watched(harness.folder)
    assert watch.exit_code == 1
    assert watch.outcome == "the block was left by ValueError: too bad"
    assert read_run(harness.folder / "run.json").outcome.how == "raised"


def test_the_same_harness_watches_nothing_after_the_block(tmp_path: Path) -> None:
    with Harness(tmp_path / "run", watch=True, quiet=True) as harness:
        pass
    with harness.step(), harness.label("late"):
        pass
    assert harness.folder is not None
    assert watched(harness.folder).steps == 0


@pytest.mark.parametrize("watch", [True, False])
def test_inside_of_a_watched_block_a_harness_only_passes_steps_on(tmp_path: Path, *, watch: bool) -> None:
    with Harness(tmp_path / "outer", watch=True, quiet=True) as outer:
        with Harness(tmp_path / "inner", watch=watch, quiet=True) as inner:
            assert not inner.captures
            with inner.step():
                pass
        train(outer)
    assert not (tmp_path / "inner").exists()
    assert watched(tmp_path / "outer").steps == EPOCHS * BATCHES


@pytest.mark.parametrize("watch", [True, False])
def test_a_fault_of_ours_at_the_end_of_a_step_stays_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, watch: bool
) -> None:
    def fail(self: Tracker, now: int, *, paused: bool = False) -> bool:
        raise RuntimeError("of ours")

    with Harness(tmp_path / "run", watch=watch, quiet=True) as harness:
        monkeypatch.setattr(Tracker, "cut", fail)
        for _ in range(3):
            with harness.step():
                pass
    assert harness.folder is not None
    told = load_watch(harness.folder).problem if watch else read_run(harness.folder / "run.json").artefacts
    assert "of ours" in (told if isinstance(told, str) else told["harness"].reason or "")
