"""What is true of the twenty-fifth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN25`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import ALLOCATOR, COMPUTE, HOST, INPUT, LAUNCH, SYNC, TRANSFER, Thread

UNSEEN25 = (
    Thread(
        id="AA01",
        source="pytorch/executorch#14740, pytorch/pytorch#61691 (QAT by FakeQuantize: 506 ms, fused"
        " 264; ~4x; merged)",
        script="unseen25/pear_sorter.py",
        machine="G",
        verdicts=(SYNC, LAUNCH),
        # cure: observer and fake quantisation as one operator, which reads its switches on the device.
        fixes=("FX502", "FX510"),
        shorter={"STEPS": "320"},
        at=(
            "pear_sorter.py: def make_rounder(signed):",
            "pear_sorter.py: kind = FakeQuantize if",
            "pear_sorter.py: return kind(",
            "pear_sorter.py: self.weight_rounder = make_rounder(signed=True)",
            "pear_sorter.py: self.output_rounder = make_rounder(signed=False)",
            "pear_sorter.py: def forward(self, x): @1",
            "pear_sorter.py: weight = self.weight_rounder(self.weight)",
            "pear_sorter.py: return self.output_rounder(F.linear(x, weight, self.bias))",
            "pear_sorter.py: return x + self.down(F.relu(self.up(self.norm(x))))",
            "pear_sorter.py: loss = F.cross_entropy(model(x), y)",
        ),
    ),
    Thread(
        id="AA02",
        source="facebookresearch/fairchem#402 (Wigner matrices by matrix_exp: significantly slower"
        " than in closed form; reverted, merged; no figures)",
        script="unseen25/shell_currents.py",
        machine="G",
        verdicts=(COMPUTE, LAUNCH, SYNC),
        # cure: rotations about one axis by cosine and sine, the other axis by a matrix computed once.
        fixes=(),
        no_entry=True,
        shorter={"STEPS": "280"},
        at=(
            "shell_currents.py: def forward(self, alpha, beta, gamma):",
            "shell_currents.py: last = torch.matrix_exp(b * self.about_x)",
            "shell_currents.py: return torch.matrix_exp(a * self.about_y)",
            "shell_currents.py: def frames(self, angles):",
            "shell_currents.py: frames[:, low:high, low:high] = rotation(*angles)",
            "shell_currents.py: for rotation in self.rotations:",
            "shell_currents.py: frames, x = self.frames(angles),",
            "shell_currents.py: loss = (model(weights, angles, source, target) - drift)",
        ),
    ),
    Thread(
        id="AA03",
        source="pytorch/pytorch#75599, neuralmagic/sparseml#828 (kthvalue of one long vector: 0.68 s,"
        " sort 0.03; pruning 3 h longer)",
        script="unseen25/tea_blends.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: all sizes sorted, which the whole GPU does; kthvalue gives one vector to one block.
        fixes=("FX344",),
        shorter={"STEPS": "230"},
        at=(
            "tea_blends.py: def kth_smallest(values, k):",
            "tea_blends.py: return torch.kthvalue(values, k).values",
            "tea_blends.py: def thin(self, step):",
            "tea_blends.py: limit = kth_smallest(sizes, drop)",
            "tea_blends.py: thinner.thin(step + 1)",
        ),
    ),
    Thread(
        id="AA04",
        source="Lightning-AI/litgpt#770, #593, #461 (LoRA's zero_pad makes its index from a list:"
        " 830 to 126 us each; merged)",
        script="unseen25/letter_drafts.py",
        machine="G",
        verdicts=(SYNC, LAUNCH, TRANSFER),
        # cure: the index is a buffer on the device, made once.
        fixes=("FX521", "FX523"),
        shorter={"STEPS": "500"},
        at=(
            "letter_drafts.py: def spread(self, update):",
            "letter_drafts.py: where = torch.tensor(self.columns, device=update.device)",
            "letter_drafts.py: return self.linear(x) + self.scale * self.spread(",
            "letter_drafts.py: qkv = self.qkv(self.norm1(x))",
            "letter_drafts.py: scores = model(tokens[:, :-1])",
        ),
    ),
    Thread(
        id="AA05",
        source="dingo-gw/dingo#55 (transforms turn float32 into float64 and back: really slow; an epoch"
        " takes 12 minutes without, GPU use much better; merged)",
        script="unseen25/cave_echoes.py",
        machine="G",
        verdicts=(INPUT,),
        # cure: the transforms of the dataset stay in float32 and complex64.
        fixes=("FX107", "FX322"),
        shorter={"STEPS": "130"},
        at=(
            "cave_echoes.py: REAL = np.float64 if",
            "cave_echoes.py: COMPLEX = np.result_type(REAL, np.complex64)",
            "cave_echoes.py: self.frequencies = frequencies.astype(REAL) @1",
            "cave_echoes.py: self.frequencies = frequencies.astype(REAL) @2",
            "cave_echoes.py: delays = rng.uniform(-0.05, 0.05, MICROPHONES).astype(REAL)",
            "cave_echoes.py: angle = REAL(-2 * np.pi) * delays[:, None] * self.frequencies",
            "cave_echoes.py: shift = np.empty(angle.shape, dtype=COMPLEX)",
            "cave_echoes.py: shift.real, shift.imag = np.cos(angle), np.sin(angle)",
            'cave_echoes.py: sample["waves"] = sample["waves"] * shift',
            "cave_echoes.py: damping = np.exp(REAL(",
            'cave_echoes.py: sample["waves"] = sample["waves"] * (damping /',
            "cave_echoes.py: self.level = (0.02 + 1.0 / (1.0 + frequencies)).astype(REAL)",
            'cave_echoes.py: waves = sample["waves"] / self.level',
            "cave_echoes.py: power = np.log1p(waves.real**2 + waves.imag**2)",
            "cave_echoes.py: phase = np.arctan2(waves.imag, waves.real)",
            "cave_echoes.py: return np.concatenate([power, phase]).astype(np.float32)",
            "cave_echoes.py: def __call__(self, sample, rng): @1",
            "cave_echoes.py: def __call__(self, sample, rng): @2",
            "cave_echoes.py: def __call__(self, sample, rng): @3",
            "cave_echoes.py: def __call__(self, sample, rng): @4",
            "cave_echoes.py: def __getitem__(self, index):",
            "cave_echoes.py: for step in self.steps:",
            "cave_echoes.py: sample = step(sample, rng)",
            "cave_echoes.py: loader = DataLoader(",
            "cave_echoes.py: for step, (waves, depths) in enumerate(loader):",
        ),
    ),
    Thread(
        id="AA06",
        source="pytorch/pytorch#105940, UKGovernmentBEIS/inspect_ai#2275 (inspect.stack() for a caller's"
        " name: 31.8 to 2.3 s per 1000, seen in training jobs; landed)",
        script="unseen25/lamp_posts.py",
        machine="G",
        verdicts=(HOST, LAUNCH),
        # cure: only the one frame is looked at (sys._getframe), not the whole stack with its source lines.
        fixes=("FX504", "FX514"),
        shorter={"STEPS": "300"},
        at=(
            "lamp_posts.py: def caller_name():",
            "lamp_posts.py: return inspect.stack()[2].function",
            "lamp_posts.py: def note(self, x):",
            "lamp_posts.py: self.handed_on[caller_name()] += x.numel()",
            "lamp_posts.py: return self.ledger.note(y)",
            "lamp_posts.py: return self.ledger.note(self.across2(",
            "lamp_posts.py: return self.ledger.note(x)",
            "lamp_posts.py: x = self.ledger.note(self.embed(x))",
            "lamp_posts.py: guess = self.model(past)",
            "lamp_posts.py: loss = trainer.train_step(past[rows], future[rows])",
        ),
    ),
    Thread(
        id="AA07",
        source="SeanNaren/deepspeech.pytorch#162, #143 (bucketing reads each recording for its length,"
        " 2 h; known beforehand: fixed in #163), huggingface/finetrainers#206",
        script="unseen25/bird_calls.py",
        machine="G",
        verdicts=(INPUT, HOST),
        # cure: the sampler takes the lengths that are known, and unpacks no recording in the main process.
        fixes=("FX107", "FX326"),
        shorter={"STEPS": "220"},
        at=(
            "bird_calls.py: class LengthSampler(Sampler):",
            "bird_calls.py: def length_of(self, index):",
            "bird_calls.py: wave, _ = self.calls[index]",
            "bird_calls.py: return len(wave)",
            "bird_calls.py: def __iter__(self):",
            "bird_calls.py: for index in rng.permutation(len(self.calls)):",
            "bird_calls.py: bucket = waiting[np.searchsorted(self.edges, self.length_of(index))]",
            "bird_calls.py: sampler = LengthSampler(calls, BATCH, STEPS)",
            "bird_calls.py: loader = DataLoader(",
            "bird_calls.py: for step, (waves, birds) in enumerate(loader):",
        ),
    ),
    Thread(
        id="AA08",
        source="ludwig-ai/ludwig#3607 (torch.cuda's memory counters logged in each step: light, training"
        " time not affected; merged)",
        script="unseen25/river_gauges.py",
        machine="G",
        verdicts=(COMPUTE,),
        # trap: variant b logs no memory counters; the same time per step.
        not_fixes=("FX503", "FX504", "FX514", "FX519"),
        not_verdicts=(HOST, SYNC, ALLOCATOR),
        shorter={"STEPS": "200"},
    ),
)
