"""What is true of the thirtieth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN30`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, Thread

UNSEEN30 = (
    Thread(
        id="FF01",
        source="ostris/ai-toolkit#945 (LoKr: Kronecker product made in whole: 3 to 1 s/it; merged)",
        script="unseen30/tide_adapter.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # cure: x goes through the two small factors; their Kronecker product is never made.
        fixes=("FX352",),
        shorter={"STEPS": "140"},
        at=(
            "tide_adapter.py: return torch.kron(self.left, self.right)",
            "tide_adapter.py: def delta_weight(self)",
            "tide_adapter.py: return out + F.linear(x, self.delta_weight())",
            "tide_adapter.py: x = x + F.gelu(block(x))",
            "tide_adapter.py: loss = F.mse_loss(model(x), y)",
        ),
    ),
    Thread(
        id="FF02",
        source="lucidrains/performer-pytorch#30, #6 (features drawn by QR per forward: 5-6x; merged)",
        script="unseen30/reef_tokens.py",
        machine="C2",
        verdicts=(COMPUTE, LAUNCH, HOST),
        # cure: the random directions are drawn anew after 1,000 passes, not in each one.
        fixes=("FX504",),
        shorter={"STEPS": "170"},
        at=(
            "reef_tokens.py: q, _ = torch.linalg.qr(block)",
            "reef_tokens.py: def orthogonal_chunk(cols)",
            "reef_tokens.py: blocks = [orthogonal_chunk(cols)",
            "reef_tokens.py: blocks.append(orthogonal_chunk(cols)[:rest])",
            "reef_tokens.py: def gaussian_orthogonal_matrix(rows, cols)",
            "reef_tokens.py: self.projection = gaussian_orthogonal_matrix(self.features, self.dim)",
            "reef_tokens.py: if self.calls % REDRAW_EVERY == 0",
            "reef_tokens.py: def current_projection(self)",
            "reef_tokens.py: projection = self.current_projection()",
            "reef_tokens.py: REDRAW_EVERY = 1 if VARIANT",
            "reef_tokens.py: loss = F.cross_entropy(model(log), labels[step])",
        ),
    ),
    Thread(
        id="FF03",
        source="alan-turing-institute/autocast#333, nci/scores#928 (CRPS by all pairs: 150x; merged)",
        script="unseen30/surge_members.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # cure: the members are sorted, and weighed by their ranks, in place of all pairs' differences.
        no_entry=True,
        shorter={"STEPS": "140"},
        at=(
            "surge_members.py: gaps = (members.unsqueeze(1) - members.unsqueeze(2)).abs()",
            "surge_members.py: return gaps.sum(dim=(1, 2))",
            "surge_members.py: def spread_all(members)",
            "surge_members.py: spread = spread_all(members)",
            "surge_members.py: loss = score(members, levels[picks[step]])",
        ),
    ),
    Thread(
        id="FF04",
        source="pytorch/pytorch#122191 (std_mean on the CPU: 0.95 s; mean and std apart: 0.18 s)",
        script="unseen30/rock_cores.py",
        machine="C2",
        verdicts=(INPUT, HOST),
        # cure: mean and std by a call each, not both by std_mean.
        fixes=("FX107",),
        shorter={"STEPS": "250"},
        at=(
            "rock_cores.py: std, mean = torch.std_mean(volume)",
            "rock_cores.py: def __call__(self, volume)",
            "rock_cores.py: class ZScore",
            "rock_cores.py: volume = transform(volume)",
            "rock_cores.py: def __getitem__(self, index)",
            "rock_cores.py: dataset = CoreDataset(",
            "rock_cores.py: loader = DataLoader(",
            "rock_cores.py: for step, (volumes, targets) in enumerate(loader)",
        ),
    ),
    Thread(
        id="FF05",
        source="voxelmorph/voxelmorph#558 (NCC by cubes of ones: 1,220 ms; running sums: 57 ms; open)",
        script="unseen30/wood_grain.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # cure: the sum over a cube by running sums along each axis (cumsum), not by a convolution.
        fixes=("FX359",),
        shorter={"STEPS": "70"},
        at=(
            "wood_grain.py: return F.conv3d(volume, self.cube, padding=half)",
            "wood_grain.py: def window_sum(self, volume)",
            "wood_grain.py: fixed_sum = self.window_sum(fixed)",
            "wood_grain.py: moved_sum = self.window_sum(moved)",
            "wood_grain.py: fixed_square = self.window_sum(",
            "wood_grain.py: moved_square = self.window_sum(",
            "wood_grain.py: product = self.window_sum(",
            "wood_grain.py: loss = similarity(",
        ),
    ),
    Thread(
        id="FF06",
        source="flairNLP/flair#2975 (torch.cat for each token: training 10,643 to 8,248 ms; merged)",
        script="unseen30/recipe_tagger.py",
        machine="C2",
        verdicts=(LAUNCH, HOST),
        # cure: where a token has one embedding, it is returned as it is, without torch.cat.
        fixes=("FX510", "FX339"),
        shorter={"STEPS": "480"},
        at=(
            "recipe_tagger.py: return torch.cat(vectors, dim=0)",
            "recipe_tagger.py: def get_embedding(self, names)",
            "recipe_tagger.py: vectors.extend(token.get_embedding(names)",
            "recipe_tagger.py: def sentence_tensor(self, sentences)",
            "recipe_tagger.py: x = self.sentence_tensor(sentences)",
            "recipe_tagger.py: loss = tagger(chosen)",
        ),
    ),
    Thread(
        id="FF07",
        source="pytorch/pytorch#60466 (F.unfold, or views: 2x to 8x), meta-pytorch/opacus#256 (merged)",
        script="unseen30/engine_frames.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # cure: the frames are views by Tensor.unfold, not copies by F.unfold.
        no_entry=True,
        shorter={"STEPS": "600"},
        at=(
            "engine_frames.py: columns = F.unfold(",
            "engine_frames.py: def cut_frames(sound, window, hop)",
            "engine_frames.py: frames = cut_frames(sound, WINDOW, HOP)",
            "engine_frames.py: x = self.bank(self.emphasis(sound))",
            "engine_frames.py: scores = model(sounds[picks[step]])",
        ),
    ),
    Thread(
        id="FF08",
        source="pyro-ppl/pyro#1958 (HMM step by step: 72.9 s; links joined in pairs: 6.6 s; merged)",
        script="unseen30/bird_routes.py",
        machine="C2",
        verdicts=(LAUNCH, HOST),
        # cure: neighbouring links of the chain are multiplied in pairs, all at once, until one is left.
        fixes=("FX510", "FX513"),
        shorter={"STEPS": "230"},
        at=(
            "bird_routes.py: alpha = torch.logsumexp(alpha.unsqueeze(-1) + change, dim=-2)",
            "bird_routes.py: for day in range(1, seen.shape[1])",
            "bird_routes.py: def step_by_step(self, start, change, seen)",
            "bird_routes.py: return self.step_by_step(start, change, seen)",
            "bird_routes.py: loss = -chain(signals(",
        ),
    ),
    Thread(
        id="FF09",
        source="pytorch/pytorch#1362 (NCE noise by multinomial, the culprit; alias tables: faster)",
        script="unseen30/parcel_words.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # cure: draws from two tables made once (alias method), not by multinomial over all articles.
        fixes=("FX338",),
        shorter={"STEPS": "1400"},
        at=(
            "parcel_words.py: return torch.multinomial(self.weights, count, replacement=True)",
            "parcel_words.py: def draw(self, shape)",
            "parcel_words.py: noise = sampler.draw((BATCH, NOISE))",
        ),
    ),
    Thread(
        id="FF10",
        source="kornia/kornia#2158, #1459 (samplers of augmentations made anew: 0.84, kept: 0.83 ms)",
        script="unseen30/seed_sorter.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # the suspected cure: the distributions are made once (variant b): below 1 % of a step.
        not_fixes=("FX517", "FX326", "FX530", "FX521", "FX107", "FX514"),
        not_verdicts=(INPUT, HOST),
        shorter={"STEPS": "150"},
    ),
)
