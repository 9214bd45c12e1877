"""The catalogue keeps its promises: ids for ever, evidence that exists, code that runs, sources to read."""

from __future__ import annotations

import ast
import gc
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import forked
import pytest
import torch

from torch_bottleneck.analyzers.sections.context_keys import CONTEXT_KEYS
from torch_bottleneck.catalog.conditions import REFERENCE, evaluate, fill, filled_code, filled_options
from torch_bottleneck.catalog.registry import FAMILIES, FIXES, by_id
from torch_bottleneck.errors import UsageError
from torch_bottleneck.model.codes import FINDING_CODES
from torch_bottleneck.model.fix import Fix, Risk

IDS = Path(__file__).with_name("catalog_ids.txt")

# Code that cannot run here, and why. It must still compile.
NEEDS = {
    "FX215": "a process group",
    "FX314": "the liger-kernel package and a GPU",
    "FX315": "the torchao package and a GPU",
    "FX319": "the CUDA toolkit",
    "FX503": "a CUDA event",
    "FX508": "CUDA streams",
    "FX515": "the gymnasium package",
    "FX601": "a process group",
    "FX603": "a process group",
    "FX604": "a sharded model",
    "FX605": "a process group",
    "FX609": "a process group",
    "FX611": "a process group",
    "FX610": "a process group",
    "FX607": "torchrun",
}


def each_fix() -> Any:
    return pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.id)


def test_ids_are_unique_and_append_only() -> None:
    ids = [fix.id for fix in FIXES]
    assert len(set(ids)) == len(ids)
    committed = IDS.read_text().split()
    assert sorted(committed) == sorted(ids), (
        "an id is never removed or reused; mark the fix removed, and append new ids"
    )


@each_fix()
def test_every_heading_of_a_page_has_its_text(fix: Fix) -> None:
    assert re.fullmatch(r"FX\d{3}", fix.id)
    assert fix.family in FAMILIES
    assert fix.title and not fix.title.endswith(".")
    assert len(fix.title) <= 50, "a title shares its line of 80 columns with the predicted step"
    assert fix.what_to_change.endswith(".")
    assert fix.code and fix.undo and fix.verify
    assert fix.basis or fix.note, "where would the gain come from?"
    if fix.risk is not Risk.SAFE:
        assert fix.may_break, "a risk without a word on what may break helps nobody"


@each_fix()
def test_every_fix_answers_a_known_finding_or_is_a_note(fix: Fix) -> None:
    assert fix.addresses or fix.note
    for code in fix.addresses:
        assert code in FINDING_CODES
        assert FINDING_CODES[code].status != "removed"


def test_every_finding_that_costs_time_has_a_fix() -> None:
    answered = {code for fix in FIXES for code in fix.addresses if not fix.note}
    assert set(FINDING_CODES) - answered <= {"BN001"}, "BN001 says that nothing can be said"


@each_fix()
def test_conditions_ask_only_for_facts_of_the_context(fix: Fix) -> None:
    for condition in (*fix.when, *fix.unless):
        assert condition.key in CONTEXT_KEYS
        assert condition.text
        if isinstance(condition.value, str) and condition.value.startswith(REFERENCE):
            assert condition.value.removeprefix(REFERENCE) in CONTEXT_KEYS
        # Whatever type the fact has, evaluating must not fail.
        for value in (0, 0.5, True, "2.13", ["item"], None):
            assert evaluate(condition, {condition.key: value}) in {True, False, None}


@each_fix()
def test_conflicts_name_other_fixes(fix: Fix) -> None:
    for other in fix.conflicts:
        assert by_id(other).id != fix.id


@each_fix()
def test_sources_can_be_looked_up(fix: Fix) -> None:
    assert any(source.url for source in fix.sources), "at least one source to read"
    for source in fix.sources:
        assert source.title
        assert not source.url or re.match(r"https://[\w.-]+/\S*$", source.url)
        assert source.url or source.claim, "a source without an address must at least be a claim"


@each_fix()
def test_code_compiles_and_has_no_placeholders(fix: Fix) -> None:
    for code in (fix.code, *(code for _, code in fix.other_code)):
        compile(code, fix.id, "exec")
        assert not re.search(r"<[a-z_ ]+>", code)
        assert "..." not in code
        assert max(map(len, code.splitlines())) <= 76, "a report of 80 columns folds it otherwise"


@each_fix()
def test_code_for_a_trainer_takes_arguments_that_the_trainer_has(fix: Fix) -> None:
    for condition, code in fix.other_code:
        if condition.key != "loop.owner":
            continue
        library = condition.value
        trainers = pytest.importorskip(f"{library}.pytorch" if library == "lightning" else library)
        (call,) = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call))
        assert isinstance(call.func, ast.Name)
        known = inspect.signature(getattr(trainers, call.func.id)).parameters
        assert {word.arg for word in call.keywords} <= set(known)


@each_fix()
def test_fills_replace_text_that_is_there_with_facts_that_exist(fix: Fix) -> None:
    for text, template in fix.fills.items():
        assert text in fix.code
        keys = re.findall(r"[a-z]+\.[a-z_]+", template)
        assert keys
        known = {key: CONTEXT_KEYS[key] for key in keys if key in CONTEXT_KEYS}
        facts = {key: "Name" if kind.startswith("str") else 3 for key, kind in known.items()}
        filled = fill(fix.code, {text: template}, facts)
        assert filled != fix.code
        compile(filled, fix.id, "exec")


@each_fix()
def test_options_stand_in_the_code_with_their_default_and_take_figures_that_exist(fix: Fix) -> None:
    assert fix.can_try or not (fix.options or fix.edits or fix.environment)
    for name, option in fix.options.items():
        if option.needed:
            assert option.of_run, "a trial alone takes it"
        elif option.default is None:
            assert not option.of_run or option.of_run in fix.fills.values(), (
                "the code says the figure as well"
            )
        else:
            assert f"{name}={option.default!r}" in fix.code
        for key in re.findall(r"[a-z]+\.[a-z_]+", option.of_run):
            assert key in CONTEXT_KEYS
    context = {
        key: 3 for option in fix.options.values() for key in re.findall(r"[a-z]+\.[a-z_]+", option.of_run)
    }
    for name, value in filled_options(fix.options, context).items():
        if fix.options[name].needed:
            continue
        told = f"{value}" if fix.options[name].default is None else f"{name}={value!r}"
        assert told in filled_code(fix, context)


@each_fix()
def test_variables_are_filled_from_options_that_exist(fix: Fix) -> None:
    for variable in fix.environment:
        for name in re.findall(r"\{(\w+)\}", variable.value):
            assert name in ("before", "malloc") or name in fix.options


def test_a_catalogue_without_such_an_id_says_so() -> None:
    with pytest.raises(UsageError, match="FX999"):
        by_id("FX999")


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The names that the fixes' code speaks of, tiny and on the CPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LD_PRELOAD", "")  # named but empty: FX206 starts the script again otherwise
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "THP_MEM_ALLOC_ENABLE", "NCCL_DEBUG", "COMPILE"):
        monkeypatch.setenv(name, "0" if name == "COMPILE" else "")

    class Blocks(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(2)])

        def forward(self, x: Any) -> Any:
            for block in self.blocks:
                x = block(x)
            return x

    model = Blocks()
    inputs, targets = torch.randn(8, 4), torch.randn(8, 4)
    batches = [(inputs, targets)] * 2
    images = torch.randint(0, 255, (2, 3, 8, 8), dtype=torch.uint8)
    return {
        "torch": torch,
        "device": torch.device("cpu"),
        "model": model,
        "ddp_model": Accumulating(model),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss_fn": torch.nn.functional.mse_loss,
        "dataset": torch.utils.data.TensorDataset(inputs, targets),
        "loader": batches,
        "micro_batches": batches,
        "inputs": inputs,
        "targets": targets,
        "largest_inputs": inputs,
        "largest_targets": targets,
        "images": images,
        "x": torch.randn(4, 4),
        "q": torch.randn(1, 2, 4, 8),
        "k": torch.randn(1, 2, 4, 8),
        "v": torch.randn(1, 2, 4, 8),
        "loss": model(inputs).sum(),
        "losses": torch.rand(8),
        "mask": torch.rand(8) > 0.5,
        "weights": torch.randn(4096, 1024),
        "tokens": torch.ones(2, 7, dtype=torch.long),
        "state": torch.zeros(1),
        "step": 100,
        "batch_size": 4,
        "rank": 0,
        "world_size": 2,
        "encoder": torch.nn.Linear(4, 2),
        "feature_loader": [(inputs,)],
        "get_batch": lambda: (inputs, targets),
        "train_step": lambda batch: None,
    }


class Accumulating:
    """Stands in for a DistributedDataParallel model, which would need a process group."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, inputs: Any) -> Any:
        return self.model(inputs)

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()


# Code that changes the whole process for good gets one of its own; it names nothing of the training.
OWN_PROCESS = {"FX205", "FX206", "FX348", "FX507"}
"""What they switch stays with threads that are started meanwhile, or with the process."""


@pytest.fixture
def settings_restored() -> Iterator[None]:
    """Put back what the fixes switch: the next test in this process wants torch as it comes."""
    config = torch._dynamo.config
    names = ("suppress_errors", "capture_scalar_outputs", "cache_size_limit")
    dynamo = {name: getattr(config, name) for name in names}
    cudnn = torch.backends.cudnn
    backend = {name: getattr(cudnn, name) for name in ("benchmark", "deterministic", "allow_tf32", "enabled")}
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    fills = torch.utils.deterministic.fill_uninitialized_memory
    yield
    for name, value in dynamo.items():
        setattr(config, name, value)
    for name, value in backend.items():
        setattr(cudnn, name, value)
    torch._dynamo.reset()
    torch.set_float32_matmul_precision(precision)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = fills
    gc.unfreeze()
    gc.enable()


def _labelled(_: dict[str, Any]) -> dict[str, Any]:
    labels = torch.full((4, 10), -100)
    labels[:, 6:] = 1
    return {
        "labels": labels,
        "hidden": torch.randn(4, 10, 8),
        "head": torch.nn.Linear(8, 100),
        "loss_fn": torch.nn.functional.cross_entropy,
    }


INPUTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "FX310": lambda given: {"model": torch.nn.Conv2d(3, 4, 3), "images": given["images"].float()},
    "FX323": lambda _: {"lengths": torch.tensor([4]), "mask": torch.ones(4, 4, dtype=torch.bool)},
    "FX330": _labelled,
    "FX377": lambda _: {
        **{name: torch.nn.Linear(8, 8) for name in ("model", "to_q", "to_k", "to_v")},
        **{name: torch.randn(4, 8) for name in ("one", "other", "x")},
        "norm": torch.nn.LayerNorm(8),
    },
    "FX331": lambda _: {"curves": torch.randn(4, 9), "levels": torch.tensor([0.25, 0.5, 0.75])},
    "FX333": lambda _: {"pairs": torch.randint(0, 9, (50, 2))},
    "FX334": lambda _: {"adjacency": torch.eye(4).to_sparse(), "features": torch.randn(4, 2)},
    "FX335": lambda _: {"logits": torch.randn(2, 3, 4)},
    "FX336": lambda _: {"links": torch.eye(3, dtype=torch.int64)},
    "FX337": lambda _: {"queries": torch.randn(3, 8), "keys": torch.randn(4, 8)},
    "FX338": lambda _: {"weights": torch.rand(3, 5)},
    "FX340": lambda _: {
        "users": torch.randn(3, 8),
        "items": torch.randn(3, 8),
        "weight": torch.randn(5, 8, 8),
    },
    "FX344": lambda _: {"x": torch.randn(2, 3, 4)},
    "FX350": lambda _: {"A": torch.eye(3), "b": torch.randn(3, 2)},
    "FX351": lambda _: {
        "x": torch.randn(3, 8),
        "att": torch.randn(8),
        "a": torch.randn(3, 8),
        "b": torch.randn(4, 8),
    },
    "FX352": lambda _: {"A": torch.randn(3, 3), "B": torch.randn(3, 3), "c": torch.randn(3)},
    "FX353": lambda _: {"table": torch.randn(5, 2), "index": torch.tensor([0, 3])},
    "FX354": lambda _: {"signal": torch.randn(16)},
    "FX355": lambda _: {"x": torch.randn(2, 3, 4)},
    "FX356": lambda _: {"x": torch.randn(2, 4, 3, device="meta")},
    "FX357": lambda _: {"scores": torch.randn(2, 9)},
    "FX358": lambda _: {"counts": torch.tensor([0.0, 2.0, 0.0])},
    "FX359": lambda _: {"signal": torch.randn(2, 16), "kernel": torch.randn(5)},
    "FX360": lambda _: {
        "out": torch.zeros(3, 2),
        "index": torch.tensor([0, 2, 0]),
        "rows": torch.randn(3, 2),
    },
    "FX361": lambda _: {"scores": torch.randn(2, 4).bfloat16()},
    "FX362": lambda _: {"x": torch.randn(5, 3, 3)},
    "FX364": lambda _: {name: torch.randn(1, 2, 4, 8) for name in "qkv"},
    "FX366": lambda _: {"x": torch.randn(2, 5)},
    "FX367": lambda _: {"sound": torch.randn(2, 40), "window": 8, "hop": 4},
    "FX368": lambda _: {"a": torch.randn(4, 6), "b": torch.randn(6, 4)},
    "FX369": lambda _: {
        "index": torch.tensor([[0, 3], [1, 1]]),
        "table": torch.randn(5, 2),
        "weights": torch.ones(3),
        "targets": torch.tensor([0, 1, 1]),
        "sources": torch.tensor([0, 0, 2]),
        "x": torch.randn(3, 2),
    },
    "FX376": lambda _: {"d": torch.randn(4), "x": torch.randn(4, 2)},
    "FX370": lambda _: {"limits": torch.arange(4.0), "x": torch.rand(7) * 4},
    "FX371": lambda _: {"a": torch.randn(3, 4), "b": torch.randn(4, 5)},
    "FX372": lambda _: {"x": torch.randn(5, 3), "y": torch.randn(5, 4), "weight": torch.randn(6, 3, 4)},
    "FX373": lambda _: {"adjacency": torch.eye(4), "x": torch.randn(4, 2)},
    "FX374": lambda _: {"layer": torch.nn.Linear(4, 2), "rounds": [torch.randn(3, 4)] * 2},
    "FX375": lambda _: {"features": 4, "hidden": 8, "inputs": torch.randn(2, 3, 4)},
    "FX365": lambda _: {"windows": 2, **{name: torch.randn(1, 2, 4, 8) for name in "qkv"}},
    "FX363": lambda _: {"a": torch.randn(3, 8), "b": torch.randn(4, 8)},
    "FX346": lambda _: {"window": torch.zeros(4, 3), "new": torch.ones(3), "step": 5},
    "FX345": lambda _: {
        **{name: torch.randn(1, 2, 4, 8).bfloat16() for name in "qkv"},
        "rotary": lambda x: x * torch.ones(8),
    },
    "FX343": lambda _: {
        "queries": torch.randn(3, 8),
        "keys": torch.randn(4, 8),
        "weight": torch.randn(5, 16),
    },
    "FX342": lambda _: {"losses": [torch.ones(2, requires_grad=True).sum() for _ in range(2)]},
    "FX339": lambda _: {
        "inputs": torch.randn(2, 3, 4),
        "hidden": torch.zeros(2, 4),
        "cell": torch.nn.GRUCell(4, 4),
        "gates": torch.randn(2, 8),
    },
    "FX509": lambda given: {"loader": [(given["images"], given["targets"])]},
    "FX510": lambda _: {"inputs": torch.randn(2, 3, 4), "weights": torch.randn(2, 4, 5)},
    "FX513": lambda _: {"features": 4, "hidden": 8, "inputs": torch.randn(2, 3, 4)},
    "FX514": lambda _: {"p": torch.rand(4, 3), "y": torch.tensor([0, 2, 1, 1])},
    "FX531": lambda _: {"device": "cpu", "Net": lambda: torch.nn.Linear(8, 2)},
    "FX532": lambda _: {
        "words": ["a", "b"],
        "images": torch.rand(2, 3, 4, 4),
        "factors": torch.rand(2),
        "jitter": torch.mul,
        "numbers": {"a": 1, "b": 0},
        "m": 0.9,
        **{name: list(torch.nn.Linear(8, 2).parameters()) for name in ("averages", "weights", "grads")},
    },
    "FX528": lambda _: {
        "model": torch.nn.Linear(8, 2),
        **{name: torch.randn(3, 8) for name in ("first", "second")},
    },
    "FX520": lambda _: {"arrays": [torch.ones(4).numpy()] * 3},
}
"""What the code of a fix is about, beside what every training has."""


@each_fix()
@pytest.mark.usefixtures("settings_restored")
@pytest.mark.filterwarnings("ignore")  # pinning without a device, deprecations of what is replaced
def test_code_runs(fix: Fix, training: dict[str, Any], tmp_path: Path) -> None:
    if fix.id in NEEDS:
        pytest.skip(f"needs {NEEDS[fix.id]}")
    if fix.id in OWN_PROCESS:
        (tmp_path / "fix.py").write_text(fix.code)
        forked.run([sys.executable, tmp_path / "fix.py"], check=True, timeout=600)
        return
    training |= INPUTS.get(fix.id, lambda _: {})(training)
    exec(compile(fix.code, fix.id, "exec"), training)
