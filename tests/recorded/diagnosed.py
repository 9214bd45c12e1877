"""Diagnoses of recorded runs, each made once for a whole test session.

In: the name of a case, or what lies on disk. Out: its diagnosis, which nobody may change.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
from pathlib import Path

from session import once

from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.model.diagnosis import Diagnosis

from .cases import CASES

__all__ = ["diagnosed", "diagnosis_of"]


def diagnosis_of(name: str) -> Diagnosis:
    """Return the diagnosis of a case, or of a folder inside it, as in "input-bound-cpu/run"."""
    case, _, inside = name.partition("/")
    return diagnosed(CASES[case].folder / inside)


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
