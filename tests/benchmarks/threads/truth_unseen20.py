"""What is true of the twentieth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN20`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, SYNC, TRANSFER, Thread

UNSEEN20 = (
    Thread(
        id="R01",
        source="facebookresearch/ConvNeXt#18 (own LayerNorm over channels in pieces; native: much faster)",
        script="unseen20/shell_patterns.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: F.layer_norm on the permuted (channels_last) tensor in place of eight elementwise passes.
        fixes=("FX314", "FX414"),
        shorter={"STEPS": "90"},
        at=(
            "shell_patterns.py: u = x.mean(1",
            "shell_patterns.py: s = (x - u).pow(2)",
            "shell_patterns.py: x = (x - u) / torch.sqrt(",
            "shell_patterns.py: return self.weight[:, None, None] * x",
            "shell_patterns.py: y = self.norm1(x)",
            "shell_patterns.py: return x + self.mlp(self.norm2(x))",
        ),
    ),
    Thread(
        id="R02",
        source="dmlc/dgl#307, snap-stanford/ogb#157 (weighed adjacency made anew; kept: merged, no figures)",
        script="unseen20/paper_links.py",
        machine="G",
        verdicts=(COMPUTE, SYNC, LAUNCH),
        # cure: the sparse matrix of the graph, which never changes, made once and kept.
        fixes=("FX326", "FX521", "FX523", "FX504", "FX334"),
        shorter={"STEPS": "90"},
        at=(
            "paper_links.py: self.known = adjacency(links",
            "paper_links.py: if self.known is None or",
            "paper_links.py: return torch.sparse_coo_tensor(",
            "paper_links.py: degree = torch.zeros(papers",
            "paper_links.py: ends = torch.cat(",
            "paper_links.py: weight = scale[ends[0]]",
            "paper_links.py: def adjacency(",
            "paper_links.py: x = x + layer(x, links)",
            "paper_links.py: scores = model(words, links)",
        ),
    ),
    Thread(
        id="R03",
        source="pytorch/torchtitan#3274, #2440 (repeat_interleave reads its size: 7,887 to 8,369 tokens/s)",
        script="unseen20/bus_lines.py",
        machine="G",
        verdicts=(SYNC, LAUNCH, HOST),
        # cure: output_size, which is known on the host.
        fixes=("FX502", "FX501", "FX503"),
        shorter={"STEPS": "220"},
        at=(
            "bus_lines.py: return torch.repeat_interleave(rows, counts, 0)",
            "bus_lines.py: sent = spread(stops",
            "bus_lines.py: of_line = spread(spread(lines",
            "bus_lines.py: def spread(",
            "bus_lines.py: stops, lines = each(stops, lines, city)",
            'bus_lines.py: loss = F.smooth_l1_loss(model(city), city["delay"])',
        ),
    ),
    Thread(
        id="R04",
        source="Lightning-AI/pytorch-lightning#1566 (batch moved anew per optimizer: 8.53 to 9.25 it/s)",
        script="unseen20/kitchen_tiles.py",
        machine="G",
        verdicts=(TRANSFER, SYNC, HOST),
        # cure: the batch goes to the GPU once, not once for each of three optimizers.
        fixes=("FX523", "FX508", "FX103", "FX104", "FX509"),
        shorter={"STEPS": "75"},
        at=(
            "kitchen_tiles.py: return {key: value.to(device)",
            "kitchen_tiles.py: batch = self.place(batch) @1",
            "kitchen_tiles.py: return sum(self.run_turn(",
            "kitchen_tiles.py: def run_turn(",
            "kitchen_tiles.py: def place(",
            "kitchen_tiles.py: loss = trainer.run_batch(",
        ),
    ),
    Thread(
        id="R05",
        source="Koratahiu/Advanced_Optimizers#5 (alpha=tensor reads it, per weight; w * proj: ~50 %; merged)",
        script="unseen20/ferry_logs.py",
        machine="G",
        verdicts=(SYNC, LAUNCH, HOST),
        # cure: g - w * proj, all on the GPU, in place of sub(alpha=), which needs a number of the host.
        fixes=("FX502", "FX501", "FX503"),
        shorter={"STEPS": "85"},
        at=(
            "ferry_logs.py: side = g.sub(w, alpha=proj)",
            "ferry_logs.py: self.straighten(p, p.grad)",
            "ferry_logs.py: def straighten(",
            "ferry_logs.py: optimizer.step()",
        ),
    ),
    Thread(
        id="R06",
        source="uber/petastorm#414 (rows taken from the head of a list; a deque: 1.25 to 0.047 s; merged)",
        script="unseen20/toll_gates.py",
        machine="G",
        verdicts=(INPUT, HOST),
        # cure: a deque and popleft(): pop(0) moves all the waiting rows.
        fixes=("FX107", "FX514", "FX504"),
        shorter={"STEPS": "160"},
        at=(
            "toll_gates.py: return self.rows.popleft() if",
            "toll_gates.py: self.rows = deque() if",
            "toll_gates.py: yield self.buffer.retrieve()",
            "toll_gates.py: for step, (columns, waits) in enumerate(loader):",
            "toll_gates.py: loader = DataLoader(",
        ),
    ),
    Thread(
        id="R07",
        source="TorchIO-project/torchio#308, neuro-ml/deep_pipe#57 (draw by a search of all voxels; merged)",
        script="unseen20/lung_patches.py",
        machine="G",
        verdicts=(INPUT, HOST),
        # cure: np.searchsorted on the running sum, which is sorted, not a comparison with all of it.
        fixes=("FX107", "FX101", "FX514", "FX111"),
        shorter={"STEPS": "110"},
        at=(
            "lung_patches.py: place = np.argmax(",
            "lung_patches.py: z, y, x = places.draw(rng)",
            "lung_patches.py: def draw(",
            "lung_patches.py: for step, (patches, masks) in enumerate(loader):",
            "lung_patches.py: loader = DataLoader(",
        ),
    ),
    Thread(
        id="R08",
        source="freewym/espresso#56 (SpecAugment stretches in time, no workers: epoch 1.1 h, then 2.38 h)",
        script="unseen20/market_calls.py",
        machine="G",
        verdicts=(INPUT, HOST),
        # cure: no stretching in time (as good without); workers would hide it as well.
        fixes=("FX107", "FX101", "FX524", "FX111"),
        shorter={"STEPS": "95"},
        at=(
            "market_calls.py: return np.stack([np.interp(source, grid, band)",
            "market_calls.py: features = stretch_in_time(features",
            "market_calls.py: def stretch_in_time(",
            "market_calls.py: for step, (features, text) in enumerate(batches(loader)):",
            "market_calls.py: loader = DataLoader(",
            "market_calls.py: yield from loader",
        ),
    ),
    Thread(
        id="R09",
        source="huggingface/transformers#42697, #40016 (experts one by one; one grouped product; merged)",
        script="unseen20/harbour_talk.py",
        machine="G",
        verdicts=(LAUNCH, HOST),
        # cure: one grouped matrix product for all experts of a layer.
        fixes=("FX510", "FX513", "FX339"),
        shorter={"STEPS": "150"},
        at=(
            "harbour_talk.py: for mine, up, down in zip(",
            "harbour_talk.py: gate, value = (mine",
            "harbour_talk.py: answers.append(",
            "harbour_talk.py: answers = self.answer(",
            "harbour_talk.py: def answer(",
            "harbour_talk.py: return x + self.experts(",
            "harbour_talk.py: scores = model(words[:, :-1])",
            "harbour_talk.py: loss.backward()",
        ),
    ),
    Thread(
        id="R10",
        source="explosion/thinc#573 (rows cut apart in a loop, or by one split: training 2 to 3 % slower)",
        script="unseen20/museum_labels.py",
        machine="G",
        verdicts=(COMPUTE,),
        not_verdicts=(LAUNCH, INPUT, SYNC),
        # the loop over 192 labels runs ahead of the GPU, which has enough to do.
        not_fixes=("FX510", "FX513", "FX339", "FX107"),
        shorter={"STEPS": "95"},
    ),
)
