"""What is true of the eleventh set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN11`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import ALLOCATOR, COMPUTE, HOST, INPUT, LAUNCH, Thread

UNSEEN11 = (
    Thread(
        id="E01",
        source="huggingface/transformers#14472, huggingface/trl#3095 (lists joined by sum: 166 to 27 s)",
        script="unseen11/ticket_topics.py",
        # measured: 42.7 to 18.6 ms.
        verdicts=(INPUT,),
        # cure: chain.from_iterable, which copies each word once.
        fixes=("FX107",),
        shorter={"STEPS": "150"},
        at=(
            "ticket_topics.py: return sum(texts, [])",
            "ticket_topics.py: words = torch.tensor(flatten(texts))",
        ),
    ),
    Thread(
        id="E02",
        source="melloddy/SparseChem#1 (a sparse matrix made for each row; slices of its arrays: up to 4x)",
        script="unseen11/assay_targets.py",
        # measured: 34.6 to 15.4 ms.
        verdicts=(INPUT,),
        # cure: slice indices and data by indptr. All rows of a batch by one index would do as well.
        fixes=("FX107", "FX112"),
        shorter={"STEPS": "180"},
        at=("assay_targets.py: x, y = self.x[index], self.y[index]",),
    ),
    Thread(
        id="E03",
        source="pytorch/pytorch#79321, #94160, #73860, fastai/fastai#3683 (a subclass of Tensor: -40 %)",
        script="unseen11/reef_photos.py",
        # measured: 48.7 to 39.2 ms.
        verdicts=(HOST, LAUNCH),
        # cure: hand the model a plain tensor, so that no operation runs __torch_function__.
        fixes=("FX514", "FX504"),
        shorter={"STEPS": "180"},
        at=(
            "reef_photos.py: result = super().__torch_function__(",
            'reef_photos.py: if isinstance(argument, Photos) and "dives"',
            "reef_photos.py: inputs = photos if",
            "reef_photos.py: loss = F.cross_entropy(model(inputs)",
        ),
    ),
    Thread(
        id="E04",
        source="Lightning-AI/torchmetrics#709, #76 (metrics that share their counts: 18.4 to 8.4 s)",
        script="unseen11/field_cover.py",
        # measured: 33.9 to 12.1 ms.
        verdicts=(HOST, COMPUTE, LAUNCH),
        # cure: compute_groups=True, so that one metric counts for all.
        fixes=("FX504",),
        shorter={"STEPS": "220"},
        at=(
            "field_cover.py: return MetricCollection(",
            "field_cover.py: compute_groups=VARIANT",
            "field_cover.py: metrics.update(logits.detach(), cover[rows])",
            "field_cover.py: model, metrics = CoverNet(), scores()",
        ),
    ),
    Thread(
        id="E05",
        source="pytorch/pytorch#140000, ultralytics/ultralytics#26261 (argmax on the CPU: 1.55 to 0.21 s)",
        script="unseen11/brain_tissue.py",
        # measured: 62.5 to 27.0 ms.
        verdicts=(COMPUTE, HOST),
        # cure: numpy.argmax, or max(1).indices; both stream over the axis.
        no_entry=True,
        shorter={"STEPS": "150"},
        at=(
            "brain_tissue.py: return logits.argmax(1)",
            "brain_tissue.py: overlap.add(most_likely(full), tissue[rows])",
        ),
    ),
    Thread(
        id="E06",
        source="pytorch/pytorch#72408, numpy/numpy#14556 (products of integer matrices: 328 to 10.7 ms)",
        script="unseen11/metro_links.py",
        # measured: 76.9 to 26.3 ms.
        verdicts=(COMPUTE,),
        # cure: multiply in float32 and convert the product.
        fixes=("FX322",),
        shorter={"STEPS": "100"},
        at=(
            "metro_links.py: two = links @1",
            "metro_links.py: return two, two",
            "metro_links.py: two, three = shared_stops(links)",
        ),
    ),
    Thread(
        id="E07",
        source="luxonis/luxonis-ml#140 (the whole table searched for each sample: 1,151 to 502 s)",
        script="unseen11/ward_stays.py",
        # measured: 55.5 to 40.1 ms.
        verdicts=(INPUT,),
        # cure: group the rows once, in __init__.
        fixes=("FX107",),
        shorter={"STEPS": "130"},
        at=(
            'ward_stays.py: return self.notes[self.notes["patient"] == patient]',
            "ward_stays.py: values = self.stay(patient)",
        ),
    ),
    Thread(
        id="E08",
        source="facebookresearch/habitat-lab#1120 (settings of Hydra looked up each time: 134 to 164 fps)",
        script="unseen11/shelf_robot.py",
        # measured: 39.1 to 11.7 ms.
        verdicts=(HOST,),
        # cure: keep the values as plain attributes.
        fixes=("FX504", "FX514"),
        shorter={"STEPS": "170"},
        at=(
            "shelf_robot.py: if name not in self._values:",
            "shelf_robot.py: value = self._values[name]",
            "shelf_robot.py: return Settings(value, self._root)",
            "shelf_robot.py: return reduce(getattr,",
            "shelf_robot.py: return 0 <= x < self.settings.hall.size.width",
            "shelf_robot.py: table, scale, reach = self.settings.hall.table",
            "shelf_robot.py: walls = [float(not self.inside(",
            "shelf_robot.py: return [(x - self.x) / scale.x",
            "shelf_robot.py: rewards, table = self.settings.reward",
            "shelf_robot.py: seen.append(torch.tensor([robot.view()",
            "shelf_robot.py: settings = HALL if",
        ),
    ),
    Thread(
        id="E09",
        source="nikhilbarhate99/PPO-PyTorch#60, pytorch/pytorch#73582 (MultivariateNormal: no figures, weak)",
        script="unseen11/crane_load.py",
        # measured: 22.1 to 18.3 ms.
        verdicts=(LAUNCH, HOST),
        # cure: Independent(Normal(...), 1): the covariance is diagonal, so no Cholesky, no solve.
        no_entry=True,
        shorter={"STEPS": "150"},
        at=(
            "crane_load.py: covariance = torch.diag_embed(",
            "crane_load.py: choice = MultivariateNormal(mean, covariance",
            "crane_load.py: choice, value = policy(view)",
            "crane_load.py: chances.append(choice.log_prob(drive))",
            "crane_load.py: ratio = (choice.log_prob(drive)",
        ),
    ),
    Thread(
        id="E10",
        source="Lightning-AI/pytorch-lightning#18567, IntelLabs/coach#57 (each save writes all rows; merged)",
        script="unseen11/grid_demand.py",
        # measured: 26.5 to 14.9 ms.
        verdicts=(HOST,),
        # cure: append the new rows; the file grows, and with it each save.
        fixes=("FX504",),
        priced=False,
        shorter={"STEPS": "300"},
        at=(
            'grid_demand.py: with self.path.open("w"',
            "grid_demand.py: writer.writerows(self.rows) @1",
            "grid_demand.py: table.save()",
        ),
    ),
    Thread(
        id="E11",
        source="zisianw/FaceBoxes.PyTorch#21, open-mmlab/mmdetection#6442 (distorted, then cropped: -20 %)",
        script="unseen11/leaf_spots.py",
        # measured: 63.1 to 27.7 ms.
        verdicts=(INPUT,),
        # cure: crop first, change the colours of what is left.
        fixes=("FX107",),
        shorter={"STEPS": "110"},
        at=(
            "leaf_spots.py: image = change(image).enhance(",
            "leaf_spots.py: return image.filter(ImageFilter.GaussianBlur(",
            "leaf_spots.py: steps = [ColorJitter(), RandomCrop()]",
            "leaf_spots.py: self.steps = steps if",
            "leaf_spots.py: image = step(image)",
        ),
    ),
    Thread(
        id="E12",
        source="pytorch/pytorch#1788, #427, #9701, #8587 (each slice's gradient as large as all; unbind)",
        script="unseen11/gait_rhythm.py",
        # measured: 68.4 to 36.3 ms.
        verdicts=(LAUNCH, COMPUTE, ALLOCATOR),
        # cure: unbind, whose gradient is one stack.
        fixes=("FX339", "FX510"),
        shorter={"STEPS": "110"},
        at=(
            "gait_rhythm.py: return [x[:, moment] for moment in",
            "gait_rhythm.py: for push, hold in zip(",
            "gait_rhythm.py: loss.backward()",
        ),
    ),
    Thread(
        id="E13",
        source="YosefLab/scVI-dev#63 (rows of a sparse matrix, or of a dense one: 479 and 482 s)",
        script="unseen11/cell_atlas.py",
        # measured: 90.3 to 91.2 ms.
        verdicts=(COMPUTE, ALLOCATOR),
        # cure of what is suspected: dense counts, not a sparse row made dense for each sample.
        not_verdicts=(INPUT, HOST),
        not_fixes=("FX101", "FX107", "FX111", "FX112"),
        shorter={"STEPS": "80"},
    ),
    Thread(
        id="E14",
        source="open-spaced-repetition/srs-benchmark#221 (1 or 2 threads: you could not tell which)",
        script="unseen11/flashcards.py",
        # measured: 22.6 to 19.0 ms.
        verdicts=(LAUNCH, HOST),
        # cure of what is suspected: one thread. The measures scatter too much to say that it gains nothing.
        not_verdicts=(INPUT,),
        not_fixes=("FX506",),
        small=True,
        shorter={"STEPS": "250"},
    ),
)
