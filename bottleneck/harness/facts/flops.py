"""The flop-counter steps: the FLOPs of a step, from the shapes that its operators were called with.

Masks of attention, repeated calls of modules and the lines of the graph and of operators are looked at in the
same steps (`masks`, `repeats`, `lines/graph_lines`, `lines/operator_lines`).

In: two steps behind the other captures, in which nothing is timed, and more where these differ, as batches
may differ in size. Out: `FlopCount` for run.json, the mean of these steps.

A profiler session of its own, CPU activities only: recording shapes costs a fifth of the step more
than plain tracing, so the trace window goes without, and CUPTI stays off here. Unlike a dispatch
mode (torch.utils.flop_counter) it leaves compiled code alone. Counted are matrix products,
convolutions and fused attention, multiply and add as two operations; what a kernel template of the
compiler computes in their place, a CUDA graph replays, or cuDNN's recurrent layers do, is not seen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from statistics import fmean
from typing import Any, Literal

import msgspec
from torch import profiler

from ...model.flops import COSTLY_AT_TIMES, COUNTED, costly_calls, count_flops, largest_products
from ...model.run import FlopCount, OperatorLines
from ...runs.store import Store, reason_of
from .. import profile_forks
from ..events.update_label import holds_range
from ..lines.graph_lines import GraphWatch
from ..profiled import operator_calls
from ..signals import signals_go_elsewhere
from ..torch_private import device_kind
from ..ways.watch import WayWatch
from .masks import MaskWatch
from .repeats import RepeatWatch


class FlopStep:
    """Steps under the counting session; what goes wrong becomes the artefact's reason."""

    def __init__(self, optimizers: Callable[[], Iterable[Any]] = tuple) -> None:
        """`optimizers` returns those of the script."""
        self._profile: Any = None
        self._counts: list[FlopCount] = []
        self._masks = MaskWatch()
        self._repeats = RepeatWatch(optimizers)
        self._graph = GraphWatch(optimizers)
        self._ways = WayWatch()
        self._operators: OperatorLines | None = None
        self._looks: Literal["calls", "ways", "tries"] = "calls"
        """At what, in the step that runs."""
        self.busy = False
        """Inside start or stop: the profiler that begins or ends now is ours."""

    def begin(self, store: Store, *, why_not: str | None = None) -> bool:
        """Begin to record operators with their shapes; False, with the reason stored, where it cannot."""
        if why_not is not None:
            store.artefact("flops", "absent", reason=why_not)
            return False
        try:
            self.start()
            self._masks.begin()
            if not self._graph.begin():
                self._repeats.begin()
        except Exception as error:
            self.abandon()
            store.artefact("flops", "failed", reason=reason_of(error))
            return False
        return True

    def cut(self, store: Store, *, step: int, most: int, tries: bool = False) -> bool:
        """A step has ended: count it, and record the next one where the steps differ or too few are known.

        Behind them, where it `tries`, come two steps for other ways to what calls compute. Returns whether
        another step is recorded.
        """
        try:
            if self._looks != "calls":
                return self._cut_ways(store)
            self._counts.append(self.stop(step))
            counted = [count.flops for count in self._counts]
            self._repeats.step()
            if len(counted) == 1:
                store.update(graph=self._graph.end(self._repeats.join_at))
                # It compares times, which noting stacks would change.
                self._repeats.begin()
            differ = self._repeats.steps < 2 or len(set(counted)) > 1
            if len(counted) < most and differ and not holds_range():
                self.start()
                return True
            self._store_mean(store)
            if tries and self._ways.begin():
                self._looks = "ways"
                return True
        except Exception as error:
            self.abandon()
            store.artefact("flops", "failed", reason=reason_of(error))
        return False

    def _cut_ways(self, store: Store) -> bool:
        """A step for other ways has ended; return whether another one begins."""
        if self._looks == "ways" and self._ways.end() and not holds_range() and self._ways.begin(tries=True):
            self._looks = "tries"
            self.start()
            return True
        if self._looks == "tries":
            self._ways.end()
            tried = self._ways.found(self._stopped())
            known = {each.callee for each in tried}
            others = [each for each in self._mean.costly if each.callee not in known]
            store.update(flops=msgspec.structs.replace(self._mean, costly=[*others, *tried]))
        self._looks = "calls"
        return False

    def _store_mean(self, store: Store) -> None:
        counts = self._counts
        self._mean = msgspec.structs.replace(
            counts[0],
            steps=len(counts),
            flops=fmean(count.flops for count in counts),
            by_dtype=_mean([count.by_dtype for count in counts]),
            by_operator=_mean([count.by_operator for count in counts]),
        )
        store.update(
            flops=self._mean,
            masks=self._masks.end(),
            above_operators=self._repeats.above_operators(),
            above_lines=self._repeats.above_lines(),
            trained_writes=self._repeats.trained_writes(),
            promotions=self._repeats.promotions(),
            operators=self._operators,
            repeats=self._repeats.end(),
        )
        store.artefact("flops", "ok")

    def start(self) -> None:
        """Begin to record operators with their shapes.

        Raises:
            RuntimeError: torch holds a range of another profile open.
        """
        if holds_range():
            raise RuntimeError("an optimizer step that another recording has seen begin goes on")
        self._profile = profiler.profile(
            activities=[profiler.ProfilerActivity.CPU], record_shapes=True, acc_events=False
        )
        self.busy = True
        profile_forks.profile_begins()
        try:
            with signals_go_elsewhere():
                self._profile.start()
        finally:
            self.busy = False

    def _stopped(self) -> Any:
        profile, self._profile = self._profile, None
        self.busy = True
        try:
            with profile_forks.profile_ends():
                profile.stop()
        finally:
            self.busy = False
        return profile

    def stop(self, step: int) -> FlopCount:
        """End the recording and count.

        Raises:
            RuntimeError: this torch does not tell the shapes, or a call could not be counted.
        """
        profile = self._stopped()
        self._operators = self._operators or self._repeats.operators(profile)
        calls = operator_calls(profile, {*COUNTED, *COSTLY_AT_TIMES})
        if calls is None:
            raise RuntimeError("this torch does not give the shapes of recorded operators")
        by_dtype, by_operator, lost = count_flops(calls)
        if lost:
            raise RuntimeError(f"{lost} calls have shapes that the count does not understand")
        products, batches = largest_products(calls)
        return FlopCount(
            step=step,
            flops=sum(by_operator.values()),
            by_dtype=by_dtype,
            by_operator=by_operator,
            operators=sorted(COUNTED),
            products=products,
            batches=batches,
            costly=costly_calls(calls, on_gpu=device_kind() != "cpu"),
        )

    def forked(self) -> None:
        """This process is a fork, and the recording is its parent's."""
        self._repeats.end()
        self._ways.end()
        if self._profile is not None:
            profile_forks.record_nothing()

    def end_inherited(self) -> None:
        """This process is a fork that is to be captured itself: nothing of its parent's may be on."""
        self._repeats.end()
        self._ways.end()
        if self._profile is not None:
            profile_forks.end_inherited(self._profile)

    def abandon(self, store: Store | None = None, *, reason: str = "") -> None:
        """Stop, so that nothing goes on recording; `store` receives what is counted, or the reason."""
        self.busy = True
        with contextlib.suppress(Exception):
            if self._profile is not None:
                with profile_forks.profile_ends():
                    self._profile.stop()
        stored = self._looks != "calls"
        self._looks = "calls"
        if not stored and (store is None or not self._counts):
            self._masks.end()
            self._repeats.end()
            self._graph.end()
        self._ways.end()
        self._profile, self.busy = None, False
        if stored:
            return
        if store is not None and self._counts:
            self._store_mean(store)
        elif store is not None:
            store.artefact("flops", "absent", reason=reason)


def _mean(counts: list[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for count in counts for name in count)
    return {name: fmean(count.get(name, 0.0) for count in counts) for name in names}
