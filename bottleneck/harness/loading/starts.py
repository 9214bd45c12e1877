"""What a start of a loader's workers consists of: making them, sending them the dataset, the first batch.

In: when each iterator was made, what was pickled meanwhile, and when its workers came to work. Out:
`WorkerStart`s. A process that is not forked gets the dataset through a pipe: whoever starts it waits until
it has imported the program and read all but the last 64 KiB, and starts the next one only then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any, NamedTuple

from ...clocks import perf_counter_ns
from ...model.run import WorkerStart
from ..events.replacing import Replacements
from .worker import Begun


class _Sent(NamedTuple):
    """One process object that was pickled."""

    begin_ns: int
    end_ns: int
    size_bytes: int


@dataclass(slots=True)
class Making:
    """The making of an iterator for which processes were started, and what came of it."""

    begin_ns: int
    end_ns: int
    sent: list[_Sent]
    step: int = -1
    """In which its first batch came; -1: none has come yet."""
    wait_ms: float = 0.0
    stop_step: int = -1
    """In which it had no further batch; -1: it still has."""
    stopping_ms: float = 0.0


class Sending:
    """Notes what `multiprocessing` pickles for new processes, between its entry and its exit."""

    def __init__(self) -> None:
        self.sent: list[_Sent] = []
        self._replaced = Replacements()

    def __enter__(self) -> None:
        """Stand in for `multiprocessing.reduction.dump`."""
        self._replaced.put(reduction, "dump", self._make_dump)

    def __exit__(self, *_: object) -> None:
        """Put back what was there."""
        self._replaced.undo()

    def _make_dump(self, original: Callable[..., Any]) -> Callable[..., Any]:
        sent = self.sent

        def dump(obj: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
            begin = perf_counter_ns()
            result = original(obj, file, *args, **kwargs)
            # Before each process object goes what it must import.
            if hasattr(obj, "_target"):
                sent.append(_Sent(begin, perf_counter_ns(), file.tell()))
            return result

        return dump


def starts_of(makings: Sequence[Making], begun: Sequence[Begun]) -> list[WorkerStart]:
    """Return the starts whose first batch has come."""
    out = []
    for k, making in enumerate(makings):
        if making.step < 0:
            continue
        until = makings[k + 1].begin_ns if k + 1 < len(makings) else None
        own = sorted(b for b in begun if making.begin_ns <= b.works_ns and (not until or b.works_ns < until))
        boots = [worker.reads_ns - sent.end_ns for worker, sent in zip(own, making.sent, strict=False)]
        out.append(
            WorkerStart(
                step=making.step,
                making_ms=round((making.end_ns - making.begin_ns) / 1e6, 3),
                wait_ms=round(making.wait_ms, 3),
                stop_step=making.stop_step,
                stopping_ms=round(making.stopping_ms, 3),
                pickled_bytes=sum(sent.size_bytes for sent in making.sent),
                pickling_ms=round(sum(sent.end_ns - sent.begin_ns for sent in making.sent) / 1e6, 3),
                unpickling_ms=round(sum(worker.works_ns - worker.reads_ns for worker in own) / 1e6, 3),
                booting_ms=round(max(boots, default=0) / 1e6, 3),
            )
        )
    return out
