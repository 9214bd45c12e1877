"""Traces that TensorBoard's profiler tab would not show, or that would crash it.

In: folders or files. Out: checks. Only names, sizes and first bytes are read; `analyze` reads the
contents.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import InputError
from ..ingest.sources import open_source
from ..model.snapshot import NOTES_SUFFIX
from .check import Check

_SEEN = re.compile(r"(?P<worker>.*?)(?:\.\d+)?\.pt\.trace\.json(?:\.gz)?")
"""`WORKER_PATTERN` of torch-tb-profiler 0.4.3."""
_TRACE = re.compile(r".+\.json(?:\.gz)?")
_NODE = re.compile(r".*_\d+")
_OURS = frozenset(
    f"{name}.json"
    for name in ("run", "loader", "compile", "diagnosis", "trial", "verify", "history", "bottleneck-page")
)
_DEEPEST = 4
_MOST_SHOWN = 8
_BLANK_BYTES = 500 * 10**6
"""Larger traces leave the trace view blank (kineto issue 805)."""
_PACKED = 12
"""Factor by which a trace's gzip file grows when unpacked."""
_PARSER = 7
"""Memory of the tab's parser per byte of JSON (89 MB: 620 MB), one process per file."""


def check_files(paths: Sequence[Path], *, memory: int | None) -> Iterator[Check]:
    """Check what TensorBoard would make of these paths.

    Raises:
        InputError: a path does not exist.
    """
    for path in paths:
        if not path.exists():
            raise InputError(f"{path} does not exist.", remedy="Check the path.")
        if path.is_file() and _TRACE.fullmatch(path.name) is None:
            yield Check(
                area="files",
                level="warning",
                text=f"{path} is not a trace: its name ends in neither .json nor .json.gz.",
            )
            continue
        files = [path] if path.is_file() else sorted(_traces(path))
        if not files:
            yield Check(area="files", level="warning", text=f"{path} has no trace (*.json, *.json.gz).")
            continue
        yield from _unseen(path, files)
        yield from _unreadable(files)
        yield from _too_large([file for file in files if _SEEN.fullmatch(file.name)], memory)


def _traces(folder: Path) -> Iterator[Path]:
    for file in folder.rglob("*"):
        depth = len(file.relative_to(folder).parts)
        hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
        ours = file.name in _OURS or file.name.endswith(NOTES_SUFFIX)
        is_trace = _TRACE.fullmatch(file.name) is not None and not ours
        if is_trace and depth <= _DEEPEST and not hidden and file.is_file():
            yield file


def _unseen(path: Path, files: Sequence[Path]) -> Iterator[Check]:
    """Name files that the tab silently ignores; our own raw traces have a copy for it."""
    seen = [file for file in files if _SEEN.fullmatch(file.name)]
    unseen = [file for file in files if file not in seen and not _has_copy(file)]
    if unseen:
        names = ", ".join(file.name for file in unseen[:_MOST_SHOWN])
        more = f" and {len(unseen) - _MOST_SHOWN} more" if len(unseen) > _MOST_SHOWN else ""
        yield Check(
            area="files",
            level="warning",
            text=f"TensorBoard's profiler tab ignores {names}{more}: it reads only names that end in"
            " .pt.trace.json or .pt.trace.json.gz.",
            remedy=f"bottleneck review {path}",
        )
    alone = [file for file in seen if not (file.parent / "bottleneck-page.json").is_file()]
    if alone:
        yield Check(
            area="files",
            level="note",
            text=f"{len(alone)} of {len(seen)} traces are as torch wrote them: the tab counts steps twice"
            " and leaves out loader, runtime and NCCL time.",
            remedy=f"bottleneck review {path}",
        )
    by_folder: dict[Path, set[str]] = defaultdict(set)
    for file in seen:
        found = _SEEN.fullmatch(file.name)
        assert found is not None
        by_folder[file.parent].add(found["worker"])
    for folder, workers in by_folder.items():
        odd = sorted(worker for worker in workers if not _NODE.fullmatch(worker))
        if len(workers) > 1 and odd:
            yield Check(
                area="files",
                level="warning",
                text=f"{folder}: the distributed view needs workers named <node>_<rank>, unlike {odd[0]}.",
                remedy=f"bottleneck review {path}",
            )
    if seen and not unseen and not alone:
        yield Check(
            area="files",
            level="ok",
            text=f"{path}: TensorBoard reads it correctly ({len(seen)} of {len(files)} traces)",
        )


def _has_copy(file: Path) -> bool:
    """Return whether a trace is in a run folder that was prepared for TensorBoard."""
    if file.parent.name != "trace":
        return False
    run = file.parent.parent
    return any((place / "tensorboard").is_dir() for place in (run, run.parent))


def _unreadable(files: Sequence[Path]) -> Iterator[Check]:
    for file in files:
        try:
            open_source(file).close()
        except InputError as error:
            yield Check(area="files", level="problem", text=error.message, remedy=error.remedy)


def _too_large(files: Sequence[Path], memory: int | None) -> Iterator[Check]:
    sizes = {file: file.stat().st_size * (_PACKED if file.suffix == ".gz" else 1) for file in files}
    for file, size in sizes.items():
        if size > _BLANK_BYTES:
            yield Check(
                area="files",
                level="warning",
                text=f"{file.name} has about {size / 1e6:.0f} MB of JSON; the trace view is blank above"
                f" {_BLANK_BYTES / 1e6:.0f} MB.",
                remedy="Trace fewer steps, or let `bottleneck review` cut it.",
            )
    need = _PARSER * sum(sizes.values())
    if memory is not None and need > memory:
        yield Check(
            area="files",
            level="warning",
            text=f"TensorBoard parses all {len(files)} traces at once: about {need / 1e9:.0f} GB of memory,"
            f" but only {memory / 1e9:.0f} GB is free.",
            remedy="Show fewer ranks or runs at a time.",
        )
