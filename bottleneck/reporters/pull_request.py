"""The text of a pull request that keeps the fixes which were proven to help.

In: a `Verification` with a winning combination. Out: GitHub-flavoured Markdown in which nothing from a script
can act as markup: what was predicted and measured, what changes, how to repeat the measurement.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec

from ..model.verify import Outcome, Verification
from ..model.words import clean, milliseconds
from .markdown_text import escape, tried_table
from .rows.verify import closing_lines, combination_outcome, edit_rows, headline, how_lines, reason_lines


def render(verification: Verification) -> str:
    """Return the text, whose first line can be the title."""
    kept = [row for row in verification.outcomes if _is_kept(row, verification)]
    lines = [f"# {escape(_title(verification))}", "", escape(headline(verification)), ""]
    lines += ["## Predicted and measured", "", *tried_table(kept), ""]
    lines += [f"- {escape(line)}" for line in reason_lines(_with_outcomes(verification, kept))]
    together = combination_outcome(verification)
    if together is not None and together.parity.verdict == "same" and together.parity.text:
        lines.append(f"- {escape(together.parity.text)}")
    lines += ["", "## What changes", ""]
    for edit in edit_rows(_placed_from(verification.cwd, verification)):
        place = f" at {edit.where}" if edit.where else ""
        if edit.diff:
            lines.append(f"- {escape(edit.fix + place)}: in the patch. {escape(edit.also)}".rstrip())
        elif edit.reason:
            lines.append(f"- {escape(f'{edit.fix}{place}: to be done by hand ({edit.reason}). {edit.what}')}")
            if edit.code:
                lines += ["", "````python", edit.code, "````", ""]
    lines += ["", "## How to repeat it", "", "````", _command(verification), "````", ""]
    if machine := _machine(verification):
        lines.append(f"- measured on {escape(machine)}")
    lines += [f"- {escape(line)}" for line in (*how_lines(verification), *closing_lines(verification))]
    return "\n".join(lines) + "\n"


def _is_kept(row: Outcome, verification: Verification) -> bool:
    return row.verdict != "not run" and set(row.fixes) <= set(verification.combination)


def _with_outcomes(verification: Verification, outcomes: list[Outcome]) -> Verification:
    return msgspec.structs.replace(verification, outcomes=tuple(outcomes))


def _placed_from(folder: str, verification: Verification) -> Verification:
    """Name the places of edits from the folder that the script ran in, as reviewers know them."""
    edits = [
        msgspec.structs.replace(edit, where=edit.where.told_from(Path(folder)) if edit.where else None)
        for edit in verification.edits
    ]
    return msgspec.structs.replace(verification, edits=tuple(edits))


def _title(verification: Verification) -> str:
    name = verification.script or f"-m {verification.module}"
    together = combination_outcome(verification)
    if together is None or together.measured is None:
        return f"{name}: a faster training step"
    found = together.measured
    steps = f"{milliseconds(found.before_ms)} to {milliseconds(found.after_ms, like=found.before_ms)} ms"
    return f"{name}: training step {found.ratio:.2f}× as fast ({steps})"


def _command(verification: Verification) -> str:
    """Return the command that measures the kept fixes again."""
    words = ["bottleneck", "verify"]
    if verification.launcher:
        words += ["--launcher", shlex.join(verification.launcher)]
    options = {wish.fix: wish.options for wish in verification.wishes}
    own = {wish.fix for wish in verification.wishes if wish.diff}
    for fix in verification.combination:
        given = ",".join(f"{name}={_value(value)}" for name, value in options.get(fix, {}).items())
        words += ["--fix", "changes.patch" if fix in own else f"{fix}:{given}" if given else fix]
    words += [verification.script] if verification.script else ["-m", str(verification.module)]
    return clean(shlex.join([*words, *verification.args]))


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _machine(verification: Verification) -> str:
    host, device = verification.host, verification.device
    name = device.name if device is not None and device.name else host.cpu
    told = [name, f"{host.cores} cores" if host.cores else "", f"torch {host.torch}" if host.torch else ""]
    return ", ".join(filter(None, [*told, f"Python {host.python}" if host.python else ""]))
