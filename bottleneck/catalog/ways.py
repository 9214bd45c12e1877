"""Fixes that write a call, or two in a row, another way: known to be cheaper at times, and tried in the run.

In: nothing. Out: `FIXES`, data. Each stands for the ways of one name in `harness/ways`.
"""

from __future__ import annotations

from ..model.codes import WhatIf
from ..model.fix import Arithmetic, Fix, Risk, Source
from .build import docs, source

_TRIED = "tried here with the arguments of the call"


def _way(
    fix_id: str,
    name: str,
    title: str,
    text: str,
    code: str,
    *sources: Source,
    may_break: str = "Rounding differs in the last digits.",
    can_try: bool = False,
    conflicts: tuple[str, ...] = (),
    in_rounds: bool = False,
) -> Fix:
    return Fix(
        id=fix_id,
        title=title,
        addresses=("BN509",) if in_rounds else ("BN321",),
        for_calls=(f"way:{name}",),
        what_to_change=text,
        what_if=WhatIf.CALL_GONE,
        basis=_TRIED,
        risk=Risk.SAFE,
        may_break=may_break,
        code=code,
        undo="Write the call as it was.",
        verify="The line takes less time in the trace; the loss is the same.",
        can_try=can_try,
        conflicts=conflicts,
        arithmetic=Arithmetic.REORDERED,
        sources=sources,
    )


FIXES: tuple[Fix, ...] = (
    _way(
        "FX350",
        "inverse",
        "Solve the system; do not invert the matrix",
        "An inverse that is only multiplied by takes three times the work of a solve, and loses digits. Call"
        " torch.linalg.solve(A, B) for inv(A) @ B, and solve(A, B, left=False) for B @ inv(A).",
        """\
import torch

x = torch.linalg.solve(A, b)  # was: torch.linalg.inv(A) @ b""",
        docs("generated/torch.linalg.inv.html", "torch.linalg.inv: prefer solve"),
        source(
            "https://github.com/PMBio/bicycle/pull/3",
            "bicycle: solve in place of an inverse and a product",
        ),
    ),
    _way(
        "FX351",
        "sum-of-products",
        "Sum products with a matrix product",
        "(a * b).sum(-1) writes all products to memory, and reads them again to add them up, in the backward"
        " once more. Where each number of one meets several of the other, it is a matrix product: matmul, or"
        " einsum with the axes named. Of two tensors of many axes that share only what is added up, tensordot"
        " makes one product of matrices, where einsum moves the axes about.",
        """\
import torch

scores = x @ att  # was: (x * att).sum(-1)
pairs = torch.einsum("id,jd->ij", a, b)  # was: (a[:, None] * b).sum(-1)""",
        docs("generated/torch.einsum.html", "torch.einsum"),
        source(
            "https://github.com/pyg-team/pytorch_geometric/pull/7766",
            "PyG: a product and a sum by matmul",
            "up to 6.5 times forward",
        ),
        source(
            "https://github.com/leaderj1001/Stand-Alone-Self-Attention/issues/14",
            "Attention by products of elements",
            "2 minutes to 53 s",
        ),
    ),
    _way(
        "FX352",
        "order-of-products",
        "Multiply matrices in the cheaper order",
        "(A @ B) @ c costs as much as its largest product; A @ (B @ c) is the same. Put the brackets where the"
        " result in between is smallest. A weight that is made of factors, as in adapters (U @ V, kron), need not"
        " be made: multiply by one after the other. torch.linalg.multi_dot finds the order for matrices; einsum with"
        " opt_einsum installed for its own.",
        """\
y = A @ (B @ c)  # was: A @ B @ c, which multiplies the matrices first""",
        docs("generated/torch.linalg.multi_dot.html", "torch.linalg.multi_dot"),
        source(
            "https://github.com/pytorch/pytorch/issues/60295",
            "einsum contracts from left to right",
            "59 times and more in the best order",
        ),
        source(
            "https://github.com/cornellius-gp/gpytorch/pull/2692",
            "GPyTorch: products grouped anew",
            "3.1 to 4.5 times",
        ),
    ),
    _way(
        "FX353",
        "one-hot",
        "Look rows up; do not multiply one-hot rows",
        "A row of zeros with a single one, times a matrix, is a row of that matrix: the product multiplies by"
        " zeros. Index the matrix, or call F.embedding; for the sums of rows by group call index_add.",
        """\
rows = table[index]  # was: F.one_hot(index, len(table)).float() @ table""",
        docs("generated/torch.nn.functional.embedding.html", "torch.nn.functional.embedding"),
        source("https://github.com/TencentARC/SEED-Voken/pull/4", "SEED-Voken: a codebook is indexed"),
        may_break="The same rows, to the digit.",
    ),
    _way(
        "FX354",
        "real-fft",
        "Transform real numbers with rfft",
        "The transform of real numbers holds each value twice, once as its conjugate. rfft computes one half,"
        " and irfft goes back from it: half the work and memory, in what lies between as well.",
        """\
import torch

spectrum = torch.fft.rfft(signal)  # was: torch.fft.fft(signal)
back = torch.fft.irfft(spectrum, len(signal))  # was: ifft(spectrum).real""",
        docs("generated/torch.fft.rfft.html", "torch.fft.rfft"),
        source(
            "https://github.com/iver56/torch-audiomentations/pull/73",
            "torch-audiomentations: rfft in place of fft",
        ),
        may_break="The result has the frequencies up to the middle only: what reads the others changes, too.",
    ),
    _way(
        "FX355",
        "layout",
        "Give the call its numbers in another layout",
        "An operator reads memory in the order of its loop. Where its numbers lie apart, as after a transpose,"
        " a slice or along an axis that is not the last, copy them once with contiguous(), or keep the tensor"
        " with that axis last. A running maximum over rows can take whole rows with torch.maximum. matmul copies"
        " a matrix once for every entry of an axis that it is repeated along; einsum does not.",
        """\
rows = x.movedim(1, -1).contiguous()
total = rows.cumsum(-1).movedim(-1, 1)  # was: x.cumsum(1)""",
        docs("generated/torch.Tensor.contiguous.html", "torch.Tensor.contiguous"),
        source(
            "https://github.com/pytorch/pytorch/issues/108496",
            "cummax on a CPU",
            "slower than maximum line by line",
        ),
        source(
            "https://github.com/pytorch/pytorch/issues/154128",
            "matmul of matrices that are repeated",
            "40 GB for what bmm does without",
        ),
        may_break="The copy takes memory.",
        can_try=True,
    ),
    _way(
        "FX356",
        "decomposition",
        "Factorise in a cheaper way",
        "A general decomposition of a special matrix does too much. For many small or narrow matrices on a GPU"
        ' take svd with driver="gesvda" or "gesvdj", and full_matrices=False. Singular values alone follow from'
        " eigvalsh of the matrix times itself. What is symmetric has eigh; what is positive definite, cholesky;"
        " of full rank, a solve in place of pinv.",
        """\
import torch

u, s, v = torch.linalg.svd(x, full_matrices=False, driver="gesvda")""",
        docs("generated/torch.linalg.svd.html", "torch.linalg.svd: drivers"),
        source("https://github.com/pytorch/pytorch/issues/41306", "SVD of many small matrices on a GPU"),
        source(
            "https://github.com/pytorch/pytorch/pull/74521",
            "svd: driver= and gesvda",
            "1,609 to 84 ms",
        ),
        may_break="Values near zero are less exact; vectors may have another sign.",
        can_try=True,
    ),
    _way(
        "FX357",
        "sort",
        "Select the largest; do not sort for them",
        "A sort puts all numbers in order. Where the first few are read, topk selects them; one of them is"
        " kthvalue, and the first is max.",
        """\
import torch

best, where = torch.topk(scores, 5)
# was: scores.sort(descending=True), of which the first five""",
        docs("generated/torch.topk.html", "torch.topk"),
        source(
            "https://github.com/facebookarchive/fb.resnet.torch/pull/147",
            "All scores sorted for the best five",
            "2.7 to 0.9 s",
        ),
        may_break="Of equal numbers another one may be named.",
    ),
    _way(
        "FX358",
        "once-per-value",
        "Compute a costly function once per value",
        "lgamma, pow or exp of numbers that are mostly the same, or few whole ones, computes the same again and"
        " again. Compute it where the numbers differ, or of a table that is looked up; of a tensor that is"
        " expanded, before it is. A small whole power is a product.",
        """\
import torch

rare = counts != 0  # lgamma(0 + 1) is 0
out = torch.zeros_like(counts)
out[rare] = torch.lgamma(counts[rare] + 1)  # was: torch.lgamma(counts + 1)""",
        docs("special.html", "torch.special"),
        source(
            "https://github.com/pyro-ppl/pyro/pull/1743",
            "Pyro: lgamma where counts are not zero",
            "the model twice as fast",
        ),
    ),
    _way(
        "FX359",
        "convolution",
        "Convolve in a cheaper way",
        "A long kernel is cheaper as a product of Fourier transforms. A kernel of one is a matrix product, and"
        " one as wide as its stride, too: nn.Linear over patches. Groups may take longer than the whole. A box or a"
        " bell runs along one axis after the other, or is a difference of running sums. Pooling"
        " to one number is a mean, and nearest up-sampling a repetition. Windows by unfold() of which only the mean"
        " or the largest is used are a pooling.",
        """\
import torch

n, k = signal.shape[-1], kernel.shape[-1]
size = 2 ** (n - 1).bit_length()  # large prime factors take long
over = torch.fft.rfft(kernel.flip(-1), size)
out = torch.fft.irfft(torch.fft.rfft(signal, size) * over, size)
out = out.narrow(-1, k - 1, n - k + 1)  # was: conv1d with a long kernel""",
        docs("fft.html", "torch.fft"),
        source(
            "https://github.com/pytorch/pytorch/issues/21462",
            "Conv1d with a kernel of 1024",
            "20 times as slow as by FFT",
        ),
        source("https://github.com/huggingface/transformers/issues/45041", "Patches by Conv3d, 3.7 s a step"),
        source("https://github.com/pytorch/pytorch/issues/70954", "Training grouped Conv2d is slow"),
        can_try=True,
    ),
    _way(
        "FX360",
        "whole-rows",
        "Take or add up whole rows, by one number each",
        "scatter_add and gather with an index that is expanded over a row look each number up by itself."
        " index_add and index_select take one index for a row. Rows that several numbers tell, as in x[i, j], have"
        " one among the rows of x.flatten(0, 1): i * x.shape[1] + j.",
        """\
out = out.index_add(0, index, rows)
# was: out.scatter_add(0, index[:, None].expand_as(rows), rows)""",
        docs("generated/torch.Tensor.index_add_.html", "torch.Tensor.index_add_"),
        source(
            "https://github.com/nerfstudio-project/nerfacc/pull/179",
            "nerfacc: index_add_ for scatter_add_",
        ),
        source(
            "https://github.com/pyg-team/pytorch_geometric/issues/7596",
            "PyG: broadcast and scatter, or index_add",
        ),
        can_try=True,
    ),
    _way(
        "FX361",
        "type",
        "Compute the call in another number type",
        "A processor without units for bf16 or fp16 converts each number, and for some operators there is only"
        " a slow loop. Convert before the call, and back after it; integers of 32 bits are enough for most"
        " indices and counts.",
        """\
out = scores.float().softmax(-1).to(scores.dtype)
# was: scores.softmax(-1), in bf16""",
        docs("amp.html#cpu-ops-that-can-autocast-to-bfloat16", "Autocast on CPUs"),
        source(
            "https://github.com/pytorch/pytorch/issues/146508",
            "float16 on a CPU",
            "40 to 500 times as slow as float32",
        ),
        can_try=True,
    ),
    _way(
        "FX362",
        "small-matrices",
        "Compute small matrices by formula",
        "A library factorises matrices of two or three rows one after the other. Cramer's rule gives their"
        " inverse, determinant and solution for all at once; Rodrigues' formula the exponential of a rotation.",
        """\
import torch

a, b, c = x.unbind(-2)  # rows of 3x3 matrices
pairs = ((b, c), (c, a), (a, b))
inverse = torch.stack([torch.linalg.cross(*pair) for pair in pairs], -1)
det = (a * inverse[:, :, 0]).sum(-1)
inverse = inverse / det[:, None, None]""",
        docs("generated/torch.linalg.inv.html", "torch.linalg.inv"),
        source(
            "https://github.com/pytorch/pytorch/issues/53364",
            "Batches of small matrices are slow to invert",
        ),
        may_break="Matrices that are nearly singular lose digits.",
        can_try=True,
    ),
    _way(
        "FX363",
        "distances",
        "Measure distances with the faster mode",
        "cdist has two ways: differences, exact, or one matrix product, which is faster for long vectors and"
        " many pairs. By default it takes the product from 25 vectors on. Name the mode.",
        """\
import torch

apart = torch.cdist(a, b, compute_mode="use_mm_for_euclid_dist")""",
        docs("generated/torch.cdist.html", "torch.cdist: compute_mode"),
        may_break="Small distances are less exact as a product.",
        can_try=True,
    ),
    _way(
        "FX364",
        "attention",
        "Attend with one call",
        "A product, a softmax and a product write the scores of all pairs to memory, and read them again, in the"
        " backward once more; in slices or head by head they are many small calls besides."
        " scaled_dot_product_attention takes queries, keys and values of all heads at once.",
        """\
import torch.nn.functional as F

# was: torch.bmm((torch.bmm(q, k.transpose(1, 2)) * scale).softmax(-1), v)
out = F.scaled_dot_product_attention(q, k, v)""",
        docs(
            "generated/torch.nn.functional.scaled_dot_product_attention.html", "scaled_dot_product_attention"
        ),
        source(
            "https://github.com/huggingface/diffusers/issues/4487",
            "diffusers: attention in slices can be much slower",
        ),
        may_break="Sums are taken in another order; attention weights are not returned.",
        conflicts=("FX306",),
    ),
    _way(
        "FX365",
        "mask",
        "Attend without a mask: causally, or in windows",
        "A mask that hides later positions, or all but a window, does not spare the work: all scores are"
        " computed, and a mask keeps flash attention from being used. Say is_causal=True; cut the sequence into"
        " its windows, as further batches, and attend in each. For other patterns flex_attention skips blocks.",
        """\
import torch.nn.functional as F

# was: F.scaled_dot_product_attention(q, k, v, attn_mask=same_window)
batch, heads, length, width = q.shape
q, k, v = (
    x.unflatten(2, (windows, -1)).transpose(1, 2).flatten(0, 1)
    for x in (q, k, v)
)
out = F.scaled_dot_product_attention(q, k, v)
out = out.unflatten(0, (batch, windows)).transpose(1, 2).flatten(2, 3)""",
        docs(
            "generated/torch.nn.functional.scaled_dot_product_attention.html", "scaled_dot_product_attention"
        ),
        docs("nn.attention.flex_attention.html", "flex_attention: block masks"),
        source(
            "https://github.com/huggingface/transformers/pull/37363",
            "transformers: windows attend by themselves",
            "4.30 to 1.88 s",
        ),
        may_break="Sums are taken in another order.",
    ),
    _way(
        "FX366",
        "pairs-apart",
        "Sort; do not compare all pairs of numbers",
        "The sum of the distances of all pairs of n numbers writes n * n of them. The numbers in order give it"
        " with n: each counts by how many stand below it, less how many above (energy scores, CRPS, Gini"
        " coefficients).",
        """\
import torch

# was: (x[:, None] - x[:, :, None]).abs().sum((1, 2))
n = x.shape[1]
rank = torch.arange(1 - n, n, 2, dtype=x.dtype)
apart = 2 * (x.sort(1).values @ rank)""",
        docs("generated/torch.sort.html", "torch.sort"),
        source(
            "https://github.com/alan-turing-institute/autocast/pull/333",
            "autocast: CRPS by ranks of the members",
        ),
    ),
    _way(
        "FX367",
        "frames",
        "Take overlapping windows as views",
        "F.unfold copies each number once for every window that it is in. Tensor.unfold gives the same windows"
        " as a view of the signal: what a product or a transform reads next is read from it.",
        """\
frames = sound.unfold(-1, window, hop)
# was: F.unfold(sound[:, None, None], (1, window), stride=(1, hop)).mT""",
        docs("generated/torch.Tensor.unfold.html", "torch.Tensor.unfold"),
        source("https://github.com/pytorch/pytorch/issues/60466", "F.unfold is slow"),
        may_break="A view shares the signal's memory: what changes one changes the other.",
        can_try=True,
    ),
    _way(
        "FX368",
        "diagonal",
        "Compute the diagonal, not the whole product",
        "diag(A @ B) and trace(A @ B) make all numbers of a product and throw away what is not on its diagonal."
        " Multiply the rows of A by the columns of B, and sum.",
        """\
diagonal = (a * b.mT).sum(-1)  # was: (a @ b).diagonal(dim1=-2, dim2=-1)""",
        docs("generated/torch.diagonal.html", "torch.diagonal"),
        source(
            "https://github.com/pymc-devs/pytensor/pull/2302",
            "PyTensor: diag(A @ B) as a sum",
            "6.9 times for 8,000 rows",
        ),
        source("https://github.com/aleximmer/Laplace/pull/121", "Laplace: inner products for the diagonal"),
    ),
    _way(
        "FX369",
        "bag",
        "Add rows up while they are looked up",
        "Rows that are looked up only to be added up are written, read again, and the same in the backward."
        " F.embedding_bag (nn.EmbeddingBag) adds them up while it reads them, where each sum has as many rows."
        " Messages along the links of a graph, weighted or not, are a product with the sparse matrix of the"
        " links: make it once, and its transpose for the backward (torch_sparse and PyG keep both).",
        """\
import torch
import torch.nn.functional as F

words = F.embedding_bag(index, table, mode="mean")
# was: F.embedding(index, table).mean(1)

places = torch.stack([targets, sources])
links = torch.sparse_coo_tensor(places, weights).to_sparse_csr()  # once
out = links @ x
# was: zeros.index_add(0, targets, weights[:, None] * x[sources])""",
        docs("generated/torch.nn.EmbeddingBag.html", "torch.nn.EmbeddingBag"),
        source("https://github.com/pytorch/pytorch/pull/1803", "EmbeddingBag: no intermediate embeddings"),
        source(
            "https://github.com/InseeFrLab/torch-fastText/pull/36", "torch-fastText: bags by EmbeddingBag"
        ),
        source(
            "https://github.com/RUCAIBox/RecBole-GNN/pull/75",
            "RecBole-GNN: links as a sparse matrix",
            "15 epochs of NGCF: 156 to 34 s",
        ),
    ),
    _way(
        "FX370",
        "search",
        "Search a sorted list; do not compare with all",
        "(x[:, None] > limits).sum(-1) compares each number with each limit, and writes all answers. A search in"
        " sorted limits takes a few comparisons for each: torch.searchsorted or bucketize. For any() of an equality"
        " call torch.isin.",
        """\
import torch

place = torch.searchsorted(limits, x)  # was: (x[:, None] > limits).sum(-1)
known = torch.isin(x, limits)  # was: (x[:, None] == limits).any(-1)""",
        docs("generated/torch.searchsorted.html", "torch.searchsorted"),
        source(
            "https://github.com/patrick-kidger/torchcubicspline/pull/6",
            "torchcubicspline: a search in place of comparisons",
        ),
        source(
            "https://github.com/Lightning-AI/torchmetrics/pull/769",
            "TorchMetrics: bins by bucketize",
            "about 10 times",
        ),
        may_break="The same numbers, if the limits are sorted.",
    ),
    _way(
        "FX371",
        "sum-of-exps",
        "Multiply exps; do not write all sums out",
        "logsumexp(a[:, :, None] + b[None]) writes the sum of each pair, its exp, and both again in the backward."
        " It is a matrix product of exps: take the largest off each row of a and column of b, multiply, and add it"
        " to the log (hidden states, CRFs, Sinkhorn).",
        """\
top_a, top_b = a.amax(-1, keepdim=True), b.amax(-2, keepdim=True)
out = ((a - top_a).exp() @ (b - top_b).exp()).log() + top_a + top_b
# was: torch.logsumexp(a[:, :, None] + b[None], dim=-2)""",
        docs("generated/torch.logsumexp.html", "torch.logsumexp"),
        source(
            "https://github.com/harvardnlp/genbmm/issues/6",
            "genbmm: a log matrix product",
            "10 times less memory",
        ),
        source("https://github.com/stan-dev/math/issues/3026", "Stan: a log matrix product"),
        may_break="Terms below the largest by more than 88 are 0: log(0) where they are all there is.",
    ),
    _way(
        "FX372",
        "bilinear",
        "Make one product of a bilinear form",
        "F.bilinear (nn.Bilinear) makes a matrix product for each of its outputs, and again in the backward. Two"
        " products do the same for all of them; they hold batch * outputs * width numbers in between.",
        """\
# was: F.bilinear(x, y, weight)
whole = weight.movedim(0, 1).flatten(1)
half = (x @ whole).unflatten(-1, weight.shape[::2])
out = (half @ y.unsqueeze(-1)).squeeze(-1)""",
        docs("generated/torch.nn.Bilinear.html", "torch.nn.Bilinear"),
        source(
            "https://github.com/explosion/spacy-experimental/pull/47",
            "spaCy: a bilinear layer by einsum",
        ),
        source("https://github.com/pytorch/pytorch/pull/23127", "Bilinear by einsum, measured"),
        can_try=True,
    ),
    _way(
        "FX373",
        "zeros",
        "Leave out the zeros of a matrix",
        "A matrix of zeros but for a few numbers, as the links of a graph, is multiplied zero by zero while it is"
        " dense. Make it sparse once, before the loop, and multiply by that: CSR or COO, whichever is faster here.",
        """\
import torch

links = adjacency.to_sparse_csr()  # once
out = torch.sparse.mm(links, x)  # was: adjacency @ x""",
        docs("sparse.html", "torch.sparse"),
        source(
            "https://github.com/pyg-team/pytorch_geometric/pull/9243",
            "PyG: a sparse matrix of links for pooling",
        ),
        source("https://github.com/tkipf/pygcn", "pygcn: links as a sparse matrix"),
        can_try=True,
    ),
    _way(
        "FX374",
        "rounds",
        "Make one call for all rounds of the loop",
        "The rounds of this loop do not need each other here: what one makes goes into none of the others. One call"
        " on the arguments of all of them, in one tensor, takes what was tried; many small calls cost their"
        " dispatch, read the weights each time, and leave cores idle.",
        """\
import torch

# was: torch.stack([layer(x) for x in rounds])
out = layer(torch.stack(rounds))""",
        docs("generated/torch.vmap.html", "torch.vmap: a function of one sample, for all"),
        source(
            "https://github.com/OpenNMT/OpenNMT-py/pull/164",
            "OpenNMT: all words in one call where none needs the one before",
            "4,000 to 10,000 words a second",
        ),
        source("https://github.com/xuhuihuang/ts-dar/pull/1", "ts-dar: by batch, not by sample", "10 times"),
        may_break="All rounds' results are held at once.",
        in_rounds=True,
    ),
    _way(
        "FX375",
        "sequence",
        "Give an RNN the whole sequence",
        "Here only the state goes from one time step to the next, and the inputs are known before. nn.LSTM, nn.GRU"
        " and nn.RNN take all time steps in one call, and multiply the inputs of all of them at once.",
        """\
import torch

rnn = torch.nn.LSTM(features, hidden, batch_first=True)
outputs, state = rnn(inputs)
# was: for t in range(steps): h, c = cell(inputs[:, t], (h, c))""",
        docs("generated/torch.nn.LSTM.html", "torch.nn.LSTM"),
        source(
            "https://github.com/OpenNMT/OpenNMT-py/pull/164",
            "OpenNMT: the decoder's LSTM in one call",
            "4,000 to 10,000 words a second",
        ),
        source(
            "https://github.com/pytorch/pytorch/issues/2741",
            "A loop over LSTMCell and nn.LSTM",
        ),
        may_break="Dropout between layers differs from one that is written into the loop.",
        in_rounds=True,
    ),
    _way(
        "FX376",
        "scaled",
        "Scale and centre; do not multiply for it",
        "A product with a diagonal matrix scales rows or columns. One with the same number in all other places"
        " also adds a multiple of their sums: H = I - 1/n, as in HSIC and CKA, subtracts means. The matrix"
        " product makes n times the operations. Multiply by the diagonal; subtract the means.",
        """\
scaled = d[:, None] * x  # was: torch.diag(d) @ x
centred = x - x.mean(0)  # was: (torch.eye(n) - 1 / n) @ x""",
        source(
            "https://github.com/py-why/causal-learn/pull/49",
            "causal-learn: kernels centred by their means, not by H K H",
        ),
        source(
            "https://github.com/google-research/google-research/tree/master/representation_similarity",
            "CKA: Gram matrices centred by their means",
        ),
    ),
)
