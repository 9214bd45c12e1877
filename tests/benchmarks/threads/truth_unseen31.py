"""What is true of the thirty-first set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN31`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, Thread

UNSEEN31 = (
    Thread(
        id="GG01",
        source="PattanaikL/GeoMol#1 (dihedral pairs sought anew in each epoch; kept: 4x faster; merged)",
        script="unseen31/truss_hinges.py",
        machine="C2",
        verdicts=(INPUT, HOST),
        # cure: the hinges of a truss are sought once, at its first use, and kept by its index.
        fixes=("FX107", "FX326"),
        shorter={"STEPS": "95"},
        at=(
            "truss_hinges.py: def hinge_quads(edge_index, joints)",
            "truss_hinges.py: for u, v in edge_index.t()",
            "truss_hinges.py: before = target[(source == u) & (target != v)]",
            "truss_hinges.py: after = target[(source == v) & (target != u)]",
            "truss_hinges.py: outer = torch.cartesian_prod(before, after)",
            "truss_hinges.py: outer = outer[outer[:, 0] != outer[:, 1]]",
            "truss_hinges.py: inner = edge_index.new_tensor([[u, v]])",
            "truss_hinges.py: quads.append(torch.cat(",
            "truss_hinges.py: rings += [float(distance_without(",
            "truss_hinges.py: if u < v:",
            "truss_hinges.py: def __getitem__(self, index)",
            "truss_hinges.py: self.hinges[index] = hinge_quads(edge_index, len(x))",
            "truss_hinges.py: for x, edge_index, y, quads, rings in loader",
        ),
    ),
    Thread(
        id="GG02",
        source="OpenNMT/OpenNMT-py#164 (word by word without need: 4,000 to 10,000 tokens/s; merged)",
        script="unseen31/lace_patterns.py",
        machine="C2",
        verdicts=(LAUNCH, COMPUTE),
        # cure: the LSTM and the attention get all moves of the pattern in one call each.
        fixes=("FX510", "FX513", "FX528"),
        shorter={"STEPS": "75"},
        at=(
            "lace_patterns.py: for token in embedded.split(1, dim=1)",
            "lace_patterns.py: output, state = self.rnn(token, state)",
            "lace_patterns.py: outputs.append(self.attention(output, memory, hidden))",
            "lace_patterns.py: def forward(self, moves, memory, state, hidden)",
            "lace_patterns.py: outputs = self.decoder(moves[:, :-1], memory, state, sketch == PAD)",
        ),
    ),
    Thread(
        id="GG03",
        source="gdalsanto/flamo#35 (rfft of 3 taps padded to 131,072 points: 291.6 to 241.2 ms)",
        script="unseen31/organ_pipes.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # cure: three taps times a kept grid of exp(-i w p), a product of 3 by the points; no transform.
        no_entry=True,
        shorter={"STEPS": "85"},
        at=(
            "organ_pipes.py: return torch.fft.rfft(taps, self.points, dim=0)",
            "organ_pipes.py: def response_of(self, taps)",
            "organ_pipes.py: upper = self.response_of(b).abs()",
            "organ_pipes.py: lower = self.response_of(a).abs()",
        ),
    ),
    Thread(
        id="GG04",
        source="fedden/poker_ai#102 (deepcopy of the game copies the table that rates hands, too: 10x)",
        script="unseen31/shunting_yard.py",
        machine="C2",
        verdicts=(HOST,),
        # cure: the table lives in the module and is shared; deepcopy has only the tracks to copy.
        no_entry=True,
        shorter={"STEPS": "270"},
        at=(
            "shunting_yard.py: yard = copy.deepcopy(self)",
            "shunting_yard.py: def apply_move(self, move)",
            "shunting_yard.py: self.judge = JUDGE",
            "shunting_yard.py: after = [yard.apply_move(move) for move in yard.legal_moves()]",
            "shunting_yard.py: yard = best_move(model, yard, rng)",
        ),
    ),
    Thread(
        id="GG05",
        source="sung-yeon-kim/Proxy-Anchor-CVPR2020#26 (labels made an array anew for each class drawn)",
        script="unseen31/moth_wings.py",
        machine="C2",
        verdicts=(INPUT, HOST),
        # cure: the sampler makes the array once, in its __init__.
        fixes=("FX107", "FX326"),
        shorter={"STEPS": "260"},
        at=(
            "moth_wings.py: members = np.nonzero(np.array(self.ys) == species)[0]",
            "moth_wings.py: self.ys = labels",
            "moth_wings.py: for species in self.rng.sample(self.species, self.draws)",
            "moth_wings.py: def __iter__(self)",
            "moth_wings.py: for step, (wings, labels) in enumerate(loader)",
        ),
    ),
    Thread(
        id="GG06",
        source="mlverse/luz#124 (mean of all losses so far taken anew at each step; online: merged)",
        script="unseen31/loom_tension.py",
        machine="C2",
        verdicts=(HOST,),
        # cure: a running sum and a count (online), nothing kept; the cost no longer grows with the epoch.
        no_entry=True,
        shorter={"STEPS": "700"},
        at=(
            "loom_tension.py: return float(np.mean(self.values))",
            "loom_tension.py: self.values.extend(values)",
            "loom_tension.py: def compute(self)",
            'loom_tension.py: parts = [f"{name} {average.compute():.4f}"',
            "loom_tension.py: meters.update(",
        ),
    ),
    Thread(
        id="GG07",
        source="xuhuihuang/ts-dar#1 (prototypes moved sample by sample; by batch: 10x; merged)",
        script="unseen31/glacier_states.py",
        machine="C2",
        verdicts=(LAUNCH, HOST),
        # cure: means of the batch by one product, one update of all prototypes (numbers change a little).
        fixes=("FX510",),
        shorter={"STEPS": "190"},
        at=(
            "glacier_states.py: for j in range(len(features))",
            "glacier_states.py: moved = prototypes[states[j]] * keep + features[j] * (1 - keep)",
            "glacier_states.py: prototypes[states[j]] = F.normalize(moved, dim=0)",
            "glacier_states.py: def follow(self, features, states)",
            "glacier_states.py: prototypes = self.follow(features, states)",
            "glacier_states.py: loss = F.cross_entropy(logits, states[rows]) + 0.1 * dispersion(",
        ),
    ),
    Thread(
        id="GG08",
        source="EleutherAI/elk#190 (error of the AUROC by a loop over resamples; all at once: ~20x; merged)",
        script="unseen31/frog_calls.py",
        machine="C2",
        verdicts=(HOST,),
        # cure: the AUROC of all resamples at once, as rows of one matrix. To report less often helps, too.
        fixes=("FX510", "FX511"),
        shorter={"STEPS": "420"},
        at=(
            "frog_calls.py: drawn = [auroc(truth[pick].numpy(), scores[pick].numpy()) for pick in picks]",
            "frog_calls.py: def auroc(truth, scores)",
            "frog_calls.py: def roc_curve(truth, scores)",
            "frog_calls.py: def auroc_with_error(truth, scores, generator)",
            "frog_calls.py: false, true = roc_curve(truth, scores)",
            "frog_calls.py: truth, scores = checked(truth, scores)",
            'frog_calls.py: order = np.argsort(scores, kind="mergesort")[::-1]',
            "frog_calls.py: reports.append((step, *auroc_with_error(kept_calling, scores, resampling)))",
        ),
    ),
    Thread(
        id="GG09",
        source="kengz/SLM-Lab#314 (a graph per action; one pass of the batch: 200 to 1,000 fps; merged)",
        script="unseen31/pump_station.py",
        machine="C2",
        verdicts=(LAUNCH, HOST),
        # cure: actions without gradients; log-probabilities and values again, for all states in one call.
        fixes=("FX510", "FX528"),
        shorter={"STEPS": "240"},
        at=(
            "pump_station.py: logits, value = self.model(state)",
            "pump_station.py: with torch.set_grad_enabled(",
            "pump_station.py: self.log_probs.append(logits[action])",
            "pump_station.py: self.entropies.append(-(logits.exp() * logits).sum())",
            "pump_station.py: log_probs, entropies, values = map(torch.stack,",
            "pump_station.py: def act(self, state)",
            "pump_station.py: state, reward, done = polder.step(agent.act(state))",
            "pump_station.py: loss.backward()",
        ),
    ),
    Thread(
        id="GG10",
        source="gdalsanto/flamo#36 (response of frozen delays made twice per step; kept: 291.6 to 281.0 ms)",
        script="unseen31/cave_echoes.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # trap: the delays never change, so their response can be made once; it brings next to nothing,
        # for the step is the systems solved at each frequency (in the thread other changes helped: #34, #35).
        not_fixes=("FX110", "FX326", "FX521"),
        not_verdicts=(INPUT, HOST),
        shorter={"STEPS": "210"},
    ),
)
