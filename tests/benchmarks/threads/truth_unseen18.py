"""What is true of the eighteenth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN18`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, SYNC, Thread

UNSEEN18 = (
    Thread(
        id="M01",
        source="BiomedSciAI/fuse-med-ml#267 (each batch taken apart into samples: a major bottleneck; fixed)",
        script="unseen18/hive_visits.py",
        machine="G",
        verdicts=(HOST,),
        # cure: keep the columns of the batches and join these at the end of the epoch.
        fixes=("FX504", "FX514", "FX339"),
        shorter={"STEPS": "110"},
        at=(
            "hive_visits.py: return [{key: values[i]",
            "hive_visits.py: self.samples += to_samples(batch)",
            "hive_visits.py: results.collect(batch)",
            "hive_visits.py: return {k: torch.stack([sample[k]",
        ),
    ),
    Thread(
        id="M02",
        source="roboflow/rf-detr#1389 (large JPEGs decoded whole, then made small; draft(): merged)",
        script="unseen18/market_stalls.py",
        machine="G",
        verdicts=(INPUT,),
        # cure: have libjpeg decode at a fraction of the size (Image.draft).
        fixes=("FX107",),
        shorter={"STEPS": "70"},
        at=(
            'market_stalls.py: return image.convert("RGB")',
            "market_stalls.py: image = Image.open(path)",
            "market_stalls.py: image = self.read(self.paths[which])",
            "market_stalls.py: image = image.resize((round(",
            "market_stalls.py: loader = DataLoader(",
            "market_stalls.py: Stalls(Path(folder), STEPS * BATCH), BATCH",
            "market_stalls.py: in enumerate(loader):",
        ),
    ),
    Thread(
        id="M03",
        source="pytorch/pytorch#122170 (cumsum along the first of two dimensions: 83 ms, transposed 0.37)",
        script="unseen18/tide_records.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: sum along the last dimension of a transposed copy.
        no_entry=True,
        shorter={"STEPS": "90"},
        at=(
            "tide_records.py: total = y.cumsum(1)",
            "tide_records.py: return self.leave(self.past(",
            "tide_records.py: loss.backward()",
        ),
    ),
    Thread(
        id="M04",
        source="kamalkraj/BERT-NER#19 (a value read per word piece, to pick first pieces; much slower)",
        script="unseen18/village_names.py",
        machine="G",
        verdicts=(SYNC, LAUNCH, HOST),
        # cure: a boolean mask per sentence. Reported and tried by a user, not merged.
        fixes=("FX502", "FX510", "FX339", "FX514"),
        shorter={"STEPS": "140"},
        at=(
            "village_names.py: if starts[i][j].item() == 1:",
            "village_names.py: found[i][at] = encoded[i][j]",
            "village_names.py: for j in range(encoded.shape[1]):",
            "village_names.py: for i in range(len(encoded)):",
            "village_names.py: scores = self.classifier(self.words(",
            "village_names.py: loss.backward()",
        ),
    ),
    Thread(
        id="M05",
        source="unslothai/unsloth#11238 (model.train() walks all modules in each micro-step: 840 to 769 ms)",
        script="unseen18/opera_plots.py",
        machine="G",
        verdicts=(HOST, LAUNCH),
        # cure: once, where the model is not in training mode. Measured; still open when it was read.
        fixes=("FX504", "FX514"),
        shorter={"STEPS": "60"},
        at=(
            "opera_plots.py: self.model.train()",
            "opera_plots.py: total = sum(map(self.part, parts))",
            "opera_plots.py: loss = tuner.step(texts[step % 8])",
        ),
    ),
    Thread(
        id="M06",
        source="131250208/TPlinker-joint-extraction#12 (pairs word by word, with repeat; said by the author)",
        script="unseen18/guild_charters.py",
        machine="G",
        verdicts=(LAUNCH, HOST),
        # cure: all pairs by two gathers and one linear layer.
        fixes=("FX510", "FX513", "FX339", "FX343"),
        shorter={"STEPS": "180"},
        at=(
            "guild_charters.py: for i in range(n):",
            "guild_charters.py: later = x[:, i:]",
            "guild_charters.py: guide = x[:, i].unsqueeze(1).repeat(",
            "guild_charters.py: states.append(torch.tanh(self.join(",
            "guild_charters.py: return torch.cat(states, 1)",
            "guild_charters.py: return self.relation(self.pairs(x))",
            "guild_charters.py: loss.backward()",
        ),
    ),
    Thread(
        id="M07",
        source="meta-pytorch/torchtune#1558 (keys turned after they were repeated: 1,247 to 1,317 tokens/s)",
        script="unseen18/train_delays.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: turn the few keys, then repeat them. A fused kernel for the turning gains as well.
        fixes=("FX343", "FX314", "FX414"),
        shorter={"STEPS": "100"},
        at=(
            "train_delays.py: k = self.rotary(k)",
            "train_delays.py: k, v = self.widen(k), self.widen(v)",
            "train_delays.py: return x.unsqueeze(3).expand(",
            "train_delays.py: pairs = x.float().reshape(",
            "train_delays.py: turned = torch.stack(",
            "train_delays.py: return turned.flatten(3).type_as(x)",
            "train_delays.py: q = self.rotary(self.q(x)",
            "train_delays.py: x = x + self.attention(self.norm1(x))",
        ),
    ),
    Thread(
        id="M08",
        source="Lightning-AI/pytorch-lightning#1392 (every gradient searched for NaN: 0.5 s per iteration)",
        script="unseen18/shell_finder.py",
        machine="G",
        verdicts=(SYNC, LAUNCH, HOST),
        # cure: off by default; or one read for all.
        fixes=("FX502", "FX504", "FX501", "FX503", "FX510"),
        shorter={"STEPS": "140"},
        at=(
            "shell_finder.py: if torch.isnan(weight.grad).any()",
            "shell_finder.py: for name, weight in self.model.named_parameters():",
            "shell_finder.py: self.inspect(loss)",
            "shell_finder.py: loss = trainer.step(pictures[rows]",
        ),
    ),
    Thread(
        id="M09",
        source="NVlabs/vla0#21 (prompts processed again one by one for their lengths: ~60 % faster by batch)",
        script="unseen18/orchard_arm.py",
        machine="G",
        verdicts=(INPUT, HOST),
        # cure: count the words of the order; the picture need not be processed for it.
        fixes=("FX107", "FX514", "FX504", "FX326"),
        shorter={"STEPS": "60"},
        at=(
            "orchard_arm.py: return torch.stack([self.processor([o], [p])",
            "orchard_arm.py: known = self.lengths(orders, pictures)",
            "orchard_arm.py: x = F.interpolate(picture[None]",
            'orchard_arm.py: "patches": torch.cat([self.patches(p)',
            "orchard_arm.py: loss = model(*(part[step % 8",
        ),
    ),
    Thread(
        id="M10",
        source="espnet/espnet#1060 (table of positions copied to the GPU each time: no difference observed)",
        script="unseen18/radio_plays.py",
        machine="G",
        verdicts=(COMPUTE,),
        # trap: a megabyte of pageable memory per step, beside some 70 ms of float32 products.
        not_fixes=("FX523", "FX521", "FX103", "FX104", "FX502", "FX503", "FX508", "FX509", "FX524"),
        shorter={"STEPS": "90"},
    ),
)
