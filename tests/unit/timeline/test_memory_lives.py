"""Live and reserved bytes, held against a walk backwards through the raw events from the state at the end."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from unit.snapshots import MB, START_US

from torch_bottleneck.ingest.snapshot import read_snapshot
from torch_bottleneck.timeline.memory.lives import find_lives, reserved_after

SLOT = 64 * MB
SLOTS = 6


@st.composite
def devices(draw: Any, device: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return history and segments of an allocator whose blocks wait for other streams, and move.

    Blocks lie in slots; a slot is a segment, given back and asked for again, or a range that is mapped and
    unmapped in parts. A block that another stream still uses is freed in two events, far apart.
    """
    events: list[dict[str, Any]] = []
    mapped = [0] * SLOTS
    expandable = [draw(st.booleans()) for _ in range(SLOTS)]
    live: dict[int, int] = {}
    waiting: dict[int, int] = {}

    def event(action: str, slot: int, size: int, offset: int = 0) -> None:
        events.append(
            {"action": action, "addr": 2**40 + slot * SLOT + offset, "size": size, "stream": slot % 2,
             "time_us": START_US + len(events), "frames": []}
        )  # fmt: skip

    for _ in range(draw(st.integers(0, 80))):
        slot = draw(st.integers(0, SLOTS - 1))
        if slot in live:
            event("free_requested", slot, live[slot])
            if draw(st.booleans()):
                event("free_completed", slot, live.pop(slot))
            else:
                waiting[slot] = live.pop(slot)
        elif slot in waiting:
            event("free_completed", slot, waiting.pop(slot))
        elif mapped[slot] and draw(st.integers(0, 4)) == 0:
            kind = "segment_unmap" if expandable[slot] else "segment_free"
            event(kind, slot, mapped[slot])
            mapped[slot] = 0
        else:
            size = draw(st.integers(1, 60)) * MB - draw(st.integers(0, 511))
            rounded = -(-size // (2 * MB)) * 2 * MB
            if mapped[slot] and not expandable[slot] and mapped[slot] < rounded:
                event("segment_free", slot, mapped[slot])
                mapped[slot] = 0
            if mapped[slot] < rounded:
                kind = "segment_map" if expandable[slot] else "segment_alloc"
                event(kind, slot, rounded - mapped[slot], mapped[slot])
                mapped[slot] = rounded
            event("alloc", slot, size)
            live[slot] = size
        if draw(st.integers(0, 20)) == 0:
            event("snapshot", 0, 0)
    segments = []
    for slot in (slot for slot in range(SLOTS) if mapped[slot]):
        size = live.get(slot, waiting.get(slot, 0))
        rounded = -(-size // 512) * 512
        state = "active_allocated" if slot in live else "active_pending_free"
        block = {"address": 2**40 + slot * SLOT, "size": rounded, "requested_size": size, "state": state}
        rest = {"address": block["address"] + rounded, "size": mapped[slot] - rounded, "requested_size": 0,
                "state": "inactive"}  # fmt: skip
        segments.append(
            {"device": device, "address": block["address"], "total_size": mapped[slot], "stream": slot % 2,
             "is_expandable": expandable[slot], "blocks": ([block] if size else []) + [rest]}
        )  # fmt: skip
    return events, segments


def backwards(
    events: list[dict[str, Any]], at_end: int, *, adds: tuple[str, ...], takes: tuple[str, ...]
) -> list[int]:
    """Return the bytes after each event, from those at the end."""
    found, now = [], at_end
    for event in reversed(events):
        found.append(now)
        if event["action"] in adds:
            now -= event["size"]
        elif event["action"] in takes:
            now += event["size"]
    return found[::-1]


@settings(max_examples=80, deadline=None)
@given(data=st.data(), cut=st.floats(0, 1))
def test_bytes_after_each_event_are_those_of_a_walk_backwards(
    tmp_path_factory: Any, data: Any, cut: float
) -> None:
    """However much the ring has lost, between the two events of a free too, and on every device."""
    made = [data.draw(devices(device)) for device in (0, 1)]
    rings = [events[int(cut * len(events)) :] for events, _ in made]
    content = {"segments": [s for _, segments in made for s in segments], "device_traces": rings}
    path: Path = tmp_path_factory.mktemp("lives") / "s.pickle"
    path.write_bytes(pickle.dumps(content))
    found = {device.device: device for device in read_snapshot(path).devices}
    for number, (events, (_, segments)) in enumerate(zip(rings, made, strict=True)):
        if not events and not segments:
            assert number not in found
            continue
        lives = find_lives(found[number])
        blocks = [block for segment in segments for block in segment["blocks"]]
        held = sum(b["requested_size"] for b in blocks if b["state"] == "active_allocated")
        expected = backwards(events, held, adds=("alloc",), takes=("free_requested",))
        assert lives.live_after().tolist() == expected
        assert int(lives.size[lives.live_at(lives.events)].sum()) == held
        reserved = sum(segment["total_size"] for segment in segments)
        assert reserved_after(found[number]).tolist() == backwards(
            events,
            reserved,
            adds=("segment_alloc", "segment_map"),
            takes=("segment_free", "segment_unmap"),
        )
        for event, expected_bytes in enumerate(expected):
            assert int(lives.size[lives.live_at(event)].sum()) == expected_bytes
