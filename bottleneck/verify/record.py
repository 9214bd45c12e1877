"""What was measured of a run's fixes: kept in a file, and put beside what its diagnosis predicts of them.

In: a verification; a diagnosis, and verifications, such as those inside its run folder. Out: verify.json; the
diagnosis with its `tried` rows, the newest of each fix or combination.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from ..errors import InputError
from ..model.diagnosis import Diagnosis
from ..model.documents import (
    DIAGNOSIS_FILE,
    VERIFY_FILE,
    document_text,
    load_diagnosis,
    load_verification,
    write_text,
)
from ..model.verify import Outcome, Verification
from ..model.words import shown

VERIFY_FOLDER = "verify"
"""Where a verification lies inside the run folder that it starts from; later ones are numbered."""


def write_state(state: Verification, folder: Path) -> None:
    """Write verify.json, from which `--resume` goes on.

    Raises:
        InputError: the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        state = msgspec.structs.replace(state, place=folder.stat().st_ino)
    except OSError as error:
        raise InputError(f"Cannot write {folder}: {error.strerror or error}.") from None
    write_text(folder / VERIFY_FILE, document_text(state))


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


def accumulate(
    state: Verification,
    run: Path,
    *,
    keep: Callable[[Diagnosis, Path], object],
    say: Callable[[str], None],
) -> None:
    """Show in a run's own reports what was measured of its fixes, wherever that was written to.

    Nothing is done where the folder holds no diagnosis; `say` takes why the reports are left as they were.
    """
    if not (run / DIAGNOSIS_FILE).is_file() or not any(row.verdict != "not run" for row in state.outcomes):
        return
    try:
        keep(with_tried(load_diagnosis(run), [*tried_in(run), state]), run)
    except InputError as error:
        # A run folder that cannot be written to: the verification itself is whole.
        say(f"the reports in {shown(run)} were not updated: {error}")
