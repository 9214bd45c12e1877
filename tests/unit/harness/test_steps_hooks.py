"""The hooks in a live process: they leave nothing behind, and see what they should see."""

from __future__ import annotations

import contextlib
import gc
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.autograd import profiler as autograd_profiler
from torch.optim import optimizer as optim_module
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data import dataloader as loader_module

from torch_bottleneck import Harness
from torch_bottleneck.errors import UsageError
from torch_bottleneck.harness import torch_private
from torch_bottleneck.harness.facts.flops import FlopStep
from torch_bottleneck.harness.facts.memory_notes import NoteBook
from torch_bottleneck.harness.facts.probes import plain_dispatch_ns
from torch_bottleneck.harness.process.agent import Agent
from torch_bottleneck.harness.process.progress import Progress
from torch_bottleneck.harness.process.stopping import Stopper, StopRun
from torch_bottleneck.harness.windows.book import WindowBook
from torch_bottleneck.harness.windows.capture import Capture
from torch_bottleneck.harness.windows.horizon import Horizon
from torch_bottleneck.harness.windows.memory_window import CallSites, MemoryHistory, MemoryWindow
from torch_bottleneck.harness.windows.phases import PhaseClock
from torch_bottleneck.harness.windows.presence import active
from torch_bottleneck.harness.windows.table import Row
from torch_bottleneck.harness.windows.trace import TraceSession
from torch_bottleneck.runs.plan import Plan
from torch_bottleneck.runs.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

OWNERS: tuple[tuple[Any, str], ...] = (
    (torch.nn.Module, "__call__"),
    (torch.autograd, "_engine_run_backward"),
    (loader_module._BaseDataLoaderIter, "__next__"),
    (DataLoader, "__iter__"),
    (DataLoader, "__init__"),
    (optim_module.Optimizer, "zero_grad"),
    (optim_module.Optimizer, "__init__"),
    (torch.nn.parallel.DistributedDataParallel, "__init__"),
    (torch.amp.GradScaler, "step"),
    (autograd_profiler.profile, "_prepare_trace"),
    (autograd_profiler.profile, "__exit__"),
    (torch, "compile"),
    (torch.Tensor, "to"),
    (torch.Tensor, "cuda"),
)


def snapshot() -> dict[str, object]:
    state: dict[str, object] = {
        f"{owner!r}.{name}": vars(owner).get(name, "inherited") for owner, name in OWNERS
    }
    state["pre"] = dict(optim_module._global_optimizer_pre_hooks)
    state["post"] = dict(optim_module._global_optimizer_post_hooks)
    state["gc"] = list(gc.callbacks)
    return state


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """An installed agent; the test fails if anything of it stays behind."""
    torch.set_num_threads(1)
    before = snapshot()
    plan = Plan(script="train.py", quiet=True, out=str(tmp_path))
    stopper = Stopper()
    made = Agent(plan, Store(tmp_path / "run"), stopper, Progress(quiet=True))
    made.install()
    yield made
    made.uninstall()
    # Its watchdog would end this process, tests and all, a minute after a test has raised a stop.
    stopper.stand_down()
    assert snapshot() == before
    assert active() is None


def parts() -> tuple[torch.nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, DataLoader(TensorDataset(torch.randn(400, 4)), batch_size=4)


def train(steps: int, model: Any, optimizer: Any, batches: Iterator[Any]) -> None:
    for _ in range(steps):
        (x,) = next(batches)
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()


def test_everything_is_replaced_and_put_back(agent: Agent) -> None:
    # The fixture compares before and after; here that there is something to compare.
    changed = [(o, n) for o, n in OWNERS if "torch_bottleneck" in _file(vars(o).get(n))]
    assert len(changed) >= 9
    agent.uninstall()
    agent.uninstall()


def _file(function: object) -> str:
    code = getattr(function, "__code__", None)
    return code.co_filename.replace("/bottleneck/", "/torch_bottleneck/") if code else ""


def test_copies_are_labelled_only_while_asked_for(agent: Agent) -> None:
    assert "to" not in vars(torch.Tensor)
    agent._hooks.label_copies()
    agent._hooks.label_copies()
    assert "to" in vars(torch.Tensor)
    assert torch.ones(2).to(torch.float64).dtype == torch.float64
    assert torch.ones(2).to("meta").device.type == "meta"
    agent._hooks.unlabel_copies()
    assert "to" not in vars(torch.Tensor)


def test_what_the_script_replaced_meanwhile_stays_its(agent: Agent) -> None:
    ours = torch.amp.GradScaler.step

    def theirs(self: Any, *args: Any) -> Any:
        return ours(self, *args)

    torch.amp.GradScaler.step = theirs  # type: ignore[method-assign]
    try:
        agent.uninstall()
        assert torch.amp.GradScaler.step is theirs
    finally:
        torch.amp.GradScaler.step = ours.__wrapped__  # type: ignore[attr-defined, method-assign]


def test_signatures_are_as_before(agent: Agent) -> None:
    assert agent is active()
    # accelerate asks whether zero_grad takes set_to_none.
    assert "set_to_none" in inspect.signature(optim_module.Optimizer.zero_grad).parameters
    _model, optimizer, _loader = parts()
    assert "set_to_none" in inspect.signature(optimizer.zero_grad).parameters


def test_a_step_that_raises_does_not_end_the_cuts(agent: Agent) -> None:
    model, optimizer, loader = parts()
    batches = iter(loader)
    train(5, model, optimizer, batches)

    def bad_closure() -> float:
        raise ValueError("no loss today")

    with pytest.raises(ValueError, match="no loss"):
        optimizer.step(bad_closure)
    agent.buffer.release()
    before = agent.rule.cuts
    train(5, model, optimizer, batches)
    agent.buffer.release()
    assert agent.rule.cuts == before + 5
    assert agent.clock.depth == 0


def test_an_exception_that_leaves_a_closure_does_not_end_the_cuts(agent: Agent) -> None:
    """All that the script calls lies inside closures: the next step is not inside the one that was left."""
    model, optimizer, _loader = parts()
    x = torch.randn(8, 4)

    def closure(*, bad: bool = False) -> torch.Tensor:
        optimizer.zero_grad()
        if bad:
            raise ValueError("no loss today")
        loss = model(x).square().mean()
        loss.backward()
        return loss

    def steps(count: int) -> int:
        before = agent.rule.updates
        for _ in range(count):
            optimizer.step(closure)  # type: ignore[arg-type]
        agent.buffer.release()
        return agent.rule.updates - before

    assert steps(8) == 8
    with pytest.raises(ValueError, match="no loss"):
        optimizer.step(lambda: closure(bad=True))  # type: ignore[arg-type]
    assert steps(20) == 20
    assert agent.clock.depth == 0


class Around(torch.optim.Optimizer):
    """Hands its closure on to another optimizer, as Lookahead does."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


@pytest.mark.parametrize("around", [True, False])
def test_a_closure_that_an_optimizer_hands_on_is_called_once(agent: Agent, *, around: bool) -> None:
    model, _optimizer, _loader = parts()
    optimizer: Any = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=20, tolerance_change=0)
    optimizer = Around(optimizer) if around else optimizer
    x, calls = torch.randn(8, 4), 0

    def closure() -> torch.Tensor:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    agent.buffer.release()
    assert calls > 3 * 17, "more than half of what is too much for a step"
    assert agent.rule.description == "optimizer"


def test_a_swallowed_stop_leaves_the_state_whole(agent: Agent, monkeypatch: Any) -> None:
    model, optimizer, loader = parts()
    batches = iter(loader)
    train(5, model, optimizer, batches)
    # On a fast machine the steps are timed by now: while events are held, none of them stops the script.
    agent.buffer.release()

    def stop() -> None:
        raise StopRun

    with monkeypatch.context() as patch:
        patch.setattr(agent._stopper, "safe_point", stop)
        for call in (
            lambda: next(batches),
            lambda: model(torch.ones(4)),
            optimizer.zero_grad,
            lambda: torch.ones(1, requires_grad=True).sum().backward(),
        ):
            with pytest.raises(StopRun):
                call()
            assert not agent.rule.inside
            assert agent.clock.depth == 0


def test_nested_and_foreign_modules_count_once(agent: Agent) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        model(torch.ones(4))
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    totals = agent.clock.take(agent._meter.start_ns or 0)
    assert {"forward", "backward", "optimizer", "evaluation"} <= set(totals)
    assert agent._meter.evaluations == 1


def test_functions_of_torch_still_work(agent: Agent) -> None:
    assert agent is active()
    model = torch.nn.Linear(4, 4)
    x = torch.randn(4, requires_grad=True)
    traced = torch.jit.trace(model, torch.ones(4))
    scripted = torch.jit.script(model)
    graph = torch.fx.symbolic_trace(model)
    assert torch.allclose(traced(x), scripted(x))
    assert torch.allclose(graph(x), model(x))
    assert torch.func.grad(lambda v: v.square().sum())(torch.ones(3)).tolist() == [2, 2, 2]
    assert torch.autograd.functional.hessian(lambda v: v.pow(3).sum(), torch.ones(1)).item() == 6
    checkpointed = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
    checkpointed.sum().backward()
    # Gradients that were only asked for accumulate nothing, so they are no micro-steps.
    assert agent._tracker.row(agent._meter.start_ns or 0).micro_steps == 1


def make_capture(folder: Path, **wishes: Any) -> tuple[Capture, Store]:
    plan = Plan(script="train.py", quiet=True, out=str(folder), **wishes)
    store = Store(folder / "run")
    capture = Capture(
        plan,
        store,
        Progress(quiet=True),
        horizon=Horizon(),
        clock=PhaseClock(),
        notes=NoteBook(PhaseClock(), list),
        found=lambda what: None,
        at_trace_end=lambda: None,
    )
    return capture, store


def drive(capture: Capture, steps: int, *, ms: float = 5.0) -> None:
    for i in range(steps):
        capture.cut(Row(index=i, start_ns=i, wall_ms=ms), learned=True)


@pytest.mark.parametrize("broken", ["start", "step", "stop", "export"])
def test_a_failing_profiler_costs_only_the_trace(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(TraceSession, broken)

    def fail(*args: Any, **options: Any) -> None:
        if broken == "stop":
            # The profiler must not go on for the tests to come.
            original(*args, **options)
        raise RuntimeError("kineto is not in the mood")

    capture, store = make_capture(tmp_path)
    monkeypatch.setattr(TraceSession, broken, fail)
    drive(capture, 700)
    assert capture.done
    assert store.run.artefacts["trace"].status == "failed"
    assert "not in the mood" in (store.run.artefacts["trace"].reason or "")
    baseline, after = store.run.window("baseline"), store.run.window("after")
    assert baseline is not None
    assert after is not None
    assert baseline.status == after.status == "ok"
    assert not list(store.working.rglob("*.json.gz"))
    assert not torch_private.profiler_running()


def test_a_trace_that_has_no_place_costs_only_the_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Store) -> Path:
        raise OSError(28, "No space left on device")

    capture, store = make_capture(tmp_path)
    monkeypatch.setattr(Store, "write_trace_path", full)
    drive(capture, 700)
    assert capture.done
    assert "No space left" in (store.run.artefacts["trace"].reason or "")
    assert not torch_private.profiler_running()


@pytest.mark.parametrize("broken", ["begin", "end"])
def test_a_memory_window_that_fails_leaves_no_recording_on(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Path:
        raise OSError(28, "No space left on device")

    on: list[bool] = []
    monkeypatch.setattr(MemoryHistory, "start", lambda self: on.append(True))
    monkeypatch.setattr(MemoryHistory, "stop", lambda self, target: on.clear())
    monkeypatch.setattr(CallSites, "start", fail if broken == "begin" else lambda self: None)
    store = Store(tmp_path / "run")
    book = WindowBook(store, Progress(quiet=True))
    window = MemoryWindow(store, book, notes=NoteBook(PhaseClock(), list), found=lambda what: None)
    assert window.begin() == (broken == "end")
    if broken == "end":
        assert on
        monkeypatch.setattr(Store, "path", fail)
        window.end()
    assert not on
    assert "No space left" in (store.run.artefacts["memory"].reason or "")


def test_what_is_freed_has_no_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """To read one while an exception passes through C++ loses the exception: checkpoints failed by it."""
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **how: asked.append(how))
    MemoryHistory.start()
    assert [how["context"] for how in asked] == ["alloc"]


def test_lines_that_empty_the_cache_are_found_while_the_memory_window_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def empty() -> str:
        return "done"

    monkeypatch.setattr(torch._C, "_empty", empty, raising=False)
    emptiers = [(torch._C, "_empty"), (torch.cuda, "empty_cache")]
    monkeypatch.setattr(torch_private, "cache_emptiers", lambda: emptiers)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 1)
    found: list[str] = []
    calls, before = CallSites(found.append), torch.cuda.empty_cache
    calls.start()
    assert torch._C._empty() == "done"  # type: ignore[attr-defined]
    assert torch.cuda.empty_cache is before, "it calls the other one"
    calls.stop()
    assert torch._C._empty is empty  # type: ignore[attr-defined]
    assert found == ["empty_cache"]


@pytest.mark.parametrize("steps", [3, 8, 12, 14, 18, 22, 26, 210, 240])
def test_a_script_that_ends_in_any_window_leaves_no_profiler_running(
    steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(FlopStep, "start", lambda self: started.append("flops"))
    capture, store = make_capture(tmp_path)
    drive(capture, steps)
    reached = list(started)
    capture.finish(last=None, learned=True, reason="the script ended")
    assert capture.done
    assert started == reached, "nothing begins once the script has ended"
    assert not torch_private.profiler_running()
    assert store.run.windows


def test_flops_are_counted_by_a_profiler_that_is_known_as_ours(agent: Agent) -> None:
    model, optimizer, loader = parts()
    with contextlib.suppress(StopRun):
        while True:
            train(90, model, optimizer, iter(loader))
    assert agent.capture.done
    assert agent.capture._store.run.artefacts["flops"].status == "ok"
    flops = agent.capture._store.run.flops
    assert flops is not None
    assert flops.flops == 2 * 2 * 4 * 4 * 4  # forward and the weights' gradient; the input needs none


def test_a_large_step_is_probed_and_fewer_are_traced(tmp_path: Path) -> None:
    capture, store = make_capture(tmp_path, trace_bytes_cap=30_000)
    for i in range(60):
        for _ in range(40):
            torch.ones(2).add(1)
        capture.cut(Row(index=i, start_ns=i, wall_ms=5.0), learned=True)
    trace = store.run.window("trace")
    assert trace is not None
    assert trace.status == "ok"
    assert 1 <= len(trace.steps.wall_ms) < 8
    assert len(list(store.working.rglob("*.json.gz"))) == 1
    assert not list(store.working.rglob(".*"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"warmup": -1},
        {"baseline_steps": 0},
        {"max_seconds": 0.0},
        {"max_seconds": float("nan")},
    ],
    ids=str,
)
def test_the_api_refuses_what_makes_no_sense(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Harness(tmp_path / "run", **wrong)


def test_steps_marked_without_the_with_block_are_refused_and_behind_it_unmarked(tmp_path: Path) -> None:
    harness = Harness(tmp_path / "run", quiet=True)
    with pytest.raises(RuntimeError, match="context manager"), harness.step():
        pass
    with harness:
        pass
    with harness.step():
        pass
    assert active() is None


def test_the_api_captures_marked_steps_and_never_stops(tmp_path: Path) -> None:
    before = snapshot()
    model, optimizer, loader = parts()
    steps = 0
    with Harness(tmp_path / "run", quiet=True) as harness:
        for (x,) in harness.batches(loader):
            with harness.step(), harness.label("mine"):
                model(x).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            steps += 1
    assert steps == 100
    assert snapshot() == before
    assert harness.folder is not None
    from msgspec import json

    from torch_bottleneck.model.run import Run

    run = json.decode((harness.folder / "run.json").read_bytes(), type=Run)
    assert run.step_signal == "api"
    assert run.outcome.how == "finished"
    baseline = run.window("baseline")
    assert baseline is not None
    assert {"data", "mine", "forward"} <= set(baseline.steps.phases_ms)
    assert run.artefacts["trace"].status == "ok"
    assert [facts.cls for facts in run.optimizers] == ["SGD"]


def test_a_script_that_returns_before_all_is_captured_keeps_what_was_in_force(
    agent: Agent, tmp_path: Path
) -> None:
    model, optimizer, loader = parts()
    train(3, model, optimizer, iter(loader))
    agent._facts.write_settings()
    del optimizer
    gc.collect()
    assert not agent.capture.done
    agent.finish()
    store: Store = agent._facts._store
    assert [facts.cls for facts in store.run.optimizers] == ["SGD"]


class Branches(torch.nn.Module):
    """The second layer is left out where it is not wanted."""

    def __init__(self, *, both: bool) -> None:
        super().__init__()
        self.both, self.one, self.two = both, torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.two(self.one(x)) if self.both else self.one(x)


@pytest.mark.parametrize(("both", "unused"), [(True, 0), (False, 2)])
def test_ddp_tells_where_it_was_made_and_what_it_never_used(agent: Agent, both: bool, unused: int) -> None:
    distributed = torch.distributed
    if not distributed.is_available():
        pytest.skip("torch without distributed")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        wrapped = torch.nn.parallel.DistributedDataParallel(Branches(both=both), find_unused_parameters=True)
        line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
        plain = torch.nn.parallel.DistributedDataParallel(Branches(both=True))
        for model in (wrapped, plain):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                model(torch.randn(2, 4)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        assert torch_private.unused_parameters([wrapped]) == unused
        assert torch_private.unused_parameters([plain, torch.nn.Linear(1, 1)]) is None
        made = [item for item in agent._learned.entries() if item.phase == "model wrapped"]
        assert line in [item.site.line for item in made if item.site.file == __file__]
    finally:
        distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("way", ["function", "context", "ours"])
def test_the_line_that_first_looks_for_anomalies_is_noted_and_never_our_own_probe(
    agent: Agent, way: str
) -> None:
    def noted() -> list[int]:
        return [e.site.line for e in agent._learned.entries() if e.phase == "anomalies"]

    try:
        if way == "function":
            torch.autograd.set_detect_anomaly(True)
        elif way == "context":
            with torch.autograd.detect_anomaly(check_nan=False):
                pass
        else:
            torch._C.set_anomaly_enabled(True, True)
            plain_dispatch_ns()
        assert len(noted()) == (way != "ours")
        torch.autograd.set_detect_anomaly(True)
        assert len(noted()) == 1
        assert torch.is_anomaly_enabled()
    finally:
        torch.autograd.set_detect_anomaly(False)
    assert not torch.is_anomaly_enabled()


def test_the_api_inside_a_capture_only_labels(agent: Agent, tmp_path: Path) -> None:
    with Harness(tmp_path / "other", quiet=True) as harness, harness.step(), harness.label("mine"):
        pass
    assert not (tmp_path / "other").exists()
    assert "mine" in agent.clock.take(0)
    assert active() is agent


@pytest.mark.parametrize("watch", [True, False])
def test_the_api_refuses_an_interpreter_without_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, watch: bool
) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    with pytest.raises(UsageError, match="free-threaded"):
        Harness(tmp_path / "run", watch=watch)
    assert not list(tmp_path.iterdir())


def test_the_api_wants_at_least_one_step() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Harness("anywhere", steps=0)


@pytest.mark.parametrize(
    ("device", "later_ms", "counted"),
    [("cpu", 6.0, True), ("cuda", 6.0, False), ("cuda", 4.0, True), ("cuda", 5.02, True)],
    ids=["no device", "slower on a device", "faster on a device", "alike on a device"],
)
def test_steps_that_the_profiler_may_have_slowed_do_not_count(
    device: str, later_ms: float, counted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "run")
    book = WindowBook(store, Progress(quiet=True))
    for name, ms, first in (("baseline", 5.0, 10), ("after", later_ms, 80)):
        book.open(name, None)  # type: ignore[arg-type]
        for i in range(40):
            book.add(Row(index=first + i, start_ns=i, wall_ms=ms + 0.01 * (i % 3)), timed=False)
        monkeypatch.setattr(torch_private, "device_kind", lambda: device)
        book.close(name, planned=40)  # type: ignore[arg-type]
        monkeypatch.undo()
    baseline = store.run.window("baseline")
    assert baseline is not None
    assert [(s.window, s.steps, s.counted) for s in baseline.stretches] == [
        ("baseline", 40, True),
        ("after", 40, counted),
    ]
    assert len(baseline.steps.wall_ms) == (80 if counted else 40)
    assert store.run.overhead.after_trace_ratio == pytest.approx(later_ms / 5.0, rel=0.01)


@pytest.mark.parametrize(
    ("faults", "system_ms", "steps", "counted"),
    [(0, 0.1, 40, False), (0, 2.0, 40, True), (900, 0.1, 40, True), (0, 0.1, 10, True)],
    ids=["spared", "as much system time", "as many faults", "too few before"],
)
def test_steps_that_the_heap_left_by_a_capture_spares_page_faults_do_not_count(
    faults: int, system_ms: float, steps: int, counted: bool, tmp_path: Path
) -> None:
    store = Store(tmp_path / "run")
    book = WindowBook(store, Progress(quiet=True))
    for name, of, ms, count in (("baseline", 900, 2.0, steps), ("after", faults, system_ms, 40)):
        book.open(name, None)  # type: ignore[arg-type]
        for i in range(count):
            row = Row(index=i, start_ns=i, wall_ms=20.0, minor_faults=of + i % 3, system_cpu_ms=ms)
            book.add(row, timed=False)
        book.close(name, planned=count)  # type: ignore[arg-type]
    baseline = store.run.window("baseline")
    assert baseline is not None
    assert [stretch.counted for stretch in baseline.stretches] == [True, counted]


def test_the_baseline_goes_on_after_the_captures_in_steps_of_their_own(tmp_path: Path) -> None:
    capture, store = make_capture(tmp_path)
    drive(capture, 700)
    baseline, after = store.run.window("baseline"), store.run.window("after")
    assert baseline is not None
    assert after is not None
    assert len(baseline.steps.wall_ms) == 300
    # The end of the script is not known, so the trace comes after five steps.
    assert [(s.window, s.steps) for s in baseline.stretches] == [("baseline", 5), ("after", 295)]
    assert baseline.steps.index[5:] == after.steps.index
    flops = store.run.flops
    assert flops is None or flops.steps == 2, "steps that do not differ"
    assert flops is None or flops.step + flops.steps <= after.steps.index[0]


def test_where_the_number_of_steps_was_asked_for_no_others_count(tmp_path: Path) -> None:
    capture, store = make_capture(tmp_path, baseline_steps=12)
    drive(capture, 400)
    assert capture.done
    baseline, after = store.run.window("baseline"), store.run.window("after")
    assert baseline is not None
    assert after is not None
    assert (len(baseline.steps.wall_ms), len(after.steps.wall_ms), baseline.stretches) == (12, 5, [])


def test_stacks_are_sampled_outside_every_window_that_is_timed(tmp_path: Path) -> None:
    capture, store = make_capture(tmp_path)
    sampled, open_windows = [], set()
    for i in range(700):
        if capture.stacks.sampler is not None:
            sampled.append(i)
            open_windows.add(capture.stage)
        capture.cut(Row(index=i, start_ns=i, wall_ms=5.0), learned=True)
    assert capture.done
    assert open_windows == {"stacks"}
    assert capture.stacks.sampler is None
    timed = {index for window in store.run.windows for index in window.steps.index}
    assert not timed & set(sampled)
    assert min(sampled) < max(timed) < max(sampled), "some before the last stretch, more behind it"
    assert store.run.artefacts["stacks"].status == "ok"


def test_a_script_that_ends_while_stacks_are_sampled_keeps_them(tmp_path: Path) -> None:
    capture, store = make_capture(tmp_path)
    step = 0
    while capture.stacks.sampler is None and step < 700:
        capture.cut(Row(index=step, start_ns=step, wall_ms=5.0), learned=True)
        step += 1
    capture.cut(Row(index=step, start_ns=step, wall_ms=5.0), learned=True)
    capture.finish(last=None, learned=True, reason="the script ended")
    assert capture.stacks.sampler is None
    assert store.run.artefacts["stacks"].status == "ok"
    assert (store.working / "stacks.json").is_file()


def test_a_sampler_that_fails_costs_only_the_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise RuntimeError("no more threads")

    capture, store = make_capture(tmp_path)
    monkeypatch.setattr("torch_bottleneck.harness.lines.stack_sampler.StackSampler.begin", fail)
    drive(capture, 700)
    assert capture.done
    assert store.run.artefacts["stacks"].status == "failed"
    assert "no more threads" in (store.run.artefacts["stacks"].reason or "")
    after = store.run.window("after")
    assert after is not None
    assert after.status == "ok"
