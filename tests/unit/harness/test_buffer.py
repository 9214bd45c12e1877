"""Events that are held come to the same as events that are handed over at once."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from torch_bottleneck.harness.events.buffer import BEGINS, ENDS, EventBuffer
from torch_bottleneck.harness.events.table import (
    BACKWARD,
    CLOSURE,
    COPY,
    EVALUATION,
    EVENTS,
    FETCH,
    FORWARD,
    LABEL,
    OPTIMIZER,
    SCALER,
    WORKERS,
    ZERO_GRAD,
)
from torch_bottleneck.harness.process.agent import Agent
from torch_bottleneck.harness.process.progress import Progress
from torch_bottleneck.harness.process.stopping import Stopper, StopRun
from torch_bottleneck.harness.windows.lengths import steps_to_hold
from torch_bottleneck.harness.windows.steps import StepRule
from torch_bottleneck.harness.windows.tracker import Tracker
from torch_bottleneck.runs.plan import Plan
from torch_bottleneck.runs.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from torch_bottleneck.harness.events.buffer import Entry
    from torch_bottleneck.harness.events.table import Event
    from torch_bottleneck.harness.windows.table import Row

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class FakeCapture:
    """Keeps rows; no window ever changes."""

    done = False
    window_name = "baseline"

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.late = 0

    def add(self, row: Row) -> None:
        self.late += 1
        self.rows.append(row)

    def cut(self, row: Row, *, learned: bool) -> bool:
        del learned
        self.rows.append(row)
        return False

    def restart(self) -> None:
        self.rows.append("restart")  # type: ignore[arg-type]


class Anything:
    """Stands in for what a tracker informs and asks."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_args, **_options: False


class Clock:
    """A clock that only moves when it is told to."""

    now = 1000

    def __call__(self) -> int:
        return self.now


class Observer:
    """Hands every event on to a tracker, as the agent does."""

    def __init__(self, tracker: Tracker, clock: Clock) -> None:
        self.tracker, self.clock = tracker, clock
        self.at_once: list[Event] = []
        self.limit = 1
        self.asked = 0
        self.evaluations = 0

    def begin(self, event: Event, subject: Any, now: int, *, paused: bool) -> None:
        del paused
        self.at_once.append(event)
        if self.tracker.ends_step(event):
            self.tracker.cut(now)
        self.tracker.enter(event, self.clock(), subject if event.says_subject else None)

    def take(self, entries: Iterable[Entry], *, held: bool) -> None:
        self.tracker.take(entries, held=held)

    def ended(self, event: Event, subject: Any, result: Any) -> None:
        pass

    def happened(self, event: Event, subject: Any) -> None:
        self.at_once.append(event)

    def first_evaluation(self, module: object) -> None:
        self.evaluations += 1

    def steps_to_hold(self) -> int:
        self.asked += 1
        return self.limit

    def released(self) -> None:
        pass


def make_tracker() -> tuple[Tracker, FakeCapture]:
    anything: Any = Anything()
    tracker = Tracker(StepRule(), loaders=anything, compiles=anything, horizon=anything)
    capture: Any = FakeCapture()
    tracker.capture = capture
    tracker.notes = anything
    tracker.meter.reads_usage = False
    tracker.start(0)
    return tracker, capture


HAPPENINGS = (
    "fetch",
    "forward",
    "evaluation",
    "backward",
    "step",
    "scaler",
    "zero_grad",
    "label",
    "nameless",
    "workers",
    "collect",
)
OPTIMIZER_OBJECT, ANOTHER_OBJECT = object(), object()
"""Of the module, so that their identities are the same in both programs."""
WHAT: dict[str, tuple[Event, Any]] = {
    "fetch": (FETCH, None),
    "workers": (WORKERS, None),
    "forward": (FORWARD, None),
    "evaluation": (EVALUATION, None),
    "backward": (BACKWARD, True),
    "step": (OPTIMIZER, OPTIMIZER_OBJECT),
    "other step": (OPTIMIZER, ANOTHER_OBJECT),
    "scaler": (SCALER, (None, OPTIMIZER_OBJECT)),
    "zero_grad": (ZERO_GRAD, True),
    "label": (LABEL, "mine"),
    "nameless": (LABEL, ""),
}
WITH_LOADER = ["fetch", "zero_grad", "forward", "backward", "step"]
WITHOUT = ["zero_grad", "forward", "backward", "step"]
IN_TURNS = [*WITHOUT, "zero_grad", "forward", "forward", "backward", "other step"]
TWICE_AND_ONCE = [*WITHOUT, *WITHOUT, "forward", "backward", "other step"]
TOGETHER = [*WITHOUT, "other step", "forward", "backward", "other step"]
"""One backward for two optimizers, and another one for the second alone."""

steps_of_a_program = st.lists(
    st.tuples(st.lists(st.sampled_from(HAPPENINGS), max_size=3), st.integers(1, 100)), min_size=1, max_size=30
)


@settings(max_examples=150, deadline=None)
@given(
    extras=steps_of_a_program,
    usual=st.sampled_from([WITH_LOADER, WITHOUT, IN_TURNS, TWICE_AND_ONCE, TOGETHER]),
    limit=st.integers(1, 10),
)
def test_rows_are_the_same_whether_events_are_held_or_not(
    extras: list[tuple[list[str], int]], usual: list[str], limit: int
) -> None:
    learning = [(name, 7) for name in usual * 5]
    program = [(name, took) for more, took in extras for name in [*usual, *more]]
    at_once, held = Run(learning), Run(learning)
    at_once.go_on(program)
    held.hold(limit)
    held.go_on(program)
    held.buffer.release()
    assert held.rows() == at_once.rows()
    assert len(at_once.rows()) >= 5
    assert len(held.observer.at_once) < len(at_once.observer.at_once), "most of it was held"


@pytest.mark.parametrize(
    "usual",
    [
        WITH_LOADER,
        WITHOUT,
        [*WITH_LOADER[:4], *WITH_LOADER[:4], "step"],
        IN_TURNS,
        TWICE_AND_ONCE,
        TOGETHER,
    ],
)
def test_the_device_is_marked_at_every_cut_that_is_held(usual: list[str]) -> None:
    run = Run([(name, 7) for name in usual * 5])
    run.hold(4)
    run.capture.late = 0
    run.go_on([(name, 7) for name in usual * 20])
    run.buffer.release()
    assert run.marks == run.capture.late
    assert 14 <= run.capture.late <= 20


SAFE_POINTS = [event for event in EVENTS if event.ends_step and event not in (FETCH, CLOSURE)]
"""A fetch without a batch is the end of an epoch, and handed over anyway. A closure lies inside an update."""


@pytest.mark.parametrize("event", SAFE_POINTS, ids=lambda event: event.name)
def test_a_long_stretch_without_an_update_is_handed_over_at_a_safe_point(event: Event) -> None:
    run = Run([(name, 7) for name in WITH_LOADER * 5])
    run.hold(10)
    handed_over: list[bool] = []
    for _ in range(8000):
        begun = run.buffer.begin(event, True)
        assert begun is event
        run.buffer.end(begun)
        handed_over.append(bool(run.observer.at_once))
    assert not any(handed_over[:1000])
    assert handed_over[-1]


def test_an_optimizer_that_calls_its_closure_again_ends_the_holding() -> None:
    run = Run([(name, 7) for name in WITH_LOADER * 5])
    run.hold(10)
    for calls in (1, 1, 2):
        assert run.buffer.begin(OPTIMIZER, 7) is OPTIMIZER
        for _ in range(calls):
            assert run.buffer.holding
            run.buffer.end(run.buffer.begin(CLOSURE) or FETCH)
        run.buffer.end(OPTIMIZER, 7)
    assert not run.buffer.holding


def test_steps_that_are_handed_over_for_their_many_events_count_for_the_next_look() -> None:
    """Otherwise the look at whether a window is over is put off again and again."""
    run = Run([(name, 7) for name in WITHOUT * 5])
    run.hold(20)
    run.observer.limit = 20
    before = len(run.capture.rows) - run.capture.late
    step = [*WITHOUT[:2], *["evaluation"] * 600, *WITHOUT[2:]]
    run.go_on([(name, 7) for name in step * 90])
    looks = len(run.capture.rows) - run.capture.late - before
    assert looks >= 90 // 20
    assert run.observer.asked <= 90 // 20 + 1


def test_an_event_that_is_taken_at_once_ends_the_holding_and_comes_after_what_is_held() -> None:
    run = Run([(name, 7) for name in WITH_LOADER * 5])
    run.hold(10)
    run.buffer.begin(LABEL, "mine")
    assert run.buffer.holding
    assert run.tracker.clock.innermost is None
    run.buffer.begin(COPY)
    assert not run.buffer.holding
    assert run.tracker.clock.open_phases == ["mine", "h2d"]
    run.buffer.end(COPY)
    run.buffer.end(LABEL)
    assert run.tracker.clock.depth == 0


def test_what_is_noted_during_the_hand_over_is_kept() -> None:
    run = Run([(name, 7) for name in WITH_LOADER * 5])
    run.hold(10)
    run.buffer.begin(LABEL, "mine")
    take = run.observer.take

    def take_and_collect(entries: Iterable[Entry], *, held: bool) -> None:
        run.buffer.collected(11)
        take(entries, held=held)

    run.observer.take = take_and_collect  # type: ignore[method-assign]
    run.buffer.flush()
    run.observer.take = take  # type: ignore[method-assign]
    assert run.tracker.meter.garbage.total_ns == 0
    run.buffer.flush()
    assert run.tracker.meter.garbage.total_ns == 11


def test_the_phase_that_is_open_is_told_from_what_is_held() -> None:
    buffer = Run([]).buffer
    assert buffer.innermost([]) == ""
    assert buffer.innermost(["forward", "mine"]) == "mine"
    buffer.note((LABEL, ENDS, 1, None))
    assert buffer.innermost(["forward", "mine"]) == "forward"
    buffer.note((BACKWARD, BEGINS, 2, True))
    buffer.note((LABEL, BEGINS, 3, "theirs"))
    assert buffer.innermost(["forward", "mine"]) == "theirs"
    buffer.note((LABEL, ENDS, 4, None))
    assert buffer.innermost(["forward", "mine"]) == "backward"


def test_other_threads_are_not_noted_but_for_their_updates() -> None:
    run = Run([(name, 7) for name in WITH_LOADER * 5])
    run.hold(10)
    begun: list[Event | None] = []
    ask = lambda: begun.extend(run.buffer.begin(*what) for what in WHAT.values())  # noqa: E731
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert begun == [None] * len(WHAT)
    assert run.buffer.updated_in_backward


class Run:
    """One program under a buffer and a tracker; time goes by only as it says."""

    def __init__(self, learning: list[tuple[str, int]]) -> None:
        self.clock = Clock()
        self.tracker, self.capture = make_tracker()
        self.observer = Observer(self.tracker, self.clock)
        self.buffer = EventBuffer(self.observer, Stopper())
        self.marks = 0
        self.go_on(learning)

    def hold(self, limit: int) -> None:
        """Hold events from now on."""
        rule = self.tracker.rule
        self.observer.limit = limit
        self.observer.at_once.clear()
        self.buffer.hold(
            limit,
            at_fetch=rule.next_cut == "fetch",
            armed=rule.pending,
            mark=self._mark,
            period=rule.period,
            in_step=rule.in_step,
        )

    def _mark(self) -> None:
        self.marks += 1

    def go_on(self, events: list[tuple[str, int]]) -> None:
        """Let these things happen."""
        with pytest.MonkeyPatch.context() as patch:
            for module in ("events.buffer", "windows.tracker", "windows.phases"):
                patch.setattr(f"torch_bottleneck.harness.{module}.perf_counter_ns", self.clock)
            for name, took in events:
                self.clock.now += 3
                if name == "collect":
                    self.buffer.collected(took)
                    continue
                event, subject = WHAT[name]
                assert self.buffer.begin(event, subject)
                self.clock.now += took
                self.buffer.end(event, subject)

    def rows(self) -> list[Any]:
        """Return what the capture was given."""
        return [row if isinstance(row, str) else _plain(row) for row in self.capture.rows]


def _plain(row: Row) -> tuple[Any, ...]:
    return (
        row.index,
        row.start_ns,
        row.wall_ms,
        {name: ns for name, ns in row.phases_ns.items() if ns},
        row.micro_steps,
        row.validation,
        round(row.gc_ms, 9),
    )


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    torch.set_num_threads(1)
    plan = Plan(script="train.py", quiet=True, out=str(tmp_path), baseline_steps=40, memory=False)
    stopper = Stopper()
    made = Agent(plan, Store(tmp_path / "run"), stopper, Progress(quiet=True))
    made.install()
    yield made
    made.uninstall()
    stopper.stand_down()


def train(steps: int) -> Iterator[int]:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(4 * steps, 4)), batch_size=4)
    for i, (x,) in enumerate(loader):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        yield i


def test_a_real_loop_is_held_and_loses_no_step(agent: Agent) -> None:
    held = [agent.buffer.holding for _ in train(40)]
    assert sum(held) > 20
    agent.buffer.release()
    agent._meter.share_usage()
    rows = agent.capture._book.rows
    assert [row.index for row in rows] == list(range(rows[0].index, rows[0].index + len(rows)))
    assert len(rows) > 20
    for row in rows:
        assert {"data", "forward", "backward", "optimizer", "zero_grad"} <= set(row.phases_ns)
        assert sum(row.phases_ns.values()) <= row.wall_ms * 1e6
        assert row.minor_faults is not None
    waits = agent._loaders.facts()[0]
    assert waits.fetches == 40
    assert len(waits.wait_ms) == len(waits.wait_step) > 20


def test_a_wish_to_stop_is_met_within_a_step(agent: Agent) -> None:
    steps = 0
    with pytest.raises(StopRun):  # noqa: PT012 - the loop is what is stopped
        for steps in train(100):
            if steps == 25:
                assert agent.buffer.holding
                agent._stopper.reason = "interrupted"
    assert steps in (25, 26)
    assert not agent.buffer.holding


def test_another_optimizer_ends_the_holding(agent: Agent) -> None:
    for i in train(30):
        if i == 20:
            assert agent.buffer.holding
            other = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
            assert not agent.buffer.holding
            assert len(agent._learned.optimizers.facts()) == 2
            del other


def test_where_the_program_is_can_be_told_from_the_buffer(agent: Agent) -> None:
    seen = set()

    class Asking(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.add((agent.buffer.holding, agent._whereabouts()[0]))
            return super().forward(x)

    model = Asking(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in itertools.islice(DataLoader(TensorDataset(torch.randn(200, 4)), batch_size=4), 30):
        model(x).sum().backward()
        optimizer.step()
    assert seen == {(False, "forward"), (True, "forward")}


@pytest.mark.parametrize("rest", [1, 5, 7, 20, 40, 200])
def test_holding_ends_where_the_stretch_is_looked_at(rest: int) -> None:
    count = 0
    while count < rest:
        steps = steps_to_hold(rest - count, step_ms=40.0)
        assert 1 <= steps <= 12
        count += steps
    assert count == rest
    assert steps_to_hold(rest, step_ms=500.0) == 1
    assert steps_to_hold(rest, step_ms=5000.0) == 0


def test_a_stretch_that_is_over_at_once_is_looked_at_when_it_is() -> None:
    assert steps_to_hold(40, step_ms=1.0) == 40
    assert steps_to_hold(33, step_ms=1.0) == 33
    assert steps_to_hold(40, step_ms=20.0) == 10
    assert steps_to_hold(10**6, step_ms=0.1) == 10
