"""The private corners of autograd that the hooks and captures need, each tested for before use.

In: nothing. Out: small functions that work on torch 2.6 to 2.15, or say that a thing is not there (None,
False), as those of `torch_private` do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

NO_SEQUENCE = 1 << 62
"""Numbers of autograd nodes from which there is none: nodes that add gradients up have the largest."""
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
"""Classes of which an output is a real one."""


def engine_owner() -> tuple[Any, str] | None:
    """Return (module, attribute) of the one function behind every backward, or None.

    `Tensor.backward`, `autograd.backward`, `autograd.grad` and `torch.func.grad` all call
    `torch.autograd._engine_run_backward` by that module attribute (2.6 to 2.15).
    """
    if callable(getattr(torch.autograd, "_engine_run_backward", None)):
        return torch.autograd, "_engine_run_backward"
    return None


def plain_engine() -> Callable[..., Any] | None:
    """Return that function as torch has it, whoever watches it; None where it is not known."""
    return getattr(torch.autograd.graph, "_engine_run_backward", None)


def fills_all_leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call of that function, with these behind its first argument, is a plain `backward()`.

    `torch.autograd.grad` returns gradients, and `backward(inputs=...)` fills those of its inputs only.
    """
    return len(args) == 4 and not args[3] and kwargs.get("accumulate_grad") is True


def records_itself(args: tuple[Any, ...]) -> bool:
    """Return whether such a call makes gradients of which gradients are wanted (`create_graph=True`)."""
    return len(args) > 2 and bool(args[2])


def retaining(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of such a call for which the graph is kept (`retain_graph=True`)."""
    return (args[0], True, *args[2:])


def with_inputs(args: tuple[Any, ...], inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of such a call for which only these leaves are filled."""
    return (*args[:3], inputs)


def gradient_kind(node: Any, number: int) -> tuple[tuple[int, ...], Any]:
    """Return shape and type of a gradient that a node takes, by the input's number; (), None if not known."""
    try:
        known = node._input_metadata[number]
        return tuple(known.shape), known.dtype
    except (AttributeError, IndexError, RuntimeError, TypeError):
        return (), None


def saved_dim(node: Any) -> int | None:
    """Return the dimension that a node has kept, as it was given, or None."""
    dim = getattr(node, "_saved_dim", None)  # told without its sign
    return (dim + (1 << 63)) % (1 << 64) - (1 << 63) if isinstance(dim, int) else None


def grad_of_tensor() -> Any:
    """Return the descriptor of `Tensor.grad`, which Python inherits from a base class, or None."""
    return vars(torch._C.TensorBase).get("grad") if "grad" not in vars(torch.Tensor) else None


def has_gradient_hooks(tensor: Any) -> bool:
    """Return whether somebody is told of a leaf's gradient when it is made."""
    return bool(
        getattr(tensor, "_backward_hooks", None) or getattr(tensor, "_post_accumulate_grad_hooks", None)
    )


def next_number() -> int | None:
    """Return the number of the node that this thread records next; None where torch does not tell."""
    ask = getattr(torch._C._autograd, "_get_sequence_nr", None)
    return int(ask()) if ask is not None else None


def note_stacks(*, on: bool) -> bool:
    """Have autograd note the Python stack with each node that it records, or end that.

    Returns:
        Whether this changed anything; it does not where anomaly detection is on.
    """
    if on == torch.is_anomaly_enabled():
        return False
    torch.set_anomaly_enabled(on, check_nan=False)
    return True


def stack_noter() -> tuple[Any, str] | None:
    """Return (module, attribute) of what autograd asks for the stack that it notes, or None (2.6 to 2.15).

    Its answer is a list of texts like those of `traceback.format_stack`.
    """
    module = sys.modules.get("torch.fx.traceback")
    return (module, "format_stack") if callable(getattr(module, "format_stack", None)) else None


def is_real_loss(outputs: object) -> bool:
    """Return whether these are outputs of a real backward, not of a graph being traced.

    AOT tracing also runs through the autograd engine, with FakeTensor or FunctionalTensor
    outputs, and on 2.6 to 2.11 `is_compiling()` is False there.
    """
    first = outputs[0] if isinstance(outputs, (tuple, list)) and outputs else outputs
    kind = type(first)
    if kind in PLAIN_TENSORS:
        return True
    return isinstance(first, torch.Tensor) and not kind.__module__.startswith(
        ("torch._subclasses", "torch._functorch", "torch.fx")
    )


def in_backward() -> bool:
    """Return whether the calling thread runs inside a backward pass (a recomputed block, a hook)."""
    ask = getattr(torch._C, "_current_graph_task_id", None)
    return ask is not None and int(ask()) != -1
