"""The trial window: fixes tried in the running process, steps timed in turns with and without each.

In: a request, and every step of the training as it ends. Out: trials.json. The capture is complete and on
disk. Each trial begins from the same state; its first steps get the same batches as the first steps without
any fix, for their losses, and the timed ones the script's own. A step that fails is a result.

Ranks of a job switch, time and stop at the same steps: whatever one of them would decide by what it alone
sees, they decide by what all say, between blocks of steps.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Generator
from statistics import fmean
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from ...clocks import monotonic, perf_counter
from ...model.finding import NEGLIGIBLE_SHARE
from ...model.verify import CompilerLook, TrialRequest, TriedFix, TriedFixes, TryWish
from ...runs.store import reason_of
from ...stats.ratio_paired import TURNS, PairedRatio, decide_ratio, may_decide, ratio_in_turns
from .. import torch_private
from ..events.table import BACKWARD, FETCH, FORWARD, SCALER, Event
from ..lines.sites import told_of_error
from .batches import BatchTape
from .blocks import Blocks
from .losses import copy_of_loss, read_losses
from .patches import PATCHES
from .patches.base import NotSwitchable, Patch, Program
from .state import KeptState

LOSS_STEPS = (2, 3)
"""Fewest and most steps whose losses are compared: differences have not grown yet, so they tell what the fix
changes. From the second one on the optimizer has a part in it."""
SURVEY_SHARE = 0.1
"""Of the time for trials: more for the first look at the losses only where the fewest steps take it."""
FORESEE_STEPS = 2
LEAST_PAIRS, MOST_PAIRS = TURNS
KNOWN_WITHIN = 1.1
"""A gain that is decided is timed on until its interval ends at no more than so many times the gain, or until
the fix has had its share of the time."""
OVERTIME = 0.1
"""Of the time for trials: so long a fix that took longer to switch on than there was time for (a compiler
cannot be interrupted) is timed nevertheless, until its blocks may decide."""
SPOILED = 3
"""Blocks of one trial that are repeated because of a validation or a compilation in them."""

if TYPE_CHECKING:
    from ...model.run import SourceSite

    Steps = Generator[None, tuple[bool, bool], Any]
    """Runs steps: resumed at each step's end with whether that step held a validation, and a compilation."""


class TrialFailedError(Exception):
    """The step cannot be made with the fix."""


class ApartError(Exception):
    """The ranks do not hear of each other any more."""


class TrialWindow:
    """One per process; driven by `cut`."""

    def __init__(
        self,
        request: TrialRequest,
        *,
        write: Callable[[TriedFixes], None],
        optimizers: Callable[[], list[Any]],
        loader_of: Callable[[Any], Any],
        queued: Callable[[], int],
        step_ms: float,
        say: Callable[[str], None],
        everyone: Callable[[Any], list[Any] | None] | None = None,
    ) -> None:
        """Begin at the end of a step.

        Args:
            request: what to try.
            write: is given what is known so far, again and again; never raises.
            optimizers: returns those that live.
            loader_of: returns the DataLoader of an iterator, or None.
            queued: returns how many batches the training loader's workers hold ready.
            step_ms: a typical step.
            say: takes one line about what is going on.
            everyone: given what this rank says, returns what all say; None where there is one rank.
        """
        self.failing = ""
        """The error that the patch in force has caused in this step."""
        self._request = request
        self._write_facts = write
        self._optimizers = optimizers
        self._loader_of = loader_of
        self._queued = queued
        self._say = say
        self._alone = everyone is None
        self._ask_everyone = everyone
        self._tape = BatchTape()
        self._began = monotonic()
        self._rows: list[TriedFix] = []
        self._losses: list[Any] | None = None
        """Collects them while it is a list."""
        self._reference: tuple[list[float | None], ...] = ([], [], [])
        self._no_losses = ""
        self._roots: weakref.WeakSet[Any] = weakref.WeakSet()
        self._iterator: weakref.ref[Any] | None = None
        self._scaler: Any = None
        self._kept: KeptState | None = None
        self._step_seconds = step_ms / 1e3
        self._blocks = Blocks(self._step_seconds)
        self._patches: list[Patch] = []
        self._acted_at: list[SourceSite] = []
        """Those of this trial; in force while `_on`."""
        self._on = False
        self._steps: Steps = self._all()
        next(self._steps)

    # -- driven from outside -------------------------------------------------------------------

    def cut(self, *, validation: bool, compiled: bool) -> bool:
        """A step has ended; return whether the window is over.

        Args:
            validation: the step held one.
            compiled: the step held a compilation.
        """
        self._blocks.stepped()
        try:
            if self.failing and self._alone:
                text, self.failing = self.failing, ""
                self._steps.throw(TrialFailedError(text))
            else:
                self._steps.send((validation, compiled))
        except StopIteration:
            return True
        return False

    def guard(self, event: Event, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Make a call of the script's that is an event; an error that a patch caused does not leave it.

        The call is made once more without the patch; a backward, whose graph the patch has shaped, is
        left out: the state is put back at the end of the step anyway.
        """
        self._look(event, args)
        on = self._on
        try:
            out = call(*args, **kwargs)
        except StopIteration:
            raise
        except Exception as error:
            if not on:
                raise
            self.fails(error)
            if event is BACKWARD and not kwargs.get("accumulate_grad", False):
                raise
        else:
            if event is FETCH and torch.is_grad_enabled():
                self._blocks.fetched(self._loader_of(args[0]))
            return out
        # The error is gone, and with it what its frames held: memory that may have been too little.
        if event is BACKWARD:
            self._fill_gradients()
            return ()
        return call(*args, **kwargs)

    def fails(self, error: BaseException) -> None:
        """The script has raised this: because of the patch, where one is in force."""
        if self._on and not self.failing:
            self.failing = told_of_error(error)
        self._switch_off()

    def _fill_gradients(self) -> None:
        """Give gradients to all that have none: what comes after a backward counts on them."""
        for root in self._roots:
            for parameter in root.parameters():
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)

    def end(self, reason: str, *, in_place: bool = True) -> None:
        """There are no more steps: keep what there is and take everything out.

        Args:
            reason: why, for what was not tried.
            in_place: on the training thread; from another one nothing is switched under its feet.
        """
        if self._rows and self._rows[-1].state == "under way":
            self._rows[-1] = (
                _row(self._rows[-1].fix, "failed", reason=self.failing)
                if self.failing
                else _row(self._rows[-1].fix, "not tried", reason=reason)
            )
        if in_place:
            self._close_patches()
        tried = {row.fix for row in self._rows}
        for wish in self._request.wishes:
            if wish.wish.fix not in tried and not wish.instead_of:
                self._rows.append(_row(wish.wish.fix, "not tried", reason=reason))
        if in_place:
            self._tape.close()
            self._kept = None
        self._write()

    # -- the course of it ----------------------------------------------------------------------

    def _all(self) -> Steps:
        yield
        yield from self._survey()
        wishes = self._request.wishes
        for number, wish in enumerate(wishes):
            left = self._of_all(self._left_seconds())[0]
            if left <= 0:
                break
            if not (wish.instead_of and self._is_faster(wish.instead_of)):
                yield from self._try(wish, seconds=left, share=1 / (len(wishes) - number))
        pair = self._best_pair()
        if pair is not None and (left := self._of_all(self._left_seconds())[0]) > 0:
            yield from self._try(*pair, seconds=left, share=1.0)
        self.end("the time for trials was used up (--trial-seconds)")

    def _survey(self) -> Steps:
        """See who takes part, keep the state, and run the first steps twice: their losses must agree."""
        try:
            self._kept = KeptState(self._roots, self._optimizers(), self._scaler)
        except (RuntimeError, MemoryError, TypeError, AttributeError) as error:
            self._no_losses = f"the state of the training cannot be kept ({reason_of(error)})"
        self._no_losses = next(filter(None, self._of_all(self._no_losses)), "")
        if self._no_losses:
            self._kept = None
            return
        self._tape.record()
        first = yield from self._with_losses()
        self._put_back()
        again = yield from self._again()
        self._put_back()
        torch_private.skip_random_numbers()
        otherwise = yield from self._again(with_random=False)
        self._put_back()
        self._reference = (first, again, otherwise)
        problem = self._tape.problem or ("" if first else "no loss was seen")
        self._no_losses = next(filter(None, self._of_all(problem)), "")

    def _put_back(self) -> None:
        """Have the training where the window began, if its state could be kept."""
        if self._kept is not None:
            self._kept.put_back()

    def _again(self, *, with_random: bool = True) -> Steps:
        """Run the first steps once more, with their batches; return their losses."""
        self._tape.replay(with_random=with_random)
        losses = yield from self._with_losses()
        self._tape.stop()
        return losses

    def _with_losses(self) -> Steps:
        self._losses = []
        fewest, most = LOSS_STEPS
        affords = SURVEY_SHARE * self._request.seconds / (3 * max(self._step_seconds, 1e-6))
        for _ in range(max(fewest, min(most, int(affords)))):
            yield
        losses, self._losses = read_losses(self._losses), None
        return losses

    def _is_faster(self, fix: str) -> bool:
        return any(row.fix == fix and _ratio_if_faster(row, self._rows) is not None for row in self._rows)

    def _best_pair(self) -> tuple[TryWish, TryWish] | None:
        """Return the two that helped most and can be in force together."""
        wishes = {wish.wish.fix: wish for wish in self._request.wishes}
        helped = {row.fix: r for row in self._rows if (r := _ratio_if_faster(row, self._rows)) is not None}
        ranked = sorted(helped, key=lambda fix: -helped[fix])
        for i, second in enumerate(ranked[1:], start=1):
            for first in ranked[:i]:
                one, other = wishes[first], wishes[second]
                # Of two loaders of trials only one would feed the script.
                both_feed = one.moves_samples and other.moves_samples
                if not both_feed and second not in one.conflicts and first not in other.conflicts:
                    return one, other
        return None

    def _try(self, *wishes: TryWish, seconds: float, share: float) -> Steps:
        fix, *others = (wish.wish.fix for wish in wishes)
        beside = others[0] if others else ""
        self._say(f"trying {' and '.join([fix, *others])}")
        self._rows.append(
            _row(fix, "under way", reason="the process ended while it was being tried", beside=beside)
        )
        self._write()
        began = monotonic()
        try:
            self._patches = [PATCHES[w.wish.fix](dict(w.wish.options), w.wish.environment) for w in wishes]
            row = yield from self._measure(wishes, enough=began + share * seconds, until=began + seconds)
        except ApartError:
            raise
        except (TrialFailedError, NotSwitchable) as error:
            state = "failed" if isinstance(error, TrialFailedError) else "not tried"
            row = _row(fix, state, reason=str(error), beside=beside)
            idle = state == "not tried" and any(patch.is_on and not patch.count for patch in self._patches)
            row = msgspec.structs.replace(row, idle=idle)
        except Exception as error:
            # Ours or torch's, while the patch was switched: the script has not seen it.
            row = _row(fix, "failed", reason=reason_of(error), beside=beside)
        finally:
            look = self._patches[0].look if len(self._patches) == 1 else None
            self._close_patches()
        self._tape.stop()
        self._losses = None
        self._put_back()
        self._rows[-1] = msgspec.structs.replace(row, look=look, seconds=monotonic() - began)
        self._write()

    def _measure(self, wishes: tuple[TryWish, ...], *, enough: float, until: float) -> Steps:
        program = self._program()
        yield from self._foresee_all(program, wishes)
        steps = self._blocks.length(
            program.loader,
            once_a_pass=any(patch.acts_once_a_pass for patch in self._patches),
            seconds=max(until - monotonic(), OVERTIME * self._request.seconds),
            alone=self._alone,
        )
        losses: list[float | None] = []
        losses_without: list[float | None] = []
        compared = not self._no_losses and not any(w.moves_samples for w in wishes)
        if compared:
            losses_without = yield from self._again()
            self._put_back()
        self._alike(lambda: self._switch_on(program))
        if compared:
            losses = yield from self._again()
        # While the first steps were repeated, workers have filled their queue.
        yield from self._settle(max(self._settle_steps(program), self._queued()))
        evidence = self._alike(self._evidence)
        without, with_it = yield from self._turns(program, steps=steps, enough=enough, until=until)
        return TriedFix(
            fix=wishes[0].wish.fix,
            beside=wishes[1].wish.fix if len(wishes) > 1 else "",
            state="measured",
            without_ms=without,
            with_ms=with_it,
            steps=steps,
            evaluates=self._blocks.evaluate,
            losses=losses,
            losses_without=losses_without,
            evidence=evidence,
            sites=self._acted_at,
            tried_as="; ".join(filter(None, (patch.tried_as for patch in self._patches))),
        )

    def _evidence(self) -> str:
        """Return what the patches have changed; refuse one that has changed nothing."""
        evidence, self._acted_at = [], []
        for patch in self._patches:
            applied = patch.check()
            if applied.state != "applied":
                raise NotSwitchable(applied.reason or "it changed nothing here")
            evidence.append(applied.evidence)
            self._acted_at += applied.sites
        return "; ".join(evidence)

    def _turns(self, program: Program, *, steps: int, enough: float, until: float) -> Steps:
        """Time blocks in turns until they decide, and on while there is time enough for a better figure.

        Return the step times without and with the fix. Blocks that will hardly decide end it, too.

        On, off, off, on, on, ...: drift cancels within two pairs, and half of the switches are saved.
        """
        without: list[float] = []
        with_it: list[float] = []
        spoiled = 0
        latest = max(until, monotonic() + OVERTIME * self._request.seconds)
        while True:
            times = {}
            for on in (self._on, not self._on):
                if on is not self._on:
                    self._alike(self._switch_off if self._on else lambda: self._switch_on(program))
                    yield from self._settle(self._settle_steps(program))
                while True:
                    seconds, odd = yield from self._block(steps)
                    said = self._of_all((seconds, odd))
                    self._none_failed()
                    seconds, odd = fmean(s for s, _ in said), any(o for _, o in said)
                    spoiled += odd
                    if not odd or spoiled > SPOILED:
                        break
                times[on] = seconds * 1e3
            without.append(times[False])
            with_it.append(times[True])
            end = until if len(without) >= LEAST_PAIRS else latest
            late, share_used = self._of_all((monotonic() > end, monotonic() > enough))[0]
            ratio = ratio_in_turns(without, with_it, [*(row.without_ms for row in self._rows), without])
            ends = self._is_known(ratio, share_used=share_used)
            if ends or len(without) >= MOST_PAIRS or late:
                return without, with_it

    # -- together with other ranks -------------------------------------------------------------

    def _of_all(self, own: Any) -> list[Any]:
        """Return what every rank says, in their order.

        Raises:
            ApartError: they do not answer.
        """
        if self._ask_everyone is None:
            return [own]
        said = self._ask_everyone(own)
        if said is None:
            raise ApartError("the ranks did not answer each other")
        return said

    def _alike(self, call: Callable[[], Any]) -> Any:
        """Do what may be refused; where one rank refuses it, all do."""
        value, refused = None, None
        try:
            value = call()
        except Exception as error:
            refused = error
        told = ["" if refused is None else str(refused), not isinstance(refused, NotSwitchable)]
        said = self._of_all(told)
        if refused is not None:
            raise refused
        for rank, (text, failed) in enumerate(said):
            if text:
                raise (TrialFailedError if failed else NotSwitchable)(f"{text} (rank {rank})")
        return value

    def _none_failed(self) -> None:
        """Alone a failure has ended the block already; here the other ranks hear of it.

        Raises:
            TrialFailedError: the step cannot be made with the fix, here or on another rank.
        """
        text, self.failing = self.failing, ""
        for rank, told in enumerate(self._of_all(text)):
            if told:
                raise TrialFailedError(f"{told} (rank {rank})")

    def _foresee_all(self, program: Program, wishes: tuple[TryWish, ...]) -> Steps:
        """Refuse what cannot be switched, or shows in a few steps that it is not worth it."""
        for patch, wish in zip(self._patches, wishes, strict=True):
            if not patch.live:
                raise NotSwitchable(
                    f"{patch.why_not_live}; `bottleneck verify` tries it in a process of its own"
                )
            if not self._alone and not (patch.for_ranks and program.is_replicated):
                raise NotSwitchable(
                    "ranks switch together only what leaves alone how DistributedDataParallel exchanges "
                    "gradients; `bottleneck verify` tries other fixes"
                )
            if len(self._patches) == 1 and patch.foresees:
                yield from self._foresee(patch, program)
                self._put_back()
                _refuse_little(patch.look, wish.promises)

    def _foresee(self, patch: Patch, program: Program) -> Steps:
        """Make a few steps that show whether it is worth switching on at all."""
        self._on = True
        patch.foresee(program)
        yield from self._settle(FORESEE_STEPS)
        self._on = False
        if (why_not := patch.foreseen()) is not None:
            raise TrialFailedError(why_not)

    def _block(self, steps: int) -> Steps:
        """Time so many steps, fewer where they take far longer; waits for the device at its edges."""
        _synchronise()
        began = perf_counter()
        kinds: list[tuple[bool, bool]] = []
        while len(kinds) < steps:
            kinds.append((yield))
            if self._alone and self._blocks.may_end(len(kinds), perf_counter() - began):
                break
        _synchronise()
        return (perf_counter() - began) / len(kinds), self._blocks.is_spoilt(kinds)

    def _settle(self, steps: int) -> Steps:
        for _ in range(max(self._of_all(steps))):
            yield
        self._none_failed()

    def _is_known(self, ratio: PairedRatio | None, *, share_used: bool) -> bool:
        """Return whether it is known as well as it should be, or hardly will be."""
        decision = decide_ratio(ratio, least_pairs=LEAST_PAIRS, threshold=NEGLIGIBLE_SHARE)
        if decision == "undecided":
            enough = ratio is not None and ratio.pairs >= LEAST_PAIRS
            return enough and not may_decide(ratio, threshold=NEGLIGIBLE_SHARE)
        rough = decision == "faster" and ratio is not None and (ratio.high or 0) > KNOWN_WITHIN * ratio.ratio
        return share_used or not rough

    # -- the patch -----------------------------------------------------------------------------

    def _switch_on(self, program: Program) -> None:
        self._on = True
        for patch in self._patches:
            patch.switch_on(program)

    def _switch_off(self) -> None:
        if self._on:
            self._on = False
            for patch in reversed(self._patches):
                if patch.is_on:
                    patch.switch_off()

    def _settle_steps(self, program: Program) -> int:
        return max(patch.settle_steps(program) for patch in self._patches)

    def _close_patches(self) -> None:
        with contextlib.suppress(Exception):
            self._switch_off()
        for patch in self._patches:
            with contextlib.suppress(Exception):
                patch.close()
        self._on, self._patches = False, []
        self._blocks.single()

    def _program(self) -> Program:
        iterator = self._iterator() if self._iterator is not None else None
        return Program(
            roots=tuple(r for r in self._roots if any(p.requires_grad for p in r.parameters())),
            optimizers=tuple(self._optimizers()),
            loader=self._loader_of(iterator) if iterator is not None else None,
            scaler=self._scaler,
            replays=lambda: self._tape.replaying,
        )

    # -- what is seen --------------------------------------------------------------------------

    def _look(self, event: Event, args: Any) -> None:
        if event is FORWARD:
            self._roots.add(args[0])
        elif event is BACKWARD:
            self._note_loss(args[0])
        elif event is FETCH and torch.is_grad_enabled():
            self._iterator = weakref.ref(args[0])
        elif event is SCALER:
            self._scaler = args[0]

    def _note_loss(self, outputs: Any) -> None:
        if self._losses is not None and (loss := copy_of_loss(outputs)) is not None:
            self._losses.append(loss)

    # -- time and files ------------------------------------------------------------------------

    def _left_seconds(self) -> float:
        return self._request.seconds - (monotonic() - self._began)

    def _write(self) -> None:
        first, again, otherwise = self._reference
        self._write_facts(
            TriedFixes(
                rows=self._rows,
                losses=first,
                losses_again=again,
                losses_otherwise=otherwise,
                no_losses=self._no_losses,
                seconds=monotonic() - self._began,
            )
        )


def _synchronise() -> None:
    if torch_private.device_kind() != "cpu":
        torch.cuda.synchronize()


def _ratio_if_faster(row: TriedFix, rows: list[TriedFix]) -> float | None:
    ratio = ratio_in_turns(row.without_ms, row.with_ms, [r.without_ms for r in rows])
    if ratio is None or decide_ratio(ratio, least_pairs=LEAST_PAIRS, threshold=NEGLIGIBLE_SHARE) != "faster":
        return None
    return ratio.ratio


def _refuse_little(look: CompilerLook | None, promises: float | None) -> None:
    """Refuse to compile what could gain next to nothing: of what is promised, only what is captured."""
    if look is None or look.share is None or promises is None:
        return
    if promises * look.share < NEGLIGIBLE_SHARE:
        raise NotSwitchable(f"dynamo captures {look.share:.0%} of the model's calls: nothing to be gained")


def _row(fix: str, state: Any, *, reason: str = "", beside: str = "") -> TriedFix:
    return TriedFix(fix=fix, state=state, reason=reason, beside=beside)
