"""A line, or a loop, with all that runs below it: time by phase and role, calls, lines of packages.

In: samples, which `tree` adds up. Out: `Branch`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ...model.run import SiteTime, SourceSite
from ...model.stacks import StackFrame
from ...model.view import Role
from .places import HOOKS

Key = tuple[str, int, str, str]
"""File, line, function and kind."""
_MOSTLY = 0.9
"""Share of a branch that is extra work where the branch as a whole is."""
_TRAINING_ROLES: frozenset[Role] = frozenset({"forward", "backward", "update"})
"""What no step does without."""


@dataclass(slots=True)
class Branch:
    """A line, or a loop of the user's, with all that runs below it."""

    frame: StackFrame | None = None
    """None for the step itself."""
    ms: dict[tuple[str, Role], float] = field(default_factory=dict)
    """Per step, by phase (empty outside of all) and role."""
    samples: int = 0
    calls: dict[tuple[str, str], float] = field(default_factory=dict)
    """Time by call and what it calls, as the source and the stack name them."""
    children: dict[Key, Branch] = field(default_factory=dict)
    below: dict[Key, Branch] = field(default_factory=dict)
    """Lines of packages below it, where training runs in them: told, and none that could be left out."""
    is_loop: bool = False
    """Its rounds, none of which holds the training itself."""

    @property
    def total_ms(self) -> float:
        """Time per step."""
        return sum(self.ms.values())

    @property
    def role(self) -> Role:
        """That of most of its time."""
        return max(self.by_role, key=lambda role: self.by_role[role], default="extra")

    @property
    def by_role(self) -> dict[Role, float]:
        """Time per step by role."""
        out: dict[Role, float] = {}
        for (_, role), ms in self.ms.items():
            out[role] = out.get(role, 0.0) + ms
        return out

    def is_mostly(self, role: Role) -> bool:
        """Return whether nearly all of it has a role; False for one without samples."""
        return 0 < _MOSTLY * self.total_ms <= self.by_role.get(role, 0.0)

    @property
    def beside_training_ms(self) -> float:
        """Its time that is neither forward, backward nor update."""
        return sum(ms for (_, role), ms in self.ms.items() if role not in _TRAINING_ROLES)

    @property
    def trains(self) -> bool:
        """Whether anything of the forward, the backward or the update runs in it."""
        return not _TRAINING_ROLES.isdisjoint(role for _, role in self.ms)

    @property
    def by_phase(self) -> dict[str, float]:
        """Time per step by phase."""
        out: dict[str, float] = {}
        for (phase, _), ms in self.ms.items():
            out[phase] = out.get(phase, 0.0) + ms
        return out

    @property
    def call(self) -> str:
        """The call of most of its time; empty if not known."""
        return max(self.calls, key=lambda call: self.calls[call], default=("", ""))[0]

    @property
    def callee(self) -> str:
        """What that call calls in a library."""
        return max(self.calls, key=lambda call: self.calls[call], default=("", ""))[1]

    @property
    def calls_function(self) -> tuple[str, str] | None:
        """File and name of the user's function in which nearly all of it is spent; None where in none."""
        spent: dict[tuple[str, str], float] = {}
        pending = list(self.children.values())
        while pending:
            branch = pending.pop()
            assert branch.frame is not None
            assert self.frame is not None
            function = (branch.frame.file, branch.frame.function)
            if function == (self.frame.file, self.frame.function):
                pending += branch.children.values()  # a line of its own loop
            else:
                spent[function] = spent.get(function, 0.0) + branch.total_ms
        most = max(spent, key=lambda function: spent[function], default=None)
        return most if most is not None and spent[most] >= _MOSTLY * self.total_ms else None

    @property
    def leaves_out(self) -> tuple[str, str] | None:
        """File and name of the user's function without which the rest can run; None where there is none.

        Nobody takes what its calls here return, or it is a hook of the backward, which may return nothing.
        """
        assert self.frame is not None
        if self.frame.via.startswith(HOOKS):
            return self.frame.file, self.frame.function
        same = [each.frame for each in self.children.values() if each.frame is not None]
        calls = [self.frame, *(frame for frame in same if frame.function == self.frame.function)]
        return self.calls_function if all(frame.discards for frame in calls) else None

    @property
    def evaluates(self) -> bool:
        """Most of it is a model that nothing trains by, with the batches that it gets.

        It runs without gradients, or behind the update.
        """
        return self._untrained_ms > 0.5 * (self.total_ms - self.by_phase.get("data", 0.0))

    @property
    def runs_ungraded(self) -> bool:
        """A model that nothing trains by runs in it."""
        return self._untrained_ms > 0

    @property
    def _untrained_ms(self) -> float:
        return self.by_phase.get("evaluation", 0.0) + self.ms.get(("forward", "extra"), 0.0)

    def add(self, other: Branch) -> None:
        """Count all that another one holds, too."""
        self.samples += other.samples
        for cell, ms in other.ms.items():
            self.ms[cell] = self.ms.get(cell, 0.0) + ms
        for call, ms in other.calls.items():
            self.calls[call] = self.calls.get(call, 0.0) + ms

    def as_extra(self) -> Branch:
        """Return the same as extra work, of which nothing goes on to the backward."""
        children = {key: child.as_extra() for key, child in self.children.items()}
        ms: dict[tuple[str, Role], float] = {(phase, "extra"): ms for phase, ms in self.by_phase.items()}
        return Branch(self.frame, ms, self.samples, self.calls, children, is_loop=self.is_loop)

    def branches(self) -> list[Branch]:
        """Return what is below it, the longest first."""
        return sorted(self.children.values(), key=lambda branch: -branch.total_ms)

    @property
    def calls_more(self) -> list[Branch]:
        """All that is below it, lines of packages too, in no order."""
        return [*self.children.values(), *self.below.values()]

    def in_packages(self) -> list[Branch]:
        """Return the lines of packages below it, the longest first: of one in the other the inner one."""
        return sorted(map(Branch._innermost, self.below.values()), key=lambda branch: -branch.total_ms)

    def _innermost(self) -> Branch:
        inner = self
        while len(inner.below) == 1 and (only := next(iter(inner.below.values()))).samples == inner.samples:
            inner = only
        return inner

    def most(self, *, beside_training: bool = False) -> Branch:
        """Return the deepest one that takes at least half of it, or of what is no training in it.

        Itself where none below does.
        """

        def ms(branch: Branch) -> float:
            return branch.beside_training_ms if beside_training else branch.total_ms

        deepest, least_ms = self, 0.5 * ms(self)
        while (below := max(deepest.children.values(), key=ms, default=None)) and ms(below) >= least_ms:
            deepest = below
        return deepest

    def by_function(self) -> dict[tuple[str, str], list[Branch]]:
        """Return the branches that go to one function of the user's, by that: of nested ones the outer."""
        found: dict[tuple[str, str], list[Branch]] = {}
        pending: list[tuple[Branch, frozenset[tuple[str, str]]]] = [
            (child, frozenset()) for child in self.children.values()
        ]
        while pending:
            branch, inside = pending.pop()
            function = branch.calls_function
            if function is not None and function not in inside:
                found.setdefault(function, []).append(branch)
                inside |= {function}
            pending += [(child, inside) for child in branch.children.values()]
        return found

    def site_time(self) -> SiteTime | None:
        """Return its line and what that calls; None for the step itself."""
        if self.frame is None:
            return None
        site = SourceSite(file=self.frame.file, line=self.frame.line, function=self.frame.function)
        return SiteTime(site=site, phase="data", call=self.call, total_ms=self.total_ms)

    def walk(self) -> Iterator[Branch]:
        """Yield this one and all below."""
        yield self
        for child in self.children.values():
            yield from child.walk()
