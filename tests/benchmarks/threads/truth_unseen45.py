"""What is true of the forty-fifth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN45`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, Thread

UNSEEN45 = (
    Thread(
        id="UU01",
        source="NVIDIA-NeMo/Speech#15739, #14089 (blocks of frames hidden one by one: ~18 % of all; merged)",
        script="unseen45/osprey_cliff.py",
        machine="C2",
        verdicts=(LAUNCH, HOST),
        # cure: mark the starts of all blocks at once, widen them to blocks, set the value with one where
        fixes=("FX532", "FX510", "FX374"),
        shorter={"STEPS": "230"},
        at=(
            "osprey_cliff.py: for index in range(features.shape[0])",
            "osprey_cliff.py: for begin in starts[index].nonzero().flatten()",
            "osprey_cliff.py: end = begin + self.block_size",
            "osprey_cliff.py: masks[index, :, begin:end] = 1.0",
            "osprey_cliff.py: hidden[index, :, begin:end] = value",
            "osprey_cliff.py: hidden, masks = masker(features, lengths)",
        ),
    ),
    Thread(
        id="UU02",
        source="mozilla/fathom#104, #105 (accuracy sample by sample in each step: 99 % of the run; merged)",
        script="unseen45/lantern_pier.py",
        machine="C2",
        verdicts=(HOST, LAUNCH),
        # cure: take the accuracy of all samples at once, from the predictions that the step has anyway
        fixes=("FX528", "FX532", "FX504"),
        shorter={"STEPS": "110"},
        at=(
            "lantern_pier.py: for index, scores in enumerate(x)",
            "lantern_pier.py: if abs(model(scores).sigmoid().item()",
            'lantern_pier.py: writer.add_scalar("training_accuracy"',
        ),
    ),
    Thread(
        id="UU03",
        source="mit-ll-responsible-ai/equine#196 (all rows of a class taken for few: 11.3 to 0.23 ms)",
        script="unseen45/fennel_marsh.py",
        machine="C2",
        verdicts=(INPUT, HOST),
        # cure: cut the numbers of the rows first, then take only these rows; labels without a long list
        fixes=("FX107", "FX330", "FX514"),
        shorter={"STEPS": "330"},
        at=(
            "fennel_marsh.py: rows_of_class = self.table.rows[self.by_class[label]]",
            "fennel_marsh.py: return rows_of_class[begin : begin + SUPPORT]",
            "fennel_marsh.py: class_rows = self.table.rows[self.by_class[label]]",
            "fennel_marsh.py: class_labels = torch.Tensor([place] * len(self.by_class[label]))",
            "fennel_marsh.py: queries.append(class_rows[begin : begin + QUERIES])",
            "fennel_marsh.py: support.append(self.generate_support(label))",
            "fennel_marsh.py: support, queries, labels = maker.generate_episode()",
        ),
    ),
    Thread(
        id="UU04",
        source="pyro-ppl/pyro#2383 (subsample by multinomial without replacement; randperm: > 40x; merged)",
        script="unseen45/willow_ferry.py",
        machine="C2",
        verdicts=(INPUT, COMPUTE),
        # cure: the first of a random permutation, not multinomial over equal weights
        fixes=("FX338", "FX107"),
        shorter={"STEPS": "450"},
        at=(
            "willow_ferry.py: return torch.multinomial(torch.ones(self.size), self.subsample_size",
            "willow_ferry.py: self.indices = self.distribution.sample()",
            "willow_ferry.py: with self.plate as plate",
        ),
    ),
    Thread(
        id="UU05",
        source="iancovert/fastshap#4 (subsets of columns drawn row by row with randperm; at once: merged)",
        script="unseen45/juniper_gate.py",
        machine="C2",
        verdicts=(LAUNCH, HOST, INPUT),
        # cure: compare random heights of all rows with one random threshold a row
        fixes=("FX532", "FX510", "FX374"),
        shorter={"STEPS": "420"},
        at=(
            "juniper_gate.py: for row in range(count)",
            "juniper_gate.py: known[row, sizes[row] :] = 0",
            "juniper_gate.py: known[row] = known[row, torch.randperm(self.columns)]",
            "juniper_gate.py: known = sampler.sample(len(rows))",
        ),
    ),
    Thread(
        id="UU06",
        source="madminer-tool/madminer#191 (score by a gradient with its graph, used by no loss; left out)",
        script="unseen45/copper_glade.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # cure: take the gradient for the parameters only in the methods whose loss reads it
        fixes=("FX325", "FX330"),
        shorter={"STEPS": "320"},
        at=(
            "copper_glade.py: t_hat = torch.autograd.grad(log_r, theta",
            "copper_glade.py: self.track_score = True if VARIANT",
            'copper_glade.py: outputs = self.model(batch["theta"], batch["x"]',
        ),
    ),
    Thread(
        id="UU07",
        source="graph4ai/graph4nlp#171 (batch taken apart by a look at all edges for each graph; merged)",
        script="unseen45/pebble_vale.py",
        machine="C2",
        verdicts=(HOST,),
        # cure: cut each graph's own edges from the list, by the counts that the batch keeps
        fixes=("FX514", "FX530", "FX532"),
        shorter={"STEPS": "130"},
        at=(
            "pebble_vale.py: for source, target in batch.edges:",
            "pebble_vale.py: if first_node <= source < end_node and first_node <= target < end_node",
            "pebble_vale.py: sources.append(source - first_node)",
            "pebble_vale.py: targets.append(target - first_node)",
            "pebble_vale.py: parts = from_batch(batch)",
        ),
    ),
    Thread(
        id="UU08",
        source="NVIDIA-NeMo/Speech#2398 (trap: spans of SpecAugment drawn in a loop over the batch: 300 us)",
        script="unseen45/thistle_quay.py",
        machine="C2",
        not_fixes=("FX532", "FX514", "FX374"),
        shorter={"STEPS": "180"},
        at=(),
    ),
)
