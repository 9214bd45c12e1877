"""The state of a training, kept and put back: a trial begins where every other one began.

In: modules, optimizers, a gradient scaler. Out: `KeptState`. Tensors stay the same objects: their contents
are put back in place. Copies lie on the device where it has room for them, otherwise on the host.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch

from .. import torch_private
from .seeded_batches import put_back_random, random_states

_ROOM = 2
"""Free device memory, in sizes of the state, from which on copies stay on the device."""


class KeptState:
    """Parameters, buffers, optimizers, gradient scaler and random states, as of when it was made."""

    def __init__(self, modules: Iterable[Any], optimizers: Iterable[Any], scaler: Any = None) -> None:
        """Copy everything.

        Raises:
            RuntimeError: no memory for it, or a tensor that cannot be copied.
        """
        self._optimizers = list(optimizers)
        self._scaler = scaler
        tensors: dict[int, Any] = {}
        for module in modules:
            for tensor in (*module.parameters(), *module.buffers()):
                tensors.setdefault(id(tensor), tensor)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    tensors.setdefault(id(parameter), parameter)
        self._on_device = _fits(tensors.values(), self._optimizers)
        self._tensors = [(tensor, self._kept(tensor.data)) for tensor in tensors.values()]
        self._without_gradient = [t for t in tensors.values() if t.is_leaf and t.grad is None]
        self._states = [self._of(optimizer) for optimizer in self._optimizers]
        self._scaler_state = copy.deepcopy(scaler.state_dict()) if scaler is not None else None
        self._random = random_states()
        on_cpu = torch_private.device_kind() == "cpu"
        self._device_random = [] if on_cpu else torch.cuda.get_rng_state_all()

    def put_back(self) -> None:
        """Make everything as it was."""
        for tensor, kept in self._tensors:
            tensor.data.copy_(kept)
        for tensor in self._without_gradient:
            tensor.grad = None
        for optimizer, (states, groups) in zip(self._optimizers, self._states, strict=True):
            self._put_back(optimizer, states, groups)
        if self._scaler is not None:
            self._scaler.load_state_dict(copy.deepcopy(self._scaler_state))
        put_back_random(*self._random)
        if self._device_random:
            torch.cuda.set_rng_state_all(self._device_random)

    def _kept(self, tensor: Any) -> Any:
        return tensor.detach().clone() if self._on_device else tensor.detach().to("cpu", copy=True)

    def _of(self, optimizer: Any) -> tuple[list[tuple[Any, dict[Any, Any]]], list[dict[str, Any]]]:
        states = [
            (
                parameter,
                {
                    key: (value, self._kept(value)) if torch.is_tensor(value) else (value, copy.copy(value))
                    for key, value in state.items()
                },
            )
            for parameter, state in optimizer.state.items()
            if isinstance(state, dict)
        ]
        groups = [{key: value for key, value in g.items() if key != "params"} for g in optimizer.param_groups]
        return states, [
            {
                key: self._kept(value) if torch.is_tensor(value) else copy.copy(value)
                for key, value in g.items()
            }
            for g in groups
        ]

    def _put_back(
        self, optimizer: Any, states: list[tuple[Any, dict[Any, Any]]], groups: list[dict[str, Any]]
    ) -> None:
        known = {id(parameter) for parameter, _ in states}
        for parameter in [p for p in optimizer.state if id(p) not in known]:
            del optimizer.state[parameter]
        for parameter, state in states:
            now = optimizer.state[parameter]
            for key in [key for key in now if key not in state]:
                del now[key]
            for key, (value, kept) in state.items():
                if torch.is_tensor(value):
                    value.data.copy_(kept)
                now[key] = value if torch.is_tensor(value) else copy.copy(kept)
        for group, kept_group in zip(optimizer.param_groups, groups, strict=False):
            for key, kept in kept_group.items():
                value = group.get(key)
                if torch.is_tensor(kept) and torch.is_tensor(value):
                    value.data.copy_(kept)
                elif not torch.is_tensor(kept):
                    group[key] = copy.copy(kept)


def _fits(tensors: Iterable[Any], optimizers: Iterable[Any]) -> bool:
    if torch_private.device_kind() == "cpu":
        return True
    size = sum(t.numel() * t.element_size() for t in tensors)
    for optimizer in optimizers:
        for state in optimizer.state.values():
            if isinstance(state, dict):
                size += sum(v.numel() * v.element_size() for v in state.values() if torch.is_tensor(v))
    free, _ = torch.cuda.mem_get_info()
    unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return bool(size * _ROOM < free + unused)
