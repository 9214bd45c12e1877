"""What the ranks of a process group divide: told by its name, or by which collectives are launched where."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from recorded.cases import CASES
from unit.fleet.jobs import collectives, lane, summary
from unit.timeline.cpu_traces import make_steps
from unit.timeline.traces import BACKWARD, TraceWriter

from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.fleet import phases
from torch_bottleneck.fleet.collectives import collectives_of, message_groups
from torch_bottleneck.fleet.match import match
from torch_bottleneck.fleet.roles import Use, process_groups, roles_of
from torch_bottleneck.ingest import read_trace
from torch_bottleneck.model.diagnosis import GroupRow
from torch_bottleneck.timeline.trace.table import Message, Trace

STEPS = 3
MB = 2**20
NODE = "autograd::engine::evaluate_function: "
ACCUMULATES = f"{NODE}torch::autograd::AccumulateGrad"
Sent = tuple[str, str, int]
"""Phase, collective, bytes."""


def trace_of(*sent: Sent, uneven: bool = False, nodes: bool = True, ddp: bool = False) -> Trace:
    """Steps of 1 ms: a forward, a backward from 310 to 560 µs, the rest, an update from 800 to 900."""
    writer = TraceWriter()
    names = list(dict.fromkeys(collective for _, collective, _ in sent))
    writer.messages = [Message("7", "[0, 1]", name, "undefined", uneven=uneven) for name in names]
    begin = {"forward": 50.0, "backward": 320.0, "behind": 650.0}
    for step in range(STEPS):
        at = 1000.0 * step
        taken = dict.fromkeys(begin, 0)
        if ddp:
            writer.row("DistributedDataParallel.forward", "user_annotation", at + 10.0, 280.0)
        for i in range(10 if nodes else 0):
            name = ACCUMULATES if ddp else f"{NODE}MmBackward0"
            writer.row(name, "cpu_op", at + 310.0 + 25.0 * i, 24.0, BACKWARD)
        writer.row("Optimizer.step#SGD.step", "user_annotation", at + 800.0, 100.0)
        for phase, collective, size in sent:
            when = at + begin[phase] + 25.0 * taken[phase]
            taken[phase] += 1
            kernel = "SendRecv" if collective in ("coalesced", "all_to_allv") else collective
            fields = {"message": names.index(collective), "bytes": size}
            writer.launch(
                when,
                5.0,
                kernel=f"ncclDevKernel_{kernel}",
                start=when + 10.0,
                length=10.0,
                stream=20,
                **fields,
            )
    writer.steps([1000.0 * step for step in range(STEPS + 1)])
    return writer.build()


def group_of(trace: Trace) -> GroupRow:
    steps = make_steps([(1000.0 * step, 1000.0 * (step + 1)) for step in range(STEPS)])
    lanes = [lane(collectives_of(trace, steps), steps=STEPS) for _ in range(2)]
    told = message_groups(trace, None)
    ranks = [summary(rank, [0.0], message_groups=told) for rank in range(2)]
    (row,) = process_groups(lanes, ranks)
    assert row.ranks == (0, 1)
    return row


ALL_REDUCE, GATHER, SCATTER = "allreduce", "_allgather_base", "_reduce_scatter_base"
LAYERS = [("forward", ALL_REDUCE, 4 * MB)] * 4 + [("backward", ALL_REDUCE, 4 * MB)] * 4
SHARDS = [("forward", GATHER, MB)] * 2 + [("backward", GATHER, MB)] * 2 + [("backward", SCATTER, 2 * MB)] * 2
ROUTED = [("forward", "all_to_allv", MB)] * 2 + [("backward", "all_to_allv", MB)] * 2


@pytest.mark.parametrize(
    ("sent", "roles"),
    [
        (LAYERS, ("tensor parallel",)),
        # The forward of a layer is repeated in its backward.
        ([*LAYERS, *[("backward", ALL_REDUCE, 4 * MB)] * 4], ("tensor parallel",)),
        # Sequence parallel: Korthikanti et al. (2022).
        ([("forward", GATHER, MB), ("forward", SCATTER, MB), ("backward", GATHER, MB)], ("tensor parallel",)),
        ([("backward", ALL_REDUCE, 25 * MB)] * 3, ("data parallel",)),
        ([("behind", ALL_REDUCE, MB)] * 4, ("data parallel",)),
        # The statistics of normalisations, and a loss.
        (
            [("forward", ALL_REDUCE, 2048), ("forward", ALL_REDUCE, 4), ("backward", ALL_REDUCE, 25 * MB)],
            ("data parallel",),
        ),
        (SHARDS, ("sharded data parallel",)),
        ([*SHARDS, ("behind", ALL_REDUCE, 4)], ("sharded data parallel",)),
        # ZeRO 1: parameters are gathered behind the update, before the next forward.
        ([("behind", SCATTER, MB), ("forward", GATHER, MB)], ("sharded data parallel",)),
        ([("forward", "coalesced", MB), ("behind", "coalesced", MB)], ("pipeline",)),
        # Keys and values go round in a ring of ranks that divide a sequence.
        ([("forward", "coalesced", MB), ("backward", "coalesced", MB)], ()),
        ([("behind", ALL_REDUCE, 4)], ()),
        ([("forward", "broadcast", MB)], ()),
        ([("forward", GATHER, MB)], ()),
    ],
)
def test_collectives_tell_the_role_by_where_they_are_launched(
    sent: list[Sent], roles: tuple[str, ...]
) -> None:
    row = group_of(trace_of(*sent))
    assert row.roles == roles
    assert row.told_by == ("collectives" if roles else "")


def test_parts_of_different_sizes_are_routed_to_experts_and_equal_ones_may_be_a_sequence() -> None:
    assert group_of(trace_of(*ROUTED, uneven=True)).roles == ("expert parallel",)
    assert group_of(trace_of(*ROUTED)).roles == ()


def test_a_group_that_is_used_for_two_has_both_roles() -> None:
    both = trace_of(*ROUTED, ("behind", ALL_REDUCE, MB), uneven=True)
    assert group_of(both).roles == ("expert parallel", "data parallel")


def test_buckets_of_gradients_tell_data_parallel_whatever_else_is_summed() -> None:
    assert group_of(trace_of(*LAYERS, ddp=True)).roles == ("data parallel",)
    assert group_of(trace_of(*LAYERS)).roles == ("tensor parallel",)


def test_without_the_backward_nothing_is_told() -> None:
    assert group_of(trace_of(*LAYERS, nodes=False)).roles == ()


def test_a_moment_is_forward_before_a_node_and_behind_before_the_update() -> None:
    trace = trace_of(*LAYERS)
    moments = np.asarray([100, 315, 555, 650, 850, 950, 1100, 2950]) * 1000
    known = np.asarray([True] * 6 + [False, True])
    told = phases.phases(trace, moments, launched=known)
    f, b, o = phases.FORWARD, phases.BACKWARD, phases.BEHIND
    assert told.tolist() == [f, b, b, o, o, f, -1, -1]


@pytest.mark.parametrize(
    ("description", "roles"),
    [
        ("mesh_tp", ("tensor parallel",)),
        ("TENSOR_MODEL_PARALLEL_GROUP", ("tensor parallel",)),
        ("mesh_pp", ("pipeline",)),
        ("mesh_dp_replicate", ("data parallel",)),
        ("mesh_dp_shard", ("sharded data parallel",)),
        ("EXPERT_MODEL_PARALLEL_GROUP", ("expert parallel",)),
        ("CONTEXT_PARALLEL_GROUP", ("context parallel",)),
        # Two roles in one name tell none.
        ("EXPERT_DATA_PARALLEL_GROUP", ()),
        ("mesh_dp_shard_cp", ()),
        ("default_pg", ()),
        ("undefined", ()),
        ("adapter_group", ()),
    ],
)
def test_a_name_tells_the_role_if_it_means_one(description: str, roles: tuple[str, ...]) -> None:
    assert roles_of(description, Use()) == (roles, "name" if roles else "")


def test_a_name_is_preferred_and_collectives_tell_whether_parameters_are_divided() -> None:
    layers, shards = Use(), Use()
    for phase in (phases.FORWARD, phases.BACKWARD):
        layers.add(Message("1", "[0, 1]", ALL_REDUCE), MB, phase, 4)
        shards.add(Message("1", "[0, 1]", GATHER), MB, phase, 4)
    shards.add(Message("1", "[0, 1]", SCATTER), MB, phases.BACKWARD, 4)
    assert roles_of("", layers) == (("tensor parallel",), "collectives")
    assert roles_of("mesh_cp", layers) == (("context parallel",), "name")
    assert roles_of("mesh_data", shards) == (("sharded data parallel",), "name")


@pytest.mark.parametrize(
    ("case", "roles"),
    [
        ("ddp-h200", {(0, 1): "data parallel"}),
        ("ddp-buffers-cpu", {(0, 1): "data parallel"}),
        ("fsdp-h200", {(0, 1): "sharded data parallel"}),
    ],
)
def test_recorded_jobs_of_one_group(case: str, roles: dict[tuple[int, ...], str]) -> None:
    fleet = diagnose_paths([CASES[case].folder]).fleet
    assert fleet is not None
    assert {row.ranks: " ".join(row.roles) for row in fleet.groups} == roles
    assert {row.told_by for row in fleet.groups} == {"collectives"}


@pytest.mark.parametrize("named", [True, False])
def test_a_recorded_grid_has_its_roles_with_and_without_the_names_of_its_mesh(
    named: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "grid"
    shutil.copytree(CASES["grid-straggler-h200"].folder, folder)
    for path in [] if named else folder.rglob("*.json.gz"):
        text = gzip.decompress(path.read_bytes())
        for name in (b"mesh_data", b"mesh_tensor"):
            assert name in text
            text = text.replace(name, b"undefined")
        path.write_bytes(gzip.compress(text, 1))
    fleet = diagnose_paths([folder]).fleet
    assert fleet is not None
    assert {row.ranks: row.roles for row in fleet.groups} == {
        (0, 1): ("tensor parallel",),
        (2, 3): ("tensor parallel",),
        (0, 2): ("sharded data parallel",),
        (1, 3): ("sharded data parallel",),
    }
    assert {row.told_by for row in fleet.groups} == {"name" if named else "collectives"}


def test_an_exchange_in_uneven_parts_is_the_same_one_whatever_each_rank_puts_in() -> None:
    message = Message("7", "[0, 1]", "all_to_allv", uneven=True)
    lanes = [
        lane(
            collectives(
                range(1, 5), [0.5] * 4, steps=[0] * 4, sizes=sizes, sequence=range(4), message=message
            ),
            steps=1,
            numbers=[0],
        )
        for sizes in ([10, 20, 30, 40], [11, 25, 31, 47])
    ]
    (group,) = match(lanes).groups
    assert group.rows.tolist() == [[k, k] for k in range(4)]


@pytest.mark.parametrize(
    ("in_split", "out_split", "uneven"),
    [([], [], False), ([64, 64], [64, 64], False), ([0, 64], [64, 0], False), ([60, 68], [64, 64], True)],
)
def test_a_trace_tells_the_group_and_whether_parts_differ(
    in_split: list[int], out_split: list[int], uneven: bool, tmp_path: Path
) -> None:
    told = {
        "Collective name": "all_to_allv",
        "In split size": in_split,
        "Out split size": str(out_split),
        "Process Group Name": "5",
        "Process Group Description": "mesh_ep",
        "Process Group Ranks": "[0, 1]",
    }
    event = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv", "ts": 1, "dur": 2, "args": told}
    path = tmp_path / "rank0.pt.trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    assert read_trace(path).messages == [Message("5", "[0, 1]", "all_to_allv", "mesh_ep", uneven=uneven)]


def test_a_list_of_ranks_that_the_trace_cuts_names_those_that_were_read() -> None:
    message = Message("3", "[0, 1, ..., 15]", ALL_REDUCE)
    columns = collectives([1.0, 2.0], [0.5] * 2, steps=[0, 0], message=message)
    ranks = [msgspec.structs.replace(summary(rank, [0.0])) for rank in (0, 1, 9)]
    (row,) = process_groups([lane(columns, steps=1)] * 3, ranks)
    assert row.ranks == (0, 1, 9)
