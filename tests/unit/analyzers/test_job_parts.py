"""The rest of the job, of recorded runs: what comes once, in seconds."""

from __future__ import annotations

import msgspec
import pytest
from recorded.cases import CASES
from recorded.diagnosed import diagnosis_of

from torch_bottleneck.analyzers.sections.job_parts import job_parts
from torch_bottleneck.model.documents import read_run
from torch_bottleneck.model.run import LoaderFacts, Run, StepTable, Window


def run_of(case: str) -> Run:
    return read_run(next(CASES[case].folder.glob("**/run.json")))


def test_compiling_is_what_the_steps_with_a_compilation_took_beyond_usual_ones() -> None:
    run = run_of("cpu-compiled-branches")
    warm_up = run.window("warm-up")
    assert warm_up is not None
    steps = warm_up.steps
    took_ms = sum(ms for ms, compiled in zip(steps.wall_ms, steps.compiled, strict=True) if compiled)
    (compiling,) = (part for part in job_parts(run, (), 5.7) if part.part == "compiling")
    assert compiling.s == pytest.approx(took_ms / 1e3 - 2 * 0.0057, abs=0.002)
    assert compiling.what == "in 2 of the first steps"


def test_the_first_batch_is_taken_out_of_the_first_step() -> None:
    found = {part.part: part for part in diagnosis_of("cpu-short-epochs").job}
    assert found["first batch"].s == pytest.approx(0.194, abs=0.03)
    assert "workers start" in found["first batch"].what
    assert found["first batch"].site is not None
    assert "compiling" not in found


def test_what_lies_before_the_first_step_is_divided_by_the_import_of_torch() -> None:
    run = run_of("cpu-short-epochs")
    warm_up = run.window("warm-up")
    assert warm_up is not None
    began_ns = warm_up.steps.start_ns[0] - 5_000_000_000
    told = msgspec.structs.replace(run, began_ns=began_ns, torch_import_ms=2000.0, install_ms=500.0)
    parts = {part.part: part.s for part in job_parts(told, (), 47.6)}
    assert (parts["import of torch"], parts["set-up"]) == (2.0, 2.5)
    # A program that calls us has begun before.
    assert "set-up" not in {part.part for part in job_parts(run, (), 47.6)}


def test_nothing_is_said_where_the_first_step_was_not_seen() -> None:
    assert job_parts(None, (), 5.0) == ()
    assert job_parts(Run(began_ns=0), (), 5.0) == ()
    late = Window(name="warm-up", status="ok", steps=StepTable(index=[7], start_ns=[1], wall_ms=[9.0]))
    assert job_parts(Run(began_ns=0, windows=[late]), (), 5.0) == ()


def test_without_a_true_step_only_what_lies_before_is_known() -> None:
    first = Window(
        name="warm-up", status="ok", steps=StepTable(index=[0], start_ns=[3_000_000_000], wall_ms=[900.0])
    )
    loader = LoaderFacts(id=0, cls="DataLoader", role="train", num_workers=2)
    parts = job_parts(Run(began_ns=0, windows=[first]), [loader], None)
    assert [(part.part, part.s) for part in parts] == [("set-up", 3.0)]
