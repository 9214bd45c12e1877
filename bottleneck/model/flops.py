"""What follows from the shapes that operators were called with: FLOPs, and what has a cheaper way.

In: calls with shapes, types and values, as a profiler records them. Out: sums. Counted are matrix
products, convolutions and fused attention, multiply and add as two operations; only leaves, since
aten::linear and aten::matmul end in one of them.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

from .run import CostlyCalls

ROW_PRODUCTS = ("MmBackward", "AddmmBackward")
"""Autograd's nodes of products whose gradient has a row for each output."""
PRODUCTS = (*ROW_PRODUCTS, "BmmBackward", "BaddbmmBackward")
"""And of those that are batched, as the inner products of attention."""


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One recorded call: per argument its shape, its type, and its value if it is no tensor."""

    name: str
    shapes: list[list[int]]
    dtypes: list[str]
    values: list[Any]
    began_ns: int = 0


_DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::BFloat16": "bfloat16",
    "c10::Half": "float16",
    "c10::complex<float>": "complex64",
}


def _size(shape: Sequence[int]) -> int:
    return math.prod(shape)


def _product(left: Sequence[int], right: Sequence[int]) -> float:
    """(..., m, k) x (..., k, n)."""
    return 2.0 * _size(left) * right[-1]


def _attention(call: OperatorCall, query: int, key: int, value: int) -> float:
    """Two products over the scores; a causal mask leaves half of them."""
    q, k, v = (call.shapes[i] for i in (query, key, value))
    scores = _size(q[:-1]) * k[-2]
    causal = 0.5 if any(v is True for v in call.values) else 1.0
    return 2.0 * scores * (q[-1] + v[-1]) * causal


def _convolution(call: OperatorCall) -> float:
    """Each output element takes one product per weight of its filter."""
    data, weight = call.shapes[0], call.shapes[1]
    stride, padding, dilation, transposed = call.values[3:7]
    if transposed:
        return 2.0 * _size(data) * _size(weight[1:])
    out = 1
    for i, (length, kernel) in enumerate(zip(data[2:], weight[2:], strict=True)):
        step, pad, spread = (v[min(i, len(v) - 1)] for v in (stride, padding, dilation))
        out *= (length + 2 * pad - spread * (kernel - 1) - 1) // step + 1
    return 2.0 * data[0] * out * _size(weight)


def _convolution_backward(call: OperatorCall) -> float:
    """One convolution for the gradient of the data, one for that of the weight."""
    gradient, data, weight = call.shapes[:3]
    transposed, mask = call.values[7], call.values[10]
    once = 2.0 * (
        _size(data) * _size(weight[1:]) if transposed else gradient[0] * _size(gradient[2:]) * _size(weight)
    )
    return once * sum(bool(wanted) for wanted in mask[:2])


COUNTED: dict[str, Callable[[OperatorCall], float]] = {
    "aten::mm": lambda c: _product(c.shapes[0], c.shapes[1]),
    "aten::bmm": lambda c: _product(c.shapes[0], c.shapes[1]),
    "aten::addmm": lambda c: _product(c.shapes[1], c.shapes[2]),
    "aten::_addmm_activation": lambda c: _product(c.shapes[1], c.shapes[2]),
    "aten::baddbmm": lambda c: _product(c.shapes[1], c.shapes[2]),
    "aten::_scaled_mm": lambda c: _product(c.shapes[0], c.shapes[1]),
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    # Backward computes the scores again and four products more: 2.5 times the forward.
    **{
        f"aten::_scaled_dot_product_{name}": lambda c: _attention(c, 0, 1, 2)
        for name in (
            "flash_attention",
            "efficient_attention",
            "cudnn_attention",
            "flash_attention_for_cpu",
        )
    },
    **{
        f"aten::_scaled_dot_product_{name}": lambda c: 2.5 * _attention(c, 1, 2, 3)
        for name in (
            "flash_attention_backward",
            "efficient_attention_backward",
            "cudnn_attention_backward",
            "flash_attention_for_cpu_backward",
        )
    },
}
"""Operator -> its FLOPs. Only leaves: aten::linear and aten::matmul end in one of these."""


def count_flops(calls: Iterable[OperatorCall]) -> tuple[dict[str, float], dict[str, float], int]:
    """Return (FLOPs by dtype of the operands, FLOPs by operator, calls that could not be counted)."""
    by_dtype: dict[str, float] = defaultdict(float)
    by_operator: dict[str, float] = defaultdict(float)
    lost = 0
    for call in calls:
        rule = COUNTED.get(call.name)
        if rule is None:
            continue
        try:
            flops = float(rule(call))
        except (IndexError, TypeError, ValueError, OverflowError):
            lost += 1
            continue
        by_operator[call.name.removeprefix("aten::")] += flops
        # The first operand of addmm is the bias; the last that has a shape is always a factor.
        kind = next((d for d, s in zip(call.dtypes, call.shapes, strict=False) if len(s) > 1), "")
        by_dtype[_DTYPES.get(kind, kind.rpartition("::")[2] or "unknown")] += flops
    return dict(by_dtype), dict(by_operator), lost


_FACTORS = {
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::_addmm_activation": (1, 2),
    "aten::baddbmm": (1, 2),
}
"""Matrix product -> the places of its two factors among the arguments."""
_MOST_PRODUCTS = 12


def largest_products(calls: Iterable[OperatorCall]) -> tuple[list[tuple[int, int, int, int]], list[int]]:
    """Return the matrix products that most FLOPs are in, at most twelve: (rows, inner, columns, how many).

    And of each of them, how many one call makes at most.
    """
    made: dict[tuple[int, int, int], int] = defaultdict(int)
    batches: dict[tuple[int, int, int], int] = defaultdict(int)
    for call in calls:
        if call.name not in _FACTORS:
            continue
        left, right = (call.shapes[i] for i in _FACTORS[call.name])
        if len(left) >= 2 and len(right) >= 2:
            shape, batch = (left[-2], left[-1], right[-1]), _size(left[:-2])
            made[shape] += batch
            batches[shape] = max(batches[shape], batch)
    largest = sorted(made, key=lambda shape: -_size(shape) * made[shape])[:_MOST_PRODUCTS]
    return [(*shape, made[shape]) for shape in largest], [batches[shape] for shape in largest]


@dataclass(frozen=True, slots=True)
class CostlyAtTimes:
    """An operator for which there is a cheaper way, for some axes, types and sizes."""

    callee: str
    """As Python calls it."""
    applies: Callable[[OperatorCall], bool]
    on_gpu: bool = False
    """Whether it is so on a GPU, too."""
    of_one: Callable[[OperatorCall], tuple[Hashable, tuple[int, int]]] | None = None
    """What a call takes a part of, and which: there is a cheaper way for several parts, none for one."""


_INTEGERS = frozenset({"long int", "int", "short int", "signed char", "unsigned char"})


def _of_outer_axis(call: OperatorCall) -> bool:
    """Argmax jumps through memory for each number."""
    axis, rank = call.values[1], len(call.shapes[0])
    return type(axis) is int and axis % max(1, rank) < rank - 1


def _of_integers(call: OperatorCall) -> bool:
    """No library multiplies these matrices: torch does it number by number."""
    return bool(_INTEGERS.intersection(call.dtypes))


def _of_all_pairs(call: OperatorCall) -> bool:
    """Each pair of vectors is written to memory."""
    left, right = call.shapes[:2]
    return len(left) == len(right) and any(map(int.__lt__, left, right)) and any(map(int.__gt__, left, right))


def _of_all_classes(call: OperatorCall) -> bool:
    """An exponential number is drawn for each class, or all are added up for fewer draws than there are."""
    return call.values[1] == 1 or call.values[2] is False or call.shapes[0][-1] > call.values[1]


def _is_part(call: OperatorCall) -> bool:
    """Its gradient is as large as all of the tensor: zeros, but for the part."""
    whole, (first, last) = _part(call)
    return bool(whole) and last - first < call.shapes[0][call.values[1]]


def _part(call: OperatorCall) -> tuple[Hashable, tuple[int, int]]:
    """Return the tensor's shape with the axis, and the range that is taken of that."""
    shape, axis = call.shapes[0], call.values[1]
    length = shape[axis]
    if call.name == "aten::select":
        first = call.values[2] % length
        last = first + 1
    else:
        first, last = (min(max(at + length * (at < 0), 0), length) for at in call.values[2:4])
    return (tuple(shape), axis % len(shape)), (first, last)


def _of_one_number(call: OperatorCall) -> bool:
    """One row times one column: products are made for blocks of rows and columns, and here there are none."""
    left, right = call.shapes[:2]
    return left[-2] == right[-1] == 1 and not _of_integers(call)


COSTLY_AT_TIMES = {
    "aten::argmax": (CostlyAtTimes("torch.argmax", _of_outer_axis),),
    "aten::argmin": (CostlyAtTimes("torch.argmin", _of_outer_axis),),
    "aten::bmm": (
        CostlyAtTimes("torch.matmul", _of_integers),
        CostlyAtTimes("torch.bmm", _of_one_number, on_gpu=True),
    ),
    "aten::cosine_similarity": (CostlyAtTimes("torch.cosine_similarity", _of_all_pairs, on_gpu=True),),
    "aten::mm": (CostlyAtTimes("torch.matmul", _of_integers),),
    "aten::multinomial": (CostlyAtTimes("torch.multinomial", _of_all_classes, on_gpu=True),),
    "aten::select": (CostlyAtTimes("torch.select", _is_part, on_gpu=True, of_one=_part),),
    "aten::slice": (CostlyAtTimes("torch.narrow", _is_part, on_gpu=True, of_one=_part),),
}


def costly_calls(calls: Iterable[OperatorCall], *, on_gpu: bool) -> list[CostlyCalls]:
    """Return which calls of `COSTLY_AT_TIMES` have a cheaper way, by what they were called with."""
    by_name: dict[str, list[OperatorCall]] = defaultdict(list)
    for call in sorted(calls, key=lambda each: each.began_ns):
        by_name[call.name].append(call)
    found = []
    for name, costly in ((name, each) for name, its in COSTLY_AT_TIMES.items() for each in its):
        mine = by_name[name] if costly.on_gpu or not on_gpu else []
        places = [place for place, call in enumerate(mine) if _applies(costly, call)]
        seen = functools.partial(CostlyCalls, operator=name, callee=costly.callee, of=len(mine))
        if costly.of_one is not None:
            parts = {place: costly.of_one(mine[place]) for place in places}
            found += [seen(places=its, tensors=tensors) for its, tensors in _taken_apart(parts)]
        elif places:
            found.append(seen(places=places))
    return found


def _taken_apart(
    parts: Mapping[int, tuple[Hashable, tuple[int, int]]],
) -> Iterator[tuple[list[int], int]]:
    """Yield of each whole the places of its parts, if they are several, and none has anything of another.

    And of how many tensors of this shape they are: as many as have the part that is taken least.
    """
    taken: dict[Hashable, dict[tuple[int, int], list[int]]] = defaultdict(lambda: defaultdict(list))
    for place, (whole, part) in parts.items():
        taken[whole][part].append(place)
    for its in taken.values():
        if len(its) > 1 and all(before[1] <= after[0] for before, after in pairwise(sorted(its))):
            yield sorted(chain.from_iterable(its.values())), min(map(len, its.values()))


def _applies(costly: CostlyAtTimes, call: OperatorCall) -> bool:
    try:
        return costly.applies(call)
    except (IndexError, TypeError, ValueError, ZeroDivisionError):
        # Recorded with other arguments than this torch has.
        return False
