"""What is true of the forty-second set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN42`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, Thread

UNSEEN42 = (
    Thread(
        id="RR01",
        source="baal-org/baal#264 (labelled places listed anew for each picture: 83 to 5 s; kept in 1.8.0)",
        script="unseen42/osprey_marsh.py",
        machine="C2",
        verdicts=(INPUT, HOST),
        # cure: list the places of the labelled pictures once per round of labelling, not for each item
        fixes=("FX107", "FX326"),
        shorter={"STEPS": "560"},
        at=(
            "osprey_marsh.py: indices = [index for index, value in enumerate(self.labelled_map)",
            "osprey_marsh.py: return self.source[self.training_indices()[index]]",
            "osprey_marsh.py: pictures, targets = next(stream)",
        ),
    ),
    Thread(
        id="RR02",
        source="kornia/kornia#3817 (elastic field smoothed by a square of 63 x 63; by lines: 41x; merged)",
        script="unseen42/lantern_quay.py",
        machine="C2",
        verdicts=(COMPUTE, INPUT),
        # cure: filter along the lines and then along the columns, not with the whole square
        fixes=("FX359", "FX107"),
        shorter={"STEPS": "200"},
        at=(
            "lantern_quay.py: return F.conv2d(flat, kernel[None, None])",
            "lantern_quay.py: field_x = filter_square(noise[:, :1], kernel_x)",
            "lantern_quay.py: field_y = filter_square(noise[:, 1:], kernel_y)",
            "lantern_quay.py: field = self.smooth(noise)",
            "lantern_quay.py: batch, target = augmentation(batch, target)",
        ),
    ),
    Thread(
        id="RR03",
        source="lhotse-speech/lhotse#604 (all features copied for each blanked span; in place; merged)",
        script="unseen42/harbour_bell.py",
        machine="C2",
        verdicts=(INPUT, LAUNCH, HOST, COMPUTE),
        # cure: draw all spans at once and write them into the features, without a copy for each span
        fixes=("FX346", "FX107", "FX532"),
        shorter={"STEPS": "190"},
        at=(
            "harbour_bell.py: features = features.masked_fill(mask, value)",
            "harbour_bell.py: for _ in range(times):",
            "harbour_bell.py: features = blank_one_span(features.unsqueeze(0)",
            "harbour_bell.py: features = blank_spans(features, self.bin_size",
            "harbour_bell.py: return blank_spans(features, min(self.frame_size",
            "harbour_bell.py: features[place] = self.single(features[place])",
            "harbour_bell.py: features = transform(features)",
        ),
    ),
    Thread(
        id="RR04",
        source="deepchem/deepchem#4662, #4015 (bond maps of each molecule made per batch; kept: ~1.6x)",
        script="unseen42/cedar_loft.py",
        machine="C2",
        verdicts=(INPUT, HOST),
        # cure: make the maps of each molecule once, when it is featurized, and keep them
        fixes=("FX107", "FX326"),
        shorter={"STEPS": "520"},
        at=(
            "cedar_loft.py: mappers = [graph.mapper if VARIANT",
            "cedar_loft.py: lists.append(list(np.where(self.graph.edge_index[1] == atom)[0]))",
            "cedar_loft.py: mapping[place][np.where(mapping[place] == bond)] = -1",
            "cedar_loft.py: self.mapping = self._without_reverse(self.reaching[self.leaves])",
            "cedar_loft.py: self.reaching = self._bonds_that_reach()",
            "cedar_loft.py: yield to_batch([graphs[place] for place in chosen]), targets[chosen]",
            "cedar_loft.py: batch, wanted = next(stream)",
        ),
    ),
    Thread(
        id="RR05",
        source="ourownstory/neural_prophet#1636 (samples as many small tensors; one stacked: 2x; merged)",
        script="unseen42/meadow_clock.py",
        machine="C2",
        verdicts=(INPUT, HOST),
        # cure: stack all columns beforehand, cut one piece per sample, take the batch apart afterwards
        fixes=("FX107", "FX116"),
        shorter={"STEPS": "450"},
        at=(
            "meadow_clock.py: inputs, targets = self.tabularize(place)",
            'meadow_clock.py: inputs = OrderedDict(time=self.series["t"][ahead], lags',
            'meadow_clock.py: inputs["seasons"] = OrderedDict((name, values[ahead])',
            'meadow_clock.py: inputs["covariates"] = OrderedDict((name, self.series[name][before])',
            "meadow_clock.py: loader = DataLoader(dataset, batch_size=BATCH",
            "meadow_clock.py: batch = next(stream)",
        ),
    ),
    Thread(
        id="RR06",
        source="DeepX-inc/machina#179, #197 (replay permuted for each batch; randint: faster; merged)",
        script="unseen42/falcon_ridge.py",
        machine="C2",
        verdicts=(INPUT, COMPUTE, HOST),
        # cure: draw as many places as the batch has, not a permutation of all steps
        fixes=("FX107",),
        shorter={"STEPS": "500"},
        at=(
            "falcon_ridge.py: indices = indices[torch.randperm(len(indices), generator=self.generator)]",
            "falcon_ridge.py: indices = torch.arange(self.num_step)",
            "falcon_ridge.py: indices = self._get_indices(indices, shuffle=True)[:batch_size]",
            "falcon_ridge.py: yield self.random_batch_once(batch_size, indices)",
            "falcon_ridge.py: for batch in traj.random_batch(BATCH, epoch=3)",
        ),
    ),
    Thread(
        id="RR07",
        source="allenai/allennlp#1347, #1269 (frozen character CNN in each pass; kept: 34 %; merged)",
        script="unseen42/quill_orchard.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # cure: run the frozen character encoder once over the vocabulary, then look its vectors up
        fixes=("FX110", "FX326", "FX358"),
        shorter={"STEPS": "560"},
        at=(
            'quill_orchard.py: vectors = self.encoder(batch["characters"])',
            "quill_orchard.py: parts = [F.relu(convolution(embedded).amax(-1))",
            "quill_orchard.py: return self.projection(self.highway(torch.cat(parts, dim=-1)))",
            "quill_orchard.py: layers = self.language_model(batch)",
        ),
    ),
    Thread(
        id="RR08",
        source="vllm-project/speculators#815 (trap: packed by cat and pad, 10 to 8 ms, hidden; closed)",
        script="unseen42/glacier_port.py",
        machine="C2",
        not_fixes=("FX107", "FX346", "FX116", "FX101", "FX106"),
        not_verdicts=(INPUT,),
        shorter={"STEPS": "400"},
        at=(),
    ),
)
