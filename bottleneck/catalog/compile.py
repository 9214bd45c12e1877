"""Fixes around torch.compile: recompilations, CUDA graphs, and compiling at all.

In: nothing. Out: `FIXES`, data.
"""

from __future__ import annotations

from ..model.codes import WhatIf
from ..model.fix import Arithmetic, Beside, Fix, ModelEdit, Option, Risk, Shortens
from .build import (
    COMPILER_OPTIONS,
    ON_CUDA,
    ON_GPU,
    arguments,
    compile_with,
    docs,
    given,
    if_known,
    recipe,
    seen,
    source,
)

_TROUBLE = docs(
    "user_guide/torch_compiler/torch.compiler_troubleshooting.html", "torch.compile troubleshooting"
)
_DYNAMIC = docs("user_guide/torch_compiler/torch.compiler_dynamic_shapes.html", "Dynamic shapes")
_GRAPH_TREES = docs("user_guide/torch_compiler/torch.compiler_cudagraph_trees.html", "CUDAGraph Trees")
_COMPILE = docs("generated/torch.compile.html", "torch.compile")
_COMPILED = given("compile.used", "==", True, "something is compiled")
_STATIC = given("work.static_shapes", "==", True, "every step launches the same work")

FIXES: tuple[Fix, ...] = (
    Fix(
        id="FX407",
        title="Compile once for all sizes (dynamic shapes)",
        addresses=("BN402",),
        what_to_change="Each size that fails a guard is compiled into a new graph. Mark the dimension that"
        " changes as dynamic, so that one graph serves all sizes.",
        when=(given("compile.dynamic_sizes", "==", True, "a recompilation names a size that changed"),),
        conflicts=("FX408", "FX412"),
        what_if=WhatIf.NO_COMPILE,
        basis="compiled in the first steps only, and in force",
        may_break="Kernels for any size can be slower than kernels for one size; CUDA graphs are recorded"
        " per size.",
        code="""\
import torch

compiled = torch.compile(model)  # or torch.compile(model, dynamic=True)
torch._dynamo.mark_dynamic(inputs, 0)  # the dimension that changes
out = compiled(inputs)""",
        fills={
            "mark_dynamic(inputs, 0)": "mark_dynamic(inputs, {compile.dynamic_dim})",
            "# the dimension that changes": "# {compile.dynamic_tensor}: sizes {compile.dynamic_values}",
        },
        undo="Remove mark_dynamic.",
        verify="No recompilations after the first steps: TORCH_LOGS=recompiles stays silent.",
        can_try=True,
        edits=(compile_with("dynamic"),),
        arithmetic=Arithmetic.REORDERED,
        compiles=True,
        shortens=(Shortens(part="recompilations", change="compiled once for all sizes", at_best=True),),
        sources=(_DYNAMIC,),
    ),
    Fix(
        id="FX408",
        title="Give the compiled model few distinct shapes",
        addresses=("BN402",),
        what_to_change="Pad or bucket to a few sizes, and drop the last partial batch. Each size is compiled"
        " once and then served from the cache.",
        when=(given("compile.dynamic_sizes", "==", True, "a recompilation names a size that changed"),),
        conflicts=("FX407",),
        risk=Risk.NEEDS_REVIEW,
        what_if=WhatIf.NO_COMPILE,
        what_if_bound=True,
        basis="compiled in the first steps only, and in force, before the cost of the added padding",
        may_break="The padding is computed too: mask it in the loss. drop_last leaves samples out.",
        code="""\
import torch.nn.functional as F
from torch.utils.data import DataLoader


def pad_to_multiple(tokens, multiple=64, value=0):
    return F.pad(tokens, (0, -tokens.shape[1] % multiple), value=value)


loader = DataLoader(dataset, batch_size=batch_size, drop_last=True)""",
        fills={"multiple=64": "multiple={compile.size_multiple}"},
        undo="Remove the padding.",
        verify="One compilation per size, and none later.",
        sources=(_DYNAMIC,),
    ),
    Fix(
        id="FX409",
        title="Keep changing values out of the guards",
        addresses=("BN402",),
        what_to_change="A Python number, a list length or a module attribute that changes makes a guard fail"
        " in each step. Pass step counters and rates as tensors, and do not set attributes inside"
        " forward.",
        when=(given("compile.recompiles", ">", 0, "functions are compiled again"),),
        unless=(given("compile.dynamic_sizes", "==", True, "the recompilations come from sizes"),),
        what_if=WhatIf.NO_COMPILE,
        basis="compiled in the first steps only, and in force",
        code="""\
import torch

temperature = torch.tensor(1.0)  # was a float that changed each step


@torch.compile(backend="eager")
def scaled(x, temperature):
    return x / temperature


for _ in range(3):
    out = scaled(x, temperature)
    temperature.mul_(0.99)""",
        undo="Not needed.",
        verify="TORCH_LOGS=recompiles stays silent after the first steps.",
        sources=(_TROUBLE,),
    ),
    Fix(
        id="FX410",
        title="Compile the sub-modules whose shapes are stable",
        addresses=("BN402",),
        what_to_change="Compile the repeated block instead of the whole model. The parts that change stay"
        " eager, and one compilation serves all blocks.",
        when=(given("compile.recompiles", ">", 0, "functions are compiled again"),),
        risk=Risk.NEEDS_REVIEW,
        what_if=WhatIf.NO_COMPILE,
        what_if_bound=True,
        basis="compiled in the first steps only, and in force, before the cost of the eager parts",
        may_break="No fusion across blocks.",
        code="""\
for block in model.blocks:
    block.compile()""",
        undo="Use torch.compile(model) again.",
        verify="No recompilations, and the step is not slower.",
        can_try=True,
        options=COMPILER_OPTIONS,
        arithmetic=Arithmetic.REORDERED,
        compiles=True,
        sources=(
            recipe("recipes/regional_compilation.html", "Reducing compile time with regional compilation"),
        ),
    ),
    Fix(
        id="FX411",
        title="Raise the recompilation limit",
        addresses=("BN402",),
        note=True,
        what_to_change="After 8 graphs for one function, dynamo gives up and runs it eagerly from then on."
        " If the number of variants really is small, raise the limit; otherwise remove their cause.",
        when=(_COMPILED,),
        code="""\
import torch

# Called recompile_limit from torch 2.7 on; the old name still works.
torch._dynamo.config.cache_size_limit = 32""",
        undo="Remove the line.",
        verify="The message 'hit config.recompile_limit' no longer appears.",
        can_try=True,
        options={"limit": Option(kind="int")},
        arithmetic=Arithmetic.REORDERED,
        compiles=True,
        sources=(_TROUBLE,),
    ),
    Fix(
        id="FX412",
        title="Replay the step as CUDA graphs",
        general="always",
        addresses=("BN501", "BN403"),
        what_to_change="With static shapes, the launches of a compiled region can be recorded once and"
        " replayed as one. The host then no longer limits the step.",
        when=(
            ON_CUDA,
            _STATIC,
            given("compile.mode", "!=", "reduce-overhead", "CUDA graphs are not asked for"),
        ),
        unless=(
            given("compile.breaks", ">", 0, "graph breaks cut the region up and go first"),
            given(
                "distributed.module", "==", "fsdp", "FSDP gathers its weights to other places in each step"
            ),
        ),
        conflicts=("FX407", "FX414"),
        risk=Risk.NEEDS_REVIEW,
        what_if=WhatIf.ONE_LAUNCH,
        basis="one launch per step",
        may_break="The next replay overwrites outputs: clone what you keep. It uses more memory, and nothing"
        " inside may synchronise.",
        code="""\
import torch

compiled = torch.compile(model, mode="reduce-overhead")
for inputs, targets in loader:
    torch.compiler.cudagraph_mark_step_begin()
    loss = loss_fn(compiled(inputs), targets)
    loss.backward()""",
        undo="Remove mode.",
        verify="cudaGraphLaunch replaces the kernel launches; no 'skipping cudagraphs' message.",
        can_try=True,
        options={**COMPILER_OPTIONS, "blocks": Option(kind="bool")},
        edits=(compile_with("mode", drop=("options",)),),
        by_hand={
            Beside.GRADIENTS_DROPPED: "For the run, gradients were set to None where the script fills them with"
            " zeros. In the source, call zero_grad(set_to_none=True).",
        },
        arithmetic=Arithmetic.REORDERED,
        compiles=True,
        sources=(
            _GRAPH_TREES,
            _COMPILE,
            source("https://github.com/pytorch/pytorch/issues/127225", "CUDA graphs do not work with FSDP"),
        ),
    ),
    Fix(
        id="FX413",
        title="Remove what keeps CUDA graphs from being used",
        addresses=("BN403",),
        what_to_change="CUDA graphs were requested but skipped. The usual reasons are a CPU tensor among the"
        " inputs, an input changed in place, a shape that varies, or an operator that waits for the"
        " device.",
        when=(*seen("compile.cudagraph_skips", ">", 0, "CUDA graphs were skipped"),),
        what_if=WhatIf.ONE_LAUNCH,
        basis="one launch per step",
        may_break="Only buffers that the graph expects to change may be written in place.",
        code="""\
import torch

position = torch.zeros((), device=device)  # was made on the CPU
state = state + 1  # was state += 1 on an input""",
        undo="Not needed.",
        verify="TORCH_LOGS=perf_hints no longer says 'skipping cudagraphs'.",
        sources=(_GRAPH_TREES,),
    ),
    Fix(
        id="FX414",
        title="Compile the model",
        general="always",
        addresses=("BN501", "BN306"),
        what_to_change="torch.compile fuses chains of small operators into a few kernels and takes Python"
        " out of the forward and backward pass. Keep a switch to turn it off, and let code that does not"
        " compile run eagerly.",
        when=(given("compile.used", "==", False, "nothing is compiled yet"),),
        # It would be unrolled: minutes of compiling for what one batched operator does at once.
        unless=(given("loop.share", ">=", 0.4, "much of the step is one Python loop of small operators"),),
        conflicts=("FX412",),
        risk=Risk.NEEDS_REVIEW,
        what_if=WhatIf.COMPILED,
        basis="dispatch of the model's operators replaced by compiled calls",
        may_break="Compiling takes minutes at the start; rounding differs; each graph break loses part of"
        " the gain.",
        code="""\
import os

import torch

if os.environ.get("COMPILE", "1") == "1":
    torch._dynamo.config.suppress_errors = True  # what fails runs eagerly
    model = torch.compile(model)""",
        other_code=(
            arguments("torch_compile=True"),
            (
                if_known("compile.unused"),
                """\
model = torch.compile(model)  # the one it returns is compiled
output = model(inputs)  # and has to be the one that trains""",
            ),
        ),
        undo="Run with COMPILE=0.",
        verify="Operators and launches per step fall; no graph breaks or recompilations appear.",
        can_try=True,
        options={**COMPILER_OPTIONS, "blocks": Option(kind="bool")},
        edits=(
            ModelEdit(method="compile({keywords})", keywords=("mode", "dynamic", "backend"), unless="blocks"),
        ),
        arithmetic=Arithmetic.REORDERED,
        compiles=True,
        sources=(
            _COMPILE,
            recipe("intermediate/torch_compile_tutorial.html", "Introduction to torch.compile"),
        ),
    ),
    Fix(
        id="FX415",
        title="Replace TorchScript with torch.compile",
        addresses=("BN501", "BN306", "BN301"),
        note=True,
        what_to_change="TorchScript is deprecated and gets no new fusions. torch.compile replaces it.",
        when=seen("compile.torchscript", "==", True, "scripted modules were seen"),
        risk=Risk.NEEDS_REVIEW,
        may_break="Scripted code may rely on TorchScript's type rules.",
        code="""\
import torch

model = torch.compile(model)  # was torch.jit.script(model)""",
        undo="Use torch.jit.script again.",
        verify="Launches per step do not rise.",
        sources=(docs("jit.html", "TorchScript"),),
    ),
    Fix(
        id="FX416",
        title="Compile the optimizer step",
        addresses=("BN502",),
        what_to_change="Compiling optimizer.step() fuses the whole update into a few kernels, also for"
        " optimizers without a fused implementation.",
        when=(given("compile.used", "==", True, "torch.compile works here"), ON_GPU),
        unless=(given("optimizer.flavour", "==", "fused", "the fused implementation is in use"),),
        risk=Risk.NEEDS_REVIEW,
        what_if=WhatIf.OPTIMIZER_FUSED,
        what_if_bound=True,
        basis="the optimizer with one launch per group",
        may_break="A learning rate that is a Python float causes a recompilation when it changes: make it a"
        " tensor.",
        code="""\
import torch

optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-3))
compiled_step = torch.compile(optimizer.step)""",
        undo="Call optimizer.step() directly.",
        verify="The optimizer's launches per step fall; no recompilation when the rate changes.",
        can_try=True,
        arithmetic=Arithmetic.REORDERED,
        compiles=True,
        sources=(
            recipe("recipes/compiling_optimizer.html", "(beta) Compiling the optimizer with torch.compile"),
        ),
    ),
)
