"""Diagnoses of recorded runs and sides of comparisons, each made once for a whole test session.

In: the name of a case, or what lies on disk. Out: its diagnosis or side, which nobody may change.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
from pathlib import Path

from session import once

from torch_bottleneck.compare.sides import Side, read_side
from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.model.diagnosis import Diagnosis

from .cases import CASES, Case

__all__ = ["as_measured", "diagnosed", "diagnosis_of", "side_of"]


def diagnosis_of(name: str) -> Diagnosis:
    """Return the diagnosis of a case, or of a folder inside it, as in "input-bound-cpu/run"."""
    case, _, inside = name.partition("/")
    return diagnosed(CASES[case].folder / inside)


def as_measured(case: Case) -> Diagnosis:
    """Return the diagnosis of a capture, or of bare traces with the step time that was measured without."""
    for run in case.folder.glob("**/run.json"):
        return diagnosed(run.parent)
    return diagnosed(case.folder, true_step_ms=case.true_step_ms)


@functools.cache
def diagnosed(*paths: Path, true_step_ms: float | None = None) -> Diagnosis:
    """Return `diagnose_paths(paths)`."""
    key = hashlib.sha256(repr((*map(str, paths), true_step_ms)).encode()).hexdigest()
    made = once(
        f"{key}.diagnosis",
        lambda: pickle.dumps(diagnose_paths(list(paths), true_step_ms=true_step_ms)),
    )
    found: Diagnosis = pickle.loads(made)
    return found


@functools.cache
def side_of(name: str) -> Side:
    """Return `read_side` of a case's folder."""
    made = once(f"{name}.side", lambda: pickle.dumps(read_side([CASES[name].folder])))
    found: Side = pickle.loads(made)
    return found
