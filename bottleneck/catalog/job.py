"""What the parts of a watched job would be with a fix, as far as that follows from what was measured.

In: the account of a job. Out: the same with `AccountLine.with_fix`. The fixes say themselves what they remove
of a part (`Fix.shortens`); here stands only what no entry of the catalogue is about.
"""

from __future__ import annotations

import msgspec

from ..model.fix import Shortens
from ..model.watch import AccountLine, Watch, WithFix
from .registry import FIXES

_LEAST = 0.01
"""Of the job: what gains less is not worth a word."""
_ELSE = (Shortens(part="training steps", change="without what grows", of="growth"),)


def with_fixes(watch: Watch) -> Watch:
    """Return the account with what each line would be with its fix."""
    return msgspec.structs.replace(watch, account=[_with_fix(line, watch) for line in watch.account])


def _with_fix(line: AccountLine, watch: Watch) -> AccountLine:
    offers = [(fix.id, shortens) for fix in FIXES for shortens in fix.shortens]
    offers += [("", shortens) for shortens in _ELSE]
    for fix, shortens in offers:
        gain_s = _removed_s(shortens, line, watch)
        if not _LEAST * watch.wall_s <= gain_s < watch.wall_s:
            continue
        left_s = line.s - gain_s
        changed = WithFix(
            change=shortens.change,
            s=round(left_s, 6),
            share=round(left_s / (watch.wall_s - gain_s), 6),
            at_best=shortens.at_best,
            fix=fix,
        )
        return msgspec.structs.replace(line, with_fix=changed)
    return msgspec.structs.replace(line, with_fix=None)


def _removed_s(shortens: Shortens, line: AccountLine, watch: Watch) -> float:
    """Return the seconds that go."""
    if shortens.part != line.part or (watch.acts and line.part == "validation"):
        return 0.0
    if shortens.of == "again":
        return shortens.removes * line.again_s
    if shortens.of == "all":
        return shortens.removes * line.s
    kinds = [growth.kind for growth in watch.growth]
    told = kinds if not shortens.kinds else [kind for kind in kinds if kind.startswith(shortens.kinds)]
    if not told or watch.best_ms is None:
        return 0.0
    # A line from nothing to the last step: half of what it is there, each step.
    grown_s = watch.growth[0].ms_per_1000_steps * line.count**2 / 2e6
    return shortens.removes * min(grown_s, max(0.0, line.s - line.count * watch.best_ms / 1e3))
