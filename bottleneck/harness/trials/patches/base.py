"""What a run-time patch is.

In: options. Out: something replaced in torch or set in the process, and afterwards an `Applied`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ....model.run import SourceSite
from ....model.verify import Applied
from ...events.replacing import Replacements

if TYPE_CHECKING:
    from ....model.fix import Beside, Variable
    from ....model.run import JsonValue

__all__ = ["PATCHES", "Patch", "plural"]

SITES_KEPT = 8


class Patch:
    """One fix in force in this process; subclasses register by `fix` and override what they need."""

    fix: ClassVar[str] = ""
    """Id of the fix; empty for what several patches share, or for a part of one."""
    after_watches = False
    """Put in after the harness's own hooks, so that those see what torch gets in the end."""

    def __init_subclass__(cls) -> None:
        if fix := vars(cls).get("fix"):
            assert fix not in PATCHES, f"{fix} has two patches"
            PATCHES[fix] = cls

    def __init__(self, options: dict[str, Any], environment: Sequence[Variable] = ()) -> None:
        """Prepare; nothing is replaced yet.

        Args:
            options: values that take the place of the patch's own.
            environment: the variables that the fix needed before the process began.
        """
        self.options = options
        self.environment = environment
        self.replaced = Replacements()
        self.count = 0
        self.reasons: list[str] = []
        """Why it did not act where it might have."""
        self.values: dict[str, JsonValue] = {}
        self.beside: list[Beside] = []
        """What else it had to do."""
        self._sites: dict[tuple[str, int], SourceSite] = {}

    def install(self) -> None:
        """Put it in: torch has just been imported, and the script has built nothing yet."""

    def training_begins(self) -> None:
        """The script's set-up is over: a first root module is called, or a first step has ended."""

    def uninstall(self) -> None:
        """Put everything back that is still ours."""
        self.replaced.undo()

    def check(self) -> Applied:
        """Say whether it took effect; called once, after the timed steps."""
        if self.count:
            return self.applied()
        return self.not_applied()

    # -- for subclasses ------------------------------------------------------------------------

    def option(self, name: str, default: JsonValue) -> Any:
        """Return an option, or what this patch takes without it."""
        return self.options.get(name, default)

    def acted(self, site: SourceSite | None, **values: JsonValue) -> None:
        """Note that it changed something, where, and which keywords to which values."""
        self.count += 1
        self.values.update(values)
        if site is not None and len(self._sites) < SITES_KEPT:
            self._sites[site.file, site.line] = site

    def passed(self, reason: str) -> None:
        """Note why it left something as it was."""
        if reason not in self.reasons:
            self.reasons.append(reason)

    def evidence(self) -> str:
        """Say in words what was found changed."""
        told = ", ".join(f"{name}={value!r}" for name, value in self.values.items())
        return f"{told}, {plural(self.count, 'time')}" if told else plural(self.count, "time")

    def applied(self, evidence: str | None = None) -> Applied:
        """Return the statement that it took effect."""
        return Applied(
            fix=self.fix,
            state="applied",
            count=self.count,
            evidence=self.evidence() if evidence is None else evidence,
            sites=list(self._sites.values()),
            values=self.values,
            beside=tuple(self.beside),
        )

    def not_applied(self, reason: str = "") -> Applied:
        """Return the statement that it did not."""
        told = "; ".join([reason] if reason else self.reasons) or self.nothing_to_do()
        return Applied(
            fix=self.fix,
            state="not applied",
            count=self.count,
            reason=told,
            sites=list(self._sites.values()),
        )

    def nothing_to_do(self) -> str:
        """Say why it never acted, where nothing else explains it."""
        return "the script never did what this fix changes"


PATCHES: dict[str, type[Patch]] = {}
"""Fix id -> the patch that applies it, filled as the modules of this folder are imported."""


def plural(count: int, noun: str) -> str:
    """Return "1 loader", "2 loaders"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
