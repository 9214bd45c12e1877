"""What is true of the forty-seventh set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN47`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, Thread

UNSEEN47 = (
    Thread(
        id="WW01",
        source="skorch-dev/skorch#730 (types looked up for each row of the history: 10 to 2.5 s; merged)",
        script="unseen47/otter_creek.py",
        machine="C2",
        verdicts=(HOST,),
        # cure: choose once how a key is taken from the rows, then take it from all of them in one plain loop
        fixes=("FX530", "FX504", "FX514"),
        shorter={"STEPS": "480"},
        at=(
            "otter_creek.py: _filter_none([_getitem(row, key) for row in rows])",
            "otter_creek.py: else _getitem(rows, key)",
            "otter_creek.py: return all(item is not _none for item in items)",
            "otter_creek.py: return type_(filter(_not_none, items))",
            "otter_creek.py: return item.get(key, _none)",
            "otter_creek.py: if not isinstance(items, (tuple, list)):",
            'otter_creek.py: values = net.history[-1, "batches", :, self.name]',
            'otter_creek.py: sizes = net.history[-1, "batches", :, self.size]',
        ),
    ),
    Thread(
        id="WW02",
        source="awslabs/dgl-lifesci#206, #205 (file of features read anew for each molecule; kept: merged)",
        script="unseen47/amber_vial.py",
        machine="C2",
        verdicts=(INPUT, HOST),
        # cure: make the factory of features once, when the featurizer is made
        fixes=("FX107", "FX326", "FX358"),
        shorter={"STEPS": "320"},
        at=(
            "amber_vial.py: factory = FeatureFactory(self.path) if",
            "amber_vial.py: for line in file:",
            "amber_vial.py: with open(path) as file:",
            "amber_vial.py: types[words[1]] = self.expand(words[2].strip(), types)",
            "amber_vial.py: name, pattern = words[1], Pattern(self.expand(words[2].strip(), types))",
            "amber_vial.py: return self.featurizer(molecule), molecule[2], self.targets[index]",
        ),
    ),
    Thread(
        id="WW03",
        source="cornellius-gp/gpytorch#454 (conjugate gradients three times per bound; once, kept: merged)",
        script="unseen47/willow_ridge.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # cure: solve for all right sides of the bound with one run of conjugate gradients, and keep the parts
        fixes=("FX326", "FX374", "FX510"),
        shorter={"STEPS": "240"},
        at=(
            "willow_ridge.py: return Solve.apply(self.matrix, torch.cat(sides, dim=1))",
            "willow_ridge.py: image = matrix @ direction",
            "willow_ridge.py: solution = conjugate_gradients(matrix, right)",
            "willow_ridge.py: back = conjugate_gradients(matrix, gradient)",
            'willow_ridge.py: (weights,) = system.solve("data")',
            'willow_ridge.py: (lift,) = system.solve("data")',
            'willow_ridge.py: mean, root, probes = system.solve("mean", "root", "probes")',
        ),
    ),
    Thread(
        id="WW04",
        source="pymor/pymor#2535 (after each update the batch goes through the network again; merged)",
        script="unseen47/marsh_lantern.py",
        machine="C2",
        verdicts=(COMPUTE, HOST),
        # cure: take the loss that optimizer.step(closure) gives back, and run the closure no second time
        fixes=("FX326", "FX330"),
        shorter={"STEPS": "600"},
        at=(
            "marsh_lantern.py: loss = self.criterion(self.network(inputs), targets)",
            "marsh_lantern.py: loss.backward()",
            "marsh_lantern.py: loss = closure()",
            "marsh_lantern.py: loss = self.batch_loss(inputs, targets, phase)",
        ),
    ),
    Thread(
        id="WW05",
        source="NVIDIA-NeMo/Speech#1998 (mask made and filled per convolution: 50 to 45 minutes; merged)",
        script="unseen47/finch_meadow.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # cure: multiply by the mask in place of masked_fill, from places kept in a buffer
        fixes=(),
        no_entry=True,
        shorter={"STEPS": "160"},
        at=(
            "finch_meadow.py: x = x.masked_fill(mask.unsqueeze(1).to(x.device), 0)",
            "finch_meadow.py: mask = torch.arange(longest).to(lengths.device).expand(",
        ),
    ),
    Thread(
        id="WW06",
        source="chanind/frame-semantic-transformer#1 (rows of full length; cut to the longest: merged)",
        script="unseen47/copper_gate.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # cure: cut off the columns of padding that no row of the batch uses
        fixes=("FX109",),
        shorter={"STEPS": "180"},
        at=(
            "copper_gate.py: return self.model(input_ids, attention_mask, labels)",
            "copper_gate.py: rows = torch.full((len(texts), self.length), PAD)",
            "copper_gate.py: self.input_ids, self.attention_mask = Tokenizer(SOURCE_LENGTH)(sources)",
            "copper_gate.py: self.labels, _ = Tokenizer(TARGET_LENGTH)(targets)",
            "copper_gate.py: memory = self.encoder(self.embed(input_ids), src_key_padding_mask=hidden)",
            "copper_gate.py: scores = self.norm(out) @ self.words.weight.T",
        ),
    ),
    Thread(
        id="WW07",
        source="py-why/dowhy#1358 (kernel distances in pieces; by cdist: step 0.634 to 0.390 s; merged)",
        script="unseen47/harbor_stone.py",
        machine="C2",
        verdicts=(LAUNCH, HOST),
        # cure: take the distances of the kernel with torch.cdist, one call for seven
        fixes=("FX510", "FX363", "FX532"),
        shorter={"STEPS": "340"},
        at=(
            "harbor_stone.py: left_norm = left.pow(2).sum(dim=-1, keepdim=True)",
            "harbor_stone.py: right_norm = right.pow(2).sum(dim=-1, keepdim=True)",
            "harbor_stone.py: product = torch.addmm(right_norm.transpose(-2, -1), left",
            "harbor_stone.py: return product.add_(left_norm).clamp_min_(1e-30)",
            "harbor_stone.py: distances = pair_distances(left, right)",
            "harbor_stone.py: kernel = torch.zeros_like(distances)",
            "harbor_stone.py: kernel.add_(torch.exp(distances.mul(-gamma)))",
            "harbor_stone.py: within_left = gaussian_kernel(left, left, gamma).mean()",
            "harbor_stone.py: within_right = gaussian_kernel(right, right, gamma).mean()",
            "harbor_stone.py: between = gaussian_kernel(left, right, gamma).mean()",
            "harbor_stone.py: penalty = penalty + mean_discrepancy(samples[first]",
            "harbor_stone.py: for second in range(first + 1, len(samples)):",
        ),
    ),
    Thread(
        id="WW08",
        source="microsoft/DeepGNN#9 (trap: nodes of a batch encoded twice; once: no time delta; merged)",
        script="unseen47/maple_bridge.py",
        machine="C2",
        # cure: none; nodes that come twice in a batch are too few to matter
        not_fixes=("FX326", "FX358"),
        shorter={"STEPS": "450"},
        at=(),
    ),
)
