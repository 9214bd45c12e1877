"""Questions about what holds the host up: input, waits, the allocator, copies, graph breaks, compiling.

In: a `Program`, masks over its activities, the circumstances. Out: `Question`s.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ....model.codes import Part, WhatIf
from ...lanes.labels import Work
from ...lanes.program import PARTS, EventKind
from ...lanes.replay import Edit
from ..edits import seams_gone
from .circumstances import Circumstances, Question

if TYPE_CHECKING:
    from ...lanes.calibrate import Calibration
    from ...lanes.program import Program
    from ..device_masks import DeviceWork

__all__ = ["copy_questions", "host_questions"]


def host_questions(program: Program, calibration: Calibration, work: DeviceWork) -> Iterator[Question]:
    """Causes on the host that labels or calls tell."""
    has = program.work.sum(axis=0) > 0
    kinds = program.kind
    if has[Work.INPUT]:
        yield Question(
            WhatIf.INPUT_READY,
            Edit(work={Work.INPUT: 0.0}),
            "replay with every batch ready when it is asked for",
        )
    if (kinds == EventKind.SYNC).any():
        yield Question(
            WhatIf.SYNCS_GONE,
            Edit(work={Work.SYNC: 0.0}, drop_waits=frozenset([EventKind.SYNC])),
            "replay with no synchronising call; the host runs ahead",
        )
    if (kinds == EventKind.ALLOCATOR).any():
        yield Question(
            WhatIf.ALLOCATOR_FREE,
            Edit(work={Work.ALLOCATOR: 0.0}, drop_waits=frozenset([EventKind.ALLOCATOR])),
            "replay with cudaMalloc, cudaFree and their waits free of charge",
        )
    if has[Work.SEAM]:
        yield Question(
            WhatIf.SEAMS_GONE,
            seams_gone(program, work, calibration=calibration),
            "replay without cache lookups, prologues and eager work between compiled regions, kernels on "
            "either side of a seam joined where no product lies between them, and the pieces' own host work "
            "held to that of one graph",
        )
    if has[Work.COMPILE]:
        yield Question(
            WhatIf.NO_COMPILE,
            # The compiler times its candidates on the device.
            Edit(work={Work.COMPILE: 0.0}, duration=np.where(program.launch_work == Work.COMPILE, 0.0, 1.0)),
            "replay without compilation in the step, nor the kernels that it tries",
        )
    if has[Work.HOST] or has[Work.ASIDE]:
        aside = program.launch_work == Work.ASIDE
        yield Question(
            WhatIf.HOST_WORK_GONE,
            Edit(work={Work.HOST: 0.0, Work.ASIDE: 0.0}, duration=np.where(aside, 0.0, 1.0)),
            "replay without the Python that neither dispatches nor loads, and without what is launched "
            "behind the update",
        )


def copy_questions(program: Program, known: Circumstances) -> Iterator[Question]:
    """Copies that block the host, and copies at all."""
    blocking = program.kind == EventKind.COPY
    waits = frozenset([EventKind.COPY])
    if blocking.any():
        gbps = known.pinned_gbps or 25.0
        source = "measured" if known.pinned_gbps else "assumed, PCIe 4 x16"
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
    copies = program.part == PARTS.index(Part.COPIES)
    if copies.any():
        yield Question(
            WhatIf.COPIES_GONE,
            Edit(work={Work.COPY: 0.0}, drop_waits=waits, duration=np.where(copies, 0.0, 1.0)),
            "replay with every copy overlapped or avoided",
            bound=True,
        )
