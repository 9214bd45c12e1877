"""What caused the difference: budget lines, findings, kernels, and the lines of the program behind them.

In: two baselines. Out: `BudgetChange`, `FindingChange`, `NameChange` rows, and per counter the
`Reason`s for its growth. Lines of the program are matched by file, function and their text, so that
a line which only moved is not new.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..model.baseline import Baseline, FindingKey
from ..model.codes import BUDGET_PARTS, Part
from ..model.compare import BudgetChange, FindingChange, NameChange, SettingChange
from ..model.counters import BreakSite, StepCounters, SyncSite
from ..model.run import SourceSite
from ..model.words import shorten

_SMALLEST_SHARE = 0.005
_SMALLEST_MS = 0.01
_PRICE = 0.1
"""Change of a finding's price worth a line, as a share of that price."""
_MOST_REASONS = 5
_MOST_NAMES = 15
_READ = "aten::_local_scalar_dense"
_TEMPLATE = re.compile(r"^at::native::(?:\(anonymous namespace\)::)?(\w+)<")
_FUNCTOR = re.compile(r"(\w*Functor\w*|\w+_kernel_cuda|\w+Ops)\b")


@dataclass(frozen=True, slots=True)
class Reason:
    """One change in the run that explains a growth."""

    text: str
    site: SourceSite | None = None

    @property
    def placed(self) -> str:
        """The text with its place."""
        return self.text if self.site is None else f"{self.text} at {self.site.file}:{self.site.line}"


def budget_changes(
    base: Baseline, head: Baseline, settings: Sequence[SettingChange] = ()
) -> tuple[BudgetChange, ...]:
    """Return the budget lines that changed, largest change first, each with what belongs to it."""
    before = {line.part: line.ms for line in base.budget}
    after = {line.part: line.ms for line in head.budget}
    if not before or not after:
        return ()
    reasons = reasons_by_counter(base, head)
    least = max(_SMALLEST_MS, _SMALLEST_SHARE * max(sum(before.values()), sum(after.values())))
    rows = []
    for part in Part:
        one, other = before.get(part, 0.0), after.get(part, 0.0)
        if abs(other - one) >= least:
            # What has grown explains growth; a changed setting explains either.
            because = _because(part, reasons if other > one else {}, settings)
            rows.append(BudgetChange(part=part, base_ms=one, head_ms=other, because=because))
    return tuple(sorted(rows, key=lambda row: -abs(row.delta_ms)))


def _because(
    part: Part, reasons: dict[str, tuple[Reason, ...]], settings: Sequence[SettingChange]
) -> tuple[str, ...]:
    known = BUDGET_PARTS[part]
    told = [
        f"{row.name} {row.base} → {row.head}"
        for row in settings
        if any(word in row.name for word in known.settings)
    ]
    for counter in known.counters:
        told += [reason.placed for reason in reasons.get(counter, ())]
    return tuple(dict.fromkeys(told))[:_MOST_REASONS]


def reasons_by_counter(base: Baseline, head: Baseline) -> dict[str, tuple[Reason, ...]]:
    """Return what explains the growth of each counter that grew, as far as it is known."""
    one, other = base.counters, head.counters
    if one is None or other is None:
        return {}
    grown = _grown_names(one, other)
    found = {
        "syncs": _new_syncs(one.syncs, other.syncs),
        "graph_breaks": _new_breaks(one.breaks, other.breaks, "new graph break"),
        "recompiles": _new_breaks(one.recompiles, other.recompiles, "new recompilation"),
        "kernels" if other.device == "gpu" else "operators": grown,
    }
    return {name: reasons[:_MOST_REASONS] for name, reasons in found.items() if reasons}


def _grown_names(one: StepCounters, other: StepCounters) -> tuple[Reason, ...]:
    changes = [row for row in name_changes(one, other) if row.head > row.base]
    return tuple(Reason(f"{_bare(row.name)} {row.base:g} → {row.head:g}") for row in changes)


def _bare(name: str) -> str:
    """Shorten a name to its distinctive part: for ATen's kernel templates, the functor in them."""
    name = name.removeprefix("aten::").removeprefix("void ")
    template = _TEMPLATE.search(name)
    functors = [word for word in _FUNCTOR.findall(name) if template is not None and word != template[1]]
    if template is not None and functors:
        name = f"{template[1]} ({functors[-1]})"
    return shorten(name, 60)


def name_changes(one: StepCounters, other: StepCounters) -> tuple[NameChange, ...]:
    """Return kernels (CPU: operators) whose count per step changed, largest change first.

    A name that a side's list leaves out for its length is not taken for absent.
    """
    if not one.names or not other.names:
        return ()
    floor = [min(c.names.values()) if c.other_names else 0.0 for c in (one, other)]
    rows = []
    for name in {*one.names, *other.names}:
        before, after = one.names.get(name), other.names.get(name)
        if (before is None and (after or 0.0) <= floor[0]) or (after is None and (before or 0.0) <= floor[1]):
            continue
        if (before or 0.0) != (after or 0.0):
            rows.append(NameChange(name=name, base=before or 0.0, head=after or 0.0))
    rows.sort(key=lambda row: (-abs(row.head - row.base), row.name))
    return tuple(rows[:_MOST_NAMES])


def _place(site: SourceSite, code: str, *, quoted: bool) -> tuple[str, ...]:
    """Return how a line is recognised after it moved: by its text, if both sides have it."""
    return (site.file, site.function, code) if quoted else (site.file, site.function)


def _all_quoted(*sides: Sequence[SyncSite] | Sequence[BreakSite]) -> bool:
    return all(item.code for side in sides for item in side if item.site is not None)


def _new_syncs(before: Sequence[SyncSite], after: Sequence[SyncSite]) -> tuple[Reason, ...]:
    located = any(item.site for item in before) or not before
    located = located and any(item.site for item in after)
    quoted = _all_quoted(before, after)

    def key(item: SyncSite) -> tuple[str, ...]:
        if located and item.site is not None:
            return (item.what, *_place(item.site, item.code, quoted=quoted))
        return (item.what, item.phase)

    known: dict[tuple[str, ...], float] = {}
    for item in before:
        known[key(item)] = known.get(key(item), 0.0) + item.count
    sums: dict[tuple[str, ...], tuple[float, SyncSite]] = {}
    for item in after:
        sums[key(item)] = (sums.get(key(item), (0.0, item))[0] + item.count, item)
    grown = [
        (count - known.get(name, 0.0), known.get(name, 0.0), count, item)
        for name, (count, item) in sums.items()
        if count > known.get(name, 0.0)
    ]
    # What is new before what is more: a line that was touched is the likelier culprit.
    grown.sort(key=lambda row: (row[1] > 0, -row[0]))
    return tuple(
        Reason(_sync_text(item, was, now), item.site if located else None) for _, was, now, item in grown
    )


def _sync_text(item: SyncSite, was: float, now: float) -> str:
    what = "read of a tensor by Python" if item.what == _READ else item.what
    if item.code:
        what = f"`{item.code}`"
    elif item.phase:
        what = f"{what} in {item.phase}"
    change = "new" if was == 0 else f"{was:g} → {now:g}"
    times = f" ({now:g} per step)" if was == 0 and now != 1 else ""
    return f"{change} {what}{times}"


def _new_breaks(before: Sequence[BreakSite], after: Sequence[BreakSite], label: str) -> tuple[Reason, ...]:
    quoted = _all_quoted(before, after)

    def key(item: BreakSite) -> tuple[str, ...]:
        if item.site is None:
            return (item.reason,)
        return (*_place(item.site, item.code, quoted=quoted), *(() if quoted else (item.reason,)))

    known = {key(item) for item in before}
    out = []
    for item in after:
        if key(item) not in known:
            text = f"{label}: {item.reason[:120]}" if item.reason else label
            out.append(Reason(text, item.site))
    return tuple(out)


def finding_changes(base: Baseline, head: Baseline) -> tuple[FindingChange, ...]:
    """Return findings that are new or gone, or whose price changed by a tenth."""
    if base.step_ms is None or head.step_ms is None:
        return ()  # a baseline of counters alone
    before = {finding.code: finding for finding in base.findings}
    after = {finding.code: finding for finding in head.findings}
    least = _SMALLEST_SHARE * max(base.step_ms, head.step_ms)
    rows = [_change("new", None, finding) for code, finding in after.items() if code not in before]
    rows += [_change("gone", finding, None) for code, finding in before.items() if code not in after]
    for code in [code for code in after if code in before]:
        one, other = before[code].cost_ms, after[code].cost_ms
        if one is None or other is None or abs(other - one) < max(least, _PRICE * one):
            continue
        rows.append(_change("dearer" if other > one else "cheaper", before[code], after[code]))
    rows.sort(key=lambda row: -abs((row.head_ms or 0.0) - (row.base_ms or 0.0)))
    return tuple(rows)


def _change(
    word: Literal["new", "gone", "dearer", "cheaper"], one: FindingKey | None, other: FindingKey | None
) -> FindingChange:
    shown = other or one
    assert shown is not None
    return FindingChange(
        change=word,
        code=shown.code,
        title=shown.title,
        bottleneck_class=shown.bottleneck_class,
        base_ms=one.cost_ms if one is not None else None,
        head_ms=other.cost_ms if other is not None else None,
        site=shown.sites[0] if shown.sites else None,
    )
