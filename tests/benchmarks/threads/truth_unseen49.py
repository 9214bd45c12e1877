"""What is true of the forty-ninth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN49`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, Thread

UNSEEN49 = (
    Thread(
        id="YY01",
        source="ApolloResearch/e2e_sae#21 (the whole frozen model run for activations of an early layer; "
        "stopped there: less than half the time; merged)",
        script="unseen49/quarry_lamp.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # cure: stop the frozen model's forward at the layer whose activations the loss needs
        fixes=("FX330",),
        shorter={"STEPS": "350"},
        at=(
            "quarry_lamp.py: orig_logits, orig_acts = model.forward_raw(",
            'quarry_lamp.py: run_entire_model = VARIANT == "a" or',
            "quarry_lamp.py: stop = None if run_entire_model else self.layer",
            "quarry_lamp.py: return self.tlens_model(tokens, names=(self.position,)",
            "quarry_lamp.py: return self.unembed(self.ln_final(resid)), seen",
            "quarry_lamp.py: resid = block(resid)",
        ),
    ),
    Thread(
        id="YY02",
        source="gfdb/wav2aug#5 (a noise file read for each recording of a batch; all kept in memory: "
        "dramatically less; merged, no figures)",
        script="unseen49/tidal_reed.py",
        machine="C2",
        verdicts=(HOST, INPUT),
        # cure: read all noises once, at the start, and take stretches of them from memory
        fixes=("FX107", "FX358", "FX326"),
        shorter={"STEPS": "400"},
        at=(
            "tidal_reed.py: noise = load_wave(self.paths[choice])",
            "tidal_reed.py: raw = file.readframes(file.getnframes())",
            'tidal_reed.py: return torch.from_numpy(np.frombuffer(raw, "<i2").astype(np.float32)) / 32768.0',
            "tidal_reed.py: noises = torch.stack([loader.sample(length) for _ in range(n)])",
            "tidal_reed.py: return other(add_noise(batch, self.loader))",
        ),
    ),
    Thread(
        id="YY03",
        source="Lightning-AI/tutorials#306, #357 (fakes of the same points made three times per step; "
        "once: merged, no figures)",
        script="unseen49/linden_print.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # cure: keep the first fakes of the step and use them for both losses
        fixes=("FX326", "FX358"),
        shorter={"STEPS": "280"},
        at=(
            'linden_print.py: return self(z) if VARIANT == "a" else self.generated_imgs',
            "linden_print.py: self.generated_imgs = self(z)",
            "linden_print.py: self.discriminator(self.fakes(z).detach())",
            "linden_print.py: g_loss = self.adversarial_loss(self.discriminator(self.fakes(z)), 1.0)",
            "linden_print.py: return self.generator(z)",
            "linden_print.py: return self.model(z).view(z.shape[0], *self.shape)",
        ),
    ),
    Thread(
        id="YY04",
        source="RUCAIBox/RecBole#1216, #1217 (SR-GNN's tensor from a list of matrices; through one array: "
        "16 to 10 minutes an epoch; merged)",
        script="unseen49/market_lane.py",
        machine="C2",
        verdicts=(HOST,),
        # cure: make one array of the list of matrices, then the tensor
        fixes=("FX520", "FX529"),
        shorter={"STEPS": "350"},
        at=(
            'market_lane.py: A = torch.FloatTensor(A) if VARIANT == "a"',
            "market_lane.py: alias_inputs, A, items, mask = self._get_slice(item_seq)",
        ),
    ),
    Thread(
        id="YY05",
        source="ananyahjha93/multi-level-vae#2 (evidence of the groups image by image, number by number; "
        "at once: up to 6x; closed, the author's fork has its own)",
        script="unseen49/copper_kite.py",
        machine="C2",
        verdicts=(LAUNCH, HOST),
        # cure: add the evidence up for all images of the batch at once, by index_add
        fixes=("FX532", "FX510"),
        shorter={"STEPS": "420"},
        at=(
            "copper_kite.py: for j in range(len(class_var[i])):",
            "copper_kite.py: if class_var[i][j] == 0:",
            "copper_kite.py: var_dict[group_label] = var_dict[group_label] + 1 / class_var[i]",
            "copper_kite.py: mu_dict[group_label] = mu_dict[group_label] + class_mu[i] * (1 / class_var[i])",
            "copper_kite.py: mu_dict[group_label] = class_mu[i] * (1 / class_var[i])",
            "copper_kite.py: group_mu[i] = mu_dict[group_label]",
            "copper_kite.py: group_var[i] = var_dict[group_label]",
            "copper_kite.py: group_mu, group_logvar = self.evidence(class_mu, class_logvar, labels)",
        ),
    ),
    Thread(
        id="YY06",
        source="optuna/optuna#6300 (squared distances of a GP by product and sum; by matmul: "
        "20 % at 300 trials; merged)",
        script="unseen49/valley_probe.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # cure: sum the scaled squared differences with one matrix-vector product
        fixes=("FX351",),
        shorter={"STEPS": "360"},
        at=(
            "valley_probe.py: sqdist = (sqd * inverse_squared_lengthscales).sum(dim=-1)",
            "valley_probe.py: cov = self.kernel()",
        ),
    ),
    Thread(
        id="YY07",
        source="ArcInstitute/cell-load#62 (each control cell read from the file again; rows kept by "
        "lru_cache: 21 to 5 s for 25 batches; merged)",
        script="unseen49/spring_orchard.py",
        machine="C2",
        verdicts=(INPUT, HOST),
        # cure: keep the rows that were read (lru_cache on fetch_gene_expression)
        fixes=("FX107", "FX358", "FX326"),
        shorter={"STEPS": "180"},
        at=(
            "spring_orchard.py: def fetch_gene_expression(self, index: int)",
            'spring_orchard.py: "pert_cell_emb": self.fetch_gene_expression(index)',
            'spring_orchard.py: "ctrl_cell_emb": self.fetch_gene_expression(control)',
            'spring_orchard.py: self.store["indices"][begin:end]',
            'spring_orchard.py: self.store["data"][begin:end]',
            "spring_orchard.py: zlib.decompress(self.file.read(size))",
            "spring_orchard.py: parts = [self.read_chunk(number) for number in range(first, end + 1)]",
        ),
    ),
    Thread(
        id="YY08",
        source="ultralytics/yolov3#688 (trap: the test set's loader made anew in each epoch; once: "
        "0.206 and 0.200 h for five epochs)",
        script="unseen49/gull_watch.py",
        machine="C2",
        shorter={"STEPS": "400"},
        not_fixes=("FX105", "FX113", "FX101", "FX511"),
        not_verdicts=(INPUT,),
        at=(),
    ),
)
