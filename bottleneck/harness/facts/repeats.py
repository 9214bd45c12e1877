"""Which calls of modules, and products inside them, compute again what was computed before in the same step.

In: the calls of modules while FLOPs are counted, when nothing is timed. Out: `RepeatFacts` for run.json. A
call repeats another one of the same module if its inputs and its parameters are the same tensors, unchanged
since, and neither drew random numbers; so does a product. Beside it: whether modules that are not trained
stand behind others that are. Nothing is looked at where dynamo has compiled anything, nor inside a backward,
where checkpoints recompute on purpose.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any, Final

import torch

from ...clocks import perf_counter_ns
from ...model.run import RepeatFacts, SiteTime, SourceSite
from .. import torch_private
from ..events.replacing import Replacements
from ..lines.sites import user_site

_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)
_OTHER: Final = object()
_LAYERS = ("linear", "conv1d", "conv2d", "conv3d")
_PRODUCTS = ("matmul", "mm", "bmm")


def products() -> Iterator[tuple[Any, str]]:
    """Yield where the functions stand, and their names, that take most of the time of most models."""
    yield from ((torch.nn.functional, name) for name in _LAYERS)
    yield from ((torch, name) for name in (*_PRODUCTS, "einsum"))
    yield from ((torch.Tensor, name) for name in (*_PRODUCTS, "__matmul__"))


def state_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what changes when another tensor is meant, or its values."""
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor._version)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        yield type(value), len(value)
        for each in value:
            yield from _flat(each)
    elif isinstance(value, dict):
        yield from _flat([*value.keys(), *value.values()])
    elif isinstance(value, torch.Tensor):
        # Nested and sparse tensors have no address.
        yield value if value.layout is torch.strided and not value.is_nested else _OTHER
    else:
        yield value if isinstance(value, _PLAIN) else _OTHER


@dataclass(frozen=True, slots=True)
class Signature:
    """What a call of a module, or of a function, depends on, as far as can be seen."""

    key: tuple[Any, ...]
    inputs: tuple[Any, ...]
    """Weak references: another tensor may take the place of one that is gone."""

    @property
    def parameters(self) -> tuple[tuple[int, int], ...]:
        """Each of the module's parameters with its version."""
        return self.key[2]  # type: ignore[no-any-return]

    @property
    def is_alive(self) -> bool:
        """Whether all inputs still exist."""
        return all(each() is not None for each in self.inputs)

    @property
    def is_unchanged(self) -> bool:
        """Whether all inputs still exist, as they were."""
        now = (each() for each in self.inputs)
        return all(
            each is not None and state_of(each) == was for each, was in zip(now, self.key[-1], strict=True)
        )


def signature_of(
    called: Callable[..., Any],
    args: Any,
    kwargs: Any,
    parameters: Iterable[torch.Tensor] | None = None,
    *,
    trains: bool = True,
) -> Signature | None:
    """Return it, or None where an argument may hide a state of its own.

    `parameters` are a module's, where they are known: looking for them takes longer than all else. `trains`
    is the mode of the module around a function.
    """
    flat = list(_flat((args, kwargs)))
    if any(each is _OTHER for each in flat):
        return None
    inputs = [each for each in flat if isinstance(each, torch.Tensor)]
    try:
        states = tuple(state_of(each) for each in inputs)
    except RuntimeError:  # without an address: fake ones, and those inside vmap
        return None
    own: Iterable[torch.Tensor] = ()
    if isinstance(called, torch.nn.Module):
        own, trains = called.parameters() if parameters is None else parameters, called.training
    versions = tuple((id(p), p._version) for p in own)
    others = tuple(torch.Tensor if isinstance(each, torch.Tensor) else each for each in flat)
    return Signature(
        key=(id(called), (trains, _autocast()), versions, others, states),
        inputs=tuple(map(weakref.ref, inputs)),
    )


def _autocast() -> torch.dtype | None:
    """Return the type that autocast computes in here; None where it is off."""
    kind = torch_private.device_kind()
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def is_untrained(module: torch.nn.Module) -> bool:
    """Return whether a module has parameters, of which none needs a gradient."""
    needs = [parameter.requires_grad for parameter in module.parameters()]
    return bool(needs) and not any(needs)


def random_state() -> tuple[bytes, ...]:
    """Return the states of the generators from which a module may draw."""
    states = [torch.get_rng_state()]
    if torch_private.device_kind() != "cpu":
        states.append(torch.cuda.get_rng_state())
    return tuple(bytes(state.numpy()) for state in states)


def given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments without those at the end that are None, as if they were left out."""
    named = {name: each for name, each in kwargs.items() if each is not None}
    last = max((k for k, each in enumerate(args, 1) if each is not None), default=0)
    return args[:last], named


def _wait_for_device() -> None:
    if torch_private.device_kind() != "cpu":
        if torch_private.is_capturing():
            raise RuntimeError("a graph is being captured, which waiting would break")
        torch.cuda.synchronize()


def _depth() -> int:
    frame, depth = sys._getframe(2), 0
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    return depth


@dataclass(slots=True)
class _Call:
    depth: int
    """Frames below it."""
    random: tuple[bytes, ...]
    start_ns: int
    looked_ns: int
    """What looking had taken until then."""
    untrained: bool
    """None of the module's parameters needs a gradient."""
    trains: bool
    """The mode of the module, or of the one around a product."""
    within: list[_Repeat] = field(default_factory=list)
    """Repeated calls inside it."""


@dataclass(slots=True)
class _Repeat:
    name: str
    ns: int
    graded: bool
    site: SourceSite | None
    alike_ns: list[int]
    """Of all calls with this input, the first included."""


def _as_usual(repeats: Sequence[_Repeat]) -> Counter[bool]:
    """Let what was held up take what the median call with the same input did.

    Returns by how much such calls took longer, with and without gradients, ns.
    """
    longer_ns: Counter[bool] = Counter()
    for each in repeats:
        usual_ns = min(each.ns, median_low(each.alike_ns))
        longer_ns[each.graded] += each.ns - usual_ns
        each.ns = usual_ns
    return longer_ns


class RepeatWatch:
    """One per process, on while steps are looked at."""

    def __init__(self) -> None:
        self._replaced = Replacements()
        self._on = False
        self._thread = 0
        self._stack: list[_Call] = []
        self._seen: dict[tuple[Any, ...], tuple[Signature, bool, list[int]]] = {}
        """Each call, whether its output could stand for one that needs gradients, and what its like took."""
        self._total_ns = self._graded_ns = self._untrained_ns = self._fed_ns = 0
        self._repeats: list[_Repeat] = []
        self._looked_ns = 0
        """Looking at the calls inside a call is no time of its own."""

    def begin(self) -> None:
        """Look at calls from now on."""
        if not self._on and not torch_private.dynamo_counter("stats", "unique_graphs"):
            self._on, self._thread = True, threading.get_ident()
            self._replaced.hook(torch_private.ModuleHooks(self._before, self._after))
            self._replaced.put(torch.autograd, "backward", self._make_backward)
            for owner, name in products():
                # Dynamo would end its graph where it skips one.
                self._replaced.put(owner, name, self._make_product, skipped=False)

    def step(self) -> None:
        """Another step begins: what the last one computed is gone."""
        self._seen.clear()
        self._stack.clear()

    def end(self) -> RepeatFacts | None:
        """Look no more; None where no module was called."""
        self._replaced.undo()
        whole, self._on = self._on, False
        self._seen.clear()
        self._stack.clear()
        if not (whole and self._total_ns):
            return None
        longer_ns = _as_usual(self._repeats)
        lines: Counter[SourceSite] = Counter()
        for each in self._repeats:
            if each.site is not None:
                lines[each.site] += each.ns
        calls = Counter(each.site for each in self._repeats)
        names: Counter[str] = Counter()
        for each in self._repeats:
            names[each.name] += each.ns
        return RepeatFacts(
            calls=len(self._repeats),
            module=names.most_common(1)[0][0] if names else "",
            share=sum(each.ns for each in self._repeats) / (self._total_ns - sum(longer_ns.values())),
            graded_share=sum(each.ns for each in self._repeats if each.graded)
            / max(1, self._graded_ns - longer_ns[True]),
            sites=[
                SiteTime(site=site, phase="repeated", count=calls[site], total_ms=ns / 1e6)
                for site, ns in lines.most_common()
            ],
            fed_share=self._fed_ns / self._untrained_ns if self._untrained_ns else None,
        )

    def _looks(self) -> bool:
        return self._on and threading.get_ident() == self._thread and not torch_private.in_backward()

    def _make_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            # What was recorded is freed by it.
            self._seen = {key: (signature, False, ns) for key, (signature, _, ns) in self._seen.items()}
            return original(*args, **kwargs)

        return backward

    def _make_product(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def product(*args: Any, **kwargs: Any) -> Any:
            # Outside of modules nothing is timed that its part could be of.
            if torch.compiler.is_compiling() or not (self._stack and self._looks()):
                return original(*args, **kwargs)
            depth = _depth()
            self._begun(depth)
            output = original(*args, **kwargs)
            self._over(depth, original, *given(args, kwargs))
            return output

        return product

    def _before(self, module: torch.nn.Module, _args: Any) -> None:
        if self._looks():
            self._begun(_depth(), module)

    def _begun(self, depth: int, module: torch.nn.Module | None = None) -> None:
        self._drop_failed(depth)
        try:
            _wait_for_device()
            since_ns = perf_counter_ns()
            untrained, random = module is not None and is_untrained(module), random_state()
            trains = module.training if module is not None else self._stack[-1].trains
            start_ns = perf_counter_ns()
            self._looked_ns += start_ns - since_ns
            self._stack.append(_Call(depth, random, start_ns, self._looked_ns, untrained, trains))
        except Exception:  # a stream that is being captured may not be waited for
            self._on = False

    def _drop_failed(self, depth: int) -> None:
        """Forget calls that have raised an error: whoever runs at this depth now is not inside them."""
        while self._stack and self._stack[-1].depth >= depth:
            self._stack.pop()

    def _after(self, module: torch.nn.Module, args: Any, kwargs: Any, _output: Any) -> None:
        if self._looks():
            self._over(_depth(), module, args, kwargs)

    def _over(self, depth: int, called: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self._drop_failed(depth + 1)
        if self._stack:
            try:
                self._ended(called, args, kwargs)
            except Exception:
                self._on = False

    def _ended(self, called: Callable[..., Any], args: Any, kwargs: Any) -> None:
        _wait_for_device()
        call, end_ns = self._stack.pop(), perf_counter_ns()
        ns = end_ns - call.start_ns - (self._looked_ns - call.looked_ns)
        self._note(call, ns, called, args, kwargs)
        self._looked_ns += perf_counter_ns() - end_ns

    def _note(self, call: _Call, ns: int, called: Callable[..., Any], args: Any, kwargs: Any) -> None:
        found, graded = call.within, torch.is_grad_enabled()
        if call.untrained and not (self._stack and self._stack[-1].untrained):
            self._untrained_ns += ns
            given = [each for each in _flat((args, kwargs)) if isinstance(each, torch.Tensor)]
            self._fed_ns += ns if graded and any(each.requires_grad for each in given) else 0
        signature = None
        if random_state() == call.random:
            signature = signature_of(called, args, kwargs, trains=call.trains)
        if signature is not None:
            before = self._seen.get(signature.key)
            if before is not None and before[0].is_alive and before[1] >= graded:
                before[2].append(ns)
                name = getattr(called, "__name__", type(called).__name__).strip("_")
                found = [_Repeat(name, ns, graded, user_site(), before[2])]
            else:
                self._seen[signature.key] = signature, graded, [ns]
        if self._stack:
            self._stack[-1].within += found
        else:
            self._total_ns += ns
            self._graded_ns += ns if graded else 0
            self._repeats += found
