"""What the reading of a rank needs from the room of its device, and what it hands back.

In: nothing. Out: `Reader`, which a run with a GPU and one without each fill in their own way, and `Priced`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ...model.codes import Part
    from ..result import Timeline
    from ..steps.facts import Facts
    from ..trace.table import Trace
    from .ask import Answers, Asker
    from .questions import Question
    from .replay import Edit, Replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """The step at true speed: its budget and what it would be without each cause."""

    parts: dict[Part, float]
    """Budget lines, ms."""
    by_work: NDArray[np.float64]
    """What of them the host explains, by category, ms, (len(Work),)."""
    exposed_ns: NDArray[np.float64]
    """Idle time that each event explains, ns over the replayed window, (n,)."""
    scale: float
    """Factor from replayed to true time."""
    asker: Asker
    """Answers what else is to be known of the step."""
    answers: Answers


class Reader(Protocol):
    """A program at true speed, and what only a run of its kind can say."""

    @property
    def kind(self) -> Literal["gpu", "cpu"]:
        """Which of the two it is."""

    @property
    def facts(self) -> Facts:
        """What is known of the run."""

    @property
    def trace(self) -> Trace | None:
        """What was recorded."""

    @property
    def replay(self) -> Replay:
        """Its program, ready to run."""

    @property
    def base(self) -> Edit:
        """The edit under which the replay runs at true speed."""

    def questions(self) -> Iterable[Question]:
        """Questions in addition to those for every program."""

    def describe(self, timeline: Timeline, priced: Priced) -> Timeline:
        """Fill in names, places and everything else that the device or its absence decides."""
