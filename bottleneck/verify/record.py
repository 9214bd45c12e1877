"""What was measured of a run's fixes, put beside what its diagnosis predicts of them.

In: a diagnosis, and verifications, such as those inside its run folder. Out: the diagnosis with its
`tried` rows, the newest of each fix or combination.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ..errors import InputError
from ..model.documents import VERIFY_FILE, load_verification

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ..model.diagnosis import Diagnosis
    from ..model.verify import Outcome, Verification

__all__ = ["VERIFY_FOLDER", "tried_in", "with_tried"]

VERIFY_FOLDER = "verify"
"""Where a verification lies inside the run folder that it starts from; later ones are numbered."""


def tried_in(folder: Path) -> list[Verification]:
    """Return the verifications inside a run folder, the oldest first; what cannot be read is left out."""
    found = []
    for file in folder.glob(f"{VERIFY_FOLDER}*/{VERIFY_FILE}"):
        try:
            found.append(load_verification(file))
        except InputError:
            continue
    return sorted(found, key=lambda state: state.created)


def with_tried(diagnosis: Diagnosis, verifications: Iterable[Verification]) -> Diagnosis:
    """Return the diagnosis with what these verifications measured, added to what it holds already."""
    rows: dict[tuple[tuple[str, ...], tuple[str, ...]], Outcome] = {
        (row.fixes, row.base): row for row in diagnosis.tried
    }
    for state in verifications:
        for row in state.outcomes:
            known = rows.get((row.fixes, row.base))
            if row.verdict != "not run" and (known is None or row.verdict != "undecided"):
                rows[row.fixes, row.base] = row
    return msgspec.structs.replace(diagnosis, tried=tuple(rows.values())) if rows else diagnosis
