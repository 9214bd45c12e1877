"""What is true of the thirty-second set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN32`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, SYNC, Thread

UNSEEN32 = (
    Thread(
        id="HH01",
        source="huggingface/pytorch-image-models#1836, #1835 (paths computed, then dropped: 8.8 to 5.4 s)",
        script="unseen32/lantern_moths.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: draw the samples that keep the branch first, and compute the branch for these rows only
        fixes=("FX330",),
        shorter={"STEPS": "112"},
        at=(
            "lantern_moths.py: return x + inner(x) * gate",
            "lantern_moths.py: gate = torch.zeros(b, 1, 1",
            "lantern_moths.py: def add_branch(self, x, inner):",
            "lantern_moths.py: x = self.add_branch(x, self.look)",
            "lantern_moths.py: return self.add_branch(x, self.think)",
            "lantern_moths.py: def look(self, x):",
            "lantern_moths.py: q, k, v = self.qkv(self.norm1(x))",
            "lantern_moths.py: out = F.scaled_dot_product_attention(q, k, v)",
            "lantern_moths.py: return self.proj(out.transpose(1, 2)",
            "lantern_moths.py: def think(self, x):",
            "lantern_moths.py: return self.fc2(F.gelu(self.fc1(self.norm2(x))))",
            "lantern_moths.py: x = block(x)",
            "lantern_moths.py: logits = net(images)",
        ),
    ),
    Thread(
        id="HH02",
        source="py-why/causal-learn#49 (trace of K K and H K H by products; by sums: ~10x; merged)",
        script="unseen32/orchard_fair.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: the trace of K K is the sum of K * K.T, and H K H is K less its means: no n x n products
        # (TF32, FX301, would make the same products cheaper; the thread does away with them)
        fixes=("FX368",),
        shorter={"STEPS": "125"},
        at=(
            "orchard_fair.py: return H.mm(K.mm(H))",
            "orchard_fair.py: return torch.trace(K.mm(K))",
            "orchard_fair.py: def center_kernel(K):",
            "orchard_fair.py: def kernel_power(K):",
            "orchard_fair.py: Kx = center_kernel(gaussian_kernel(code))",
            "orchard_fair.py: Ky = center_kernel(gaussian_kernel(region))",
            "orchard_fair.py: var = 2 * kernel_power(Kx) * kernel_power(Ky)",
            "orchard_fair.py: def region_statistic(code, region):",
            "orchard_fair.py: loss = loss + WEIGHT * region_statistic(code, region)",
        ),
    ),
    Thread(
        id="HH03",
        source="tslearn-team/tslearn#682, #534 (time warping cell by cell; by diagonals: merged)",
        script="unseen32/tide_strokes.py",
        machine="G",
        verdicts=(LAUNCH, HOST),
        # cure: all cells of an anti-diagonal at once: 2n - 1 rounds on vectors, not n * n on single cells
        fixes=("FX510",),
        shorter={"STEPS": "125"},
        at=(
            "tide_strokes.py: cell = table[i][j] + torch.minimum(",
            "tide_strokes.py: cell = table[i][j] + line[j - 1]",
            "tide_strokes.py: cell = table[i][j] + above[j]",
            "tide_strokes.py: table = [row.unbind(1) for row in cost.unbind(1)]",
            "tide_strokes.py: def warp_by_cells(cost):",
            "tide_strokes.py: total = warp_by_cells(cost) if VARIANT",
            "tide_strokes.py: def warp_loss(drawn, target):",
            "tide_strokes.py: loss = warp_loss(net(",
        ),
    ),
    Thread(
        id="HH04",
        source="RUCAIBox/RecBole-GNN#75 (messages per edge: 155.8 s; sparse product: 33.9 s; merged)",
        script="unseen32/harbor_shelf.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: multiply by the sparse matrix, which adds neighbours up with no message written per edge
        fixes=("FX369",),
        shorter={"STEPS": "375"},
        at=(
            "harbor_shelf.py: message = graph.weight.view(-1, 1) * x.index_select(0, graph.source)",
            "harbor_shelf.py: index = graph.target.view(-1, 1).expand_as(message)",
            "harbor_shelf.py: return torch.zeros_like(x).scatter_add_(0, index, message)",
            "harbor_shelf.py: def spread(x, graph):",
            "harbor_shelf.py: near = spread(x, graph)",
            "harbor_shelf.py: x = F.normalize(F.leaky_relu(layer(x, graph)",
            "harbor_shelf.py: final = net(graph)",
        ),
    ),
    Thread(
        id="HH05",
        source="QuantumLab-ZY/HamGNN#78 (elements read edge by edge for a ratio: 1.5x to 6x; merged)",
        script="unseen32/quartz_orbitals.py",
        machine="G",
        verdicts=(SYNC, HOST, LAUNCH),
        # cure: look the sizes of the bases up in a table on the device, and sum there; no item() per edge
        fixes=("FX502", "FX524"),
        shorter={"STEPS": "250"},
        at=(
            "quartz_orbitals.py: used += ORBITALS[z[atom].item()] ** 2",
            "quartz_orbitals.py: first, second = z[sender[edge]].item(), z[receiver[edge]].item()",
            "quartz_orbitals.py: used += ORBITALS[first] * ORBITALS[second]",
            "quartz_orbitals.py: def basis_share(z, sender, receiver, sizes):",
            "quartz_orbitals.py: loss = error / basis_share(z, sender, receiver, sizes)",
            "quartz_orbitals.py: count = receiver.max().item() + 1 if VARIANT",
            "quartz_orbitals.py: feats = mixing(feats, radial, angular, sender, receiver)",
        ),
    ),
    Thread(
        id="HH06",
        source="facebookresearch/fairseq#3796, microsoft/fastseq#18 (n-grams in Python: 194.8 to 12.9 s)",
        script="unseen32/ballad_writer.py",
        machine="G",
        verdicts=(HOST, SYNC, LAUNCH),
        # cure: compare all n-grams of all rows on the device with unfold, and bar the words with one scatter
        fixes=("FX524", "FX502", "FX510"),
        shorter={"STEPS": "100"},
        at=(
            "ballad_writer.py: lprobs[row][torch.tensor(barred[row], dtype=torch.int64)] =",
            "ballad_writer.py: sung = tokens.cpu().tolist()",
            "ballad_writer.py: if ending == sung[row][i : i + NGRAM - 1]:",
            "ballad_writer.py: barred[row].append(",
            "ballad_writer.py: def bar_repeats(tokens, lprobs):",
            "ballad_writer.py: lprobs = bar_repeats(tokens, F.log_softmax(",
            "ballad_writer.py: def sing(writer, opening):",
            "ballad_writer.py: tokens = sing(writer, opening)",
        ),
    ),
    Thread(
        id="HH07",
        source="kaanaksit/odak#101 (fields shifted around each FFT to no effect; left out: merged)",
        script="unseen32/prism_plates.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: leave the shifts in space out, as the second undoes what the first does; no title says it
        no_entry=True,
        shorter={"STEPS": "325"},
        at=(
            "prism_plates.py: spectrum = torch.fft.fftshift(torch.fft.fft2(torch.fft.fftshift(padded)))",
            "prism_plates.py: result = torch.fft.ifftshift(torch.fft.ifft2(",
            "prism_plates.py: def carry(self, field, colour):",
            "prism_plates.py: shown = paths[depth].carry(",
        ),
    ),
    Thread(
        id="HH08",
        source="huggingface/diffusers#9625 (texts projected anew per step: gain insignificant)",
        script="unseen32/fresco_tuner.py",
        machine="G",
        # trap: the texts' projection is the same in all strokes, but costs next to nothing beside the network
        not_fixes=("FX326",),
        not_verdicts=(INPUT, HOST),
        shorter={"STEPS": "50"},
    ),
)
