"""Reads memory snapshots: `torch.cuda.memory._dump_snapshot` pickles, whoever wrote them.

In: a path. Out: a `Snapshot` in columns. Fields that a torch version did not write are absent: times
(before 2.1), annotations (before 2.6), stacks (recorded without). The layout is checked as it is
read, since the file may come from anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SnapshotError
from ..model.snapshot import Action, Annotation, BlockState, DeviceMemory, Frame, Snapshot
from .snapshot_pickle import load_plain

_ACTIONS = {action.name.lower(): int(action) for action in Action}
_STATES = {
    "active_allocated": BlockState.ACTIVE,
    "active_pending_free": BlockState.PENDING,
    "active_awaiting_free": BlockState.PENDING,
    "inactive": BlockState.INACTIVE,
}
_MAX_FRAMES = 1024
"""Of one stack; deeper ones keep their innermost frames."""
_HUGE = 1 << 62
"""No address or size of a real device is beyond; a larger number is damage."""


class _Stacks:
    """Numbers frames and stacks so that equal ones share a number."""

    def __init__(self) -> None:
        self.frames: dict[Frame, int] = {}
        self.stacks: dict[tuple[int, ...], int] = {}
        self._by_frame: dict[int, int] = {}
        self._by_list: dict[int, int] = {}

    def number(self, frames: object) -> int:
        """Return the number of a stack, -1 for none.

        The identity of lists and dicts is looked at first: pickles share most of them, and all live
        as long as the pickle's content does.
        """
        if not frames:
            return -1
        known = self._by_list.get(id(frames))
        if known is None:
            if not isinstance(frames, (list, tuple)):
                raise SnapshotError(f"A stack is {type(frames).__name__}, not a list of frames.")
            key = tuple(self._frame(frame) for frame in frames[:_MAX_FRAMES])
            known = self.stacks.setdefault(key, len(self.stacks))
            self._by_list[id(frames)] = known
        return known

    def _frame(self, frame: object) -> int:
        known = self._by_frame.get(id(frame))
        if known is None:
            if not isinstance(frame, dict):
                raise SnapshotError(f"A stack frame is {type(frame).__name__}, not a dict.")
            line = frame.get("line", 0)
            made = Frame(
                _text(frame.get("name")),
                _text(frame.get("filename")),
                line if isinstance(line, int) and abs(line) < _HUGE else 0,
            )
            known = self.frames.setdefault(made, len(self.frames))
            self._by_frame[id(frame)] = known
        return known


def read_snapshot(path: str | os.PathLike[str]) -> Snapshot:
    """Read a memory snapshot, plain or gzipped.

    Raises:
        InputError: the file does not exist or cannot be read.
        SnapshotError: it is no snapshot, is damaged, or holds more than plain data.
    """
    content = load_plain(path)
    if isinstance(content, list):
        # torch 1.x: the list of segments alone.
        content = {"segments": content}
    if not isinstance(content, dict) or "segments" not in content:
        raise SnapshotError(
            f"{path} holds a {type(content).__name__} without segments, so it is not a memory snapshot.",
            remedy="torch.cuda.memory._dump_snapshot writes one.",
        )
    stacks = _Stacks()
    try:
        segments = _dicts(content["segments"], "segments")
        traces = content.get("device_traces") or ()
        if not isinstance(traces, (list, tuple)):
            raise SnapshotError("The snapshot's device traces should be a list.")
        histories = [_dicts(entry, "a device's history") for entry in traces]
        devices = _devices(segments, histories, stacks)
        annotations = _annotations(_dicts(content.get("external_annotations") or [], "annotations"))
    except SnapshotError as error:
        raise SnapshotError(f"{path}: {error.message}", remedy=error.remedy) from None
    if not devices and (content.get("host_segments") or content.get("host_traces")):
        raise SnapshotError(
            f"{path} holds pinned memory of the host only, and none of a device.",
            remedy="Leave record_cuda=False out of _record_memory_history().",
        )
    settings = content.get("allocator_settings")
    return Snapshot(
        path=str(path),
        devices=devices,
        frames=tuple(stacks.frames),
        stacks=tuple(stacks.stacks),
        annotations=annotations,
        settings={k: v for k, v in settings.items() if isinstance(k, str)}
        if isinstance(settings, dict)
        else {},
    )


def _text(value: object) -> str:
    """Return a text as it is, and nothing for anything else.

    Never `str(value)`: lists within lists, of a file that means harm, take for ever to write out.
    """
    return value if isinstance(value, str) else ""


def _dicts(value: object, what: str) -> list[dict[str, Any]]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, dict) for item in value):
        raise SnapshotError(f"The snapshot's {what} should be a list of dicts.")
    return list(value)


def _whole(entry: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = entry.get(key, default)
    if not isinstance(value, int) or not -_HUGE < value < _HUGE:
        shown = f"one beyond {_HUGE}" if isinstance(value, int) else f"a {type(value).__name__}"
        raise SnapshotError(f"{key!r} should be a whole number, but is {shown}.")
    return value


def _column(entries: Sequence[Mapping[str, Any]], key: str) -> NDArray[np.int64]:
    """Return one field of all entries, 0 where it is missing."""
    values = [entry.get(key, 0) for entry in entries]
    if not set(map(type, values)) <= {int} or (values and not -_HUGE < min(values) <= max(values) < _HUGE):
        for entry in entries:
            _whole(entry, key, 0)
    return np.array(values, np.int64)


def _devices(
    segments: Sequence[Mapping[str, Any]],
    histories: Sequence[Sequence[Mapping[str, Any]]],
    stacks: _Stacks,
) -> tuple[DeviceMemory, ...]:
    numbers = {_whole(segment, "device", 0) for segment in segments}
    numbers |= {index for index, history in enumerate(histories) if history}
    return tuple(
        _device(
            number,
            [segment for segment in segments if segment.get("device", 0) == number],
            histories[number] if 0 <= number < len(histories) else (),
            stacks,
        )
        for number in sorted(numbers)
    )


def _device(
    number: int,
    segments: Sequence[Mapping[str, Any]],
    history: Sequence[Mapping[str, Any]],
    stacks: _Stacks,
) -> DeviceMemory:
    other = int(Action.OTHER)
    blocks = [block for index, segment in enumerate(segments) for block in _blocks(index, segment, stacks)]
    block_columns = list(zip(*blocks, strict=True)) if blocks else [()] * 6
    return DeviceMemory(
        device=number,
        action=np.array([_ACTIONS.get(_text(entry.get("action")), other) for entry in history], np.int8),
        address=_column(history, "addr").astype(np.uint64),
        device_free=_device_free(history),
        size=_column(history, "size"),
        time_us=_column(history, "time_us"),
        stack=np.array([stacks.number(entry.get("frames")) for entry in history], np.int32),
        block_address=np.array(block_columns[0], np.int64).astype(np.uint64),
        block_size=np.array(block_columns[1], np.int64),
        block_requested=np.array(block_columns[2], np.int64),
        block_state=np.array(block_columns[3], np.int8),
        block_stack=np.array(block_columns[4], np.int32),
        block_segment=np.array(block_columns[5], np.int32),
        segment_address=_column(segments, "address").astype(np.uint64),
        segment_size=_column(segments, "total_size"),
        segment_expandable=np.array([segment.get("is_expandable") is True for segment in segments], np.bool_),
        segment_private=np.array([_private(segment) for segment in segments], np.bool_),
    )


def _device_free(history: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """Return the device's free bytes at failed allocations, by event."""
    return {
        number: _whole(entry, "device_free") for number, entry in enumerate(history) if "device_free" in entry
    }


def _private(segment: Mapping[str, Any]) -> bool:
    """Whether a segment belongs to a pool of its own, as those of CUDA graphs do: its id is not (0, 0)."""
    pool = segment.get("segment_pool_id")
    return isinstance(pool, (list, tuple)) and any(part not in (0, None) for part in pool)


def _blocks(
    index: int, segment: Mapping[str, Any], stacks: _Stacks
) -> list[tuple[int, int, int, int, int, int]]:
    """Return address, size, requested size, state, stack and segment of each block."""
    found = []
    address = _whole(segment, "address", 0)
    for block in _dicts(segment.get("blocks") or [], "blocks"):
        size = _whole(block, "size", 0)
        # Before torch 2.1 blocks had no address: they lie one behind the other.
        place = _whole(block, "address", address)
        address = place + size
        frames = block.get("frames")
        history = block.get("history")
        if not frames and isinstance(history, list) and history and isinstance(history[0], dict):
            frames = history[0].get("frames")
        state = _STATES.get(_text(block.get("state")), BlockState.INACTIVE)
        requested = _whole(block, "requested_size", size)
        found.append((place, size, requested, int(state), stacks.number(frames), index))
    return found


def _annotations(entries: Sequence[Mapping[str, Any]]) -> tuple[Annotation, ...]:
    """Pair starts with ends, innermost first; what was never closed is left out."""
    opened: dict[tuple[str, int], list[int]] = {}
    found: list[Annotation] = []
    for entry in entries:
        name, time_us = _text(entry.get("name")), _whole(entry, "time_us", 0)
        key = (name, _whole(entry, "device", 0))
        if entry.get("stage") == "START":
            opened.setdefault(key, []).append(time_us)
        elif opened.get(key):
            found.append(Annotation(name, opened[key].pop(), time_us))
    return tuple(sorted(set(found), key=lambda a: (a.begin_us, -a.end_us)))
