"""`bottleneck explain CODE`: the manual page of a code.

In: a finding code or its name (BN101, waiting-for-input), a class (input-bound) or a fix (FX101).
Out: its page on stdout.
"""

from __future__ import annotations

import difflib
import sys

import click

from ..catalog.registry import FIXES, by_code, by_id, is_fix_id
from ..errors import UsageError
from ..model.codes import FINDING_CODES, CodeEntry
from ..reporters.manual import fix_list, fix_page
from ..reporters.output import emit, traits


@click.command("explain")
@click.argument("codes", nargs=-1, required=True, metavar="CODE...")
def command(codes: tuple[str, ...]) -> None:
    """Explain findings (BN101), classes (input-bound) and fixes (FX101).

    \b
    bottleneck explain BN101 FX101
    """
    emit("\n".join(_page(code.strip()) for code in codes))


def _page(code: str) -> str:
    width = traits(sys.stdout).width
    if is_fix_id(code):
        return fix_page(by_id(code), width=width)
    of_class = [
        entry
        for entry in FINDING_CODES.values()
        if entry.bottleneck_class is not None and entry.bottleneck_class.value == code.lower()
    ]
    if of_class:
        listed = "\n".join(f"  {entry.code} {entry.name}" for entry in of_class)
        more = f"More: bottleneck explain {of_class[0].code}"
        return f"{code.lower()}: its findings\n\n{listed}\n\n{more}\n"
    return _finding_page(_entry(code), width=width)


def _finding_page(entry: CodeEntry, *, width: int) -> str:
    from ..analyzers import explain

    fixes = by_code(entry.code)
    tail = f"\nFixes that answer it\n\n{fix_list(fixes, width=width)}" if fixes else ""
    return explain(entry.code) + tail


_LOOK_ALIKE = str.maketrans("OIL", "011")


def _entry(code: str) -> CodeEntry:
    for entry in FINDING_CODES.values():
        if code.upper() == entry.code or code.lower() == entry.name:
            return entry
    names = [*FINDING_CODES, *(entry.name for entry in FINDING_CODES.values()), *(fix.id for fix in FIXES)]
    # Letters that look like digits first: by edit distance, BN1O1 is as close to BN211 as to BN101.
    typed = code.upper()
    meant = typed[:2] + typed[2:].translate(_LOOK_ALIKE)
    near = [name for name in names if name == meant] or (
        difflib.get_close_matches(typed, names, n=1) or difflib.get_close_matches(code, names, n=1)
    )
    hint = (
        f"Did you mean {near[0]}?"
        if near
        else "Findings are named BN..., fixes FX...; `bottleneck catalog` lists the fixes."
    )
    raise UsageError(f"There is no finding, class or fix {code!r}.", remedy=hint)
