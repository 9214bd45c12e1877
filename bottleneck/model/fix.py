"""Fixes: what the catalogue holds, and a fix as suggested for one run.

In: nothing. Out: frozen structs. A fix is data; `applies` conditions are checked against the
context, a flat mapping of facts and settings in force (keys: analyzers/sections/context_keys.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Literal, TypeAlias

import msgspec

from .codes import WhatIf
from .run import JsonValue, SourceSite


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """How far from the measurements the predictions of a fix were, over all runs of reports/accuracy.md."""

    predictions: int = 0
    """Those that are no bounds."""
    error: float | None = None
    """Median of |predicted step / measured step - 1| over them."""
    close: int = 0
    """How many of them lie within a tenth of the measured step."""
    bounds: int = 0
    """Predictions "at best"..."""
    held: int = 0
    """...and how many of these were not passed."""


class Risk(str, Enum):
    """What applying a fix may break."""

    SAFE = "safe"
    CHANGES_NUMERICS = "changes numerics"
    NEEDS_REVIEW = "needs review"


class Arithmetic(str, Enum):
    """What a fix does to the numbers; decides how far the loss may change (catalog/tolerances.py)."""

    SAME = "the same arithmetic"
    REORDERED = "the same arithmetic in another order"
    TF32 = "TF32"
    BF16 = "bfloat16"
    OTHER_SAMPLES = "the same arithmetic on other samples"


class Beside(str, Enum):
    """What a patch may also have to do besides the fix itself; an edit of a keyword does not."""

    PINNED = "pinned"
    """Tensors were pinned before they were copied."""
    GRADIENTS_DROPPED = "gradients dropped"
    """Gradients were set to None where the script fills them with zeros."""


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """One test of the context; an unknown key makes the condition unknown, not false."""

    key: str
    op: Literal["==", "!=", "<", "<=", ">", ">=", "in", "not in", "contains", "known"]
    value: JsonValue = None
    text: str = ""
    """The condition in words, for the report and `bottleneck catalog show`."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where a technique or a claimed gain comes from."""

    title: str
    url: str = ""
    claim: str = ""
    """The source's own figure, shown as a claim and never used as a prediction."""


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """A value that the patch of a fix takes, by name: `verify --fix ID:NAME=VALUE`."""

    kind: Literal["bool", "int", "str"]
    default: bool | int | str | None = None
    """Also in `Fix.code`, as NAME=DEFAULT; None: the patch has its own default."""
    of_run: str = ""
    """`{key}` or `{min(key, key)}` of the context: takes the default's place where every key is known."""
    needed: bool = False
    """Without a value there is nothing to try."""
    measured: Literal["", "cores", "device peak"] = ""
    """What `verify` fills in where nobody gave a value: the cores that a process may use, or the peak of
    the device's memory in bytes, in a run without the fix."""


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """A variable that the script's process needs in its environment, before torch is loaded."""

    name: str
    value: str
    """`{before}` stands for what it holds already, `{malloc}` for the path of a caching malloc that is
    installed, any other `{name}` for that option. Without one of them the fix sets no variable at all."""
    also_called: tuple[str, ...] = ()
    """Other names that are read: each one that is set is changed, and `name` where none is."""
    separator: str = ""
    """Between the entries of a variable that holds several."""
    drops: tuple[str, ...] = ()
    """Entries of what it holds already that contain one of these go."""


class KeywordEdit(msgspec.Struct, frozen=True, kw_only=True, tag="keywords"):
    """Set keywords of a call to what the patch set them to, at the lines where it acted."""

    calls: tuple[str, ...]
    """Names of the function; a * in front stands for any beginning."""
    keywords: tuple[str, ...]
    drop: tuple[str, ...] = ()
    """Keywords to remove, since they exclude the ones that are set."""
    each: bool = False
    """Several such calls in a line are all meant."""
    without_call: str = ""
    """What to do where none of the lines has such a call, as the patch acts elsewhere then."""


class StatementEdit(msgspec.Struct, frozen=True, kw_only=True, tag="statement"):
    """Add a statement after the imports of the script."""

    statement: str
    setting: str
    """A script that names it sets it itself: that line is the one to change."""
    needs: str = "torch"
    """The module that the statement uses."""
    first: bool = False
    """Before the imports of what is not Python's own: it counts only before torch is imported."""


class RemovalEdit(msgspec.Struct, frozen=True, kw_only=True, tag="removal"):
    """Remove a call where it is a statement of its own."""

    call: str


class AroundEdit(msgspec.Struct, frozen=True, kw_only=True, tag="around"):
    """Put the call of the model, and what follows up to its backward, inside a `with`."""

    context: str
    """What comes after `with`; the patch's values by their names in braces."""


class ModelEdit(msgspec.Struct, frozen=True, kw_only=True, tag="model"):
    """Call a method of the model where it was made."""

    method: str
    """With its arguments; `{keywords}` stands for the values of `keywords`, `{name}` for one value."""
    keywords: tuple[str, ...] = ()
    inputs: str = ""
    """What to add to the first argument of the model's call, with values as in `method`."""
    unless: str = ""
    """A value of the patch that says that parts of the model were changed, and not the whole."""


class PassesEdit(msgspec.Struct, frozen=True, kw_only=True, tag="passes"):
    """Leave the last backward pass before an update as it is, and put the others inside `no_sync()`."""


class IteratorEdit(msgspec.Struct, frozen=True, kw_only=True, tag="iterator"):
    """Take the batches of `next(iter(loader))` from one iterator, which begins before the loop."""


CodeEdit: TypeAlias = (
    KeywordEdit | StatementEdit | RemovalEdit | AroundEdit | ModelEdit | PassesEdit | IteratorEdit
)


class Shortens(msgspec.Struct, frozen=True, kw_only=True):
    """What a fix removes of a part of the whole job."""

    part: str
    """Of `model.watch.PARTS`."""
    change: str
    """What is done, as in "validation takes 31 % of the job; on a tenth of the batches 4 %"."""
    of: Literal["all", "again", "growth"] = "all"
    """Of which seconds of the part it removes some. again: `AccountLine.again_s`. growth: what
    steps that grow take beyond the first."""
    removes: float = 1.0
    """Share of those."""
    at_best: bool = False
    """More may stay."""
    kinds: tuple[str, ...] = ()
    """Of what grows (`Growth.kind`), by a beginning; empty: any."""


class Fix(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the catalogue: everything about a fix except the patch that tries it."""

    id: str
    """Two letters and three digits; append-only."""
    title: str
    addresses: tuple[str, ...]
    """Finding codes that make this fix worth suggesting; empty for a note."""
    what_to_change: str
    when: tuple[Condition, ...] = ()
    unless: tuple[Condition, ...] = ()
    for_calls: tuple[str, ...] = ()
    """Of findings that name a call: those that it is made for, by how `Finding.callee` begins. Empty: any
    that no other fix is made for."""
    for_rounds: bool = False
    """Only of findings about what the rounds of a loop do."""
    takes_out: bool = False
    """The call that a finding names is not made any more: not of calls that training needs."""
    named: str = ""
    """Its title where the finding, or what the run says about it, names a call: `{call}` stands for that."""
    conflicts: tuple[str, ...] = ()
    risk: Risk = Risk.SAFE
    may_break: str = ""
    what_if: WhatIf | None = None
    """The replay question whose answer is the prediction."""
    basis: str = ""
    """Where the predicted gain comes from, in words."""
    narrower: WhatIf | None = None
    """The question that tells how much of that answer is this fix's, where the run could answer it."""
    what_if_bound: bool = False
    """True: that answer is an upper bound for this fix, whatever the question itself is."""
    only_answered: bool = False
    """It applies only where `what_if` or `narrower` has an answer."""
    bound_weight: float | None = None
    """What its bound counts for, where measurements tell more of it than of bounds in general."""
    general: Literal["", "unpriced", "always"] = ""
    """It says what may help, and names nothing that is to blame: it stands behind fixes that do where one of
    them explains half of the cost. unpriced: not where it has a price, which is that of a line."""
    adds: str = ""
    """Key of the context: most ms that the step gets longer, for a fix that trades time for memory."""
    code: str = ""
    """Python that runs; placeholders in <angle brackets> are not allowed."""
    fills: dict[str, str] = {}
    """Text in `code` -> the same with `{key}` or `{min(key, key)}` of the context in it; used where
    every key is known, so that the code always runs, filled or not."""
    other_code: tuple[tuple[Condition, str], ...] = ()
    """The code where a condition holds, in place of `code`: the first that does."""
    undo: str = ""
    verify: str = ""
    can_try: bool = False
    """`bottleneck verify` can apply it at run time without editing the source."""
    options: dict[str, Option] = {}
    """Values that its patch takes, by name."""
    environment: tuple[Variable, ...] = ()
    """What its patch needs before the script's process starts."""
    edits: tuple[CodeEdit, ...] = ()
    """Edits that keep it, the first that can be made; empty: it is more than a line to the letter."""
    by_hand: dict[Beside, str] = {}
    """What the edit leaves to do, by what the patch had to do beside it."""
    arithmetic: Arithmetic = Arithmetic.SAME
    moves_samples: bool = False
    """Samples are made in other processes: random transforms draw other numbers there, and workers that
    persist take another order from the second pass over the data on."""
    leaves_out: bool = False
    """A trial leaves out a function that may draw random numbers: those that follow are others then."""
    keeps_what: str = ""
    """Id of the fix that leaves out the work that this one does in less time."""
    compiles: bool = False
    """The first run with it compiles; later ones may find that in a cache."""
    shortens: tuple[Shortens, ...] = ()
    """Parts of a watched job of which it removes what can be told from their time and number."""
    note: bool = False
    family: str = ""
    record: Record | None = None
    sources: tuple[Source, ...] = ()
    since: str = "0.1.0"
    status: Literal["stable", "preview", "removed"] = "stable"


TriedVerdict: TypeAlias = Literal["faster", "slower", "no-difference", "undecided", "failed", "not-tried"]
"""failed: the step raised an error with the fix. not-tried: it cannot be switched while a program runs, or
time or the script ended first."""
LossVerdict: TypeAlias = Literal["same", "close", "changed", "not-compared"]
"""same: equal except for rounding. close: within what the fix may change."""


class MeasuredHere(msgspec.Struct, frozen=True, kw_only=True):
    """What a fix did to the step in the running process."""

    verdict: TriedVerdict
    speedup: float | None = None
    """Step without over step with: above 1 is faster."""
    low: float | None = None
    high: float | None = None
    """95 % interval of `speedup`."""
    step_ms: float | None = None
    """The true step over `speedup`."""
    pairs: int = 0
    loss: LossVerdict = "not-compared"
    loss_change: float | None = None
    """Largest relative difference of the loss over the first steps."""
    note: str = ""
    """Why it failed or was not tried; what was found changed."""
    tried_as: str = ""
    """What was in force in its place, where its own code takes too long to switch on."""


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """A fix as suggested for one run, fully resolved: a reporter looks nothing up."""

    fix: str
    title: str
    finding: str
    """Code of the finding that it answers."""
    predicted_ms: float | None = None
    """Predicted step time with the fix, ms."""
    saves_ms: float | None = None
    bound: bool = False
    """True: the prediction is an upper bound of the gain."""
    adds_ms: float | None = None
    """Most ms that the step gets longer, if the fix trades time for memory."""
    basis: str = ""
    how: str = ""
    """What to change, in words."""
    code: str = ""
    options: dict[str, bool | int | str] = {}
    """Values for its patch, from this run's figures; also in `code`."""
    site: SourceSite | None = None
    risk: Risk = Risk.SAFE
    may_break: str = ""
    undo: str = ""
    verify: str = ""
    leaves_out: bool = False
    """It does without something that may be needed."""
    can_try: bool = False
    unknown: tuple[str, ...] = ()
    """Conditions that could not be checked on this run."""
    record: Record | None = None
    """None: no prediction of it was held against a measurement."""
    sources: tuple[Source, ...] = ()
    note: bool = False
    """True: worth knowing, listed last, never with a prediction."""
    measured: MeasuredHere | None = None
    """What it did to the step in the running process; None where it was not to be tried there."""

    @property
    def helps(self) -> bool | None:
        """Whether it was measured to help, the loss being what the fix may make of it; None: not known."""
        measured = self.measured
        if measured is None or measured.verdict in ("undecided", "not-tried"):
            return None
        return measured.verdict == "faster" and measured.loss != "changed"


def instead_of(suggestions: Iterable[Suggestion]) -> dict[str, str]:
    """Return the fixes that are predicted to remove what an earlier one removes, each with that one.

    Their prediction is the same answer of the replay, so it is the same number, and it is gained once. What
    was measured has a figure of its own, and leads others only if it helps. What leaves something out leads
    none: that may have to stay, and can then be done in less time.
    """
    first: dict[float, str] = {}
    led: dict[str, str] = {}
    for each in suggestions:
        if each.predicted_ms is None or each.note or each.helps is False or each.leaves_out:
            continue
        leader = first.setdefault(each.predicted_ms, each.fix)
        if leader != each.fix and each.helps is None:
            led[each.fix] = leader
    return led
