"""What the catalogue is told of a run's optimizers."""

from __future__ import annotations

import pytest

from torch_bottleneck.analyzers.sections.acceleration import _optimizer as settings_row
from torch_bottleneck.analyzers.sections.context import _optimizer
from torch_bottleneck.catalog.conditions import evaluate, fill
from torch_bottleneck.catalog.registry import by_id
from torch_bottleneck.model.run import OptimizerFacts, Run


def run(*optimizers: tuple[str, str]) -> Run:
    made = [
        OptimizerFacts(cls=cls, module="torch.optim", flavour=flavour, parameter_bytes=100 - i)  # type: ignore[arg-type]
        for i, (cls, flavour) in enumerate(optimizers)
    ]
    return Run(optimizers=made)


@pytest.mark.parametrize(
    ("flavours", "told"),
    [
        (("fused",), "fused"),
        (("fused", "foreach"), "foreach"),
        (("foreach", "for-loop"), "for-loop"),
        (("fused", "unknown"), "fused"),
    ],
)
def test_of_several_optimizers_the_slowest_flavour_is_told(flavours: tuple[str, ...], told: str) -> None:
    context = _optimizer(run(*(("AdamW", flavour) for flavour in flavours)))
    assert context["optimizer.flavour"] == told


@pytest.mark.parametrize(("cls", "takes"), [("RMSprop", True), ("LBFGS", False), ("SparseAdam", False)])
def test_foreach_is_offered_to_what_takes_it(cls: str, takes: bool) -> None:
    torch = pytest.importorskip("torch")
    context = _optimizer(run((cls, "for-loop")))
    fix = by_id("FX312")
    assert all(evaluate(condition, context) for condition in fix.when) is takes
    code = fill(fix.code, fix.fills, context)
    assert f"torch.optim.{cls}(" in code
    model = torch.nn.Linear(1, 1)
    if takes:
        exec(code, {"model": model})
    else:
        with pytest.raises(TypeError, match="foreach"):
            exec(code, {"model": model})


def test_an_optimizer_of_the_script_s_own_can_use_foreach_and_is_no_class_of_torch() -> None:
    own = OptimizerFacts(cls="PaperAdam", module="train", flavour="unknown")
    context = _optimizer(Run(optimizers=[own]))
    assert (context["optimizer.can_foreach"], context["optimizer.can_fuse"]) == (True, False)
    assert "optimizer.of_torch" not in context
    fix = by_id("FX312")
    assert fill(fix.code, fix.fills, context) == fix.code


def test_where_only_one_of_two_optimizers_is_fused_the_report_says_which() -> None:
    own = OptimizerFacts(cls="PaperMuon", module="train", flavour="unknown", parameter_bytes=100)
    known = OptimizerFacts(cls="AdamW", module="torch.optim", flavour="fused", parameter_bytes=10)
    # A trace of both shows fused kernels: the reading of the device says so of the step as a whole.
    context = _optimizer(Run(optimizers=[own, known])) | {"optimizer.flavour": "fused"}
    row = settings_row(context)
    assert (row.state, row.value) == ("partly", "PaperMuon not, AdamW fused")
    alone = _optimizer(Run(optimizers=[known])) | {"optimizer.flavour": "fused"}
    assert (settings_row(alone).state, settings_row(alone).value) == ("on", "AdamW fused")


def test_lbfgs_of_another_package_updates_nothing_one_by_one() -> None:
    own = OptimizerFacts(cls="LBFGS", module="kan.LBFGS", parameters=22)
    assert _optimizer(Run(optimizers=[own]))["optimizer.can_foreach"] is False
