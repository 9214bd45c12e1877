"""Questions about what holds the host up on a run with a GPU: graph breaks, copies, searches.

In: a `Program`, masks over its activities, the circumstances. Out: `Question`s.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ....model.codes import Part, WhatIf
from ...lanes.calibrate import Calibration
from ...lanes.labels import Work
from ...lanes.program import PARTS, EventKind, Program
from ...lanes.questions import Question, without_waits
from ...lanes.replay import Edit
from ..device_masks import DeviceWork
from ..edits import seams_gone
from .circumstances import Circumstances


def seam_questions(program: Program, calibration: Calibration, work: DeviceWork) -> Iterator[Question]:
    """Graph breaks."""
    if (program.work[:, Work.SEAM] > 0).any():
        yield Question(
            WhatIf.SEAMS_GONE,
            seams_gone(program, work, calibration=calibration),
            "replay without cache lookups, prologues and eager work between compiled regions; kernels on "
            "both sides of a seam fused where no product is between them; the host work that of one graph",
        )


def copy_questions(program: Program, work: DeviceWork, known: Circumstances) -> Iterator[Question]:
    """Copies that block the host, and copies at all; those of activations are another matter."""
    blocking = program.kind == EventKind.COPY
    waits = frozenset([EventKind.COPY])
    if blocking.any():
        measured = known.facts.run.pinned_gbps if known.facts.run is not None else None
        gbps = measured or 25.0
        source = "measured" if measured else "assumed, PCIe 4 x16"
        factor = np.ones(len(program.event))
        if known.copy_bytes is not None:
            mine = blocking[program.event] & (known.copy_bytes > 0)
            pinned_ns = known.copy_bytes[mine] / gbps
            factor[mine] = np.minimum(1.0, pinned_ns / np.maximum(program.duration[mine], 1.0))
        yield Question(
            WhatIf.COPIES_ASYNC,
            Edit(work={Work.COPY: 0.0}, drop_waits=waits, duration=factor),
            f"replay with the copies at pinned bandwidth ({gbps:.0f} GB/s, {source}), the host not waiting",
        )
    copies = (program.part == PARTS.index(Part.COPIES)) & ~work.offloaded
    if copies.any():
        yield Question(
            WhatIf.COPIES_GONE,
            Edit(work={Work.COPY: 0.0}, drop_waits=waits, duration=np.where(copies, 0.0, 1.0)),
            "replay with every copy overlapped or avoided",
            bound=True,
        )
    kept = _kept(program, known)
    if kept is not None:
        yield Question(
            WhatIf.COPIES_KEPT,
            kept,
            "replay without the copies of memory that stays as it is on the host",
        )
    if known.offloads is not None:
        yield Question(
            WhatIf.OFFLOADS_GONE,
            known.offloads,
            "replay without the copies of activations to the host and back, and without waiting for them",
        )


def _kept(program: Program, known: Circumstances) -> Edit | None:
    """Return the edit without the copies of what stays as it is on the host; None without such copies."""
    copied = known.facts.run.copied if known.facts.run is not None else None
    if copied is None or known.copy_bytes is None:
        return None
    mine = (program.part == PARTS.index(Part.COPIES)) & np.isin(known.copy_bytes, copied.kept_sizes)
    if not mine.any():
        return None
    waits = program.kind == EventKind.COPY
    gone = np.zeros(len(waits), dtype=bool)
    gone[program.event[mine]] = True
    # Tensor.to() of pageable memory copies, then synchronises.
    gone[1:] |= gone[:-1] & (np.diff(program.first_activity)[1:] == 0)
    gone &= waits
    work = np.zeros_like(program.work)
    work[gone, Work.COPY] = program.work[gone, Work.COPY]
    return Edit(gone=work, drop_at=gone, duration=np.where(mine, 0.0, 1.0))


def operator_questions(program: Program, known: Circumstances) -> Iterator[Question]:
    """What operators, NumPy and Python compute on the host that the device needs, or of what it has made."""
    here = (Work.OPERATORS, Work.BATCH_OPERATORS)
    computes = np.asarray(program.work[:, here].sum(axis=1) > 0)
    detours = known.detours if not _is_sequential(known) else None
    if not computes.any() and detours is None:
        return
    # Its input is copied to the host before it, its output to the device after it; each of the two may be a
    # call that copies and one that waits.
    waits = np.isin(program.kind, (EventKind.COPY, EventKind.SYNC))
    gone = waits & (computes | np.append(computes[1:], False))
    next_is_of_it = waits[1:] & (np.diff(program.first_activity)[1:] == 0) & ~computes[1:]
    gone[1:] |= gone[:-1] & next_is_of_it
    gone[:-1] |= gone[1:] & next_is_of_it & waits[:-1]
    copied = gone[program.event] & (program.part == PARTS.index(Part.COPIES))
    edit = Edit(work=dict.fromkeys(here, 0.0), drop_at=gone, duration=np.where(copied, 0.0, 1.0))
    mostly = None
    if detours is not None:
        away, events = detours.host_work(program), detours.events
        kept = np.where(events[program.event], 0.0, 1.0)
        edit = edit.and_also(Edit(gone=away, duration=kept, drop_at=events))
        # What NumPy and Python do at once may take many operators.
        mostly = detours if away.sum() >= program.work[:, here].sum() else None
    yield Question(
        WhatIf.OPERATORS_ON_DEVICE,
        edit,
        "replay without what computes on the host, and without the copies before and after it; "
        "on the device it takes time, too",
        bound=mostly is not None,
        site=mostly.site if mostly is not None else None,
    )


def _is_sequential(known: Circumstances) -> bool:
    """Return whether a detour is a loop whose rounds build on one another: many launches on the device."""
    if known.loop is None or not known.loop.loop.carried or known.detours is None:
        return False
    loop, copies = known.loop.loop.site, known.detours.site
    return copies is None or (loop.file, loop.function) == (copies.file, copies.function)


def wait_questions(program: Program, work: DeviceWork, known: Circumstances) -> Iterator[Question]:
    """Waits that the script asks for, and those for values, as far as they may be read later."""
    if (waits := program.kind == EventKind.SYNC).any():
        # The model may need there what it reads there.
        in_model = 2 * (waits & work.reach.model).sum() > waits.sum()
        yield Question(WhatIf.READS_LATE, *without_waits(program), bound=bool(in_model))
    if known.asked_waits is None or not known.asked_waits.any():
        return
    gone = np.zeros_like(program.work)
    gone[known.asked_waits, Work.SYNC] = program.work[known.asked_waits, Work.SYNC]
    yield Question(
        WhatIf.ASKED_WAITS_GONE,
        Edit(gone=gone, drop_at=known.asked_waits),
        "replay without the calls of torch.cuda.synchronize(), so the host runs ahead",
    )


def search_questions(known: Circumstances) -> Iterator[Question]:
    """Convolutions that time their algorithms in the step, and attention that plans."""
    if known.searches is not None:
        yield Question(
            WhatIf.SEARCHES_GONE,
            known.searches,
            "replay without what convolutions do up to their last wait for the device (until then they time"
            " their algorithms), and without allocating anew what they free for it",
        )
    if known.plans is not None:
        yield Question(
            WhatIf.PLANS_GONE,
            known.plans,
            "replay without the time that attention in cuDNN plans, from where it begins to its launches",
        )
