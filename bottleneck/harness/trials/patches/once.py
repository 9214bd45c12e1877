"""What is made again from the same is handed out again: by modules, by functions, by copies of constants.

In: calls of modules and of torch's functions; copies to the device. Out: the same outputs, computed once
between two backward passes that go through them, and once at all where no gradient is recorded for them; the
same constants, made once. Which of them repeat themselves shows in the first steps; the others then run as
they are.
"""

from __future__ import annotations

import hashlib
import marshal
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from types import FrameType
from typing import Any, ClassVar, TypeVar

import torch
from torch.optim import optimizer as optim_module

from ... import autograd_private
from ...autograd_private import has_gradient_hooks
from ...events.hooks import goes_to_device
from ...facts.repeats import given, random_state
from ...facts.values import ModuleKey, Values, needs_of
from ...lines.backward_graph import freed_by, numbers_of, roots_of
from ...lines.functions import Functions, call_from, tensors_of
from ...lines.sites import is_library
from .base import Patch, Program

_PASSES = 2
"""Steps, or without optimizers backward passes, before which each module is looked at."""
_MOST_PASSES = 4
"""Backward passes before which lines that copy are looked at, and modules at most: a step of two models has
two, and an optimizer may update seldom or never."""
_is_compiling = torch.compiler.is_compiling
_Looked = TypeVar("_Looked")


@dataclass(slots=True, kw_only=True)
class _Known:
    """A call, and what it returned."""

    place: Hashable
    """Who called: a module, or a line."""
    output: Any
    versions: list[int]
    """Of the output's tensors: what the script has changed in place is not handed out."""
    numbers: set[int]
    """Of its values, where it is a function's; nor what the script changes in place later."""
    graded: bool
    """It was recorded for a backward, if it needs one."""
    is_bare: bool
    """It needs none."""
    made: int
    """The pass in which it was made."""
    asked: int
    """The same, or that in which it was asked for last."""
    needs: tuple[bool, ...]
    """Of a module's: which parameters needed a gradient."""
    roots: frozenset[int]
    """The numbers of the nodes at which its backward begins."""

    @property
    def is_as_returned(self) -> bool:
        tensors = list(tensors_of(self.output))
        if any(has_gradient_hooks(each) or each.retains_grad for each in tensors):
            return False  # for its first use alone
        if numbers_of(roots_of(tensors)) != self.roots:
            return False  # cut off in place
        return [each._version for each in tensors] == self.versions


def _is_plain(output: Any) -> bool:
    several = output if type(output) in (tuple, list) else [output]
    return all(isinstance(each, torch.Tensor) and not each.is_inference() for each in several)


class CalledOnce(Patch):
    """Each module, and each of torch's functions inside them, computes the same thing once."""

    fix = "FX326"
    live = True
    settles = 1 + _PASSES
    says = ("{} answered by an earlier one", "call")
    nothing_to_do = "no module or function outside compiled code computed again what was known"

    def install(self) -> None:
        self._known: defaultdict[Hashable, dict[Hashable, _Known]] = defaultdict(dict)
        """By module, those of functions by None; and by what a call depends on."""
        self._parameters: dict[int, tuple[torch.nn.Module, list[torch.nn.Parameter]]] = {}
        """By module, as they were at its first call of this pass; kept with it: no other has its id then."""
        self._repeating: set[Hashable] = set()
        self._met: dict[Hashable, Hashable] = {}
        """By what a call depends on: who made it first."""
        self._passes = self._rounds = self._inside = 0
        self._stepped: set[int] = set()
        """Optimizers that have updated in this round, in which each does."""
        self._optimizers = 0
        self._looking = self._went_past = False
        """Busy with looking; something was handed out behind a backward that went past it."""
        self._values, self._functions = Values(), Functions(self._see)
        self.replaced.put(torch.nn.Module, "__call__", self._make_call)
        self.replaced.hook(optim_module.register_optimizer_step_post_hook(self._updated))
        self.put_at_backward(self._make_engine)

    def put_in(self, program: Program) -> None:
        super().put_in(program)
        self._optimizers = len(program.optimizers)

    def uninstall(self) -> None:
        super().uninstall()
        self._known.clear()
        self._parameters.clear()

    def _updated(self, optimizer: Any, *args: Any) -> None:
        self._values.updated(optimizer, *args)
        self._stepped.add(id(optimizer))
        if len(self._stepped) >= self._optimizers:
            # What comes in the next step may be made of what no key tells: buffers, a weight's `.data`.
            self._stepped.clear()
            self._rounds += 1
            self._known = defaultdict(dict, {None: self._known[None]})

    @property
    def _is_new(self) -> bool:
        """It is still looked for what repeats itself: a step of several models has several passes."""
        past = self._rounds if self._optimizers else self._passes
        return past < _PASSES and self._passes < _MOST_PASSES

    def _forget(self, freed: frozenset[int] | None) -> None:
        """Forget what a backward has freed, and what nobody has asked for since the last one.

        What modules have made since the last one stays where it stands aside: a generator's output, where it
        is detached. It stays for one, and no longer than until the optimizers have updated.
        """
        if not self._is_new:
            self._met.clear()

        def stays(known: _Known) -> bool:
            is_new = known.made > self._passes
            behind = freed_by(tensors_of(known.output)) if freed and is_new else None
            return freed is not None and behind is not None and freed.isdisjoint(behind)

        made = self._known.pop(None, {})
        modules = {
            which: kept
            for which, its in self._known.items()
            if (kept := {key: known for key, known in its.items() if stays(known)})
        }
        functions = {
            key: known for key, known in made.items() if known.is_bare and known.asked >= self._passes
        }
        self._known = defaultdict(dict, {**modules, None: functions})
        self._parameters.clear()

    def _make_engine(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("accumulate_grad"):
                # It frees what was recorded with the outputs; to look what that is takes time.
                looks = self._optimizers and (self._is_new or self._went_past) and self._holds_graphs()
                self._forget(freed_by(outputs) if looks else None)
                self._passes += 1
            elif len(args) > 1 and self._holds_graphs():
                # `autograd.grad` would: another one may go through the same outputs.
                args = autograd_private.retaining(args)
            return original(outputs, *args, **kwargs)

        return run_backward

    def _make_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: Any, args: Any, kwargs: Any) -> Any:
            self._inside += 1
            try:
                if not self._looks_at(id(module)):
                    return original(module, *args, **kwargs)
                key = self._key_of(module, args, kwargs)
                needs, wants = needs_of(self._parameters[id(module)][1], (args, kwargs))
                known = self._answer(id(module), id(module), key, wants=wants, needs=needs)
                if known is not None:
                    return known
                random, graded = self._random_state(), torch.is_grad_enabled()
                output = original(module, *args, **kwargs)
                if key is not None and _is_plain(output) and self._random_state() == random:
                    self._drop_outdated(id(module), key)
                    self._keep(id(module), key, output, place=id(module), needed=not graded, needs=needs)
                return output
            finally:
                self._inside -= 1

        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - stands in for it
            # Most scripts compute nothing again, and each function would be looked at for nothing.
            known = not self._is_new and not any(isinstance(each, tuple) for each in self._repeating)
            if self._inside or known or _is_compiling():
                return call(module, args, kwargs)
            with self._functions:
                return call(module, args, kwargs)

        return __call__

    def _see(self, caller: FrameType, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        which = (caller.f_code, caller.f_lasti, function)
        if self._looking or not self._looks_at(which):
            return call_from(caller, function, args, kwargs)
        key = self._values.call(function, *given(args, kwargs))
        if key is not None:
            # Without gradients nothing shows which values would need one.
            key = (torch.is_grad_enabled(), key)
            if self._is_new:
                # Who changes in place what others go on from has to be known, too.
                self._repeating |= {which, self._met[key]} if key in self._met else set()
                self._met.setdefault(key, which)
            known = self._answer(None, which, key)
            if known is not None:
                return known
        states = [each._version for each in tensors_of((args, kwargs))] if key is not None else []
        random = self._random_state()
        output = call_from(caller, function, args, kwargs)
        if key is not None and self._random_state() == random:
            self._values.returned(key, output, args, kwargs)
            # What it changes has to be changed each time.
            if _is_plain(output) and states == [each._version for each in tensors_of((args, kwargs))]:
                self._keep(None, key, output, place=which, needed=False)
        return output

    def _key_of(self, module: torch.nn.Module, args: Any, kwargs: Any) -> ModuleKey | None:
        if id(module) not in self._parameters:
            self._parameters[id(module)] = module, list(module.parameters())
        return self._aside(self._values.module_call, module, args, kwargs, self._parameters[id(module)][1])

    def _random_state(self) -> tuple[bytes, ...]:
        return self._aside(random_state)

    def _aside(self, look: Callable[..., _Looked], *args: Any) -> _Looked:
        """Call something of ours, whose functions are none of the script's."""
        self._looking = True
        try:
            return look(*args)
        finally:
            self._looking = False

    def _looks_at(self, which: Hashable) -> bool:
        wanted = self._is_new or which in self._repeating
        return wanted and not _is_compiling() and not autograd_private.in_backward()

    def _answer(
        self,
        which: int | None,
        place: Hashable,
        key: Hashable | None,
        *,
        wants: bool | None = None,
        needs: tuple[bool, ...] = (),
    ) -> Any:
        """Return what an earlier call has computed; None where none has, or not what this one needs.

        Of a module `wants` says whether its output needs gradients, and `needs` which parameters do.
        """
        graded = torch.is_grad_enabled() if wants is None else wants
        known = self._known[which].get(key) if key is not None else None
        if known is None or not known.is_as_returned or not (known.is_bare or known.graded >= graded):
            return None
        if wants and known.needs != needs:
            return None
        if which is None and (not self._passes or known.numbers & self._values.changed):
            return None
        known.asked = self._passes + 1
        self._repeating |= {place, known.place}
        self._went_past |= which is not None and known.made <= self._passes
        self.acted_here()
        if known.is_bare or known.graded == graded:
            return known.output
        bare = [each.detach() for each in tensors_of(known.output)]
        return bare[0] if isinstance(known.output, torch.Tensor) else type(known.output)(bare)

    def _holds_graphs(self) -> bool:
        return any(not known.is_bare for its in self._known.values() for known in its.values())

    def _keep(
        self,
        which: int | None,
        key: Hashable | None,
        output: Any,
        *,
        place: Hashable,
        needed: bool,
        needs: tuple[bool, ...] = (),
    ) -> None:
        """Keep an output; `needed`: with gradients on it may need one, which it does not now."""
        tensors = list(tensors_of(output))
        bare = not needed and not any(each.requires_grad for each in tensors)
        self._known[which][key] = _Known(
            place=place,
            output=output,
            versions=[each._version for each in tensors],
            numbers=self._values.numbers(output) if which is None else set(),
            graded=torch.is_grad_enabled(),
            is_bare=bare,
            made=self._passes + 1,
            asked=self._passes + 1,
            needs=needs,
            roots=numbers_of(roots_of(tensors)),
        )

    def _drop_outdated(self, which: int, new: ModuleKey) -> None:
        """Drop what a module, and functions, have made of parameters that have changed since."""
        its = self._known[which]
        old = [key for key in its if isinstance(key, ModuleKey) and key.parameters != new.parameters]
        for key in old:
            del its[key]
        if old:
            self._known[None] = {key: of for key, of in self._known[None].items() if of.is_bare}


class ConstantsKept(Patch):
    """Each line that copies numbers to the device does so once for the same numbers."""

    fix = "FX521"
    live = True
    for_ranks = True
    settles = 1 + _MOST_PASSES
    says = ("{} made once and handed out again", "constant")
    nothing_to_do = "no line copied the same numbers to the device again"
    stays_on_host: ClassVar[bool] = False
    """What is made on the host is kept as well."""

    def install(self) -> None:
        self._seen: set[Hashable] = set()
        self._kept: dict[Hashable, tuple[torch.Tensor, int]] = {}
        """What a line got for its numbers, with its version: what the script changes is not handed out."""
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
        wanted = self._passes < _MOST_PASSES or line in self._repeating
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
        if known is not None and known[0]._version == known[1]:
            self.acted_here()
            return known[0]
        made = original(source, *args, **kwargs)
        kept = self.stays_on_host or made.device.type != "cpu"
        if numbers is None or not kept or made.requires_grad:
            return made
        if what in self._seen:
            # Kept from the second time on: batches that are never alike take no memory.
            self._repeating.add(line)
            self._kept[what] = made, made._version
        elif self._passes < _MOST_PASSES:
            self._seen.add(what)
        return made


class ListsKept(ConstantsKept):
    """Those that stay on the host, too: reading a list takes time wherever its numbers go."""

    fix = "FX529"
    stays_on_host = True


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
