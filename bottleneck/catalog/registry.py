"""The catalogue: all fixes by id, and the search over them.

In: an id or words. Out: fixes. Ids are append-only; tests/contracts/catalog_ids.txt holds them.
"""

from __future__ import annotations

import msgspec

from ..errors import UsageError
from ..model.fix import Arithmetic, Fix, Risk
from . import (
    allocator,
    calls,
    compute,
    distributed,
    graph_breaks,
    host,
    memory,
    memory_states,
    precision,
    ways,
)
from . import compile as compile_family
from . import input as input_family
from .record import RECORDS

_FAMILIES = {
    "input": input_family.FIXES,
    "allocator": allocator.FIXES,
    "memory": (*memory.FIXES, *memory_states.FIXES),
    "compute": (*precision.FIXES, *compute.FIXES, *calls.FIXES, *ways.FIXES),
    "compile": (*graph_breaks.FIXES, *compile_family.FIXES),
    "host": host.FIXES,
    "distributed": distributed.FIXES,
}
FAMILIES = tuple(_FAMILIES)
FIXES: tuple[Fix, ...] = tuple(
    sorted(
        (
            msgspec.structs.replace(fix, family=family, record=RECORDS.get(fix.id))
            for family, fixes in _FAMILIES.items()
            for fix in fixes
        ),
        key=lambda fix: fix.id,
    )
)


OWN = Fix(
    id="own",
    title="Your own change",
    addresses=(),
    what_to_change="Apply your own diff.",
    risk=Risk.NEEDS_REVIEW,
    can_try=True,
    arithmetic=Arithmetic.REORDERED,
    moves_samples=True,
)
"""What `verify` tries where it is given a diff; never suggested, and no part of the catalogue."""


def by_id(fix_id: str) -> Fix:
    """Return the fix of that id, in upper or lower case.

    Raises:
        UsageError: there is none.
    """
    if fix_id == OWN.id:
        return OWN
    for fix in FIXES:
        if fix.id == fix_id.upper():
            return fix
    raise UsageError(f"There is no fix {fix_id!r}.", remedy="`bottleneck catalog` lists them.")


def is_fix_id(code: str) -> bool:
    """Tell whether a code is, or is meant to be, that of a fix."""
    return code.upper().startswith("FX")


def by_code(code: str) -> tuple[Fix, ...]:
    """Return the fixes that answer a finding code."""
    return tuple(fix for fix in FIXES if code.upper() in fix.addresses)


def search(words: str) -> tuple[Fix, ...]:
    """Return the fixes that mention every word, those with most of them in the title first."""
    wanted = words.lower().split()
    found = []
    for fix in FIXES:
        title = f"{fix.id} {fix.title} {fix.family}".lower()
        sources = " ".join(f"{source.title} {source.claim}" for source in fix.sources)
        text = " ".join([title, fix.what_to_change, fix.may_break, fix.code, sources, *fix.addresses]).lower()
        if wanted and all(word in text for word in wanted):
            found.append((-sum(word in title for word in wanted), fix.id, fix))
    return tuple(fix for _, _, fix in sorted(found, key=lambda entry: entry[:2]))
