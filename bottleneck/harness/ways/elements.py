"""Ways of calls that take number by number: functions of values, sorts, sums by index, layouts.

In: calls. Out: what gives the same while it computes, or moves, less.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch

from .way import Call, Instead, Made, Way, in_place_of, is_plain, is_real, once, same

_FUNCTIONS = (
    "lgamma", "digamma", "polygamma", "erf", "erfc", "erfinv", "pow", "exp", "expm1", "log",
    "log1p", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh",
    "tanh", "asinh", "acosh", "atanh", "sigmoid", "softplus", "special_i0", "special_i0e",
    "special_i1", "special_i1e", "mvlgamma", "xlogy", "special_gammaln", "special_psi",
    "special_erfcx", "special_ndtr", "special_log_ndtr", "sqrt", "rsqrt",
)  # fmt: skip
_SAMPLED = 4_096
"""Of a tensor, to guess its most common number from."""


class OncePerValue(Way):
    """A function of numbers that are mostly the same is computed of the others only."""

    callee = "way:once-per-value"
    shown = "a function of mostly equal numbers"
    functions = _FUNCTIONS

    def instead(self, call: Call, made: Made) -> Instead | None:
        if len(call.tensors()) != 1 or not is_plain(*call.args[:1]) or not call.tensors()[0].numel():
            return None
        x = call.tensors()[0]
        others: list[Callable[..., Any]] = []
        if once(x).numel() < x.numel():
            others.append(lambda x: call.on(once(x)).expand(x.shape))
        flat = x.detach().flatten()
        sample = flat[:: max(1, len(flat) // _SAMPLED)]
        common = sample.float().mode().values.to(x.dtype)
        if len(sample) > 8 and int((sample == common).sum()) > len(sample) // 2:
            others.append(functools.partial(_of_the_others, call, common))
        if not x.requires_grad and x.numel() > 1:
            least, most = flat.amin(), flat.amax()
            if bool((flat == flat.round()).all()) and float(most - least) < len(flat) / 8:
                first, count = int(least), int(most - least) + 1
                others.append(lambda x: _from_table(call, x, first, count))
        if call.name == "pow" and isinstance(call.given(1, "exponent"), (int, float)):
            power = call.given(1, "exponent")
            if power == int(power) and 3 <= power <= 8:
                others.append(lambda x: math.prod([x] * (int(power) - 1), start=x))
        return in_place_of(call, *others) if others else None


def _of_the_others(call: Call, common: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    differ = (x != common).nonzero(as_tuple=True)
    values = call.on(x[differ])
    out = torch.empty(x.shape, dtype=values.dtype, device=x.device).copy_(call.on(common).detach())
    return out.index_put(differ, values)


def _from_table(call: Call, x: torch.Tensor, first: int, count: int) -> torch.Tensor:
    table = call.on(torch.arange(first, first + count, device=x.device).to(x.dtype))
    return table.index_select(0, (x.flatten() - first).long()).view(x.shape)


class Selected(Way):
    """A sort of which the first few are read selects them."""

    callee = "way:sort"
    shown = "a sort of which a part is read"
    functions = ("__getitem__",)
    follows = ("sort", "argsort")

    def instead(self, call: Call, made: Made) -> Instead | None:
        whole, index = call.args
        sort = made(whole)
        if sort is None or sort.name not in self.follows or "stable" in sort.kwargs:
            return None
        x, axis = sort.args[0], sort.given(1, "dim", -1)
        descending = bool(sort.given(2, "descending", False))
        if not is_real(x) or not isinstance(axis, int) or not x.dim():
            return None
        keys = _written_out(index if isinstance(index, tuple) else (index,), x.dim())
        if keys is None or any(key != slice(None) for k, key in enumerate(keys) if k != axis % x.dim()):
            return None
        count = _count(keys[axis % x.dim()], x.shape[axis])
        if count is None or not 0 < abs(count) < x.shape[axis]:
            return None
        of_values = whole.is_floating_point()

        def own(x: torch.Tensor) -> Any:
            out = sort.on(x)
            out = out if sort.name == "argsort" else out[0] if of_values else out[1]
            return out[index]

        def other(x: torch.Tensor) -> Any:
            found = torch.topk(x, abs(count), axis, largest=descending is (count > 0))
            out = found.values if of_values else found.indices
            return out if count > 0 else out.flip(axis)

        alike = same if of_values else _as_many
        single = isinstance(keys[axis % x.dim()], int)
        return Instead(
            (x,), own, ((lambda x: other(x).select(axis, 0)) if single else other,), (sort,), alike
        )


def _as_many(own: Any, other: Any) -> bool:
    """Of equal numbers any may be named."""
    return bool(own.shape == other.shape)


def _written_out(keys: tuple[Any, ...], rank: int) -> tuple[Any, ...] | None:
    """Return an index with a key for each axis; None where it has others than numbers and slices."""
    if any(not isinstance(key, (int, slice)) and key is not Ellipsis for key in keys):
        return None
    if Ellipsis in keys:
        at = keys.index(Ellipsis)
        keys = (*keys[:at], *[slice(None)] * (rank - len(keys) + 1), *keys[at + 1 :])
    return (*keys, *[slice(None)] * (rank - len(keys)))


def _count(key: int | slice, length: int) -> int | None:
    """Return how many of the first an axis's key takes, or, negative, of the last; None for others."""
    if isinstance(key, int):
        return {0: 1, -1: -1, length - 1: -1}.get(key)
    first, last, step = key.indices(length)
    if step != 1:
        return None
    return last if first == 0 else first - length if last == length else None


class LargestByRows(Way):
    """Along an axis that is not the last, the places of the largest numbers come from max, and not argmax."""

    callee = "torch.argmax"
    shown = "`torch.argmax()`"
    functions = ("argmax", "argmin")

    def instead(self, call: Call, made: Made) -> Instead | None:
        x, axis, keeps = call.given(0, "input"), call.given(1, "dim"), bool(call.given(2, "keepdim", False))
        outer = is_plain(x) and x.device.type == "cpu" and type(axis) is int and x.numel()
        if not outer or not -x.dim() <= axis < x.dim() - 1 or axis == -1:
            return None
        largest = torch.max if call.name == "argmax" else torch.min
        return in_place_of(call, lambda x: largest(x.detach(), axis, keeps).indices, alike=_as_many)


class QuantilesSelected(Way):
    """On the CPU a quantile comes from NumPy's partition: no more is in order than the ranks it needs."""

    callee = "torch.quantile"
    shown = "`torch.quantile()`"
    functions = ("quantile",)

    def instead(self, call: Call, made: Made) -> Instead | None:
        x, q = call.given(0, "input"), call.given(1, "q")
        axis, keeps = call.given(2, "dim"), bool(call.given(3, "keepdim", False))
        plain = is_plain(x) and x.device.type == "cpu" and x.dim() and x.numel()
        if not plain or x.dtype not in (torch.float32, torch.float64) or call.kwargs.get("out") is not None:
            return None
        wanted = torch.as_tensor(q, dtype=x.dtype)
        if call.kwargs.get("interpolation", "linear") != "linear" or wanted.dim() > 1:
            return None
        if bool(((wanted < 0) | (wanted > 1)).any()) or bool(x.isnan().any()):
            return None
        return Instead((x,), _first_of(call), (lambda x: _quantiles(x, wanted, axis, keeps),))


def _first_of(call: Call) -> Callable[[torch.Tensor], Any]:
    """Return the call as a function of its first tensor."""
    return lambda x: call.on(x, *call.tensors()[1:])


def _quantiles(x: torch.Tensor, q: torch.Tensor, axis: int | None, keeps: bool) -> torch.Tensor:
    import numpy as np

    along = x.flatten() if axis is None else x.movedim(axis, -1)
    at = q.flatten() * (along.shape[-1] - 1)
    low, high = at.floor().long(), at.ceil().long()
    ranks = torch.cat([low, high]).unique().numpy()
    order = torch.from_numpy(np.argpartition(along.detach().numpy(), ranks, axis=-1))
    below, above = (along.gather(-1, order.index_select(-1, each)) for each in (low, high))
    found = torch.lerp(below, above, at - low).movedim(-1, 0)
    if keeps:
        found = found.reshape(-1, *[1] * x.dim()) if axis is None else found.unsqueeze(axis % x.dim() + 1)
    return found if q.dim() else found.squeeze(0)


class UniqueByKey(Way):
    """Rows of integers are told apart by one number each."""

    callee = "torch.unique"
    shown = "`torch.unique()` of rows"
    functions = ("unique",)

    def instead(self, call: Call, made: Made) -> Instead | None:
        x, inverse = call.given(0, "input"), bool(call.given(2, "return_inverse", False))
        counts, axis = bool(call.given(3, "return_counts", False)), call.given(4, "dim")
        rows = is_plain(x) and x.dim() == 2 and axis in (0, -2) and x.numel() > 0
        if not rows or x.is_floating_point() or x.is_complex() or x.dtype in (torch.bool, torch.uint64):
            return None
        least = x.amin(0).long()
        sizes = (x.amax(0).long() - least + 1).tolist()
        if math.prod(sizes) > _LARGEST:
            return None
        return in_place_of(call, lambda x: _unique_rows(x, least, sizes, inverse, counts))


_LARGEST = 2**62
"""Numbers that a key can be, with room in 64 bits."""


def _unique_rows(x: torch.Tensor, least: torch.Tensor, sizes: list[int], inverse: bool, counts: bool) -> Any:
    # The first column counts most, so that the keys are in the order of the rows.
    weights = [math.prod(sizes[at + 1 :]) for at in range(len(sizes))]
    keys = ((x.long() - least) * torch.tensor(weights, device=x.device)).sum(1)
    found, its_inverse, its_counts = keys.unique(return_inverse=True, return_counts=True)
    first = torch.empty_like(found)
    first[its_inverse] = torch.arange(len(x), device=x.device)
    out = [x[first], *[its_inverse] * inverse, *[its_counts] * counts]
    return tuple(out) if len(out) > 1 else out[0]


class WholeRows(Way):
    """An index that is the same along a row adds, or reads, whole rows.

    Where it differs along axes before its own, rows have one number each among those of all such axes.
    """

    callee = "way:whole-rows"
    shown = "a sum or a look-up number by number"
    functions = ("scatter_add", "scatter_add_", "gather", "scatter_reduce", "scatter_reduce_")

    def instead(self, call: Call, made: Made) -> Instead | None:
        x, axis, index = call.given(0, "input"), call.given(1, "dim"), call.given(2, "index")
        if not is_plain(x, index) or not isinstance(axis, int) or not 2 <= index.dim() == x.dim():
            return None
        if "scatter_reduce" in call.name and call.given(4, "reduce") != "sum":
            return None
        rank, axis = index.dim(), axis % index.dim()
        if any(index.shape[k] != x.shape[k] for k in range(rank) if k != axis):
            return None
        differs = [k for k in range(rank) if k != axis and not _is_equal_along(index, k)]
        if max(differs, default=-1) > axis or (differs and axis == rank - 1):
            return None
        at, first = (0, axis) if differs else (axis, 0)

        def numbers() -> torch.Tensor:
            each = index[
                tuple(slice(None) if k == axis or (differs and k < axis) else 0 for k in range(rank))
            ]
            if not differs:
                return each
            each = each.flatten(0, -2)
            return (each + x.shape[axis] * torch.arange(len(each), device=x.device)[:, None]).flatten()

        if call.name == "gather":
            return Instead(
                (x,),
                _first_of(call),
                (lambda x: x.flatten(0, first).index_select(at, numbers()).view(index.shape),),
            )
        source = call.given(3, "src")
        if not is_real(x, source) or source.shape != index.shape:
            return None

        def added(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
            return x.flatten(0, first).index_add(at, numbers(), source.flatten(0, first)).view(x.shape)

        return Instead((x, source), lambda x, source: x.scatter_add(axis, index, source), (added,))


class RowsByOneNumber(Way):
    """`x[i, j]` picks rows by two numbers; in `x.flatten(0, 1)` one number picks the same row."""

    callee = "way:whole-rows"
    shown = "rows that several numbers tell"
    functions = ("__getitem__",)

    def instead(self, call: Call, made: Made) -> Instead | None:
        x, which = call.args
        numbers = _numbers(which) if type(which) is tuple and is_plain(x) else []
        if not 2 <= len(numbers) <= x.dim() or any(bool((each < 0).any()) for each in numbers):
            return None

        def picked(x: torch.Tensor) -> torch.Tensor:
            one = functools.reduce(
                lambda out, k: out * x.shape[k] + numbers[k], range(1, len(numbers)), numbers[0]
            )
            rows = x.flatten(0, len(numbers) - 1).index_select(0, one.flatten())
            return rows.unflatten(0, one.shape)

        return Instead((x,), lambda x: call.function(x, which), (picked,))


def _numbers(which: tuple[Any, ...]) -> list[torch.Tensor]:
    """Return the tensors of numbers that an index begins with; none where it holds else than whole axes."""
    count = next((k for k, each in enumerate(which) if not isinstance(each, torch.Tensor)), len(which))
    rest = all(type(each) is slice and each == slice(None) for each in which[count:])
    plain = rest and is_plain(*which[:count]) and all(each.dtype is torch.long for each in which[:count])
    return list(which[:count]) if plain else []


def _is_equal_along(index: torch.Tensor, axis: int) -> bool:
    return (
        index.shape[axis] <= 1 or index.stride(axis) == 0 or bool((index == index.narrow(axis, 0, 1)).all())
    )


_ALONG = {
    "cumsum": 1, "cumprod": 1, "cummax": 1, "cummin": 1, "logcumsumexp": 1, "sort": 1, "argsort": 1,
    "topk": 2, "kthvalue": 2, "median": 1, "softmax": 1, "log_softmax": 1, "logsumexp": 1, "prod":
    1, "amax": 1, "amin": 1, "max": 1, "min": 1, "std": 1, "var": 1, "sum": 1, "mean": 1, "norm": 2,
    "linalg_vector_norm": 2, "flip": 1, "unfold": 1, "diff": 2, "cumulative_trapezoid": 1, "any": 1,
    "all": 1, "nansum": 1, "mode": 1,
}  # fmt: skip
"""Function along an axis -> where the axis is among its arguments."""
_KEEPING = (
    "cumsum",
    "cumprod",
    "cummax",
    "cummin",
    "logcumsumexp",
    "sort",
    "argsort",
    "softmax",
    "log_softmax",
    "topk",
)


class AnotherLayout(Way):
    """The same call on numbers that lie side by side, those first that it runs along."""

    callee = "way:layout"
    shown = "a call on numbers that lie apart"
    functions = (
        *_ALONG, "matmul", "bmm", "mm", "linear", "conv1d", "conv2d", "conv3d", "embedding_bag",
        "searchsorted", "bucketize", "index_select", "gather", "layer_norm", "group_norm",
        "cdist", "mul", "add", "div", "interpolate", "grid_sample", "fft_fft",
        "fft_rfft", "fft_fft2", "max_pool2d", "avg_pool2d", "cross_entropy",
    )  # fmt: skip

    def instead(self, call: Call, made: Made) -> Instead | None:
        tensors = call.tensors()
        if not tensors or not is_plain(*tensors) or not tensors[0].dim():
            return None
        others: list[Callable[..., Any]] = []
        if any(_lies_apart(each) for each in tensors):
            others.append(lambda *tensors: call.on(*(each.contiguous() for each in tensors)))
        place, x = _ALONG.get(call.name, 0), tensors[0]
        axis = call.given(place, "dim") if call.name in _KEEPING and len(tensors) == 1 else None
        if isinstance(axis, int) and axis % x.dim() != x.dim() - 1:
            others.append(functools.partial(_along_last, call, place, axis % x.dim()))
        return in_place_of(call, *others) if others else None


def _lies_apart(x: torch.Tensor) -> bool:
    if x.is_contiguous() or x.dim() < 2:
        return False
    known = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return not known and all(step != 0 for step in x.stride())


def _along_last(call: Call, place: int, axis: int, x: torch.Tensor) -> Any:
    turned = x.movedim(axis, -1).contiguous()
    if len(call.args) > place:
        out = call.function(turned, *call.args[1:place], -1, *call.args[place + 1 :], **call.kwargs)
    else:
        out = call.function(turned, *call.args[1:], **{**call.kwargs, "dim": -1})
    if isinstance(out, torch.Tensor):
        return out.movedim(-1, axis)
    return type(out)([each.movedim(-1, axis) for each in out])


class ScannedByRows(Way):
    """A running maximum over rows takes whole rows, one after the other."""

    callee = "way:layout"
    shown = "a running maximum"
    functions = ("cummax", "cummin")
    stands_in = False

    def instead(self, call: Call, made: Made) -> Instead | None:
        x, axis = call.given(0, "input"), call.given(1, "dim")
        if not is_real(x) or not isinstance(axis, int) or not 1 < x.shape[axis] <= _ROWS:
            return None
        larger = torch.maximum if call.name == "cummax" else torch.minimum

        def other(x: torch.Tensor) -> torch.Tensor:
            return torch.stack(list(itertools.accumulate(x.unbind(axis), larger)), axis)

        return in_place_of(call, other, alike=lambda own, other: same(own[0], other))


_ROWS = 512


class OtherType(Way):
    """The same call in a type of numbers that this machine is faster with."""

    callee = "way:type"
    shown = "a call in this type of numbers"
    functions = (
        *_ALONG, "matmul", "bmm", "mm", "linear", "conv1d", "conv2d", "conv3d", "layer_norm", "mul",
        "add", "div", "remainder", "floor_divide", "bincount", "isin", "einsum", "exp", "log",
        "gelu", "silu", "sigmoid", "tanh", "interpolate", "grid_sample", "where", "histc",
        "index_select", "unique", "searchsorted",
    )  # fmt: skip

    def instead(self, call: Call, made: Made) -> Instead | None:
        tensors = call.tensors()
        if not tensors or not is_plain(*tensors) or tensors[0].device.type != "cpu":
            return None
        kinds = {each.dtype for each in tensors}
        if len(kinds) != 1 or "dtype" in call.kwargs or "out" in call.kwargs:
            return None
        wanted = _FASTER.get(kind := kinds.pop())
        if wanted is None:
            return None

        def other(*tensors: torch.Tensor) -> Any:
            out = call.on(*(each.to(wanted) for each in tensors))
            if isinstance(out, torch.Tensor):
                return out.to(kind) if out.dtype is wanted else out
            return type(out)([each.to(kind) if each.dtype is wanted else each for each in out])

        return in_place_of(call, other)


_FASTER = {
    torch.bfloat16: torch.float32, torch.float16: torch.float32,
    torch.int64: torch.int32, torch.complex128: torch.complex64,
}  # fmt: skip
