"""Runs a verification from its start, or from where it was stopped, to its end.

In: what to run, candidates, a protocol. Out: `Verification`, written to verify.json after every run,
so that Ctrl-C, a full budget or a lost machine leave what was measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from ..catalog.registry import by_id
from ..errors import InputError, ScriptError
from ..model.run import Run
from ..model.verify import TOGETHER, EndedBy, Outcome, RunRecord, Verification, Wish
from ..model.words import ms
from ..runs.environment import usable_cores
from ..runs.layout import first_run
from .arms import Arms
from .measure import noise_of
from .protocol import estimate_seconds, next_run
from .rows import Candidate, Evidence, make_outcome, untried


@dataclass(slots=True, kw_only=True)
class Session:
    """One call of the command."""

    arms: Arms
    state: Verification
    candidates: tuple[Candidate, ...]
    save: Callable[[Verification], None]
    say: Callable[[str], None]
    _began: float = field(default_factory=time.monotonic)
    _interrupted: bool = False
    _evidence: Evidence = field(init=False)

    def __post_init__(self) -> None:
        self._evidence = Evidence(self.arms.folder)

    def run(self) -> Verification:
        """Do what is left to do.

        Raises:
            ScriptError: the script fails as it is, so there is nothing to compare with.
        """
        self._first_run()
        for candidate in self.candidates:
            self._experiment(candidate)
        # Later runs tell more of how the script repeats itself: a harm that was none is tried on.
        harmful = [row.fixes for row in self.state.outcomes if row.verdict == "harmful"]
        for candidate in self.candidates:
            if candidate.fixes in harmful:
                self._experiment(candidate)
        if self.state.combine and not self._interrupted:
            self._combine()
        self._put(complete=not self._interrupted and not any(map(_is_open, self.state.outcomes)))
        return self.state

    @property
    def interrupted(self) -> bool:
        """The user asked to stop."""
        return self._interrupted

    # -- single runs ---------------------------------------------------------------------------

    def _first_run(self) -> None:
        """Run the script as it is: it must work, and shows how long the other runs will take."""
        protocol = self.state.protocol
        budget = protocol.budget_seconds
        self.say(
            f"fixes to try: {', '.join(' + '.join(c.fixes) for c in self.candidates)};"
            f" {_span(protocol.pairs, protocol.max_pairs)} pairs of runs each"
            + (f", at most {_duration(budget)} in all" if budget is not None else "")
        )
        if not any(run.fixes == () and run.status == "ok" for run in self.state.runs):
            record = self._launch(())
            if self._interrupted:
                return
            if record.ended is EndedBy.TOO_SHORT:
                raise ScriptError(
                    f"{self.arms.target.name} is too short to measure: {record.reason}.",
                    remedy="Let it train 50 steps or more; each run is stopped once enough is measured.",
                )
            if record.status == "failed":
                raise ScriptError(
                    f"{self.arms.target.name} fails without any fix: {record.reason}.",
                    remedy=f"Its output is in {self.arms.folder / record.folder / 'output.log'}.",
                )
        first = next(run for run in self.state.runs if run.fixes == () and run.status == "ok")
        self.arms.steps = self.state.protocol.steps
        run = first_run(self.arms.folder / first.folder)
        if run is not None:
            self._note_other_device(run)
            self._put(
                host=run.host,
                device=run.devices[0] if run.devices else None,
            )
        self._say_estimate(first.seconds, first.steps)

    def _note_other_device(self, run: Run) -> None:
        """Say where predictions were made for another device than the one at hand."""
        predicted = self.state.predicted_for
        device = run.devices[0].name if run.devices else ""
        if predicted is not None and device and predicted.name != device:
            note = f"The predictions are for {predicted.name}; the measurements are from {device}."
            if note not in self.state.notes:
                self._put(notes=(*self.state.notes, note))

    def _say_estimate(self, run_seconds: float, steps: int) -> None:
        protocol = self.state.protocol
        least, most = estimate_seconds(run_seconds, fixes=len(self.candidates), protocol=protocol)
        self.say(
            f"one run takes {_duration(run_seconds)}, with {steps} timed steps;"
            f" all runs take {_span(_duration(least), _duration(most))}, more if something is compiled"
        )

    def _launch(self, wishes: Sequence[Wish], *, parity: bool = False) -> RunRecord:
        number = max((run.number for run in self.state.runs), default=0) + 1
        names = " + ".join(wish.fix for wish in wishes) or "as it is"
        record, interrupted = self.arms.run(number, self._filled(wishes), parity=parity)
        self._interrupted = self._interrupted or interrupted
        self._same_machine(record)
        self._put(runs=(*self.state.runs, record))
        result = ms(record.step_ms) if record.step_ms is not None else f"{record.status}: {record.reason}"
        self.say(f"run {number}, {names}{' (losses only)' if parity else ''}: {result}")
        return record

    def _same_machine(self, record: RunRecord) -> None:
        """Refuse to continue with times from another machine.

        Raises:
            InputError: this is another machine, or another torch.
        """
        run = first_run(self.arms.folder / record.folder) if record.status == "ok" else None
        earlier = self.state.host
        if run is None or not earlier.torch:
            return
        device = run.devices[0].name if run.devices else ""
        before = self.state.device.name if self.state.device is not None else ""
        here, there = (run.host.torch, run.host.cpu, device), (earlier.torch, earlier.cpu, before)
        if here != there:
            raise InputError(
                f"The earlier runs are from another machine or torch: {', '.join(there)};"
                f" here: {', '.join(here)}.",
                remedy="Start a new verification.",
            )

    def _filled(self, wishes: Sequence[Wish]) -> list[Wish]:
        """Add what the catalogue says of these fixes, and what only this machine or a run tells."""
        measured = {
            "cores": usable_cores(),
            "device peak": next((run.peak_bytes for run in self.state.runs if run.peak_is == "device"), None),
        }
        filled = []
        for wish in wishes:
            fix = by_id(wish.fix)
            figures = {name: measured.get(option.measured) for name, option in fix.options.items()}
            own = {name: figure for name, figure in figures.items() if figure is not None}
            filled.append(
                msgspec.structs.replace(wish, options={**own, **wish.options}, environment=fix.environment)
            )
        return filled

    # -- experiments ---------------------------------------------------------------------------

    def _experiment(self, candidate: Candidate, base: tuple[Wish, ...] = ()) -> Outcome:
        """Run one candidate on top of what is already in force, until it is decided."""
        fixes = tuple(wish.fix for wish in base)
        ended: EndedBy | None = None
        while ended is None:
            outcome = self._outcome(candidate, fixes)
            step = next_run(
                self.state.runs,
                base=fixes,
                added=candidate.fixes,
                protocol=self.state.protocol,
                session=self.arms.session,
                harmful=outcome.verdict == "harmful",
            )
            if step.run == "stop":
                ended = step.ended
            elif self._interrupted:
                ended = EndedBy.USER
            elif self._out_of_time(0.0 if base else self._kept_back(candidate)):
                ended = EndedBy.TIME
            else:
                sides = {"with": (*base, *candidate.wishes), "without": base, "as it is": ()}
                self._launch(sides[step.run])
        outcome = self._outcome(candidate, fixes, ended=ended)
        if outcome.verdict == "harmful" and ended is EndedBy.DONE and self._may_be_moved(candidate, fixes):
            # Random transforms that run elsewhere draw other numbers: look again without that.
            self._launch(base, parity=True)
            if not self._interrupted:
                self._launch((*base, *candidate.wishes), parity=True)
            return self._experiment(candidate, base)
        self._note(outcome)
        return outcome

    def _may_be_moved(self, candidate: Candidate, base: tuple[str, ...]) -> bool:
        together = base + candidate.fixes
        seen = any(run.purpose == "parity" and run.fixes == together for run in self.state.runs)
        moves = any(by_id(fix).moves_samples for fix in candidate.fixes)
        return moves and not seen and not self._interrupted

    def _outcome(
        self, candidate: Candidate, base: tuple[str, ...], *, ended: EndedBy | None = None
    ) -> Outcome:
        return make_outcome(
            candidate,
            self.state.runs,
            base=base,
            protocol=self.state.protocol,
            evidence=self._evidence,
            ended=ended,
        )

    def _note(self, outcome: Outcome) -> None:
        """Put a row into the state, replacing an earlier row for the same fixes."""
        rows = list(self.state.outcomes)
        for i, row in enumerate(rows):
            if (row.fixes, row.base) == (outcome.fixes, outcome.base):
                rows[i] = outcome
                break
        else:
            rows.append(outcome)
        again = self._evidence.reproduction(self.state.runs)
        self._put(
            outcomes=tuple(rows),
            noise=noise_of(self.state.runs),
            reproducible=again.text if again is not None else "",
            combination=self._best_alone(rows),
        )
        self.say(f"{' + '.join(outcome.fixes)}: {outcome.verdict}{_ratio(outcome)}")

    @staticmethod
    def _best_alone(rows: Sequence[Outcome]) -> tuple[str, ...]:
        helped = [row for row in rows if row.verdict == "faster" and not row.base and len(row.fixes) == 1]
        best = max(helped, key=_gain, default=None)
        return best.fixes if best is not None else ()

    # -- the best ones together ----------------------------------------------------------------

    def _combine(self) -> None:
        """Add fixes to the best one, the next best first, keeping what makes the rest faster still."""
        by_fix = {candidate.fixes: candidate for candidate in self.candidates}
        singles = [row for row in self.state.outcomes if not row.base and row.fixes in by_fix]
        helped = sorted((row for row in singles if row.verdict == "faster"), key=_gain, reverse=True)
        if not helped:
            return
        kept: tuple[Wish, ...] = by_fix[helped[0].fixes].wishes
        for row in helped[1:]:
            candidate = by_fix[row.fixes]
            names = tuple(wish.fix for wish in kept)
            if self._interrupted or _conflict(names, candidate.fixes):
                continue
            alone = untried(*candidate.wishes, title=candidate.row.title, risk=candidate.row.risk)
            if self._experiment(alone, base=kept).verdict == "faster":
                kept = (*kept, *candidate.wishes)
        if len(kept) < 2 or self._interrupted:
            self._put(combination=tuple(wish.fix for wish in kept))
            return
        titles = ", ".join(by_id(wish.fix).title for wish in kept)
        pair = set(self.state.predicted_pair) == {wish.fix for wish in kept}
        together = self._experiment(
            untried(
                *kept,
                title=f"{TOGETHER}{titles}",
                predicted_ratio=self.state.predicted_pair_ratio if pair else None,
            )
        )
        # Each was found to add to those before it, which stands where time ran out for all at once.
        winner = kept if together.verdict in ("faster", "undecided", "not run") else kept[:1]
        self._put(combination=tuple(wish.fix for wish in winner))

    # -- state ---------------------------------------------------------------------------------

    def _out_of_time(self, kept_back: float) -> bool:
        budget = self.state.protocol.budget_seconds
        if budget is None:
            return False
        recent = self.state.runs[-1].seconds if self.state.runs else 0.0
        return time.monotonic() - self._began + recent + kept_back > budget

    def _kept_back(self, candidate: Candidate) -> float:
        """Return the seconds that combining the fixes that already helped will need at the end.

        A single fix that nothing was predicted of, or no gain, goes without rather than that: `--all` tries
        many of them, and the best ones together is what it is called for.
        """
        priced = any(other.row.predicted_ratio is not None for other in self.candidates)
        promised = (candidate.row.predicted_ratio or 0.0) > 1.0 + self.state.protocol.threshold
        if not self.state.combine or not priced or promised:
            return 0.0
        helped = [row.fixes for row in self.state.outcomes if row.verdict == "faster" and not row.base]
        singles = [fixes for fixes in helped if len(fixes) == 1]
        able = 0
        for i, fixes in enumerate(singles):
            able += not any(_conflict(before, fixes) for before in singles[:i])
        ok = [run.seconds for run in self.state.runs if run.status == "ok"]
        # Each beside those before it: in turns with them alone and with none.
        runs = 3 * self.state.protocol.pairs * max(0, able - 1)
        return runs * sum(ok) / len(ok) if ok else 0.0

    def _put(self, **fields: object) -> None:
        self.state = msgspec.structs.replace(self.state, **fields)
        self.save(self.state)


def _is_open(row: Outcome) -> bool:
    """Say whether the time ran out before anything was decided."""
    return row.ended is EndedBy.TIME and row.verdict in ("not run", "undecided")


def _conflict(first: Sequence[str], second: Sequence[str]) -> bool:
    return any(a in by_id(b).conflicts or b in by_id(a).conflicts for a in first for b in second)


def _gain(row: Outcome) -> float:
    return row.measured.ratio if row.measured is not None else 0.0


def _ratio(outcome: Outcome) -> str:
    measured = outcome.measured
    if measured is None:
        return f" ({outcome.reason})" if outcome.reason else ""
    if measured.low is None or measured.high is None:
        return f", {measured.ratio:.3f}x"
    return f", {measured.ratio:.3f}x ({measured.low:.3f} to {measured.high:.3f})"


def _span(least: object, most: object) -> str:
    return f"{least}" if str(least) == str(most) else f"{least} to {most}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
