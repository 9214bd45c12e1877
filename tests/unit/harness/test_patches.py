"""Each run-time patch changes what it says, says what it changed, and leaves torch as it was."""

from __future__ import annotations

import cProfile
import gc
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from torch_bottleneck.catalog.registry import FIXES, OWN, by_id
from torch_bottleneck.harness import torch_private
from torch_bottleneck.harness.trials.patches import PATCHES, equivalents, make_patches
from torch_bottleneck.harness.trials.patches.base import NotSwitchable, Patch, Program
from torch_bottleneck.harness.trials.patches.compilation import repeated_blocks
from torch_bottleneck.harness.trials.patches.copies import _without_blocking
from torch_bottleneck.harness.ways.timing import Timed, Took
from torch_bottleneck.model.verify import Wish
from torch_bottleneck.runs import environment as patch_environment

pytestmark = pytest.mark.usefixtures("each_way_takes_half")

REPLACED: tuple[tuple[Any, str], ...] = (
    (DataLoader, "__init__"),
    (nn.Module, "__call__"),
    (nn.Module, "zero_grad"),
    (torch.Tensor, "to"),
    (torch.Tensor, "cuda"),
    (torch.optim.Optimizer, "zero_grad"),
    (torch.optim.SGD, "__init__"),
    (torch.optim.AdamW, "__init__"),
    (torch.optim.RMSprop, "__init__"),
    (torch.cuda, "empty_cache"),
    (torch, "compile"),
    (torch, "set_anomaly_enabled"),
    (torch.utils.checkpoint, "checkpoint"),
    (nn.MultiheadAttention, "forward"),
    (nn.parallel.DistributedDataParallel, "__init__"),
    (nn.parallel.DistributedDataParallel, "forward"),
)


@pytest.fixture
def put_in() -> Iterator[Callable[..., Patch]]:
    """Install patches, and see that taking them out leaves every attribute as it was."""
    before = [vars(owner).get(name) for owner, name in REPLACED]
    precision = torch.get_float32_matmul_precision()
    made: list[Patch] = []

    def install(fix: str, **options: Any) -> Patch:
        (patch,) = make_patches((wish_of(fix, **options),))
        patch.install()
        made.append(patch)
        return patch

    yield install
    for patch in reversed(made):
        patch.uninstall()
    assert [vars(owner).get(name) for owner, name in REPLACED] == before
    assert torch.get_float32_matmul_precision() == precision


def wish_of(fix: str, **options: Any) -> Wish:
    """A wish as a run gets it, with what the catalogue says of the environment."""
    return Wish(fix=fix, options=options, environment=by_id(fix).environment)


def dataset(count: int = 16) -> TensorDataset:
    return TensorDataset(torch.arange(float(count)).reshape(-1, 1))


def test_every_fix_marked_try_has_its_patch_and_no_other() -> None:
    assert set(PATCHES) == {OWN.id, *(fix.id for fix in FIXES if fix.can_try)}


@pytest.mark.parametrize("fix", sorted(PATCHES))
def test_without_anything_to_act_on_no_patch_claims_to_be_applied(
    fix: str, put_in: Callable[..., Patch]
) -> None:
    patch = put_in(fix)
    found = patch.check()
    if fix in ("FX205", "FX506"):
        return  # they set the process itself, whatever the script does
    if fix == "FX208" and found.state == "applied":
        assert "MiB in huge pages" in found.evidence
        return
    assert found.state == "not applied"
    assert found.reason


def test_a_change_of_one_s_own_is_in_use_where_its_files_are_loaded(put_in: Callable[..., Patch]) -> None:
    used = put_in("own", files=[__file__, "/elsewhere/other.py"]).check()
    assert (used.state, used.evidence) == ("applied", "1 file of the change in use")
    idle = put_in("own", files=["/elsewhere/other.py", "/elsewhere/config.yaml"]).check()
    assert "from another folder" in idle.reason
    assert put_in("own", files=["/elsewhere/config.yaml"]).check().state == "applied"


# -- loaders ---------------------------------------------------------------------------------------


def test_workers_are_added_to_loaders_that_read_by_index(put_in: Callable[..., Patch]) -> None:
    patch = put_in("FX101", num_workers=2)
    loader = DataLoader(dataset(), 4)
    assert (loader.num_workers, loader.persistent_workers, loader.batch_size) == (2, True, 4)
    found = patch.check()
    assert found.state == "applied"
    assert found.evidence == "num_workers 0 -> 2, persistent_workers False -> True on 1 DataLoader"
    assert found.sites[0].file == __file__
    assert found.values == {"num_workers": 2, "persistent_workers": True}


def test_workers_given_by_position_are_replaced_too(put_in: Callable[..., Patch]) -> None:
    put_in("FX101", num_workers=2)
    loader = DataLoader(dataset(), 4, False, None, None, 1)
    assert loader.num_workers == 2


def test_an_iterable_dataset_never_gets_workers(put_in: Callable[..., Patch]) -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(4))

    patch = put_in("FX101")
    assert DataLoader(Stream()).num_workers == 0
    found = patch.check()
    assert found.state == "not applied"
    assert "IterableDataset" in found.reason


def test_enough_workers_are_left_alone_and_too_many_are_taken_away(put_in: Callable[..., Patch]) -> None:
    more = put_in("FX101", num_workers=1)
    assert DataLoader(dataset(), num_workers=2).num_workers == 2
    assert "2 workers already" in more.check().reason
    more.uninstall()
    fewer = put_in("FX102", num_workers=1)
    assert DataLoader(dataset(), num_workers=2).num_workers == 1
    assert fewer.check().state == "applied"


def test_persistence_and_prefetching_need_workers(put_in: Callable[..., Patch]) -> None:
    persistent, prefetch = put_in("FX105"), put_in("FX106")
    assert not DataLoader(dataset()).persistent_workers
    assert persistent.check().state == prefetch.check().state == "not applied"
    loader = DataLoader(dataset(), num_workers=1)
    assert (loader.persistent_workers, loader.prefetch_factor) == (True, 8)
    assert persistent.check().state == prefetch.check().state == "applied"


def test_without_workers_a_loader_has_nothing_that_belongs_to_them(put_in: Callable[..., Patch]) -> None:
    patch = put_in("FX114")
    assert DataLoader(dataset()).num_workers == 0
    assert "no workers" in patch.check().reason
    loader = DataLoader(dataset(), num_workers=2, persistent_workers=True, prefetch_factor=4, timeout=9)
    assert (loader.num_workers, loader.persistent_workers) == (0, False)
    assert (loader.prefetch_factor, loader.timeout) == (None, 0)
    assert len(list(loader)) == len(dataset())
    assert patch.check().state == "applied"


def test_a_mistake_of_the_script_s_stays_torch_s_own_error(put_in: Callable[..., Patch]) -> None:
    put_in("FX101")
    with pytest.raises(TypeError, match="no_such_argument"):
        DataLoader(dataset(), no_such_argument=1)  # type: ignore[call-arg]


class Rows(Dataset[Any]):
    """Samples of arrays, which give as well what several indices ask for."""

    def __init__(self, *, scaled: bool = True) -> None:
        self.inputs, self.targets = np.arange(60.0, dtype=np.float32).reshape(20, 3), torch.arange(20)
        self.scaled = scaled

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: Any) -> Any:
        row = self.inputs[index]
        return {"x": row / 2 if self.scaled else row / row.sum(), "y": (self.targets[index], row)}


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_of_arrays_are_read_with_one_call(put_in: Callable[..., Patch], workers: int) -> None:
    plain = list(DataLoader(Subset(Rows(), [5, 3, 8, 13]), 3))
    patch = put_in("FX112")
    loader = DataLoader(Subset(Rows(), [5, 3, 8, 13]), 3, num_workers=workers)
    for batch, expected in zip(loader, plain, strict=True):
        assert torch.equal(batch["x"], expected["x"]) and torch.equal(batch["y"][0], expected["y"][0])
        assert torch.equal(batch["y"][1], expected["y"][1])
    assert loader.dataset.indices == [5, 3, 8, 13], "the dataset is still the script's"  # type: ignore[attr-defined]
    assert patch.check().evidence == "whole batches with one call on 1 DataLoader"


class OneByOne(Rows):
    def __getitem__(self, index: Any) -> Any:
        return self.inputs[index], int(self.targets[index])


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: DataLoader(Rows(scaled=False), 2), "not what they are one by one"),
        (lambda: DataLoader(OneByOne(), 2), "cannot read several samples at once"),
        (lambda: DataLoader(Rows(), 2, collate_fn=lambda batch: batch), "a way of the script's own"),
        (lambda: DataLoader(Rows(), batch_size=None), "a way of the script's own"),
    ],
)
def test_samples_that_come_out_otherwise_at_once_are_read_one_by_one(
    put_in: Callable[..., Patch], build: Callable[[], DataLoader[Any]], said: str
) -> None:
    patch = put_in("FX112")
    assert type(build().dataset) in (Rows, OneByOne)
    assert said in patch.check().reason


# -- attention -------------------------------------------------------------------------------------


class Chooses(nn.Module):
    """Attention after timm's pattern, or nanoGPT's."""

    def __init__(self, flag: str) -> None:
        super().__init__()
        self.project = nn.Linear(4, 4)
        self.flag = flag
        setattr(self, flag, False)
        self.took: list[bool] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.took.append(getattr(self, self.flag))
        out: torch.Tensor = self.project(x)
        return out


@pytest.mark.parametrize("flag", ["fused_attn", "flash"])
def test_attention_modules_with_a_switch_are_told_to_fuse(put_in: Callable[..., Patch], flag: str) -> None:
    model = nn.Sequential(Chooses(flag), Chooses(flag))
    patch = put_in("FX306")
    model(torch.ones(2, 4))
    assert patch.check().state == "applied"
    patch.uninstall()
    model(torch.ones(2, 4))
    assert [part.took for part in model] == [[True, False]] * 2


def test_weights_of_attention_are_not_asked_for(put_in: Callable[..., Patch]) -> None:
    attention, x = nn.MultiheadAttention(8, 2), torch.randn(3, 5, 8)
    plain, weights = attention(x, x, x)
    assert weights is not None
    patch = put_in("FX306")
    fused, weights = attention(x, x, x)
    assert weights is None and torch.allclose(plain, fused, atol=1e-6)
    assert attention(x, x, x, need_weights=True)[1] is None
    assert "no weights in 2 calls" in patch.check().evidence


def test_models_of_transformers_are_switched_as_a_whole(put_in: Callable[..., Patch]) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": 32}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, attn_implementation="eager"))
    tokens = torch.randint(32, (1, 6))
    model.eval()
    plain = model(tokens).logits
    patch = put_in("FX306")
    assert torch.allclose(model(tokens).logits, plain, atol=1e-5)
    assert model.config._attn_implementation == "sdpa" and patch.check().state == "applied"
    patch.uninstall()
    assert model.config._attn_implementation == "eager"


def test_attention_that_is_written_out_has_no_switch(put_in: Callable[..., Patch]) -> None:
    patch = put_in("FX306")
    nn.Linear(2, 2)(torch.ones(1, 2))
    assert "written out in the script" in patch.check().reason


# -- optimizers ------------------------------------------------------------------------------------


def trained(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    model(torch.randn(2, 3)).sum().backward()
    optimizer.step()


def test_the_fused_step_takes_the_place_of_what_was_asked_for(put_in: Callable[..., Patch]) -> None:
    patch = put_in("FX311")
    model = nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
    assert optimizer.param_groups[0]["fused"]
    assert patch.check().state == "not applied", "it has made no step"
    trained(optimizer, model)
    found = patch.check()
    assert (found.state, found.evidence) == ("applied", "fused=True on 1 optimizer")


def test_parameters_that_the_fused_step_refuses_keep_the_script_s_choice(
    put_in: Callable[..., Patch],
) -> None:
    original = torch.optim.SGD.__init__

    def refusing(self: Any, params: Any, lr: float = 0.1, *, foreach: Any = None, fused: Any = None) -> None:
        # As torch 2.6 does for parameters on a device without a fused kernel.
        if fused:
            raise RuntimeError("`fused=True` requires all the params to be floating point Tensors")
        original(self, params, lr, foreach=foreach, fused=fused)

    torch.optim.SGD.__init__ = refusing  # type: ignore[method-assign]
    try:
        patch = put_in("FX311")
        parameter = nn.Parameter(torch.zeros(2))
        optimizer = torch.optim.SGD(iter([parameter]), 0.5, foreach=False)
        patch.uninstall()
    finally:
        torch.optim.SGD.__init__ = original  # type: ignore[method-assign]
    group = optimizer.param_groups[0]
    assert (group["lr"], group["foreach"], group["fused"]) == (0.5, False, None)
    assert group["params"][0] is parameter
    assert "SGD refuses fused" in patch.check().reason


def test_an_optimizer_with_a_step_of_its_own_is_left_alone(put_in: Callable[..., Patch]) -> None:
    class Mine(torch.optim.SGD):
        pass

    patch = put_in("FX311")
    optimizer = Mine([nn.Parameter(torch.zeros(1))], lr=0.1)
    assert not optimizer.param_groups[0]["fused"]
    assert "step of its own" in patch.check().reason


def test_foreach_is_set_where_there_is_no_fused_step(put_in: Callable[..., Patch]) -> None:
    patch = put_in("FX312")
    model = nn.Linear(3, 1)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.1)
    trained(optimizer, model)
    assert optimizer.param_groups[0]["foreach"]
    assert patch.check().state == "applied"


def test_a_state_that_brings_the_old_choice_back_is_noticed(put_in: Callable[..., Patch]) -> None:
    model = nn.Linear(3, 1)
    old = torch.optim.SGD(model.parameters(), lr=0.1).state_dict()
    patch = put_in("FX311")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.load_state_dict(old)
    trained(optimizer, model)
    assert "no longer fused" in patch.check().reason


@pytest.mark.parametrize("call", [{"set_to_none": False}, {}])
def test_gradients_are_dropped_instead_of_zeroed(call: dict[str, bool], put_in: Callable[..., Patch]) -> None:
    patch = put_in("FX313")
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(2, 3)).sum().backward()
    optimizer.zero_grad(**call)
    assert model.weight.grad is None
    assert patch.check().state == ("applied" if call else "not applied")


def test_gradients_are_dropped_as_soon_as_they_are_used(put_in: Callable[..., Patch]) -> None:
    patch = put_in("FX210")
    model, spare = nn.Linear(3, 1), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()
    assert patch.check().state == "not applied"
    (model(torch.ones(2, 3)).sum() + spare(torch.ones(2, 3)).sum()).backward()
    optimizer.step()
    assert torch.allclose(model.weight, before - 0.2)
    assert model.weight.grad is None and model.bias.grad is None
    assert spare.weight.grad is not None, "not this optimizer's"
    assert patch.check().evidence == "gradients dropped after 1 step of the optimizer"
    patch.uninstall()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert model.weight.grad is not None


# -- root modules ----------------------------------------------------------------------------------


def test_autocast_surrounds_the_model_and_hands_back_fp32(put_in: Callable[..., Patch]) -> None:
    patch = put_in("FX303")
    seen: list[torch.dtype] = []

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            out = self.linear(x)
            seen.append(out.dtype)
            return {"out": out, "pair": (out, [out]), "none": None}

    out = Model()(torch.randn(2, 4))
    loss_module = nn.MSELoss()
    loss = loss_module(out["out"], torch.zeros(2, 4))
    assert seen == [torch.bfloat16]
    assert out["out"].dtype is out["pair"][0].dtype is out["pair"][1][0].dtype is torch.float32
    assert loss.dtype is torch.float32
    found = patch.check()
    assert found.evidence == "autocast(bfloat16) around 1 module, which returned bfloat16"


def test_a_module_under_autocast_already_is_left_alone(put_in: Callable[..., Patch]) -> None:
    patch = put_in("FX303")
    with torch.autocast("cpu", torch.bfloat16):
        assert nn.Linear(4, 4)(torch.randn(2, 4)).dtype is torch.bfloat16
    assert "under autocast already" in patch.check().reason


def test_a_checkpointed_block_is_not_taken_for_a_root(put_in: Callable[..., Patch]) -> None:
    patch = put_in("FX303")
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)
            return out

    import torch.utils.checkpoint

    Model()(torch.randn(2, 4)).sum().backward()
    assert block[0].weight.grad is not None
    assert patch.count == 1


def test_channels_last_changes_weights_and_images(put_in: Callable[..., Patch]) -> None:
    patch = put_in("FX310")
    formats: list[bool] = []

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            formats.append(x.is_contiguous(memory_format=torch.channels_last))
            out: torch.Tensor = self.conv(x)
            return out

    model = Model()
    weight = model.conv.weight
    out = model(torch.randn(2, 3, 8, 8))
    assert formats == [True]
    assert model.conv.weight is weight, "the optimizer holds this parameter"
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert patch.check().evidence == "channels_last on 1 module and 1 input"


def test_channels_last_leaves_other_dimensions_alone_and_puts_memory_back(
    put_in: Callable[..., Patch],
) -> None:
    patch = put_in("FX310")
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(2), nn.Unflatten(1, (1, 8, 1)), nn.Conv3d(1, 2, 1))
    model.register_buffer("spread", torch.ones(1, 2, 1, 1).expand(1, 2, 4, 4))
    weight = model[0].weight
    looks_at_it, before = weight.detach().view(-1), weight.detach().clone()
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    assert weight.is_contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        weight += 1
    patch.uninstall()
    assert weight.is_contiguous() and weight.grad is not None and weight.grad.is_contiguous()
    assert torch.equal(looks_at_it, (before + 1).view(-1))


def test_volumes_take_the_format_of_their_dimensions(put_in: Callable[..., Patch]) -> None:
    patch = put_in("FX310")
    model = nn.Sequential(nn.Conv3d(2, 8, 3), nn.InstanceNorm3d(8, affine=True))
    weight = model[0].weight
    out = model(torch.randn(2, 2, 8, 8, 8))
    out.sum().backward()
    assert weight.is_contiguous(memory_format=torch.channels_last_3d)
    assert patch.check().evidence == "channels_last on 1 module and 1 input"
    assert patch.values["memory_format"] == "torch.channels_last_3d" and not patch.values["parts"]
    patch.uninstall()
    assert weight.is_contiguous()


def test_compiling_keeps_names_and_says_how_many_graphs(put_in: Callable[..., Patch]) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    patch = put_in("FX414", backend="eager")
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    keys = list(model.state_dict())
    with torch.no_grad():
        expected = model(torch.ones(1, 3))
    assert patch.count == 0, "what trains is decided when it trains"
    got = model(torch.ones(1, 3))
    assert torch.equal(got, expected)
    assert list(model.state_dict()) == keys
    found = patch.check()
    assert found.state == "applied"
    assert "1 module compiled with backend='eager'; 1 graph" in found.evidence


def test_a_class_with_a_compile_of_its_own_is_compiled_as_any_other(put_in: Callable[..., Patch]) -> None:
    class Task(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x).relu()

        def compile(self, **options: Any) -> None:  # type: ignore[override]
            self.model = torch.compile(self.model, **options).forward

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    patch = put_in("FX414", backend="eager")
    Task()(torch.ones(1, 3))
    assert "1 module compiled with backend='eager'; 1 graph" in patch.check().evidence


def test_a_model_that_the_script_compiles_is_not_compiled_again(put_in: Callable[..., Patch]) -> None:
    patch = put_in("FX414", backend="eager")
    compiled = torch.compile(nn.Linear(3, 3), backend="eager")
    compiled(torch.ones(1, 3))
    assert "compiled already" in patch.check().reason


def test_the_script_s_own_call_gets_other_keywords(put_in: Callable[..., Patch]) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    patch = put_in("FX406")

    def breaking(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x + 1

    with pytest.raises(Exception, match=r"(?i)graph.?break|skip"):
        torch.compile(breaking, backend="eager")(torch.ones(1))
    assert patch.values == {"fullgraph": True}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_the_repeated_blocks_are_compiled_in_the_place_of_the_model(put_in: Callable[..., Patch]) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    patch = put_in("FX410")
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.blocks = blocks

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            for block in self.blocks:
                x = block(x)
            return x

    model = torch.compile(Model(), backend="eager")
    assert isinstance(model, Model)
    model(torch.ones(1, 4))
    assert [torch_private.is_compiled_module(block) for block in blocks] == [True] * 3
    assert not torch_private.is_compiled_module(model)
    assert "3 blocks compiled one by one" in patch.check().evidence


def test_repeated_blocks_are_those_that_hold_the_weights() -> None:
    heavy = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))
    light = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    assert repeated_blocks(nn.ModuleDict({"light": light, "heavy": heavy})) == list(heavy)
    assert repeated_blocks(nn.Sequential(nn.Linear(2, 2), nn.ReLU())) == []


def test_the_recompilation_limit_is_raised_where_the_script_compiles(put_in: Callable[..., Patch]) -> None:
    torch._dynamo.reset()
    before = torch_private.recompile_limit()
    try:
        patch = put_in("FX411", limit=17)
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
        assert torch_private.recompile_limit() == 17
        assert patch.check().state == "applied"
    finally:
        torch_private.set_recompile_limit(before or 8)


# -- copies ----------------------------------------------------------------------------------------


class OnHost:
    """What a patch asks of a tensor before it copies it; pinning needs a GPU."""

    requires_grad = False

    def __init__(self, *, pinned: bool = False, inference: bool = False) -> None:
        self.pinned, self.inference, self._version = pinned, inference, 0

    def is_pinned(self) -> bool:
        return self.pinned

    def is_inference(self) -> bool:
        return self.inference

    shape = (4,)

    def stride(self) -> tuple[int, ...]:
        return (1,)

    def numel(self) -> int:
        return 4

    def element_size(self) -> int:
        return 4

    def pin_memory(self) -> OnHost:
        return OnHost(pinned=True)


def test_a_batch_that_comes_again_is_pinned_once_and_anew_when_it_changed(
    put_in: Callable[..., Patch],
) -> None:
    patch: Any = put_in("FX103")
    batch = OnHost()
    first = patch._source(batch)
    assert first.pinned
    assert patch._source(batch) is first
    batch._version += 1
    assert patch._source(batch) is not first
    assert patch._pinned_bytes == 16
    del batch
    gc.collect()
    assert (patch._pinned, patch._pinned_bytes) == ({}, 0), "a twin lives as long as its source"
    already = OnHost(pinned=True)
    assert patch._source(already) is already
    loose = OnHost(inference=True)
    assert patch._source(loose) is not patch._source(loose)


@pytest.mark.parametrize(
    "source",
    [
        torch.arange(6.0).reshape(2, 3),
        torch.arange(6.0).reshape(2, 3).T,
        torch.arange(12.0)[::2],
        torch.arange(3.0).expand(4, 3),
        torch.arange(6.0).unfold(0, 3, 1),
        torch.rand(8, 512)[:, :20].unsqueeze(1).expand(-1, 4, -1),
        torch.rand(100, 64)[:, :1].expand(-1, 10),
    ],
    ids=["whole", "transposed", "every other", "expanded", "windows", "expanded rows", "expanded column"],
)
def test_what_several_numbers_share_a_place_in_is_pinned_in_full(
    put_in: Callable[..., Patch], monkeypatch: pytest.MonkeyPatch, source: torch.Tensor
) -> None:
    def pin_memory(x: torch.Tensor) -> torch.Tensor:  # as torch does
        return torch.empty_strided(x.size(), x.stride()).copy_(x)

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda _: False)
    patch: Any = put_in("FX103")
    twin = patch._source(source)
    assert twin is not source
    assert torch.equal(twin, source)


def test_copies_of_what_is_not_pinned_are_left_alone_by_non_blocking_alone(
    put_in: Callable[..., Patch],
) -> None:
    patch: Any = put_in("FX104")
    assert patch._source(OnHost()) is None
    assert patch._source(OnHost(pinned=True)).pinned
    assert patch.reasons == ["the tensors that are copied are not in pinned memory"]


@pytest.mark.parametrize(
    ("args", "kwargs", "after"),
    [
        (("cuda",), {}, (("cuda",), {"non_blocking": True})),
        (("cuda", torch.float16, False), {}, (("cuda", torch.float16, True), {})),
        ((), {"device": "cuda", "non_blocking": False}, ((), {"device": "cuda", "non_blocking": True})),
    ],
)
def test_non_blocking_is_set_wherever_it_is_written(args: Any, kwargs: Any, after: Any) -> None:
    assert (_without_blocking(args, kwargs), kwargs) == after


# -- the process -----------------------------------------------------------------------------------


def test_a_switch_that_the_script_sets_itself_is_on_already(put_in: Callable[..., Patch]) -> None:
    patch = put_in("FX309")
    torch.use_deterministic_algorithms(False)
    patch.training_begins()
    assert patch.check().reason == "the switch was on already"


def test_a_switch_is_set_when_the_set_up_is_over_and_read_back(put_in: Callable[..., Patch]) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        patch = put_in("FX309")
        torch.use_deterministic_algorithms(True)  # as the script's own set-up does
        patch.training_begins()
        assert not torch.are_deterministic_algorithms_enabled()
        assert patch.check().state == "applied"
        torch.use_deterministic_algorithms(True)
        assert "the script set it back" in patch.check().reason
    finally:
        patch.uninstall()
        torch.use_deterministic_algorithms(False)


def test_the_collector_rests_and_comes_back(put_in: Callable[..., Patch]) -> None:
    patch = put_in("FX505")
    patch.training_begins()
    assert not gc.isenabled()
    assert patch.check().state == "applied"
    patch.uninstall()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_the_cache_is_emptied_before_training_only(put_in: Callable[..., Patch]) -> None:
    patch = put_in("FX204")
    torch.cuda.empty_cache()
    assert patch.check().state == "not applied"
    patch.training_begins()
    torch.cuda.empty_cache()
    torch.cuda.memory.empty_cache()
    assert patch.check().evidence == "2 calls of empty_cache() left out"


def test_the_script_s_own_calls_of_the_collector_are_left_out_once_it_trains(
    put_in: Callable[..., Patch], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda *_args: made.append(1) or 7)
    patch = put_in("FX518")
    assert gc.collect() == 7
    assert patch.check().reason == "the script's own files never called gc.collect() during training"
    patch.training_begins()
    gc.collect()
    assert len(made) == 1
    in_library: dict[str, Any] = {"gc": gc}
    exec(compile("def free(): return gc.collect()", f"{os.__file__}", "exec"), in_library)
    assert in_library["free"]() == 7, "no line of the script's can be removed for it"
    assert gc.isenabled()
    assert patch.check().evidence == "1 call of gc.collect() left out"
    assert patch.check().sites[0].file == __file__
    patch.uninstall()
    assert gc.collect() == 7


def test_the_script_s_own_waits_for_the_device_are_left_out_once_it_trains(
    put_in: Callable[..., Patch], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: made.append(device))
    patch = put_in("FX527")
    torch.cuda.synchronize()
    patch.training_begins()
    torch.cuda.synchronize(1)
    in_library: dict[str, Any] = {"torch": torch}
    exec(compile("def record(): torch.cuda.synchronize('theirs')", f"{os.__file__}", "exec"), in_library)
    in_library["record"]()
    assert made == [None, "theirs"]
    assert patch.check().evidence == "1 call of torch.cuda.synchronize() left out"
    patch.uninstall()
    torch.cuda.synchronize(2)
    assert made[-1] == 2


@pytest.mark.parametrize("workers", [0, 1])
def test_a_pass_of_which_one_batch_was_taken_is_gone_on_with(
    put_in: Callable[..., Patch], workers: int
) -> None:
    loader = DataLoader(TensorDataset(torch.arange(6.0)), 2, num_workers=workers)

    def taken(count: int) -> list[float]:
        return [next(iter(loader))[0][0].item() for _ in range(count)]

    patch = put_in("FX113")
    assert taken(2) == [0.0, 0.0]
    assert patch.check().reason == "no iterator was left behind after a single batch"
    patch.training_begins()
    assert [batch[0][0].item() for batch in loader] == [0.0, 2.0, 4.0]
    for _ in range(3):
        assert [batch[0][0].item() for batch, _ in zip(loader, range(2), strict=False)] == [0.0, 2.0]
    assert patch.check().count == 0, "more than one batch was taken, or all"
    assert taken(5) == [0.0, 2.0, 4.0, 0.0, 2.0]
    assert patch.check().evidence == "3 calls of iter() went on with the pass before"
    patch.uninstall()
    assert taken(2) == [0.0, 0.0]


def test_threads_are_those_asked_for(put_in: Callable[..., Patch]) -> None:
    before = torch.get_num_threads()
    try:
        patch = put_in("FX506", threads=before + 1)
        patch.training_begins()
        assert torch.get_num_threads() == before + 1
        assert f"{before} -> {before + 1} intra-op threads" in patch.check().evidence
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "expandable_segments:True"),
        # It would keep large free blocks from other sizes in segments that grow, too.
        ("max_split_size_mb:32,garbage_collection_threshold:0.8",
         "garbage_collection_threshold:0.8,expandable_segments:True"),
        ("expandable_segments:False,garbage_collection_threshold:0.8",
         "garbage_collection_threshold:0.8,expandable_segments:True"),
    ],
)  # fmt: skip
def test_allocator_settings_keep_what_is_not_against_segments_that_grow(before: str, after: str) -> None:
    name = "PYTORCH_CUDA_ALLOC_CONF"
    assert patch_environment.environment_of([wish_of("FX201")], {name: before}) == {name: after}


def test_the_environment_is_only_that_of_the_fixes_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch_environment, "find_malloc", lambda: "/lib/libjemalloc.so.2")
    assert patch_environment.environment_of([wish_of("FX311")], os.environ) == {}
    made = patch_environment.environment_of(
        [wish_of("FX201"), wish_of("FX206"), wish_of("FX506", threads=3)],
        {"PYTORCH_ALLOC_CONF": "a:1", "LD_PRELOAD": "x.so"},
    )
    assert made["PYTORCH_ALLOC_CONF"] == "a:1,expandable_segments:True"
    assert made["LD_PRELOAD"] == "/lib/libjemalloc.so.2 x.so"
    assert made["MALLOC_CONF"]
    assert made["OMP_NUM_THREADS"] == "3"
    monkeypatch.setattr(patch_environment, "find_malloc", lambda: None)
    assert patch_environment.environment_of([wish_of("FX206")], {}) == {}


# -- several ranks ---------------------------------------------------------------------------------


@pytest.fixture
def alone(tmp_path: Any) -> Iterator[None]:
    """A process group of one."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_gradients_are_synchronised_with_the_last_micro_step_only(put_in: Callable[..., Patch]) -> None:
    patch = put_in("FX602")
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    synced: list[bool] = []
    for _update in range(5):
        for _micro in range(3):
            loss = model(torch.ones(1, 2)).sum()
            synced.append(model.require_backward_grad_sync)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert synced[:9] == [True] * 9, "three updates to learn from"
    assert synced[9:] == [False, False, True] * 2
    assert patch.check().evidence == "no all-reduce in 4 micro-steps, 3 to an update"
    patch.uninstall()
    assert model.require_backward_grad_sync


@pytest.mark.usefixtures("alone")
def test_an_irregular_update_ends_leaving_synchronisation_out(put_in: Callable[..., Patch]) -> None:
    patch = put_in("FX602")
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for micro_steps in (2, 2, 2, 1, 2):
        for _micro in range(micro_steps):
            model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    found = patch.check()
    assert found.state == "not applied"
    assert "1 backward passes instead of 2" in found.reason
    assert model.require_backward_grad_sync


@pytest.mark.usefixtures("alone")
def test_buffers_are_not_sent_before_the_forward(put_in: Callable[..., Patch]) -> None:
    sent: list[bool] = []

    class Looks(nn.BatchNorm1d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sent.append(torch_private.sends_buffers([model]))
            return super().forward(x)

    model = nn.parallel.DistributedDataParallel(Looks(2))
    patch = put_in("FX609")
    model(torch.randn(4, 2)).sum().backward()
    assert torch_private.sends_buffers([model]), "as before, outside of the forward"
    assert patch.check().evidence == "1 forward without sending buffers"
    patch.uninstall()
    model(torch.randn(4, 2)).sum().backward()
    assert sent == [False, True]


@pytest.mark.usefixtures("alone")
def test_a_model_without_buffers_has_none_to_keep(put_in: Callable[..., Patch]) -> None:
    patch = put_in("FX609")
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    model(torch.ones(1, 2))
    assert patch.check().reason == "no module in DistributedDataParallel sent buffers"
    with pytest.raises(NotSwitchable, match="sent buffers"):
        patch.put_in(Program(roots=(model,), optimizers=()))


@pytest.mark.usefixtures("alone")
def test_ddp_is_built_with_other_options(put_in: Callable[..., Patch]) -> None:
    patch = put_in("FX601")
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    assert model.static_graph
    assert model.gradient_as_bucket_view
    assert "bucket_cap_mb" not in patch.check().values, "nobody asked for another size"


@pytest.mark.usefixtures("alone")
def test_ddp_is_built_with_the_size_of_buckets_that_is_asked_for(put_in: Callable[..., Patch]) -> None:
    patch = put_in("FX601", bucket_cap_mb=5)
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    assert model.bucket_bytes_cap == 5 << 20
    assert patch.check().values["bucket_cap_mb"] == 5


def test_an_optimizer_without_any_state_has_stepped_all_the_same(put_in: Callable[..., Patch]) -> None:
    patch = put_in("FX311")
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert patch.check().reason == "the optimizer it was built into never made a step"
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert not optimizer.state
    assert patch.check().state == "applied"


@pytest.mark.parametrize("way", ["function", "context", "detector"])
def test_anomaly_detection_stays_off_however_it_is_asked_for(put_in: Callable[..., Patch], way: str) -> None:
    patch = put_in("FX512")
    assert patch.check().reason == "anomaly detection was never switched on"
    if way == "function":
        torch.autograd.set_detect_anomaly(True)
        assert not torch.is_anomaly_enabled()
    elif way == "context":
        with torch.autograd.set_detect_anomaly(True):
            assert not torch.is_anomaly_enabled()
    else:
        with pytest.warns(UserWarning, match="Anomaly Detection"), torch.autograd.detect_anomaly():
            assert not torch.is_anomaly_enabled()
    found = patch.check()
    assert (found.state, found.evidence) == ("applied", "anomaly detection left off in 1 call")
    assert found.sites[0].file == __file__


@pytest.mark.parametrize("context", [torch.autocast, torch.amp.autocast])
def test_autocast_does_nothing_on_the_cpu_however_it_is_entered(
    put_in: Callable[..., Patch], context: Any
) -> None:
    patch = put_in("FX322")
    linear, x = nn.Linear(4, 4), torch.randn(2, 4)
    with context("cpu", dtype=torch.bfloat16):
        assert linear(x).dtype is torch.float32
    assert not torch.is_autocast_enabled("cpu")
    with context("cpu", dtype=torch.bfloat16, enabled=False):
        assert linear(x).dtype is torch.float32
    found = patch.check()
    assert (found.state, found.evidence) == ("applied", "autocast left off in 1 context")
    assert found.sites[0].file == __file__


def test_what_no_optimizer_has_gets_no_gradient(put_in: Callable[..., Patch]) -> None:
    patch = put_in("FX325")
    trunk, head, teacher = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 2)
    model = nn.Sequential(trunk, head)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for _ in range(2):
        (model(torch.randn(3, 4)) - teacher(torch.randn(3, 4))).square().mean().backward()
        optimizer.step()
    assert trunk.weight.grad is None and head.weight.grad is not None
    assert teacher.weight.grad is not None, "of a module that no optimizer has a part of nothing is known"
    assert patch.check().evidence == "gradients turned off for 2 parameters"
    patch.uninstall()
    assert trunk.weight.requires_grad and trunk.bias.requires_grad


@pytest.mark.parametrize("kind", [torch.profiler.profile, torch.autograd.profiler.profile])
def test_a_profiler_of_the_script_records_nothing_and_has_no_results(
    put_in: Callable[..., Patch], kind: Any
) -> None:
    patch = put_in("FX519")
    with kind() as recorded:
        assert not torch._C._autograd._profiler_enabled()
        torch.ones(2).add(1)
    assert not recorded.key_averages()
    assert patch.check().evidence == "the script's profiler left off 1 time"


def test_masks_that_mask_nothing_do_not_reach_fused_attention(
    put_in: Callable[..., Patch], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    plain = nn.functional.scaled_dot_product_attention

    def noted(*args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append((*args, None)[3] if len(args) > 3 else kwargs.get("attn_mask"))
        return plain(*args, **kwargs)

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", noted)
    patch = put_in("FX323")
    q, idle = torch.randn(1, 2, 4, 8), torch.zeros(4, 4)
    hides = torch.ones(4, 4, dtype=torch.bool).tril()
    nn.functional.scaled_dot_product_attention(q, q, q, idle, 0.0)
    nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=idle)
    nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=hides)
    assert seen[:2] == [None, None]
    assert seen[2] is hides
    assert patch.check().evidence == "no mask in 2 calls of fused attention"


def test_attention_in_float32_gets_the_type_of_the_others_and_hands_out_its_own(
    put_in: Callable[..., Patch], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.dtype] = []
    plain = nn.functional.scaled_dot_product_attention

    def noted(q: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(q.dtype)
        return plain(q, *args, **kwargs)

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", noted)
    patch = put_in("FX345")
    q, mask = torch.randn(1, 2, 4, 8, requires_grad=True), torch.zeros(4, 4)
    out = nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    half, hides = q.bfloat16(), torch.ones(4, 4, dtype=torch.bool)
    nn.functional.scaled_dot_product_attention(half, half, half, hides)
    with torch.autocast("cpu", torch.bfloat16):
        nn.functional.scaled_dot_product_attention(q, q, q)
    assert seen == [torch.bfloat16, torch.bfloat16, torch.float32]
    assert out.dtype is torch.float32
    torch.testing.assert_close(out, plain(q, q, q), atol=0.02, rtol=0.02)
    out.sum().backward()
    assert q.grad is not None and q.grad.dtype is torch.float32
    assert patch.check().evidence == "16 bits in 1 call of fused attention"


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_checkpointed_is_computed_once(put_in: Callable[..., Patch], reentrant: bool) -> None:
    patch = put_in("FX214")
    from torch.utils.checkpoint import checkpoint, checkpoint_sequential

    calls = []

    def block(x: torch.Tensor, *, scale: float) -> torch.Tensor:
        calls.append(scale)
        return (x * scale).sin()

    x = torch.ones(3, requires_grad=True)
    kwargs = {} if reentrant else {"scale": 2.0}
    function = (lambda x: block(x, scale=2.0)) if reentrant else block
    out = checkpoint(function, x, use_reentrant=reentrant, preserve_rng_state=False, **kwargs)
    out.sum().backward()
    assert calls == [2.0]
    assert torch.allclose(x.grad, 2 * torch.cos(torch.full((3,), 2.0)))
    layers = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    checkpoint_sequential(layers, 2, x, use_reentrant=False).sum().backward()
    with torch.no_grad():
        checkpoint(function, x, use_reentrant=reentrant, **kwargs)
    found = patch.check()
    assert found.state == "applied"
    assert found.evidence == "2 calls of checkpoint() kept their activations"


def test_what_is_saved_stays_where_it_is_and_the_hooks_around_it_are_as_they_were(
    put_in: Callable[..., Patch],
) -> None:
    saved: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor.clone()

    x = torch.ones(3, requires_grad=True)
    outs: list[torch.Tensor] = []
    mine = torch.autograd.graph.saved_tensors_hooks(note, lambda kept: kept)
    made_before = torch.autograd.graph.save_on_cpu()
    made_before.pack_hook, made_before.unpack_hook = mine.pack_hook, mine.unpack_hook
    patch = put_in("FX341")
    for offloads in (made_before, torch.autograd.graph.save_on_cpu()):
        with offloads:
            outs.append(x.exp())
    assert not saved
    with mine, made_before:
        outs.append(x.exp())
        patch.uninstall()
    assert patch.check().evidence == "saved tensors stayed where they were in 3 contexts of save_on_cpu()"
    outs.append(x.exp())
    assert not saved, "what was entered while it was on is left as it was entered"
    for offloads in (mine, made_before):
        with offloads:
            outs.append(x.exp())
    assert len(saved) == 2
    assert "__enter__" not in vars(torch.autograd.graph.save_on_cpu)
    torch.stack(outs).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 6 * np.e))


@pytest.mark.filterwarnings("error")
def test_what_is_saved_is_freed_with_its_graph_and_must_stay_as_it_was(put_in: Callable[..., Patch]) -> None:
    put_in("FX341")
    x = torch.ones(3, requires_grad=True)
    offloads = torch.autograd.graph.save_on_cpu()
    gc.disable()
    try:
        with offloads:
            out = x.exp()
        alive = weakref.ref(out)
        del out
        assert alive() is None
    finally:
        gc.enable()
    with offloads:
        out = x.exp()
    loss = (out * 1).sum()
    out.add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


# -- cheaper calls ---------------------------------------------------------------------------------


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [None, 0, 1, -1])
@pytest.mark.parametrize("q", [0.3, 1.0, [0.25, 0.5], [0.0]])
def test_selected_quantiles_are_those_of_torch(
    put_in: Callable[..., Patch], q: Any, dim: int | None, keepdim: bool
) -> None:
    wanted = torch.tensor(q) if isinstance(q, list) else q
    x = torch.randn(6, 7, 5, requires_grad=True)

    def both() -> tuple[torch.Tensor, torch.Tensor]:
        found = torch.quantile(x, wanted, dim, keepdim) + x.quantile(wanted, dim, keepdim)
        return found, torch.autograd.grad(found.square().sum(), x)[0]

    theirs = both()
    patch = put_in("FX331")
    torch.testing.assert_close(both(), theirs)
    assert patch.check().state == "applied"


def test_quantiles_that_select_cannot_give_are_left_to_torch(put_in: Callable[..., Patch]) -> None:
    x = torch.tensor([1.0, float("nan"), 3.0])
    patch = put_in("FX331")
    assert x.quantile(0.5).isnan()
    assert torch.tensor([1.0, 2.0]).quantile(0.5, interpolation="lower") == 1.0
    with pytest.raises(RuntimeError):
        torch.tensor([1, 2]).quantile(0.5)
    with pytest.raises(RuntimeError):
        x.quantile(1.5)
    assert patch.check().state == "not applied"
    assert torch.quantile(input=torch.tensor([1.0, 2.0]), q=0.5) == 1.5
    assert patch.check().state == "applied"


def test_rows_are_shortened_to_the_same_length(put_in: Callable[..., Patch]) -> None:
    plain = torch.nn.Embedding(20, 4, max_norm=1.0)
    other = torch.nn.Embedding(20, 4, max_norm=1.0)
    other.load_state_dict(plain.state_dict())
    looked_up = torch.tensor([[3, 3, 1], [7, 3, 19]])
    theirs = plain(looked_up)
    patch = put_in("FX332")
    ours = other(looked_up)
    ours.sum().backward()
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(other.weight, plain.weight)
    assert patch.check().state == "applied"


@pytest.mark.parametrize(
    "asked", [{}, {"return_inverse": True}, {"return_inverse": True, "return_counts": True}]
)
def test_rows_told_apart_by_a_key_are_in_the_order_of_torch(
    put_in: Callable[..., Patch], asked: dict[str, bool]
) -> None:
    x = torch.randint(-3, 4, (200, 3))
    theirs = x.unique(dim=0, **asked)
    patch = put_in("FX333")
    ours = x.unique(dim=0, **asked)
    assert patch.check().state == "applied"
    pairs = [(ours, theirs)] if isinstance(ours, torch.Tensor) else list(zip(ours, theirs, strict=True))
    assert all(torch.equal(one, other) for one, other in pairs)


def test_rows_whose_key_would_not_fit_are_left_to_torch(put_in: Callable[..., Patch]) -> None:
    x = torch.tensor([[2**40, -(2**40)], [5, 2**40]])
    patch = put_in("FX333")
    assert x.unique(dim=0).tolist() == [[5, 2**40], [2**40, -(2**40)]]
    assert torch.rand(3, 2).unique(dim=0).shape == (3, 2)
    assert patch.check().state == "not applied"


def test_a_sparse_matrix_is_converted_when_it_comes_a_second_time(put_in: Callable[..., Patch]) -> None:
    table = torch.eye(5).to_sparse()
    x = torch.randn(5, 3, requires_grad=True)
    theirs = torch.sparse.mm(table, x)
    patch = put_in("FX334")
    for _ in range(3):
        ours = (table @ x) + torch.sparse.mm(table, x)
        (gradient,) = torch.autograd.grad(ours.sum(), x)
        torch.testing.assert_close(ours, 2 * theirs)
        torch.testing.assert_close(gradient, torch.full((5, 3), 2.0))
    found = patch.check()
    assert (found.state, found.evidence) == ("applied", "the matrix as CSR in 5 products")


def test_sparse_matrices_made_for_each_product_are_left_to_torch(put_in: Callable[..., Patch]) -> None:
    patch = put_in("FX334")
    table, out = torch.eye(5).to_sparse(), torch.empty(5, 3)
    for _ in range(3):
        torch.mm(table, torch.ones(5, 3), out=out)
        torch.mm(input=table, mat2=torch.ones(5, 3))
        torch.mm(table, mat2=torch.ones(5, 3))
    assert out.sum() == 15.0
    for _ in range(3):
        torch.sparse.mm(torch.eye(5).to_sparse(), torch.randn(5, 3))
    assert "made anew" in patch.check().reason


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("keepdim", [False, True])
def test_the_largest_along_an_outer_axis_is_that_of_torch(
    put_in: Callable[..., Patch], name: str, keepdim: bool
) -> None:
    # Many are equal: the first of them counts.
    x = torch.randint(0, 3, (4, 5, 6)).float().requires_grad_()

    def both() -> list[torch.Tensor]:
        by_method = [getattr(x, name)(dim, keepdim) for dim in (0, 1, -2)]
        return [*by_method, getattr(torch, name)(x, dim=-3, keepdim=keepdim)]

    theirs = both()
    patch = put_in("FX335")
    assert all(torch.equal(ours, other) for ours, other in zip(both(), theirs, strict=True))
    found = patch.check()
    assert (found.state, found.evidence) == ("applied", "max or min of rows in 4 argmaxs")


def test_what_argmax_does_fast_or_refuses_is_left_to_it(put_in: Callable[..., Patch]) -> None:
    x = torch.randn(3, 4)
    patch = put_in("FX335")
    assert (int(x.argmax()), x.argmax(-1).shape, torch.argmax(x, 1, keepdim=True).shape) == (
        int(x.flatten().argmax(0)), (3,), (3, 1),
    )  # fmt: skip
    with pytest.raises(IndexError):
        x.argmax(2)
    with pytest.raises(IndexError):
        torch.empty(0, 3).argmax(0)
    assert patch.check().state == "not applied"
    assert torch.equal(torch.argmax(input=x, dim=0), x.max(0).indices)
    assert patch.check().state == "applied"


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_products_of_integers_are_exact(put_in: Callable[..., Patch], dtype: torch.dtype) -> None:
    low = 0 if dtype is torch.uint8 else -3
    a, b = (torch.randint(low, 4, (2, 5, 5)).to(dtype) for _ in range(2))

    def all_ways() -> list[torch.Tensor]:
        return [a @ b, torch.matmul(a[0], b), torch.bmm(a, b), a[0].mm(b[0]), a[0] @ b[0, :, 0]]

    theirs = all_ways()
    patch = put_in("FX336")
    ours = all_ways()
    assert all(
        torch.equal(one, other) and one.dtype is dtype for one, other in zip(ours, theirs, strict=True)
    )
    assert patch.check().evidence == "multiplied as floats in 5 products"


def test_products_that_floats_cannot_hold_are_left_to_torch(put_in: Callable[..., Patch]) -> None:
    large, small = torch.full((2, 2), 2**40), torch.full((2, 2), 100, dtype=torch.int8)
    theirs = large @ large, small @ small
    patch = put_in("FX336")
    assert torch.equal(large @ large, theirs[0])
    assert torch.equal(small @ small, theirs[1])
    assert torch.equal(torch.mm(input=large, mat2=large), theirs[0])
    assert patch.check().state == "not applied"
    middle = torch.full((2, 2), 5000)
    assert (middle @ middle).tolist() == [[50_000_000] * 2] * 2, "more than float32 holds"
    assert patch.count == 1


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_similarities_of_all_pairs_are_those_of_torch(
    put_in: Callable[..., Patch], batch: tuple[int, ...], swapped: bool
) -> None:
    x, y = (torch.randn(*batch, size, 8, requires_grad=True) for size in (3, 4))

    def both() -> tuple[torch.Tensor, ...]:
        rows, columns = x.unsqueeze(-2), y.unsqueeze(-3)
        pair = (columns, rows) if swapped else (rows, columns)
        found = F.cosine_similarity(*pair, dim=-1) + torch.nn.CosineSimilarity(dim=len(batch) + 2)(*pair)
        return found, *torch.autograd.grad(found.square().sum(), (x, y))

    theirs = both()
    patch = put_in("FX337")
    torch.testing.assert_close(both(), theirs)
    assert patch.check().evidence == "one product for all pairs in 2 calls"


def test_where_no_other_way_is_faster_a_call_stays_as_it_is(
    put_in: Callable[..., Patch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upsampling has another way, too, beside the convolution that the fix was found for."""
    patch = put_in("FX359")
    half = equivalents.timed
    asked: list[int] = []
    monkeypatch.setattr(equivalents, "timed", lambda instead: asked.append(len(instead.others)))
    for rows in (4, 7, 6):
        F.interpolate(torch.randn(rows, 1, 4, 4), scale_factor=2)
    assert (patch.count, asked) == (0, [1]), "as many rows, nearly"
    F.interpolate(torch.randn(99, 1, 4, 4), scale_factor=2)
    assert asked == [1, 1]
    for size in range(5, 30):
        F.interpolate(torch.randn(1, 1, 4, size), scale_factor=2)
    assert (patch.count, len(asked)) == (0, 8), "not each of many sizes is timed"
    monkeypatch.setattr(equivalents, "timed", half)
    patch = put_in("FX359")
    F.interpolate(torch.randn(1, 1, 5, 5), scale_factor=2)
    assert patch.count == 1


def test_a_way_that_a_call_of_another_size_does_not_have_is_not_taken(
    put_in: Callable[..., Patch], monkeypatch: pytest.MonkeyPatch
) -> None:
    took = Took(1, 1, 1)
    monkeypatch.setattr(
        equivalents, "timed", lambda instead: Timed(took, took, len(instead.others) - 1, instead.calls)
    )
    x = torch.randn(64, 64)
    calls = [*(x[:, :width] for width in range(20, 30)), x[:1, :31]]
    theirs = [each.sort(0).values for each in calls]
    patch = put_in("FX355")
    for each, expected in zip(calls, theirs, strict=True):
        assert torch.equal(each.sort(0).values, expected)
    assert patch.count >= len(calls) - 1


def test_similarities_of_rows_are_left_to_torch(put_in: Callable[..., Patch]) -> None:
    x = torch.randn(3, 8)
    patch = put_in("FX337")
    assert F.cosine_similarity(x, x).shape == (3,)
    assert F.cosine_similarity(x[None], x[None], dim=-1).shape == (1, 3)
    assert F.cosine_similarity(x[:, None], x[None], dim=0).shape == (3, 8)
    assert patch.check().state == "not applied"


def test_parts_of_a_tensor_and_their_gradients_are_those_of_indexing(put_in: Callable[..., Patch]) -> None:
    leaf = torch.randn(2, 5, 4, requires_grad=True)

    def taken() -> list[torch.Tensor]:
        x = leaf * 2.0
        parts = [x[:, t] for t in range(5)] + [x[1], x[:, -1], x[:, :, 2]]
        parts += [x[..., 1], x[0, 1], x[:, 1:3], leaf.detach()[:, 0]]
        y = leaf + 1.0
        before = y[:, 0] + 1.0
        y.mul_(3.0)
        parts += [before, y[:, 0]]
        sum((k + 1) * part.square().sum() for k, part in enumerate(parts)).backward()
        found, leaf.grad = [*(part.detach() for part in parts), leaf.grad], None
        return found

    theirs = taken()
    patch = put_in("FX339")
    torch.testing.assert_close(taken(), theirs, rtol=0.0, atol=1e-4)
    assert patch.check().evidence == "taken by one unbind in 10 calls"
    with pytest.raises(IndexError):
        leaf[:, 5]
    with torch.no_grad():
        assert leaf[:, 0].grad_fn is None
    assert patch.count == 10


def test_parts_that_are_read_between_writes_are_those_of_indexing(put_in: Callable[..., Patch]) -> None:
    leaf = torch.randn(2, 5, requires_grad=True)

    def polynomials() -> list[torch.Tensor]:
        values = torch.ones(2, 5, 4)
        values[..., 1] = leaf
        for k in (2, 3):
            values[..., k] = 2 * leaf * values[..., k - 1].clone() - values[..., k - 2].clone()
        rows = leaf * 2.0
        held = rows[0].exp()
        rows[1] = held
        rows[0] += rows[1]
        (values.square().sum() + (rows[0] * rows[1]).sum()).backward()
        found, leaf.grad = [values.detach(), rows.detach(), leaf.grad], None
        return found

    theirs = polynomials()
    patch = put_in("FX339")
    torch.testing.assert_close(polynomials(), theirs, rtol=0.0, atol=0.0)
    assert patch.count == 1, "rows[0], before anything was written"


def test_dot_products_are_those_of_bmm_and_einsum(put_in: Callable[..., Patch]) -> None:
    a, b = (torch.randn(2, 3, 5, requires_grad=True) for _ in range(2))
    rows, columns = a[0, :, None], b[0, :, :, None]

    def dots() -> list[torch.Tensor]:
        return [
            torch.bmm(rows, columns),
            rows @ columns,
            torch.matmul(a[..., None, :], b[..., None]),
            torch.einsum("bnd,bnd->bn", a, b),
            torch.einsum("b n d, d n b -> n", a, b.permute(2, 1, 0)),
            torch.einsum("bnd,bnd->", a, b),
        ]

    def others() -> list[torch.Tensor]:
        return [
            torch.einsum("bnd,bmd->bnm", a, b),
            torch.einsum("bnd,bnd->bnd", a, b),
            torch.einsum("...d,...d->...", a, b),
            a @ b.mT,
            a[0] @ b[0, 0],
            torch.matmul(a[..., None, :], b[:1, ..., None]),
        ]

    theirs, left = dots(), others()
    patch = put_in("FX340")
    ours = dots()
    assert patch.check().evidence == "multiplied and summed in 6 calls"
    torch.testing.assert_close([*ours, *others()], [*theirs, *left])
    with pytest.raises(RuntimeError):
        torch.bmm(rows, columns[:1])
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.bmm(rows, columns).dtype is torch.bfloat16
    assert patch.count == 6


def test_tracers_of_python_are_put_back_and_those_in_c_stay(put_in: Callable[..., Patch]) -> None:
    trace, profile = sys.gettrace(), sys.getprofile()

    def tracer(*_: Any) -> None:
        return None

    try:
        sys.settrace(tracer)
        patch = put_in("FX533")
        patch.training_begins()
        assert sys.gettrace() is None
        patch.uninstall()
        assert sys.gettrace() is tracer
        patch = put_in("FX533")
        patch.training_begins()
        sys.settrace(other := lambda *_: None)
        patch.uninstall()
        assert sys.gettrace() is other, "what the script has begun meanwhile"
        sys.settrace(None)
        in_c = cProfile.Profile()
        in_c.enable()
        if sys.getprofile() is not None:  # not by sys.monitoring
            with pytest.raises(NotSwitchable, match="written in C"):
                put_in("FX533").training_begins()
            assert sys.getprofile() is in_c
        in_c.disable()
    finally:
        sys.settrace(trace)
        sys.setprofile(profile)
