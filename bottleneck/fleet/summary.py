"""What is kept of one rank: a summary of fixed size, from which the ranks of a job are compared.

In: nothing. Out: `RankSummary`, its bytes, and its place beside the trace.

A summary is kept under the hash of everything that it was made of, so that a changed file is read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np

from .. import __version__
from ..errors import InputError
from ..files import read_file
from ..model.codes import LateCause, WhatIf
from ..model.run import SourceSite
from ..runs.store import write_atomically
from .collectives import MessageGroup, PackedCollectives, unpack
from .gradients import PackedGradients, unpack_gradients
from .match import Lane

__all__ = ["FORMAT", "AloneWithout", "RankSummary", "content_hash", "lane_of", "load", "store"]

FORMAT = 12
"""Raised when a field of the summary changes its meaning, or how it is made."""
_CHUNK_BYTES = 1 << 20
_MOST_BYTES = 1 << 20


class KernelSketch(msgspec.Struct, frozen=True, array_like=True):
    """One of the kernels that take most time, per step."""

    name: str
    count: float
    ms: float
    interrupted_ms: float = 0.0
    """Of `ms`: see `lanes.alone.interrupted`; of kernels of several sizes it has a share on each rank."""


class AloneWithout(msgspec.Struct, frozen=True, array_like=True):
    """What a rank's steps without communication are shorter without a cause."""

    question: WhatIf
    saves_ms: tuple[float, ...]
    """In each of the last steps, of the true step."""
    bound: bool


class RankSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One rank; times in ms of its true step unless they say otherwise."""

    rank: int
    world_size: int | None = None
    """None: not told by the file."""
    node: int | None = None
    """Lowest rank on the same machine; None: not told."""
    place: int = 0
    """The same for all ranks that one capture wrote; 0: not told."""
    path: str = ""
    """Name of its folder or file."""
    kind: str = "gpu"
    torch: str = ""
    device: str = ""
    link_gbytes_per_s: float | None = None
    """What the driver says of its device's links: see `DeviceFacts.nvlink_gbytes_per_s`."""
    steps: int = 0
    """Recorded ones, of which the rest is told."""
    steps_left_out: int = 0
    """Before those: a summary has no room for them."""
    true_ms: float = 0.0
    window_ms: float = 0.0
    """What its traced steps take on average without a profiler, where that is not the true step; else 0."""
    has_step: bool = True
    """False: no step time is known."""
    timed_ms: tuple[float, ...] = ()
    """Lengths of the last steps of the baseline, whose mean the true step is; empty without a baseline."""
    forwards_ms: tuple[float, ...] = ()
    """Forward of the first steps of the baseline, where the host does that work; empty with a device."""
    recorded_ms: tuple[float, ...] = ()
    """Lengths of the recorded steps, as traced."""
    alone_ms: tuple[float, ...] = ()
    """Lengths of the last of them as replayed without communication, at their speed without a profiler."""
    alone_host_ms: tuple[float, ...] = ()
    """The same with a device that takes no time; empty where nothing tells it."""
    alone_edges_ms: tuple[tuple[float, float], ...] = ()
    """Of the same replay: when each step ends, the begin first, and its device's work up to there; empty
    where no replay can be trusted."""
    alone_without: tuple[AloneWithout, ...] = ()
    step_numbers: tuple[int, ...] = ()
    """The profiler's own; empty where steps were found by other marks."""
    base_ns: int = 0
    """Wall clock of moment 0 of the collectives."""
    budget: dict[str, float] = {}
    """Part -> ms per step."""
    own_work_ms: dict[LateCause, tuple[float, ...]] = {}
    """Work in each of the last steps, exposed or not, by what a rank is late for if it has more of it."""
    counters: dict[str, float] = {}
    kernels: tuple[KernelSketch, ...] = ()
    own_kernels_ms: float = 0.0
    """Kernels without collectives."""

    slowed_by_collectives: float = 0.0
    """What its own kernels take longer per time that a collective runs beside them."""
    runs_ahead: bool = False
    """Its host was ahead of its device in the unprofiled steps."""
    idle_share: float | None = None
    peak_bytes: int = 0
    whole: bool = True
    """Its trace was read to the end."""
    sites: dict[str, SourceSite] = {}
    """Part -> where most of it stands in the source."""
    collectives: PackedCollectives = PackedCollectives()
    gradients: PackedGradients = PackedGradients()
    bucket_call_ms: float = 0.0
    """What the host takes to send one bucket of gradients."""
    groups: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Process groups that its collectives may be of; only where the trace does not tell which ones are."""
    messages_ms: tuple[tuple[float, float, int], ...] = ()
    """Of each of the last steps: see `collectives.messages_ms`."""
    message_groups: tuple[MessageGroup, ...] = ()
    """Process groups in which it sends messages to another rank or gets them."""

    @property
    def name(self) -> str:
        """What it was read from."""
        return self.path

    @property
    def unprofiled_ms(self) -> float:
        """What its traced steps take on average without a profiler."""
        return self.window_ms or self.true_ms

    @property
    def traced(self) -> bool:
        """It has recorded steps; False for a rank that was only timed."""
        return self.steps > 0


def lane_of(summary: RankSummary) -> Lane:
    """Return what of a rank takes part in the matching."""
    return Lane(
        collectives=unpack(summary.collectives),
        steps=summary.steps,
        numbers=np.asarray(summary.step_numbers, dtype=np.int64),
    )


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    made_by: str
    content: str
    summary: RankSummary


@lru_cache(maxsize=1)
def _made_by() -> str:
    """Return what a summary is made by: this version and the state of its own files, which may be edited."""
    package = Path(__file__).resolve().parents[1]
    states = [
        path.stat()
        for room in ("diagnose", "fleet", "ingest", "timeline")
        for path in (package / room).rglob("*.py")
    ]
    return f"{__version__} {max(s.st_mtime_ns for s in states)} {sum(s.st_size for s in states)}"


def content_hash(files: Iterable[Path], *extra: object) -> str:
    """Return the hash of what a summary is made of: files, and settings that change it."""
    state = hashlib.blake2b(repr(extra).encode("utf-8", "backslashreplace"), digest_size=20)
    for path in files:
        state.update(path.name.encode("utf-8", "backslashreplace"))
        with path.open("rb") as file:
            while part := file.read(_CHUNK_BYTES):
                state.update(part)
    return state.hexdigest()


def load(trace: Path | None, content: str) -> RankSummary | None:
    """Return the summary that was kept for this content, or None; `trace` is None where it lies elsewhere."""
    for place in _places(trace, content):
        try:
            stored = msgspec.msgpack.decode(read_file(place, most_bytes=_MOST_BYTES), type=_Stored)
            steps = unpack(stored.summary.collectives).step
            unpack_gradients(stored.summary.gradients)
        except (InputError, msgspec.DecodeError, ValueError):
            continue
        fits = not len(steps) or int(steps.max()) < stored.summary.steps
        if fits and (stored.format, stored.made_by, stored.content) == (FORMAT, _made_by(), content):
            return stored.summary
    return None


def store(trace: Path | None, content: str, summary: RankSummary) -> None:
    """Keep a summary beside its trace, or in the user's cache folder if that cannot be written."""
    data = msgspec.msgpack.encode(
        _Stored(format=FORMAT, made_by=_made_by(), content=content, summary=summary)
    )
    for place in _places(trace, content):
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(place, data)
            return


def _places(trace: Path | None, content: str) -> list[Path]:
    beside = [trace.with_name(f".{trace.name}.rank-summary")] if trace is not None else []
    return [*beside, _cache_folder() / "torch-bottleneck" / f"{content}.rank-summary"]


def _cache_folder() -> Path:
    stated = os.environ.get("XDG_CACHE_HOME", "")
    if Path(stated).is_absolute():
        return Path(stated)
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  # Path.home() raises where nobody has a home
    return home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"
