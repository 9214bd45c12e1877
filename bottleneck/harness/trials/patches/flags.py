"""Patches that set one of torch's switches when the script's own set-up is over.

In: a switch and its value. Out: the switch in force during the timed steps, read back at their end.
Not set earlier: a script that sets it itself must be told from one that the fix is news to, and one
that sets it differently later on makes the fix "not applied".
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch

from ....model.verify import Applied
from ... import torch_private
from .base import NotSwitchable, Patch


def _capability() -> int | None:
    """Return the major compute capability of the device in use, or None without one."""
    if torch.cuda.is_available() and torch.cuda.is_initialized() and not torch.version.hip:
        return int(torch.cuda.get_device_capability()[0])
    return None


class Switch(NamedTuple):
    """One of torch's switches, and where a patch wants it."""

    read: Callable[[], Any]
    write: Callable[[Any], None]
    wanted: Any


class Flag(Patch):
    """Sets switches and keeps to them; subclasses say which."""

    live = True
    for_ranks = True
    is_guarded = True

    needs_gpu: ClassVar[bool] = True
    needs_ampere: ClassVar[bool] = False

    def switches(self) -> dict[str, Switch]:
        """Return them by name."""
        raise NotImplementedError

    def install(self) -> None:
        self._before: dict[str, Any] = {}
        self._begun = False

    def training_begins(self) -> None:
        """Set what is set otherwise now."""
        self._begun = True
        for name, switch in self.switches().items():
            with contextlib.suppress(Exception):
                now = switch.read()
                if now != switch.wanted:
                    self._before[name] = now
                    switch.write(switch.wanted)

    def uninstall(self) -> None:
        super().uninstall()
        for name, switch in self.switches().items():
            if name in self._before:
                with contextlib.suppress(Exception):
                    switch.write(self._before.pop(name))

    def check(self) -> Applied:
        """Read the switches back."""
        if self.needs_gpu and _capability() is None:
            return self.not_applied("no NVIDIA GPU was used")
        if self.needs_ampere and (_capability() or 0) < 8:
            return self.not_applied("the device has no TF32: it needs compute capability 8.0")
        if not self._begun:
            return self.not_applied("training never began")
        if not self._before:
            return self.not_applied("the switch was on already")
        switches = self.switches()
        wrong = [f"{name} is {s.read()!r}" for name, s in switches.items() if s.read() != s.wanted]
        if wrong:
            return self.not_applied(f"the script set it back: {', '.join(wrong)}")
        told = [f"{name} {now!r} -> {switches[name].wanted!r}" for name, now in self._before.items()]
        self.count = len(told)
        return self.applied(", ".join(told))


class MatmulTf32(Flag):
    """Matrix products in TF32."""

    fix = "FX301"

    needs_ampere = True

    def switches(self) -> dict[str, Switch]:
        read, write = torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
        return {"float32_matmul_precision": Switch(read, write, self.option("precision", "high"))}

    def training_begins(self) -> None:
        self._parts = [(part, part.fp32_precision) for part in _matmuls()]
        super().training_begins()

    def uninstall(self) -> None:
        """Where it stood at "none" it followed a wider setting, which the old switch cannot say."""
        if self._before:
            super().uninstall()
            for part, precision in self._parts:
                part.fp32_precision = precision


class CudnnTf32(Flag):
    """Convolutions in TF32."""

    fix = "FX302"

    needs_ampere = True

    def switches(self) -> dict[str, Switch]:
        return {"cudnn.allow_tf32": _attribute(torch.backends.cudnn, "allow_tf32", wanted=True)}


class CudnnOn(Flag):
    """Convolutions by cuDNN."""

    fix = "FX349"

    def switches(self) -> dict[str, Switch]:
        return {"cudnn.enabled": _attribute(torch.backends.cudnn, "enabled", wanted=True)}


class CudnnBenchmark(Flag):
    """The fastest of cuDNN's algorithms, timed once."""

    fix = "FX308"

    live = False
    why_not_live = (
        "cuDNN keeps the algorithm that it took first for each shape, whatever the switch says later"
    )

    def switches(self) -> dict[str, Switch]:
        return {"cudnn.benchmark": _attribute(torch.backends.cudnn, "benchmark", wanted=True)}


class CudnnSearchOff(Flag):
    """No timing of algorithms."""

    fix = "FX324"

    live = False
    why_not_live = "cuDNN keeps the algorithms of all sizes that it has met, and a trial repeats its batches"

    def switches(self) -> dict[str, Switch]:
        return {"cudnn.benchmark": _attribute(torch.backends.cudnn, "benchmark", wanted=False)}


class CudnnAttentionOff(Flag):
    """Attention without cuDNN's plans."""

    fix = "FX347"

    live = False
    why_not_live = "cuDNN keeps the plans of all sizes that it has met, and a trial repeats its batches"

    def switches(self) -> dict[str, Switch]:
        cuda = torch.backends.cuda
        return {"sdp.cudnn": Switch(cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp, wanted=False)}


class NotDeterministic(Flag):
    """What determinism costs."""

    fix = "FX309"

    needs_gpu = False

    def switches(self) -> dict[str, Switch]:
        return {
            "cudnn.deterministic": _attribute(torch.backends.cudnn, "deterministic", wanted=False),
            "use_deterministic_algorithms": Switch(
                torch.are_deterministic_algorithms_enabled, _use_deterministic_algorithms, wanted=False
            ),
        }


class NewMemoryUnfilled(Flag):
    """What the fills of new tensors cost that determinism asks for."""

    fix = "FX328"

    needs_gpu = False

    def switches(self) -> dict[str, Switch]:
        name = "fill_uninitialized_memory"
        return {name: _attribute(torch.utils.deterministic, name, wanted=False)}


class DenormalsFlushed(Flag):
    """Denormal numbers taken for zeros."""

    fix = "FX348"

    needs_gpu = False

    def switches(self) -> dict[str, Switch]:
        read, write = torch_private.denormals_flushed, torch_private.flush_denormals
        return {"flush_denormal": Switch(read, write, wanted=True)}

    def training_begins(self) -> None:
        """Set it, unless the threads of operators would not follow."""
        try:
            if not torch_private.denormals_flushed():
                torch_private.flush_denormals(True)
                self._before = {"flush_denormal": False}
        except RuntimeError as error:
            raise NotSwitchable(str(error)) from None
        self._begun = True


class NoDefaultDevice(Flag):
    """Calls that do not look at the default device."""

    fix = "FX531"

    needs_gpu = False

    def switches(self) -> dict[str, Switch]:
        return {"default_device": Switch(torch_private.default_device, torch.set_default_device, wanted=None)}

    def training_begins(self) -> None:
        """Set it, unless tensors would be made elsewhere then."""
        device = torch_private.default_device()
        if device is not None and device.type != "cpu":
            raise NotSwitchable("tensors that are made without a device would be on the CPU")
        super().training_begins()


class DistributionsUnchecked(Flag):
    """What the checks of torch.distributions cost."""

    fix = "FX517"

    needs_gpu = False

    def switches(self) -> dict[str, Switch]:
        read, write = torch_private.distributions_checked, torch_private.check_distributions
        return {"distributions.checked": Switch(read, write, wanted=False)}


def _matmuls() -> list[Any]:
    """Return the parts of torch that have a precision of their own for matrix products, from 2.9 on."""
    parts = (torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None))
    return [part for part in parts if hasattr(part, "fp32_precision")]


def _use_deterministic_algorithms(mode: bool) -> None:
    """Leave it as it is whether what has no such algorithm warns or fails."""
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(mode, warn_only=warn_only)


def _attribute(owner: Any, name: str, *, wanted: bool) -> Switch:
    return Switch(lambda: getattr(owner, name), lambda value: setattr(owner, name, value), wanted)
