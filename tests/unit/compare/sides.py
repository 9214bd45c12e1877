"""Sides to compare, written down: one small run on a CPU, changed where a test says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from torch_bottleneck.compare.sides import Side
from torch_bottleneck.model.baseline import Baseline, FindingKey, Machine, RunTime, StateRow
from torch_bottleneck.model.codes import BottleneckClass, Part
from torch_bottleneck.model.counters import BreakSite, Counter, StepCounters, SyncSite
from torch_bottleneck.model.diagnosis import BudgetLine
from torch_bottleneck.model.run import SourceSite
from torch_bottleneck.model.work import LoaderArguments, OptimizerArguments, Workload

__all__ = ["baseline", "counters", "runs", "side", "site", "sync"]

READ = "aten::_local_scalar_dense"


def site(line: int, file: str = "train.py", function: str = "main") -> SourceSite:
    return SourceSite(file=file, line=line, function=function)


def sync(line: int, code: str, count: float = 1.0, **changes: Any) -> SyncSite:
    return SyncSite(what=READ, count=count, site=site(line, **changes), code=code)


def runs(*times: float, error: float | None = 0.01) -> tuple[RunTime, ...]:
    return tuple(RunTime(step_ms=ms, count=20, error=error) for ms in times)


def counters(values: dict[str, float | Counter] | None = None, **changes: Any) -> StepCounters:
    """Values given are set; the others are those of the small run."""
    numbers: dict[str, float | Counter] = {
        "syncs": 1.0,
        "graph_breaks": 0.0,
        "recompiles": 0.0,
        "operators": 200.0,
        **(values or {}),
    }
    made = StepCounters(
        device="cpu",
        traced_steps=4,
        run_steps=38,
        first_step=29,
        values={k: v if isinstance(v, Counter) else Counter(value=v) for k, v in numbers.items()},
        absent={"kernels": "no device in this run"},
        names={"aten::mm": 10.0, "aten::add": 4.0},
        syncs=(sync(20, "print(loss.item())"),),
    )
    return msgspec.structs.replace(made, **changes)


def baseline(**changes: Any) -> Baseline:
    made = Baseline(
        tool_version="0.1.0",
        title="train.py",
        command=("train.py",),
        plan={"baseline_steps": 20, "steps": 4, "warmup": 8},
        machine=Machine(
            device_kind="cpu", device_name="EPYC", cpu="EPYC", cores=2, python="3.11.7", torch="2.13.0+cpu"
        ),
        workload=Workload(
            world_size=1,
            step_signal="optimizer",
            micro_steps=1.0,
            batch=("float32[16, 32]", "int64[16]"),
            batch_elements=528,
            loaders=(LoaderArguments(cls="DataLoader", role="train", batch_size=16, site=site(8)),),
            optimizers=(OptimizerArguments(cls="AdamW", flavour="fused", parameters=6, site=site(9)),),
        ),
        counters=counters(),
        runs=runs(10.0),
        verdict=BottleneckClass.COMPUTE,
        step_ms=10.0,
        budget=(
            BudgetLine(part=Part.OTHER_MATH, ms=8.0, share=0.8),
            BudgetLine(part=Part.DISPATCH, ms=2.0, share=0.2),
        ),
        findings=(FindingKey(code="BN301", title="The device is busy", cost_ms=8.0),),
        settings={"matmul.precision": "highest"},
        acceleration=(StateRow(name="fused optimizer", state="on", value="AdamW fused"),),
    )
    return msgspec.structs.replace(made, **changes)


def side(label: str = "runs", **changes: Any) -> Side:
    return Side(label=label, baseline=baseline(**changes))


def workload(**changes: Any) -> Workload:
    made = baseline().workload
    assert made is not None
    return msgspec.structs.replace(made, **changes)


def broken(line: int, reason: str, code: str = "") -> BreakSite:
    return BreakSite(reason=reason, site=site(line), code=code)


def budget(**ms: float) -> Sequence[BudgetLine]:
    total = sum(ms.values())
    return tuple(BudgetLine(part=Part[name], ms=value, share=value / total) for name, value in ms.items())
