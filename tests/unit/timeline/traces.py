"""Small traces for timeline tests, written row by row."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from torch_bottleneck.timeline.trace.table import NONE, Message, Trace, TraceMeta

MAIN, BACKWARD = "100", "101"


class TraceWriter:
    """Collects rows; times in microseconds."""

    def __init__(self) -> None:
        self.rows: list[dict] = []
        self.next_correlation = 1
        self.messages: list[Message] = []

    def row(self, name: str, cat: str, ts: float, dur: float, tid: str = MAIN, **fields: int) -> None:
        self.rows.append({"name": name, "cat": cat, "ts": ts, "dur": dur, "tid": tid, **fields})

    def launch(
        self,
        ts: float,
        dur: float,
        *,
        kernel: str = "void at::native::vectorized_elementwise_kernel<4>",
        start: float,
        length: float,
        stream: int = 7,
        call: str = "cudaLaunchKernel",
        tid: str = MAIN,
        cat: str = "kernel",
        **fields: int,
    ) -> None:
        """A launch call and the device work that it starts."""
        corr = self.next_correlation
        self.next_correlation += 1
        self.row(call, "cuda_runtime", ts, dur, tid, correlation=corr)
        self.row(kernel, cat, start, length, str(stream), correlation=corr, stream=stream, device=0, **fields)

    def steps(self, edges: list[float]) -> None:
        for k, (begin, end) in enumerate(pairwise(edges)):
            self.row(f"ProfilerStep#{k}", "user_annotation", begin, end - begin)

    def build(self) -> Trace:
        rows = sorted(self.rows, key=lambda r: (r["ts"], -r["dur"]))

        def coded(key: str) -> tuple[np.ndarray, list[str]]:
            table: dict[str, int] = {}
            return np.asarray([table.setdefault(r[key], len(table)) for r in rows]), list(table)

        def column(key: str) -> np.ndarray:
            return np.asarray([r.get(key, NONE) for r in rows], dtype=np.int64)

        name, names = coded("name")
        cat, cats = coded("cat")
        tid, tids = coded("tid")
        n = len(rows)
        return Trace(
            ts_ns=np.asarray([round(r["ts"] * 1000) for r in rows], dtype=np.int64),
            dur_ns=np.asarray([round(r["dur"] * 1000) for r in rows], dtype=np.int64),
            name=name.astype(np.int32),
            cat=cat.astype(np.int16),
            pid=np.zeros(n, dtype=np.int16),
            tid=tid.astype(np.int32),
            correlation=column("correlation"),
            stream=column("stream"),
            device=column("device").astype(np.int32),
            bytes=column("bytes"),
            sequence=column("sequence"),
            message=column("message"),
            group_sequence=column("group_sequence"),
            filled=column("filled"),
            names=names,
            cats=cats,
            pids=["1"],
            tids=tids,
            messages=self.messages,
            meta=TraceMeta(),
        )
