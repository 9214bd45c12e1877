"""Patches of data-parallel training: DDP's options, gradients synchronised once per update.

In: `DistributedDataParallel`'s constructor and its forward. Out: the same training with less or
better hidden communication. Every rank learns the same cycle from the same events.
"""

from __future__ import annotations

import inspect
import weakref
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optim_module

from ....model.verify import Applied
from ... import torch_private
from ...lines.sites import user_site
from .base import NotSwitchable, Patch, Program, plural

LEARNED_AFTER = 3
"""Updates with the same number of backward passes before any synchronisation is left out."""


class Overlap(Patch):
    """Buckets of a given size, gradients as views of them, a static graph."""

    fix = "FX601"
    why_not_live = "DistributedDataParallel lays its buckets out when it is built"
    nothing_to_do = "no module was put into DistributedDataParallel"

    def install(self) -> None:
        self.replaced.put(DistributedDataParallel, "__init__", self._make_init)

    def _make_init(self, original: Any) -> Any:
        signature = inspect.signature(original)

        def __init__(module: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - stands in for it
            bound = signature.bind(module, *args, **kwargs)
            size = self.option("bucket_cap_mb", None)
            wanted = {
                **({"bucket_cap_mb": size} if size is not None else {}),
                "gradient_as_bucket_view": True,
                "static_graph": self.option("static_graph", default=True),
            }
            if bound.arguments.get("find_unused_parameters"):
                # Parameters that come and go between steps are what a static graph rules out.
                del wanted["static_graph"]
            bound.arguments.update(wanted)
            original(*bound.args, **bound.kwargs)
            self.acted(user_site(), **wanted)

        return __init__


class BuffersKept(Patch):
    """No buffers are sent before the forward."""

    fix = "FX609"
    live = True
    for_ranks = True
    says = ("{} without sending buffers", "forward")
    nothing_to_do = "no module in DistributedDataParallel sent buffers"

    def install(self) -> None:
        self.replaced.put(DistributedDataParallel, "forward", self._make_forward)

    def put_in(self, program: Program) -> None:
        super().put_in(program)
        if not torch_private.sends_buffers(part for root in program.roots for part in root.modules()):
            raise NotSwitchable(self.nothing_to_do)

    def _make_forward(self, original: Any) -> Any:
        def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            sends = torch_private.sends_buffers([module])
            if sends:
                module.broadcast_buffers = False
                self.acted(None)
            try:
                return original(module, *args, **kwargs)
            finally:
                if sends:
                    module.broadcast_buffers = True

        return forward


class NoSync(Patch):
    """All-reduce with the last backward of an update only."""

    fix = "FX602"
    live = True
    for_ranks = True
    settles = LEARNED_AFTER + 1
    nothing_to_do = "no module in DistributedDataParallel was trained"

    def install(self) -> None:
        self._modules: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._cycle = 0
        self._seen: list[int] = []
        self._broken = False
        self.replaced.put(DistributedDataParallel, "forward", self._make_forward)
        self.replaced.hook(optim_module.register_optimizer_step_pre_hook(self._before_step))

    def put_in(self, program: Program) -> None:
        super().put_in(program)
        if not program.is_replicated:
            raise NotSwitchable(self.nothing_to_do)

    def uninstall(self) -> None:
        super().uninstall()
        for module in self._modules:
            module.require_backward_grad_sync = True

    def _make_forward(self, original: Any) -> Any:
        def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                number = self._modules.get(module, 0)
                self._modules[module] = number + 1
                if self._cycle > 1 and not self._broken:
                    last = number + 1 >= self._cycle
                    if not last:
                        self.acted(None)
                    if self.count < 100:
                        self.called(module)
                    module.require_backward_grad_sync = last
            return original(module, *args, **kwargs)

        return forward

    def _before_step(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if torch.compiler.is_compiling() or not self._modules:
            return
        micro = max(self._modules.values())
        if micro == 0:
            return  # a second optimizer of the same update
        for module in self._modules:
            self._modules[module] = 0
        if self._cycle:
            if micro != self._cycle:
                # An update with other than the learned number of passes: its gradients may not have
                # been reduced, which parity will show; from here on the script is left alone.
                self._broken = True
                self.passed(f"an update had {micro} backward passes instead of {self._cycle}")
                for module in self._modules:
                    module.require_backward_grad_sync = True
            return
        self._seen.append(micro)
        recent = self._seen[-LEARNED_AFTER:]
        if len(recent) == LEARNED_AFTER and len(set(recent)) == 1:
            self._cycle = recent[0]

    def check(self) -> Applied:
        if self._broken:
            return self.not_applied()
        if self._modules and self._cycle == 1:
            return self.not_applied("every backward is followed by an update: there is nothing to save")
        return super().check()

    def evidence(self) -> str:
        return f"no all-reduce in {plural(self.count, 'micro-step')}, {self._cycle} to an update"
