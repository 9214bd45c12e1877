"""Patches of host-to-device copies: pinned memory, non_blocking, and none of what stays as it is.

In: `Tensor.to` and `Tensor.cuda` of CPU tensors. Out: the same copies, not waited for, or not made. A
tensor that is copied again and again (a list of prepared batches) is pinned once, as one would by hand.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch

from ....model.fix import Beside
from ....model.verify import Applied
from ...events.copied import OUTLIVED, Source
from ...events.hooks import goes_to_device
from .base import NotSwitchable, Patch, Program, plural
from .loaders import Pinned

_is_compiling = torch.compiler.is_compiling
KEPT_BYTES = 8_000_000_000
"""Pinned copies of batches that come again are kept up to this."""


class AsyncCopies(Patch):
    """Copies of tensors that are pinned already, without blocking."""

    fix = "FX104"
    live = True
    for_ranks = True
    nothing_to_do = "no tensor was copied to the device with .to() or .cuda()"

    def install(self) -> None:
        self._training = False
        for name in ("to", "cuda"):
            self.replaced.put(torch.Tensor, name, self._make_copy)

    def put_in(self, program: Program) -> None:
        if not torch.cuda.is_available():
            raise NotSwitchable("there is no GPU to copy to")
        super().put_in(program)

    def training_begins(self) -> None:
        """What is copied before, weights and buffers among it, is copied once."""
        self._training = True

    def _make_copy(self, original: Any) -> Any:
        def copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if _is_compiling() or tensor.device.type != "cpu" or not goes_to_device(args, kwargs):
                return original(tensor, *args, **kwargs)
            if not self._training or isinstance(tensor, torch.nn.Parameter) or tensor.is_sparse:
                return original(tensor, *args, **kwargs)
            return self._copied(original, tensor, args, kwargs)

        return copy

    def _copied(self, original: Any, tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        source = self._source(tensor)
        if source is None:
            return original(tensor, *args, **kwargs)
        self.acted_here(non_blocking=True)
        return original(source, *_without_blocking(args, kwargs), **kwargs)

    def _source(self, tensor: Any) -> Any:
        """Return the pinned tensor to copy from, or None to leave this copy alone."""
        if tensor.is_pinned():
            return tensor
        self.passed("the tensors that are copied are not in pinned memory")
        return None

    def check(self) -> Applied:
        if not torch.cuda.is_available():
            return self.not_applied("there is no GPU to copy to")
        return super().check()

    def evidence(self) -> str:
        return f"non_blocking on {plural(self.count, 'copy').replace('copys', 'copies')}"


class PinnedCopies(AsyncCopies):
    """Loaders that pin their batches, and everything else pinned before it is copied without blocking."""

    fix = "FX103"
    settles = 3

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._loaders = Pinned(self.options)
        self._pinned: dict[int, tuple[weakref.ref[Any], int, torch.Tensor]] = {}

    def install(self) -> None:
        super().install()
        self._pinned.clear()
        self._pinned_bytes = 0
        self._pins = 0
        self._loaders.install()

    def uninstall(self) -> None:
        super().uninstall()
        self._pinned.clear()
        self._loaders.uninstall()

    def put_in(self, program: Program) -> None:
        """Loaders are built by now: the batches come from a second one that pins them."""
        super().put_in(program)
        self._loaders.uninstall()
        if program.loader is not None and not program.loader.pin_memory:
            self._loaders.switch_on(program)

    def take_out(self) -> None:
        super().uninstall()
        self._pinned.clear()
        if self._loaders.is_on:
            self._loaders.switch_off()

    def settle_steps(self, program: Program) -> int:
        return self.settles + self._loaders.settle_steps(program)

    def close(self) -> None:
        self._loaders.close()

    def _source(self, tensor: Any) -> Any:
        if tensor.is_pinned():
            return tensor
        if tensor.requires_grad or tensor.numel() == 0:
            return None
        if tensor.is_inference():
            # It has no version by which a later change could be seen.
            self._pins += 1
            return _twin(tensor)
        known = self._pinned.get(id(tensor))
        version: int = tensor._version
        if known is not None and known[0]() is tensor and known[1] == version:
            return known[2]
        pinned = _twin(tensor)
        self._pins += 1
        size = tensor.numel() * tensor.element_size()
        if self._pinned_bytes + size <= KEPT_BYTES:
            self._keep(tensor, pinned, size)
        return pinned

    def _keep(self, tensor: Any, pinned: torch.Tensor, size: int) -> None:
        """Remember the pinned twin for as long as its source lives."""
        key = id(tensor)

        def gone(_reference: object) -> None:
            if self._pinned.pop(key, None) is not None:
                self._pinned_bytes -= size

        previous = self._pinned.get(key)
        if previous is None:
            self._pinned_bytes += size
        self._pinned[key] = (weakref.ref(tensor, gone), tensor._version, pinned)

    def check(self) -> Applied:
        if self._loaders.count:
            self.values.update(self._loaders.values)
            self._sites.update(self._loaders._sites)
        if self._pins:
            self.beside = [Beside.PINNED]
        return super().check()

    def evidence(self) -> str:
        told = [self._loaders.evidence()] if self._loaders.count else []
        told.append(super().evidence())
        if self._pins:
            told.append(f"{plural(self._pins, 'tensor')} pinned before the copy")
        return "; ".join(told)


@dataclass(slots=True)
class _Held:
    """Memory that was copied from, and all of it on the device once it has proved to stay."""

    source: Source
    """The stretch that was copied first."""
    since: int
    """Backward passes that were over by then..."""
    looked: int
    """... and when it was last looked at."""
    twin: torch.Tensor | None = None
    """Bytes of the whole storage, on the device."""
    given: list[torch.Tensor] = field(default_factory=list)
    """What was taken from them since the last look; each has a version of its own."""
    changed: bool = False
    """The script has changed what it was given, and with it the twin."""

    def is_of(self, tensor: torch.Tensor, passes: int) -> bool:
        """Return whether it still is this tensor's memory, and as it was; looked at once in each pass."""
        if self.source.version != tensor._version or self.source.memory.now() is None:
            return False
        if self.looked != passes and not self.source.stays():
            return False
        self.looked = passes
        return True


class KeptOnDevice(AsyncCopies):
    """Memory that stays as it is on the host is copied whole, once; each batch is taken from that.

    It stays if the second backward later it is there, and the same. What the script then changes on the
    device in place is copied again as it was.
    """

    fix = "FX523"
    for_ranks = False
    settles = 4
    nothing_to_do = "nothing was copied to the device from memory that stays as it is"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._held: dict[int, _Held] = {}

    def install(self) -> None:
        super().install()
        self._held.clear()
        self._bytes = self._passes = 0
        self.replaced.put(torch.autograd, "backward", self._make_backward)

    def uninstall(self) -> None:
        super().uninstall()
        self._held.clear()

    def _make_backward(self, original: Any) -> Any:
        def backward(*args: Any, **kwargs: Any) -> Any:
            self._passes += 1
            return original(*args, **kwargs)

        return backward

    def _copied(self, original: Any, tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        held = self._held_of(tensor)
        if held is not None and held.twin is None:
            self._copy_whole(held, original, tensor, args, kwargs)
        if held is None or held.twin is None:
            return original(tensor, *args, **kwargs)
        self.acted_here()
        count = held.twin.numel() // tensor.element_size()
        elements = held.twin[: count * tensor.element_size()].view(tensor.dtype)
        # A view would share its version with all others, of which a backward may have saved some.
        batch = elements.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).data
        held.given.append(batch)
        return original(batch, *args, **kwargs)

    def _held_of(self, tensor: torch.Tensor) -> _Held | None:
        """Return what is known of a tensor's memory, once it has proved to stay."""
        # A batch of the twin would take part in no backward.
        if tensor.requires_grad or tensor.is_inference() or tensor.layout is not torch.strided:
            return None
        try:
            address = tensor.untyped_storage().data_ptr()
        except RuntimeError:  # fake tensors, and those inside vmap
            return None
        held = self._held.get(address)
        if held is None or not held.is_of(tensor, self._passes):
            gone = [each for each, known in self._held.items() if known.source.memory.now() is None]
            for each in {address, *gone}:
                self._let_go(each)
            source = Source.of(tensor)
            if source is not None:
                self._held[address] = _Held(source, self._passes, self._passes)
            return None
        held.changed = held.changed or any(batch._version for batch in held.given)
        held.given.clear()
        if held.changed:
            self.passed("the script changes on the device what it has copied")
            return None
        return held if self._passes - held.since >= OUTLIVED else None

    def _copy_whole(
        self, held: _Held, original: Any, tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        storage = tensor.untyped_storage()
        if self._bytes + storage.nbytes() > _room():
            self.passed("the device has no room for all of the memory that is copied from")
            return
        device = original(tensor, *args, **kwargs).device
        held.twin = original(torch.empty(0, dtype=torch.uint8).set_(storage), device)
        self._bytes += storage.nbytes()

    def evidence(self) -> str:
        return f"{plural(self.count, 'tensor')} taken from memory that is on the device"

    def _let_go(self, key: int) -> None:
        before = self._held.pop(key, None)
        if before is not None and before.twin is not None:
            self._bytes -= before.twin.nbytes


def _room() -> int:
    """Return how much may be kept on the device."""
    free: int = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 2 * KEPT_BYTES
    return min(KEPT_BYTES, free // 2)


def _twin(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same numbers in pinned memory; torch pins no tensor of which several share a place."""
    try:
        return tensor.pin_memory()
    except RuntimeError:
        return tensor.contiguous().pin_memory()


def _without_blocking(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the positional arguments with non_blocking on; else it goes into the keywords."""
    for i, value in enumerate(args):
        if isinstance(value, bool):
            return (*args[:i], True, *args[i + 1 :])
    kwargs["non_blocking"] = True
    return args
