"""What is true of the thirty-third set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN33`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, Thread

UNSEEN33 = (
    Thread(
        id="II01",
        source="pytorch/pytorch#154128, #189519 (matmul copies matrices per sample, 40 GB; by bmm: none)",
        script="unseen33/tidal_stations.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # cure: bring the dimension that both share to the front, and multiply with one bmm, without copies
        fixes=("FX355",),
        shorter={"STEPS": "450"},
        at=(
            "tidal_stations.py: out = torch.matmul(x.unsqueeze(2), self.weight).squeeze(2)",
            "tidal_stations.py: h = h + F.gelu(layer(h))",
            "tidal_stations.py: forecast = model(past.to(device))",
            "tidal_stations.py: def forward(self, x):",
            "tidal_stations.py: loss.backward()",
        ),
    ),
    Thread(
        id="II02",
        source="qiboteam/qibo#1710 (gates of a circuit by einsum; unfolded, by a matrix product: 3x to 4x)",
        script="unseen33/frost_lattice.py",
        machine="C2",
        verdicts=(COMPUTE, LAUNCH),
        # cure: move the gate's axes to the front, unfold the state to a matrix, and multiply by the gate
        fixes=("FX351",),
        shorter={"STEPS": "650"},
        at=(
            "frost_lattice.py: return torch.einsum(rule, state, gate.reshape([2] * (2 * k)))",
            "frost_lattice.py: state = apply_gate(state, gates[spin], [spin])",
            "frost_lattice.py: state = apply_gate(state, pairs[spin], [spin, spin + 1])",
            "frost_lattice.py: def apply_gate(state, gate, spins):",
            "frost_lattice.py: def forward(self, field):",
            "frost_lattice.py: loss = model(field.to(device))",
            "frost_lattice.py: loss.backward()",
        ),
    ),
    Thread(
        id="II03",
        source="bayesiains/nflows#44 (elements inside picked by a mask and written back; multiplied: ~25 %)",
        script="unseen33/reef_current.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # cure: compute the spline for all elements and multiply by the mask; compute the bin sizes once
        no_entry=True,
        shorter={"STEPS": "650"},
        at=(
            "reef_current.py: y[inside], logdet[inside] = quadratic_spline(",
            "reef_current.py: x[inside], raw_w[inside, :], raw_h[inside, :], raw_d[inside, :]",
            "reef_current.py: edges[..., 0] = -BOUND",
            "reef_current.py: edges[..., -1] = BOUND",
            "reef_current.py: return edges, edges[..., 1:] - edges[..., :-1]",
            "reef_current.py: def spline_with_tails(x, raw_w, raw_h, raw_d):",
            "reef_current.py: def knots(raw):",
            "reef_current.py: edges_x, widths = knots(raw_w)",
            "reef_current.py: edges_y, heights = knots(raw_h)",
            "reef_current.py: b, logdet = spline_with_tails(b,",
            "reef_current.py: z, logdet = layer(z)",
            "reef_current.py: loss.backward()",
        ),
    ),
    Thread(
        id="II04",
        source="alexshtf/torchcurves#57 (points and gradients of B-splines: 1.3x to 1.9x on a CPU; merged)",
        script="unseen33/ember_curves.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # cure: one flat index with index_select, the sum as a matmul, the gradient by index_add_ of rows
        fixes=("FX360", "FX327", "FX351"),
        shorter={"STEPS": "1000"},
        at=(
            "ember_curves.py: d_control.scatter_add_(1, target, values)",
            "ember_curves.py: values = update.permute(1, 0, 2, 3).reshape(COLUMNS, -1, DIM)",
            "ember_curves.py: target = index.permute(1, 0, 2).reshape(COLUMNS, -1, 1).expand(-1, -1, DIM)",
            "ember_curves.py: near = control[which, index, :]",
            "ember_curves.py: out = (weights.unsqueeze(-1) * near).sum(dim=2)",
            "ember_curves.py: def forward(ctx, u, control, knots):",
            "ember_curves.py: def backward(ctx, grad):",
            "ember_curves.py: curves = CurveFunction.apply(u, self.control, self.knots)",
            "ember_curves.py: loss.backward()",
        ),
    ),
    Thread(
        id="II05",
        source="neuro-galaxy/torch_brain#324 (spikes counted by np.add.at: 117 us; by bincount: 18.2 us)",
        script="unseen33/night_cortex.py",
        machine="C2",
        verdicts=(INPUT, HOST),
        # cure: count with np.bincount over one flat index
        fixes=("FX107",),
        shorter={"STEPS": "800"},
        at=(
            "night_cortex.py: np.add.at(counts, (bin_index, units), 1)",
            "night_cortex.py: def bin_spikes(times, units, start, num_units, bin_size):",
            "night_cortex.py: counts = bin_spikes(self.times[first:last], self.units[first:last],",
            "night_cortex.py: def __getitem__(self, i):",
            "night_cortex.py: for counts, target in loader:",
        ),
    ),
    Thread(
        id="II06",
        source="kornia/kornia#4525, #4729, #4728 (dilation by a tensor of all windows; running max: 4-13x)",
        script="unseen33/coral_outlines.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # cure: keep a running maximum over the shifted views; do not write all windows out
        no_entry=True,
        shorter={"STEPS": "330"},
        at=(
            "coral_outlines.py: windows = padded.unfold(2, k, 1).unfold(3, k, 1)",
            "coral_outlines.py: out, _ = torch.max(windows + offsets, 4)",
            "coral_outlines.py: out, _ = torch.max(out, 4)",
            "coral_outlines.py: def grey_dilate(image, offsets):",
            "coral_outlines.py: return -grey_dilate(-image, offsets)",
            "coral_outlines.py: rim = grey_dilate(mask, offsets) - grey_erode(mask, offsets)",
            "coral_outlines.py: def outline_weights(mask, offsets):",
            "coral_outlines.py: weight = outline_weights(mask, offsets)",
        ),
    ),
    Thread(
        id="II07",
        source="pytorch/vision#6757 (pictures equalised channel by channel; at once: 979 to 336 us; merged)",
        script="unseen33/pollen_slides.py",
        machine="C2",
        verdicts=(LAUNCH, INPUT, HOST),
        # cure: histograms, running sums and look-ups of all channels of all pictures with one call each
        fixes=("FX510", "FX107"),
        shorter={"STEPS": "500"},
        at=(
            "pollen_slides.py: done = [torch.stack([scale_channel(image[c])",
            "pollen_slides.py: return torch.stack(done)",
            "pollen_slides.py: def scale_channel(channel):",
            "pollen_slides.py: hist = torch.bincount(channel.reshape(-1), minlength=256)",
            "pollen_slides.py: nonzero = hist[hist != 0]",
            "pollen_slides.py: if step == 0:",
            "pollen_slides.py: return lut[channel.to(torch.int64)].to(torch.uint8)",
            "pollen_slides.py: def equalize(images):",
            "pollen_slides.py: images = equalize(slides[pick])",
        ),
    ),
    Thread(
        id="II08",
        source="X-LANCE/text2sql-lgesql#17 (batches made of lists in the loop: only 2 %, says the author)",
        script="unseen33/query_ferns.py",
        machine="C2",
        # trap: making the batches in the loop is suspected; made beforehand, the step takes as long
        not_fixes=("FX101", "FX107", "FX111", "FX114", "FX514", "FX520"),
        not_verdicts=(INPUT, HOST),
        shorter={"STEPS": "320"},
    ),
)
