"""What is true of the twenty-first set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN21`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import ALLOCATOR, COMPUTE, HOST, INPUT, LAUNCH, Thread

UNSEEN21 = (
    Thread(
        # measured: 75.1 ms slow, 39.1 ms cured, 1.92x.
        id="S01",
        source="GeorgeSeif/Semantic-Segmentation-Suite#24 (colours to classes for each sample: 6x without)",
        script="unseen21/street_scenes.py",
        machine="C2",
        verdicts=(INPUT,),
        # cure: the classes of all drawings once, when the dataset is made.
        fixes=("FX107",),
        shorter={"STEPS": "60"},
        at=(
            "street_scenes.py: kind[np.all(drawing == colour, axis=-1)] = number",
            "street_scenes.py: for number, colour in enumerate(PALETTE):",
            "street_scenes.py: def read_drawing(",
            "street_scenes.py: kind = read_drawing(self.drawings[index]) if VARIANT",
            "street_scenes.py: def __getitem__(",
            "street_scenes.py: loader = DataLoader(",
            "street_scenes.py: for photos, kinds in loader:",
        ),
    ),
    Thread(
        # measured: 23.6 ms slow, 15.2 ms cured, 1.55x.
        id="S02",
        source="optuna/optuna#1140, #272 (all trials read from the storage each time: 2x; cached)",
        script="unseen21/river_trial.py",
        machine="C2",
        verdicts=(HOST,),
        # cure: report to the study and ask it about pruning every 50 steps only.
        fixes=("FX504", "FX514", "FX511"),
        shorter={"STEPS": "220"},
        at=(
            "river_trial.py: for trial, step, loss in self.base.execute(",
            "river_trial.py: found.setdefault(trial, {})[step] = loss",
            "river_trial.py: def trials(self):",
            "river_trial.py: trials = self.study.trials()",
            "river_trial.py: others = sorted(losses[step]",
            "river_trial.py: def hopeless(",
            "river_trial.py: if trial.hopeless(step):",
            "river_trial.py: if step % EVERY == 0:",
            "river_trial.py: EVERY = 1 if VARIANT",
        ),
    ),
    Thread(
        # measured: 28.7 ms slow, 21.9 ms cured, 1.31x.
        id="S03",
        source="iver56/torch-audiomentations#73 (rfft where fft is not needed: faster, plotted; merged)",
        script="unseen21/engine_hum.py",
        machine="C2",
        verdicts=(COMPUTE, ALLOCATOR),
        # cure: rfft and irfft, as the recordings and the responses are real.
        no_entry=True,
        shorter={"STEPS": "180"},
        at=(
            "engine_hum.py: spectrum = torch.fft.fft(x, dim=1) * torch.fft.fft(",
            "engine_hum.py: return torch.fft.ifft(spectrum, dim=1).real",
            "engine_hum.py: return x + self.mix(self.filter(self.norm(x)))",
            "engine_hum.py: x = self.layers(self.into(hum))",
            "engine_hum.py: loss = F.cross_entropy(model(hum[rows]), fault[rows])",
            "engine_hum.py: loss.backward()",
        ),
    ),
    Thread(
        # measured: 30.6 ms slow, 18.1 ms cured, 1.69x.
        id="S04",
        source="DLR-RM/stable-baselines3#618, #704 (infos deep-copied, 56 % of step_wait; merged)",
        script="unseen21/dock_robot.py",
        machine="C2",
        verdicts=(HOST, INPUT),
        # cure: do not copy the infos of the batch, which nobody reads.
        fixes=("FX514", "FX107", "FX504"),
        shorter={"STEPS": "170"},
        at=(
            "dock_robot.py: infos = copy.deepcopy(self.infos[rows]) if VARIANT",
            "dock_robot.py: def sample(self):",
            "dock_robot.py: *batch, _ = memory.sample()",
        ),
    ),
    Thread(
        # measured: 43.0 ms slow, 31.2 ms cured, 1.38x.
        id="S05",
        source="HorizonRobotics/alf#1409, TencentARC/SEED-Voken#4 (codebook by one-hot rows; indexed)",
        script="unseen21/bird_sounds.py",
        machine="C2",
        verdicts=(COMPUTE, ALLOCATOR),
        # cure: look the words up with the embedding, not by a product with one-hot rows.
        no_entry=True,
        shorter={"STEPS": "110"},
        at=(
            "bird_sounds.py: chosen = torch.zeros(len(flat), WORDS).scatter_(",
            "bird_sounds.py: said = chosen",
            "bird_sounds.py: said, loss = self.vocabulary(self.encode(songs))",
            "bird_sounds.py: again, words_loss = model(batch)",
            "bird_sounds.py: loss.backward()",
        ),
    ),
    Thread(
        # measured: 26.0 ms slow, 15.6 ms cured, 1.67x.
        id="S06",
        source="facebookresearch/fairchem#1713, #1714 (forces by autograd, only energies used)",
        script="unseen21/crystal_energy.py",
        machine="C2",
        verdicts=(COMPUTE, ALLOCATOR, LAUNCH),
        # cure: tell the model to leave the forces out, which no loss reads.
        fixes=("FX330", "FX325"),
        shorter={"STEPS": "190"},
        at=(
            "crystal_energy.py: (slope,) = torch.autograd.grad(",
            "crystal_energy.py: forces = -slope * ATOMS",
            "crystal_energy.py: place = place.detach().requires_grad_()",
            "crystal_energy.py: if self.with_forces: @1",
            "crystal_energy.py: if self.with_forces: @2",
            "crystal_energy.py: model = EnergyNet(with_forces=",
            "crystal_energy.py: out = model(place[rows], kind[rows])",
        ),
    ),
    Thread(
        # measured: 47.9 ms slow, 32.1 ms cured, 1.49x.
        id="S07",
        source="leffff/graphormer-pyg#32, #35 (spatial bias pair by pair in Python: ~50x; merged)",
        script="unseen21/scent_graphs.py",
        machine="C2",
        verdicts=(LAUNCH, HOST, COMPUTE),
        # cure: index the table of weights with all numbers of bonds at once.
        fixes=("FX510", "FX339"),
        shorter={"STEPS": "110"},
        at=(
            "scent_graphs.py: rows = [torch.stack([self.weight[bonds] for bonds in row])",
            "scent_graphs.py: for molecule in steps.tolist():",
            "scent_graphs.py: molecules.append(torch.stack(rows))",
            "scent_graphs.py: bias = torch.stack(molecules)",
            "scent_graphs.py: x, bias = self.atom(kind), self.near(steps)",
            "scent_graphs.py: loss = F.mse_loss(model(kind[rows], steps[rows])",
            "scent_graphs.py: loss.backward()",
        ),
    ),
    Thread(
        # measured: 29.3 ms slow, 20.4 ms cured, 1.44x.
        id="S08",
        source="snap-stanford/ogb#157, #130, dmlc/dgl#307 (GCN normalised anew in each layer and step)",
        script="unseen21/fungus_web.py",
        machine="C2",
        verdicts=(COMPUTE, ALLOCATOR),
        # cure: the normalised matrix of the links once, as the graph does not change.
        no_entry=True,
        shorter={"STEPS": "170"},
        at=(
            "fungus_web.py: pairs = torch.cat([links[1], own]) * FINDS",
            "fungus_web.py: pairs = torch.unique(pairs)",
            "fungus_web.py: source, target = pairs % FINDS, pairs // FINDS",
            "fungus_web.py: count = torch.zeros(FINDS).scatter_add_(",
            "fungus_web.py: weight = share[source] * share[target]",
            "fungus_web.py: def balanced(links):",
            "fungus_web.py: self.kept = balanced(links)",
            'fungus_web.py: if VARIANT == "a" or self.kept is None:',
            "fungus_web.py: x = self.drop(F.relu(layer(x, links)))",
            "fungus_web.py: return self.layers[-1](x, links)",
            "fungus_web.py: scores = model(traits, links)",
        ),
    ),
    Thread(
        # measured: 36.7 ms slow, 14.3 ms cured, 2.56x.
        id="S09",
        source="NVIDIA/physicsnemo#805 (neighbours sought in each epoch; kept: over 50x)",
        script="unseen21/wind_roofs.py",
        machine="C2",
        verdicts=(INPUT,),
        # cure: the neighbours of a house once, and kept for the later epochs.
        fixes=("FX107",),
        shorter={"STEPS": "140"},
        at=(
            "wind_roofs.py: away = ((place[:, None] - place[None]) ** 2).sum(-1)",
            "wind_roofs.py: nearest = np.argpartition(",
            "wind_roofs.py: return (place[nearest] - place[:, None]).reshape(",
            "wind_roofs.py: def surroundings(place):",
            "wind_roofs.py: around = surroundings(place)",
            "wind_roofs.py: def __getitem__(",
            "wind_roofs.py: loader = DataLoader(",
            "wind_roofs.py: for points, pressure in loader:",
        ),
    ),
    Thread(
        # measured: 52.2 ms slow, 52.3 ms cured, 1.00x.
        id="S10",
        source="modelscope/ms-swift#9254 (texts cut anew in each epoch: no influence; maintainer)",
        script="unseen21/guest_notes.py",
        machine="C2",
        verdicts=(COMPUTE, ALLOCATOR),
        # all suspect the tokeniser in __getitem__; the notes cut beforehand gain next to nothing.
        not_verdicts=(INPUT,),
        not_fixes=("FX101", "FX106", "FX107", "FX111", "FX112"),
        shorter={"STEPS": "85"},
    ),
)
