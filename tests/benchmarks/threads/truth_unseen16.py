"""What is true of the sixteenth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN16`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import ALLOCATOR, COMPUTE, HOST, INPUT, LAUNCH, SYNC, TRANSFER, Thread

UNSEEN16 = (
    Thread(
        id="K01",
        source="nerfstudio-project/nerfstudio#1747, #2585 (masks by nonzero: 613 ms, 34 without; merged)",
        script="unseen16/statue_photos.py",
        machine="G",
        verdicts=(HOST, INPUT),
        # cure: the places inside of the masks looked up once and kept.
        fixes=("FX107", "FX514", "FX524", "FX504"),
        shorter={"STEPS": "130"},
        at=(
            "statue_photos.py: inside = torch.nonzero(self.masks)",
            "statue_photos.py: if inside is None:",
            "statue_photos.py: inside = self.inside",
            "statue_photos.py: photo, row, column = self.choose(count)",
            "statue_photos.py: return inside[random.sample(",
            "statue_photos.py: origins, ways, colours = studio.batch(RAYS)",
        ),
    ),
    Thread(
        id="K02",
        source="huggingface/diffusers#9417, #3950 (timesteps sought by nonzero, one by one; no figures)",
        script="unseen16/garden_flow.py",
        machine="G",
        verdicts=(SYNC, HOST, LAUNCH),
        # cure: compare all timesteps with the schedule at once, and leave the indices on the device.
        fixes=("FX502", "FX510", "FX514"),
        shorter={"STEPS": "110"},
        at=(
            "garden_flow.py: found = (self.timesteps == timestep).nonzero()",
            "garden_flow.py: return found[1 if len(found) > 1 else 0].item()",
            "garden_flow.py: return [self.index_of(t) for t in timesteps]",
            "garden_flow.py: sigma = self.sigmas[self.indices(timesteps)]",
            "garden_flow.py: noisy = schedule.mix(plans, noise, timesteps)",
        ),
    ),
    Thread(
        id="K03",
        source="graph4ai/graph4nlp#228, #234 (graphs joined one by one; stacked once: 20x at a batch of 400)",
        script="unseen16/sentence_trees.py",
        machine="G",
        verdicts=(INPUT, HOST),
        # cure: one cat over all trees of the batch.
        fixes=("FX107", "FX101", "FX339", "FX111"),
        shorter={"STEPS": "130"},
        at=(
            "sentence_trees.py: batch = batch.union(tree)",
            "sentence_trees.py: for tree in trees[1:]:",
            "sentence_trees.py: words = torch.cat([self.words, other.words])",
            "sentence_trees.py: edges = torch.cat([self.edges, other.edges",
            "sentence_trees.py: return Tree(words, edges, torch.cat([self.sizes",
            "sentence_trees.py: return to_batch(trees), torch.tensor(topics)",
            "sentence_trees.py: loader = DataLoader(",
            "sentence_trees.py: for trees, topics in loader:",
        ),
    ),
    Thread(
        id="K04",
        source="motefly/DeepGBM#17, lucidrains/tab-transformer-pytorch#20 (a table per field; no figures)",
        script="unseen16/census_clicks.py",
        machine="G",
        verdicts=(LAUNCH, HOST),
        # cure: one table for all fields, and offsets.
        fixes=("FX510", "FX412", "FX414"),
        shorter={"STEPS": "160"},
        at=(
            "census_clicks.py: for i, table in enumerate(self.first)]",
            "census_clicks.py: for i, table in enumerate(self.second)]",
            "census_clicks.py: return torch.cat(first, 1), torch.stack(second, 1)",
            "census_clicks.py: first, second = self.lookup(codes, values)",
            "census_clicks.py: self.lookup = FieldTerms(counts) if",
            "census_clicks.py: scores = model(codes[rows], values[rows])",
            "census_clicks.py: loss.backward()",
        ),
    ),
    Thread(
        id="K05",
        source="cornellius-gp/gpytorch#2688, #2692 (products grouped anew in a sparse GP: 3.08x to 4.45x)",
        script="unseen16/house_currents.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: multiply the small matrices with one another first, and only then with the wide one.
        no_entry=True,
        shorter={"STEPS": "120"},
        at=(
            "house_currents.py: solved = torch.linalg.solve_triangular(lower, across",
            "house_currents.py: mean = solved.T",
            "house_currents.py: extra = (solved * (root",
            "house_currents.py: mean, variance = self.posterior(self.features(x))",
            "house_currents.py: loss = model.loss(x[rows], y[rows], len(y))",
            "house_currents.py: loss.backward()",
        ),
    ),
    Thread(
        id="K06",
        source="pyg-team/pytorch_geometric#4059 (dropout_adj without coalesce: more efficient; merged)",
        script="unseen16/harbour_routes.py",
        machine="G",
        verdicts=(COMPUTE, SYNC),
        # cure: no coalesce, since edges that are left out of a list without duplicates leave none.
        no_entry=True,
        shorter={"STEPS": "180"},
        at=(
            "harbour_routes.py: key, _ = (edges[0] * nodes + edges[1]).sort()",
            "harbour_routes.py: once[1:] = key[1:] != key[:-1]",
            "harbour_routes.py: key = key[once]",
            "harbour_routes.py: return torch.stack([key // nodes",
            "harbour_routes.py: return coalesce(both, nodes) if",
            "harbour_routes.py: views.append(model(x * shown, with_gaps(",
        ),
    ),
    Thread(
        id="K07",
        source="CondadosAI/modern-yolonas#40, #45 (augmentation: loader 383, model 41 images/s: GPU-bound)",
        script="unseen16/orchard_fruit.py",
        machine="G",
        # suspected: arithmetic in floats over all pixels in the workers; by tables half a sample's time.
        verdicts=(COMPUTE,),
        not_verdicts=(INPUT,),
        not_fixes=("FX101", "FX102", "FX105", "FX106", "FX107", "FX111"),
        shorter={"STEPS": "100"},
    ),
    Thread(
        id="K11",
        source="huggingface/trl#1154 (DPO: whole scores to the host for their mean; as long as forward)",
        script="unseen16/bakery_replies.py",
        machine="G",
        verdicts=(SYNC, TRANSFER, HOST),
        # cure: take the mean on the device and bring that one number over.
        fixes=("FX524", "FX509", "FX503", "FX501", "FX502"),
        shorter={"STEPS": "50"},
        at=(
            "bakery_replies.py: return values.mean().cpu() if VARIANT",
            'bakery_replies.py: "scores/better": self.average(good_scores)',
            'bakery_replies.py: "scores/worse": self.average(bad_scores)',
            # the first of the reads that waits for the forward
            'bakery_replies.py: "rewards/better": self.average(good_reward)',
            "bakery_replies.py: loss, metrics = self.loss_and_metrics(",
            "bakery_replies.py: loss = trainer.step(",
        ),
    ),
    Thread(
        id="K12",
        source="Rudrabha/Wav2Lip#447 (spectrum of all the audio for each item; saved: 0.3 to 10 it/s)",
        script="unseen16/lip_check.py",
        machine="G",
        verdicts=(INPUT,),
        # cure: spectra are made once, before the training, and items cut from them.
        fixes=("FX107",),
        shorter={"STEPS": "140"},
        at=(
            "lip_check.py: power = torch.stft(",
            "lip_check.py: return (20 * torch.log10(",
            "lip_check.py: wave = torch.cat([wave[:1]",
            "lip_check.py: def spectrogram(",
            "lip_check.py: return spectrogram(self.voices[clip]",
            "lip_check.py: heard = self.spectrum(clip)",
            "lip_check.py: loader = DataLoader(",
            "lip_check.py: for step, (mouths, heard, together) in zip(",
        ),
    ),
    Thread(
        id="K13",
        source="Nixtla/neuralforecast#783, #1325 (all windows made anew, then a few drawn; once: merged)",
        script="unseen16/harbour_loads.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: the windows are created once and kept (or only those drawn are cut out).
        no_entry=True,
        shorter={"STEPS": "130"},
        at=(
            "harbour_loads.py: windows = temporal.unfold(",
            "harbour_loads.py: windows = windows.permute(1, 2, 0).reshape(",
            "harbour_loads.py: recorded = windows[:, :PAST, -1]",
            "harbour_loads.py: return windows[recorded]",
            "harbour_loads.py: def create_windows(",
            "harbour_loads.py: windows = self.create_windows(",
            "harbour_loads.py: windows = self.windows_of(",
            "harbour_loads.py: loss = training.training_step(",
        ),
    ),
    Thread(
        id="K14",
        source="Kaixhin/Rainbow#74 (replay read and updated one by one; by batch: 45 to 65 it/s; merged)",
        script="unseen16/orchard_drone.py",
        machine="G",
        verdicts=(HOST, INPUT, LAUNCH, SYNC, TRANSFER),
        # cure: the tree is descended and updated, and the batch gathered and sent, for all samples at once.
        fixes=("FX107", "FX514", "FX112", "FX510"),
        shorter={"STEPS": "160"},
        at=(
            "orchard_drone.py: batch = [torch.stack(part) for part in zip(",
            "orchard_drone.py: pictures = [torch.from_numpy(x).to(device)",
            "orchard_drone.py: return *pictures, *(torch.as_tensor(x).to(device)",
            "orchard_drone.py: return np.stack([self.frames[slot - k]",
            "orchard_drone.py: self.pictures(slot),",
            "orchard_drone.py: gain = sum(",
            "orchard_drone.py: return np.array([self.descend(0, value)",
            "orchard_drone.py: self.sums[node] = self.sums[2 * node + 1]",
            "orchard_drone.py: slots = np.clip(self.tree.find(values)",
            "orchard_drone.py: slots, before, after, actions, gains, going, weights = memory.sample()",
            "orchard_drone.py: loss = agent.learn(memory)",
        ),
    ),
    Thread(
        id="K15",
        source="huggingface/peft#2107, #2122 (DoRA: frozen layer twice; without dropout once: merged)",
        script="unseen16/hotel_desk.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: without dropout the output of the frozen layer serves twice.
        fixes=("FX326",),
        shorter={"STEPS": "75"},
        at=(
            "hotel_desk.py: result = F.linear(x, self.base.weight)",
            "hotel_desk.py: result = self.base(x)",
            "hotel_desk.py: return result + self.turned(self.dropout(x))",
            "hotel_desk.py: def turned(",
            "hotel_desk.py: x = x + self.out(",
            "hotel_desk.py: return x + self.lower(",
            "hotel_desk.py: q, k, v = (part(y)",
        ),
    ),
    Thread(
        id="K16",
        source="huggingface/transformers#32184, #47425 (special ids listed anew per token: 26.8 to 0.3 ms)",
        script="unseen16/enzyme_words.py",
        machine="G",
        verdicts=(INPUT, HOST),
        # cure: the ids are put into a set once, before the loop over the tokens.
        fixes=("FX107", "FX514", "FX111", "FX101"),
        shorter={"STEPS": "125"},
        at=(
            "enzyme_words.py: return [1 if token in self.special_ids",
            "enzyme_words.py: return [self.numbers.get(token",
            "enzyme_words.py: dict.fromkeys(",
            "enzyme_words.py: def special_mask(",
            "enzyme_words.py: special = torch.tensor([self.tokenizer.special_mask(row)",
            "enzyme_words.py: loader = DataLoader(",
            "enzyme_words.py: for tokens, labels in loader:",
        ),
    ),
    Thread(
        id="K17",
        source="ultralytics/ultralytics#25244 (one-hot and masked target by scatter: 103.6 and 105.4 ms)",
        script="unseen16/market_stalls.py",
        machine="G",
        verdicts=(COMPUTE,),
        # suspected: int64 one-hot of 48 kinds, its copy and the assignment by a mask: 1 % of the step.
        not_verdicts=(SYNC, ALLOCATOR),
        not_fixes=("FX502", "FX501", "FX503", "FX224", "FX207", "FX510"),
        shorter={"STEPS": "80"},
    ),
)
