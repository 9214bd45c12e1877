"""What is true of the twenty-second set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN22`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, SYNC, Thread

UNSEEN22 = (
    Thread(
        id="I01",
        source="liruiw/HPT#14 (table of positions by NumPy in each forward; in torch: faster; merged)",
        script="unseen22/oven_arm.py",
        machine="G",
        verdicts=(HOST, SYNC),
        # cure: the table of positions made by torch on the device (or once), not number by number in Python.
        fixes=("FX326", "FX524", "FX521", "FX504", "FX514"),
        shorter={"STEPS": "130"},
        at=(
            "oven_arm.py: places = waves_of_positions(",
            "oven_arm.py: return [position / np.power(",
            "oven_arm.py: table = np.array([angles_at(",
            "oven_arm.py: return torch.FloatTensor(table)",
            "oven_arm.py: x = torch.cat([self.camera(patches)",
            "oven_arm.py: predicted = model(patches[rows]",
            "oven_arm.py: def waves_of_positions(",
            "oven_arm.py: def angles_at(position)",
        ),
    ),
    Thread(
        id="I02",
        source="facebookresearch/xformers#742, flash-attention#43 (rotary makes floats; cast: merged)",
        script="unseen22/ship_logs.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: queries and keys cast back to bfloat16 before attention, not the values to float32.
        fixes=("FX307", "FX303"),
        shorter={"STEPS": "110"},
        at=(
            "ship_logs.py: y = F.scaled_dot_product_attention(",
            "ship_logs.py: v = v.to(q.dtype)",
            "ship_logs.py: q, k = self.rotary(q), self.rotary(k)",
            "ship_logs.py: return torch.cat([even * cos",
            "ship_logs.py: self.cos, self.sin = angles.cos()",
            "ship_logs.py: x = x + self.attention(self.norm1(x))",
            "ship_logs.py: cos, sin = self.cos[:n]",
        ),
    ),
    Thread(
        id="I03",
        source="lightly-ai/lightly#340, MichalBortkiewicz/JaxGCRL#66 (all pairs by broadcast: 36 to 20 s)",
        script="unseen22/sea_shells.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: normalise the rows, then one matrix product, not the cosine of all pairs side by side.
        fixes=("FX337",),
        shorter={"STEPS": "150"},
        at=(
            "sea_shells.py: return self.cosine(x.unsqueeze(1)",
            "sea_shells.py: scores = self.likeness(features)",
            "sea_shells.py: loss = agreement(features.float())",
            "sea_shells.py: self.cosine = nn.CosineSimilarity(",
            "sea_shells.py: def likeness(self, x)",
        ),
    ),
    Thread(
        id="I04",
        source="pytorch/vision#407 (each item from array to PIL to tensor anew; made beforehand: ~50 %)",
        script="unseen22/stamp_digits.py",
        machine="G",
        verdicts=(INPUT,),
        # cure: the finished tensors made once, before training.
        fixes=("FX107", "FX326", "FX112", "FX101", "FX524"),
        shorter={"STEPS": "110"},
        at=(
            "stamp_digits.py: picture = self.prepare(k) if",
            "stamp_digits.py: return self.transform(Image.fromarray(",
            "stamp_digits.py: return torch.from_numpy(array.transpose(",
            "stamp_digits.py: return tensor.clone().sub_(",
            "stamp_digits.py: x = step(x)",
            "stamp_digits.py: loader = DataLoader(",
            "stamp_digits.py: for step, (pictures, towns) in enumerate(loader):",
            "stamp_digits.py: def __getitem__(self, k)",
            "stamp_digits.py: array = np.array(picture",
        ),
    ),
    Thread(
        id="I05",
        source="tensorforce/tensorforce#168 (priorities of the whole replay per draw; sum tree: 56 to 2 ms)",
        script="unseen22/lift_dispatch.py",
        machine="G",
        verdicts=(HOST, INPUT),
        # cure: a tree of sums, from which a draw takes a number of steps that is the logarithm of the size.
        fixes=("FX107", "FX514", "FX504", "FX524"),
        shorter={"STEPS": "130"},
        at=(
            "lift_dispatch.py: chances = self.flat**ALPHA",
            "lift_dispatch.py: chances /= chances.sum()",
            "lift_dispatch.py: places = rng.choice(self.size",
            "lift_dispatch.py: places, chances = self.weights.draw(",
            "lift_dispatch.py: places, importance, (now, taken",
            "lift_dispatch.py: def draw(self, rng, count)",
            "lift_dispatch.py: def draw(self, count)",
        ),
    ),
    Thread(
        id="I06",
        source="pytorch/pytorch#54147, facebookresearch/mbrl-lib#162 (members of an ensemble one by one)",
        script="unseen22/river_levels.py",
        machine="G",
        verdicts=(LAUNCH, HOST),
        # cure: the weights of all members stacked, their layers as batched products (vmap).
        fixes=("FX510", "FX412", "FX414"),
        shorter={"STEPS": "180"},
        at=(
            "river_levels.py: answers = [vote(x) for vote in",
            "river_levels.py: mean, spread = self.layers(x)",
            "river_levels.py: mean, spread = model(gauges[rows]",
            "river_levels.py: loss.backward()",
            "river_levels.py: return mean, 4 * torch.tanh(",
            "river_levels.py: self.votes = nn.ModuleList(",
            "river_levels.py: return torch.stack([mean for",
        ),
    ),
    Thread(
        id="I07",
        source="unit8co/darts#554 (hours of each window sought in the whole record; kept: merged, plotted)",
        script="unseen22/shop_demand.py",
        machine="G",
        verdicts=(INPUT,),
        # cure: the first hour of each series is sought once and kept; the others follow by counting.
        fixes=("FX107", "FX326", "FX101"),
        shorter={"STEPS": "150"},
        at=(
            "shop_demand.py: return np.flatnonzero(np.isin(",
            "shop_demand.py: return self.find(self.sales[shop].hours[at",
            "shop_demand.py: weather = self.weather.values[self.rows_of(",
            "shop_demand.py: loader = DataLoader(",
            "shop_demand.py: for step, batch in enumerate(loader):",
            "shop_demand.py: def find(self, hours)",
            "shop_demand.py: def rows_of(self, shop, at, length)",
            "shop_demand.py: def __getitem__(self, k)",
        ),
    ),
    Thread(
        id="I08",
        source="mosaicml/composer#467 (a second forward pass for the metrics of training; avoided)",
        script="unseen22/bakery_photos.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: the metrics from the outputs that the step has anyway.
        fixes=("FX326", "FX511", "FX504"),
        shorter={"STEPS": "150"},
        at=(
            "bakery_photos.py: outputs, targets = self.validate(",
            "bakery_photos.py: outputs = self.model(photos) @1",
            "bakery_photos.py: self.accuracy.update(outputs, targets)",
            "bakery_photos.py: loss = trainer.step(",
            "bakery_photos.py: def validate(self, photos, kinds)",
            'bakery_photos.py: if VARIANT == "a":',
        ),
    ),
    Thread(
        id="I09",
        source="MPI-Dortmund/tomotwin-cryoet#93, #105 (a pass each for anchor, like and unlike; one: merged)",
        script="unseen22/spore_volumes.py",
        machine="G",
        verdicts=(LAUNCH, HOST),
        # cure: the three joined into one batch and taken apart afterwards.
        fixes=("FX510", "FX515", "FX412", "FX414"),
        shorter={"STEPS": "220"},
        at=(
            "spore_volumes.py: return model(anchors), model(likes)",
            "spore_volumes.py: loss = criterion(*embed(",
            "spore_volumes.py: loss.backward()",
            "spore_volumes.py: x = self.blocks(self.start(",
            "spore_volumes.py: x = x + self.out(",
            "spore_volumes.py: return x + self.mlp(",
            "spore_volumes.py: def embed(model",
        ),
    ),
    Thread(
        id="I10",
        source="open-mmlab/mmdetection#2683 (annotations parsed anew: costs little in workers; maintainer)",
        script="unseen22/parking_lots.py",
        machine="G",
        verdicts=(COMPUTE,),
        not_verdicts=(INPUT,),
        not_fixes=("FX107", "FX101", "FX326"),
        shorter={"STEPS": "190"},
    ),
)
