"""What an operator's own time is, derived from its name (CPU runs).

In: names of operators and annotations as kineto writes them. Out: one `OpClass` per name.

Only self time is classified, so a wrapper such as aten::linear counts as dispatch while the
aten::addmm inside it counts as math. Names that nobody here has seen count as memory-bound work: an
unknown operator that takes long does so on data, and its fixed cost is charged apart anyway.
"""

from __future__ import annotations

import re
from enum import IntEnum

NODE = re.compile(r"^autograd::engine::evaluate_function: ")
"""A node of the graph that a backward goes through."""
WRITTEN = "autograd::engine::evaluate_function: torch::autograd::CopySlices"
"""One that makes the gradient of all of a tensor of which a part was written in place."""
FILL = "aten::fill_"
NEW_MEMORY = re.compile(r"^aten::(empty|new_empty|resize_)")
"""Operators that make a tensor, or its memory larger, and write nothing: a fill inside is determinism's."""


class OpClass(IntEnum):
    """What the self time of a row stands for."""

    PYTHON = 0
    """Python between operators: self time of annotations and of no row at all."""
    BOOKKEEPING = 1
    """Views, metadata, allocation of outputs, wrappers: no data is touched."""
    MATH = 2
    """Matrix products and decompositions, convolutions, attention, recurrent cells, Fourier transforms."""
    MEMORY = 3
    """Element-wise, copies, reductions, normalisation, indexing."""
    GRAPH = 4
    """A compiled graph: its own time is generated kernels."""
    SEAM = 5
    """Entering and leaving compiled code: guards, prologues, wrappers."""
    AUTOGRAD = 6
    """The autograd engine around operators; also where saved tensors are freed."""
    COMPILING = 7
    """Dynamo and inductor at work."""
    SYNC = 8
    """Reading a scalar: nearly free on CPU, counted all the same."""
    PY_BACKWARD = 9
    """Python inside the backward of the user's own autograd Function."""
    CREATION = 10
    """New tensors, before anything is written into them: torch.tensor(rows) shows as aten::empty,
    aten::to and aten::lift_fresh."""
    COMMUNICATION = 11
    """Collectives, as far as the calling thread is in them."""


_BOOKKEEPING = frozenset(
    """as_strided view _unsafe_view reshape _reshape_alias t transpose permute expand expand_as
    squeeze unsqueeze squeeze_ unsqueeze_ slice select narrow split split_with_sizes chunk unbind
    unflatten flatten detach detach_ alias resolve_conj resolve_neg result_type to _to_copy is_nonzero
    set_ resize_ view_as numpy_T movedim swapaxes diagonal unfold linear matmul einsum conv1d conv2d
    conv3d convolution layer_norm batch_norm instance_norm group_norm dropout zeros zeros_like ones
    ones_like full full_like rand randn randint scalar_tensor contiguous type_as cross_entropy_loss
    scaled_dot_product_attention _has_compatible_shallow_copy_type broadcast_tensors can_cast
    promote_types _batch_norm_impl_index pin_memory item
    square softmax log_softmax embedding_bag multi_head_attention_forward lstm gru
    conv_transpose2d max_pool2d adaptive_avg_pool2d pad nll_loss_nd nll_loss hstack vstack
    stack concat""".split()  # noqa: SIM905  (one name per line would fill the file)
)
"""Self time only: composite operators (softmax, stack, cross_entropy_loss...) do their work in
the operators they call, so what is left in themselves is dispatch."""

_CREATION = frozenset(
    ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh")
)
_MATH = re.compile(
    r"^(addmm|mm|bmm|baddbmm|addbmm|addmv|mv|dot|vdot|ger|addr|_addmm_activation|_scaled_mm|_int_mm|"
    r"linear_backward|mkldnn_.*|_convolution.*|thnn_conv.*|slow_conv.*|_slow_conv.*|convolution_.*|"
    r"_scaled_dot_product.*|_flash_attention.*|_efficient_attention.*|_transform_bias_rescale_qkv|"
    r"_native_multi_head_attention|native_multi_head_attention|mkl_linear|_mkl_linear.*|onednn.*|"
    r"_thnn_fused_.*|quantized_.*|_?linalg_(?!vector_norm).*|cholesky_.*|_?cdist.*|_fft_.*|_grouped_mm)$"
)
COMPILING = re.compile(
    r"\(dynamo_timed\)|^dynamo$|^entire_(frame|backward)_compile$|_compile\.compile_inner|compile_fx"
    r"|^Inductor::compile|CachingAutotuner|^CompileTimeInstructionCounter"
)
"""Ranges of the compiler: what runs inside them is compiling, whatever it is."""
_SEAM_PREFIXES = (
    "TorchDynamo Cache Lookup",
    "Pregraph bytecode",
    "Torch-Compiled Region",
    "AOTDispatcher Runtime Wrapper",
)
_SEAM_NAMES = frozenset(
    ("CompiledFunction", "CompiledFunctionBackward", "CompiledAutograd", "AOTAutogradFunction")
)
_BUILT_IN_NODE = re.compile(r"^[A-Za-z0-9_]+Backward\d+$")
_IN_PLACE = re.compile(
    r"^(_foreach_\w+_|_fused_\w+|(add|sub|mul|div|addcmul|addcdiv|lerp|clamp|clamp_min|clamp_max|sign|pow)_)$"
)
_NAMESPACE = re.compile(r"^(?:aten|prims|quantized|mkldnn|torch_ipex|inductor|c10d|profiler)::")


def base_name(name: str) -> str:
    """Return an operator's name without its namespace, as in "add_"."""
    return _NAMESPACE.sub("", name)


def updates_in_place(name: str) -> bool:
    """Return whether the operator is in-place arithmetic: how parameters are changed, not made."""
    return _IN_PLACE.match(base_name(name)) is not None


def is_region(name: str) -> bool:
    """Return whether the row is one call of code that dynamo compiled."""
    return name.startswith("Torch-Compiled Region")


def _classify_special(name: str) -> OpClass | None:
    if name.startswith(("## Call CompiledFxGraph", "triton_", "cpp_fused")):
        return OpClass.GRAPH
    if COMPILING.search(name):
        return OpClass.COMPILING
    if name.startswith(("c10d::", "_c10d_functional::", "gloo:", "mpi:", "record_param_comms")):
        return OpClass.COMMUNICATION
    if fills_bucket(name):
        return OpClass.MEMORY
    if name in _SEAM_NAMES or name.startswith(_SEAM_PREFIXES):
        return OpClass.SEAM
    if name.startswith("autograd::engine::evaluate_function: CompiledFunction"):
        return OpClass.SEAM
    if name.startswith(("autograd::", "torch::autograd::")) or _BUILT_IN_NODE.match(name):
        return OpClass.AUTOGRAD
    if "::" not in name and name.endswith("Backward"):
        return OpClass.PY_BACKWARD
    return None


def fills_bucket(name: str) -> bool:
    """Return whether DDP copies or scales a gradient into the bucket that it sends, or copies it back."""
    return name.startswith(("torch::distributed::reducer::", "torch.distributed.ddp.reducer::"))


def classify(name: str) -> OpClass:
    """Return what the self time of an operator of that name stands for."""
    special = _classify_special(name)
    if special is not None:
        return special
    base = base_name(name)
    if base == "_local_scalar_dense":
        return OpClass.SYNC
    if base in _CREATION:
        return OpClass.CREATION
    if base in _BOOKKEEPING:
        return OpClass.BOOKKEEPING
    if _MATH.match(base) or _MATH.match(base.rstrip("_")):
        return OpClass.MATH
    return OpClass.MEMORY
