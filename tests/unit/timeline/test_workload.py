"""What a run worked on, as two runs are held comparable by it."""

from __future__ import annotations

import numpy as np

from torch_bottleneck.model.run import BatchFacts, LoaderFacts, OptimizerFacts, Run, StepTable, Window
from torch_bottleneck.timeline.steps.workload import read_workload

TABLE = StepTable(
    index=[3, 4, 5, 6],
    wall_ms=[1.0, 2.0, 3.0, 4.0],
    batch_elements=[64, 64, 0, 32],
    micro_steps=[2, 2, 2, 2],
)


def run(table: StepTable = TABLE, **changes) -> Run:
    return Run(
        world_size=2,
        step_signal="optimizer",
        windows=[Window(name="baseline", status="ok", steps=table)],
        optimizers=[OptimizerFacts(cls="AdamW", flavour="fused", parameters=3)],
        **changes,
    )


def loader(role: str, fetches: int, shape: str) -> LoaderFacts:
    batch = BatchFacts(tensors=[shape], distinct_shapes=1)
    return LoaderFacts(id=fetches, cls="DataLoader", role=role, fetches=fetches, batch=batch, batch_size=8)


def test_the_batch_is_that_of_the_training_loader_that_was_fetched_from_most():
    loaders = [loader("eval", 90, "eval"), loader("train", 5, "few"), loader("train", 50, "many")]
    found = read_workload(run(), loaders)
    assert found is not None
    assert (found.batch, found.distinct_shapes) == (("many",), 1)
    assert [item.role for item in found.loaders] == ["eval", "train", "train"]
    assert (found.world_size, found.step_signal, found.micro_steps) == (2, "optimizer", 2.0)


def test_without_a_loader_the_batch_is_not_known_and_its_size_is_what_was_seen():
    found = read_workload(run(), None)
    assert found is not None
    assert (found.batch, found.distinct_shapes, found.batch_elements) == ((), None, 64)


def test_only_the_steps_that_count_are_the_sample_of_times():
    found = read_workload(run(), (), np.asarray([True, False, True, True]))
    assert found is not None and found.step_ms == (1.0, 3.0, 4.0)


def test_times_between_device_events_win_where_every_step_has_one():
    import msgspec

    timed = msgspec.structs.replace(TABLE, device_ms=[9.0, 9.5, 9.1, 9.2])
    partly = msgspec.structs.replace(TABLE, device_ms=[9.0, None, 9.1, 9.2])
    found, other = read_workload(run(timed), ()), read_workload(run(partly), ())
    assert found is not None and found.step_ms == (9.0, 9.5, 9.1, 9.2)
    assert other is not None and other.step_ms == (1.0, 2.0, 3.0, 4.0)


def test_a_bare_trace_does_not_tell():
    assert read_workload(None, None) is None
