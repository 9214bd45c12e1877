"""What is made again from the same is handed out again: by modules, by products, by copies of constants.

In: calls of modules and of products; copies to the device. Out: the same outputs, computed once between two
backward passes; the same constants, made once. Which of them repeat themselves shows in the first passes;
the others then run as they are.
"""

from __future__ import annotations

import hashlib
import marshal
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch

from ... import torch_private
from ...events.hooks import goes_to_device
from ...facts.repeats import Signature, given, products, random_state, signature_of, state_of
from ...lines.sites import is_library
from .base import Patch, Program

_PASSES = 2
"""Backward passes before which each module is looked at."""
_PASSES_OF_LINES = 4
"""The same of lines that copy: a step of two models has two passes."""
_is_compiling = torch.compiler.is_compiling


@dataclass(frozen=True, slots=True)
class _Known:
    """A call, and what it returned."""

    signature: Signature
    output: Any
    state: list[tuple[Any, ...]]
    """Of the output's tensors: what the script changes in place is not handed out."""
    graded: bool

    @property
    def is_as_returned(self) -> bool:
        return self.signature.is_alive and [state_of(each) for each in _tensors(self.output)] == self.state


def _tensors(output: Any) -> list[torch.Tensor]:
    """Return the tensors of an output that is one, or a tuple of them."""
    return [output] if isinstance(output, torch.Tensor) else list(output)


def _is_plain(output: Any) -> bool:
    several = type(output) in (tuple, list) and all(isinstance(each, torch.Tensor) for each in output)
    return isinstance(output, torch.Tensor) or several


def _weight(argument: Any) -> Any:
    """Return what tells a product from others of its name: its weight, or how large what it is given is."""
    if not isinstance(argument, torch.Tensor):
        return None
    return id(argument) if isinstance(argument, torch.nn.Parameter) else argument.shape


class CalledOnce(Patch):
    """Each module, and each product, computes the same thing once."""

    fix = "FX326"
    live = True
    settles = 1 + _PASSES
    says = ("{} answered by an earlier one", "call")
    nothing_to_do = "no module or product outside compiled code was called again with the same input"

    def install(self) -> None:
        self._known: defaultdict[Hashable, dict[tuple[Any, ...], _Known]] = defaultdict(dict)
        """By module or product, and by what a call of it depends on."""
        self._parameters: dict[int, tuple[torch.nn.Module, list[torch.nn.Parameter]]] = {}
        """By module, as they were at its first call of this pass; kept with it: no other has its id then."""
        self._repeating: set[Hashable] = set()
        self._passes = self._inside = 0
        self.replaced.put(torch.nn.Module, "__call__", self._make_call)
        for owner, name in products():
            self.replaced.put(owner, name, self._make_product)
        self.put_at_backward(self._make_engine)

    def uninstall(self) -> None:
        super().uninstall()
        self._forget()

    def _forget(self) -> None:
        self._known.clear()
        self._parameters.clear()

    def _make_engine(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("accumulate_grad"):
                # It frees what was recorded with the outputs.
                self._forget()
                self._passes += 1
            elif len(args) > 1 and self._holds_graphs():
                # `autograd.grad` would: another one may go through the same outputs.
                args = torch_private.retaining(args)
            return original(outputs, *args, **kwargs)

        return run_backward

    def _make_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - stands in for it
            self._inside += 1
            try:
                if not self._looks_at(id(module)):
                    return original(module, *args, **kwargs)
                if id(module) not in self._parameters:
                    self._parameters[id(module)] = module, list(module.parameters())
                signature = signature_of(module, args, kwargs, self._parameters[id(module)][1])
                return self._once(id(module), signature, lambda: original(module, *args, **kwargs))
            finally:
                self._inside -= 1

        return __call__

    def _make_product(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def product(*args: Any, **kwargs: Any) -> Any:
            if not self._inside:
                return original(*args, **kwargs)
            plain, named = given(args, kwargs)
            which = (id(original), *map(_weight, plain))
            if not self._looks_at(which):
                return original(*args, **kwargs)
            signature = signature_of(original, plain, named)
            return self._once(which, signature, lambda: original(*args, **kwargs))

        return product

    def _looks_at(self, which: Hashable) -> bool:
        wanted = self._passes < _PASSES or which in self._repeating
        return wanted and not _is_compiling() and not torch_private.in_backward()

    def _once(self, which: Hashable, signature: Signature | None, compute: Callable[[], Any]) -> Any:
        graded = torch.is_grad_enabled()
        known = self._known[which].get(signature.key) if signature is not None else None
        if known is not None and known.is_as_returned and known.graded >= graded:
            self._repeating.add(which)
            self.acted_here()
            if known.graded == graded:
                return known.output
            bare = [each.detach() for each in _tensors(known.output)]
            return bare[0] if isinstance(known.output, torch.Tensor) else type(known.output)(bare)
        random = random_state()
        output = compute()
        if signature is not None and _is_plain(output) and random_state() == random:
            state = [state_of(each) for each in _tensors(output)]
            self._keep(which, _Known(signature, output, state, graded))
        return output

    def _holds_graphs(self) -> bool:
        return any(known.graded for its in self._known.values() for known in its.values())

    def _keep(self, which: Hashable, new: _Known) -> None:
        """Keep a call, and no others of its module or product that nobody can ask for again."""
        its = self._known[which]
        for key, known in list(its.items()):
            if not known.signature.is_unchanged or known.signature.parameters != new.signature.parameters:
                del its[key]
        its[new.signature.key] = new


class ConstantsKept(Patch):
    """Each line that copies numbers to the device does so once for the same numbers."""

    fix = "FX521"
    live = True
    for_ranks = True
    settles = 1 + _PASSES_OF_LINES
    says = ("{} made once and handed out again", "constant")
    nothing_to_do = "no line copied the same numbers to the device again"

    def install(self) -> None:
        self._seen: set[Hashable] = set()
        self._kept: dict[Hashable, tuple[torch.Tensor, tuple[Any, ...]]] = {}
        """What a line got for its numbers, and its state then: what the script changes is not handed out."""
        self._repeating: set[Hashable] = set()
        self._passes = 0
        self._replays: Callable[[], bool] = bool
        self.put_at_backward(self._make_engine)
        self.replaced.put(torch, "tensor", self._make_tensor)
        for name in ("to", "cuda"):
            self.replaced.put(torch.Tensor, name, self._make_copy)

    def put_in(self, program: Program) -> None:
        super().put_in(program)
        self._replays = program.replays

    def uninstall(self) -> None:
        super().uninstall()
        self._kept.clear()

    def _make_engine(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            self._passes += 1
            return original(*args, **kwargs)

        return run_backward

    def _make_tensor(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def tensor(data: Any, **kwargs: Any) -> Any:
            line = None if _is_compiling() else self._line()
            if line is None or isinstance(data, torch.Tensor):
                return original(data, **kwargs)
            return self._once(line, original, _numbers, data, **kwargs)

        return tensor

    def _make_copy(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if _is_compiling() or type(tensor) is not torch.Tensor or tensor.device.type != "cpu":
                return original(tensor, *args, **kwargs)
            wanted = goes_to_device(args, kwargs) and not tensor.requires_grad
            # A batch that was recorded comes again, and is none that training would see twice.
            line = self._line() if wanted and not self._replays() else None
            if line is None:
                return original(tensor, *args, **kwargs)
            return self._once(line, original, _contents, tensor, *args, **kwargs)

        return copy

    def _line(self) -> Hashable | None:
        """Return the user's call that is running, unless it is known to copy other numbers each time."""
        frame = sys._getframe(2)
        line = (frame.f_code, frame.f_lasti)
        wanted = self._passes < _PASSES_OF_LINES or line in self._repeating
        return line if wanted and not is_library(frame.f_code.co_filename) else None

    def _once(
        self,
        line: Hashable,
        original: Callable[..., torch.Tensor],
        told_by: Callable[[Any], Hashable],
        source: Any,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        # A tensor among the arguments would be read for its name.
        named = any(isinstance(each, torch.Tensor) for each in (*args, *kwargs.values()))
        if torch.is_inference_mode_enabled() or named:
            return original(source, *args, **kwargs)
        numbers = told_by(source)
        what = (line, numbers, torch.get_default_dtype(), repr((args, kwargs)))
        known = self._kept.get(what) if numbers is not None else None
        if known is not None and state_of(known[0]) == known[1]:
            self.acted_here()
            return known[0]
        made = original(source, *args, **kwargs)
        if numbers is None or made.device.type == "cpu" or made.requires_grad:
            return made
        if what in self._seen:
            # Kept from the second time on: batches that are never alike take no memory.
            self._repeating.add(line)
            self._kept[what] = made, state_of(made)
        elif self._passes < _PASSES_OF_LINES:
            self._seen.add(what)
        return made


def _numbers(data: Any) -> Hashable:
    """Return what tells numbers, lists and arrays of them from others; None for anything else."""
    if (kind := getattr(data, "dtype", None)) is not None:
        return (str(kind), data.shape, data.tobytes()) if hasattr(data, "tobytes") else None
    try:
        return marshal.dumps(data)
    except ValueError:
        return None


def _contents(tensor: torch.Tensor) -> Hashable:
    """Return a digest of what a CPU tensor holds; None where it cannot be read."""
    if tensor.layout is not torch.strided or tensor.is_pinned() or not tensor.numel():
        return None
    plain = tensor.contiguous().reshape(-1).view(torch.uint8)
    digest = hashlib.blake2b(memoryview(plain.numpy()), digest_size=16).digest()
    return (digest, tensor.shape, tensor.stride(), tensor.dtype)
