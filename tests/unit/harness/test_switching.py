"""Each live patch, switched on and off while a script trains: it acts while on, and leaves no trace."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.util import Finalize
from typing import Any

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits
from torch import nn
from torch.optim import optimizer as optim_module
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset

from torch_bottleneck.catalog.registry import by_id
from torch_bottleneck.harness import loader_private, torch_private
from torch_bottleneck.harness.events.buffer import Entry, EventBuffer
from torch_bottleneck.harness.events.hooks import Hooks
from torch_bottleneck.harness.events.table import Event
from torch_bottleneck.harness.trials.patches import PATCHES, make_patches
from torch_bottleneck.harness.trials.patches.base import NotSwitchable, Patch, Program
from torch_bottleneck.model.fix import Arithmetic
from torch_bottleneck.model.verify import Wish
from torch_bottleneck.runs.environment import affinity, first_affinity

STEPS = 3
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

LIVE = sorted(fix for fix, patch in PATCHES.items() if patch.live)
LOADER_FIXES = {"FX101", "FX102", "FX105", "FX106", "FX112", "FX114", "FX115"}
NEED_A_GPU = {"FX103", "FX104", "FX501", "FX523"}
IN_THE_STEP = sorted(
    set(LIVE)
    - LOADER_FIXES
    - {"FX113"}
    - (NEED_A_GPU if DEVICE == "cpu" else {"FX103", "FX205", "FX501"})
    - ({"FX522"} if len(affinity()) < 2 else set())
)
OPTIONS: dict[str, dict[str, Any]] = {
    "FX504": {"function": f"{__file__}:look_at"},
    "FX410": {"backend": "eager"},
    "FX412": {"backend": "eager"} if DEVICE == "cpu" else {},
    "FX414": {"backend": "eager"},
}
pytestmark = [
    pytest.mark.usefixtures("each_way_takes_half"),
    pytest.mark.filterwarnings("ignore:eager backend ignoring extra kwargs"),
    # Dynamo reads it on tensors that are no leaves, when it sees gradients inside a graph.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]


class Net(nn.Module):
    """Convolutions, repeated blocks, dropout, a buffer, and a weight that takes no part."""

    def __init__(self, *, recompute: bool = False, attends: bool = False, again: bool = False) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2) if attends else None
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(2))
        self.drop = nn.Dropout(0.1)
        self.idle = nn.Parameter(torch.ones(2))
        self.register_buffer("kernel", torch.rand(1, 4, 1, 4))
        self.recompute, self.again = recompute, again
        self.seen: set[Any] = set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv(x)) * self.kernel
        x = x.flatten(2).mean(1)
        for block in self.blocks:
            if self.again:
                x = block(x) * block(x)
                continue
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        if self.attention is not None:
            x = self.attention(x, x, x)[0]
        out: torch.Tensor = self.drop(x)
        return out


SPARSE, BOUNDED = torch.eye(4).to_sparse(), nn.Embedding(9, 16, max_norm=0.5)
WHOLE = torch.arange(9).view(3, 3)


def look_at(seen: list[Any], out: torch.Tensor) -> None:
    """Work that no training needs."""
    seen.append(out.detach())


def looked_at(out: torch.Tensor) -> torch.Tensor:
    look_at(LOOKED_AT, out)
    return out


LOOKED_AT: list[Any] = []


def attend_with_mask(out: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(len(out), len(out), dtype=torch.bool, device=DEVICE)
    q = out[None, None]
    return nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def attend(out: torch.Tensor) -> torch.Tensor:
    rows = out[None]
    return nn.functional.scaled_dot_product_attention(rows, rows, rows)[0]


def offloaded(out: torch.Tensor) -> torch.Tensor:
    with OFFLOADS:
        return out.exp() * out


SQUARE = 2 * torch.eye(3, device=DEVICE)
PAIRED, FORM = torch.randn(64, 32, device=DEVICE), torch.randn(24, 32, 32, device=DEVICE)
EMPTY, FULL = torch.eye(600, device=DEVICE), torch.randn(600, 64, device=DEVICE)
LONG, KERNEL = torch.randn(1, 1, 99, device=DEVICE), torch.randn(1, 1, 17, device=DEVICE)
OFFLOADS = torch.autograd.graph.save_on_cpu(pin_memory=DEVICE == "cuda")


def with_constants(out: torch.Tensor) -> torch.Tensor:
    """Make the same numbers on a device in each step; on a machine without one, on none."""
    device = DEVICE if DEVICE != "cpu" else "meta"
    weights = torch.tensor([0.5, 2.0], device=device), torch.ones(3).to(device)
    return out if device == "meta" else out * weights[0][1] + weights[1][0]


ON_TOP: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "FX323": attend_with_mask,
    "FX504": looked_at,
    "FX327": lambda out: out[torch.tensor([[0, -1], [0, 1]], device=DEVICE)],
    "FX331": lambda out: out - (out + torch.arange(out.shape[1]).to(out)).quantile(0.3, dim=1, keepdim=True),
    "FX332": lambda out: out + BOUNDED(torch.arange(4)).detach(),
    "FX333": lambda out: out * torch.tensor([[1, 2], [0, 5], [1, 2]]).unique(dim=0).sum(),
    "FX334": lambda out: torch.sparse.mm(SPARSE, out),
    "FX335": lambda out: out * (1 + out.argmax(0)),
    "FX336": lambda out: out + (WHOLE @ WHOLE).sum(),
    "FX337": lambda out: nn.functional.cosine_similarity(out[:, None], out[None], dim=-1),
    "FX340": lambda out: out + torch.einsum("bd,bd->b", out, out)[:, None],
    "FX341": offloaded,
    "FX345": attend,
    "FX355": lambda out: out + out.cumsum(0),
    "FX356": lambda out: out + torch.linalg.pinv(SQUARE).sum(),
    "FX359": lambda out: out + nn.functional.conv1d(LONG, KERNEL, padding=8)[0, 0, 0],
    "FX360": lambda out: out.scatter_add(0, torch.zeros_like(out, dtype=torch.int64), out),
    "FX361": lambda out: out + WHOLE.remainder(3).sum(),
    "FX362": lambda out: out + torch.linalg.inv(SQUARE.expand(4, 3, 3)).sum(),
    "FX367": lambda out: out + nn.functional.unfold(out[None, None], (1, 2)).sum(),
    "FX372": lambda out: out + nn.functional.bilinear(PAIRED, PAIRED, FORM).sum(),
    "FX373": lambda out: out + (EMPTY @ FULL).sum(),
    "FX363": lambda out: out + torch.cdist(out, out + 9).sum(),
    "FX521": with_constants,
    "FX529": with_constants,
    "FX339": lambda out: out + (out[:, 0] * out[:, 1])[:, None],
}
"""What a fix is about, behind the model."""

OF_RANKS = ("FX602", "FX609")


@pytest.fixture(autouse=True)
def _cores_given_back() -> Iterator[None]:
    """Take the cores of now for those of the start, and leave them as they are."""
    first_affinity.cache_clear()
    cores = first_affinity()
    yield
    os.sched_setaffinity(0, cores)


class Script:
    """A small training, and what the harness knows of it."""

    def __init__(self, fix: str) -> None:
        torch.manual_seed(3)
        self.fix = fix
        self.model: nn.Module = Net(
            recompute=fix == "FX214", attends=fix == "FX306", again=fix == "FX326"
        ).to(DEVICE)
        if fix in OF_RANKS:
            self.model = nn.parallel.DistributedDataParallel(self.model, find_unused_parameters=True)
        implementation = {"FX312": {"foreach": False}}.get(fix, {})
        trained = [p for name, p in self.model.named_parameters() if fix != "FX325" or "conv" not in name]
        self.optimizer = torch.optim.AdamW(trained, lr=0.01, **implementation)
        images = torch.rand(24, 3, 4, 4, generator=torch.Generator().manual_seed(1))
        self.loader = DataLoader(TensorDataset(images), 4)
        self.batches = [batch[0] for batch in self.loader]
        if fix == "FX523":
            self.batches = list(images.split(4))
        if fix == "FX104" and DEVICE == "cuda":
            self.batches = [batch.pin_memory() for batch in self.batches]
        self.program = Program(roots=(self.model,), optimizers=(self.optimizer,), loader=self.loader)
        self.step_number = 0
        if fix == "FX522":
            os.sched_setaffinity(0, {min(first_affinity())})
        # Zeros where others have nothing, so that the weight without a part is decayed.
        if fix == "FX313":
            for parameter in self.model.parameters():
                parameter.grad = torch.zeros_like(parameter)

    def steps(self, count: int) -> list[float]:
        return [self.step() for _ in range(count)]

    def step(self) -> float:
        self.optimizer.zero_grad(set_to_none=self.fix != "FX313")
        for _ in range(2 if self.fix == "FX602" else 1):
            x = self.batches[self.step_number % len(self.batches)].to(DEVICE)
            self.step_number += 1
            with (
                torch.autograd.set_detect_anomaly(self.fix == "FX512"),
                torch.autocast("cpu", torch.bfloat16, enabled=self.fix == "FX322"),
                torch.autograd.profiler.profile(enabled=self.fix == "FX519"),
            ):
                out = self.model(x)
                out = ON_TOP.get(self.fix, lambda out: out)(out)
                loss = out.square().mean()
                loss.backward()
        if self.fix == "FX204":
            torch.cuda.empty_cache()
        if self.fix == "FX518":
            gc.collect()
        if self.fix == "FX527":
            torch.cuda.synchronize()
        self.optimizer.step()
        return loss.item()


REPLACED: tuple[tuple[Any, str], ...] = (
    (DataLoader, "__init__"),
    (DataLoader, "__iter__"),
    (nn.Module, "__call__"),
    (Net, "__call__"),
    (nn.MultiheadAttention, "forward"),
    (nn.Module, "zero_grad"),
    (torch.Tensor, "to"),
    (torch.Tensor, "cuda"),
    (torch.optim.Optimizer, "zero_grad"),
    (torch.optim.Optimizer, "add_param_group"),
    (torch.optim.AdamW, "__init__"),
    *torch_private.cache_emptiers(),
    (torch, "compile"),
    (nn.functional, "scaled_dot_product_attention"),
    (torch.Tensor, "__getitem__"),
    (torch, "quantile"),
    (torch.Tensor, "quantile"),
    (torch, "embedding_renorm_"),
    (torch, "unique"),
    (torch.sparse, "mm"),
    (torch, "mm"),
    (torch.Tensor, "__matmul__"),
    *((torch.autograd.profiler, name) for name in torch_private.PROFILER_CALLS),
    (torch, "set_anomaly_enabled"),
    (gc, "collect"),
    (torch.cuda, "synchronize"),
    (torch.autocast, "__enter__"),
    (torch.autograd.graph.save_on_cpu, "__enter__"),
    (torch.autograd.graph.saved_tensors_hooks, "__enter__"),
    *torch_private.checkpoint_ways(),
    *((kind, "_next_data") for kind in loader_private.batch_sources()),
    (nn.parallel.DistributedDataParallel, "forward"),
)


def state_of(script: Script) -> dict[str, Any]:
    """What must be as it was, whatever was trained meanwhile."""
    model, optimizer = script.model, script.optimizer
    tensors = [*model.parameters(), *model.buffers()]
    return {
        "attributes": [vars(owner).get(name) for owner, name in REPLACED],
        "hooks": [
            list(optim_module._global_optimizer_pre_hooks),
            list(optim_module._global_optimizer_post_hooks),
        ],
        "cores": affinity(),
        "precision": (
            torch.get_float32_matmul_precision(),
            *(getattr(part, "fp32_precision", None) for part in (torch.backends.cuda.matmul,)),
        ),
        "cudnn": [getattr(torch.backends.cudnn, n) for n in ("allow_tf32", "benchmark", "deterministic")],
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "distributions": torch_private.distributions_checked(),
        "anomalies": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "collector": (gc.isenabled(), gc.get_freeze_count()),
        "threads": torch.get_num_threads(),
        "tensors": [(id(t), t.stride(), t.dtype, t.requires_grad) for t in tensors],
        "gradients": [(p.grad is None, None if p.grad is None else p.grad.stride()) for p in tensors],
        "groups": [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups],
        "optimizer": sorted(vars(optimizer)),
        "state": [
            (key, id(value), value.stride(), value.dtype, value.device)
            for state in optimizer.state.values()
            for key, value in state.items()
        ],
        "modules": [sorted(vars(part)) for part in model.modules()],
        "traced": (sys.gettrace(), sys.getprofile()),
        "synchronises": getattr(model, "require_backward_grad_sync", None),
    }


def acts(script: Script, patch: Patch) -> bool:
    """Whether the patch has changed what it is about, seen without its help."""
    group, model = script.optimizer.param_groups[0], script.model
    compiled = [torch_private.is_compiled_module(part) for part in model.modules()]
    found: dict[str, Callable[[], Any]] = {
        "FX301": lambda: torch.get_float32_matmul_precision() == "high",
        "FX302": lambda: torch.backends.cudnn.allow_tf32,
        "FX309": lambda: not torch.are_deterministic_algorithms_enabled(),
        "FX310": lambda: model.conv.weight.is_contiguous(memory_format=torch.channels_last),  # type: ignore[union-attr, operator]
        "FX311": lambda: group["fused"],
        "FX312": lambda: group["foreach"],
        "FX410": lambda: sum(compiled) == 2,
        "FX412": lambda: compiled[0],
        "FX414": lambda: compiled[0],
        "FX328": lambda: not torch.utils.deterministic.fill_uninitialized_memory,
        "FX349": lambda: torch.backends.cudnn.enabled,
        "FX348": torch_private.denormals_flushed,
        "FX416": lambda: "step" in vars(script.optimizer),
        "FX505": lambda: not gc.isenabled(),
        "FX504": lambda: look_at.__code__.co_name == "<lambda>",
        "FX506": lambda: torch.get_num_threads() == patch.options["threads"],
        "FX531": lambda: torch_private.default_device() is None,
        "FX533": lambda: sys.gettrace() is None,
        "FX517": lambda: not torch_private.distributions_checked(),
        "FX602": lambda: patch.count > 0,
    }
    return bool(found.get(script.fix, lambda: patch.count)())


@pytest.fixture(autouse=True)
def _as_it_was(
    request: pytest.FixtureRequest, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Settings that the patches are news to, and a process group for the one that needs it."""
    fix = request.node.callspec.params.get("fix") if hasattr(request.node, "callspec") else None
    threads, tf32 = torch.get_num_threads(), torch.backends.cudnn.allow_tf32
    if fix == "FX302":
        torch.backends.cudnn.allow_tf32 = False
    if fix == "FX531":
        torch.set_default_device("cpu")
    tracer = sys.gettrace()
    if fix == "FX533":
        sys.settrace(lambda *_: None)
    if fix == "FX349":
        torch.backends.cudnn.enabled = False
    if fix == "FX309":
        torch.use_deterministic_algorithms(True, warn_only=True)
    if fix == "FX518":
        # What other tests have left would be visited in each step.
        gc.freeze()
    if fix == "FX527" and DEVICE == "cpu":
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    torch_private.check_distributions(fix == "FX517" or torch_private.distributions_checked())
    if fix in OF_RANKS:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
        )
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    sys.settrace(tracer)
    torch._dynamo.reset()
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.enabled = tf32, True
    torch.set_num_threads(threads)
    if fix == "FX518":
        gc.unfreeze()
    torch.set_default_device(None)
    if fix in OF_RANKS:
        torch.distributed.destroy_process_group()


def patch_of(fix: str, **options: Any) -> Patch:
    options = {**OPTIONS.get(fix, {}), **options}
    if fix == "FX506":
        options["threads"] = torch.get_num_threads() + 1
    (patch,) = make_patches((Wish(fix=fix, options=options, environment=by_id(fix).environment),))
    return patch


def test_every_patch_can_be_switched_or_says_why_not() -> None:
    for fix, patch in PATCHES.items():
        assert patch.live is not bool(patch.why_not_live), fix


def switch_on(patch: Patch, program: Program) -> None:
    """Switch it on, unless what this process ran before keeps malloc from mapping anything."""
    try:
        patch.switch_on(program)
    except NotSwitchable as reason:
        left = (
            "large blocks come from the heap already",
            "malloc's thresholds could not be found out",
            "this OpenMP does not let go of its threads",
        )
        if any(text in str(reason) for text in left):
            pytest.skip(str(reason))
        raise


@pytest.mark.parametrize("fix", IN_THE_STEP)
def test_a_patch_acts_while_it_is_on_and_leaves_no_trace(fix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fix == "FX416":
        plain = torch.compile
        monkeypatch.setattr(torch, "compile", lambda function: plain(function, backend="eager"))
    control = Script(fix).steps(5 * STEPS)
    gc.collect()
    script, patch = Script(fix), patch_of(fix)
    losses = script.steps(STEPS)
    before = state_of(script)
    on = 3 * STEPS if fix == "FX602" else STEPS
    for _turn in range(2):
        switch_on(patch, script.program)
        assert patch.settle_steps(script.program) >= 1
        losses += script.steps(on)
        assert acts(script, patch)
        patch.switch_off()
        assert patch.settle_steps(script.program) >= 1
        losses += script.steps(STEPS)
        after = state_of(script)
        for part, value in before.items():
            assert after[part] == value, part
    found = patch.found()
    if DEVICE == "cuda" or not any(word in found.reason for word in ("NVIDIA", "TF32")):
        assert found.state == "applied", found
        assert found.count == (1 if fix in ("FX303", "FX310", "FX311", "FX312", "FX412") else found.count)
    patch.close()
    if fix == "FX602":
        return  # it trained for more steps than the control
    if by_id(fix).arithmetic is Arithmetic.SAME and DEVICE == "cpu":
        assert losses == control
    else:
        assert losses == pytest.approx(control, rel=0.05, abs=1e-4 if DEVICE == "cpu" else max(control) / 20)


class Meter:
    """Work beside the training, in the forms that it may have."""

    @staticmethod
    def still(seen: list[int]) -> None:
        seen.append(0)

    def plain(self, seen: list[int]) -> None:
        seen.append(0)

    @torch.no_grad()
    def bare(self, seen: list[int]) -> None:
        seen.append(0)

    def later(self, seen: list[int]) -> Iterator[int]:
        yield len(seen)


@pytest.mark.parametrize("name", ["plain", "still", "bare"])
def test_methods_of_the_script_do_nothing_while_they_are_left_out(name: str) -> None:
    seen: list[int] = []
    patch = patch_of("FX504", function=f"{__file__}:{name}")
    for turn in range(2):
        patch.switch_on(Script("FX504").program)
        getattr(Meter(), name)(seen)
        assert len(seen) == turn
        patch.switch_off()
        getattr(Meter(), name)(seen)
        assert len(seen) == turn + 1
    assert patch.found().evidence.startswith(f"{name}() did nothing")


@pytest.mark.parametrize("function", [f"{__file__}:later", f"{__file__}:nowhere", "/elsewhere.py:plain", ""])
def test_what_is_no_plain_function_of_the_script_is_not_left_out(function: str) -> None:
    body = Meter.plain.__code__
    with pytest.raises(NotSwitchable):
        patch_of("FX504", function=function).switch_on(Script("FX504").program)
    assert Meter.plain.__code__ is body


@pytest.mark.skipif(DEVICE == "cuda", reason="there is a GPU")
@pytest.mark.parametrize("fix", sorted(NEED_A_GPU))
def test_copies_to_a_device_and_reads_from_it_need_one(fix: str) -> None:
    script = Script(fix)
    before = state_of(script)
    with pytest.raises(NotSwitchable, match=r"no GPU|on a CPU"):
        patch_of(fix).switch_on(script.program)
    assert state_of(script) == before


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_batches_are_pinned_by_a_second_loader_and_not_waited_for() -> None:
    script, patch = Script("FX103"), patch_of("FX103")
    before, iterator = state_of(script), iter(script.loader)
    patch.switch_on(script.program)
    assert all(next(iterator)[0].to(DEVICE).is_cuda for _ in range(3))
    assert next(iterator)[0].is_pinned()
    patch.switch_off()
    assert not next(iterator)[0].is_pinned()
    patch.close()
    assert state_of(script) == before
    assert "pin_memory False -> True on 1 DataLoader" in patch.found().evidence


@pytest.mark.skipif(DEVICE == "cpu", reason="there the counts of steps lie where they lie")
def test_counts_of_steps_lie_on_the_device_only_while_the_fused_step_runs() -> None:
    script, patch = Script("FX311"), patch_of("FX311")
    script.steps(STEPS)
    counts = [state["step"] for state in script.optimizer.state.values()]
    for turn in range(1, 3):
        patch.switch_on(script.program)
        assert {state["step"].device.type for state in script.optimizer.state.values()} == {"cuda"}
        script.steps(STEPS)
        patch.switch_off()
        now = [state["step"] for state in script.optimizer.state.values()]
        assert [id(count) for count in now] == [id(count) for count in counts]
        assert {(count.item(), count.device.type) for count in now} == {(STEPS * (turn + 1.0), "cpu")}


class Listener:
    """An observer of events that counts them, and a stop that never comes."""

    reason = None

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()

    def begin(self, event: Event, subject: Any, now: int, *, paused: bool) -> None:
        self.events[event.name] += 1

    def take(self, entries: Iterable[Entry], *, held: bool) -> None:
        self.events.update(event.name for event, begins, _now, _what in entries if begins)

    def ended(self, event: Event, subject: Any, result: Any) -> None: ...

    def happened(self, event: Event, subject: Any) -> None: ...

    def first_evaluation(self, module: object) -> None: ...

    def steps_to_hold(self) -> int:
        return 100

    def released(self) -> None: ...


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("fix", IN_THE_STEP)
def test_the_steps_are_seen_as_before_while_a_patch_is_on(
    fix: str, narrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fix == "FX416":
        plain_compile = torch.compile
        monkeypatch.setattr(torch, "compile", lambda function: plain_compile(function, backend="eager"))
    listener = Listener()
    buffer = EventBuffer(listener, listener)
    hooks, script, patch = Hooks(buffer), Script(fix), patch_of(fix)

    def events_of_a_step() -> dict[str, int]:
        buffer.flush()
        listener.events.clear()
        script.step()
        buffer.flush()
        return dict(listener.events)

    plain = state_of(script)["attributes"]
    hooks.install()
    try:
        script.step()
        if narrow:
            hooks.narrow({type(script.model)})
            buffer.hold(100, at_fetch=False, armed=False, mark=None)
        expected = events_of_a_step()
        assert expected["optimizer"] == 1
        with_hooks = state_of(script)["attributes"]
        switch_on(patch, script.program)
        script.step()
        assert events_of_a_step() == expected
        patch.switch_off()
        assert state_of(script)["attributes"] == with_hooks
        assert events_of_a_step() == expected
    finally:
        if patch.is_on:
            patch.switch_off()
        patch.close()
        buffer.drop()
        hooks.uninstall()
    assert state_of(script)["attributes"] == plain


# -- loaders ---------------------------------------------------------------------------------------


def numbers(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(float(count)))


def read(iterator: Iterator[Any], count: int) -> list[list[float]]:
    return [next(iterator)[0].tolist() for _ in range(count)]


def program_of(loader: DataLoader[Any] | None) -> Program:
    return Program(roots=(), optimizers=(), loader=loader)


LOADERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "FX101": ({}, {"num_workers": 2}),
    "FX102": ({"num_workers": 2}, {"num_workers": 1}),
    "FX105": ({"num_workers": 1}, {}),
    "FX106": ({"num_workers": 1}, {}),
    "FX112": ({}, {}),
    "FX114": ({"num_workers": 1}, {}),
    "FX115": ({"num_workers": 1}, {}),
}


class ThreadsSeen(Dataset[tuple[int, str]]):
    """How many threads libraries may start where the sample is made, and what began the worker."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, _index: int) -> tuple[int, str]:
        most = max(int(pool["num_threads"]) for pool in threadpool_info())
        return most, os.environ.get("BEGUN_BY", "")


def begins(_worker: int) -> None:
    os.environ["BEGUN_BY"] = "script"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_the_trial_have_one_thread_and_begin_as_the_script_s_do(method: str) -> None:
    with threadpool_limits(2):
        loader = DataLoader(
            ThreadsSeen(), 4, num_workers=1, worker_init_fn=begins, multiprocessing_context=method
        )
        patch, program, iterator = patch_of("FX115"), program_of(loader), iter(loader)
        first = next(iterator)
        patch.switch_on(program)
        tried = next(iterator)
        patch.switch_off()
        patch.close()
        loader_private.end_pass(iterator)
    assert set(first[1]) == set(tried[1]) == {"script"}
    assert max(first[0]) >= (2 if method == "fork" else 1)
    assert set(tried[0].tolist()) == {1}


def fails_at_its_end(_worker: int) -> None:
    """Die when ended, seen by the signal alone: a child keeps open the pipe that tells of the end."""

    def die() -> None:
        if os.fork():
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1)
        os._exit(0)

    Finalize(None, die, exitpriority=1)


def test_a_worker_that_fails_when_it_is_ended_is_no_error_of_the_script_s() -> None:
    loader = DataLoader(numbers(20), 4, num_workers=1, worker_init_fn=fails_at_its_end)
    iterator = loader_private.begin_pass(loader, None)
    next(iterator)
    (worker,) = iterator._workers
    loader_private.end_pass(iterator)
    assert worker.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("fix", sorted(LOADER_FIXES))
def test_batches_of_a_second_loader_take_the_place_of_the_script_s(fix: str) -> None:
    arguments, options = LOADERS[fix]
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(7)
    shuffled = DataLoader(numbers(20), 4, shuffle=True, generator=generator, **arguments)
    others = DataLoader(numbers(20), 4)
    twin = torch.Generator().manual_seed(7)
    expected = [b[0].tolist() for b in DataLoader(numbers(20), 4, shuffle=True, generator=twin, **arguments)]
    iterator, other = iter(shuffled), iter(others)
    seen = read(iterator, 2)
    patch, program = patch_of(fix, **options), program_of(shuffled)
    attributes = [vars(owner).get(name) for owner, name in REPLACED]
    for turn in range(2):
        random_numbers = (torch.get_rng_state(), generator.get_state())
        patch.switch_on(program)
        second: Any = patch._second  # type: ignore[attr-defined]
        assert patch.settle_steps(program) == 1 + second.depth
        if turn == 0:
            rest = [x for batch in read(iterator, 3) for x in batch]
            assert len(set(rest)) == 12
            with pytest.raises(StopIteration):  # the pass that the script counts on has five batches
                next(iterator)
            for _ in range(2):
                again = [x for batch in shuffled for x in batch[0].tolist()]
                assert sorted(again) == list(range(20)), "the script's next epoch is a pass of it, too"
            assert iter(shuffled) is iterator
            read(iterator, 1)
        else:
            read(iterator, 1)
        assert read(other, 1)[0] == [turn * 4.0 + i for i in range(4)], "another loader's batches are its own"
        patch.switch_off()
        assert torch.equal(torch.get_rng_state(), random_numbers[0])
        assert torch.equal(generator.get_state(), random_numbers[1])
        assert patch.settle_steps(program) == 1 + arguments.get("num_workers", 0) * 2
        assert [vars(owner).get(name) for owner, name in REPLACED] == attributes
        seen += read(iterator, 1)
    assert [*seen, *read(iterator, 1)] == expected, "the script's own order, each batch once"
    found = patch.found()
    assert found.state == "applied"
    assert "on 1 DataLoader" in found.evidence
    workers = list(getattr(second._iterator, "_workers", []))
    patch.close()
    assert not any(worker.is_alive() for worker in workers)


def test_a_second_loader_nests_with_whatever_else_is_put_around_the_same_place() -> None:
    from torch_bottleneck.harness.events.replacing import Replacements

    loader = DataLoader(numbers(12), 2)
    tape: list[Any] = []
    recording = Replacements()

    def make(original: Any) -> Any:
        def _next_data(iterator: Any) -> Any:
            tape.append(original(iterator))
            return tape[-1]

        return _next_data

    def record() -> None:
        for kind in loader_private.batch_sources():
            recording.put(kind, "_next_data", make)

    patch, program = patch_of("FX101", num_workers=1), program_of(loader)
    plain = [vars(kind)["_next_data"] for kind in loader_private.batch_sources()]
    iterator = iter(loader)
    record()
    patch.switch_on(program)
    got = read(iterator, 2)
    assert tape == [], "the second loader's own batches are not recorded"
    patch.switch_off()
    got += read(iterator, 1)
    recording.undo()
    patch.switch_on(program)
    record()
    got += read(iterator, 1)
    recording.undo()
    patch.switch_off()
    patch.close()
    assert [batch[0].tolist() for batch in tape] == got[2:]
    assert got == [[0, 1], [2, 3], [0, 1], [4, 5]]
    assert [vars(kind)["_next_data"] for kind in loader_private.batch_sources()] == plain


def test_the_signal_handler_for_workers_goes_with_those_of_the_second_loader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handling = torch.utils.data._utils.signal_handling
    monkeypatch.setattr(handling, "_SIGCHLD_handler_set", False)
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        patch = patch_of("FX101", num_workers=1)
        patch.switch_on(program_of(DataLoader(numbers(8), 2)))
        assert signal.getsignal(signal.SIGCHLD) is not signal.SIG_DFL
        patch.switch_off()
        patch.close()
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
        assert not handling._SIGCHLD_handler_set
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_batches_that_were_recorded_are_not_replaced() -> None:
    from torch_bottleneck.harness.trials.batches import BatchTape

    loader, tape = DataLoader(numbers(18), 2), BatchTape()
    program = Program(roots=(), optimizers=(), loader=loader, replays=lambda: tape.replaying)
    patch, iterator = patch_of("FX101", num_workers=1), iter(loader)
    tape.record()
    recorded = read(iterator, 2)
    tape.replay()
    patch.switch_on(program)
    assert read(iterator, 2) == recorded
    tape.stop()
    assert read(iterator, 3) == [[0, 1], [2, 3], [4, 5]]
    patch.switch_off()
    patch.close()
    tape.close()
    assert read(iterator, 1) == [[4, 5]]


class Breaking(TensorDataset):
    """Samples that cannot be made in a worker, from some number on."""

    def __init__(self, good: int) -> None:
        super().__init__(torch.arange(12.0))
        self.good = good

    def __getitem__(self, index: int) -> Any:
        if torch.utils.data.get_worker_info() is not None and index >= self.good:
            raise RuntimeError("no handle in this process")
        return super().__getitem__(index)


def test_a_second_loader_that_fails_at_once_is_not_switched_on() -> None:
    loader = DataLoader(Breaking(0), 2)
    patch = patch_of("FX101", num_workers=1)
    with pytest.raises(NotSwitchable, match="RuntimeError: no handle in this process"):
        patch.switch_on(program_of(loader))
    assert [b[0].tolist() for b in loader][:1] == [[0, 1]]


def test_a_second_loader_that_fails_later_hands_back_to_the_script_s() -> None:
    loader = DataLoader(Breaking(4), 2)
    patch = patch_of("FX101", num_workers=1)
    iterator = iter(loader)
    patch.switch_on(program_of(loader))
    assert read(iterator, 4) == [[0, 1], [2, 3], [0, 1], [2, 3]]
    patch.switch_off()
    patch.close()
    found = patch.found()
    assert found.state == "not applied"
    assert "no handle in this process" in found.reason


@pytest.mark.parametrize("case", ["none", "generator as sampler", "open file", "workers already", "stream"])
def test_what_a_second_loader_would_disturb_or_not_change_is_left_alone(case: str) -> None:
    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(4))

    dataset, fix = numbers(8), "FX101"
    loader: DataLoader[Any] | None = DataLoader(dataset)
    if case == "none":
        loader, reason = None, "no DataLoader that still exists"
    elif case == "generator as sampler":
        loader, reason = DataLoader(dataset, sampler=(i for i in range(8))), "sampler cannot be copied"
    elif case == "open file":
        dataset.file = io.BytesIO(b"12345678")  # type: ignore[attr-defined]
        reason = "holds an open file"
    elif case == "workers already":
        loader, reason = DataLoader(dataset, num_workers=64), "64 workers already"
    else:
        loader, reason = DataLoader(Stream()), "more workers would repeat its samples"
    patch = patch_of(fix)
    with pytest.raises(NotSwitchable, match=reason):
        patch.switch_on(program_of(loader))
    patch.close()


def test_a_stream_is_read_again_only_by_workers() -> None:
    class Stream(torch.utils.data.IterableDataset[float]):
        def __iter__(self) -> Iterator[float]:
            return iter([0.0, 1.0, 2.0, 3.0])

    loader = DataLoader(Stream(), 2, num_workers=1)
    iterator = iter(loader)
    patch = patch_of("FX106")
    patch.switch_on(program_of(loader))
    assert [batch.tolist() for batch in iterator] == [[0, 1], [2, 3]]
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
    patch.switch_off()
    assert [batch.tolist() for batch in iterator] == [[0, 1], [2, 3]]
    patch.close()


# -- what compiling can reach ----------------------------------------------------------------------


class Recurrent(nn.Module):
    """What dynamo does not enter."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.rnn(x)[0]
        return out


def disabled() -> nn.Module:
    """What the script keeps dynamo out of; saying so imports dynamo, which takes its second."""

    class Disabled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        @torch.compiler.disable
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.linear(x)
            return out

    return Disabled()


@pytest.mark.parametrize("fix", ["FX412", "FX414"])
@pytest.mark.parametrize("kind", [Recurrent, disabled, nn.Linear])
def test_what_dynamo_captures_is_known_before_anything_is_compiled(
    kind: Callable[..., nn.Module], fix: str
) -> None:
    model = kind(4, 4) if kind is nn.Linear else kind()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    program = Program(roots=(model,), optimizers=(optimizer,))
    patch = patch_of(fix)
    before = [sorted(vars(part)) for part in model.modules()]
    for _again in range(2):
        patch.foresee(program)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        reason = patch.foreseen()
        assert reason == (None if kind is nn.Linear else f"dynamo captures nothing of {type(model).__name__}")
    assert [sorted(vars(part)) for part in model.modules()] == before
    assert not torch._dynamo.config.suppress_errors


class Mixed(nn.Module):
    """A part that is captured, and one that ends the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rnn = nn.Linear(4, 4), nn.LSTM(4, 64, num_layers=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        out: torch.Tensor
        out, _ = self.rnn(x)
        return out


def test_what_stays_outside_the_graphs_is_named_with_its_share() -> None:
    model = Mixed()
    patch: Any = patch_of("FX414")
    attributes = [vars(owner).get(name) for owner, name in (*REPLACED, (Mixed, "__call__"))]
    patch.foresee(Program(roots=(model,), optimizers=()))
    for _step in range(2):
        model(torch.ones(50, 4, 4)).sum().backward()
    assert patch.foreseen() is None
    assert patch.look.outside == ["LSTM"]
    assert 0 < patch.look.share < 0.9
    assert patch.look.graphs == 1 and patch.look.leaves
    assert [vars(owner).get(name) for owner, name in (*REPLACED, (Mixed, "__call__"))] == attributes


def test_a_look_is_no_step_of_cuda_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What loads inductor would count as time outside of graphs: seconds, of milliseconds."""
    told: list[None] = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: told.append(None), raising=False)
    model = nn.Linear(4, 4)
    program = Program(roots=(model,), optimizers=(torch.optim.SGD(model.parameters(), lr=0.1),))
    patch: Any = patch_of("FX412")
    patch.foresee(program)
    for _step in range(2):
        model(torch.ones(2, 4)).sum().backward()
    assert patch.foreseen() is None
    assert not told and patch.look.graphs == 1 and patch.look.share is not None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"backend": "cudagraphs"}),
        ({"mode": "reduce-overhead"}, {"mode": "reduce-overhead"}),
        ({"backend": "eager"}, {"mode": "reduce-overhead", "backend": "eager"}),
    ],
)
def test_in_turns_launches_are_recorded_as_they_are(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Generating code takes most of a minute; the fix in a process of its own does."""
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(
        torch_private, "compile_in_place", lambda _module, **arguments: given.append(arguments)
    )
    model = nn.Linear(4, 4)
    patch: Any = PATCHES["FX412"](dict(options))
    patch.switch_on(Program(roots=(model,), optimizers=()))
    patch.switch_off()
    assert given == [expected]
    assert bool(patch.tried_as) == (expected == {"backend": "cudagraphs"})


def test_a_model_that_the_script_compiles_is_not_compiled_in_turns() -> None:
    model = torch.compile(nn.Linear(2, 2), backend="eager")
    patch = patch_of("FX414")
    for begin in (patch.foresee, patch.switch_on):
        with pytest.raises(NotSwitchable, match="compiled already"):
            begin(Program(roots=(model,), optimizers=()))
    assert not torch._dynamo.config.suppress_errors
