"""What is refused, what is only told."""

from __future__ import annotations

import msgspec
import pytest
from unit.compare.sides import baseline, site, workload

from torch_bottleneck.compare.comparable import changed_settings, mismatches
from torch_bottleneck.model.baseline import Machine, StateRow
from torch_bottleneck.model.work import LoaderArguments, OptimizerArguments

CPU = baseline().machine


def machine(**changes) -> Machine:
    return msgspec.structs.replace(CPU, **changes)


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("device", {"machine": machine(device_kind="cuda", device_name="NVIDIA H200")}),
        ("torch", {"machine": machine(torch="2.12.0+cpu")}),
        ("world-size", {"workload": workload(world_size=2)}),
        ("batch", {"workload": workload(batch=("float32[32, 32]", "int64[32]"))}),
        ("step", {"workload": workload(micro_steps=4.0)}),
        ("step", {"workload": workload(step_signal="backward")}),
    ],
)
def test_what_must_agree_is_refused_by_name_and_can_be_allowed(what, changes):
    found = mismatches(baseline(), baseline(**changes))
    assert [row.what for row in found] == [what]
    assert not found[0].allowed
    assert mismatches(baseline(), baseline(**changes), allow=(what,))[0].allowed


def test_two_models_of_gpu_are_two_devices_and_two_models_of_cpu_are_not():
    h200 = machine(device_kind="cuda", device_name="NVIDIA H200")
    a100 = machine(device_kind="cuda", device_name="NVIDIA A100")
    assert mismatches(baseline(machine=h200), baseline(machine=a100))
    assert not mismatches(baseline(), baseline(machine=machine(cpu="Xeon", device_name="Xeon", cores=4)))


def test_builds_of_one_torch_version_are_comparable():
    assert not mismatches(baseline(), baseline(machine=machine(torch="2.13.0+cu130")))


def test_batches_seen_only_by_their_size_are_compared_by_it():
    def loose(elements: int):
        return baseline(workload=workload(batch=(), batch_elements=elements))

    assert mismatches(loose(528), loose(1056))[0].what == "batch"
    assert not mismatches(loose(528), loose(528))


def test_what_is_not_known_is_no_mismatch():
    assert not mismatches(baseline(workload=None), baseline())
    assert not mismatches(baseline(machine=Machine()), baseline())


def changes(one, other) -> dict[str, tuple[str, str]]:
    return {row.name: (row.base, row.head) for row in changed_settings(one, other)}


def test_switches_are_told_by_their_state():
    off = (StateRow(name="fused optimizer", state="off", value="AdamW for-loop"),)
    assert changes(baseline(), baseline(acceleration=off))["fused optimizer"] == (
        "on (AdamW fused)",
        "off (AdamW for-loop)",
    )
    unknown = (StateRow(name="fused optimizer", state="unknown"),)
    assert "fused optimizer" not in changes(baseline(), baseline(acceleration=unknown))


def test_loader_arguments_name_the_loader_and_its_line():
    more = (LoaderArguments(cls="DataLoader", role="train", batch_size=16, num_workers=2, site=site(8)),)
    rows = changed_settings(baseline(), baseline(workload=workload(loaders=more)))
    row = next(row for row in rows if "num_workers" in row.name)
    assert (row.name, row.base, row.head) == ("train loader: num_workers", "0", "2")
    assert row.site == site(8)


def test_another_optimizer_other_settings_and_arguments_are_told():
    adam = (OptimizerArguments(cls="Adam", flavour="for-loop"),)
    other = baseline(
        workload=workload(optimizers=adam),
        settings={"matmul.precision": "high", "environment.OMP_NUM_THREADS": "1"},
        command=("train.py", "--fast"),
    )
    found = changes(baseline(), other)
    assert found["optimizer"] == ("AdamW fused", "Adam for-loop")
    assert found["matmul.precision"] == ("highest", "high")
    assert found["environment.OMP_NUM_THREADS"] == ("not set", "1")
    assert found["arguments"] == ("none", "--fast")


def test_nothing_changed_is_nothing_told():
    assert changed_settings(baseline(), baseline()) == ()
