"""Facts about compilations, settings and the machine; being told of an import; the save guard."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import forked
import pytest
import torch
from torch.distributed.fsdp import fully_shard

from torch_bottleneck.harness import torch_private
from torch_bottleneck.harness.facts import probes, settings
from torch_bottleneck.harness.facts.compiler import CompileWatch
from torch_bottleneck.harness.facts.devices import read_devices, read_host
from torch_bottleneck.harness.facts.learned import Learned
from torch_bottleneck.harness.facts.masks import MaskWatch
from torch_bottleneck.harness.facts.optimizers import OptimizerBook
from torch_bottleneck.harness.facts.settings import Seen, _replica_bytes, read_settings
from torch_bottleneck.harness.imports import ImportWatch
from torch_bottleneck.harness.process import children
from torch_bottleneck.harness.process.outcome import is_out_of_memory
from torch_bottleneck.harness.process.saves import SaveGuard
from torch_bottleneck.harness.process.session import begin_in_child
from torch_bottleneck.harness.windows.phases import PhaseClock
from torch_bottleneck.model.run import AttentionCall, CompileFacts, FlopCount, MaskFacts, OptimizerFacts, Run
from torch_bottleneck.runs.environment import usable_cores
from torch_bottleneck.runs.plan import Plan
from torch_bottleneck.runs.store import Store


class Breaking(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        print(end="")
        return y + 1


class BreakingInALoop(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Breaking() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class TimedLoop(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = x + 1
            time.perf_counter()
        return x


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[CompileWatch]:
    """A watch on a dynamo without a past."""
    torch._dynamo.reset()
    torch._dynamo.utils.clear_compilation_metrics()
    for record in (torch._dynamo.utils.counters, torch._dynamo.utils.graph_break_reasons):
        record.clear()
    original = torch.compile
    made = CompileWatch(Store(tmp_path / "run"))
    made.install()
    yield made
    made.uninstall()
    assert torch.compile is original
    handler = sys.modules["torch._dynamo.callback"].callback_handler
    assert not handler.start_callbacks
    assert not handler.end_callbacks


def compiled(watch: CompileWatch) -> CompileFacts:
    return watch._facts()


def test_a_step_that_compiles_is_told_from_one_that_does_not(watch: CompileWatch) -> None:
    model = torch.compile(torch.nn.Linear(2, 2), backend="eager")
    assert not watch.at_cut(0)
    model(torch.randn(1, 2))
    assert watch.at_cut(1)
    model(torch.randn(1, 2))
    assert not watch.at_cut(2)
    facts = compiled(watch)
    assert (facts.used, facts.unique_graphs, facts.mode) == (True, 1, "eager")
    assert facts.compiled_modules == ["Linear"]
    assert [event.step for event in facts.compiles] == [1]
    assert facts.compiles[0].seconds
    assert facts.compiles[0].start_ns


def test_a_break_names_the_user_s_line(watch: CompileWatch) -> None:
    torch.compile(Breaking(), backend="eager")(torch.randn(2))
    watch.at_cut(0)
    (found,) = compiled(watch).breaks
    assert found.site is not None
    line = Path(__file__).read_text().splitlines()[found.site.line - 1]
    assert (found.site.file, line.strip()) == (__file__, 'print(end="")')
    assert "print" in found.reason + found.hint


def test_a_break_knows_every_frame_that_it_cut(watch: CompileWatch) -> None:
    torch.compile(BreakingInALoop(), backend="eager")(torch.randn(2))
    watch.at_cut(0)
    (found,) = compiled(watch).breaks
    assert [[site.function for site in stack] for stack in found.stacks] == [["forward"]]
    assert [site.function for site in found.skipped] == ["forward"]
    assert found.skipped[0].line < found.stacks[0][0].line or found.skipped[0] != found.stacks[0][0]


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
@pytest.mark.filterwarnings("ignore:Graph break due to unsupported builtin")
def test_a_break_in_a_loop_is_told_though_dynamo_does_not_list_it(watch: CompileWatch) -> None:
    torch.compile(TimedLoop(), backend="eager")(torch.randn(2))
    watch.at_cut(0)
    assert not torch._dynamo.utils.graph_break_reasons
    (found,) = compiled(watch).breaks
    assert found.site is not None
    line = Path(__file__).read_text().splitlines()[found.site.line - 1]
    # torch 2.6 does not keep the line of a break in a loop: the function's own stands for it.
    first = "def forward(self, x: torch.Tensor) -> torch.Tensor:"
    assert line.strip() in ("time.perf_counter()", first)
    assert "perf_counter" in found.reason + found.hint
    assert [site.function for site in found.skipped] == ["forward"]
    assert found.hits == 1


def test_the_recompile_limit_is_no_break(watch: CompileWatch) -> None:
    function = torch.compile(torch.nn.Tanh(), backend="eager", dynamic=False)
    for step in range(12):
        function(torch.randn(step + 1))
        watch.at_cut(step)
    assert compiled(watch).limit_hit
    assert not compiled(watch).breaks


def test_recompiles_are_counted_by_guard_whatever_the_sizes(watch: CompileWatch) -> None:
    model = torch.compile(torch.nn.ReLU(), backend="eager", dynamic=False)
    for step, size in enumerate([2, 3, 4, 5]):
        model(torch.randn(size))
        watch.at_cut(step)
    (found,) = compiled(watch).recompiles
    assert (found.count, found.steps) == (3, [1, 2, 3])
    assert "size" in found.guard
    assert "expected 2" in found.guard


def test_the_recompile_limit_names_the_frame(watch: CompileWatch) -> None:
    def frame(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    function = torch.compile(frame, backend="eager", dynamic=False)
    for step in range(12):
        function(torch.randn(step + 1))
        watch.at_cut(step)
    facts = compiled(watch)
    assert facts.limit_hit
    assert facts.limit_hit[0].startswith("frame (")
    assert sum(found.count for found in facts.recompiles) == 7


def test_counters_survive_a_reset_by_the_script(watch: CompileWatch) -> None:
    for size in (2, 3):
        torch.compile(torch.nn.Linear(size, size), backend="eager")(torch.randn(1, size))
        watch.at_cut(size)
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
    assert compiled(watch).unique_graphs == 2


@pytest.mark.parametrize(
    ("module", "laid"),
    [
        (torch.nn.Conv3d(2, 4, 3), "contiguous"),
        (torch.nn.Conv3d(2, 4, 3).to(memory_format=torch.channels_last_3d), "channels_last"),
        (torch.nn.Conv1d(2, 4, 3), "none"),
        (torch.nn.Conv2d(2, 4, 1), "none"),
    ],
)
def test_how_weights_of_convolutions_lie_and_whether_there_are_any(
    module: torch.nn.Module, laid: str
) -> None:
    seen = Seen()
    seen.root_forward(module)
    assert read_settings(seen)["memory_format"] == laid


def test_nothing_compiled_is_all_zero_not_absent(watch: CompileWatch, tmp_path: Path) -> None:
    watch.write()
    assert not compiled(watch).used
    assert (tmp_path / ".run.partial/compile.json").is_file()


def test_what_python_calls_for_each_line_is_known_by_its_name_and_place() -> None:
    class Watch:
        def on_call(self, *_: object) -> None:
            return None

    before = sys.gettrace()
    try:
        sys.settrace(Watch().on_call)
        found = read_settings(Seen()).get("python.traced")
    finally:
        sys.settrace(before)
    assert isinstance(found, list)
    (named,) = found
    line = Watch.on_call.__code__.co_firstlineno
    assert str(named).endswith(f"Watch.on_call ({__file__}:{line})")
    assert before is not None or read_settings(Seen())["python.traced"] is None


def test_settings_say_what_was_seen_and_leave_out_what_was_not() -> None:
    seen = Seen()
    assert "autocast.dtype" not in read_settings(seen)
    model = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        seen.root_forward(model)
    seen.zero_grad(set_to_none=False)
    seen.grad_scaler(torch.amp.GradScaler("cpu", enabled=True))
    found = read_settings(seen)
    assert (found["autocast.dtype"], found["memory_format"]) == ("bfloat16", "channels_last")
    assert (found["zero_grad.set_to_none"], found["grad_scaler"]) == (False, True)
    assert found["parameters.dtype"] == {"float32": 112}
    assert found["distributed.module"] == "none"
    seen.release()
    assert seen.roots == []


@pytest.mark.parametrize("changes", [False, True])
def test_a_model_without_gradients_is_frozen_as_long_as_nothing_writes_to_it(changes: bool) -> None:
    seen = Seen()
    assert "ungraded.frozen" not in read_settings(seen)
    teacher, student = torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)
    seen.without_gradients(torch.nn.ReLU())
    assert seen.frozen([]) is None
    seen.without_gradients(teacher)
    if changes:
        teacher.load_state_dict(student.state_dict())
    seen.without_gradients(teacher)
    assert read_settings(seen)["ungraded.frozen"] is not changes
    seen.release()
    assert seen.frozen([]) is None


@pytest.mark.parametrize("needs_gradients", [True, False])
def test_what_an_optimizer_updates_is_not_frozen_though_no_version_tells(needs_gradients: bool) -> None:
    seen, model = Seen(), torch.nn.Linear(3, 4).requires_grad_(needs_gradients)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    seen.without_gradients(model)
    model.weight.grad = torch.ones(4, 3) if needs_gradients else None
    optimizer.step()
    assert read_settings(seen, [optimizer])["ungraded.frozen"] is not needs_gradients


@pytest.mark.parametrize("trained", [torch.nn.Linear(3, 4), torch.nn.Linear(3, 5), torch.nn.Linear(4, 3)])
def test_a_copy_of_the_model_that_is_trained_is_not_called_frozen_before_it_changes(
    trained: torch.nn.Module,
) -> None:
    seen, target = Seen(), torch.nn.Linear(3, 4)
    seen.root_forward(trained)
    seen.without_gradients(target)
    found = read_settings(seen)
    if trained.out_features == 4:
        assert "ungraded.frozen" not in found
        assert found["ungraded.twin"] is True
        target.load_state_dict(trained.state_dict())
        assert read_settings(seen)["ungraded.frozen"] is False
    else:
        assert found["ungraded.frozen"] is True
        assert "ungraded.twin" not in found


def test_a_model_that_acts_and_is_trained_is_no_copy_of_itself() -> None:
    seen, model = Seen(), torch.nn.Linear(3, 4)
    seen.root_forward(model)
    seen.without_gradients(model)
    assert seen.twins is False


@pytest.mark.parametrize("changes", [False, True])
def test_a_frozen_part_of_the_model_that_is_trained_is_told_and_whether_it_changes(changes: bool) -> None:
    seen = Seen()
    encoder, head = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()), torch.nn.Linear(4, 2)
    model = torch.nn.Sequential(encoder, head)
    seen.root_forward(model)
    assert "ungraded.inside" not in read_settings(seen)
    seen.release()
    encoder.requires_grad_(False)
    seen.root_forward(model)
    if changes:
        with torch.no_grad():
            encoder[0].weight.mul_(0.9)
    found = read_settings(seen)
    assert (found["ungraded.inside"], found["ungraded.frozen"]) == (True, not changes)


@pytest.mark.parametrize(("modes", "acts"), [((True,), True), ((True, False), False), ((False,), False)])
def test_a_model_that_is_never_in_eval_mode_acts_without_gradients(
    modes: tuple[bool, ...], acts: bool
) -> None:
    learned = Learned(PhaseClock())
    model = torch.nn.Linear(3, 4)
    for mode in modes:
        learned.without_gradients(model.train(mode))
    assert read_settings(learned._seen)["ungraded.training"] is acts
    assert "ungraded.training" not in read_settings(Seen())


def test_a_model_whose_parameters_are_groups_of_them_disturbs_nothing() -> None:
    class Groups(torch.nn.Linear):
        def parameters(self, recurse: bool = True) -> Any:
            return [{"params": list(super().parameters(recurse)), "lr": 0.1}]

    learned = Learned(PhaseClock())
    learned.without_gradients(Groups(3, 4))
    assert read_settings(learned._seen)["ungraded.first"] is False


@pytest.mark.parametrize(("before", "fed"), [(True, False), (False, False), (True, True)])
def test_a_model_that_runs_before_it_is_trained_collects_what_it_is_trained_on(
    *, before: bool, fed: bool
) -> None:
    """Not where there is a loader already: it is tried out, as Keras does to know its sizes."""
    learned = Learned(PhaseClock())
    model, world = torch.nn.Linear(3, 4), torch.nn.Tanh()
    learned.without_gradients(world)
    if before:
        learned.without_gradients(model, fed=fed)
    learned.forward(model)
    learned.backward(is_update=False)
    learned.without_gradients(model)
    assert read_settings(learned._seen)["ungraded.first"] is (before and not fed)


def test_a_library_of_environments_tells_that_a_model_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    learned = Learned(PhaseClock())
    learned.without_gradients(torch.nn.Linear(3, 4).eval())
    for name in ("gymnasium", "gym", "dm_env", "pettingzoo"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert "ungraded.environment" not in read_settings(learned._seen)
    monkeypatch.setitem(sys.modules, "gymnasium", ModuleType("gymnasium"))
    assert read_settings(learned._seen)["ungraded.environment"] is True
    assert "ungraded.environment" not in read_settings(Seen()), "where nothing runs without gradients"


def test_large_tables_with_dense_gradients_are_told_unless_they_are_the_output_layer_too() -> None:
    def share(model: torch.nn.Module) -> object:
        seen = Seen()
        seen.root_forward(model)
        return read_settings(seen)["embedding.dense_share"]

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(30_000, 2)
            self.out = torch.nn.Linear(2, 30_000, bias=False)
            self.out.weight = self.table.weight

    other = torch.nn.Linear(300, 100, bias=False)
    assert share(torch.nn.Sequential(torch.nn.Embedding(45_000, 2), other)) == 0.75
    assert share(torch.nn.Sequential(torch.nn.Embedding(45_000, 2, sparse=True), other)) == 0
    assert share(torch.nn.Sequential(torch.nn.Embedding(45, 2), other)) == 0
    assert share(Tied()) == 0


def test_an_operator_is_timed_without_anomaly_detection_where_that_is_on() -> None:
    assert probes.plain_dispatch_ns() is None
    try:
        torch.set_anomaly_enabled(True, False)
        noted, plain = probes.dispatch_ns(), probes.plain_dispatch_ns()
        assert plain is not None
        assert 0 < plain < noted
        assert torch.is_anomaly_enabled()
        assert not torch.is_anomaly_check_nan_enabled()
    finally:
        torch.set_anomaly_enabled(False)


def test_a_shared_operator_is_timed_on_all_threads_and_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "SHARED_SECONDS", 0.01)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert probes.parallel_us() is None
        torch.set_num_threads(2)
        asked: list[int] = []
        monkeypatch.setattr(probes, "_shared_us", lambda _x: asked.append(torch.get_num_threads()) or 7.0)
        assert probes.parallel_us() == (7.0, 7.0)
        assert asked == [2, 1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_an_operator_that_waits_takes_long_on_average(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean, not the median: three calls of four are quick, and the fourth waits 8 ms of the clock."""
    clock = SimpleNamespace(now=0)
    monkeypatch.setattr(probes, "perf_counter_ns", lambda: clock.now)

    class Waiting:
        calls = 0

        def add_(self, _other: int) -> None:
            self.calls += 1
            clock.now += 8_000_000 if self.calls % 4 == 0 else 1_000

    took = probes._shared_us(Waiting())  # type: ignore[arg-type]
    assert took == pytest.approx(2_000, rel=0.2)


def test_flags_are_read_back_as_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        found = read_settings()
    finally:
        torch.set_float32_matmul_precision(before)
    assert found["matmul.precision"] == "medium"
    assert found["allocator.conf"] == "max_split_size_mb:64"
    assert found["environment"]["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64"  # type: ignore[index,call-overload]
    assert found["threads.intra_op"] == torch.get_num_threads()


@pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="the switches of torch 2.9 and newer"
)
@pytest.mark.parametrize(("word", "expected"), [("tf32", "high"), ("ieee", "highest")])
def test_the_new_switches_of_precision_are_read_though_the_old_getters_raise(
    tmp_path: Path, word: str, expected: str
) -> None:
    (tmp_path / "read.py").write_text(
        "import torch; from torch_bottleneck.harness.facts.settings import read_settings; "
        f"torch.backends.cuda.matmul.fp32_precision = {word!r}; print(read_settings()['matmul.precision'])"
    )
    # Mixing old and new switches lasts as long as the process.
    told = forked.run([sys.executable, tmp_path / "read.py"], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == expected


def test_gradients_that_no_optimizer_uses_are_a_share_of_the_modules_in_training() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 2, bias=False))
    other = torch.nn.Linear(4, 2, bias=False)
    seen = Seen()
    for module in (model, other):
        seen.root_forward(module)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    (model(torch.randn(3, 4)) - other(torch.randn(3, 4))).sum().backward()
    assert read_settings(seen, [optimizer])["gradients.unused_share"] == pytest.approx(16 / 24, abs=1e-3)
    assert read_settings(seen)["gradients.unused_share"] == 0.0
    model[0].weight.grad = None
    assert read_settings(seen, [optimizer])["gradients.unused_share"] == 0.0


def test_what_other_ranks_keep_of_a_sharded_model(tmp_path: Path) -> None:
    """A group of one keeps all; of two, each keeps a half of parameters, gradients and Adam's two states."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
        fully_shard(model[0])
        fully_shard(model)
        seen = Seen()
        seen.root_forward(model)
        found = read_settings(seen, [torch.optim.Adam(model.parameters())])
    finally:
        torch.distributed.destroy_process_group()
    assert (found["distributed.module"], found["distributed.units"]) == ("fsdp", 2)
    assert found["distributed.replica_bytes"] == 0

    class Half(torch.nn.Parameter):
        def to_local(self) -> torch.Tensor:
            return self.detach()[:2]

    weight = Half(torch.zeros(4, 4))
    optimizer = torch.optim.Adam([weight])
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    assert _replica_bytes([optimizer]) == 4 * 8 * 4


def test_every_setting_is_documented() -> None:
    seen = Seen()
    seen.root_forward(torch.nn.Linear(2, 2))
    page = settings.__doc__ or ""
    assert [name for name in read_settings(seen) if name not in page] == []


def test_the_machine_is_described() -> None:
    host = read_host()
    assert host.torch == torch.__version__
    assert host.packages["numpy"]
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
    if not torch.cuda.is_available():
        assert [device.kind for device in read_devices()] == ["cpu"]


def test_describing_the_machine_does_not_start_a_gpu_that_the_program_leaves_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start() -> None:
        raise AssertionError("CUDA is started")

    # As on a machine with one: torch's own questions, such as that for cuDNN's version, start it.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "_lazy_init", start)
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "version", start)
    assert read_host().cudnn is None
    assert [device.kind for device in read_devices()] == ["cpu"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_running_out_of_memory_is_recognised(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) == expected


def test_an_import_is_announced_when_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_module_xyz.py").write_text("VALUE = 1\nDONE = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[bool] = []
    watch = ImportWatch("some_module_xyz", lambda: seen.append(sys.modules["some_module_xyz"].DONE))
    finders = list(sys.meta_path)
    watch.install()
    import some_module_xyz  # type: ignore[import-not-found]

    assert seen == [True]
    assert watch.took_ms is not None and watch.took_ms > 0
    assert sys.meta_path == finders
    assert "exec_module" not in vars(some_module_xyz.__loader__)
    late = ImportWatch("some_module_xyz", lambda: seen.append(False))
    late.install()
    assert seen == [True, False], "already there: at once"
    assert late.took_ms is None


def test_an_import_that_fails_stays_the_script_s_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_xyz.py").write_text("raise ImportError('its own')")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[int] = []
    watch = ImportWatch("broken_xyz", lambda: seen.append(1))
    watch.install()
    with pytest.raises(ImportError, match="its own"):
        import broken_xyz  # type: ignore[import-not-found]  # noqa: F401
    watch.uninstall()
    assert (seen, watch in sys.meta_path) == ([], False)


def target() -> None:
    """A process target of the user's."""


def test_only_targets_that_may_train_are_wrapped() -> None:
    import concurrent.futures.process
    import multiprocessing.process

    before = multiprocessing.process.BaseProcess.__init__
    children.install(Plan(), begin=begin_in_child)
    try:
        own = multiprocessing.Process(target=target)
        pool = multiprocessing.Process(target=concurrent.futures.process._process_worker)
        none = multiprocessing.Process()
    finally:
        children.uninstall()
    wrapped: Callable[[object], bool] = lambda p: isinstance(p._target, children.ChildTarget)  # type: ignore[attr-defined]  # noqa: E731
    assert [wrapped(process) for process in (own, pool, none)] == [True, False, False]
    assert multiprocessing.process.BaseProcess.__init__ is before


def test_the_save_guard_goes_without_a_trace(tmp_path: Path) -> None:
    """In a process of its own: it reaches into every module there is."""
    script = """
        import builtins, io, os, pathlib, shutil, sys
        import torch, numpy as np
        from torch import save
        from torch_bottleneck.harness.process.saves import SaveGuard
        from torch_bottleneck.runs.store import Store
        def state():
            return (builtins.open, io.open, os.replace, os.remove, shutil.rmtree, torch.save, np.save,
                    sys.modules["__main__"].save)
        before = state()
        guard = SaveGuard(Store("run"))
        guard.install()
        assert all(a is not b for a, b in zip(state(), before)), state()
        save([1], "x.pt")
        os.mkdir("best")
        os.link("x.pt", "last.pt")
        os.link("x.pt", "last.pt")
        shutil.copy2("x.pt", "best")
        assert not os.path.exists("last.pt") and not os.listdir("best")
        assert [os.path.relpath(path) for path in guard.diverted] == ["x.pt", "last.pt", "best/x.pt"]
        del guard.diverted[1:]
        guard.uninstall()
        assert state() == before
        assert not os.path.exists("x.pt") and len(guard.diverted) == 1
        save([1], "x.pt")
        assert os.path.exists("x.pt")
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    done = forked.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert SaveGuard


def test_a_product_is_timed_in_the_16_bits_that_a_script_computes_in(tmp_path: Path) -> None:
    store = Store(
        tmp_path / "run", run=Run(optimizers=[OptimizerFacts(cls="SGD", parameter_dtype="float32")])
    )
    probes.measure(store, over=False)
    assert store.run.matmul_tflops == {}
    optimizer = OptimizerFacts(cls="SGD", parameter_dtype="float16")
    store.update(settings={"autocast.dtype": "bfloat16"}, optimizers=[optimizer])
    before = torch.get_rng_state()
    probes.measure(store, over=False)
    assert set(store.run.matmul_tflops) == {"fp32", "bf16", "fp16"}
    assert all(rate > 0 for rate in store.run.matmul_tflops.values())
    assert torch.equal(torch.get_rng_state(), before)


def test_of_products_on_a_cpu_those_that_are_too_large_are_timed_with_fewer_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[int, ...]] = []
    ones = torch.ones

    def noted(*shape: int, **options: Any) -> torch.Tensor:
        made.append(shape)
        return ones(*shape, **options)

    monkeypatch.setattr(torch, "ones", noted)
    rates = probes.cpu_matmul_tflops(["bfloat16"], [(100_000, 64, 64, 3), (1, 8, 2, 9)])
    assert made == 2 * [(4096, 64), (64, 64), (1, 8), (8, 2)]
    assert set(rates) == {"fp32", "bf16"}


@pytest.fixture
def as_if_on_a_device(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Make what is meant for a GPU here; return the shapes of the products that are timed, 1 ms each."""
    made = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *size, **more: made(*size, **(more | {"device": "cpu"})))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 4 * (12 * 20 + 20 * 8 + 12 * 8))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)
    multiply, timed = torch.matmul, []

    def noted(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        timed.append((*left.shape, right.shape[-1], left.is_contiguous(), right.is_contiguous()))
        return multiply(left, right)

    monkeypatch.setattr(torch, "matmul", noted)
    monkeypatch.setattr(probes, "_device_ms", lambda call: (call(), 1.0)[1])
    return timed


def test_the_step_s_own_products_are_timed_as_a_linear_layer_s_three(
    as_if_on_a_device: list[tuple[int, ...]],
) -> None:
    precision = torch.get_float32_matmul_precision()
    counted = FlopCount(
        step=1, flops=1.0, by_dtype={"float32": 1.0}, products=[(12, 20, 8, 3), (4, 2, 5, 6)], batches=[1, 3]
    )
    rates = probes.product_tflops(counted)
    # Three calls of the first and two of the second, of 1 ms each.
    expected = (2 * 12 * 20 * 8 * 3 + 2 * 4 * 2 * 5 * 6) / 5e9
    assert rates == pytest.approx(dict.fromkeys(("fp32", "tf32", "bf16", "fp16"), expected))
    assert as_if_on_a_device[:3] == [
        (12, 20, 8, True, True),
        (12, 20, 8, True, False),
        (12, 20, 8, False, True),
    ]
    assert as_if_on_a_device[3] == (3, 4, 2, 5, True, True)
    assert torch.get_float32_matmul_precision() == precision


@pytest.mark.parametrize(("products", "batches"), [([(12, 20, 9, 1)], [1]), ([(2, 2, 2, 1)], [0]), ([], [])])
def test_products_are_not_timed_above_the_step_s_own_peak_of_memory(
    products: list[tuple[int, int, int, int]], batches: list[int], as_if_on_a_device: list[tuple[int, ...]]
) -> None:
    counted = FlopCount(step=1, flops=1.0, products=products, batches=batches)
    assert probes.product_tflops(counted) == {}
    assert not as_if_on_a_device


def test_attention_in_fp32_is_timed_in_16_bits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def attend(*types: torch.dtype) -> None:
        for dtype in types:
            x = torch.ones(2, 4, 8, 16, dtype=dtype)
            torch.nn.functional.scaled_dot_product_attention(x, key=x, value=x, is_causal=True)

    monkeypatch.setattr("torch_bottleneck.harness.torch_private.device_kind", lambda: "cuda")
    watch = MaskWatch()
    watch.begin()
    attend(torch.float32, torch.float32, torch.bfloat16)
    found = watch.end()
    monkeypatch.undo()
    assert found is not None
    (call,) = found.single
    assert (call.query, call.dtype, call.causal, call.mask, call.count) == (
        (2, 4, 8, 16),
        "float32",
        True,
        (),
        2,
    )
    timed = probes.halved_ms([call])
    assert timed is not None
    assert min(timed) > 0
    assert probes.halved_ms([]) is None


@pytest.mark.parametrize(
    ("mask", "mask_dtype"), [((64, 1, 1, 32), "bool"), ((32, 32), "float32"), ((1, 1, 32, 32), "float32")]
)
def test_attention_is_timed_with_masks_that_mask_nothing_and_without(
    mask: tuple[int, ...], mask_dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    like = (64, 8, 32, 64)
    call = AttentionCall(
        query=like,
        key=like,
        value=like,
        dtype="float32",
        mask=mask,
        mask_dtype=mask_dtype,
        dropout=0.1,
        count=3,
    )
    seen: set[tuple[int, bool]] = set()
    original = torch.nn.functional.scaled_dot_product_attention

    def noted(query: torch.Tensor, *args: Any, **more: Any) -> torch.Tensor:
        seen.add((len(query), more["attn_mask"] is None))
        out = original(query, *args, **more)
        if more["attn_mask"] is not None:
            plain = original(query, *args, **(more | {"attn_mask": None, "dropout_p": 0.0}))
            assert torch.equal(original(query, *args, **(more | {"dropout_p": 0.0})), plain)
            clock.append(10**9)
        return out

    clock: list[int] = []
    monkeypatch.setattr(probes, "perf_counter_ns", lambda: time.perf_counter_ns() + sum(clock))
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noted)
    store = Store(tmp_path / "run", run=Run(masks=MaskFacts(calls=3, masked=3, idle=3, shapes=[call])))
    before = torch.get_rng_state()
    probes.measure(store, over=False)
    assert torch.equal(torch.get_rng_state(), before)
    assert seen == {(32, True), (32, False)}, "half of the samples are work enough"
    assert store.run.masks is not None and store.run.masks.timed_ms is not None
    masked, plain = store.run.masks.timed_ms
    assert masked - plain == pytest.approx(3 * 2 * 1000.0, rel=0.2), "three calls of twice as many samples"


@pytest.mark.parametrize("of", ["parameters", "gradients", "state"])
def test_the_share_of_denormal_numbers_is_that_of_all_that_an_optimizer_has(of: str) -> None:
    weight = torch.nn.Parameter(torch.ones(10, 10))
    optimizer = torch.optim.SGD([weight], lr=0.0, momentum=0.9)
    weight.grad = torch.ones(10, 10)
    optimizer.step()
    book = OptimizerBook()
    book.met(optimizer)
    assert book.facts()[0].denormal_share == 0.0
    tensor = {
        "parameters": weight,
        "gradients": weight.grad,
        "state": optimizer.state[weight]["momentum_buffer"],
    }[of]
    tensor.data[:3] = 1e-39
    tensor.data[3] = 0.0
    assert book.facts()[0].denormal_share == pytest.approx(30 / 300)


def test_what_a_denormal_number_takes_is_compared_with_others_without_the_dispatch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probes, "_least_ns", lambda *_: [90_000, 3_000])
    assert probes.denormal_factor(2_000.0) == 88.0
    assert probes.denormal_factor(2_990.0) == pytest.approx(87_010 / 600), (
        "what is left of a product is some time"
    )
    monkeypatch.setattr(probes, "_least_ns", lambda *_: [3_000, 3_000])
    assert probes.denormal_factor(2_000.0) == 1.0


def test_threads_of_operators_take_denormal_numbers_for_zeros_from_the_switch_on() -> None:
    """In a process of its own: whose threads are there already is what is asked."""
    if not torch_private._pauses_of_openmp():
        pytest.skip("this OpenMP keeps its threads")
    script = """
import torch
from torch_bottleneck.harness import torch_private

torch.set_num_threads(2)
x = torch.full((1 << 20,), 1e-39)


def zeros() -> int:
    return int((x * 1.5).view(torch.int32).eq(0).sum())


assert zeros() == 0
torch.set_flush_denormal(True)
alone = zeros()
assert 0 < alone < len(x), alone  # the thread of the caller only
torch_private.flush_denormals(True)
assert torch_private.denormals_flushed()
assert zeros() == len(x)
torch_private.flush_denormals(False)
assert not torch_private.denormals_flushed()
assert zeros() == 0
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_modes_that_calls_go_through_are_told_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    # As long as it takes is how many modes a call goes through, on any machine.
    monkeypatch.setattr(probes, "dispatch_ns", lambda: 1_000.0 + 500.0 * _modes_of_a_call())
    assert torch_private.function_modes() == []
    assert probes.mode_ns() == 0.0
    torch.set_default_device("cpu")
    try:
        assert torch_private.default_device() == torch.device("cpu")
        assert read_settings(Seen())["function_modes"] == ["torch.utils._device.DeviceContext"]
        assert probes.mode_ns() == 500.0
    finally:
        torch.set_default_device(None)
    assert torch_private.default_device() is None
    assert read_settings(Seen())["function_modes"] == []


def _modes_of_a_call() -> int:
    """Return how many default devices a call of one of torch's functions asks for."""
    context, asked = torch.utils._device.DeviceContext, []
    original = context.__torch_function__

    def asks(self: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(self)
        return original(self, *args, **kwargs)

    context.__torch_function__ = asks
    try:
        torch.add(1.0 * torch.ones(2), 1)
    finally:
        context.__torch_function__ = original
    return int(bool(asked))
