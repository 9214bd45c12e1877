"""Fixes of memory allocation: calls to the driver or the operating system in the step's path.

In: nothing. Out: `FIXES`, data.
"""

from __future__ import annotations

from ..model.codes import WhatIf
from ..model.fix import Fix, Option, RemovalEdit, Risk, StatementEdit, Variable
from .build import ON_CUDA, ON_GPU, docs, given, seen, source

_CUDA_NOTES = docs("notes/cuda.html#cuda-memory-envvars", "CUDA caching allocator")
_MALLOPT = source("https://man7.org/linux/man-pages/man3/mallopt.3.html", "mallopt(3)")
_ON_CPU = given("device.kind", "==", "cpu", "training runs on the CPU")
_CACHES_NOTHING = given("allocator.caches", "==", False, "PYTORCH_NO_CUDA_MEMORY_CACHING is set")
_NO_CALLS = "cudaMalloc, cudaFree and cuMemMap no longer appear in steady-state steps."

FIXES: tuple[Fix, ...] = (
    Fix(
        id="FX201",
        title="Let allocator segments grow (expandable_segments)",
        addresses=("BN201", "BN212"),
        what_to_change="Set expandable_segments:True before torch is imported. Segments then grow in place,"
        " so changing sizes no longer force the allocator to free and allocate whole blocks. Leave out"
        " max_split_size_mb: its rule for large blocks also applies in such segments. Newer torch calls"
        " the variable PYTORCH_ALLOC_CONF and still reads the old name.",
        when=(
            ON_CUDA,
            given("allocator.expandable_segments", "==", False, "expandable_segments is off"),
            given("allocator.backend", "==", "native", "the native caching allocator is in use"),
            # It gives memory back to the driver from such segments as well: measured, 0.97 of the speed.
            given("allocator.empty_cache_per_step", "==", 0, "empty_cache() is not called in the loop"),
        ),
        unless=(_CACHES_NOTHING,),
        what_if=WhatIf.ALLOCATOR_FREE,
        basis="allocator calls cost nothing",
        may_break="Sharing CUDA tensors between processes needs torch 2.5 or newer; Linux only.",
        code="""\
import os

# Before the first import of torch:
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"

import torch""",
        undo="Remove the variable.",
        verify="num_alloc_retries stays 0; " + _NO_CALLS,
        can_try=True,
        environment=(
            Variable(
                name="PYTORCH_CUDA_ALLOC_CONF",
                also_called=("PYTORCH_ALLOC_CONF",),
                value="{before},expandable_segments:True",
                separator=",",
                # The allocator refuses free blocks above max_split_size_mb to requests that they do not fit
                # closely, in segments that grow as well: left in force it makes them ask the driver again
                # (measured: 1.2 times as fast, not 1.6).
                drops=("expandable_segments", "max_split_size_mb"),
            ),
        ),
        edits=(
            StatementEdit(
                statement='os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"',
                setting="_ALLOC_CONF",
                needs="os",
                first=True,
            ),
        ),
        sources=(_CUDA_NOTES,),
    ),
    Fix(
        id="FX202",
        title="Use few distinct shapes",
        addresses=("BN201",),
        what_to_change="Pad lengths up to a multiple (64, 128) or bucket them. Every new size can need a new"
        " block from the driver; a repeated size is served from the cache.",
        when=seen("step.varying_shapes", "==", True, "batch sizes differ between steps"),
        unless=(_CACHES_NOTHING,),
        risk=Risk.NEEDS_REVIEW,
        may_break="The padding is computed too: mask it in the loss.",
        what_if=WhatIf.ALLOCATOR_FREE,
        what_if_bound=True,
        basis="allocator calls cost nothing, before the cost of the added padding",
        code="""\
import torch.nn.functional as F


def pad_to_multiple(tokens, multiple=64, value=0):
    missing = -tokens.shape[1] % multiple
    return F.pad(tokens, (0, missing), value=value)""",
        undo="Remove the padding.",
        verify=_NO_CALLS,
        sources=(_CUDA_NOTES,),
    ),
    Fix(
        id="FX203",
        title="Run the largest batch first",
        addresses=("BN201",),
        what_to_change="Before training, run one forward and backward pass with the largest shape that will"
        " occur. The blocks it leaves in the cache serve every smaller shape.",
        when=(ON_GPU, *seen("step.varying_shapes", "==", True, "batch sizes differ between steps")),
        # Measured: 72.8 ms a step without the largest first, 72.1 with it (memory-lengths-near-cap-h200).
        unless=(
            _CACHES_NOTHING,
            given(
                "allocator.max_split", "==", True, "max_split_size_mb keeps large blocks from smaller uses"
            ),
        ),
        what_if=WhatIf.ALLOCATOR_FREE,
        what_if_bound=True,
        basis="allocator calls cost nothing; they become rarer anyway once the largest sizes have occurred",
        code="""\
loss = loss_fn(model(largest_inputs), largest_targets)
loss.backward()
optimizer.zero_grad(set_to_none=True)""",
        undo="Remove the extra step.",
        verify="Steps of the first epoch are as fast as later ones.",
        can_try=True,
        options={"bytes": Option(kind="int", measured="device peak")},
        sources=(
            docs("notes/cuda.html#cuda-memory-management", "CUDA memory management"),
            source(
                "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
                "Tuning guide: preallocate memory in case of variable input length",
            ),
        ),
    ),
    Fix(
        id="FX204",
        title="Remove empty_cache() from the loop",
        addresses=("BN202", "BN201"),
        what_to_change="torch.cuda.empty_cache() waits for the device and returns every cached block to the"
        " driver. The next step must then ask for them again. It does not make more memory available to"
        " PyTorch.",
        when=(ON_GPU, *seen("allocator.empty_cache_per_step", ">", 0, "empty_cache() is called in the loop")),
        unless=(_CACHES_NOTHING,),
        what_if=WhatIf.ALLOCATOR_FREE,
        basis="allocator calls cost nothing",
        may_break="Other processes on the same GPU no longer get the cached memory between steps.",
        code="""\
for inputs, targets in loader:
    optimizer.zero_grad(set_to_none=True)
    loss_fn(model(inputs), targets).backward()
    optimizer.step()
    # no torch.cuda.empty_cache() here; after validation is early enough""",
        undo="Put the call back.",
        verify=_NO_CALLS,
        can_try=True,
        edits=(RemovalEdit(call="empty_cache"),),
        sources=(docs("generated/torch.cuda.memory.empty_cache.html", "torch.cuda.memory.empty_cache"),),
    ),
    Fix(
        id="FX225",
        title="Let the allocator keep freed memory",
        addresses=("BN201",),
        what_to_change="PYTORCH_NO_CUDA_MEMORY_CACHING is set, to any value: each tensor asks the driver for its"
        " memory and gives it back, and each time it is given back the device is waited for. It is meant for"
        " compute-sanitizer. Take it out of the script, the shell or the job's file.",
        when=(ON_GPU, *seen("allocator.caches", "==", False, "PYTORCH_NO_CUDA_MEMORY_CACHING is set")),
        what_if=WhatIf.ALLOCATOR_FREE,
        basis="allocator calls cost nothing",
        may_break="Memory that is read after it was freed is no longer an error of the driver's.",
        code="""\
import os

# Before the first tensor on the device:
os.environ.pop("PYTORCH_NO_CUDA_MEMORY_CACHING", None)""",
        undo="Set the variable again.",
        verify=_NO_CALLS,
        sources=(
            _CUDA_NOTES,
            source("https://github.com/chelsea0x3b/dfdx/issues/678", "dfdx: 16.5 to 76 ms"),
        ),
    ),
    Fix(
        id="FX205",
        title="Keep freed memory in the process (malloc)",
        addresses=("BN203",),
        what_to_change="glibc maps every large tensor anew and unmaps it when it is freed, so the kernel"
        " zeroes the same pages in every step. Tell glibc to serve large blocks from the heap and not to"
        " trim the heap.",
        when=(
            _ON_CPU,
            given("malloc.library", "==", "glibc", "glibc's malloc is in use"),
        ),
        conflicts=("FX206",),
        what_if=WhatIf.ALLOCATOR_FREE,
        what_if_bound=True,
        basis="the step without page faults and system time, the most that can be gained",
        may_break="The process keeps its peak memory until it ends.",
        code="""\
import ctypes

libc = ctypes.CDLL("libc.so.6")
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
libc.mallopt(M_MMAP_MAX, 0)  # no private mapping per large block
libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)  # keep the top of the heap""",
        undo="Remove the calls.",
        verify="Minor page faults per step and system time fall.",
        can_try=True,
        sources=(_MALLOPT,),
    ),
    Fix(
        id="FX206",
        title="Use jemalloc or tcmalloc",
        addresses=("BN203",),
        what_to_change="Start the script with a malloc that caches large blocks: install libjemalloc2 (or"
        " libtcmalloc-minimal4) and name the library in LD_PRELOAD.",
        when=(_ON_CPU, given("malloc.library", "==", "glibc", "glibc's malloc is in use")),
        conflicts=("FX205",),
        what_if=WhatIf.ALLOCATOR_FREE,
        what_if_bound=True,
        basis="the step without page faults and system time, the most that can be gained",
        may_break="Uses more resident memory. In rare cases an extension was built for another malloc.",
        code="""\
import ctypes.util
import os
import subprocess
import sys

library = ctypes.util.find_library("jemalloc")
if library and "LD_PRELOAD" not in os.environ:
    environment = dict(os.environ, LD_PRELOAD=library)
    environment["MALLOC_CONF"] = "dirty_decay_ms:-1,muzzy_decay_ms:-1"
    sys.exit(subprocess.call([sys.executable, *sys.argv], env=environment))""",
        undo="Start the script without LD_PRELOAD.",
        verify="Minor page faults per step and system time fall.",
        can_try=True,
        environment=(
            Variable(name="LD_PRELOAD", value="{malloc} {before}", separator=" "),
            # Read by jemalloc alone.
            Variable(name="MALLOC_CONF", value="dirty_decay_ms:-1,muzzy_decay_ms:-1"),
        ),
        sources=(
            source(
                "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
                "Tuning guide: CPU specific optimizations, memory allocators",
            ),
        ),
    ),
    Fix(
        id="FX207",
        title="Reuse large temporaries",
        addresses=("BN203", "BN201"),
        what_to_change="Allocate a large buffer once and write into it (out=, in-place operators) where autograd"
        " does not need the old value.",
        when=(_ON_CPU,),
        risk=Risk.NEEDS_REVIEW,
        what_if=WhatIf.ALLOCATOR_FREE,
        what_if_bound=True,
        basis="the step without page faults and system time, the most that can be gained",
        may_break="Overwriting what backward needs raises an error; tensors that share a buffer change"
        " together.",
        code="""\
import torch

buffer = torch.empty(4096, 1024)
for _ in range(3):
    with torch.no_grad():
        torch.mul(weights, 0.5, out=buffer)  # no new 16 MB each time
        buffer.add_(1.0)""",
        undo="Allocate in the loop again.",
        verify="Minor page faults per step fall.",
        sources=(
            docs(
                "notes/autograd.html#in-place-operations-with-autograd", "In-place operations with autograd"
            ),
        ),
    ),
    Fix(
        id="FX208",
        title="Back large tensors with huge pages",
        addresses=("BN203",),
        what_to_change="Set THP_MEM_ALLOC_ENABLE=1. torch then asks for transparent huge pages for CPU"
        " tensors of 2 MB or more, so one fault maps 2 MB instead of 4 kB.",
        when=(_ON_CPU, given("torch.version", ">=", "2.1", "torch is new enough")),
        what_if=WhatIf.ALLOCATOR_FREE,
        what_if_bound=True,
        basis="the step without page faults and system time, the most that can be gained",
        may_break="Memory is rounded up to 2 MB per tensor. Transparent huge pages must be set to madvise or"
        " always.",
        code="""\
import os

os.environ["THP_MEM_ALLOC_ENABLE"] = "1"  # before the first import of torch

import torch""",
        undo="Remove the variable.",
        verify="Minor page faults per step fall by a large factor.",
        can_try=True,
        environment=(Variable(name="THP_MEM_ALLOC_ENABLE", value="1"),),
        sources=(
            source(
                "https://docs.kernel.org/admin-guide/mm/transhuge.html",
                "Linux: transparent hugepage support",
            ),
        ),
    ),
)
