"""What is told later is the same as what is told at once."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from torch_bottleneck.harness.events.tape import Tape
from torch_bottleneck.harness.process.agent import Agent
from torch_bottleneck.harness.process.progress import Progress
from torch_bottleneck.harness.process.stopping import Stopper, StopRun
from torch_bottleneck.harness.windows.lengths import steps_to_tell
from torch_bottleneck.harness.windows.steps import StepRule
from torch_bottleneck.harness.windows.tracker import Tracker
from torch_bottleneck.runs.plan import Plan
from torch_bottleneck.runs.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

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


class Deaf:
    """Stands in for what a tracker tells and asks."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_args, **_options: False


class Clock:
    """A clock that only moves when it is told to."""

    now = 1000

    def __call__(self) -> int:
        return self.now


class AtOnce:
    """An observer that tells a tracker of every event as it happens; the tape's agent, too."""

    def __init__(self, tracker: Tracker, clock: Clock) -> None:
        self.tracker, self.clock = tracker, clock
        self.heard: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        kind, _, what = name.partition("_")
        event = f"{what}_{kind}s" if what != "phase" else "phase_ends"

        def tell(given_: Any = None, at: int | None = None) -> object:
            self.heard.append(name)
            if name == "begin_fetch":
                given_, at = None, given_
            elif name == "end_fetch":
                given_, at = None, None
            elif name == "end_optimizer":
                given_ = id(given_)
            elif name == "begin_forward":
                given_ = "forward" if torch.is_grad_enabled() else "evaluation"
            getattr(self.tracker, event)(self.clock() if at is None else at, given_)
            return given_ if name == "begin_forward" else True

        return tell


def make_tracker() -> tuple[Tracker, FakeCapture]:
    deaf: Any = Deaf()
    tracker = Tracker(StepRule(), loaders=deaf, compiles=deaf, horizon=deaf)
    capture: Any = FakeCapture()
    tracker.capture = capture
    tracker.notes = deaf
    tracker.meter.reads_usage = False
    tracker.start(0)
    return tracker, capture


EVENTS = ("fetch", "forward", "evaluation", "backward", "step", "zero_grad", "label", "collect")
MODEL = torch.nn.Identity()


OPTIMIZER = object()
"""One, so that its identity is the same in both programs."""
BEGIN: dict[str, tuple[Callable[[Any], object], Callable[[Any], object]]] = {
    "fetch": (lambda o: o.begin_fetch(), lambda o: o.end_fetch(MODEL, None)),
    "forward": (lambda o: o.begin_forward(MODEL), lambda o: o.end_phase()),
    "evaluation": (lambda o: o.begin_forward(MODEL), lambda o: o.end_phase()),
    "backward": (lambda o: o.begin_backward(True), lambda o: o.end_backward()),
    "step": (lambda o: o.begin_optimizer(OPTIMIZER), lambda o: o.end_optimizer(OPTIMIZER)),
    "zero_grad": (lambda o: o.begin_zero_grad(True), lambda o: o.end_phase()),
    "label": (lambda o: o.begin_label("mine"), lambda o: o.end_phase()),
}
WITH_LOADER = ["fetch", "zero_grad", "forward", "backward", "step"]
WITHOUT = ["zero_grad", "forward", "backward", "step"]

steps_of_a_program = st.lists(
    st.tuples(st.lists(st.sampled_from(EVENTS), max_size=3), st.integers(1, 100)), min_size=1, max_size=30
)


@settings(max_examples=150, deadline=None)
@given(extras=steps_of_a_program, loader=st.booleans(), burst=st.integers(1, 10))
def test_rows_are_the_same_whether_told_at_once_or_later(
    extras: list[tuple[list[str], int]], loader: bool, burst: int
) -> None:
    usual = WITH_LOADER if loader else WITHOUT
    learning = [(name, 7) for name in usual * 5]
    program = [(name, took) for more, took in extras for name in [*usual, *more]]
    at_once, taped = Run(learning), Run(learning)
    at_once.go_on(program)
    noted = taped.tape(burst)
    taped.go_on(program)
    noted.play()
    assert taped.rows() == at_once.rows()
    assert len(at_once.rows()) >= 5
    assert len(taped.agent.heard) < len(at_once.agent.heard), "most of it was noted, not told"


@pytest.mark.parametrize("usual", [WITH_LOADER, WITHOUT, [*WITH_LOADER[:4], *WITH_LOADER[:4], "step"]])
def test_the_device_is_marked_at_every_cut_told_later(usual: list[str]) -> None:
    run = Run([(name, 7) for name in usual * 5])
    noted = run.tape(4)
    run.capture.late = 0
    run.go_on([(name, 7) for name in usual * 20])
    noted.play()
    assert run.marks == run.capture.late
    assert 14 <= run.capture.late <= 20


class Run:
    """One program under a tracker, and a tape when asked for; time goes by only as it says."""

    def __init__(self, learning: list[tuple[str, int]]) -> None:
        self.clock = Clock()
        self.tracker, self.capture = make_tracker()
        self.agent: Any = AtOnce(self.tracker, self.clock)
        self.observer: Any = self.agent
        self.marks = 0
        self.found: list[str] = []
        self.go_on(learning)

    def tape(self, burst: int) -> Tape:
        """Take notes from now on."""
        noted = Tape(
            self.agent,
            self.tracker,
            Stopper(),
            burst=lambda: burst,
            mark=self._mark,
            stop=self._leave,
            found=self.found.append,
        )
        self.observer = noted
        self.agent.heard.clear()
        return noted

    def _mark(self) -> None:
        self.marks += 1

    def _leave(self) -> None:
        noted, self.observer = self.observer, self.agent
        noted.play()

    def go_on(self, events: list[tuple[str, int]]) -> None:
        """Let these things happen."""
        with pytest.MonkeyPatch.context() as patch:
            for module in ("events.tape", "windows.tracker", "windows.phases"):
                patch.setattr(f"torch_bottleneck.harness.{module}.perf_counter_ns", self.clock)
            for name, took in events:
                self.clock.now += 3
                self._happen(name, took)

    def _happen(self, name: str, took: int) -> None:
        if name == "collect":
            told = self.observer
            told.collected(took) if isinstance(told, Tape) else self.tracker.collected(0, took)
            return
        with torch.set_grad_enabled(name != "evaluation"):
            begin, end = BEGIN[name]
            begin(self.observer)
        self.clock.now += took
        end(self.observer)

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


def test_a_real_loop_is_noted_and_loses_no_step(agent: Agent) -> None:
    on_tape = [agent._deck.tape is not None for _ in train(40)]
    assert sum(on_tape) > 20
    agent._deck.leave()
    agent._meter.share_usage()
    rows = agent.capture._book.rows
    assert [row.index for row in rows] == list(range(rows[0].index, rows[0].index + len(rows)))
    assert len(rows) > 20
    for row in rows:
        assert {"data", "forward", "backward", "optimizer", "zero_grad"} <= set(row.phases_ns)
        assert sum(row.phases_ns.values()) <= row.wall_ms * 1e6
        assert row.minor_faults is not None
    waits = agent._loader_watch.facts()[0]
    assert waits.fetches == 40
    assert len(waits.wait_ms) == len(waits.wait_step) > 20


def test_a_wish_to_stop_is_met_within_a_step(agent: Agent) -> None:
    steps = 0
    with pytest.raises(StopRun):  # noqa: PT012 - the loop is what is stopped
        for steps in train(100):
            if steps == 25:
                assert agent._deck.tape is not None
                agent._stopper.reason = "interrupted"
    assert steps in (25, 26)
    assert agent._deck.tape is None


def test_another_optimizer_ends_the_tape(agent: Agent) -> None:
    for i in train(30):
        if i == 20:
            assert agent._deck.tape is not None
            other = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
            assert agent._deck.tape is None
            assert len(agent._learned.optimizers.facts()) == 2
            del other


def test_where_the_program_is_can_be_told_from_the_tape(agent: Agent) -> None:
    seen = set()

    class Asking(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.add((agent._deck.tape is not None, agent._whereabouts()[0]))
            return super().forward(x)

    model = Asking(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in itertools.islice(DataLoader(TensorDataset(torch.randn(200, 4)), batch_size=4), 30):
        model(x).sum().backward()
        optimizer.step()
    assert seen == {(False, "forward"), (True, "forward")}


@pytest.mark.parametrize(("shortest", "longest"), [(10, 40), (5, 5), (12, 40), (7, 7), (1, 1), (20, 20)])
def test_bursts_end_where_the_window_is_looked_at(shortest: int, longest: int) -> None:
    count = 0
    while count < longest:
        burst = steps_to_tell(count, shortest=shortest, longest=longest, step_ms=40.0)
        assert 1 <= burst <= max(10, min(longest - count, 12))
        count += burst
        assert count <= shortest or count % 5 == 0 or count == longest
    assert count == longest
    assert steps_to_tell(0, shortest=shortest, longest=longest, step_ms=500.0) == 1


def test_a_window_that_is_over_at_once_is_looked_at_when_it_is() -> None:
    assert steps_to_tell(0, shortest=10, longest=40, step_ms=1.0) == 40
    assert steps_to_tell(7, shortest=10, longest=40, step_ms=1.0) == 33
    assert steps_to_tell(0, shortest=10, longest=40, step_ms=20.0) <= 15
    assert steps_to_tell(0, shortest=10**6, longest=10**6, step_ms=0.1) <= 10
