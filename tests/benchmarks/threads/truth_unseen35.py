"""What is true of the thirty-fifth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN35`. Of the catalogue only the titles were seen when this was written; added after
the first run: FX532 of KK02, the class of KK03, FX374 of KK07.
"""

from __future__ import annotations

from truth import ALLOCATOR, COMPUTE, HOST, INPUT, LAUNCH, Thread

UNSEEN35 = (
    Thread(
        id="KK01",
        source="torchmd/torchmd-net#235 (files opened anew for each sample; kept: merged)",
        script="unseen35/peptide_frames.py",
        machine="C2",
        verdicts=(INPUT,),
        # cure: load the small files once into memory, as tensors, and index them
        fixes=("FX107",),
        shorter={"STEPS": "700"},
        at=(
            'peptide_frames.py: coords = np.array(np.load(self.files["coords"]',
            'peptide_frames.py: embed = np.load(self.files["embed"][file]).astype(np.int64)',
            'peptide_frames.py: energy = np.array(np.load(self.files["energy"]',
            'peptide_frames.py: forces = np.array(np.load(self.files["forces"]',
            "peptide_frames.py: def __getitem__(self, idx):",
            "peptide_frames.py: for step, (pos, kind, energy, force) in enumerate(endless(loader)):",
            "peptide_frames.py: yield from loader",
            "peptide_frames.py: loader = DataLoader(frames, batch_size=BATCH, shuffle=True, drop_last=True)",
        ),
    ),
    Thread(
        id="KK02",
        source="huggingface/pytorch-image-models#1553 (EMA in place: ~50 % faster; merged)",
        script="unseen35/orchard_teacher.py",
        machine="C2",
        verdicts=(COMPUTE, ALLOCATOR, HOST),
        # cure: average the weights in place (lerp_), without a temporary for each product and sum
        fixes=("FX224", "FX207", "FX532"),
        shorter={"STEPS": "350"},
        at=(
            "orchard_teacher.py: kept.copy_(self.decay * kept + (1.0 - self.decay) * fresh)",
            "orchard_teacher.py: def update(self, model):",
            "orchard_teacher.py: refresh(model)",
        ),
    ),
    Thread(
        id="KK03",
        source="deepspeedai/DeepSpeed#5697 (ranges break the graph: 3.02 to 2.54 s; merged)",
        script="unseen35/canyon_layers.py",
        machine="C2",
        verdicts=("graph-break-bound", LAUNCH, HOST, COMPUTE),
        # cure: switch the decorator that marks ranges off where the model is compiled
        fixes=("FX403", "FX401"),
        shorter={"STEPS": "900"},
        at=(
            "canyon_layers.py: RANGES.push(func.__qualname__)",
            "canyon_layers.py: RANGES.pop()",
            "canyon_layers.py: result = func(*args, **kwargs)",
            "canyon_layers.py: def in_range(func):",
            "canyon_layers.py: def wrapped(*args, **kwargs):",
            "canyon_layers.py: def push(self, name):",
            "canyon_layers.py: def pop(self):",
            "canyon_layers.py: self.open.append((name, time.perf_counter_ns()))",
            "canyon_layers.py: compiled = torch.compile(model)",
            'canyon_layers.py: RANGES.enabled = VARIANT == "a"',
            "canyon_layers.py: loss = F.cross_entropy(compiled(core).flatten(0, 1), rock.flatten())",
        ),
    ),
    Thread(
        id="KK04",
        source="ultralytics/ultralytics#9436 (best saved anew: 160 ms, copied: 18 ms; merged)",
        script="unseen35/harbour_weights.py",
        machine="C2",
        verdicts=(HOST,),
        # cure: save once, and copy the file for the best and the numbered one
        fixes=("FX326", "FX504"),
        shorter={"STEPS": "600"},
        at=(
            "harbour_weights.py: torch.save(state, last)",
            'harbour_weights.py: torch.save(state, self.folder / "best.pt")',
            "harbour_weights.py: torch.save(state, numbered)",
            "harbour_weights.py: def keep(self, epoch, score, model, optimizer):",
            "harbour_weights.py: keeper.keep(step // EPOCH, -summed / EPOCH, model, optimizer)",
        ),
    ),
    Thread(
        id="KK05",
        source="gazprom-neft/seismiqb#19 (float64 by NumPy's default: about -40 %; merged)",
        script="unseen35/basin_sections.py",
        machine="C2",
        verdicts=(INPUT, HOST),
        # cure: make the arrays of the data preparation with dtype=float32
        fixes=("FX107", "FX320", "FX361"),
        shorter={"STEPS": "700"},
        at=(
            "basin_sections.py: crops = np.zeros((BATCH, CROP_TRACES, CROP_DEPTHS), dtype=KIND)",
            "basin_sections.py: picks = np.zeros((BATCH, CROP_TRACES), dtype=KIND)",
            "basin_sections.py: crops = np.clip(crops, self.low, self.high)",
            "basin_sections.py: crops = 2 * (crops - self.low) / (self.high - self.low) - 1",
            "basin_sections.py: tilt = np.linspace(-0.2, 0.2, CROP_DEPTHS, dtype=KIND)",
            "basin_sections.py: crops = np.tanh(self.rng.uniform(0.8, 1.6) * (crops + tilt))",
            "basin_sections.py: ripple = np.sin(wave + np.linspace(0, 9.0, CROP_DEPTHS, dtype=KIND))",
            "basin_sections.py: return crops * (1 + 0.05 * ripple)",
            "basin_sections.py: depth = np.linspace(0, CROP_DEPTHS - 1, CROP_DEPTHS, dtype=KIND)",
            "basin_sections.py: away = (depth - picks[..., None]) / 3",
            "basin_sections.py: return np.exp(-0.5 * away * away)",
            "basin_sections.py: mean = crops.mean((1, 2), keepdims=True)",
            "basin_sections.py: spread = crops.std((1, 2), keepdims=True)",
            "basin_sections.py: crops = (crops - mean) / (spread + 1e-6)",
            "basin_sections.py: crops, picks = self.cut()",
            "basin_sections.py: crops, masks = self.shade(crops), self.paint(picks)",
            "basin_sections.py: torch.from_numpy(crops.astype(np.float32, copy=False))[:, None],",
            'basin_sections.py: KIND = None if VARIANT == "a" else np.float32',
            "basin_sections.py: def cut(self):",
            "basin_sections.py: def shade(self, crops):",
            "basin_sections.py: def paint(self, picks):",
            "basin_sections.py: def batch(self):",
            "basin_sections.py: crops, masks = sections.batch()",
        ),
    ),
    Thread(
        id="KK06",
        source="Lightning-Universe/lightning-bolts#425, #399 (episodes never cleared; merged)",
        script="unseen35/lantern_walkers.py",
        machine="C2",
        verdicts=(COMPUTE, HOST),
        # cure: clear the lists of states, actions and values after each batch
        no_entry=True,
        shorter={"STEPS": "300"},
        at=(
            "lantern_walkers.py: states = torch.from_numpy(np.concatenate(self.batch_states))",
            "lantern_walkers.py: actions = torch.from_numpy(np.concatenate(self.batch_actions))",
            "lantern_walkers.py: qvals = torch.from_numpy(np.concatenate(self.batch_qvals)).float()",
            "lantern_walkers.py: self.batch_states.append(view)",
            "lantern_walkers.py: self.batch_actions.append(action)",
            "lantern_walkers.py: self.batch_qvals.extend(self.discount(rewards))",
            'lantern_walkers.py: if VARIANT != "a":',
            "lantern_walkers.py: def train_batch(self):",
            "lantern_walkers.py: def update(self):",
            "lantern_walkers.py: states, actions, qvals = self.train_batch()",
            "lantern_walkers.py: chosen = self.policy(states).log_softmax(1)",
            "lantern_walkers.py: return self.net(view)",
            "lantern_walkers.py: loss = agent.update()",
        ),
    ),
    Thread(
        id="KK07",
        source="discopy/discopy#406 (cells called one by one; at once 3x to 17x; open)",
        script="unseen35/puzzle_cells.py",
        machine="C2",
        verdicts=(LAUNCH, HOST),
        # cure: keep all messages in one tensor, move them by one index, call its network once per round
        fixes=("FX528", "FX510", "FX532", "FX374"),
        shorter={"STEPS": "600"},
        at=(
            "puzzle_cells.py: for c, peers in enumerate(self.peers):",
            "puzzle_cells.py: received = torch.cat([sent[o][:, self.peers[o].index(c)]",
            "puzzle_cells.py: message, guess = self.cell(clues[:, c], received)",
            "puzzle_cells.py: fresh.append(message.view(-1, self.wires, WIRE))",
            "puzzle_cells.py: h = torch.relu(self.inner(torch.cat([clue, received], -1)))",
            "puzzle_cells.py: return torch.tanh(self.outer(h)), self.guess(h)",
            "puzzle_cells.py: def cell_by_cell(self, clues):",
            "puzzle_cells.py: return self.cell_by_cell(clues) if VARIANT",
            "puzzle_cells.py: guess = model(clues)",
        ),
    ),
    Thread(
        id="KK08",
        source="huggingface/transformers#11335 (mask made in each layer: no change of speed)",
        script="unseen35/village_chronicle.py",
        machine="C2",
        # trap: the mask is made anew in each layer with a window; made once, nothing is won
        not_fixes=("FX326", "FX521", "FX323"),
        not_verdicts=(INPUT, HOST),
        shorter={"STEPS": "400"},
    ),
)
