"""What is true of the thirty-eighth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN38`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, SYNC, Thread

UNSEEN38 = (
    Thread(
        id="NN01",
        source="facebookresearch/fairseq#4904 (own Adam weight by weight; by lists, "
        "foreach; no figures; merged)",
        script="unseen38/heron_calls.py",
        machine="C2",
        verdicts=(LAUNCH, HOST),
        # cure: scale the gradients and update the weights by torch._foreach_* on lists of tensors
        fixes=("FX312",),
        shorter={"STEPS": "700"},
        at=(
            "heron_calls.py: for p in (p for group in self.param_groups for p in",
            "heron_calls.py: p.grad.mul_(c)",
            "heron_calls.py: class MarshAdam(torch.optim.Optimizer)",
            'heron_calls.py: for p in group["params"]:',
            "heron_calls.py: def step(self): @1",
            "heron_calls.py: def multiply_grads(self, c): @1",
            "heron_calls.py: exp_avg.mul_(beta1).add_(grad",
            "heron_calls.py: exp_avg_sq.mul_(beta2).addcmul_(",
            "heron_calls.py: denom = exp_avg_sq.sqrt().add_(",
            "heron_calls.py: p.add_(p, alpha=",
            "heron_calls.py: p.addcdiv_(exp_avg, denom",
            'heron_calls.py: state["mean"].mul_(0.999)',
            "heron_calls.py: optimizer.multiply_grads(1.0 / BATCH)",
            "heron_calls.py: optimizer.step()",
        ),
    ),
    Thread(
        id="NN02",
        source="zhengqili/Neural-Scene-Flow-Fields#7 (anomaly detection on: 10-20 %, "
        "2x on the reviewer's PC; merged)",
        script="unseen38/mirage_fields.py",
        machine="C2",
        verdicts=(LAUNCH, HOST, COMPUTE),
        # cure: do not call torch.autograd.set_detect_anomaly(True)
        fixes=("FX512",),
        shorter={"STEPS": "550"},
        at=("mirage_fields.py: torch.autograd.set_detect_anomaly(True)", "mirage_fields.py: loss.backward()"),
    ),
    Thread(
        id="NN03",
        source="huggingface/transfer-learning-conv-ai#30 (padded to the longest of the data "
        "set; of the batch: 85 to 60 min; open)",
        script="unseen38/parlor_talks.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # cure: pad each batch to its own longest row, in collate_fn
        fixes=("FX109",),
        shorter={"STEPS": "200"},
        at=(
            'parlor_talks.py: longest = max(len(t["input_ids"]) for t in talks)',
            "parlor_talks.py: def pad_talks(talks)",
            'parlor_talks.py: rows.append((t["input_ids"] + [PAD] * gap',
            "parlor_talks.py: rows = pad_talks(talks) @1",
            "parlor_talks.py: self.input_ids = torch.tensor(",
            "parlor_talks.py: return self.input_ids[i], self.labels[i]",
            "parlor_talks.py: dataset = ParlorDataset(make_talks())",
            "parlor_talks.py: collate_fn=None if VARIANT",
        ),
    ),
    Thread(
        id="NN04",
        source="open-mmlab/mmhuman3d#233 (workers started anew in each short epoch; "
        "persistent_workers: ~7 min to ~35 s; merged)",
        script="unseen38/atlas_poses.py",
        machine="C2",
        verdicts=(INPUT,),
        # cure: persistent_workers=True
        fixes=("FX105",),
        shorter={"STEPS": "450"},
        at=(
            "atlas_poses.py: persistent_workers=VARIANT",
            "atlas_poses.py: return DataLoader(",
            "atlas_poses.py: def build_dataloader(dataset)",
            "atlas_poses.py: for batch in loader:",
            "atlas_poses.py: step, loss = train_epoch(",
            "atlas_poses.py: loader = build_dataloader(",
        ),
    ),
    Thread(
        id="NN05",
        source="ourownstory/neural_prophet#952 (rich progress bar drawn at each batch: 5.2 min, "
        "with tqdm's default bar 1.32; merged)",
        script="unseen38/prairie_grid.py",
        machine="C2",
        verdicts=(HOST,),
        # cure: the plain bar, which writes at most ten times a second
        fixes=("FX504",),
        shorter={"STEPS": "750"},
        at=(
            "prairie_grid.py: bar.update(step, metrics)",
            "prairie_grid.py: class PrairieBoard",
            "prairie_grid.py: def row(self, name, values)",
            'prairie_grid.py: shade = ";".join(',
            "prairie_grid.py: segments.append((self.marks[",
            "prairie_grid.py: def fit(self, segments, width)",
            "prairie_grid.py: size = sum(2 if unicodedata",
            "prairie_grid.py: for text, style in segments:",
            "prairie_grid.py: frame += [f",
            "prairie_grid.py: lines.append(self.row(name",
            'prairie_grid.py: self.stream.write("".join(frame))',
            "prairie_grid.py: bar = PrairieBoard(stream)",
        ),
    ),
    Thread(
        id="NN06",
        source="werner-duvaud/muzero-general#117 (games of a batch drawn one by one; at once: "
        "CPU of the replay ~100 to ~50 %; merged)",
        script="unseen38/fjord_moves.py",
        machine="C2",
        verdicts=(HOST, INPUT),
        # cure: list the priorities once per batch, and draw all games with one call
        fixes=("FX532", "FX112", "FX107", "FX514", "FX326"),
        shorter={"STEPS": "450"},
        at=(
            "fjord_moves.py: drawn = [self.sample_game() for _ in range(BATCH)]",
            "fjord_moves.py: def sample_game(self)",
            "fjord_moves.py: def get_batch(self)",
            "fjord_moves.py: chances = np.array([game.game_priority for game in self.games.values()] @1",
            "fjord_moves.py: index = self.draws.choice(len(self.games), p=chances)",
            "fjord_moves.py: weights = buffer.get_batch()",
        ),
    ),
    Thread(
        id="NN07",
        source="mehta-lab/VisCy#35 (a whole stack read per patch; several patches per stack: "
        "89.3 s for one, less with more; merged)",
        script="unseen38/spore_stacks.py",
        machine="C2",
        verdicts=(INPUT,),
        # cure: cut several patches out of each stack that is read
        fixes=("FX107",),
        shorter={"STEPS": "175"},
        at=(
            "spore_stacks.py: PATCHES_PER_STACK = 1 if VARIANT",
            "spore_stacks.py: def read_stack(self, i)",
            "spore_stacks.py: stack = torch.from_numpy(np.load(self.paths[i]))",
            "spore_stacks.py: mean, std = stack.mean(",
            "spore_stacks.py: return (stack - mean) / std",
            "spore_stacks.py: def __getitem__(self, i)",
            "spore_stacks.py: stack = self.read_stack(i)",
            "spore_stacks.py: for step, patches in enumerate(loader)",
        ),
    ),
    # trap: evaluations along the way, suspected of much, cost next to nothing
    Thread(
        id="NN08",
        source="tdrussell/qlora-pipe#6 (evaluation every N steps: estimated ~5 %, measured "
        "1-2 % of the time; merged)",
        script="unseen38/lantern_letters.py",
        machine="C2",
        not_fixes=("FX511",),
        not_verdicts=(HOST, INPUT, SYNC),
        shorter={"STEPS": "200"},
    ),
)
