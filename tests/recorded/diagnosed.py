"""Diagnoses of recorded runs, each made once for a whole test session.

In: the name of a case, or what lies on disk. Out: its diagnosis, which nobody may change. The processes
of a session share them through the folder that a variable of the environment names (conftest makes it).
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
from pathlib import Path

from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.model.diagnosis import Diagnosis

from .cases import CASES

__all__ = ["FOLDER", "diagnosed", "diagnosis_of"]

FOLDER = "BOTTLENECK_TEST_SESSION"


def diagnosis_of(name: str) -> Diagnosis:
    """Return the diagnosis of a case, or of a folder inside it, as in "input-bound-cpu/run"."""
    case, _, inside = name.partition("/")
    return diagnosed(CASES[case].folder / inside)


@functools.cache
def diagnosed(*paths: Path, true_step_ms: float | None = None) -> Diagnosis:
    """Return `diagnose_paths(paths)`."""
    folder = os.environ.get(FOLDER)
    if folder is None:
        return diagnose_paths(list(paths), true_step_ms=true_step_ms)
    key = hashlib.sha256(repr((*map(str, paths), true_step_ms)).encode()).hexdigest()
    file = Path(folder) / f"{key}.diagnosis"
    if file.is_file():
        found: Diagnosis = pickle.loads(file.read_bytes())
        return found
    found = diagnose_paths(list(paths), true_step_ms=true_step_ms)
    partial = file.with_suffix(f".{os.getpid()}")
    partial.write_bytes(pickle.dumps(found))
    partial.replace(file)
    return found
