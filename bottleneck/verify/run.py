"""One call of `verify`, from its first run to the edits that keep what helped.

In: what to run, the first state, the candidates. Out: the verification, on disk after every run; then a
patch, or changed sources.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..errors import InputError
from ..files import path_of
from ..model.documents import write_text
from ..model.verify import Verification
from ..model.words import shown
from ..runs.target import Target
from .arms import Arms
from .edits import joined_diff, repository_of, with_edits, write_edits
from .record import write_state
from .rows import Candidate
from .session import Session


def run_verification(
    target: Target,
    folder: Path,
    state: Verification,
    candidates: tuple[Candidate, ...],
    *,
    limit_seconds: float,
    say: Callable[[str], None],
) -> tuple[Verification, bool]:
    """Measure what is left; return the verification with its edits, and whether the user asked to stop.

    Raises:
        ScriptError: the script fails as it is.
    """
    session = Session(
        arms=Arms(
            target=target,
            folder=folder,
            seed=state.protocol.seed,
            session=1 + max((run.session for run in state.runs), default=0),
            limit_seconds=limit_seconds,
            steps=state.protocol.steps,
        ),
        state=state,
        candidates=candidates,
        save=lambda current: write_state(current, folder),
        say=say,
    )
    interrupted = False
    try:
        for candidate in candidates:
            # Before minutes of running, not after.
            session.arms.target_with(candidate.wishes)
        session.run()
    except KeyboardInterrupt:
        # Between two runs; what was measured is on disk and is reported all the same.
        interrupted = True
    finally:
        session.arms.clean()
    state = with_edits(session.state)
    write_state(state, folder)
    return state, interrupted or session.interrupted


def apply_edits(state: Verification, *, patch: Path | None, write: bool, say: Callable[[str], None]) -> None:
    """Write the diffs to a file, or into the sources.

    Raises:
        InputError: there is nothing to write, or git holds no clean copy of a source.
    """
    if not state.combination:
        raise InputError("No fix was proven to help, so there is nothing to change.")
    if not any(edit.diff for edit in state.edits):
        raise InputError(
            "No edit can be made automatically.", remedy="The report says what to change and where."
        )
    if patch is not None:
        write_text(patch, joined_diff(state.edits))
        say(f"patch: {shown(patch)}")
    if write:
        for file in write_edits(state.edits):
            say(f"changed {shown(file)}")
    for edit in state.edits:
        if not edit.diff and not edit.already:
            say(f"{edit.fix} must be edited by hand: {edit.reason}")


def patch_of_pull_request(state: Verification, file: Path, *, say: Callable[[str], None]) -> None:
    """Write what `git apply` takes at the root of the repository; no file where nothing can be edited.

    Raises:
        InputError: no fix helped, or the file cannot be written.
    """
    if not state.combination:
        raise InputError("No fix was proven to help, so there is nothing to request.")
    for edit in state.edits:
        if not edit.diff and not edit.already:
            say(f"{edit.fix} must be edited by hand: {edit.reason}")
    diff = joined_diff(state.edits, root=repository_of(path_of(state.cwd)))
    if diff:
        write_text(file, diff)
    else:
        file.unlink(missing_ok=True)
