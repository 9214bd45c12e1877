"""What is true of the twenty-eighth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN28`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, Thread

UNSEEN28 = (
    Thread(
        id="DD01",
        source="pytorch/pytorch#92701, pymc-devs/pytensor#820 (a default device passes every call through "
        "a mode: a BiLSTM of 10,000 selects slower, 0.036 to 0.162 ms a call; 8 to 11 ms without one)",
        script="unseen28/river_levels.py",
        machine="C2",
        verdicts=(LAUNCH, HOST),
        # cure: no default device; the device is named where tensors are made.
        fixes=(),
        no_entry=True,
        shorter={"STEPS": "900"},
        at=(
            "river_levels.py: torch.set_default_device(DEVICE)",
            "river_levels.py: def set_up():",
            "river_levels.py: set_up() @2",
            "river_levels.py: features = smoother(readings)",
            "river_levels.py: now = readings[hour]",
            "river_levels.py: state.lerp_(now, 1.0 - decay)",
            "river_levels.py: torch.maximum(highest, now, out=highest)",
        ),
    ),
    Thread(
        id="DD02",
        source="pytorch/pytorch#149126, #8958, huggingface/sentence-transformers#3261 (a sampler loops over "
        "a tensor, element by element; over a list: 2.5-2.7 to 1.8-1.9 s per million; merged)",
        script="unseen28/postcards.py",
        machine="C2",
        verdicts=(INPUT, HOST),
        # cure: the permutation is made a list of numbers with one call (tolist) before the loop.
        fixes=("FX107", "FX339"),
        shorter={"STEPS": "400"},
        at=(
            "postcards.py: for place in self.order():",
            "postcards.py: yield self.picked[place]",
            "postcards.py: def __iter__(self):",
            "postcards.py: def order(self):",
            "postcards.py: places = torch.randperm(",
            "postcards.py: return places if VARIANT",
            "postcards.py: sampler = ReadableSampler(picked",
            "postcards.py: class ReadableSampler(Sampler):",
            "postcards.py: features, country = next(batches)",
        ),
    ),
    Thread(
        id="DD03",
        source="pyro-ppl/pyro#1176, #791 (the bound computed particle by particle, or for all at once by "
        "vectorize_particles; merged, low time cost)",
        script="unseen28/orchard_yield.py",
        machine="C2",
        verdicts=(LAUNCH, HOST),
        # cure: the weights of all particles are drawn and used at once, in one batched pass.
        fixes=("FX528", "FX510"),
        shorter={"STEPS": "450"},
        at=(
            "orchard_yield.py: for particle in range(PARTICLES):",
            "orchard_yield.py: one = {k: value[particle]",
            "orchard_yield.py: total = total + elbo_of(guide, one",
            "orchard_yield.py: def elbo(guide, noise",
            "orchard_yield.py: loss = -elbo(guide, noise",
        ),
    ),
    Thread(
        id="DD04",
        source="yandexdataschool/Practical_RL#474 (the curve of all rewards smoothed by a direct convolution "
        "while training: 80-90 %; by FFT over 100x; merged)",
        script="unseen28/parcel_rounds.py",
        machine="C2",
        verdicts=(HOST,),
        # cure: the same smoothing by FFT.
        fixes=("FX504",),
        shorter={"STEPS": "700"},
        at=(
            "parcel_rounds.py: return np.convolve(rewards, self.window",
            "parcel_rounds.py: def smoothed(self):",
            "parcel_rounds.py: self.curve = self.smoothed()",
            "parcel_rounds.py: def refresh(self):",
            "parcel_rounds.py: progress.refresh()",
            "parcel_rounds.py: if step % REFRESH == 0:",
        ),
    ),
    Thread(
        id="DD05",
        source="ContinualAI/avalanche#1217, #562 (subsets of joined subsets, one level more per experience; "
        "flattened: all 6,000 iterations at 205-389 it/s; merged)",
        script="unseen28/herbarium.py",
        machine="C2",
        verdicts=(INPUT, HOST),
        # cure: the memory keeps the indices of its sheets in the stream itself, one level deep.
        fixes=("FX107",),
        shorter={"STEPS": "500"},
        at=(
            "herbarium.py: return Picked(Joined([memory, fresh]), keep)",
            "herbarium.py: def remember(memory, fresh, rng):",
            "herbarium.py: memory = remember(memory, fresh, rng)",
            "herbarium.py: memory = remember(memory, Picked(",
            "herbarium.py: return self.sheets[self.indices[index]]",
            "herbarium.py: return self.parts[part][index - self.starts[part]]",
            "herbarium.py: part = bisect_right(self.starts, index) - 1",
            "herbarium.py: class Joined:",
            "herbarium.py: class Picked:",
            "herbarium.py: items += [memory[k] for k in",
        ),
    ),
    Thread(
        id="DD06",
        source="huggingface/datasets#8387, #8393, meta-pytorch/data#1317 (state of the stream "
        "deep-copied for every row: 10 ms to 2 s per iteration; a plain copy: merged)",
        script="unseen28/tram_delays.py",
        machine="C2",
        verdicts=(INPUT, HOST),
        # cure: a shallow copy of each log's small dictionary in place of copy.deepcopy.
        fixes=("FX107", "FX504"),
        shorter={"STEPS": "520"},
        at=(
            "tram_delays.py: return copy.deepcopy(self.state)",
            "tram_delays.py: def state_dict(self):",
            "tram_delays.py: self.resume_point = self.state_dict()",
            "tram_delays.py: def __iter__(self):",
            "tram_delays.py: batches = iter(DataLoader(stream",
            "tram_delays.py: readings, delay = next(batches)",
        ),
    ),
    Thread(
        id="DD07",
        source="pyro-ppl/pyro#1740, #1743 (lgamma of all counts, nearly all of them zero; of the others "
        "only: 2x for the entire model, ~10 % more on a CPU; merged)",
        script="unseen28/moth_traps.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # cure: the terms are computed only where the count is not zero (else they are zero).
        fixes=("FX330",),
        shorter={"STEPS": "400"},
        at=(
            "moth_traps.py: return torch.lgamma(alpha + count)",
            "moth_traps.py: def log_beta_one(alpha, count):",
            "moth_traps.py: return log_beta_one(self.alpha, counts)",
            "moth_traps.py: def per_species(self, counts):",
            "moth_traps.py: return whole + self.per_species(counts).sum(-1)",
            "moth_traps.py: def log_prob(self, counts):",
            "moth_traps.py: loss = -catch.log_prob(counts[rows])",
        ),
    ),
    Thread(
        id="DD08",
        source="pyg-team/pytorch_geometric#7766 (scores by (x * att).sum(-1), or by a matrix product: up to "
        "6.52x forward, 1.5x with backward on a CPU; merged)",
        script="unseen28/hop_gates.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # cure: looks @ att.t(), without the product of the size of the features.
        fixes=(),
        no_entry=True,
        shorter={"STEPS": "270"},
        at=(
            "hop_gates.py: return (looks * self.att).sum(dim=-1)",
            "hop_gates.py: def score(self, looks):",
            "hop_gates.py: return F.leaky_relu(self.score(looks) + self.bias",
            "hop_gates.py: scores = [gate(level) for gate, level in",
            "hop_gates.py: weights = self.weights(levels)",
            "hop_gates.py: scores = model(levels)",
        ),
    ),
    Thread(
        id="DD09",
        source="PMBio/bicycle#3 (the inverse of each system, then a product; linalg.solve: sped up the "
        "runtime in all experiments, says the author; merged)",
        script="unseen28/water_networks.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # cure: torch.linalg.solve(system, inflow) in place of bmm(inverse(system), inflow).
        fixes=(),
        no_entry=True,
        shorter={"STEPS": "950"},
        at=(
            "water_networks.py: return torch.bmm(torch.inverse(system), inflow)",
            "water_networks.py: def steady_levels(self, open_ponds, inflow):",
            "water_networks.py: return self.steady_levels(open_ponds, inflow)",
            "water_networks.py: guess = model(open_ponds[rows], inflow[rows])",
        ),
    ),
    Thread(
        id="DD10",
        source="pytorch/pytorch#171319 (train() and eval() called in every iteration: 1 % of the training "
        "time, by the author's own measure)",
        script="unseen28/bakery_camera.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # trap: the walks over all modules (train, eval, train) take about 0.5 ms of a step of 100 ms.
        not_fixes=("FX504", "FX514", "FX510"),
        not_verdicts=(HOST, LAUNCH),
        shorter={"STEPS": "60"},
    ),
)
