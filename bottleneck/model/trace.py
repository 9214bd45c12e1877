"""A profiler trace as columns: what ingest makes and the timeline reads.

In: nothing. Out: `Trace`, one process (rank) of one capture. Only complete events ("ph": "X") are
rows; names of processes and threads, device properties and the like are in `TraceMeta`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["NONE", "Trace", "TraceMeta"]

NONE = -1
"""Marks "this event has no such field" in the integer columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceMeta:
    """What the file says beside its events."""

    path: str = ""
    base_ns: int = 0
    """baseTimeNanoseconds: wall clock (ns since the epoch) of `ts_ns` 0; 0 when absent."""
    torch_version: str | None = None
    device_properties: tuple[dict[str, object], ...] = ()
    distributed: dict[str, object] | None = None
    thread_names: dict[tuple[str, str], str] = field(default_factory=dict)
    """(pid, tid) as written in the file -> name."""
    process_names: dict[str, str] = field(default_factory=dict)
    truncated: bool = False
    """The file ended early; every whole event before the cut is here."""
    warnings: tuple[str, ...] = ()
    layout: str = "kineto"
    """Which reader was used: "kineto" (fast) or "json" (general)."""
    clock_resolution_ns: int = 1
    has_shapes: bool = False
    """Operators were recorded with the shapes of their arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Columns of equal length n, sorted by (ts_ns, -dur_ns); times in int64 ns from `base_ns`.

    Names and categories are dictionary-coded: `names[name[i]]`, `cats[cat[i]]`. pid and tid are
    codes into `pids` / `tids`, the values as the file writes them, as strings.
    """

    ts_ns: NDArray[np.int64]
    dur_ns: NDArray[np.int64]
    name: NDArray[np.int32]
    cat: NDArray[np.int16]
    pid: NDArray[np.int16]
    tid: NDArray[np.int32]
    correlation: NDArray[np.int64]
    """Joins a runtime/driver call to the device activity it launched; NONE where absent."""
    external_id: NDArray[np.int64]
    stream: NDArray[np.int64]
    device: NDArray[np.int32]
    bytes: NDArray[np.int64]
    """Memcpy / memset size, or the input message of a collective kernel; NONE elsewhere."""
    sequence: NDArray[np.int64]
    """Autograd sequence number of an operator; NONE elsewhere."""
    fwd_thread: NDArray[np.int64]
    graph_node: NDArray[np.int64]
    """CUDA graph node id of a kernel launched by a graph; NONE elsewhere."""
    wait_stream: NDArray[np.int64]
    """cuda_sync rows: the stream whose event is waited on; NONE elsewhere."""
    wait_correlation: NDArray[np.int64]
    """cuda_sync rows: correlation of the cudaEventRecord waited on; NONE elsewhere."""
    names: Sequence[str]
    cats: Sequence[str]
    pids: Sequence[str]
    tids: Sequence[str]
    meta: TraceMeta

    def __len__(self) -> int:
        return len(self.ts_ns)

    @property
    def end_ns(self) -> NDArray[np.int64]:
        """End of each event, int64 ns."""
        return self.ts_ns + self.dur_ns
