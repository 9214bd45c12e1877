"""Experiments: verify.json, what was measured for fixes in processes of their own; trials.json, in the run.

In: nothing. Out: frozen structs, fully resolved (texts included). `VERIFY_SCHEMA` is raised when a
field changes meaning or goes away; adding a field does not raise it.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal, TypeAlias

import msgspec

from .finding import NEGLIGIBLE_SHARE
from .fix import Beside, Risk, Variable
from .run import DeviceFacts, HostFacts, JsonValue, SourceSite

VERIFY_SCHEMA = 1
TOGETHER = "Together: "
"""In front of the titles of fixes that were tried together."""
CALLED = "called"
"""Key in `Applied.values`: "file:line" of each call of a module that was changed -> its name there."""

Verdict: TypeAlias = Literal[
    "faster", "slower", "no gain", "undecided", "harmful", "failed", "not applied", "not run"
]
"""harmful: training gets worse, whatever the speed. failed: the run with the fix did not finish.
not applied: it changed nothing here, so its gain is unknown."""

ParityVerdict: TypeAlias = Literal["same", "close", "harmful", "not comparable", "not measured"]
"""same: equal except for rounding. close: within what the fix may change."""


class EndedBy(str, Enum):
    """What ended a run, or the test of a fix."""

    DONE = "done"
    """Nothing came before its end; of a fix, enough is known."""
    TOO_SHORT = "too-short"
    """The script, before a step of it could be timed."""
    FAULT = "fault"
    TIME = "time"
    """The limit of a single run; of a fix, the budget of the verification."""
    USER = "user"
    NOTHING_TO_COMPARE = "nothing-to-compare"
    """The script fails without the fix as well."""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One process that was run."""

    number: int
    """Order in time, from 1."""
    session: int = 1
    """Runs of one call of the command; neighbours in time only count within a session."""
    fixes: tuple[str, ...] = ()
    """Fixes in force; none for the script as it is."""
    status: Literal["ok", "failed", "interrupted"] = "ok"
    ended: EndedBy = EndedBy.DONE
    reason: str = ""
    """Why it is not "ok", in words."""
    purpose: Literal["timing", "parity"] = "timing"
    folder: str = ""
    """Where its run.json and trial.json lie, relative to verify.json."""
    step_ms: float | None = None
    """Mean of the timed steps, without single outliers."""
    standard_error_ms: float | None = None
    steps: int = 0
    first_step: int = 0
    """Number of the first timed step, from the start of the program."""
    times_ms: list[float | None] = []
    """The timed steps, None where one does not belong; only where they differ by more than a tenth."""
    peak_bytes: int | None = None
    peak_is: Literal["device", "host", ""] = ""
    startup_seconds: float | None = None
    """From the start of the process to the timed steps, beyond what those steps would have taken."""
    seconds: float = 0.0
    load_average: float | None = None
    applied: list[Applied] = []


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a fix did to the step, from pairs of neighbouring runs."""

    ratio: float
    """Step without over step with: above 1 is faster."""
    low: float | None = None
    high: float | None = None
    """95 % interval of the ratio; None with a single pair."""
    pairs: int = 0
    before_ms: float
    after_ms: float


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """What the script measures against itself: the same run twice, one after the other."""

    runs: int
    share: float
    """Typical difference of two such runs, as a share of the step."""
    worst: float
    """The largest difference of two neighbours."""


class Parity(msgspec.Struct, frozen=True, kw_only=True):
    """Whether training is unharmed."""

    verdict: ParityVerdict
    text: str = ""
    """Why, in one sentence."""
    compared: int = 0
    """Losses compared."""
    early: float | None = None
    """Largest relative difference of the loss over the first steps."""
    tail: float | None = None
    """Relative difference of the mean loss over the last third: above 0 is worse."""
    gradient_norm: float | None = None
    """Largest relative difference of the gradient norm over the first steps."""
    steps_to_loss: tuple[int, int | None] | None = None
    """Steps until the loss that the script reaches: without and with the fix. None as the second
    value: not reached. None as a whole: the curve does not fall clearly enough."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One row: a fix or a combination, predicted and measured."""

    fixes: tuple[str, ...]
    title: str
    base: tuple[str, ...] = ()
    """Fixes in force on both sides."""
    verdict: Verdict = "not run"
    ended: EndedBy | None = None
    """None while it is being tried, and before."""
    reason: str = ""
    predicted_ms: float | None = None
    predicted_ratio: float | None = None
    bound: bool = False
    """The prediction is an upper bound of the gain."""
    measured: Measured | None = None
    error: float | None = None
    """(predicted - measured) / measured step time; None for bounds and where either is missing."""
    memory_bytes: int | None = None
    """Change of the peak, above 0 is more."""
    memory_is: Literal["device", "host", ""] = ""
    startup_seconds: float | None = None
    """Start-up added: compiling, starting workers."""
    pays_after_steps: int | None = None
    parity: Parity = Parity(verdict="not measured")
    risk: Risk = Risk.SAFE
    evidence: str = ""
    """What was found changed."""
    options: dict[str, dict[str, bool | int | float | str | None]] = {}


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """What to write into the script to keep a fix."""

    fix: str
    where: SourceSite | None = None
    what: str = ""
    """In words."""
    code: str = ""
    values: dict[str, bool | int | float | str | None] = {}
    """Keyword -> value."""
    diff: str = ""
    """Unified diff, if the exact edit is known."""
    also: str = ""
    """What the diff alone does not do."""
    reason: str = ""
    """Why there is no diff."""
    already: bool = False
    """The source already contains the change."""


class Protocol(msgspec.Struct, frozen=True, kw_only=True):
    """How it was measured."""

    pairs: int = 3
    max_pairs: int = 6
    threshold: float = NEGLIGIBLE_SHARE
    """A gain below this share does not count."""
    budget_seconds: float | None = None
    seed: int = 0
    steps: int | None = None
    """Steps to time in each run; None: as many as it takes."""

    @property
    def looks(self) -> int:
        """How often at most it is looked whether the pairs decide."""
        return 1 + max(0, self.max_pairs - self.pairs)


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a report shows, and all that a resumed verification needs."""

    schema: int = VERIFY_SCHEMA
    tool_version: str = ""
    created: str = ""
    script: str | None = None
    module: str | None = None
    args: tuple[str, ...] = ()
    cwd: str = ""
    place: int = 0
    """Inode of the folder of this file: a copy from elsewhere has another."""
    launcher: tuple[str, ...] = ()
    host: HostFacts = HostFacts()
    device: DeviceFacts | None = None
    predicted_for: DeviceFacts | None = None
    """The device of the diagnosis that the predictions come from."""
    protocol: Protocol = Protocol()
    wishes: tuple[Wish, ...] = ()
    """The requested fixes, in the order of testing."""
    predicted_pair: tuple[str, ...] = ()
    """The two fixes that the diagnosis has a prediction together for."""
    predicted_pair_ratio: float | None = None
    combine: bool = False
    """After the single fixes, the best ones together."""
    complete: bool = False
    """Nothing is left to do; otherwise `--resume` goes on."""
    noise: Noise | None = None
    reproducible: str = ""
    """How the script compares with itself, in one sentence."""
    outcomes: tuple[Outcome, ...] = ()
    combination: tuple[str, ...] = ()
    """The fixes that helped together, or the one that helped alone."""
    edits: tuple[Edit, ...] = ()
    runs: tuple[RunRecord, ...] = ()
    notes: tuple[str, ...] = ()


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """One fix to apply at run time."""

    fix: str
    options: dict[str, JsonValue] = {}
    """Values that replace the patch's own, like {"num_workers": 8}."""
    environment: tuple[Variable, ...] = ()
    """What the fix needs before the script's process starts; filled in when a run is planned."""
    diff: str = ""
    """The user's own change, as a unified diff."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """How a run of an experiment differs from a diagnosed one."""

    wishes: tuple[Wish, ...] = ()
    """Fixes to apply, in this order; empty for the run without any."""
    seed: int = 0
    """For random, numpy and torch, set before the script sets its own."""
    seed_batches: bool = False
    """Seed before each batch from its sample indices, so that random transforms draw the same
    numbers in whichever process they run. For runs that compare losses, not times."""


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one fix, checked after the timed steps."""

    fix: str
    state: Literal["applied", "not applied"]
    count: int = 0
    """How often it acted: constructors changed, calls suppressed, modules compiled."""
    evidence: str = ""
    """What was found changed, in words: "num_workers 0 -> 4 on 1 DataLoader"."""
    reason: str = ""
    """Why it is not applied."""
    sites: list[SourceSite] = []
    """User lines at which it acted."""
    values: dict[str, JsonValue] = {}
    """Keyword -> value as really set, for the edit that makes the fix permanent."""
    beside: tuple[Beside, ...] = ()
    """What else was done, which that edit leaves to do by hand."""


class TrialFacts(msgspec.Struct, frozen=True, kw_only=True):
    """trial.json: one process of one run of an experiment."""

    applied: list[Applied] = []
    losses: list[float | None] = []
    """The scalar given to each backward, in order; None where it was not finite."""
    loss_dtype: str = ""
    """Of the first loss, like "bfloat16"."""
    gradient_norms: list[float | None] = []
    """Norm over all gradients at the first optimizer steps, before the timed ones."""
    notes: list[str] = []
    """Why some of this is missing."""


class TryWish(msgspec.Struct, frozen=True, kw_only=True):
    """One fix to try."""

    wish: Wish
    promises: float | None = None
    """Share of the step that it is predicted to save."""
    moves_samples: bool = False
    """Its batches come from other processes: its losses cannot be compared with those of the same batches."""
    conflicts: tuple[str, ...] = ()
    """Fixes that cannot be in force together with it."""
    instead_of: str = ""
    """A fix that was suggested in its place: it is tried only if that one is not faster."""


class TrialRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to try, in this order."""

    wishes: tuple[TryWish, ...] = ()
    seconds: float = 0.0
    """For all of them together."""


class CompilerLook(msgspec.Struct, frozen=True, kw_only=True):
    """What dynamo captures of the model with this program's batches, before anything is compiled."""

    graphs: int = 0
    breaks: int = 0
    share: float | None = None
    """Of the host time in the model's calls, what lies in graphs; None where each call captured anew."""
    outside: list[str] = []
    """Classes of torch's modules that run outside of graphs."""

    @property
    def leaves(self) -> bool:
        """Part of the model stays as it is."""
        return bool(self.breaks or self.outside or not self.graphs)


class TriedFix(msgspec.Struct, frozen=True, kw_only=True):
    """What the script's process found of one fix."""

    fix: str
    beside: str = ""
    """Another fix that is in force in the same turns: both together against neither."""
    state: Literal["measured", "under way", "failed", "not tried"]
    """under way: the process ended before this trial did."""
    reason: str = ""
    """Why it failed or was not tried."""
    without_ms: list[float] = []
    """Step time without the fix, a mean per block of steps..."""
    with_ms: list[float] = []
    """...and with it, in the block next to it."""
    steps: int = 0
    """Steps of a block."""
    evaluates: bool | None = None
    """Each block holds an evaluation, or several, as whole passes over the data may; None in older files."""
    losses: list[float | None] = []
    """Of the same steps as `TriedFixes.losses`, with the fix; None where not finite. Empty: not compared."""
    losses_without: list[float | None] = []
    """Of these steps right before, without it."""
    evidence: str = ""
    """What was found changed."""
    sites: list[SourceSite] = []
    """The user's lines at which it was, where that is known."""
    tried_as: str = ""
    """What was in force in its place, where its own code takes too long to switch on."""
    look: CompilerLook | None = None
    """Where it compiles the model."""
    idle: bool = False
    """It was on for some steps, and found nothing there that it changes."""
    seconds: float = 0.0


class TriedFixes(msgspec.Struct, frozen=True, kw_only=True):
    """trials.json."""

    rows: list[TriedFix] = []
    losses: list[float | None] = []
    """Of the first steps, without any fix."""
    losses_again: list[float | None] = []
    """Of the same steps from the same state: how far the script repeats itself."""
    losses_otherwise: list[float | None] = []
    """Of the same steps with other random numbers on the device: what dropout alone makes of them."""
    no_losses: str = ""
    """Why losses are not compared."""
    seconds: float = 0.0
    """Wall time from the end of the capture to the end of the last trial."""
