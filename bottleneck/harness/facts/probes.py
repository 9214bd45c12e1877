"""Small measurements on the spot, taken between the windows: what one thing costs on this machine.

In: a machine that the script is using. Out: the dispatch cost of a small operator (CPU runs), and, where
the script computes in 16 bits or with denormal numbers there, the rates of products with these; copy
bandwidths and matmul rates (GPU runs), also of the step's own products where they are in fp32; fused
attention with masks that mask nothing and without, where the script calls it so. About 0.2 s in all; the
script's random state, precision and current stream are as before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median
from typing import Any

import msgspec
import torch
from torch.nn import functional

from ...clocks import perf_counter_ns
from ...model.run import AttentionCall, FlopCount
from ...runs.store import Store
from .. import torch_private

ROUNDS = 15
CALLS = 60
COPY_BYTES = 32 << 20
MATMUL_SIZE = 4096
CPU_MATMUL = (256, 256, 256)
"""Rows, inner, columns: 34 million operations, 0.5 ms at 70 GFLOP/s, and 30 ms in a type that takes 60 times
as long. Larger products are timed with fewer rows."""
ON_ONE_THREAD = (32, 48, 48)
"""Rows, inner, columns of a product that is too small to be shared out: other threads may be busy."""
CPU_MATMUL_NS = 5_000_000
"""For each product and type, if it is not longer once."""
SHARED_ELEMENTS = 1 << 16
"""Of an elementwise operator: torch divides from 32768 elements on (at::internal::GRAIN_SIZE)."""
SHARED_SECONDS = 0.1
"""For each number of threads: an interruption of 4 ms is 4 % of it."""
HALVES = {"float16": ("fp16", torch.float16), "bfloat16": ("bf16", torch.bfloat16)}
"""Types of 16 bits -> the name of their rate, and themselves."""
LONG_MS = 100.0
_LAYOUTS = ((False, False), (False, True), (True, False))
"""Which factor of a product is transposed: of the gradients of a linear layer's input, of the layer itself,
of the gradients of its weight."""
NEEDED_FREE_BYTES = 2 << 30
"""Below this much free device memory nothing is allocated for a probe."""


def measure(store: Store, *, over: bool) -> None:
    """Time a small operator, or the copies and matmuls, on this machine; nothing while a profiler runs.

    `over`: the script is stopped after this; one that goes on keeps its threads untouched.
    """
    if torch_private.profiler_running():
        return
    _measure_machine(store, over=over)
    masks = store.run.masks
    if masks is not None and (masks.shapes or masks.single):
        timed = {"timed_ms": masked_ms(masks.shapes), "single_ms": halved_ms(masks.single)}
        store.update(masks=msgspec.structs.replace(masks, **timed))


def _measure_machine(store: Store, *, over: bool) -> None:
    if torch_private.function_modes():
        store.update(mode_ns=mode_ns())
    if torch_private.device_kind() == "cpu":
        small_ns = dispatch_ns()
        store.update(dispatch_ns=small_ns, plain_dispatch_ns=plain_dispatch_ns())
        kinds = store.run.half_types
        if kinds:
            products = store.run.flops.products if store.run.flops is not None else ()
            store.update(matmul_tflops=cpu_matmul_tflops(kinds, products))
        if any(each.denormal_share for each in store.run.optimizers):
            store.update(denormal_factor=denormal_factor(small_ns))
        if over:
            store.update(parallel_us=parallel_us())
        return
    pinned, pageable = copy_gbps()
    store.update(pinned_gbps=pinned, pageable_gbps=pageable)
    store.update(matmul_tflops=matmul_tflops())
    flops = store.run.flops
    if flops is not None and flops.by_dtype.get("float32"):
        store.update(product_tflops=product_tflops(flops))


def dispatch_ns() -> float:
    """Return the host time of one small eager CPU operator in ns, autograd recording included.

    The median over kinds (elementwise with and without a gradient to record, a view, a reduction)
    of the median over rounds, so that one interruption does not count.
    """
    plain = torch.ones(4, device="cpu", dtype=torch.float32)
    tracked = torch.ones(4, device="cpu", dtype=torch.float32, requires_grad=True)
    kinds: list[Callable[[], object]] = [
        lambda: plain.add(plain),
        lambda: tracked.mul(plain),
        lambda: tracked.view(2, 2),
        plain.sum,
        tracked.relu,
    ]
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        return median(_per_call_ns(kind) for kind in kinds)


def mode_ns() -> float:
    """Return how much longer a small operator takes with the modes that its call goes through, ns."""
    with_them = dispatch_ns()
    with torch._C.DisableTorchFunction():
        return max(0.0, with_them - dispatch_ns())


def plain_dispatch_ns() -> float | None:
    """Return `dispatch_ns` with anomaly detection off for the moment; None where it is off anyway."""
    if not torch.is_anomaly_enabled():
        return None
    checks = torch.is_anomaly_check_nan_enabled()
    torch.set_anomaly_enabled(False)
    try:
        return dispatch_ns()
    finally:
        torch.set_anomaly_enabled(True, checks)


def parallel_us() -> tuple[float, float] | None:
    """Return the microseconds of an operator that is shared out, on all of the threads and on one.

    Threads that wait for one another at the end of each operator (among busy neighbours, or with more
    of them than cores) show here. None where there is one thread. Sets the number of threads twice,
    which takes MKL's own choice of it away.
    """
    threads = torch.get_num_threads()
    if threads <= 1:
        return None
    x = torch.ones(SHARED_ELEMENTS, device="cpu", dtype=torch.float32)
    together = _shared_us(x)
    torch.set_num_threads(1)
    try:
        return together, _shared_us(x)
    finally:
        torch.set_num_threads(threads)


def _shared_us(x: torch.Tensor) -> float:
    """Return the mean: a call that waits for a thread which was not scheduled is what is looked for."""
    calls = 0
    with torch.no_grad():
        x.add_(1)
        began = now = perf_counter_ns()
        while now - began < SHARED_SECONDS * 1e9:
            x.add_(1)
            calls += 1
            now = perf_counter_ns()
    return (now - began) / calls / 1e3


def _per_call_ns(call: Callable[[], object]) -> float:
    empty: Callable[[], object] = lambda: None  # noqa: E731 - the loop's own cost, taken off
    rounds = [(_loop_ns(call) - _loop_ns(empty)) / CALLS for _ in range(ROUNDS)]
    return median(rounds)


def _loop_ns(call: Callable[[], object]) -> int:
    began = perf_counter_ns()
    for _ in range(CALLS):
        call()
    return perf_counter_ns() - began


def copy_gbps() -> tuple[float | None, float | None]:
    """Return host-to-device bandwidth in GB/s (1e9) from pinned and from pageable memory."""
    if not _has_room():
        return None, None
    device = torch.cuda.current_device()
    target = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    pinned = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cpu", pin_memory=True)
    pageable = torch.ones(COPY_BYTES, dtype=torch.uint8, device="cpu")
    return (
        COPY_BYTES / 1e6 / _device_ms(lambda: target.copy_(pinned, non_blocking=True)),
        COPY_BYTES / 1e6 / _device_ms(lambda: target.copy_(pageable)),
    )


def matmul_tflops() -> dict[str, float]:
    """Return the rate of a dense square matmul by dtype: fp32, tf32, bf16, fp16 (1e12 FLOP/s)."""
    return _rates([(MATMUL_SIZE, MATMUL_SIZE, MATMUL_SIZE, 1)], [1], _LAYOUTS[:1]) if _has_room() else {}


def product_tflops(flops: FlopCount) -> dict[str, float]:
    """Return the rates of a step's largest matrix products, all of them together, by dtype as above.

    Each lies in memory as the three products of a linear layer do: its own, and those of the gradients of
    its input and of its weight. Tensor cores read TF32 along the inner axis only, so that they differ. Empty
    where a step leaves no room for them below its own peak: the script may print that.
    """
    numbers = [
        batch * (rows * inner + inner * columns + rows * columns)
        for (rows, inner, columns, _), batch in zip(flops.products, flops.batches, strict=True)
    ]
    room = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    if not numbers or not min(flops.batches) or 4 * max(numbers) > room:
        return {}
    return _rates(flops.products, flops.batches, _LAYOUTS)


def _rates(
    products: Sequence[tuple[int, int, int, int]],
    batches: Sequence[int],
    layouts: Sequence[tuple[bool, bool]],
) -> dict[str, float]:
    rates: dict[str, float] = {}
    whole = sum(2.0 * math.prod(product) for product in products) / 1e9
    before = torch.get_float32_matmul_precision()
    try:
        for name, dtype, precision in (
            ("fp32", torch.float32, "highest"),
            ("tf32", torch.float32, "high"),
            ("bf16", torch.bfloat16, before),
            ("fp16", torch.float16, before),
        ):
            torch.set_float32_matmul_precision(precision)
            with torch.no_grad(), torch.autocast("cuda", enabled=False):
                spent_ms = sum(
                    count / batch * fmean(_product_ms((batch, *shape), dtype, each) for each in layouts)
                    for (*shape, count), batch in zip(products, batches, strict=True)
                )
            rates[name] = whole / spent_ms
    finally:
        torch.set_float32_matmul_precision(before)
    return rates


def _product_ms(sizes: Sequence[int], dtype: torch.dtype, transposed: tuple[bool, bool]) -> float:
    """Return the device time of a call that makes so many products: (batch, rows, inner, columns)."""
    batch, rows, inner, columns = sizes

    def made(first: int, second: int, *, turned: bool) -> torch.Tensor:
        shape = (second, first) if turned else (first, second)
        factor = torch.ones((batch, *shape) if batch > 1 else shape, dtype=dtype, device="cuda")
        return factor.mT if turned else factor

    left = made(rows, inner, turned=transposed[0])
    right = made(inner, columns, turned=transposed[1])
    return _device_ms(lambda: torch.matmul(left, right))


def cpu_matmul_tflops(
    kinds: Iterable[str], products: Sequence[tuple[int, int, int, int]] = ()
) -> dict[str, float]:
    """Return the rate of matrix products on the CPU in fp32 and in some of `HALVES` (1e12 FLOP/s).

    `products`: (rows, inner, columns, how many) of a step's; the rate is that of all of them together. Small
    ones may be slower in 16 bits where large ones are faster.
    """
    rates: dict[str, float] = {}
    products = products or ((*CPU_MATMUL, 1),)
    whole = sum(2.0 * math.prod(product) for product in products)
    for name, dtype in (("fp32", torch.float32), *(HALVES[kind] for kind in kinds)):
        spent_ns = 0.0
        for rows, inner, columns, count in products:
            fewer = max(1, min(rows, math.prod(CPU_MATMUL) // (inner * columns)))
            spent_ns += count * rows / fewer * _product_ns(fewer, inner, columns, dtype)
        rates[name] = whole / spent_ns / 1e3
    return rates


def _product_ns(rows: int, inner: int, columns: int, dtype: torch.dtype) -> int:
    """Return the least time of a product, once it is warm."""
    left = torch.ones(rows, inner, dtype=dtype, device="cpu")
    right = torch.ones(inner, columns, dtype=dtype, device="cpu")
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        return _least_ns(lambda: torch.mm(left, right))[0]


def denormal_factor(dispatch_ns: float) -> float:
    """Return how many times as long a product of denormal numbers takes as one of others, on this machine.

    Without the dispatch of the operator, of so many ns.
    """
    rows, inner, columns = ON_ONE_THREAD
    others = torch.full((rows, inner), 0.5, device="cpu", dtype=torch.float32)
    # Written as bits: the processor may be set to take these numbers for zeros.
    denormal = torch.full_like(others, 1 << 20, dtype=torch.int32).view(torch.float32)
    right = torch.full((inner, columns), 0.5, device="cpu", dtype=torch.float32)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        slow, usual = _least_ns(lambda: torch.mm(denormal, right), lambda: torch.mm(others, right))
    return max(1.0, (slow - dispatch_ns) / max(usual - dispatch_ns, 0.2 * usual))


def _least_ns(*calls: Callable[[], object]) -> list[int]:
    """Return the least time of each call, once it is warm; they take turns."""
    times: list[list[int]] = [[] for _ in calls]
    for call in calls:
        call()
    while min(map(sum, times)) < CPU_MATMUL_NS:
        for call, taken in zip(calls, times, strict=True):
            began = perf_counter_ns()
            call()
            taken.append(perf_counter_ns() - began)
    return [min(taken) for taken in times]


def masked_ms(calls: Sequence[AttentionCall]) -> tuple[float, float] | None:
    """Return what calls of fused attention take with a mask that masks nothing, and with none, ms.

    With their backward, where one follows. On the CPU fewer samples stand for a large batch. None without
    calls, or where the device has no room for them.
    """
    return _both_ms([(call, msgspec.structs.replace(call, mask=())) for call in calls])


def halved_ms(calls: Sequence[AttentionCall]) -> tuple[float, float] | None:
    """Return what calls of fused attention take as they are, and in bfloat16; as `masked_ms`."""
    return _both_ms([(call, _in_bf16(call)) for call in calls])


def _in_bf16(call: AttentionCall) -> AttentionCall:
    mask_dtype = "bool" if call.mask_dtype == "bool" else "bfloat16"
    return msgspec.structs.replace(call, dtype="bfloat16", mask_dtype=mask_dtype)


def _both_ms(pairs: Sequence[tuple[AttentionCall, AttentionCall]]) -> tuple[float, float] | None:
    on_gpu = torch_private.device_kind() != "cpu"
    devices = [torch.cuda.current_device()] if on_gpu else []
    spent = [0.0, 0.0]
    with torch.random.fork_rng(devices=devices), torch.autocast("cuda" if on_gpu else "cpu", enabled=False):
        for call, other in pairs:
            samples = call.query[0] if len(call.query) > 3 else 1
            timed = samples
            if not on_gpu:
                each = math.prod(call.query) * call.key[-2] // samples
                timed = max(1, min(samples, math.prod(CPU_MATMUL) // max(1, each)))
            elif not _has_room_for(call):
                return None
            pair = [_attention(each, timed, on_gpu=on_gpu) for each in (call, other)]
            found = [_device_ms(run) for run in pair] if on_gpu else [ns / 1e6 for ns in _least_ns(*pair)]
            for which, taken in enumerate(found):
                spent[which] += call.count * samples / timed * taken
    return (round(spent[0], 4), round(spent[1], 4)) if pairs else None


def _attention(call: AttentionCall, samples: int, *, on_gpu: bool) -> Callable[[], object]:
    """Return a call of fused attention like one of the script's."""
    device, dtype = "cuda" if on_gpu else "cpu", getattr(torch, call.dtype)

    def made(shape: Sequence[int], kind: torch.dtype = dtype, **more: Any) -> torch.Tensor:
        first = min(shape[0], samples) if len(shape) > 3 else shape[0]
        return torch.ones((first, *shape[1:]), dtype=kind, device=device, **more)

    inputs = [made(shape, requires_grad=call.gradients) for shape in (call.query, call.key, call.value)]
    mask = None
    if call.mask:
        kind = getattr(torch, call.mask_dtype)
        mask = made(call.mask, kind) if kind is torch.bool else torch.zeros_like(made(call.mask, kind))
    more: dict[str, Any] = {"attn_mask": mask, "dropout_p": call.dropout, "is_causal": call.causal}
    if call.query[-3:-2] != call.key[-3:-2]:
        more["enable_gqa"] = True

    def run() -> object:
        with torch.set_grad_enabled(call.gradients):
            out = functional.scaled_dot_product_attention(*inputs, **more)
            return torch.autograd.grad(out, inputs, out.detach()) if call.gradients else out

    return run


def _has_room_for(call: AttentionCall) -> bool:
    """Return whether a call fits into what is free, even if it writes its scores."""
    scores = math.prod(call.query[:-1]) * call.key[-2]
    free, _total = torch.cuda.mem_get_info()
    return bool(free > NEEDED_FREE_BYTES + 16 * scores)


def _device_ms(call: Callable[[], object]) -> float:
    """Return the best of four runs after one to warm up, in ms of device time; of fewer, if they are long."""
    call()
    times: list[float] = []
    while len(times) < 4 and sum(times) < LONG_MS:
        first = torch.cuda.Event(enable_timing=True)
        second = torch.cuda.Event(enable_timing=True)
        first.record()
        call()
        second.record()
        second.synchronize()
        times.append(first.elapsed_time(second))
    return float(min(times))


def _has_room() -> bool:
    free, _total = torch.cuda.mem_get_info()
    return bool(free > NEEDED_FREE_BYTES)
