"""What is true of the forty-sixth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN46`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, SYNC, Thread

UNSEEN46 = (
    Thread(
        id="VV01",
        source="bghira/SimpleTuner#1184 (each block checkpointed; every n-th: 4.25 to 3.00 s; merged)",
        script="unseen46/pewter_canvas.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: checkpoint only every n-th block, as memory is plentiful
        fixes=("FX214", "FX209"),
        shorter={"STEPS": "130"},
        at=(
            "pewter_canvas.py: x = checkpoint(block, x, condition, use_reentrant=False)",
            "pewter_canvas.py: if self.checkpointing and torch.is_grad_enabled()",
            'pewter_canvas.py: "gradient_checkpointing_interval": 1 if VARIANT',
            "pewter_canvas.py: model.enable_gradient_checkpointing(CONFIG[",
        ),
    ),
    Thread(
        id="VV02",
        source="qubvel-org/segmentation_models.pytorch#1235, #1236 (focal loss class by class, by masks: 6x; "
        "at once: over 2x; measured there, open)",
        script="unseen46/harvest_mosaic.py",
        machine="G",
        verdicts=(COMPUTE, SYNC),
        # cure: one focal loss of all classes, ignored pixels weighed with 0 instead of picked out by a mask
        fixes=("FX532", "FX502", "FX510"),
        shorter={"STEPS": "170"},
        at=(
            "harvest_mosaic.py: for cls in range(num_classes):",
            "harvest_mosaic.py: cls_y_true = (y_true == cls).long()",
            "harvest_mosaic.py: cls_y_pred = y_pred[:, cls, ...]",
            "harvest_mosaic.py: cls_y_true = cls_y_true[not_ignored]",
            "harvest_mosaic.py: cls_y_pred = cls_y_pred[not_ignored]",
            "harvest_mosaic.py: loss = loss + self.focal(cls_y_pred, cls_y_true).mean()",
            "harvest_mosaic.py: loss = criterion(logits.float(), labels)",
        ),
    ),
    Thread(
        id="VV03",
        source="gbionics/amp-rsl-rl#12 (replay drawn by NumPy; by randperm on the GPU: 85 to 1.1 ms; merged)",
        script="unseen46/heather_stride.py",
        machine="G",
        verdicts=(HOST, INPUT),
        # cure: draw the rows with torch.randperm on the device, once for all mini-batches
        fixes=("FX524", "FX107", "FX514"),
        shorter={"STEPS": "300"},
        at=(
            "heather_stride.py: chosen = np.random.choice(self.count, size=size, replace=False)",
            "heather_stride.py: for batch, own in zip(mini_batches(data), replay.batches(",
            "heather_stride.py: batch, own, recorded = next(source)",
        ),
    ),
    Thread(
        id="VV04",
        source="mead-ml/mead-baseline#225 (gold path of a CRF word by word; by gather and unfold: 34.6 to "
        "21.0 s per epoch; merged)",
        script="unseen46/ledger_clerk.py",
        machine="G",
        verdicts=(LAUNCH, HOST),
        # cure: score the gold path with one gather for all words, pairs of tags by unfold
        fixes=("FX374", "FX532", "FX513"),
        shorter={"STEPS": "260"},
        at=(
            "ledger_clerk.py: for i, unary_t in enumerate(unary):",
            "ledger_clerk.py: new_scores = trans[tags[i + 1], tags[i]] + unary_t[batch_range, tags[i + 1]]",
            "ledger_clerk.py: new_scores = torch.where(i < lengths, new_scores",
            "ledger_clerk.py: scores = scores + new_scores",
            "ledger_clerk.py: gold = self.score_sentence(unary, trans, tags, lengths, shortest)",
        ),
    ),
    Thread(
        id="VV05",
        source="huggingface/sentence-transformers#4029 (all triplets of a batch, nearly all masked; of the "
        "pairs only: 245 to 2.39 ms; merged)",
        script="unseen46/quill_letters.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: pick out the positive pairs first, then compare each with the batch
        fixes=("FX330",),
        shorter={"STEPS": "220"},
        at=(
            "quill_letters.py: triplets = positive - negative + self.triplet_margin",
            "quill_letters.py: mask = self.triplet_mask(labels)",
            "quill_letters.py: triplets = mask.float() * triplets",
            "quill_letters.py: distinct_indices = distinct.unsqueeze(2)",
            "quill_letters.py: return label_equal.unsqueeze(2) & ~label_equal.unsqueeze(1)",
            "quill_letters.py: return self.first_form(embeddings, labels)",
            "quill_letters.py: loss = criterion(embeddings.float(), labels)",
        ),
    ),
    Thread(
        id="VV06",
        source="open-mmlab/OpenPCDet#1676 (pillars scattered frame by frame, by masks; at once: 2.9 to 1.9 s "
        "per iteration; measured there, open)",
        script="unseen46/granite_sweep.py",
        machine="G",
        verdicts=(LAUNCH, SYNC),
        # cure: scatter the pillars of all frames with one index
        fixes=("FX532", "FX510", "FX502"),
        shorter={"STEPS": "240"},
        at=(
            "granite_sweep.py: for batch_idx in range(batch_size):",
            "granite_sweep.py: spatial_feature = torch.zeros(",
            "granite_sweep.py: batch_mask = coords[:, 0] == batch_idx",
            "granite_sweep.py: this_coords = coords[batch_mask, :]",
            "granite_sweep.py: indices = this_coords[:, 1] + this_coords[:, 2] * self.nx + this_coords[:, 3]",
            "granite_sweep.py: pillars = pillar_features[batch_mask, :]",
            "granite_sweep.py: spatial_feature[:, indices] = pillars.t()",
            "granite_sweep.py: return torch.stack(canvases, 0)",
            "granite_sweep.py: canvas = self.first_form(pillar_features, coords, batch_size)",
        ),
    ),
    Thread(
        id="VV07",
        source="CompRhys/aviary#43 (materials fetched and joined one by one, copied batch by batch; rows of "
        "tensors on the GPU: 2,400 to 1,870 s; merged)",
        script="unseen46/garnet_shelf.py",
        machine="G",
        verdicts=(INPUT, HOST),
        # cure: keep all materials as tensors on the device and take a batch by its rows
        fixes=("FX112", "FX107", "FX523"),
        shorter={"STEPS": "480"},
        at=(
            "garnet_shelf.py: features, mask, targets, rows = next(source)",
            "garnet_shelf.py: return self.features[row], torch.tensor([self.table.targets[row]]), row",
            "garnet_shelf.py: features, targets, rows = zip(*samples)",
            "garnet_shelf.py: lengths = torch.tensor([len(feature) for feature in features])",
            "garnet_shelf.py: padded = pad_sequence(features, batch_first=True)",
            "garnet_shelf.py: return padded, mask, torch.stack(targets), list(rows)",
            "garnet_shelf.py: return DataLoader(data, BATCH, sampler=sampler",
            "garnet_shelf.py: features, mask, targets = features.to(device)",
            "garnet_shelf.py: yield from loader",
        ),
    ),
    Thread(
        id="VV08",
        source="MIC-DKFZ/nnUNet#1630 (trap: gradients zeroed, not set to None: not much for the run time)",
        script="unseen46/umber_scans.py",
        machine="G",
        not_verdicts=(LAUNCH, HOST, INPUT),
        # cure: none; zeroing the gradients is far below 1 % of the step
        not_fixes=("FX313",),
        shorter={"STEPS": "220"},
        at=(),
    ),
)
