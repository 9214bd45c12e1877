"""User lines for moments of a trace, read from the Python frames recorded in it.

In: a `Trace` with python_function rows (`with_stack=True`). Out: `UserFrames`, the innermost line of
the user's at any moment of any thread.

torch writes frames as "path/file.py(48): function", the path relative to the entry of sys.path that
it was found on. A frame belongs to the user unless its first part is an installed library or a
module of the standard library.
"""

from __future__ import annotations

import re
import sys

import numpy as np

from ...model.run import SourceSite
from .dialect import Kind
from .intervals import latest
from .table import Trace

_FRAME = re.compile(r"^(?P<file>.+?)\((?P<line>\d+)\): (?P<function>.+)$")
_LIBRARIES = frozenset(
    {
        *("torch", "torchvision", "torchaudio", "torchdata", "torchmetrics", "functorch", "triton"),
        *("lightning", "pytorch_lightning", "lightning_fabric", "lightning_utilities", "accelerate"),
        *("transformers", "datasets", "peft", "safetensors", "deepspeed", "apex", "timm", "PIL"),
        *("numpy", "pandas", "tqdm", "tensorboard", "wandb", "torch_bottleneck"),
    }
)


def parse_frame(name: str) -> SourceSite | None:
    """Return the user's line that a python_function row stands for, None for library frames."""
    match = _FRAME.match(name)
    if match is None:
        return None
    file = match["file"]
    if file.startswith("<") or "site-packages" in file or "dist-packages" in file:
        return None
    parts = re.split(r"[/\\]", file)
    if re.search(r"[/\\]lib[/\\]python\d", file):
        return None
    first = parts[0].removesuffix(".py")
    if not file.startswith(("/", "\\")) and (first in _LIBRARIES or first in sys.stdlib_module_names):
        return None
    return SourceSite(file=file, line=int(match["line"]), function=match["function"])


class UserFrames:
    """The innermost user frame at any moment of any thread; empty when no frames were recorded."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._sites: dict[int, SourceSite] = {}
        python = trace.rows(Kind.PYTHON)
        for code in np.unique(trace.name[python]).tolist():
            site = parse_frame(trace.names[code])
            if site is not None:
                self._sites[code] = site
        rows = python[np.isin(trace.name[python], list(self._sites))]
        self._rows = {tid: rows[trace.tid[rows] == tid] for tid in np.unique(trace.tid[rows]).tolist()}
        self._starts = {tid: trace.ts_ns[mine] for tid, mine in self._rows.items()}
        self._ends = {tid: trace.end_of(mine) for tid, mine in self._rows.items()}
        self._reach = {tid: np.maximum.accumulate(ends) for tid, ends in self._ends.items()}

    def at(self, when_ns: int, tid: int) -> SourceSite | None:
        """Return the innermost user frame on thread code `tid` at `when_ns`."""
        rows = self._rows.get(tid)
        if rows is None:
            return None
        ends, reach = self._ends[tid], self._reach[tid]
        k = int(latest(self._starts[tid], when_ns))
        # Rows are sorted by start, outer first: the last one that still runs is the innermost.
        while k >= 0 and reach[k] > when_ns:
            if ends[k] > when_ns:
                return self._sites[int(self._trace.name[rows[k]])]
            k -= 1
        return None
