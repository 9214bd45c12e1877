"""A backward that makes only the gradients that somebody reads.

In: the backwards of the script, of which the first few show what is read of them. Out: the same calls, told
which leaves they are for. A leaf that they did not show keeps its gradient. Where somebody does read one that
is left out, it is what was there before, or zeros, and from then on all are made again.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from types import CodeType
from typing import Any, TypeAlias

from .. import autograd_private, torch_private
from ..events.replacing import Replacements
from ..lines.backward_graph import described, nodes_of
from ..lines.gradient_reads import GradientReads, Pass
from ..lines.sites import line_of, user_frame, user_frame_of

PASSES_SEEN = 3
"""At a place, before anything is left out."""
_MOST_PASSES = 50
"""The same, where gradients are added up over many of them."""
_LINES_OF_A_PLACE = 2
"""One function of the script may call `backward` for several models."""

_Place: TypeAlias = tuple[tuple[CodeType, int], ...]


class OnlyWhatIsRead:
    """Backwards that make no gradient which is cleared unread; the first few show which these are."""

    def __init__(self, held: Callable[[], set[int]]) -> None:
        self._reads = GradientReads(held, one_step=False)
        self._seen: dict[_Place, list[Pass]] = defaultdict(list)
        self._unread: dict[_Place, list[weakref.ref[Any]]] | None = None
        self._act: Callable[[], None] = lambda: None
        self.missed = False

    @property
    def is_known(self) -> bool:
        """It has been seen what is read."""
        return self._unread is not None

    def begin(self, replaced: Replacements, act: Callable[[], None]) -> bool:
        """Come between the script and autograd; False where what is read cannot be seen.

        `act` is called for each backward that is asked for less.
        """
        owner = autograd_private.engine_owner()
        compiled = torch_private.dynamo_looks()
        if owner is None or compiled or self.missed or not self._reads.begin():
            return False
        self._act = act
        self._reads.left_out = set() if self.is_known else None
        replaced.put(*owner, self._make_engine)
        return True

    def end(self) -> None:
        """Look no more, and change nothing."""
        self._reads.end()
        self._forget_passes()

    def forget(self) -> None:
        """Let go of what was seen."""
        self._unread = None

    def _forget_passes(self) -> None:
        self._seen.clear()
        self._reads.forget()

    def _make_engine(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if (
                not self.missed
                and not autograd_private.in_backward()
                and autograd_private.fills_all_leaves(args, kwargs)
            ):
                try:
                    args = self._asked(outputs, args)
                except Exception:
                    self.missed = True
            return original(outputs, *args, **kwargs)

        return run_backward

    def _asked(self, outputs: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        place, nodes = _place(), nodes_of(outputs)
        if self._unread is not None:
            return self._narrowed(place, nodes, args)
        self._look(place, nodes)
        return args

    def _look(self, place: _Place, nodes: list[Any]) -> None:
        seen = self._seen[place]
        if len(seen) < PASSES_SEEN or (len(seen) < _MOST_PASSES and not self._reads.is_decided(seen[0])):
            seen.append(self._reads.backward(described(nodes)))
            return
        self._unread = {
            where: [weakref.ref(self._reads.tensor(leaf)) for leaf in self._reads.unread(*passes)]
            for where, passes in self._seen.items()
        }
        self._reads.left_out = set()
        self._forget_passes()

    def _narrowed(self, place: _Place, nodes: list[Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments for which only those leaves get gradients that are read."""
        assert self._unread is not None
        assert self._reads.left_out is not None
        self.missed = self._reads.missed
        unread = {id(each()) for each in self._unread.get(place, ())}
        leaves = [leaf for leaf in (getattr(node, "variable", None) for node in nodes) if leaf is not None]
        made = tuple(leaf for leaf in leaves if id(leaf) not in unread)
        self._reads.left_out.difference_update(map(id, made))
        if self.missed or not made or len(made) == len(leaves):
            return args
        self._reads.left_out |= unread
        self._act()
        return autograd_private.with_inputs(args, made)


def _place() -> _Place:
    """Return the innermost lines of the user's that are running."""
    found: list[tuple[CodeType, int]] = []
    frame = user_frame()
    while frame is not None and len(found) < _LINES_OF_A_PLACE:
        found.append((frame.f_code, line_of(frame)))
        frame = user_frame_of(frame.f_back)
    return tuple(found)
