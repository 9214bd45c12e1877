"""Fixes of graph breaks: what ends a compiled graph, and its rewrite.

In: nothing. Out: `FIXES`, data.
"""

from __future__ import annotations

from ..model.codes import WhatIf
from ..model.fix import Arithmetic, Fix, Risk
from .build import compile_with, docs, given, recipe, seen

_TROUBLE = docs(
    "user_guide/torch_compiler/torch.compiler_troubleshooting.html", "torch.compile troubleshooting"
)
_FAQ = docs("user_guide/torch_compiler/torch.compiler_faq.html", "torch.compile frequently asked questions")
_COMPILE = docs("generated/torch.compile.html", "torch.compile")
_COMPILED = given("compile.used", "==", True, "something is compiled")
_SEAMS = "the cost between the graphs removed: guards, bytecode and eager fallback"
_ONE_FEWER = "One graph fewer per step; TORCH_LOGS=graph_breaks no longer names the line."

FIXES: tuple[Fix, ...] = (
    Fix(
        id="FX401",
        title="Rewrite the lines that break the graph",
        addresses=("BN401",),
        what_to_change="Each break ends one compiled graph and starts another, with Python and guards"
        " between them. Keep values on the device, print and log outside the model, and use tensor"
        " operations where control flow depends on data. TORCH_LOGS=graph_breaks prints every break with"
        " its line.",
        when=(given("compile.break_kinds", "contains", "other", "no other entry is for these breaks"),),
        what_if=WhatIf.SEAMS_GONE,
        basis=_SEAMS,
        code="""\
import torch

# .item() in the model      keep the tensor: x * scale
# if tensor > 0: a else b   torch.where(tensor > 0, a, b)
# print, logging, time      after the step, on what the model returns
# an unsupported call       outside, or a torch.library.custom_op
out = torch.where(x.mean() > 0, x * 2, x)""",
        undo="Not needed: the rewritten code also runs eagerly.",
        verify=_ONE_FEWER,
        sources=(_TROUBLE, _FAQ),
    ),
    Fix(
        id="FX402",
        title="Take .item() out of the compiled model",
        addresses=("BN401",),
        what_to_change="A Python number made from a tensor ends the graph. Keep it a tensor. Where a number"
        " is unavoidable, set capture_scalar_outputs: the compiler then traces it as an unknown value.",
        when=seen("compile.break_kinds", "contains", "item", "a break comes from .item() or the like"),
        what_if=WhatIf.SEAMS_GONE,
        basis=_SEAMS,
        code="""\
import torch

scale = x.abs().mean()  # stays on the device
out = x / scale  # was: x / x.abs().mean().item()

# Only where a number is unavoidable:
torch._dynamo.config.capture_scalar_outputs = True""",
        undo="Not needed.",
        verify=_ONE_FEWER,
        sources=(_TROUBLE,),
    ),
    Fix(
        id="FX403",
        title="Move printing and logging out of compiled code",
        addresses=("BN401",),
        what_to_change="print, logging, random and time calls inside compiled code end the graph. Return"
        " what you want to see and print it outside, every N steps.",
        when=seen("compile.break_kinds", "contains", "print", "a break comes from print, logging or time"),
        what_if=WhatIf.SEAMS_GONE,
        basis=_SEAMS,
        code="""\
import torch


def forward(x):
    hidden = x.relu()  # was followed by print(hidden.mean())
    return hidden, {"mean": hidden.detach().mean()}


out, seen = torch.compile(forward, backend="eager")(x)
if step % 100 == 0:
    print({name: value.item() for name, value in seen.items()})""",
        undo="Print inside again.",
        verify=_ONE_FEWER,
        sources=(_TROUBLE,),
    ),
    Fix(
        id="FX404",
        title="Replace data-dependent branches with tensor code",
        addresses=("BN401",),
        what_to_change="`if tensor > 0` needs the value on the host. torch.where computes both sides and chooses on"
        " the device; torch.cond keeps a real branch inside the graph.",
        when=seen(
            "compile.break_kinds", "contains", "branch", "a break comes from a branch on a tensor's value"
        ),
        risk=Risk.NEEDS_REVIEW,
        may_break="torch.where computes both sides, and gradients flow through both: mask NaN in the input.",
        what_if=WhatIf.SEAMS_GONE,
        basis=_SEAMS,
        code="""\
import torch

# was: y = x * 2 if x.mean() > 0 else x
y = torch.where(x.mean() > 0, x * 2, x)""",
        undo="Branch in Python again.",
        verify=_ONE_FEWER,
        sources=(docs("generated/torch.cond.html", "Control flow: cond"), _TROUBLE),
    ),
    Fix(
        id="FX405",
        title="Wrap an untraceable call in a custom operator",
        addresses=("BN401",),
        what_to_change="Wrap a call that dynamo cannot trace (C extension, NumPy library) in"
        " torch.library.custom_op. The graph then continues through it instead of ending there. Or make"
        " the call before or after the compiled part.",
        when=seen("compile.break_kinds", "contains", "unsupported", "a break comes from an unsupported call"),
        risk=Risk.NEEDS_REVIEW,
        may_break="You must provide correct shapes (register_fake) and gradients (register_autograd).",
        what_if=WhatIf.SEAMS_GONE,
        basis=_SEAMS,
        code="""\
import numpy as np
import torch


@torch.library.custom_op("mylib::smooth", mutates_args=())
def smooth(signal: torch.Tensor) -> torch.Tensor:
    smoothed = np.convolve(signal.cpu().numpy(), np.ones(3) / 3, "same")
    return torch.from_numpy(smoothed).to(signal)


@smooth.register_fake
def _(signal):
    return torch.empty_like(signal)""",
        undo="Call the function directly.",
        verify=_ONE_FEWER,
        sources=(recipe("advanced/python_custom_ops.html", "Custom Python operators"),),
    ),
    Fix(
        id="FX417",
        title="Let the compiler trace a disabled function",
        addresses=("BN401",),
        what_to_change="A function under torch.compiler.disable or torch._dynamo.disable ends the graph each"
        " time it is reached, and so does a graph_break() call. Remove the decorator or the call. If"
        " there is still a reason for it, call the function outside the compiled part, or wrap it in a"
        " custom operator.",
        when=seen("compile.break_kinds", "contains", "disabled", "a break comes from a disabled function"),
        risk=Risk.NEEDS_REVIEW,
        may_break="Whatever it was disabled for: compare its results before and after.",
        what_if=WhatIf.SEAMS_GONE,
        basis=_SEAMS,
        code="""\
import torch


def rotate(x):  # was under @torch.compiler.disable
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


out = torch.compile(rotate, fullgraph=True, backend="eager")(x)""",
        undo="Put the decorator back.",
        verify=_ONE_FEWER,
        sources=(
            docs(
                "user_guide/torch_compiler/torch.compiler_fine_grain_apis.html",
                "TorchDynamo APIs for fine-grained tracing",
            ),
            _TROUBLE,
        ),
    ),
    Fix(
        id="FX406",
        title="Forbid graph breaks with fullgraph=True",
        addresses=("BN401",),
        note=True,
        what_to_change="Once the breaks are gone, fullgraph=True turns the next one into an error at its"
        " line instead of a silent slowdown.",
        when=(_COMPILED,),
        may_break="A break is now an error.",
        code="""\
import torch

compiled = torch.compile(model, fullgraph=True)""",
        undo="Remove fullgraph=True.",
        verify="The script runs without an error.",
        can_try=True,
        edits=(compile_with("fullgraph"),),
        arithmetic=Arithmetic.REORDERED,
        compiles=True,
        sources=(_COMPILE,),
    ),
)
