"""The program of a run without a GPU: one host lane, an event per phase of the typical step.

In: a calibrated `Division`, the baseline, the seams of broken graphs. Out: `Program`, at true speed: page
faults, the collector and the seams, which the trace shows as parts of other work, stand for themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ...model.view import Role
from ..lanes.host_work import HostWork
from ..lanes.labels import Work, near_the_gap
from ..lanes.program import Program, host_program
from ..lanes.seams import Seam
from ..steps.baseline import Baseline
from ..trace.intervals import before
from ..trace.operators import OpClass
from .division import Division
from .segments import Segments

_FEWEST_FAULTS = 32.0
"""Faults per step below which system time is not about memory."""
_DEAREST_FAULT_MS = 0.005
"""A 4 KiB minor fault with zeroing costs 0.1 to 0.25 us of kernel entry plus the zeroing, and
measured 1.9 to 2.3 us in a virtual machine; 5 us is beyond any of them, so the rest of the system
time is something else."""
_MOST_WAITED = 4.0
"""Beyond this the machine is too busy for its shares to mean anything."""
_HUGE_PAGE_FAULT_MS = 0.05
"""Where a fault costs more than this it zeroes a huge page (512 times the bytes)."""
_FRESH_PAGES = {
    # Fresh pages are touched first where results are written: all of an element-wise operator is that, a
    # small part of a matrix product; freeing happens from Python.
    Work.MEMORY: 1.0,
    Work.UPDATE: 1.0,
    Work.DISPATCH: 0.5,
    Work.OPTIMIZER: 0.5,
    Work.ZERO_GRAD: 0.5,
    Work.MATH: 0.25,
    Work.HOST: 0.25,
}
_COLLECTS = dict.fromkeys((Work.HOST, Work.DISPATCH, Work.OPTIMIZER, Work.ZERO_GRAD), 1.0)


def fault_ms(
    baseline: Baseline, *, input_ms: float, host_ms: float, threads: int, trained: float | None = None
) -> float:
    """System time per step that page faults of the training itself explain, ms.

    A page that the allocator gave back to the kernel is faulted in and zeroed anew at its next use.
    Measured against the same program under a malloc that keeps its pages, system time is a lower
    bound of what goes away (saved over system time: 1.1 to 1.4; the caches stay warm as well).
    `trained` is the share of the system time that faults explain outside of making input. Where it is not
    known, processor time that must have been spent producing input is taken off in proportion. Where the
    process had less processor time than its working part of the step is long, others had the rest, and the
    faults' share of the step is their share of the processor time.

    System time is that of all threads. Where several fault at once the step is at most so much
    longer that the user time, spread over all threads, is still left; and at least by the share
    that system time has in the processor time.
    """
    if baseline.system_ms is None or baseline.faults is None or baseline.faults < _FEWEST_FAULTS:
        return 0.0
    per_fault = baseline.system_ms / baseline.faults
    system = baseline.system_ms
    if per_fault < _HUGE_PAGE_FAULT_MS:
        system = min(system, baseline.faults * _DEAREST_FAULT_MS)
    cpu = baseline.system_ms + (baseline.user_ms or 0.0)
    outside = max(0.0, baseline.step_ms - input_ms) * max(1, threads)
    producing = min(max(0.0, cpu - outside), input_ms)
    share = trained if trained is not None else 1.0 - producing / cpu if cpu > 0 else 1.0
    working = max(0.0, baseline.step_ms - input_ms - host_ms)
    had = cpu - producing
    if had <= 0:
        return system * share
    serial = system * share * min(max(working / had, 1.0), _MOST_WAITED)
    if threads <= 1 or had <= working:
        return serial
    user = max(0.0, had - baseline.system_ms * share)
    return min(serial, max(working - user / threads, system * share * working / had))


def _move(
    ms: NDArray[np.float64],
    amount: float,
    weights: dict[Work, float],
    *,
    to: Work,
    phases: tuple[str, ...],
    at_most: float = 0.95,
) -> None:
    """Move `amount` within each phase in proportion to ms * weight, in place; nothing comes out of input."""
    weight = np.zeros_like(ms)
    weight[:, list(weights)] = list(weights.values())
    weight[[name == "data" for name in phases]] = 0.0
    need = amount
    for _ in range(4):  # cells that run dry pass their share on to the others
        room = ms * weight
        total = float(room.sum())
        if min(total, need) < 1e-9:
            break
        taken = np.minimum(room * (need / total), ms * at_most)
        ms -= taken
        ms[:, to] += taken.sum(axis=1)
        need -= float(taken.sum())


def faults_by_phase(system: Mapping[tuple[str, Role], tuple[float, float]]) -> dict[str, float]:
    """Return the share of the system time that page faults explain, by phase, where training needs its code.

    `system`: faults and system time, ms, by phase and role. Reading files takes system time without faults;
    what makes input and what is extra work has findings of its own.
    """
    whole_ms = sum(system_ms for _, system_ms in system.values())
    out: dict[str, float] = {}
    for (phase, role), (faults, system_ms) in system.items():
        explained_ms = min(system_ms, faults * _DEAREST_FAULT_MS)
        if explained_ms > 0 and role not in ("input", "extra") and phase != "data":
            out[phase] = out.get(phase, 0.0) + explained_ms / whole_ms
    return out


def cpu_program(
    division: Division,
    segments: Segments | None,
    *,
    baseline: Baseline | None,
    seams: Sequence[Seam],
    threads: int,
    extra_ms: Mapping[str, float],
    sent_ms: Mapping[str, float],
    faults: Mapping[str, float] | None,
    collected_ms: float,
) -> Program:
    """Build the program of the typical step.

    `extra_ms` is what the stacks show of each phase that is no part of training, `sent_ms` what they show in
    collectives that the user's lines call; `faults` comes from `faults_by_phase`, None where nothing was
    counted; `collected_ms` is Python's garbage collector, without collections that a line of the user's asks
    for. A bare trace has no `baseline`, and tells no system time.
    """
    ms, phases = division.ms.copy(), division.phases
    if baseline is not None:
        # What the collector and the kernel do while the compiler runs is part of compiling.
        outside = 1.0 - float(ms[:, Work.COMPILE].sum()) / max(float(ms.sum()), 1e-9)
        _move(ms, collected_ms * outside, _COLLECTS, to=Work.COLLECTOR, phases=phases)
        by_phase = {name: share for name, share in (faults or {}).items() if name in phases}
        faulted = outside * fault_ms(
            baseline,
            input_ms=float(ms[:, Work.INPUT].sum()),
            host_ms=float(ms[:, Work.HOST].sum()),
            threads=threads,
            trained=sum(by_phase.values()) if faults is not None else None,
        )
        if faults is None:
            _move(ms, faulted, _FRESH_PAGES, to=Work.ALLOCATOR, phases=phases)
        for name, part in by_phase.items():
            at = phases.index(name)
            its = faulted * part / sum(by_phase.values())
            _move(ms[at : at + 1], its, _FRESH_PAGES, to=Work.ALLOCATOR, phases=(name,))
    for i, name in enumerate(phases):
        # What waits for other ranks, or is no part of training, is not the work of the phase that it runs in.
        for work, told_ms in ((Work.COMMUNICATION, sent_ms), (Work.HOST, extra_ms)):
            others = ms[i].copy()
            others[[work, Work.COMMUNICATION, Work.COLLECTOR]] = 0.0
            total = float(others.sum())
            if total > 0:
                missing = max(0.0, told_ms.get(name, 0.0) - ms[i, work])
                moved = others * min(1.0, missing / total)
                ms[i] -= moved
                ms[i, work] += float(moved.sum())
    # Whose the seams are goes by the time that they take in the trace.
    spent: dict[tuple[int, ...], float] = {}
    for seam in seams:
        spent[seam.owners] = spent.get(seam.owners, 0) + sum(end - start for start, end in seam.stretches)
    share = np.asarray(list(spent.values())) / max(1.0, sum(spent.values()))
    return host_program(
        phases,
        ms * 1e6,
        seam_work=ms[:, Work.SEAM, None] * 1e6 * share,
        host_work=_recorded(division, segments, seams if share.any() else ()),
    )


def _recorded(division: Division, segments: Segments | None, seams: Sequence[Seam]) -> HostWork:
    """Return what the training thread did at each moment of the traced steps."""
    owners = tuple(dict.fromkeys(seam.owners for seam in seams))
    edges, work = np.asarray([0, 1]), np.asarray([Work.UNKNOWN], dtype=np.int8)
    pauses = np.zeros(0, dtype=np.int64)
    if segments is not None and division.work is not None:
        start, end = segments.start_ns, segments.start_ns + segments.dur_ns
        edges = np.unique(np.concatenate([start, end]))
        work = np.full(len(edges) - 1, Work.UNKNOWN, dtype=np.int8)
        work[before(edges, start)] = division.work
        python = segments.op_class == OpClass.PYTHON
        pauses = segments.dur_ns[python & np.isin(division.work, (Work.DISPATCH, Work.HOST))]
    return HostWork(
        edges=edges,
        work=work,
        group=np.full(len(work), -1, dtype=np.int16),
        seam_owners=owners,
        pauses_ns=near_the_gap(pauses),
        seam_count=tuple(sum(seam.owners == each for seam in seams) for each in owners),
    )
