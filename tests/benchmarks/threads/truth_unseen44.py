"""What is true of the forty-fourth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN44`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, SYNC, Thread

UNSEEN44 = (
    Thread(
        id="TT01",
        source="saltudelft/type4py#12 (triplets sought in all labels per item; made beforehand: 6x; open)",
        script="unseen44/lantern_mill.py",
        machine="G",
        verdicts=(INPUT,),
        # cure: choose the triplets of all anchors once, before training
        fixes=("FX107", "FX326", "FX532"),
        shorter={"STEPS": "150"},
        at=(
            "lantern_mill.py: mask = self.labels == self.labels[index]",
            "lantern_mill.py: same = mask.nonzero()",
            "lantern_mill.py: mask = self.labels != self.labels[index]",
            "lantern_mill.py: other = mask.nonzero()",
            "lantern_mill.py: similar, different = self.choose(index)",
            "lantern_mill.py: return self.data[index], self.data[similar]",
            "lantern_mill.py: anchor, similar, different, _ = next(stream)",
            "lantern_mill.py: loader = DataLoader(",
            "lantern_mill.py: yield from loader",
        ),
    ),
    Thread(
        id="TT02",
        source="facebookresearch/ParlAI#3474 (item() per example and metric; at once: 406 to 52 us; merged)",
        script="unseen44/thistle_harbor.py",
        machine="G",
        verdicts=(SYNC, HOST),
        # cure: bring each tensor of metrics to the host as a whole
        fixes=("FX502", "FX532", "FX501"),
        shorter={"STEPS": "220"},
        at=(
            "thistle_harbor.py: return value.item()",
            "thistle_harbor.py: return [cls(*items) for items in zip(*objs)]",
            "thistle_harbor.py: self.numer = as_number(numer)",
            "thistle_harbor.py: self.denom = as_number(denom)",
            'thistle_harbor.py: self.record_local_metric("loss", AverageMetric.many(loss.detach(), tokens))',
            'thistle_harbor.py: self.record_local_metric("ppl", PerplexityMetric.many(',
            'thistle_harbor.py: self.record_local_metric("token_acc", AverageMetric.many(correct, tokens))',
            'thistle_harbor.py: self.record_local_metric("token_em", AverageMetric.many(correct == tokens))',
        ),
    ),
    Thread(
        id="TT03",
        source="pytorch/rl#2046 (target networks updated weight by weight; foreach: faster; merged)",
        script="unseen44/copper_finch.py",
        machine="G",
        verdicts=(LAUNCH, HOST),
        # cure: update all target weights with torch._foreach calls
        fixes=("FX312", "FX510", "FX532"),
        shorter={"STEPS": "340"},
        at=(
            "copper_finch.py: p_target.data.copy_(p_target.data * self.eps",
            "copper_finch.py: self._step(p_source, p_target)",
            "copper_finch.py: p_target = self.targets[name]",
            "copper_finch.py: if p_target.requires_grad:",
            "copper_finch.py: updater.step()",
        ),
    ),
    Thread(
        id="TT04",
        source="DeepLearnPhysics/lartpc_mlreco3d#80 (loss cluster by cluster: 15-20 to 7-9 s; merged)",
        script="unseen44/meadow_clock.py",
        machine="G",
        verdicts=(LAUNCH, SYNC, HOST),
        # cure: compute the terms of all clusters of a class at once, by scatter
        fixes=("FX532", "FX510", "FX502"),
        shorter={"STEPS": "65"},
        at=(
            "meadow_clock.py: for i, c in enumerate(clusters):",
            "meadow_clock.py: for c in labels.unique(sorted=True):",
            "meadow_clock.py: means.append(features[labels == c].mean(dim=0))",
            "meadow_clock.py: centroids = self.find_cluster_means(embeddings, labels)",
            "meadow_clock.py: index = labels == c",
            "meadow_clock.py: mask = torch.zeros_like(margins)",
            "meadow_clock.py: mask[index] = 1.0",
            "meadow_clock.py: sigma = margins[index].mean()",
            "meadow_clock.py: dists = (embeddings - centroids[i])",
            "meadow_clock.py: probs[index] = p[index].detach()",
            "meadow_clock.py: loss = loss + F.binary_cross_entropy(p, mask)",
            "meadow_clock.py: smoothing = smoothing + (margins[index]",
            "meadow_clock.py: inside = p.detach() > 0.5",
            "meadow_clock.py: accuracy = accuracy + (inside & index)",
            "meadow_clock.py: mask_loss, smoothing, probs, acc = per_class(",
            "meadow_clock.py: loss, accuracy = criterion(*model(image, pixels)",
        ),
    ),
    Thread(
        id="TT05",
        source="kumar-shridhar/PyTorch-BayesianCNN#3 (noise drawn on the CPU, then copied: 7 times slower)",
        script="unseen44/willow_gate.py",
        machine="G",
        verdicts=(HOST, SYNC),
        # cure: draw the noise of the activations on the device
        fixes=("FX524", "FX521"),
        shorter={"STEPS": "140"},
        at=(
            "willow_gate.py: return torch.randn(mean.size()).to(device)",
            "willow_gate.py: return mean + torch.sqrt(variance + 1e-8) * noise_like(mean)",
        ),
    ),
    Thread(
        id="TT06",
        source="openclimatefix/pvnet#533 (matrix products of float32 without TF32; allowed; merged)",
        script="unseen44/amber_quay.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: torch.set_float32_matmul_precision("high")
        fixes=("FX301", "FX303"),
        shorter={"STEPS": "110"},
        at=(
            'amber_quay.py: torch.set_float32_matmul_precision("high")',
            "amber_quay.py: q, k, v = self.joint(self.norm_first(x))",
            "amber_quay.py: h = F.scaled_dot_product_attention(q, k, v)",
            "amber_quay.py: x = x + self.back(h)",
            "amber_quay.py: return x + self.narrow(F.gelu(self.widen(self.norm_second(x))))",
            "amber_quay.py: x = block(x)",
            'amber_quay.py: loss = criterion(model(batch), batch["target"])',
            "amber_quay.py: loss.backward()",
        ),
    ),
    Thread(
        id="TT07",
        source="AnswerDotAI/ModernBERT#103 (scores of words that were not masked; with #102 ~25 %; merged)",
        script="unseen44/pebble_orchard.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: keep only the masked places before the prediction head
        fixes=("FX330",),
        shorter={"STEPS": "140"},
        at=(
            "pebble_orchard.py: logits = F.linear(self.head(output), self.encoder.words.weight, self.bias)",
            "pebble_orchard.py: return F.cross_entropy(logits.float(), labels, ignore_index=IGNORE)",
            "pebble_orchard.py: output = self.encoder(words).flatten(0, 1)",
            "pebble_orchard.py: loss = model(words, labels)",
        ),
    ),
    Thread(
        id="TT08",
        source="mozilla/TTS#214 (trap: spectrograms made in the collate function are no bottleneck)",
        script="unseen44/granite_swallow.py",
        machine="G",
        # trap: eight workers make a batch in a fraction of a step; the decoder's loop is what takes long
        not_verdicts=(INPUT,),
        not_fixes=("FX101", "FX106", "FX107", "FX110", "FX111", "FX326"),
        shorter={"STEPS": "75"},
        at=(),
    ),
)
