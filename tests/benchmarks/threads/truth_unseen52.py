"""What is true of the fifty-second set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN52`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, SYNC, Thread

UNSEEN52 = (
    Thread(
        id="AC01",
        source="unit8co/darts#2897, #2898 (embeddings of a TFT by interpolate(): 90 %; 10x to 30x; merged)",
        script="unseen52/almond_harbour.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: resize the embeddings with a linear projection in place of F.interpolate
        fixes=("FX344", "FX351", "FX355"),
        shorter={"STEPS": "300"},
        at=(
            'almond_harbour.py: flat = F.interpolate(flat, self.width_out, mode="linear"',
            "almond_harbour.py: flat = x.contiguous().view(-1, 1, x.shape[-1])",
            "almond_harbour.py: x = self.resize(x)",
        ),
    ),
    Thread(
        id="AC02",
        source="modelscope/ms-swift#9795 (channel loss document by document: ~113 us each, at once; merged)",
        script="unseen52/plover_archive.py",
        machine="G",
        verdicts=(SYNC, LAUNCH),
        # cure: add the losses up by channel with one reduction that reads nothing on the host
        fixes=("FX502", "FX532", "FX510"),
        shorter={"STEPS": "170"},
        at=(
            "plover_archive.py: for i in range(edges.shape[0] - 1):",
            "plover_archive.py: span = slice(edges[i], edges[i + 1])",
            "plover_archive.py: kept = losses[0, span][mask[0, span]]",
            "plover_archive.py: update(kept.sum(), kept.shape[0])",
            'plover_archive.py: self.channel_loss(losses, mask, pack["edges"], pack["channels"])',
        ),
    ),
    Thread(
        id="AC03",
        source="GaTech-RL2/EgoVerse#676 (colour jitter frame by frame; at once: 245 to 173 ms; open)",
        script="unseen52/cedar_workbench.py",
        machine="G",
        verdicts=(LAUNCH, HOST),
        # cure: draw the factors as one tensor and run each adjustment once over the batch
        fixes=("FX532", "FX510"),
        shorter={"STEPS": "220"},
        at=(
            "cedar_workbench.py: for image, row in zip(images, factors.tolist()):",
            "cedar_workbench.py: frames.append(color_jitter(image, *row))",
            "cedar_workbench.py: images = augment(frames.float().div_(255.0))",
        ),
    ),
    Thread(
        id="AC04",
        source="mllam/neural-lam#239, #25 (samples normalised on the CPU: ~1/3 of a step; merged)",
        script="unseen52/gull_forecast.py",
        machine="G",
        verdicts=(INPUT,),
        # cure: hand out raw samples and standardise the batch on the device
        fixes=("FX524", "FX107"),
        shorter={"STEPS": "180"},
        at=(
            'gull_forecast.py: state = (state - stats["state_mean"]) / stats["state_std"]',
            'gull_forecast.py: forcing = (forcing - stats["forcing_mean"]) / stats["forcing_std"]',
            "gull_forecast.py: init, target, forcing, _ = next(batches)",
        ),
    ),
    Thread(
        id="AC05",
        source="nttcslab-sp/EEND-vector-clustering#4 (PIT loss chunk by chunk; at once: dozens of times)",
        script="unseen52/rowan_meeting.py",
        machine="G",
        verdicts=(LAUNCH, SYNC, HOST),
        # cure: compute the losses of all chunks under all orders of the speakers at once
        fixes=("FX532", "FX510", "FX502"),
        shorter={"STEPS": "130"},
        at=(
            "rowan_meeting.py: label_perms = [label[..., list(p)] for p in ORDERS]",
            "rowan_meeting.py: losses = torch.stack([F.binary_cross_entropy_with_logits(pred, perm.float())",
            "rowan_meeting.py: best = int(losses.argmin().detach())",
            "rowan_meeting.py: for pred, label, vector, voice, length in zip(",
            "rowan_meeting.py: loss, best = pit_loss(pred[:length], label[:length])",
            "rowan_meeting.py: ordered = voice[list(ORDERS[best])]",
            "rowan_meeting.py: speaker.append(model.speakers(vector, ordered).mean())",
            "rowan_meeting.py: activity, speaker = losses(model, logits, vectors, labels, voices, lengths)",
        ),
    ),
    Thread(
        id="AC06",
        source="adambielski/siamese-triplet#54 (negatives sought pair by pair; distances at once: 5x; open)",
        script="unseen52/quill_museum.py",
        machine="G",
        verdicts=(HOST,),
        # cure: take the losses of all pairs of a label from the distances with one operation
        fixes=("FX532", "FX514", "FX510"),
        shorter={"STEPS": "150"},
        at=(
            "quill_museum.py: for anchor_positive, ap_distance in zip(anchor_positives, ap_distances):",
            "quill_museum.py: anchor = torch.LongTensor(np.array([anchor_positive[0]]))",
            "quill_museum.py: to_others = distance_matrix[anchor, torch.LongTensor(negative_indices)]",
            "quill_museum.py: loss_values = (ap_distance - to_others + self.margin)",
            "quill_museum.py: triplets = self.selector.get_triplets(embeddings, labels)",
        ),
    ),
    Thread(
        id="AC07",
        source="pytorch/pytorch#31474 (clipping reads each norm by item(); by stack: quite a gain; open)",
        script="unseen52/sable_turbine.py",
        machine="G",
        verdicts=(SYNC, LAUNCH, HOST),
        # cure: stack the norms of the gradients and add them up on the device
        fixes=("FX502", "FX532", "FX510"),
        shorter={"STEPS": "250"},
        at=(
            "sable_turbine.py: for p in parameters:",
            "sable_turbine.py: param_norm = p.grad.detach().norm(norm_type)",
            "sable_turbine.py: total_norm += param_norm.item() ** norm_type",
            "sable_turbine.py: norm = limit_gradients(model.parameters(), MAX_NORM)",
        ),
    ),
    Thread(
        id="AC08",
        source="huggingface/pytorch-image-models#36 (trap: DALI for the loader: hardly any difference)",
        script="unseen52/lantern_quay.py",
        machine="G",
        # cure: none; the network keeps the GPU at work, the loader keeps up
        not_verdicts=(INPUT,),
        not_fixes=("FX101", "FX106", "FX107", "FX111", "FX524"),
        shorter={"STEPS": "250"},
        at=(),
    ),
)
