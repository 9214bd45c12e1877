"""Reads what the user names as one side of a comparison.

In: paths of run folders, of folders that hold several, of diagnosis.json files or of baselines. Out:
a `Side`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..diagnose import diagnose_paths
from ..errors import InputError
from ..files import is_file, open_file, read_file
from ..model.baseline import Baseline
from ..model.diagnosis import Diagnosis
from ..model.documents import DIAGNOSIS_FILE, load_diagnosis, load_watch, run_files
from ..model.watch import WATCH_FILE
from .baseline_file import is_baseline, read_baseline
from .job import time_of_job
from .join import join_runs

_LABELS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side, and its name in the report."""

    label: str
    baseline: Baseline


def read_side(paths: Sequence[Path], *, root: Path | None = None) -> Side:
    """Read one side.

    Raises:
        InputError: a path holds nothing that can be compared.
    """
    label = ", ".join(str(path) for path in paths[:_LABELS])
    if len(paths) > _LABELS:
        label += f" and {len(paths) - _LABELS} more"
    if len(paths) == 1 and is_file(paths[0]) and not _is_trace(paths[0]) and is_baseline(read_file(paths[0])):
        return Side(label=label, baseline=read_baseline(paths[0]))
    runs = [run for path in paths for run in _runs(path)]
    here = Path.cwd() if root is None else root.absolute()
    watched = [time_of_job(load_watch(run), root=here) if is_file(run / WATCH_FILE) else None for run in runs]
    return Side(
        label=label, baseline=join_runs([_diagnosis(run) for run in runs], root=here, watched=watched)
    )


def _holds_a_run(folder: Path) -> bool:
    return (folder / DIAGNOSIS_FILE).is_file() or bool(run_files(folder))


def _runs(path: Path) -> list[Path]:
    """Return the runs of a path: itself, or all runs in the folder.

    Raises:
        InputError: there is nothing there.
    """
    if not path.exists():
        raise InputError(
            f"{path} does not exist.", remedy="Give a run folder, a diagnosis.json or a baseline."
        )
    if not path.is_dir():
        open_file(path).close()
        return [path]
    if _holds_a_run(path):
        return [path]
    inside = [item for item in sorted(path.iterdir()) if item.is_dir() and _holds_a_run(item)]
    if inside:
        return inside
    if not any(path.iterdir()):
        raise InputError(f"{path} is empty.", remedy="Give a run folder written by `bottleneck diagnose`.")
    return [path]


def _diagnosis(path: Path) -> Diagnosis:
    """Read what was diagnosed, or diagnose it now.

    Raises:
        InputError: neither is possible, or the diagnosis is too old to hold counters.
    """
    if path.is_file() and path.suffix == ".json" and not _is_trace(path):
        found = load_diagnosis(path)
        if found.counters is None:
            raise InputError(
                f"{path} is from version {found.tool_version or 'unknown'}, before there were counters.",
                remedy="Give the run folder instead: it is then diagnosed again.",
            )
        return found
    stored = path / DIAGNOSIS_FILE
    if stored.is_file():
        found = load_diagnosis(stored)
        if found.counters is not None:
            return found
        if not run_files(path):
            raise InputError(
                f"{stored} is from version {found.tool_version or 'unknown'}, before there were"
                " counters, and its run folder is not next to it.",
                remedy="Record the run again with `bottleneck diagnose`.",
            )
    return diagnose_paths([path])


def _is_trace(path: Path) -> bool:
    """Return whether a .json file is a Kineto trace; such a file may be huge, so look at its head."""
    with open_file(path) as file:
        head = file.read(65536) or b""
    return b'"traceEvents"' in head or b'"deviceProperties"' in head or head.lstrip()[:1] == b"["
