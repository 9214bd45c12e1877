"""Numbers for values: what is computed by the same function from the same values has the same number.

In: the calls of torch's functions. Out: what each of them depends on, as compilers know it from the numbering
of values (Alpern, Wegman and Zadeck, "Detecting equality of variables in programs", 1988), and a digest of
what came out, which tells where a value has changed in a way that no counter of versions shows.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

from .. import torch_private
from ..lines.functions import tensors_of

_PLAIN: Final = (
    bool, int, float, complex, str, bytes, type(None), type(Ellipsis),
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
_VALUES: Final = {torch.strided: torch.Tensor.detach, torch.sparse_coo: torch.Tensor._values}
"""By layout: where the numbers of a tensor are."""
_READ_NUMBERS: Final = 65_536
"""Of a tensor, for whether they are denormal."""


def autocast_type() -> torch.dtype | None:
    """Return the type that autocast computes in here; None where it is off."""
    kind = torch_private.device_kind()
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def _with_versions(value: Any) -> Iterator[torch.Tensor]:
    """Yield those that tell when they are changed: those of inference do not."""
    return (each for each in tensors_of(value) if not each.is_inference())


class ModuleKey(NamedTuple):
    """What a call of a module depends on; which of its parameters need a gradient is another question."""

    parameters: tuple[int, ...]
    """The numbers of their values."""
    trains: bool
    others: Hashable


@dataclass(frozen=True, slots=True)
class _Numbered:
    of: Callable[[], object]
    """A weak reference."""
    version: int
    number: int


class Values:
    """The numbers that are given; tensors keep theirs as long as they exist and are not changed in place."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._tensors: dict[int, _Numbered] = {}
        """By id."""
        self.changed: set[int] = set()
        """Numbers of what was changed in place afterwards."""

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Hashable | None:
        """Return what a call depends on; None where an argument may hide a state of its own."""
        if "empty" in getattr(function, "__name__", ""):
            return None  # whatever was there
        try:
            key = (function, autocast_type(), *self._keys((args, kwargs)))
            hash(key)
        except (LookupError, TypeError):
            return None
        return key

    def module_call(
        self,
        module: torch.nn.Module,
        args: Any,
        kwargs: Any,
        parameters: Iterable[torch.Tensor] | None = None,
    ) -> ModuleKey | None:
        """Return the same of a call of a module, which depends on its mode and its parameters, too.

        `parameters`: where they are known; looking for them takes longer than all else.
        """
        given = self.call(module, args, kwargs)
        if given is None:
            return None
        own = module.parameters() if parameters is None else parameters
        return ModuleKey(tuple(map(self._number, own)), module.training, given)

    def returned(self, key: Hashable, output: Any, args: Any, kwargs: Any) -> bool:
        """Number what a call has computed, and what it has changed in place; not what it only hands back.

        Returns False where it has done nothing else than hand back.
        """
        as_before: set[int] = set()
        for place, tensor in enumerate(_with_versions((args, kwargs))):
            known = self._known(tensor)
            if known is not None and known.version == tensor._version:
                as_before.add(id(tensor))
            elif known is not None:
                base = self._known(tensor._base) if tensor._base is not None else None
                self.changed |= {known.number, base.number if base is not None else known.number}
                self._give(tensor, (key, "changed", place))
        several = list(_with_versions(output))
        made = [(place, each) for place, each in enumerate(several) if id(each) not in as_before]
        for place, tensor in made:
            self._give(tensor, (key, place))
        return not several or bool(made)

    def updated(self, optimizer: Any, *_: Any) -> None:
        """Note that an optimizer has made a step: a fused one counts no version of its parameters."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._give(parameter, object())

    def numbers(self, output: Any) -> set[int]:
        """Return those of what a call has computed."""
        return {self._number(tensor) for tensor in _with_versions(output)}

    def _known(self, tensor: torch.Tensor) -> _Numbered | None:
        known = self._tensors.get(id(tensor))
        return known if known is not None and known.of() is tensor else None

    def _give(self, tensor: torch.Tensor, value: Hashable) -> int:
        number = self._numbers.setdefault(value, len(self._numbers))
        self._tensors[id(tensor)] = _Numbered(weakref.ref(tensor), tensor._version, number)
        return number

    def _keys(self, value: Any) -> Iterator[Hashable]:
        if isinstance(value, torch.Tensor):
            if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.is_inference():
                raise LookupError
            yield torch.Tensor
            yield self._number(value)
            yield value.requires_grad
        elif isinstance(value, (list, tuple)):
            yield type(value)
            yield len(value)
            for each in value:
                yield from self._keys(each)
        elif isinstance(value, dict):
            yield from self._keys([*value.keys(), *value.values()])
        elif isinstance(value, slice):
            yield from self._keys((slice, value.start, value.stop, value.step))
        elif isinstance(value, _PLAIN) or value is slice:
            yield type(value), value
        else:
            raise LookupError

    def _number(self, tensor: torch.Tensor) -> int:
        known = self._known(tensor)
        if known is not None and known.version == tensor._version:
            return known.number
        # Where it comes from is not known: it is like no other.
        return self._give(tensor, object())


def needs_of(parameters: Iterable[torch.Tensor], inputs: Any) -> tuple[tuple[bool, ...], bool]:
    """Return which parameters of a call need a gradient, and whether its output does."""
    if not torch.is_grad_enabled():
        return (), False
    needs = tuple(each.requires_grad for each in parameters)
    return needs, any(needs) or any(each.requires_grad for each in tensors_of(inputs))


def digest(output: Any) -> Hashable | None:
    """Return what tells the numbers of tensors from others of their shapes; None where it cannot be told."""
    found: list[Hashable] = []
    try:
        with torch.no_grad():
            for tensor in tensors_of(output):
                read = _VALUES.get(tensor.layout, torch.Tensor.values)
                numbers = read(tensor)
                found.append((tuple(tensor.shape), tensor.dtype))
                if numbers.is_complex():
                    numbers = torch.view_as_real(numbers)
                if numbers.numel():
                    ends = [numbers[(at,) * numbers.dim()].double() for at in (0, -1)]
                    found += torch.stack([numbers.sum(dtype=torch.float64), *ends]).tolist()
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    return tuple(found)


def denormals(value: torch.Tensor) -> int:
    """Return how many numbers of a tensor on the CPU are denormal, as far as a part of them tells."""
    apart: int = max(1, value.numel() // _READ_NUMBERS)
    # As bits: the processor may be set to take these numbers for zeros.
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[value.element_size()]
    numbers = value.detach().reshape(-1)[::apart].contiguous()
    limit = torch.tensor(torch.finfo(value.dtype).smallest_normal, dtype=value.dtype).view(bits)
    sizes = numbers.view(bits) & torch.iinfo(bits).max
    count = int(((sizes > 0) & (sizes < limit)).sum())
    return count * apart
