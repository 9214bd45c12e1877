"""What is true of the thirty-fourth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN34`. Of the catalogue only the titles were seen when this was written;
FX532 came after the first run.
"""

from __future__ import annotations

from truth import ALLOCATOR, COMPUTE, HOST, INPUT, LAUNCH, SYNC, Thread

UNSEEN34 = (
    Thread(
        id="JJ01",
        source="TorchIO-project/torchio#1308, #1305 (whole subject copied per patch; merged)",
        script="unseen34/tundra_cubes.py",
        machine="G",
        verdicts=(INPUT, HOST),
        # cure: cut the cube out of the volumes first and copy only the cube, not the whole subject
        fixes=("FX107", "FX346"),
        shorter={"STEPS": "80"},
        at=(
            "tundra_cubes.py: subject = copy.deepcopy(subject)",
            "tundra_cubes.py: def __call__(self, subject):",
            'tundra_cubes.py: cube = CropBox(corner, self.size, keep_whole=VARIANT == "a")(subject)',
            "tundra_cubes.py: def extract(self, subject):",
            "tundra_cubes.py: cube = self.sampler.extract(subject)",
            "tundra_cubes.py: def __iter__(self):",
            "tundra_cubes.py: loader = iter(DataLoader(queue, batch_size=BATCH, num_workers=0))",
            "tundra_cubes.py: image, label = next(loader)",
        ),
    ),
    Thread(
        id="JJ02",
        source="lightly-ai/lightly#1899 (EMA weight by weight: 47.6 to 4.1 s; merged)",
        script="unseen34/pollen_mirror.py",
        machine="G",
        verdicts=(LAUNCH, HOST),
        # cure: average all weights of the teacher with one call of torch._foreach_lerp_
        fixes=("FX312", "FX510", "FX532"),
        shorter={"STEPS": "400"},
        at=(
            "pollen_mirror.py: p_ema.data = p_ema.data * m + p.data * (1.0 - m)",
            "pollen_mirror.py: for p_ema, p in zip(model_ema.parameters(), model.parameters()):",
            "pollen_mirror.py: def update_momentum(model, model_ema, m):",
            "pollen_mirror.py: update_momentum(backbone, teacher_backbone, momentum)",
            "pollen_mirror.py: update_momentum(head, teacher_head, momentum)",
        ),
    ),
    Thread(
        id="JJ03",
        source="pytorch/ignite#967 (all outputs so far joined anew per update; merged)",
        script="unseen34/harbour_tags.py",
        machine="G",
        verdicts=(HOST, SYNC),
        # cure: append the outputs of each step to a list, and join them once, when the score is computed
        fixes=("FX346",),
        shorter={"STEPS": "250"},
        at=(
            "harbour_tags.py: self.predictions = torch.cat([self.predictions, y_pred], dim=0)",
            "harbour_tags.py: self.targets = torch.cat([self.targets, y], dim=0)",
            "harbour_tags.py: def update(self, y_pred, y):",
            "harbour_tags.py: score.update(torch.sigmoid(logits.float()), y)",
        ),
    ),
    Thread(
        id="JJ04",
        source="AgileRL/AgileRL#541 (replay priorities one by one: 2.7 to 0.3 ms; merged)",
        script="unseen34/ferry_harvest.py",
        machine="G",
        verdicts=(HOST,),
        # cure: keep the trees in arrays; draw, weigh and update the whole batch at once
        fixes=("FX514", "FX532"),
        shorter={"STEPS": "500"},
        at=(
            "ferry_harvest.py: idx = [self.sums.retrieve(bound) for bound in bounds.tolist()]",
            "ferry_harvest.py: weights = np.array([self.weigh(i, beta) for i in idx])",
            "ferry_harvest.py: def retrieve(self, upperbound):",
            "ferry_harvest.py: while idx < CAPACITY:",
            "ferry_harvest.py: if self.tree[idx] <= upperbound:",
            "ferry_harvest.py: upperbound -= self.tree[idx]",
            "ferry_harvest.py: def set_leaf(self, idx, val):",
            "ferry_harvest.py: while idx > 1:",
            "ferry_harvest.py: self.tree[idx] = self.operation(self.tree[2 * idx], self.tree[2 * idx + 1])",
            "ferry_harvest.py: for i, priority in zip(idx, priorities.tolist()):",
            "ferry_harvest.py: tree.set_leaf(i, priority)",
            "ferry_harvest.py: def update_priorities(self, idx, errors):",
            "ferry_harvest.py: def weigh(self, idx, beta):",
            "ferry_harvest.py: def sample(self, batch, beta):",
            "ferry_harvest.py: replay.sample(BATCH, beta=0.4 + 0.6 * step / STEPS)",
            "ferry_harvest.py: replay.update_priorities(idx, (value - reward - 0.99 * goal).detach()",
        ),
    ),
    Thread(
        id="JJ05",
        source="huggingface/diffusers#10611, #10124 (fewer checkpoints: 1.34 to 1.63 it/s)",
        script="unseen34/fjord_reels.py",
        machine="G",
        verdicts=(COMPUTE, ALLOCATOR),
        # cure: do not checkpoint blocks whose activations fit into memory
        fixes=("FX214",),
        shorter={"STEPS": "80"},
        at=(
            "fjord_reels.py: x = checkpoint(block, x, cond, use_reentrant=False)",
            "fjord_reels.py: if self.gradient_checkpointing and self.training:",
            "fjord_reels.py: def enable_gradient_checkpointing(self):",
            "fjord_reels.py: self.gradient_checkpointing = True",
            "fjord_reels.py: model.enable_gradient_checkpointing()",
            "fjord_reels.py: def forward(self, x, t):",
            "fjord_reels.py: velocity = model(noisy, t)",
            "fjord_reels.py: loss.backward()",
        ),
    ),
    Thread(
        id="JJ06",
        source="google-research/timesfm#459, #457 (compiled model lost; kept: 1.48x; merged)",
        script="unseen34/orchard_tides.py",
        machine="G",
        verdicts=(COMPUTE, LAUNCH),
        # cure: assign the compiled forward to the module, so that it is what runs
        fixes=("FX414",),
        shorter={"STEPS": "150"},
        at=(
            "orchard_tides.py: self = torch.compile(self)",
            "orchard_tides.py: def load_checkpoint(self, state, torch_compile=True):",
            "orchard_tides.py: model.load_checkpoint(pretrained, torch_compile=True)",
            "orchard_tides.py: forecast = model(series, known)",
            "orchard_tides.py: def forward(self, series, known):",
            "orchard_tides.py: x = layer(x, self.cos, self.sin)",
            "orchard_tides.py: def forward(self, x, cos, sin):",
            "orchard_tides.py: y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)",
            "orchard_tides.py: return (y * self.scale).to(x.dtype)",
            "orchard_tides.py: def rotate(x, cos, sin):",
            "orchard_tides.py: torch.cat([first * cos - second * sin, second * cos + first * sin], -1)",
        ),
    ),
    Thread(
        id="JJ07",
        source="huggingface/transformers#44782, #44737, #1529 (positions on CPU; merged)",
        script="unseen34/quarry_scribes.py",
        machine="G",
        verdicts=(SYNC, HOST),
        # cure: make the ranges, and so the table of positions, on the device
        fixes=("FX524", "FX521", "FX523"),
        shorter={"STEPS": "150"},
        at=(
            "quarry_scribes.py: pos = pos.to(x.device)",
            "quarry_scribes.py: pos = self.relative_positional_encoding(qlen, qlen, bsz, place)",
            "quarry_scribes.py: def relative_positional_encoding(self, qlen, klen, bsz, place=None):",
            "quarry_scribes.py: freq_seq = torch.arange(0, DIM, 2.0, device=place)",
            "quarry_scribes.py: pos_seq = torch.arange(klen, -qlen, -1.0, device=place)",
            "quarry_scribes.py: def positional_embedding(pos_seq, inv_freq, bsz):",
            "quarry_scribes.py: return self.positional_embedding(pos_seq, inv_freq, bsz)",
            "quarry_scribes.py: return pos_emb[:, None, :].expand(-1, bsz, -1)",
            "quarry_scribes.py: pos_emb = torch.cat([torch.sin(sinusoid), torch.cos(sinusoid)], dim=-1)",
            "quarry_scribes.py: def forward(self, ids):",
            "quarry_scribes.py: logits = model(ids)",
        ),
    ),
    Thread(
        id="JJ08",
        source="NVIDIA/cloudai#947 (scalars logged in every step: 0 %, +0.7 %, +0.3 %)",
        script="unseen34/lantern_press.py",
        machine="G",
        # trap: loss and norm are read and logged in each step, which costs next to nothing here
        not_fixes=("FX501", "FX503", "FX504"),
        not_verdicts=(SYNC, HOST),
        shorter={"STEPS": "150"},
    ),
)
