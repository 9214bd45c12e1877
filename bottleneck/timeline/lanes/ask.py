"""Questions put to the replay: the step without a cause, or with a thing changed.

In: a `Replay`, the edit under which it runs at true speed, `Question`s. Out: `Answers` in ms of the true
step, and the edits behind them, so that the second cause can be asked with the first already removed.

Each answer is the ratio of two replays, with and without the edit, applied to the true step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import combinations

import msgspec
import numpy as np

from ...model.codes import CLASS_QUESTIONS, FIX_QUESTIONS, WHAT_IFS, QuestionKey, WhatIf, count_twice
from ...model.diagnosis import WhatIfResult
from ...model.finding import NEGLIGIBLE_SHARE
from ..trace.table import Trace
from .alone import Alone, alone_places
from .program import first_counted
from .questions import Question
from .replay import Edit, Replay
from .waits import EventKind

_NOTHING = 1e-4
"""Savings below this share of the step are rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Results by question, and the edits that produced them."""

    results: dict[QuestionKey, WhatIfResult]
    edits: dict[QuestionKey, Edit] = field(default_factory=dict)
    after: dict[tuple[QuestionKey, QuestionKey], float] = field(default_factory=dict)
    """(first removed, then asked) -> step time in ms with both gone."""


class Asker:
    """A program at true speed that can be asked again and again."""

    def __init__(self, replay: Replay, base: Edit, *, true_ms: float) -> None:
        self.true_ms = true_ms
        self._replay = replay
        self._calls_allocator = bool((replay.program.kind == EventKind.ALLOCATOR).any())
        self._base = base
        self._reference_ns = replay.run(base).step_ns

    def step_ms(self, edit: Edit, *, may_lose: bool = False) -> float:
        """Return the true step under an edit, no longer than it is unless the edit may lose."""
        if self._reference_ns <= 0:
            return self.true_ms
        step = self.true_ms * self._replay.run(self._base.and_also(edit)).step_ns / self._reference_ns
        return step if may_lose else min(self.true_ms, step)

    def lengths_ms(self, edit: Edit) -> tuple[float, ...]:
        """Return the true lengths of the single steps under an edit, those that count for the mean."""
        if self._reference_ns <= 0:
            return ()
        ends = self._replay.run(self._base.and_also(edit)).step_end
        lengths = np.diff(ends[first_counted(len(ends) - 1) :])
        return tuple((self.true_ms * lengths / self._reference_ns).tolist())

    def alone(self, edit: Edit, trace: Trace | None = None) -> Alone:
        """Return where collectives stand in own work, under an edit without them, in ns of the true step.

        With the program's trace, also where gradients do.
        """
        found = alone_places(self._replay.program, self._replay.run(self._base.and_also(edit)), trace)
        scale = self.true_ms * 1e6 / self._reference_ns if self._reference_ns > 0 else 1.0
        return replace(
            found,
            places=found.places * scale,
            edges=found.edges * scale,
            gradients=found.gradients * scale,
        )

    def alone_without(
        self, questions: Iterable[Question], alone: Edit
    ) -> dict[WhatIf, tuple[tuple[float, ...], bool]]:
        """Return what single steps without communication save if a class is gone too; and whether at best."""
        before = np.asarray(self.lengths_ms(alone))
        out: dict[WhatIf, tuple[tuple[float, ...], bool]] = {}
        for question in questions:
            if question.name in CLASS_QUESTIONS and question.name is not WhatIf.COMM_OVERLAPPED:
                saved = before - np.asarray(self.lengths_ms(alone.and_also(question.edit)))
                if len(saved) and saved.mean() > _NOTHING * self.true_ms:
                    out[question.name] = (tuple(saved.tolist()), question.bound)
        return out

    def ask(self, questions: Iterable[Question]) -> Answers:
        """Answer the questions, the costly ones also two at a time; only what changes something is kept."""
        results: dict[QuestionKey, WhatIfResult] = {}
        edits: dict[QuestionKey, Edit] = {}
        for question in questions:
            step = self.step_ms(question.edit, may_lose=question.may_lose)
            edits[question.key] = question.edit
            if self.true_ms - step > _NOTHING * self.true_ms or question.may_lose:
                results[question.key] = WhatIfResult(
                    question=question.name,
                    about=question.about,
                    step_ms=step,
                    saves_ms=self.true_ms - step,
                    basis=question.basis,
                    bound=question.bound,
                    site=question.site,
                )
        results.update(self._relieved(results, edits))
        return Answers(results=results, edits=edits, after=self._pairs(results, edits))

    def _relieved(
        self, results: dict[QuestionKey, WhatIfResult], edits: dict[QuestionKey, Edit]
    ) -> dict[QuestionKey, WhatIfResult]:
        """Return what changes that hold less memory bring when the allocator's calls end with it."""
        calls = results.get(WhatIf.ALLOCATOR_FREE)
        if calls is None or calls.saves_ms < NEGLIGIBLE_SHARE * self.true_ms or not self._calls_allocator:
            return {}
        free = edits[WhatIf.ALLOCATOR_FREE]
        return {
            name: msgspec.structs.replace(answer, relieved_ms=self.step_ms(edits[name].and_also(free)))
            for name, answer in results.items()
            if WHAT_IFS[answer.question].holds_less
        }

    def _pairs(
        self, results: dict[QuestionKey, WhatIfResult], edits: dict[QuestionKey, Edit]
    ) -> dict[tuple[QuestionKey, QuestionKey], float]:
        """Ask the costly classes, and the fixes that gain most, two at a time."""
        out: dict[tuple[QuestionKey, QuestionKey], float] = {}
        for questions, most in ((CLASS_QUESTIONS, 5), (FIX_QUESTIONS, 5)):
            asked = [q for q, its in results.items() if its.question in questions and its.saves_ms > 0]
            ranked = sorted(asked, key=lambda q: -results[q].saves_ms)[:most]
            for first, then in combinations(ranked, 2):
                one, other = (results[each].question for each in (first, then))
                if not count_twice(one, other) and (first, then) not in out:
                    # Removing two causes has no order; readers ask in either. Two calls share no work.
                    both = self.step_ms(edits[first].and_also(edits[then], apart=one is other))
                    out[first, then] = out[then, first] = both
        for key, answer in results.items():
            twin = WHAT_IFS[answer.question].same_as
            out |= {(key, then): both for (first, then), both in out.items() if first == twin}
            out |= {(first, key): both for (first, then), both in out.items() if then == twin}
        return out
