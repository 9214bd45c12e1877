"""What must agree before two sides can be compared, and what else differs between them.

In: two baselines. Out: `Mismatch` rows, which refuse the comparison unless allowed, and
`SettingChange` rows, which explain it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from ..model.baseline import Baseline
from ..model.compare import Mismatch, SettingChange
from ..model.run import JsonValue
from ..model.work import LoaderArguments, Workload

Allowable = Literal["device", "batch", "world-size", "torch", "step"]
ALLOWABLE: tuple[Allowable, ...] = ("device", "batch", "world-size", "torch", "step")

_ARGUMENTS = (
    "batch_size", "num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "drop_last",
    "shuffle", "start_method",
)  # fmt: skip


def mismatches(base: Baseline, head: Baseline, *, allow: Sequence[str] = ()) -> tuple[Mismatch, ...]:
    """Return the differences that make the sides incomparable; what is unknown is not a difference."""
    return tuple(
        Mismatch(what=what, base=one, head=other, allowed=what in allow)
        for what, one, other in _pairs(base, head)
        if one and other and one != other
    )


def _pairs(base: Baseline, head: Baseline) -> Iterator[tuple[Allowable, str, str]]:
    yield "device", _device(base), _device(head)
    yield "torch", _version(base), _version(head)
    yield "world-size", _ranks(base), _ranks(head)
    one, other = base.workload, head.workload
    if one is None or other is None:
        return
    yield "step", _step(one), _step(other)
    batches = _batch(one), _batch(other)
    if not all(batches):
        batches = _elements(one), _elements(other)
    yield "batch", *batches


def _device(side: Baseline) -> str:
    """The model of an accelerator decides which kernels run; which CPU it is decides only times."""
    machine = side.machine
    if machine.device_kind in ("", "cpu"):
        return machine.device_kind
    return machine.device_name or machine.device_kind


def _version(side: Baseline) -> str:
    return side.machine.torch.partition("+")[0]


def _ranks(side: Baseline) -> str:
    """A bare trace tells the size of its job only where several ranks were given."""
    if side.workload is not None:
        return str(side.workload.world_size)
    return str(side.ranks[0].size) if side.ranks else ""


def _step(workload: Workload) -> str:
    """What a step is: its signal and the backward passes in it (gradient accumulation)."""
    if not workload.step_signal:
        return ""
    passes = round(workload.micro_steps) if workload.micro_steps is not None else None
    return workload.step_signal if passes is None else f"{workload.step_signal}, {passes} backward passes"


def _batch(workload: Workload) -> str:
    return ", ".join(workload.batch)


def _elements(workload: Workload) -> str:
    return f"{workload.batch_elements} elements" if workload.batch_elements is not None else ""


def same_machine(base: Baseline, head: Baseline) -> bool:
    """Return whether times can be compared at all: same processor, cores and device."""
    one, other = base.machine, head.machine
    return (one.cpu, one.cores, one.device_name) == (other.cpu, other.cores, other.device_name)


def changed_settings(base: Baseline, head: Baseline) -> tuple[SettingChange, ...]:
    """Return what was set differently: switches, loader arguments, optimizers, versions, arguments."""
    rows = [*_switches(base, head), *_loaders(base.workload, head.workload)]
    rows += _optimizers(base.workload, head.workload)
    told = {row.name for row in rows}
    for name in sorted({*base.settings, *head.settings}):
        one, other = _shown(base.settings.get(name)), _shown(head.settings.get(name))
        if one != other and name not in told:
            rows.append(SettingChange(name=name, base=one, head=other))
    for name, one, other in (
        ("torch", base.machine.torch, head.machine.torch),
        ("python", base.machine.python, head.machine.python),
        ("CUDA", base.machine.cuda or "", head.machine.cuda or ""),
        ("processor", base.machine.cpu, head.machine.cpu),
        ("cores", _shown(base.machine.cores), _shown(head.machine.cores)),
        ("arguments", " ".join(base.command[1:]) or "none", " ".join(head.command[1:]) or "none"),
    ):
        if one != other and one and other:
            rows.append(SettingChange(name=name, base=one, head=other))
    return tuple(rows)


def _shown(value: JsonValue) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _switches(base: Baseline, head: Baseline) -> Iterator[SettingChange]:
    before = {row.name: row for row in base.acceleration}
    for row in head.acceleration:
        old = before.get(row.name)
        if old is None or "unknown" in (old.state, row.state) or old.state == row.state:
            continue
        yield SettingChange(
            name=row.name, base=_switch(old.state, old.value), head=_switch(row.state, row.value)
        )


def _switch(state: str, value: str) -> str:
    return f"{state} ({value})" if value else state


def _loaders(base: Workload | None, head: Workload | None) -> Iterator[SettingChange]:
    if base is None or head is None:
        return
    for number, (one, other) in enumerate(zip(base.loaders, head.loaders, strict=False)):
        name = f"{other.role} loader" if other.role != "unknown" else f"loader {number}"
        for argument in _ARGUMENTS:
            before, after = getattr(one, argument), getattr(other, argument)
            if before != after:
                yield SettingChange(
                    name=f"{name}: {argument}", base=_shown(before), head=_shown(after), site=other.site
                )
    for loader in head.loaders[len(base.loaders) :]:
        yield SettingChange(name="loader", base="none", head=_loader(loader), site=loader.site)
    for loader in base.loaders[len(head.loaders) :]:
        yield SettingChange(name="loader", base=_loader(loader), head="none")


def _loader(loader: LoaderArguments) -> str:
    return f"{loader.cls or 'DataLoader'} of batch size {_shown(loader.batch_size)}"


def _optimizers(base: Workload | None, head: Workload | None) -> Iterator[SettingChange]:
    if base is None or head is None:
        return
    before = [f"{item.cls} {item.flavour}" for item in base.optimizers]
    after = [f"{item.cls} {item.flavour}" for item in head.optimizers]
    if before != after:
        site = head.optimizers[0].site if head.optimizers else None
        yield SettingChange(
            name="optimizer", base=", ".join(before) or "none", head=", ".join(after) or "none", site=site
        )
