"""Memory snapshots from anywhere: every layout is read, and nothing but plain data is ever built."""

from __future__ import annotations

import copyreg
import gzip
import os
import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from unit.snapshots import MB, START_US, Allocator, Training, main_line

from torch_bottleneck.errors import InputError, SnapshotError
from torch_bottleneck.ingest.bundle import load
from torch_bottleneck.ingest.memory import read_records
from torch_bottleneck.ingest.snapshot import read_snapshot
from torch_bottleneck.model.snapshot import Action, BlockState


def written(folder: Path, content: object, name: str = "s.pickle") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content))
    return path


# ------------------------------------------------------------------------------------------ layouts


def test_the_columns_are_what_the_file_says(tmp_path: Path) -> None:
    memory = Allocator()
    kept = memory.alloc(3 * MB, main_line(5))
    memory.free(memory.alloc(5 * MB, main_line(6)), main_line(7))
    snapshot = read_snapshot(written(tmp_path, memory.snapshot()))
    (device,) = snapshot.devices
    assert [Action(a).name for a in device.action] == [
        "SEGMENT_ALLOC", "ALLOC", "SEGMENT_ALLOC", "ALLOC", "FREE_REQUESTED", "FREE_COMPLETED",
    ]  # fmt: skip
    assert device.size.tolist() == [4 * MB, 3 * MB, 6 * MB, 5 * MB, 5 * MB, 5 * MB]
    assert device.has_times and device.time_us[0] == START_US + 1
    assert snapshot.stack_frames(int(device.stack[1]))[0] == ("main", "/home/me/train.py", 5)
    active = device.block_state == BlockState.ACTIVE
    assert device.block_address[active].tolist() == [kept]
    assert device.block_requested[active].tolist() == [3 * MB]
    assert device.segment_size.sum() == 10 * MB
    assert snapshot.settings == {"expandable_segments": False}


def test_what_torch_2_15_adds_changes_nothing(tmp_path: Path) -> None:
    memory = Allocator()
    memory.free(memory.alloc(5 * MB, main_line(6)), main_line(7))
    content = memory.snapshot()
    before = read_snapshot(written(tmp_path, content)).devices[0]
    ring = content["device_traces"][0]
    labelled = [{**entry, "user_metadata": '{"phase": "forward"}', "internal_metadata": ""} for entry in ring]
    annotated = {**ring[1], "action": "annotate", "user_metadata": "weights", "size": 0}
    content |= {"device_traces": [[*labelled, annotated]], "host_segments": [], "host_traces": [[ring[0]]]}
    (after,) = read_snapshot(written(tmp_path, content)).devices
    assert after.action.tolist() == [*before.action.tolist(), int(Action.OTHER)]
    assert after.size[:-1].tolist() == before.size.tolist()
    assert after.block_address.tolist() == before.block_address.tolist()


def test_pinned_memory_alone_is_refused_by_name(tmp_path: Path) -> None:
    content = {"segments": [], "device_traces": [[]], "host_segments": [{"address": 0}], "host_traces": []}
    with pytest.raises(SnapshotError, match="pinned memory of the host only"):
        read_snapshot(written(tmp_path, content))


def test_equal_stacks_are_kept_once(tmp_path: Path) -> None:
    memory = Allocator()
    for _ in range(50):
        memory.free(memory.alloc(MB, main_line(5)), main_line(6))
    # Without sharing inside the pickle, as other writers may do it.
    plain = eval(repr(memory.snapshot()))
    for content in (memory.snapshot(), plain):
        snapshot = read_snapshot(written(tmp_path, content))
        assert len(snapshot.stacks) == 2 and len(snapshot.frames) == 2


def test_several_devices(tmp_path: Path) -> None:
    first, third = Allocator(device=0), Allocator(device=2)
    first.alloc(MB)
    third.alloc(2 * MB)
    both = first.snapshot()
    both["segments"] += third.snapshot()["segments"]
    both["device_traces"] = [first.events, [], third.events]
    snapshot = read_snapshot(written(tmp_path, both))
    assert [d.device for d in snapshot.devices] == [0, 2], "a device without anything is none"
    assert [int(d.block_requested.sum()) for d in snapshot.devices] == [MB, 2 * MB]


@pytest.mark.parametrize("packed", [False, True])
def test_plain_or_gzipped(tmp_path: Path, packed: bool) -> None:
    training = Training()
    training.step()
    path = training.write(tmp_path / "s.pickle.gz", packed=packed)
    assert len(read_snapshot(path).devices[0].action) == len(training.memory.events)


def test_without_times_stacks_history_or_addresses_of_blocks(tmp_path: Path) -> None:
    memory = Allocator(stacks=False, times=False)
    memory.alloc(3 * MB)
    content = memory.snapshot()
    del content["external_annotations"], content["allocator_settings"]
    device = read_snapshot(written(tmp_path, content)).devices[0]
    assert not device.has_times and (device.stack == -1).all()
    for segment in content["segments"]:
        for block in segment["blocks"]:
            del block["address"], block["requested_size"], block["frames"]
            block["history"] = [
                {"addr": 1, "real_size": 2, "frames": [{"name": "f", "filename": "a.py", "line": 3}]}
            ]
    # torch 1.13: the list of segments alone, blocks one behind the other.
    snapshot = read_snapshot(written(tmp_path, content["segments"]))
    device = snapshot.devices[0]
    assert device.block_address.tolist() == device.segment_address.tolist()
    assert device.block_requested.tolist() == [4 * MB]
    assert snapshot.stack_frames(int(device.block_stack[0]))[0].file == "a.py"


def test_an_action_of_a_later_torch_is_counted_and_not_interpreted(tmp_path: Path) -> None:
    memory = Allocator()
    memory.alloc(MB)
    content = memory.snapshot()
    content["device_traces"][0].append({"action": "teleport", "addr": 1, "size": 2, "frames": []})
    assert read_snapshot(written(tmp_path, content)).devices[0].action[-1] == Action.OTHER


def test_annotations_are_paired(tmp_path: Path) -> None:
    memory = Allocator()
    memory.alloc(MB)
    marks = [("a", "START", 5), ("b", "START", 6), ("a", "START", 7), ("a", "END", 8), ("b", "END", 9),
             ("a", "END", 10), ("left open", "START", 11), ("never begun", "END", 12)]  # fmt: skip
    entries = [{"name": n, "stage": s, "time_us": t, "device": 0} for n, s, t in marks]
    found = read_snapshot(written(tmp_path, memory.snapshot(annotations=entries))).annotations
    assert [tuple(a) for a in found] == [("a", 5, 10), ("b", 6, 9), ("a", 7, 8)]


def test_an_empty_snapshot_is_one(tmp_path: Path) -> None:
    assert read_snapshot(written(tmp_path, {"segments": [], "device_traces": []})).devices == ()


# ------------------------------------------------------------------------------------------- safety


class Harmful:
    """Pickles to a call of a function of choice."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


def _registered_extension() -> bytes:
    copyreg.add_extension("os", "system", 240)
    try:
        return pickle.dumps(os.system, protocol=2)
    finally:
        copyreg.remove_extension("os", "system", 240)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_no_function_is_ever_called(tmp_path: Path, protocol: int) -> None:
    victim = tmp_path / "victim"
    victim.touch()
    content = {"segments": [Harmful(os.unlink, str(victim))]}
    path = written(tmp_path, pickle.dumps(content, protocol=protocol))
    with pytest.raises(SnapshotError, match=r"would create \w+\.unlink|not a pickle") as caught:
        read_snapshot(path)
    assert victim.exists()
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        OrderedDict(segments=[]),
        {"segments": [np.int64(3)]},
        {"segments": [], "x": Path("a")},
        {"segments": [Harmful(eval, "1")]},
        {"segments": [{"frames": Harmful(getattr, 1, "real")}]},
        pickle.dumps(os.system),
        _registered_extension(),
        b"cos\nsystem\n(S'true'\ntR.",
        b"(S'true'\nios\nsystem\n.",
        b"\x80\x02cbuiltins\nexec\nX\x04\x00\x00\x00passo.",
    ],
)
def test_whatever_is_not_plain_data_is_refused(tmp_path: Path, content: object) -> None:
    with pytest.raises(SnapshotError):
        read_snapshot(written(tmp_path, content))


def test_objects_outside_the_file_are_refused(tmp_path: Path) -> None:
    class Persistent(pickle.Pickler):
        def persistent_id(self, obj: object) -> object:
            return "storage" if obj == "x" else None

    path = tmp_path / "s.pickle"
    with path.open("wb") as file:
        Persistent(file).dump({"segments": ["x"]})
    with pytest.raises(SnapshotError, match="outside itself"):
        read_snapshot(path)


def test_a_few_bytes_that_ask_for_gigabytes_end_in_an_error(tmp_path: Path) -> None:
    # LONG_BINPUT with a huge index makes the unpickler's memo as large.
    bomb = b"\x80\x02Nr" + struct.pack("<I", 2**31) + b"."
    with pytest.raises(SnapshotError, match=r"more memory|not a pickle"):
        read_snapshot(written(tmp_path, bomb))


def _laughing() -> list[Any]:
    """Forty lists of four lists each, all the same: nothing in memory, for ever when written out."""
    value: list[Any] = []
    for _ in range(40):
        value = [value] * 4
    return value


def test_text_that_is_no_text_is_not_written_out(tmp_path: Path) -> None:
    laugh = _laughing()
    frames = [{"name": laugh, "filename": laugh, "line": 2**80}]
    event = {"action": laugh, "addr": 1, "size": 2, "frames": frames}
    block = {"address": 1, "size": 2, "state": laugh}
    content = {
        "segments": [{"address": 1, "total_size": 2, "blocks": [block]}],
        "device_traces": [[event]],
        "external_annotations": [{"name": laugh, "stage": "START", "time_us": 1}],
        "allocator_settings": {"x": laugh, 3: 4},
    }
    snapshot = read_snapshot(written(tmp_path, content))
    (device,) = snapshot.devices
    assert device.action.tolist() == [Action.OTHER] and snapshot.stack_frames(0)[0] == ("", "", 0)
    assert list(snapshot.settings) == ["x"]


def test_a_gzip_of_a_long_history_may_grow(tmp_path: Path) -> None:
    """The limit on memory knows that gzip packs snapshots tightly."""
    event = {"action": "alloc", "addr": 1, "size": 2, "stream": 0, "time_us": 3, "frames": []}
    content = {"segments": [], "device_traces": [[dict(event, addr=i) for i in range(60_000)]]}
    data = pickle.dumps(content)
    path = written(tmp_path, gzip.compress(data))
    assert len(data) > 5 * path.stat().st_size
    assert len(read_snapshot(path).devices[0].action) == 60_000


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"hello", "not a pickle"),
        (pickle.dumps({"segments": [1] * 100})[:-40], "cut off|not a pickle"),
        (gzip.compress(pickle.dumps({"segments": []}), mtime=0)[:20], "cut off"),
        ({"weights": [1, 2]}, "not a memory snapshot"),
        ([1, 2, 3], "list of dicts"),
        ({"segments": {"a": 1}}, "list of dicts"),
        ({"segments": [{"address": "here"}]}, "whole number, but is a str"),
        ({"segments": [{"address": _laughing()}]}, "whole number, but is a list"),
        ({"segments": [{"address": 10**6000}]}, "whole number, but is one beyond"),
        ({"segments": [], "device_traces": [[{"action": "alloc", "size": 1.5}]]}, "whole number"),
        ({"segments": [], "device_traces": [[{"action": "alloc", "size": 2**70}]]}, "whole number"),
        ({"segments": [], "device_traces": [[{"action": "alloc", "frames": "main"}]]}, "stack"),
        ({"segments": [], "device_traces": [[{"action": "alloc", "frames": ["main"]}]]}, "frame"),
        ("text", "not a memory snapshot"),
    ],
)
def test_what_is_no_snapshot_is_refused_with_the_reason(tmp_path: Path, content: object, says: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(SnapshotError, match=says) as caught:
        read_snapshot(path)
    assert "s.pickle" in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_snapshot(tmp_path / "none.pickle")
    with pytest.raises(InputError, match="is a folder, not a file"):
        read_snapshot(tmp_path)
    (tmp_path / "empty.pickle").touch()
    with pytest.raises(InputError, match="is empty"):
        read_snapshot(tmp_path / "empty.pickle")


# ------------------------------------------------------------------------------- as part of a bundle


def test_a_snapshot_of_any_name_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    training = Training()
    training.step()
    path = training.write(tmp_path / "memory-dump")
    (rank,) = load(path).ranks
    records, problems = read_records(rank)
    assert problems == () and len(records) == 1 and not records[0].failure


def test_a_broken_snapshot_alone_is_an_error(tmp_path: Path) -> None:
    (rank,) = load(written(tmp_path, {"a": 1})).ranks
    with pytest.raises(SnapshotError):
        read_records(rank)


def test_a_snapshot_of_nothing_alone_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (rank,) = load(written(tmp_path, {"segments": [], "device_traces": []})).ranks
    with pytest.raises(SnapshotError, match="is empty") as caught:
        read_records(rank)
    assert "_record_memory_history" in caught.value.remedy and caught.value.exit_code == 2


def test_broken_notes_are_a_problem_only(tmp_path: Path) -> None:
    training = Training()
    training.step()
    training.write(tmp_path / "h.snapshot.pickle")
    (tmp_path / "h.notes.json").write_text('{"format": 1, "device": "x"}')
    (rank,) = load(tmp_path / "h.snapshot.pickle").ranks
    records, problems = read_records(rank)
    assert records[0].notes is None and "h.notes.json" in problems[0]
    (tmp_path / "h.notes.json").write_text('{"format": 99}')
    assert "newer version" in read_records(rank)[1][0]
