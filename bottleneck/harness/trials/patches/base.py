"""What a run-time patch is.

In: options. Out: something replaced in torch or set in the process, and afterwards an `Applied`.

A patch is used in one of two ways. For a whole run: `install`, `training_begins`, `check`,
`uninstall`. Or, where it is `live`, in turns while the script trains: `switch_on`, `switch_off`, again
and again, `found` for what `check` said while it was on, and `close` at the end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ....model.run import SourceSite
from ....model.verify import CALLED, Applied, CompilerLook
from ... import autograd_private, torch_private
from ...events.replacing import Replacements
from ...lines.sites import is_library, line_of, name_of, user_frame, user_site

if TYPE_CHECKING:
    from torch import nn
    from torch.amp import GradScaler
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

    from ....model.fix import Beside, Variable
    from ....model.run import JsonValue

SITES_KEPT = 8
_LOOKED_UP = 100
"""Calls whose lines are looked up; later ones are only counted."""
RECOMPILING_STEPS = 3
"""A forward and a backward are compiled apart, and once more where sizes differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What trains in this process, for patches that are switched while it does."""

    roots: tuple[nn.Module, ...]
    """The modules that the script calls itself, and trains."""
    optimizers: tuple[Optimizer, ...]
    loader: DataLoader[Any] | None = None
    """The one that feeds the training."""
    scaler: GradScaler | None = None
    replays: Callable[[], bool] = bool
    """Whether the script gets batches that were recorded: then no others take their place."""

    @property
    def is_replicated(self) -> bool:
        """DistributedDataParallel trains it, or a part of it."""
        kind = torch.nn.parallel.DistributedDataParallel
        return any(isinstance(part, kind) for root in self.roots for part in root.modules())


class NotSwitchable(Exception):  # noqa: N818 - it says what is so, and ends one trial only
    """A patch cannot be switched on in this program; the text says why."""


class Patch:
    """One fix in force in this process; subclasses register by `fix` and override what they need."""

    fix: ClassVar[str] = ""
    """Id of the fix; empty for what several patches share, or for a part of one."""
    after_watches = False
    """Put in after the harness's own hooks, so that those see what torch gets in the end."""
    live: ClassVar[bool] = False
    """It can be switched on and off while the script trains."""
    why_not_live: ClassVar[str] = ""
    settles: ClassVar[int] = 1
    """Steps after each switch that are not like those that follow."""
    for_ranks: ClassVar[bool] = False
    """It can be switched where ranks train together: with it on all of them, their collectives still match,
    and none keeps the others waiting for it."""
    acts_once_a_pass: ClassVar[bool] = False
    """What it saves is spent where a pass over the data begins."""
    foresees: ClassVar[bool] = False
    """`foresee` and `foreseen` tell in a step or two whether it is worth switching on at all."""
    nothing_to_do: ClassVar[str] = "the script never did what this fix changes"
    """Why it never acted, where nothing else explains it."""
    says: ClassVar[tuple[str, str] | None] = None
    """What was changed, with `{}` for how often, and the noun that is counted; None: the values say it."""
    is_guarded: ClassVar[bool] = False
    """It changes what compiled code depends on: each side is compiled once."""

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
        self.is_on = False
        self._checked = True
        self._found: Applied | None = None
        self.tried_as = ""
        """What it does in turns, in words, where its own code takes too long to switch on."""
        self.look: CompilerLook | None = None
        """What `foresee` saw, where it was a compiler that looked."""

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

    # -- in turns, while the script trains ------------------------------------------------------

    def switch_on(self, program: Program) -> None:
        """Put it in between two steps.

        Raises:
            NotSwitchable: it cannot be done in this program, which is left as it was.
        """
        assert self.live, f"{self.fix} cannot be switched: {self.why_not_live}"
        assert not self.is_on, f"{self.fix} is on already"
        # Each turn is an account of its own: what it found is not added up over the turns.
        self.count = 0
        self.reasons, self.values, self.beside, self._sites = [], {}, [], {}
        self.is_on = True
        self._checked = torch_private.distributions_checked()
        try:
            self.put_in(program)
        except BaseException:
            self.is_on = False
            self._end_turn()
            raise

    def switch_off(self) -> None:
        """Take it out between two steps: the next one runs as it did before."""
        assert self.is_on, f"{self.fix} is not on"
        self.is_on = False
        try:
            self._found = self.check()
        finally:
            self._end_turn()

    def _end_turn(self) -> None:
        self.take_out()
        # The first use of dynamo in a process turns these checks off for good.
        torch_private.check_distributions(self._checked)

    def put_in(self, program: Program) -> None:  # noqa: ARG002 - for subclasses
        """Do what `switch_on` is for."""
        self.install()
        self.training_begins()

    def take_out(self) -> None:
        """Undo `put_in`, or as much of it as was done."""
        self.uninstall()

    def settle_steps(self, program: Program) -> int:  # noqa: ARG002 - for subclasses
        """Return how many steps to leave out after the switch that was just made."""
        compiled = self.is_guarded and torch_private.dynamo_looks()
        return self.settles + (RECOMPILING_STEPS if compiled else 0)

    def found(self) -> Applied:
        """Say whether it took effect: what `check` found when it was last switched off."""
        return self.check() if self._found is None else self._found

    def foresee(self, program: Program) -> None:
        """Begin to look, where `foresees`: what runs until `foreseen` is called shows what is to come.

        Raises:
            NotSwitchable: as `switch_on` does.
        """
        raise NotImplementedError(program)

    def foreseen(self) -> str | None:
        """End looking; return why it would come to nothing here, or None."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what was kept from turn to turn; it is off, and is not switched again."""

    # -- for subclasses ------------------------------------------------------------------------

    def option(self, name: str, default: JsonValue) -> Any:
        """Return an option, or what this patch takes without it."""
        return self.options.get(name, default)

    def put_at_backward(self, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Replace what begins a backward pass, as `Replacements.put` does.

        Raises:
            NotSwitchable: this torch has no such place.
        """
        engine = autograd_private.engine_owner()
        if engine is None:
            raise NotSwitchable("this torch does not tell when a backward begins")
        self.replaced.put(*engine, make)

    def acted(self, site: SourceSite | None, **values: JsonValue) -> None:
        """Note that it changed something, where, and which keywords to which values."""
        self.count += 1
        self.values.update(values)
        if site is not None and len(self._sites) < SITES_KEPT:
            self._sites[site.file, site.line] = site

    def acted_here(self, **values: JsonValue) -> None:
        """Note that it changed something at the user's line that is running, and keywords as `acted` does."""
        if self.count < _LOOKED_UP:
            self.acted(user_site(), **values)
        else:
            self.count += 1

    def called(self, module: nn.Module) -> None:
        """Note at which line of the user's a module is called, and by which name there."""
        frame = user_frame()
        if frame is None or len(self._sites) >= SITES_KEPT:
            return
        site = SourceSite(file=frame.f_code.co_filename, line=line_of(frame), function=frame.f_code.co_name)
        names = self.values.setdefault(CALLED, {})
        assert isinstance(names, dict)
        if f"{site.file}:{site.line}" not in names:
            self._sites[site.file, site.line] = site
            names[f"{site.file}:{site.line}"] = name_of(module, frame=frame)

    def passed(self, reason: str) -> None:
        """Note why it left something as it was."""
        if reason not in self.reasons:
            self.reasons.append(reason)

    def evidence(self) -> str:
        """Say in words what was found changed."""
        if self.says is not None:
            text, noun = self.says
            return text.format(plural(self.count, noun))
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
        told = "; ".join([reason] if reason else self.reasons) or self.nothing_to_do
        return Applied(
            fix=self.fix,
            state="not applied",
            count=self.count,
            reason=told,
            sites=list(self._sites.values()),
        )


class LeftOut(Patch):
    """Calls of functions that do nothing once training has begun."""

    live = True
    for_ranks = True
    settles = 2
    of_the_script: ClassVar[bool] = False
    """Only calls in the script's own files: a library's stand at no line that could be removed."""

    def functions(self) -> Sequence[tuple[Any, str]]:
        """Return (owner, name) of each."""
        raise NotImplementedError

    def install(self) -> None:
        self._training = False
        for owner, name in self.functions():
            self.replaced.put(owner, name, self._make)

    def training_begins(self) -> None:
        self._training = True

    def is_meant(self, caller: FrameType) -> bool:
        """Return whether a call from this frame is one to leave out."""
        return not (self.of_the_script and is_library(caller.f_code.co_filename))

    def _make(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def left_out(*args: Any, **kwargs: Any) -> Any:
            if not self._training or not self.is_meant(sys._getframe(1)):
                return original(*args, **kwargs)
            self.acted_here()
            return None

        return left_out


PATCHES: dict[str, type[Patch]] = {}
"""Fix id -> the patch that applies it, filled as the modules of this folder are imported."""


def plural(count: int, noun: str) -> str:
    """Return "1 loader", "2 loaders"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
