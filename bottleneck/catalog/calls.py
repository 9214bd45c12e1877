"""Fixes of single calls that take far longer than their result needs: what to write in their place.

In: nothing. Out: `FIXES`, data.
"""

from __future__ import annotations

from ..model.codes import WhatIf
from ..model.fix import Arithmetic, Fix, Risk
from .build import ON_GPU, docs, given, source

_LITTLE_LEFT = 0.8
"""Of what such a call takes, the other way leaves a third at most: a twelfth to a third for an argmax, a hundredth
for integers, a three-hundredth for pairs (two cores, torch 2.13)."""

FIXES: tuple[Fix, ...] = (
    Fix(
        id="FX331",
        title="Select the quantiles, do not sort for them",
        addresses=("BN321",),
        for_calls=("torch.quantile", "torch.nanquantile"),
        what_to_change="torch.quantile sorts all numbers to read a few. NumPy's quantile puts only those ranks in"
        " order that it needs. Where gradients are needed, take the positions from numpy.argpartition, and the"
        " values with gather.",
        when=(given("device.kind", "==", "cpu", "training runs on the CPU"),),
        what_if=WhatIf.CALL_GONE,
        basis="the step without these calls",
        code="""\
import numpy as np
import torch

# was: low, middle, high = curves.quantile(levels, dim=-1)
found = np.quantile(curves.numpy(), levels.numpy(), axis=-1)
low, middle, high = torch.from_numpy(found).to(curves.dtype)""",
        undo="Call torch.quantile again.",
        verify="No aten::sort inside aten::quantile in the trace; the loss is the same.",
        can_try=True,
        arithmetic=Arithmetic.REORDERED,
        sources=(
            docs("generated/torch.quantile.html", "torch.quantile"),
            source(
                "https://github.com/pytorch/pytorch/issues/85147",
                "torch.quantile performance",
                "100 ms, 14 ms in NumPy",
            ),
            source(
                "https://github.com/pytorch/pytorch/pull/188394",
                "Speed up CPU quantile with partial selection",
                "2 to 8 times faster",
            ),
        ),
    ),
    Fix(
        id="FX332",
        title="Shorten embeddings once, after the update",
        addresses=("BN321",),
        for_calls=("torch.embedding_renorm_",),
        what_to_change="With max_norm each look-up makes the rows that it reads shorter, one row after the other."
        " Make the embedding without max_norm, and call renorm_ on its weight after each update: one operator"
        " for all rows. Of a table that is far larger than a batch, take the rows of the batch only.",
        what_if=WhatIf.CALL_GONE,
        basis="the step without these calls",
        risk=Risk.SAFE,
        may_break="The weight is changed outside autograd: not between a forward and its backward.",
        code="""\
import torch
from torch import nn

entity = nn.Embedding(15_000, 128)  # was: max_norm=1.0
# After each optimizer.step():
with torch.no_grad():
    entity.weight.renorm_(2, 0, 1.0)""",
        undo="Give max_norm to the embedding again.",
        verify="No aten::embedding_renorm_ in the trace; the loss is the same.",
        can_try=True,
        arithmetic=Arithmetic.REORDERED,
        sources=(
            docs("generated/torch.nn.Embedding.html", "torch.nn.Embedding: max_norm"),
            source(
                "https://github.com/pytorch/pytorch/issues/1278",
                "Embedding max_norm option slow",
                "95 % of the time; renorm_ after the update 20 times faster",
            ),
        ),
    ),
    Fix(
        id="FX333",
        title="Tell rows of integers apart by one number each",
        addresses=("BN321",),
        for_calls=("torch.unique",),
        what_to_change="torch.unique with dim= compares whole rows, value by value. Where the rows hold integers,"
        " number them: multiply each column by the product of the sizes of those behind it, add up, and call"
        " unique on these numbers.",
        what_if=WhatIf.CALL_GONE,
        basis="the step without these calls",
        may_break="The numbers must fit into 64 bits. Rows with negative values need their minimum taken off.",
        code="""\
import torch

# was: pairs.unique(dim=0, return_inverse=True)
width = pairs[:, 1].max() + 1
key = pairs[:, 0] * width + pairs[:, 1]
key, inverse = key.unique(return_inverse=True)
found = torch.stack([key // width, key % width], dim=1)""",
        undo="Call unique with dim= again.",
        verify="No aten::unique_dim in the trace; the loss is the same.",
        can_try=True,
        sources=(
            docs("generated/torch.unique.html", "torch.unique"),
            source(
                "https://github.com/pytorch/pytorch/issues/18987",
                "Performance issue of unique on CPU",
                "60 ms for 15320 rows",
            ),
            source("https://github.com/pytorch/pytorch/issues/18405", "_unique_dim needs refactor"),
        ),
    ),
    Fix(
        id="FX334",
        title="Keep sparse matrices in CSR layout",
        addresses=("BN321",),
        for_calls=("torch.sparse.mm",),
        what_to_change="A sparse matrix in COO layout is sorted, and its rows are counted, in each product. Convert"
        " it once, outside the loop, with to_sparse_csr(), and multiply by that.",
        what_if=WhatIf.CALL_GONE,
        basis="the step without these calls",
        may_break="Gradients with respect to a CSR matrix are supported for fewer operators.",
        code="""\
import torch

table = adjacency.to_sparse_csr()  # once
messages = torch.sparse.mm(table, features)  # in each step""",
        undo="Multiply by the COO matrix again.",
        verify="The product takes less time in the trace; the loss is the same.",
        can_try=True,
        arithmetic=Arithmetic.REORDERED,
        sources=(
            docs("sparse.html#sparse-csr-tensor", "torch.sparse: CSR"),
            source("https://github.com/pytorch/pytorch/issues/6171", "CSR for faster sparse products"),
            source(
                "https://github.com/DeepGraphLearning/torchdrug/issues/173",
                "torchdrug #173",
                "16 to 8 minutes an epoch",
            ),
        ),
    ),
    Fix(
        id="FX335",
        title="Find the largest with max(dim), not argmax(dim)",
        addresses=("BN321",),
        for_calls=("torch.argmax", "torch.argmin"),
        what_to_change="On a CPU argmax over an axis that is not the last one takes the numbers one by one, and"
        " jumps through memory for each. max(dim).indices and min(dim).indices, or numpy.argmax, read whole rows.",
        when=(given("device.kind", "==", "cpu", "training runs on the CPU"),),
        what_if=WhatIf.CALL_GONE,
        bound_weight=_LITTLE_LEFT,
        basis="the step without these calls",
        risk=Risk.SAFE,
        may_break="Where two numbers are the largest, another one of them may be named.",
        code="""\
labels = logits.max(1).indices  # was: logits.argmax(1)""",
        undo="Call argmax again.",
        verify="No aten::argmax in the trace; the labels are the same.",
        can_try=True,
        sources=(
            source(
                "https://github.com/pytorch/pytorch/issues/140000",
                "torch.argmax slow on CPU",
                "1.55 s, 0.21 s in NumPy",
            ),
            source("https://github.com/ultralytics/ultralytics/pull/26261", "ultralytics: argmax by NumPy"),
        ),
    ),
    Fix(
        id="FX336",
        title="Multiply matrices of integers as floats",
        addresses=("BN321",),
        for_calls=("torch.matmul",),
        what_to_change="No library multiplies matrices of integers fast: torch does it number by number. Convert"
        " both to float32, multiply, and convert the product back. It is exact as long as no sum reaches 2**24;"
        " up to 2**53 take float64.",
        when=(given("device.kind", "==", "cpu", "training runs on the CPU"),),
        what_if=WhatIf.CALL_GONE,
        bound_weight=_LITTLE_LEFT,
        basis="the step without these products",
        risk=Risk.SAFE,
        may_break="Sums beyond 2**24 are rounded.",
        code="""\
two = (links.float() @ links.float()).long()  # was: links @ links""",
        undo="Multiply the integers again.",
        verify="The product takes less time in the trace; its numbers are the same.",
        can_try=True,
        sources=(
            source(
                "https://github.com/pytorch/pytorch/issues/72408",
                "Matrix multiplication is 30 times slower for integers than floats on CPU",
                "328 to 10.7 ms",
            ),
            source("https://github.com/numpy/numpy/issues/14556", "NumPy: the same", "2.44 s to 37 ms"),
        ),
    ),
    Fix(
        id="FX337",
        title="Compare all pairs with one matrix product",
        addresses=("BN321",),
        for_calls=("torch.cosine_similarity",),
        what_to_change="cosine_similarity of x[:, None] and y[None] writes all pairs of vectors to memory, several"
        " times. Normalise the vectors, and multiply the two matrices.",
        what_if=WhatIf.CALL_GONE,
        bound_weight=_LITTLE_LEFT,
        basis="the step without these calls",
        risk=Risk.SAFE,
        may_break="Rounding differs in the last digits.",
        code="""\
from torch.nn import functional as F

# was: F.cosine_similarity(queries[:, None], keys[None], dim=-1)
similar = F.normalize(queries, dim=-1) @ F.normalize(keys, dim=-1).T""",
        undo="Call cosine_similarity again.",
        verify="No aten::cosine_similarity in the trace; memory falls; the loss is the same.",
        can_try=True,
        arithmetic=Arithmetic.REORDERED,
        sources=(
            source(
                "https://github.com/pytorch/pytorch/pull/50196",
                "pairwise similarity materializes the broadcasted matrix",
            ),
            source(
                "https://github.com/pytorch/pytorch/issues/104564",
                "Memory use of cosine_similarity() doubled",
            ),
        ),
    ),
    Fix(
        id="FX338",
        title="Draw by the running sum, not with multinomial",
        addresses=("BN321",),
        for_calls=("torch.multinomial",),
        what_to_change="For one sample of each row, and for samples without replacement, multinomial draws an"
        " exponential number for every class; with replacement it adds all weights up in each call. Look a uniform"
        " number up in the running sum of the weights, made once where they stay. For equal weights take randint"
        " or randperm.",
        what_if=WhatIf.CALL_GONE,
        basis="the step without these calls",
        may_break="The draws differ for a given seed.",
        code="""\
import torch

# was: torch.multinomial(weights, 1)
reached = weights.cumsum(-1)
drawn = torch.rand(len(weights), 1) * reached[:, -1:]
choice = torch.searchsorted(reached, drawn).clamp(max=weights.shape[1] - 1)""",
        undo="Call multinomial again.",
        verify="No aten::multinomial in the trace; the curves of the loss agree.",
        sources=(
            source(
                "https://github.com/ruotianluo/self-critical.pytorch/pull/144",
                "self-critical: multinomial takes 315 of 592 s",
            ),
            source("https://github.com/pytorch/pytorch/issues/30968", "Categorical.sample too slow"),
            source(
                "https://github.com/pytorch/pytorch/issues/1362", "multinomial is the culprit: alias tables"
            ),
            source(
                "https://github.com/pyro-ppl/pyro/pull/2383",
                "Pyro: randperm in place of multinomial",
                "40 times faster on a CPU",
            ),
        ),
    ),
    Fix(
        id="FX339",
        title="Take apart and put together with one call each",
        addresses=("BN321",),
        for_calls=("torch.select", "torch.narrow"),
        what_to_change="The gradient of x[:, t] is as large as all of x: zeros, but for one step. A loop over the"
        " steps fills and adds x up once for each. unbind gives all steps at once, and its gradient is one"
        " stack. In place of slices side by side take chunk or split, whose gradient is one cat. A loop that"
        " writes x[:, t] = y copies the gradient of all of x for each: keep the steps in a list, read them there,"
        " and stack them once.",
        what_if=WhatIf.CALL_GONE,
        bound_weight=_LITTLE_LEFT,
        basis="the step without these calls",
        risk=Risk.SAFE,
        may_break="What unbind, chunk and split return must not be changed in place. Steps that the loop does not"
        " write belong into the list, too.",
        code="""\
states = []
for x in inputs.unbind(1):  # was: for t in range(T): x = inputs[:, t]
    hidden = cell(x, hidden)
    states.append(hidden)  # was: states[:, t] = hidden
states = torch.stack(states, 1)
into, keep = gates.chunk(2, -1)  # was: gates[:, :size], gates[:, size:]""",
        undo="Index the tensor again.",
        verify="No aten::select_backward, aten::slice_backward or CopySlices of these in the trace; the loss is the"
        " same.",
        can_try=True,
        sources=(
            docs("generated/torch.unbind.html", "torch.unbind"),
            source(
                "https://github.com/pytorch/pytorch/issues/1788", "Indexing in a loop: quadratic backward"
            ),
            source("https://github.com/pytorch/pytorch/issues/9701", "x[:, t] is slow in the backward"),
            source(
                "https://github.com/SynodicMonth/ChebyKAN/pull/6",
                "Polynomials written degree by degree",
                "the time halved without the loop and its clones",
            ),
        ),
    ),
    Fix(
        id="FX340",
        title="Multiply and sum: a dot product is no matrix",
        addresses=("BN321",),
        for_calls=("torch.bmm",),
        what_to_change="A batch of dot products, written as bmm, matmul or einsum, is made by a library for large"
        " matrices, one product after the other. Multiply number by number and sum over the last axis. Of very"
        " long vectors the products take memory: there bmm may stay ahead. nn.Bilinear makes such products for each"
        " output: multiply one side by the weights of all outputs at once, then by the other side, and sum.",
        what_if=WhatIf.CALL_GONE,
        bound_weight=_LITTLE_LEFT,
        basis="the step without these products",
        risk=Risk.SAFE,
        may_break="Rounding differs in the last digits. Under autocast cast the vectors yourself.",
        code="""\
# was: torch.bmm(users[:, None], items[:, :, None]).flatten()
# was: torch.einsum("bd,bd->b", users, items)
scores = (users * items).sum(-1)
# was: torch.nn.functional.bilinear(users, items, weight)
mixed = torch.einsum("bi,kij->bkj", users, weight)
links = (mixed * items[:, None]).sum(-1)""",
        undo="Call bmm again.",
        verify="No aten::bmm of these shapes in the trace; the loss is the same.",
        can_try=True,
        arithmetic=Arithmetic.REORDERED,
        sources=(
            source(
                "https://github.com/pytorch/pytorch/issues/32591",
                "einsum is slower than manually multiplying and summing",
                "20 times",
            ),
            source("https://github.com/pytorch/pytorch/issues/101249", "The same, on a CPU", "40 times"),
            source("https://github.com/deepchem/deepchem/pull/4515", "sum in place of einsum", "5.6 times"),
            source("https://github.com/pytorch/pytorch/issues/58093", "nn.Bilinear by hand", "3.5 times"),
        ),
    ),
    Fix(
        id="FX343",
        title="Broadcast in place of repeating",
        addresses=("BN321",),
        for_calls=("torch.Tensor.repeat",),
        what_to_change="A tensor is written several times over, and read as often by what comes next. Compute on"
        " what is not repeated, and let the sizes of 1 broadcast, or use expand, which copies nothing. A layer of"
        " two tensors side by side is the sum of two layers, each of one tensor.",
        what_if=WhatIf.CALL_GONE,
        basis="the step without these copies",
        may_break="An expanded tensor shares its memory: writing into it in place changes all copies. Rounding"
        " may differ in the last digits.",
        code="""\
# was: queries.repeat_interleave(n, 0) + keys.repeat(n, 1)
sums = queries[:, None] + keys[None]
# was: F.linear(torch.cat([left_n, right_n], -1), weight)
first, second = weight.split(keys.shape[-1], -1)
scores = (queries @ first.T)[:, None] + (keys @ second.T)[None]""",
        undo="Repeat them again.",
        verify="No aten::repeat of these in the trace; the loss is the same.",
        sources=(
            docs("generated/torch.Tensor.expand.html", "torch.Tensor.expand"),
            source(
                "https://github.com/diegoantognini/pyGAT/pull/63", "pyGAT: all pairs of nodes, without them"
            ),
            source(
                "https://github.com/huggingface/sentence-transformers/pull/4026",
                "Distances without tiling",
                "58.4 to 3.4 ms",
            ),
        ),
    ),
    Fix(
        id="FX342",
        title="Add the losses up, and go back once",
        addresses=("BN321",),
        for_calls=("torch.Tensor.backward",),
        what_to_change="Each backward goes through all that its loss shares with the others, and adds its gradients"
        " to theirs. One backward of the sum makes the same ones. A factor of a loss stays its factor.",
        what_if=WhatIf.CALL_GONE,
        basis="what was visited before is not visited again",
        risk=Risk.SAFE,
        may_break="The gradients of a single loss cannot be looked at, clipped or weighed any more. Rounding differs"
        " in the last digits.",
        code="""\
# was: for loss in losses: loss.backward(retain_graph=True)
sum(losses).backward()""",
        undo="Go back from each loss again.",
        verify="One backward per step; the loss is the same.",
        arithmetic=Arithmetic.REORDERED,
        sources=(
            docs("generated/torch.autograd.backward.html", "torch.autograd.backward: gradients accumulate"),
            source(
                "https://github.com/mitmul/chainer-faster-rcnn/issues/16",
                "A backward for each of four losses",
                "the sum speeds up the training about 3 times",
            ),
        ),
    ),
    Fix(
        id="FX344",
        title="Give the operator work that it can divide",
        named="Spread {call} over the whole GPU",
        addresses=("BN322",),
        what_to_change="The kernels of this operator have fewer warps than the GPU has schedulers for them; the rest of"
        " it stands still. What runs along a dimension that is not the last one (cumsum, a scan, a sort) may have a thread"
        " per column: make that dimension the last one, and contiguous. What is called for each sample, head or time"
        " step can be one call for all. A larger batch fills the GPU, too.",
        when=(ON_GPU,),
        what_if=WhatIf.KERNELS_SPREAD,
        what_if_bound=True,
        basis="the kernels' time, shared by all of the GPU",
        may_break="A copy that makes a dimension the last one takes memory. Rounding may differ in the last digits.",
        code="""\
# was: total = x.cumsum(1)  # a thread for each column of each sample
total = x.transpose(1, 2).contiguous().cumsum(2).transpose(1, 2)""",
        undo="Call it as before.",
        verify="More warps per SM for these kernels in the trace, and less of their time.",
        arithmetic=Arithmetic.REORDERED,
        sources=(
            source(
                "https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/#thread-and-block-heuristics",
                "CUDA C++ Best Practices Guide: thread and block heuristics",
                "the number of blocks should be larger than the number of multiprocessors",
            ),
            source("https://github.com/pytorch/pytorch/issues/122170", "cumsum along an outer dimension"),
        ),
    ),
)
