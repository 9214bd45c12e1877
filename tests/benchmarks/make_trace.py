"""Writes a large synthetic trace in the text form of torch 2.13's profiler on a GPU.

    python tests/benchmarks/make_trace.py /tmp/big.pt.trace.json --megabytes 1000
    python tests/benchmarks/make_trace.py /tmp/big.pt.trace.json.gz --megabytes 1000
    python tests/benchmarks/make_trace.py /tmp/big.pt.trace.json --megabytes 1060 --repeat RECORDED

Steps of a decoder-only language model with recorded shapes: operators on two threads, runtime
calls, kernels with the long names of real ones, copies, all-reduces on a second stream, flow
events. About 2.7 million events per gigabyte, 1.9 million of them complete ("X"). The content is
the same at every call; only its length depends on the size asked for.

With `--repeat` it is instead the steps of a recorded trace (.json or .json.gz), again and again: moments,
step numbers, correlations and sequence numbers go on counting.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

LAYERS = 24
PID, AUTOGRAD_TID = 4242, 4301
COMPUTE_STREAM, NCCL_STREAM = 7, 17
BASE_US = 4312767512000.0

HEADER = """{
    "schemaVersion": 1,
    "deviceProperties": [
    {
      "id": 0, "name": "Synthetic GPU", "totalGlobalMem": 150109880320,
      "computeMajor": 9, "computeMinor": 0,
      "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048,
      "regsPerBlock": 65536, "warpSize": 32,
      "sharedMemPerBlock": 49152, "numSms": 132
    }
    ],
      "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2, "pg_count": 1},
      "record_shapes": 1,
      "trace_id": "00000000000000000000000000000000",
    "displayTimeUnit": "ms",
    "baseTimeNanoseconds": 1790857026000000000,
    "traceEvents": [
    """
THREAD = """
  {
    "ph": "M",
    "name": "thread_name",
    "ts": %.3f,
    "pid": %d,
    "tid": %d,
    "args": {
      "name": "thread %d (python)"
    }
  }"""
OPERATOR = """
  {
    "ph": "X",
    "cat": "%s",
    "name": "%s",
    "pid": 4242,
    "tid": %d,
    "ts": %.3f,
    "dur": %.3f
    ,
    "args": {
      "External id": %d,"Record function id": 0, %s"Ev Idx": %d
    }
  }"""
SHAPES = (
    '"Concrete Inputs": ["", "", "1", ""], "Input type": ["float", "float", "Scalar", ""], '
    '"Input Strides": [[131072, 1024, 1], [1024, 1], [], []], '
    '"Input Dims": [[4, 128, 1024], [1024, 1024], [], []], '
)
CALL = """
  {
    "ph": "X",
    "cat": "%s",
    "name": "%s",
    "pid": 4242,
    "tid": %d,
    "ts": %.3f,
    "dur": %.3f
    ,
    "args": {
      "External id": %d, "cbid": 211, "correlation": %d
    }
  }"""
KERNEL = """
  {
    "ph": "X",
    "cat": "kernel",
    "name": "%s",
    "pid": 0,
    "tid": %d,
    "ts": %.3f,
    "dur": %.3f
    ,
    "args": {
      "External id": %d,
      "queued": 0, "device": 0, "context": 1,
      "stream": %d, "correlation": %d,
      "registers per thread": 56,
      "shared memory": 0,
      "occupancy": {"blocks per SM": 0.272727, "warps per SM": 2.181818},
      "grid": [36, 1, 1],
      "block": [256, 1, 1]
    }
  }"""
COPY = """
  {
    "ph": "X",
    "cat": "gpu_memcpy",
    "name": "Memcpy HtoD (Pinned -> Device)",
    "pid": 0,
    "tid": %d,
    "ts": %.3f,
    "dur": %.3f
    ,
    "args": {
      "External id": %d,
      "device": 0, "context": 1,
      "stream": %d, "correlation": %d,
      "bytes": 4194304, "memory bandwidth (GB/s)": 41.25
    }
  }"""
FLOW = """
  {
    "ph": "%s",
    "id": %d,
    "pid": %d,
    "tid": %d,
    "ts": %.3f,
    "cat": "ac2g",
    "name": "ac2g"%s
  }"""
FOOTER = """
  {
    "ph": "i",
    "s": "g",
    "name": "Record Window End",
    "pid": "",
    "tid": "",
    "ts": %.3f
  }
  ],"traceName": "big.json" }"""

ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>,"
    " std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
NORM = (
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(int,"
    " float, float const*, float const*, float const*, float*, float*, float*)"
)
GEMM = (
    "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1_execute_segment_k"
    "_off_kernel__5x_cublas"
)
MULTI_TENSOR = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous"
    " namespace)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::"
    "FusedAdamMathFunctor<float, 4, (at::native::(anonymous namespace)::ADAM_MODE)1, false> >"
)
FORWARD = (
    ("aten::layer_norm", "aten::native_layer_norm", NORM),
    ("aten::linear", "aten::addmm", GEMM),
    ("aten::linear", "aten::addmm", GEMM),
    ("aten::scaled_dot_product_attention", "aten::_efficient_attention_forward", GEMM),
    ("aten::linear", "aten::addmm", GEMM),
    ("aten::add", "aten::add", ELEMENTWISE),
    ("aten::layer_norm", "aten::native_layer_norm", NORM),
    ("aten::linear", "aten::addmm", GEMM),
    ("aten::gelu", "aten::gelu", ELEMENTWISE),
    ("aten::linear", "aten::addmm", GEMM),
    ("aten::add", "aten::add", ELEMENTWISE),
)


@dataclass
class Clock:
    """Where the host threads and the device are, in microseconds, and the running numbers."""

    host: float = BASE_US
    device: float = BASE_US
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def op(self, name: str, tid: int, length: float, *, cat: str = "cpu_op", shapes: str = SHAPES) -> str:
        number = next(self.ids)
        return OPERATOR % (cat, name, tid, self.host, length, number, shapes, number)

    def launch(self, kernel: str, tid: int, length: float) -> Iterator[str]:
        number = next(self.ids)
        self.host += 3.217
        begin = max(self.host + 4.5, self.device)
        self.device = begin + length
        yield CALL % ("cuda_runtime", "cudaLaunchKernel", tid, self.host, 4.119, number, number)
        yield FLOW % ("s", number, PID, tid, self.host, "")
        yield KERNEL % (kernel, COMPUTE_STREAM, begin, length, number, COMPUTE_STREAM, number)
        yield FLOW % ("f", number, 0, COMPUTE_STREAM, begin, ',\n    "bp": "e"')
        self.host += 6.031


def layer(clock: Clock, tid: int, backward: str) -> Iterator[str]:
    """Yield one layer's events: an outer and an inner operator and a launch, eleven times."""
    for outer, inner, kernel in FORWARD:
        if backward:
            name = f"autograd::engine::evaluate_function: {inner[6:].title()}{backward}"
            yield clock.op(name, tid, 12.125, shapes='"Sequence number": 17, "Fwd thread id": 1, ')
        yield clock.op(outer, tid, 11.983)
        clock.host += 1.25
        yield clock.op(inner, tid, 10.471)
        clock.host += 1.75
        yield clock.op("aten::empty", tid, 1.208, shapes="")
        yield from clock.launch(kernel, tid, 9.664 if kernel is GEMM else 3.072)


def step(number: int) -> Iterator[str]:
    """Yield the events of one step; the same but for names and numbers whatever the step."""
    clock = Clock(BASE_US + number * 30_000.0, BASE_US + number * 30_000.0)
    clock.ids = itertools.count(1 + number * 10_000)
    yield clock.op(f"ProfilerStep#{number}", PID, 29_990.0, cat="user_annotation", shapes="")
    yield clock.op("aten::to", PID, 40.0)
    copied = next(clock.ids)
    yield CALL % ("cuda_runtime", "cudaMemcpyAsync", PID, clock.host + 2, 30.5, copied, copied)
    yield COPY % (COMPUTE_STREAM, clock.host + 9, 101.7, copied, COMPUTE_STREAM, copied)
    clock.host += 45.0
    for _ in range(LAYERS):
        yield from layer(clock, PID, "")
    for _ in range(LAYERS):
        yield from layer(clock, AUTOGRAD_TID, "Backward0")
        reduced = next(clock.ids)
        yield clock.op("nccl:all_reduce", AUTOGRAD_TID, 11.0, cat="user_annotation", shapes="")
        yield CALL % ("cuda_driver", "cuLaunchKernelEx", AUTOGRAD_TID, clock.host, 5.5, reduced, reduced)
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        yield KERNEL % (name, NCCL_STREAM, clock.device, 80.0, reduced, NCCL_STREAM, reduced)
        clock.host += 12.0
    name = "Optimizer.step#AdamW.step"
    yield clock.op(name, PID, 73.95, cat="user_annotation", shapes="")
    for _ in range(8):
        yield clock.op("aten::_fused_adamw_", PID, 9.125)
        yield from clock.launch(MULTI_TENSOR, PID, 60.0)
    synced = next(clock.ids)
    yield CALL % ("cuda_runtime", "cudaDeviceSynchronize", PID, clock.host, 500.0, synced, synced)


def trace_text(size_bytes: int) -> Iterator[str]:
    """Yield the text of a trace of about that size, in pieces."""
    threads = [THREAD % (BASE_US, PID, tid, tid) for tid in (PID, AUTOGRAD_TID)]
    yield HEADER + ",".join(threads)
    written = len(HEADER)
    for number in itertools.count():
        piece = "," + ",".join(step(number))
        yield piece
        written += len(piece)
        if written >= size_bytes:
            break
    yield "," + FOOTER % (BASE_US + 1e9)


def write_trace(path: Path, size_bytes: int) -> None:
    """Write a trace of about that size; compressed when the name ends in .gz."""
    with path.open("wb") as plain, ExitStack() as stack:
        packs = path.suffix == ".gz"
        file = stack.enter_context(gzip.GzipFile("", "wb", 4, plain)) if packs else plain
        for piece in trace_text(size_bytes):
            file.write(piece.encode())


_COUNTS_ON = ("correlation", "External id", "Sequence number", "Ev Idx", "Record function id")


def repeated(recorded: Path) -> tuple[dict[str, Any], Iterator[str]]:
    """Return the head of a recorded trace, and its events for ever, each round behind the one before."""
    with recorded.open("rb") as plain:
        head = json.load(gzip.GzipFile(fileobj=plain) if recorded.suffix == ".gz" else plain)
    events = [
        e for e in head.pop("traceEvents") if e["ph"] in "Xsf" and not e["name"].startswith("Iteration")
    ]
    steps = [e for e in events if e["ph"] == "X" and e["name"].startswith("ProfilerStep#")]
    steps = [e for e in steps if e["cat"] == "user_annotation"]
    # No round begins before the device is done with the one before.
    span = max(e["ts"] + e.get("dur", 0.0) for e in events) - min(e["ts"] for e in events)
    beyond = 1 + max(e.get("args", {}).get(key, 0) for e in events for key in _COUNTS_ON)
    first = min(int(e["name"].partition("#")[2]) for e in steps)

    def lines() -> Iterator[str]:
        for again in itertools.count():
            for event in events:
                moved = {**event, "ts": round(event["ts"] + again * span, 3)}
                if "id" in moved:
                    moved["id"] += again * beyond
                if moved["name"].startswith("ProfilerStep#"):
                    number = int(event["name"].partition("#")[2]) - first + again * len(steps)
                    moved["name"] = f"ProfilerStep#{number}"
                if "args" in moved:
                    moved["args"] = {
                        key: value + again * beyond if key in _COUNTS_ON and value > 0 else value
                        for key, value in event["args"].items()
                    }
                yield json.dumps(moved)

    return head, lines()


def write_repeated(path: Path, recorded: Path, size: int) -> None:
    """Write a trace of about `size` bytes that repeats the steps of a recorded one."""
    head, lines = repeated(recorded)
    with path.open("w") as file:
        written = file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n' + next(lines))
        for line in lines:
            written += file.write(",\n" + line)
            if written >= size:
                break
        file.write("\n]}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--megabytes", type=float, default=1000.0)
    parser.add_argument("--repeat", type=Path, metavar="RECORDED", help="repeat the steps of this trace")
    options = parser.parse_args()
    size = int(options.megabytes * 1e6)
    if options.repeat is None:
        write_trace(options.path, size)
    else:
        write_repeated(options.path, options.repeat, size)
    print(f"{options.path}: {options.path.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
