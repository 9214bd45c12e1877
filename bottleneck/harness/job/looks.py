"""What grows beside steps that grow: a few looks at the program, some steps apart, and their difference.

In: the frames of the training thread, on that thread, between two steps. Out: names behind which something
became larger at each look, with the line that adds to it. Nothing is kept alive by a look but numbers.
"""

from __future__ import annotations

import gc
import linecache
import re
import sys
from collections import Counter, deque
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ...model.run import SourceSite
from ..facts.values import denormals
from ..lines.sites import is_library, names_in

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

    from .watch import JobWatch

__all__ = ["Grown", "Looks"]

LOOKS = 4
APART = 25
"""Steps between two looks."""
MOST_VISITS = 20_000
MOST_NODES = 20_000
MOST_ITEMS = 32
"""Items of a container that are looked into; more of them are data."""
DEEPEST = 3
LEAST_PER_STEP = 0.2
NAMED = 3
_CONTAINERS = (list, deque, dict, set, bytearray)
_ADDS = r"\s*(?:\.(?:append|appendleft|extend|add|update|insert|setdefault|\w+_)\(|\+=|=(?!=).*\b{name}\b)"
"""What follows a name in a line that adds to what stands behind it, or changes it in place."""


class Grown(NamedTuple):
    """Something that became larger."""

    what: str
    kind: str
    per_step: float
    site: SourceSite | None


class Looks:
    """The looks of one job."""

    def __init__(self) -> None:
        self._taken: list[tuple[int, dict[tuple[str, str], int]]] = []
        self._files: dict[str, None] = {}
        self._done = False

    def wanted(self, job: JobWatch, steps: int) -> bool:
        """Say whether to look now; `steps` have ended."""
        if self._done or not job.wants_look:
            return False
        return not self._taken or steps >= self._taken[-1][0] + APART

    def look(self, job: JobWatch, frame: FrameType, steps: int) -> None:
        """Look; with the last one, tell the job what has grown."""
        sizes = _Sizes()
        own: FrameType | None = frame
        while own is not None:
            if not is_library(own.f_code.co_filename):
                self._files[own.f_code.co_filename] = None
                sizes.visit_names(names_in(own))
            own = own.f_back
        self._files.update(sizes.files)
        types = Counter(map(type, gc.get_objects()))
        for kind, count in types.items():
            sizes.found[kind.__qualname__, "objects"] = count
        self._taken.append((steps, sizes.found))
        if len(self._taken) == LOOKS:
            job.found(self._grown())
            self._taken.clear()
            self._done, job.wants_look = True, False

    def _grown(self) -> list[Grown]:
        """Return what was larger at each look than at the one before: what is named first, then types."""
        first, last = self._taken[0], self._taken[-1]
        elapsed = last[0] - first[0]
        found: list[Grown] = []
        for what, kind in first[1]:
            sizes = [look.get((what, kind), 0) for _, look in self._taken]
            per_step = (sizes[-1] - sizes[0]) / elapsed
            if all(b > a for a, b in pairwise(sizes)) and per_step >= LEAST_PER_STEP:
                found.append(Grown(what, kind, per_step, None))
        found.sort(key=lambda grown: (_rank(grown.kind), -grown.per_step))
        named = [grown for grown in found if grown.kind != "objects"]
        return [g._replace(site=_line_that_adds(g, self._files)) for g in (named or found)[:NAMED]]


class _Sizes:
    """Sizes behind names, as of one look."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], int] = {}
        """(name, kind) -> size."""
        self.files: dict[str, None] = {}
        """Source files of the classes that were met."""
        self._seen: set[int] = set()

    def visit_names(self, names: Iterable[tuple[str, Any]]) -> None:
        """Look at what stands behind the names of a frame."""
        for name, value in names:
            if not name.startswith("__"):
                self._visit(name, value, 0)

    def _visit(self, path: str, value: object, depth: int) -> None:
        kind = type(value)
        if depth > DEEPEST or id(value) in self._seen or len(self._seen) > MOST_VISITS:
            return
        if issubclass(kind, torch.Tensor):
            self._seen.add(id(value))
            self._visit_tensor(path, value)
        elif issubclass(kind, torch.nn.Module):
            self._seen.add(id(value))
            self._visit_module(path, value, depth)
        elif issubclass(kind, _CONTAINERS):
            self._seen.add(id(value))
            self._visit_container(path, value, depth)
        elif not issubclass(kind, type) and isinstance(own := _dict_of(value), dict):
            module = sys.modules.get(kind.__module__)
            file = getattr(module, "__file__", None) or ""
            if file and not is_library(file):
                self._seen.add(id(value))
                self.files[file] = None
                for name, inner in list(own.items()):
                    self._visit(f"{path}.{name}", inner, depth + 1)

    def _visit_tensor(self, path: str, value: Any) -> None:
        if value.grad_fn is not None:
            self.found[path, "autograd nodes"] = _nodes(value.grad_fn)
        elif value.layout is torch.strided:
            self.found[path, "elements of tensor"] = value.numel()
            if value.device.type == "cpu" and value.is_floating_point():
                # Processors take many times as long for these.
                self.found[path, "denormal numbers in tensor"] = denormals(value)

    def _visit_container(self, path: str, value: Any, depth: int) -> None:
        items = list(islice(value.items(), MOST_ITEMS)) if isinstance(value, dict) else None
        if items is None:
            items = [(i, item) for i, item in enumerate(islice(value, MOST_ITEMS))]
        inner = items[-1][1] if items else None
        of = "tensors in " if isinstance(inner, torch.Tensor) else "items in "
        self.found[path, of + type(value).__name__] = len(value)
        if len(value) <= MOST_ITEMS:
            for key, item in items:
                if not isinstance(item, torch.Tensor):
                    self._visit(f"{path}[{key!r}]", item, depth + 1)

    def _visit_module(self, path: str, module: Any, depth: int) -> None:
        hooks = 0
        for name, part in module.named_modules():
            self._seen.add(id(part))
            for attribute, value in list(vars(part).items()):
                if "_hooks" in attribute and isinstance(value, dict):
                    hooks += len(value)
                elif not attribute.startswith("_") and attribute != "training":
                    prefix = f"{path}.{name}" if name else path
                    self._visit(f"{prefix}.{attribute}", value, depth + 1)
            file = getattr(sys.modules.get(type(part).__module__), "__file__", None) or ""
            if file and not is_library(file):
                self.files[file] = None
        for parameter in module.parameters():
            self._seen.add(id(parameter))
            hooks += len(getattr(parameter, "_backward_hooks", None) or ())
            hooks += len(getattr(parameter, "_post_accumulate_grad_hooks", None) or ())
        self.found[path, "hooks"] = hooks


def _dict_of(value: object) -> Any:
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None


def _nodes(node: Any) -> int:
    """Count the nodes of a graph, up to a limit."""
    seen, pending = {node}, [node]
    while pending and len(seen) < MOST_NODES:
        for after, _ in pending.pop().next_functions:
            if after is not None and after not in seen:
                seen.add(after)
                pending.append(after)
    return len(seen)


def _rank(kind: str) -> int:
    """Say what is more likely to slow steps down: a graph, hooks, tensors that are kept, anything else."""
    signs = ("autograd", "hooks", "denormal", "tensor")
    return next((i for i, sign in enumerate(signs) if sign in kind), len(signs))


def _line_that_adds(grown: Grown, files: Iterable[str]) -> SourceSite | None:
    """Return the first line of the user's files that adds to what has grown, as its source reads."""
    if grown.kind == "objects":
        return None
    path = grown.what.partition("[")[0]
    name = re.escape(path.rpartition(".")[2])
    # An attribute is one everywhere, whatever its owner is called there.
    named = rf"{r'[.]' if '.' in path else r'(?<![.])'}\b{name}\b"
    adds = rf"{named}(?:\[[^\]]*\])?{_ADDS.replace('{name}', name)}|{named}\[[^\]]*\]\s*=(?!=)"
    wanted = re.compile(r"\.register_\w*hook\(" if grown.kind == "hooks" else adds)
    for file in files:
        for number, line in enumerate(linecache.getlines(file), start=1):
            if wanted.search(line.partition("#")[0]):
                return SourceSite(file=file, line=number)
    return None
