"""The trial window: turns, the same beginning for each trial, and errors that cost the script nothing."""

from __future__ import annotations

import contextlib
import random
import weakref
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
import torch
from torch import nn

from torch_bottleneck.harness.events.table import BACKWARD, FETCH, FORWARD
from torch_bottleneck.harness.process.trying import DECIDING_STEPS
from torch_bottleneck.harness.trials import window as window_module
from torch_bottleneck.harness.trials.blocks import BLOCK_STEPS, Blocks
from torch_bottleneck.harness.trials.patches import PATCHES
from torch_bottleneck.harness.trials.patches.base import NotSwitchable, Patch, Program
from torch_bottleneck.harness.trials.window import TrialWindow
from torch_bottleneck.model.verify import CompilerLook, TrialRequest, TriedFix, TriedFixes, TryWish, Wish
from torch_bottleneck.runs.store import Store
from torch_bottleneck.stats.ratio_paired import ratio_in_turns

SLOW_S, FAST_S = 0.02, 0.002
SCATTER = 0.02  # of a step's time


class Batches:
    """Passes of a loader: the fetch behind the last batch gives none."""

    given = 0

    def __next__(self) -> int:
        if TRAINING.loader and self.given == len(TRAINING.loader):
            self.given = 0
            raise StopIteration
        self.given += 1
        return 0


class Training:
    """A loop as the hooks see it, by a clock of its own; a patch may change how long a step takes."""

    def __init__(self) -> None:
        self.clock_s = 0.0
        self.scatter = random.Random(0)
        torch.manual_seed(0)
        self.net = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.steps = 0
        self.seconds = SLOW_S
        self.loader: range | None = None
        self.batches = Batches()
        self.pass_seconds = self.validation_seconds = 0.0
        self.validates_every = 1
        self.forward = nn.Module.__call__

    @staticmethod
    def engine(outputs: Any, *, accumulate_grad: bool) -> None:
        assert accumulate_grad
        torch.autograd.backward(outputs)

    def step(self, window: TrialWindow) -> bool:
        self.steps += 1
        if self.loader:
            with contextlib.suppress(StopIteration):
                window.guard(FETCH, next, (self.batches,), {})
            if self.batches.given == 0:
                window.guard(FETCH, next, (self.batches,), {})
        self.optimizer.zero_grad()
        loss = window.guard(FORWARD, lambda *a, **k: self.forward(*a, **k), (self.net, torch.randn(8, 4)), {})
        loss = loss.square().mean()
        window.guard(BACKWARD, self.engine, ((loss,),), {"accumulate_grad": True})
        self.optimizer.step()
        self.clock_s += self.seconds * self.scatter.uniform(1 - SCATTER, 1 + SCATTER)
        if not self.loader:
            return window.cut(validation=False, compiled=False)
        last = self.steps % len(self.loader) == 0
        self.clock_s += self.pass_seconds * last
        validates = last and self.steps // len(self.loader) % self.validates_every == 0
        self.clock_s += self.validation_seconds * validates
        return window.cut(validation=validates, compiled=False)


TRAINING = Training()


class Sleepless(Patch):
    live = True
    log: ClassVar[list[str]] = []

    def put_in(self, program: Program) -> None:
        assert program.roots == (TRAINING.net,)
        assert program.optimizers == (TRAINING.optimizer,)
        TRAINING.seconds = FAST_S
        self.acted(None)
        self.log.append("on")

    def take_out(self) -> None:
        TRAINING.seconds = SLOW_S
        self.log.append("off")


class Useless(Sleepless):
    def put_in(self, program: Program) -> None:
        self.acted(None)

    def take_out(self) -> None:
        pass


class FailsForward(Useless):
    def put_in(self, program: Program) -> None:
        def forward(*args: Any) -> Any:
            if self.is_on:
                raise RuntimeError("expected scalar type Float but found Half")
            return nn.Module.__call__(*args)

        TRAINING.forward = forward
        self.acted(None)


@pytest.mark.parametrize(("kind", "rivals"), [(Sleepless, 0), (Useless, 1), (FailsForward, 1)])
def test_a_rival_is_tried_where_the_other_fix_brings_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type[Patch], rivals: int
) -> None:
    found = run(monkeypatch, tmp_path, kind, Useless, last_instead_of="FX900")
    assert [row.fix for row in found.rows] == ["FX900", "FX901"][: 1 + rivals]


class RunsOutOfMemory(Useless):
    """Its forward holds what is too much, and fails."""

    held: ClassVar[list[weakref.ref[torch.Tensor]]] = []
    left: ClassVar[list[int]] = []

    def put_in(self, program: Program) -> None:
        def forward(*args: Any) -> Any:
            if self.is_on:
                activations = torch.ones(1000)
                self.held.append(weakref.ref(activations))
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            self.left.append(sum(reference() is not None for reference in self.held))
            return nn.Module.__call__(*args)

        TRAINING.forward = forward
        self.acted(None)


def test_what_a_trial_ran_out_of_memory_with_is_free_when_the_script_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = run(monkeypatch, tmp_path, RunsOutOfMemory, Sleepless)
    assert [row.state for row in found.rows] == ["failed", "measured"]
    assert "OutOfMemoryError: CUDA out of memory" in found.rows[0].reason
    assert len(RunsOutOfMemory.held) == 1 and set(RunsOutOfMemory.left) == {0}


class FailsBackward(Useless):
    def put_in(self, program: Program) -> None:
        def forward(*args: Any) -> Any:
            found = nn.Module.__call__(*args)
            if self.is_on:
                found.register_hook(self.raises)
            return found

        TRAINING.forward = forward
        self.acted(None)

    def raises(self, gradient: Any) -> None:
        raise RuntimeError("overwritten by a subsequent run")


class NotNow(Useless):
    def put_in(self, program: Program) -> None:
        raise NotSwitchable("the model is of another kind")


class NeverLive(Useless):
    live = False
    why_not_live = "it is read when the process starts"


class Idle(Useless):
    def put_in(self, program: Program) -> None:
        pass


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    global TRAINING
    TRAINING = Training()
    Sleepless.log = []
    for clock in ("monotonic", "perf_counter"):
        monkeypatch.setattr(window_module, clock, lambda: TRAINING.clock_s)


def run(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    *kinds: type[Patch],
    seconds: float = 30.0,
    most: int = 3000,
    moves_samples: bool = False,
    promises: tuple[float, ...] = (),
    last_instead_of: str = "",
    everyone: Any = None,
) -> TriedFixes:
    wishes = []
    for number, kind in enumerate(kinds):
        fix = f"FX9{number:02d}"
        monkeypatch.setitem(PATCHES, fix, type(kind.__name__, (kind,), {"fix": ""}))
        promise = promises[number] if promises else None
        wishes.append(TryWish(wish=Wish(fix=fix), promises=promise, moves_samples=moves_samples))
    wishes[-1] = msgspec.structs.replace(wishes[-1], instead_of=last_instead_of)
    store = Store(folder / "run")
    window = TrialWindow(
        TrialRequest(wishes=tuple(wishes), seconds=seconds),
        write=lambda facts: store.write_json("trials", facts),
        optimizers=lambda: [TRAINING.optimizer],
        loader_of=lambda iterator: TRAINING.loader,
        queued=lambda: 0,
        step_ms=SLOW_S * 1e3,
        say=lambda text: None,
        everyone=everyone,
    )
    for _ in range(most):
        if TRAINING.step(window):
            break
    else:
        window.end("the script ended")
    return msgspec.json.decode((folder / ".run.partial/trials.json").read_bytes(), type=TriedFixes)


def only(found: TriedFixes) -> TriedFix:
    assert len(found.rows) == 1
    return found.rows[0]


def test_steps_are_timed_in_turns_and_losses_are_of_the_same_steps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = run(monkeypatch, tmp_path, Sleepless)
    row = only(found)
    assert row.state == "measured"
    assert len(row.with_ms) == len(row.without_ms) >= window_module.LEAST_PAIRS
    faster = [a / b for a, b in zip(row.without_ms, row.with_ms, strict=True)]
    assert sorted(faster)[len(faster) // 2] > 1.2
    assert found.losses == found.losses_again == row.losses
    assert len(row.losses) == window_module.LOSS_STEPS[1]
    assert TRAINING.seconds == SLOW_S
    assert Sleepless.log.count("on") == Sleepless.log.count("off")


@pytest.mark.parametrize(("scatter", "seconds"), [(SCATTER, 30.0), (0.9, 60.0), (0.9, 4.0)])
def test_a_gain_is_timed_until_it_is_known_well_or_its_share_of_the_time_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scatter: float, seconds: float
) -> None:
    monkeypatch.setattr(f"{__name__}.SCATTER", scatter)
    first, *_ = run(monkeypatch, tmp_path, Sleepless, Sleepless, seconds=seconds).rows
    ratio = ratio_in_turns(first.without_ms, first.with_ms, [first.without_ms])
    assert ratio is not None and ratio.low is not None and ratio.high is not None and ratio.low > 1
    well = ratio.high <= window_module.KNOWN_WITHIN * ratio.ratio
    if scatter < 0.1:
        assert well and ratio.pairs == window_module.LEAST_PAIRS
    elif seconds > 30:
        assert ratio.pairs > window_module.LEAST_PAIRS
        assert well or ratio.pairs == window_module.MOST_PAIRS
    else:
        assert ratio.pairs < window_module.MOST_PAIRS and not well


class TakesLong(Sleepless):
    """To switch on: as a compiler that cannot be interrupted. And with it on, a step may take long, too."""

    seconds = FAST_S

    def put_in(self, program: Program) -> None:
        if not self.log:
            TRAINING.clock_s += 100.0
        super().put_in(program)
        TRAINING.seconds = self.seconds


class TakesLonger(TakesLong):
    seconds = 10.0


@pytest.mark.parametrize(("kind", "pairs"), [(TakesLong, window_module.LEAST_PAIRS), (TakesLonger, 1)])
def test_what_took_all_the_time_to_switch_on_is_timed_until_it_may_decide(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type[Patch], pairs: int
) -> None:
    row = only(run(monkeypatch, tmp_path, kind))
    assert (row.state, len(row.with_ms)) == ("measured", pairs)
    assert row.steps == 15, "as many as in a trial that has all the time"


class KeepsWorkers(Useless):
    acts_once_a_pass = True

    def put_in(self, program: Program) -> None:
        TRAINING.pass_seconds /= 4
        self.acted(None)

    def take_out(self) -> None:
        TRAINING.pass_seconds *= 4


@pytest.mark.parametrize("kind", [KeepsWorkers, Useless])
@pytest.mark.parametrize("steps", [3, 100])
def test_what_acts_once_in_a_pass_is_timed_over_whole_passes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type[Patch], steps: int
) -> None:
    TRAINING.loader, TRAINING.pass_seconds = range(steps), steps * SLOW_S
    row = only(run(monkeypatch, tmp_path, kind, seconds=60.0))
    per_step = 1e3 * (SLOW_S + TRAINING.pass_seconds / steps)
    assert (row.steps % steps == 0) == (kind is KeepsWorkers or steps == 3)
    if kind is KeepsWorkers or steps == 3:
        assert row.without_ms == pytest.approx([per_step] * len(row.without_ms), rel=SCATTER)
    if kind is KeepsWorkers:
        assert row.with_ms == pytest.approx([5 / 8 * per_step] * len(row.with_ms), rel=SCATTER)


def test_the_length_of_a_pass_is_that_of_the_loader_that_feeds_the_training_now() -> None:
    """It may be built anew for each pass, and another one may give batches in between."""
    blocks, others = Blocks(SLOW_S), [0, 0]
    loaders = [[0] * 5 for _ in range(3)]
    for loader in loaders:
        for _ in loader:
            blocks.fetched(loader)
            blocks.stepped()
        if loader is not loaders[-1]:
            blocks.fetched(others)
    assert blocks.length(loaders[-1], once_a_pass=False, seconds=60.0, alone=True) == 15
    ends = [steps for steps in range(2, 16) if blocks.may_end(steps, 60.0)]
    assert ends == [5, 10, 15], "after whole passes"
    blocks.single()
    assert blocks.length(others, once_a_pass=True, seconds=60.0, alone=True) == 15
    assert blocks.may_end(14, 60.0), "of this one nothing is known"


@pytest.mark.parametrize("every", [1, 7, 13])
def test_a_validation_after_some_passes_only_spoils_a_block(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, every: int
) -> None:
    TRAINING.loader, TRAINING.validation_seconds, TRAINING.validates_every = range(5), 1.0, every
    row = only(run(monkeypatch, tmp_path, Useless, seconds=60.0))
    ratio = ratio_in_turns(row.without_ms, row.with_ms, [row.without_ms])
    assert ratio is not None and ratio.low is not None and ratio.high is not None
    assert ratio.high / ratio.low < 1.1
    assert min(row.without_ms) == pytest.approx(220.0 if every == 1 else 20.0, rel=2 * SCATTER)
    assert row.evaluates is (every == 1)


def test_what_acts_once_in_a_pass_needs_the_time_for_some(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    TRAINING.loader, TRAINING.pass_seconds = range(1000), 1.0
    row = only(run(monkeypatch, tmp_path, KeepsWorkers, seconds=60.0))
    assert row.state == "not tried" and "the 6 epochs that decide take 120 s" in row.reason


def test_half_of_the_switches_are_saved_by_the_order_of_turns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    row = only(run(monkeypatch, tmp_path, Sleepless))
    assert Sleepless.log.count("on") <= len(row.with_ms) // 2 + 1


def test_the_training_is_put_back_at_the_end_of_each_trial(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = run(monkeypatch, tmp_path, Sleepless, Useless)
    assert [row.losses == found.losses for row in found.rows] == [True, True]


class HalfAsleep(Useless):
    def put_in(self, program: Program) -> None:
        TRAINING.seconds /= 2
        self.acted(None)

    def take_out(self) -> None:
        TRAINING.seconds *= 2


@pytest.mark.parametrize("moves_samples", [False, True])
def test_the_best_two_are_tried_together_unless_each_feeds_the_script(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, moves_samples: bool
) -> None:
    """Of two second loaders the script would get the batches of one."""
    found = run(monkeypatch, tmp_path, HalfAsleep, HalfAsleep, moves_samples=moves_samples)
    assert [bool(row.beside) for row in found.rows] == (
        [False] * 2 if moves_samples else [False, False, True]
    )


@pytest.mark.parametrize(
    ("kind", "said"), [(FailsForward, "expected scalar type"), (FailsBackward, "overwritten")]
)
def test_a_step_that_fails_is_a_result_and_the_next_trial_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type[Patch], said: str
) -> None:
    found = run(monkeypatch, tmp_path, kind, Sleepless)
    assert [row.state for row in found.rows] == ["failed", "measured"]
    assert said in found.rows[0].reason
    assert f"{Path(__file__).name}:" in found.rows[0].reason, "the line is named"
    assert found.rows[1].losses == found.losses


@pytest.mark.parametrize(
    ("kind", "boom", "state", "said"),
    [
        (Useless, "", "measured", ""),
        (Useless, "RuntimeError: boom", "failed", "boom (rank 1)"),
        (FailsForward, "", "failed", "expected scalar type"),
        (NotNow, "", "not tried", "of another kind"),
    ],
)
def test_what_one_rank_cannot_do_none_does_and_all_use_the_same_times(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type[Patch], boom: str, state: str, said: str
) -> None:
    monkeypatch.setattr(kind, "for_ranks", True)
    monkeypatch.setattr(Program, "is_replicated", True)
    asked: list[Any] = []

    def everyone(own: Any) -> list[Any]:
        # The other rank takes twice as long for each block, and fails in the tenth thing that is asked.
        asked.append(own)
        if isinstance(own, tuple):
            return [own, (2 * own[0], own[1])]
        return [own, boom if boom and isinstance(own, str) and len(asked) > 9 else own]

    row = only(run(monkeypatch, tmp_path, kind, everyone=everyone))
    assert row.state == state and said in row.reason
    blocks = [own[0] for own in asked if isinstance(own, tuple)]
    assert bool(blocks) == (state == "measured" or bool(boom))
    if row.with_ms:
        assert row.without_ms[0] + row.with_ms[0] == pytest.approx(1.5e3 * sum(blocks[:2]))


def test_ranks_that_do_not_answer_end_the_window(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(window_module.ApartError):
        run(monkeypatch, tmp_path, Useless, everyone=lambda own: None)


@pytest.mark.parametrize("replicated", [False, True])
def test_ranks_do_not_switch_what_changes_how_they_exchange(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, replicated: bool
) -> None:
    monkeypatch.setattr(Useless, "for_ranks", not replicated)
    monkeypatch.setattr(Program, "is_replicated", replicated)
    row = only(run(monkeypatch, tmp_path, Useless, everyone=lambda own: [own, own]))
    assert row.state == "not tried" and "DistributedDataParallel" in row.reason


def test_long_steps_are_repeated_less_often(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = run(monkeypatch, tmp_path, Useless, seconds=1.0)
    assert len(found.losses) == window_module.LOSS_STEPS[0]


class Looks(Useless):
    """A compiler that captures a tenth of the model."""

    foresees = True
    share: ClassVar[float] = 0.1

    def foresee(self, program: Program) -> None:
        pass

    def foreseen(self) -> str | None:
        self.look = CompilerLook(graphs=1, breaks=1, share=self.share)
        return None if self.share else "dynamo captures nothing of Net"


class LooksInVain(Looks):
    share = 0.0


def test_what_captures_nothing_fails_and_what_captures_too_little_is_not_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = run(monkeypatch, tmp_path, LooksInVain, Looks, Looks, promises=(0.5, 0.1, 0.5))
    assert [row.state for row in found.rows] == ["failed", "not tried", "measured"]
    assert "nothing of Net" in found.rows[0].reason
    assert "10% of the model's calls" in found.rows[1].reason
    assert [row.look.share for row in found.rows if row.look] == [0.0, 0.1, 0.1]


@pytest.mark.parametrize(
    ("kind", "said"),
    [(NotNow, "of another kind"), (NeverLive, "when the process starts"), (Idle, "never did what")],
)
def test_what_cannot_be_tried_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type[Patch], said: str
) -> None:
    row = only(run(monkeypatch, tmp_path, kind))
    assert row.state == "not tried" and said in row.reason


def test_when_the_time_is_used_up_the_rest_is_not_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = run(monkeypatch, tmp_path, Useless, Sleepless, seconds=0.3)
    assert found.rows[-1].state == "not tried" and "--trial-seconds" in found.rows[-1].reason


def test_trials_are_not_begun_where_the_fewest_steps_take_longer_than_their_time() -> None:
    without = window_module.LEAST_PAIRS * BLOCK_STEPS[0]
    assert 3 * window_module.LOSS_STEPS[0] + without == DECIDING_STEPS


def test_a_script_that_ends_leaves_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = run(monkeypatch, tmp_path, Sleepless, Useless, most=30)
    assert [row.state for row in found.rows] == ["not tried", "not tried"]
    assert found.losses and TRAINING.seconds == SLOW_S


@pytest.mark.parametrize("on", [True, False])
def test_an_error_is_the_fault_of_a_fix_only_while_it_is_in_force(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, on: bool
) -> None:
    """A script that fails in a block without any fix has failed by itself."""
    raised = False

    class Ends(Sleepless):
        def put_in(self, program: Program) -> None:
            super().put_in(program)
            Ends.on = True

        def take_out(self) -> None:
            super().take_out()
            Ends.on = False

    Ends.on = False
    monkeypatch.setitem(PATCHES, "FX900", type("Ends", (Ends,), {"fix": ""}))
    found: list[TriedFixes] = []
    window = TrialWindow(
        TrialRequest(wishes=(TryWish(wish=Wish(fix="FX900")),), seconds=30.0),
        write=found.append,
        optimizers=lambda: [TRAINING.optimizer],
        loader_of=lambda iterator: TRAINING.loader,
        queued=lambda: 0,
        step_ms=SLOW_S * 1e3,
        say=lambda text: None,
    )
    was_on = False
    while not raised:
        assert not TRAINING.step(window)
        was_on |= Ends.on
        raised = was_on and Ends.on is on
    window.fails(ZeroDivisionError("division by zero"))
    window.end("the script ended")
    assert only(found[-1]).state == ("failed" if on else "not tried")


def test_a_process_that_dies_in_a_trial_leaves_word_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Dies(Useless):
        def put_in(self, program: Program) -> None:
            file = tmp_path / ".run.partial/trials.json"
            self.rows = msgspec.json.decode(file.read_bytes(), type=TriedFixes).rows
            assert [row.state for row in self.rows] == ["under way"]
            self.acted(None)

    assert only(run(monkeypatch, tmp_path, Dies)).state == "measured"
