"""Pages of the manual on the terminal: one fix, the list of fixes.

In: fixes. Out: plain text, wrapped at a given width.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from ..model.fix import Fix
from .rows.fixes import record_words

_NO_RECORD = "None was held against a measurement yet."


def fix_list(fixes: Iterable[Fix], *, width: int = 80) -> str:
    """Return one line per fix, under its family's name."""
    lines: list[str] = []
    family = None
    for fix in fixes:
        if fix.family != family:
            family = fix.family
            lines += ["", family] if lines else [family]
        mark = "note" if fix.note else " ".join(fix.addresses)
        room = width - len(fix.id) - len(mark) - 5
        title = fix.title if len(fix.title) <= room else fix.title[: room - 3] + "..."
        lines.append(f"  {fix.id} {title:<{room}} {mark}".rstrip())
    return "\n".join(lines) + "\n"


def fix_page(fix: Fix, *, width: int = 80) -> str:
    """Return everything the catalogue says about a fix, under fixed headings."""
    applies = [f"- {c.text or c.key}" for c in fix.when if c.op != "known"]
    applies += [f"- not when {c.text or c.key}" for c in fix.unless]
    if fix.conflicts:
        applies.append(f"- not together with: {', '.join(fix.conflicts)}")
    if fix.addresses:
        rounds = ", where the rounds of a loop take nearly all of it" if fix.for_rounds else ""
        applies.append(f"- answers {', '.join(fix.addresses)}{rounds}")
    gain = fix.basis or ("a note: no gain is predicted" if fix.note else "not predicted")
    if fix.what_if_bound:
        gain += "; an upper bound"
    risk = fix.risk.value if not fix.may_break else f"{fix.risk.value}. {fix.may_break}"
    whole = [
        f"- {shortens.part}: {shortens.change}{', at best' if shortens.at_best else ''}"
        for shortens in fix.shortens
    ]
    sections = (
        ("What to change", [fix.what_to_change]),
        ("When it applies", applies or ["- always"]),
        ("What it may break", [risk]),
        ("Expected gain", [gain]),
        ("Record of its predictions", [record_words(fix.record) if fix.record is not None else _NO_RECORD]),
        *([("In a watched job", whole)] if whole else []),
        ("How to undo it", [fix.undo or "Not needed."]),
        ("How to verify", [fix.verify or "Diagnose again and compare."]),
        ("Sources", [_source(s.title, s.url, s.claim) for s in fix.sources]),
    )
    status = "" if fix.status == "stable" else f", {fix.status}"
    lines = [f"{fix.id} {fix.title} ({fix.family}, since {fix.since}{status})"]
    for heading, paragraphs in sections:
        lines += ["", heading]
        for paragraph in paragraphs:
            lines += _wrapped(paragraph, width)
        if heading == "What to change" and fix.code:
            lines += ["", *(f"    {line}".rstrip() for line in fix.code.splitlines())]
    return "\n".join(lines) + "\n"


def _source(title: str, url: str, claim: str) -> str:
    text = f"- {title}"
    if url:
        text += f": {url}"
    return f'{text} (claims: "{claim}")' if claim else text


def _wrapped(text: str, width: int) -> list[str]:
    hang = "    " if text.startswith("- ") else "  "
    return textwrap.wrap(
        text,
        width,
        initial_indent="  ",
        subsequent_indent=hang,
        break_long_words=False,
        break_on_hyphens=False,
    )
