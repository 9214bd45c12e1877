"""Questions that only the replay of a GPU run is asked: graph breaks, copies, launching, the device's work.

In: a `Program`, its calibration, masks over its activities, the circumstances. Out: `Question`s.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...lanes.calibrate import Calibration
from ...lanes.program import Program
from ...lanes.questions import Question
from ..device_masks import DeviceWork
from .circumstances import Circumstances
from .device import device_questions
from .dispatch import dispatch_questions
from .host import copy_questions, operator_questions, seam_questions, search_questions, wait_questions


def gpu_questions(
    program: Program, calibration: Calibration, work: DeviceWork, known: Circumstances
) -> Iterator[Question]:
    """Ask everything that takes a device to ask."""
    yield from seam_questions(program, calibration, work)
    yield from copy_questions(program, work, known)
    yield from operator_questions(program, known)
    yield from wait_questions(program, work, known)
    yield from search_questions(known)
    yield from dispatch_questions(program, calibration, work, known)
    yield from device_questions(program, work, known)
