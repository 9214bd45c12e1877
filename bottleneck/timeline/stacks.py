"""User lines for device calls, read from Python frames recorded in a trace.

In: a `Trace` with python_function rows (`with_stack=True`), from the run itself or from the short
extra capture that the harness makes. Out: `StackSites`: file and line per (kind of call, operator
and call, label), so that spans of another trace of the same program can be given their lines.

torch writes frames as "path/file.py(48): function", the path relative to the entry of sys.path that
it was found on. A frame belongs to the user unless its first part is an installed library or a
module of the standard library.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..model.run import SourceSite
from .dialect import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..model.trace import Trace

__all__ = ["StackSites", "UserFrames", "parse_frame"]

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
    """The innermost user frame at any moment of any thread."""

    def __init__(self, trace: Trace, kinds: NDArray[np.int8]) -> None:
        self._trace = trace
        sites = [None] * len(trace.names)
        python = kinds == Kind.PYTHON
        parsed: list[SourceSite | None] = list(sites)
        for code in np.unique(trace.name[python]).tolist():
            parsed[code] = parse_frame(trace.names[code])
        user = np.fromiter((p is not None for p in parsed), bool, len(parsed))
        self._sites = parsed
        self._rows = np.flatnonzero(python & user[trace.name])
        self._ends = trace.end_ns

    @property
    def any(self) -> bool:
        """The trace holds at least one user frame."""
        return len(self._rows) > 0

    def at(self, when_ns: int, tid: int) -> SourceSite | None:
        """Return the innermost user frame on thread code `tid` at `when_ns`."""
        trace = self._trace
        rows = self._rows[trace.tid[self._rows] == tid]
        last = int(np.searchsorted(trace.ts_ns[rows], when_ns, side="right"))
        around = rows[:last][self._ends[rows[:last]] > when_ns]
        # Rows are sorted by start, outer first: the last that still runs is the innermost.
        return self._sites[int(trace.name[around[-1]])] if len(around) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSites:
    """Lines by what a span is called: (what, label) -> the line seen most often."""

    sites: dict[tuple[str, str], SourceSite]

    @classmethod
    def collect(cls, seen: Iterator[tuple[str, str, int, int]], frames: UserFrames) -> StackSites:
        """Collect lines.

        Args:
            seen: (what, label, time in ns, thread code) of each call.
            frames: the frames of the same trace.
        """
        votes: dict[tuple[str, str], Counter[SourceSite]] = {}
        for what, label, when, tid in seen:
            site = frames.at(when, tid)
            if site is not None:
                votes.setdefault((what, label), Counter())[site] += 1
        return cls(sites={key: counter.most_common(1)[0][0] for key, counter in votes.items()})

    def find(self, what: str, label: str) -> SourceSite | None:
        """Return the line of a span, by its full name, else by its name under any label."""
        exact = self.sites.get((what, label))
        if exact is not None:
            return exact
        return next((site for (name, _), site in self.sites.items() if name == what), None)
