"""What is true of the fiftieth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN50`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, SYNC, TRANSFER, Thread

UNSEEN50 = (
    Thread(
        id="ZZ01",
        source="Andong-Li-speech/RTNet#4 (cuda() in collate_fn, no workers; zeros by the host: ~8x; merged)",
        script="unseen50/linnet_harbour.py",
        machine="G",
        verdicts=(INPUT, TRANSFER, SYNC),
        # cure: collate on the host, with workers and pinned memory; make the zeros on the device
        fixes=("FX101", "FX521", "FX103"),
        shorter={"STEPS": "110"},
        at=(
            "linnet_harbour.py: return feats.to(device), labels.to(device)",
            "linnet_harbour.py: num_workers=0, collate_fn=to_batch",
            "linnet_harbour.py: h = torch.zeros(x.shape).to(x.device)",
            "linnet_harbour.py: skip = torch.zeros(x.shape).to(x.device)",
            "linnet_harbour.py: for feats, labels in loader:",
            "linnet_harbour.py: feats.append(to_frames(mix))",
            "linnet_harbour.py: labels.append(to_frames(clean))",
            "linnet_harbour.py: mix, clean = read_wave(mix_path), read_wave(clean_path)",
            "linnet_harbour.py: for i in range(frames):",
            "linnet_harbour.py: out[i, :] = signal[start:end]",
            "linnet_harbour.py: feats = torch.FloatTensor(np.concatenate(feats, axis=0))",
            "linnet_harbour.py: labels = torch.FloatTensor(np.concatenate(labels, axis=0))",
        ),
    ),
    Thread(
        id="ZZ02",
        source="mvandenhi/SCBM#10 (head called draw by draw; once on all draws: 28:30 to 15:45; merged)",
        script="unseen50/heron_orchard.py",
        machine="G",
        verdicts=(LAUNCH, HOST),
        # cure: call the head once, on all draws of the concepts, and average the probabilities
        fixes=("FX528", "FX510", "FX532"),
        shorter={"STEPS": "320"},
        at=(
            "heron_orchard.py: for i in range(DRAWS):",
            "heron_orchard.py: concepts_i = drawn[:, :, i]",
            "heron_orchard.py: logits_i = self.head(concepts_i)",
            "heron_orchard.py: probabilities = probabilities + torch.softmax(logits_i, dim=1)",
        ),
    ),
    Thread(
        id="ZZ03",
        source="tgm-team/tgm#217 (latest neighbours node by node; by tensors: ~67x on an A100; merged)",
        script="unseen50/stoat_bridge.py",
        machine="G",
        verdicts=(INPUT, HOST),
        # cure: keep the latest neighbours in one table of rings and take those of all nodes at once
        fixes=("FX532", "FX107", "FX514"),
        shorter={"STEPS": "300"},
        at=(
            "stoat_bridge.py: for node, stamp in zip(nodes.tolist(), stamps.tolist()):",
            "stoat_bridge.py: before = [entry for entry in self.history[node] if entry[1] < stamp]",
            "stoat_bridge.py: before = before[-count:]",
            "stoat_bridge.py: neighbours.append([EMPTY] * missing",
            "stoat_bridge.py: times.append([0] * missing",
            "stoat_bridge.py: events.append([0] * missing",
            "stoat_bridge.py: return torch.tensor(neighbours), torch.tensor(times), torch.tensor(events)",
            "stoat_bridge.py: found = self.sample(nodes, stamps, count)",
            "stoat_bridge.py: hops = memory.hops(nodes, times)",
        ),
    ),
    Thread(
        id="ZZ04",
        source="GuyTevet/motion-diffusion-model#81, #80 (anomaly detection on: 45 to 30 s an epoch; merged)",
        script="unseen50/otter_valley.py",
        machine="G",
        verdicts=(LAUNCH, HOST, SYNC),
        # cure: turn anomaly detection off
        fixes=("FX512",),
        shorter={"STEPS": "120"},
        at=("otter_valley.py: torch.autograd.set_detect_anomaly(",),
    ),
    Thread(
        id="ZZ05",
        source="IBM/pytorch-seq2seq#27 (loss row by row, lengths in a loop; at once and bucketed: ~10x)",
        script="unseen50/finch_lantern.py",
        machine="G",
        verdicts=(SYNC, LAUNCH, HOST),
        # cure: find the ends of all sentences with tensors, and compute the loss of the batch with one call
        fixes=("FX532", "FX502", "FX510"),
        shorter={"STEPS": "350"},
        at=(
            "finch_lantern.py: for place in range(places):",
            "finch_lantern.py: chosen = scores[:, place].topk(1)[1]",
            "finch_lantern.py: ended = chosen.eq(EOS).view(-1).cpu()",
            "finch_lantern.py: update = (lengths > place) & ended",
            "finch_lantern.py: lengths[update] = len(symbols)",
            "finch_lantern.py: for row in range(len(right)):",
            "finch_lantern.py: total = total + self.criterion(scores[row], right[row])",
        ),
    ),
    Thread(
        id="ZZ06",
        source="mariogeiger/se3cnn#33 (spherical harmonics on the host; on GPU: 72 to 1.5 min; merged)",
        script="unseen50/marten_quarry.py",
        machine="G",
        verdicts=(HOST, SYNC, TRANSFER),
        # cure: compute the spherical harmonics on the device, by formulas in the coordinates
        fixes=("FX524", "FX502", "FX326"),
        shorter={"STEPS": "210"},
        at=(
            "marten_quarry.py: xyz = vectors.detach().cpu().numpy().astype(np.float64)",
            "marten_quarry.py: theta = np.arccos(",
            "marten_quarry.py: phi = np.arctan2(",
            "marten_quarry.py: start[m] = (2 * m - 1) * np.sin(theta) * start[m - 1]",
            "marten_quarry.py: table = legendre(np.cos(theta), start)",
            "marten_quarry.py: turn = np.cos(m * phi) if m >= 0 else np.sin(-m * phi)",
            "marten_quarry.py: return torch.tensor(np.stack(columns, axis=1), dtype=vectors.dtype)",
            "marten_quarry.py: return harmonics_of_angles(vectors) if",
            'marten_quarry.py: angular = spherical_harmonics_xyz(graph["vectors"])',
        ),
    ),
    Thread(
        id="ZZ07",
        source="neuralmagic/sparseml#1674 (Top-KAST masks anew in each step: 15 %; every 100 steps; merged)",
        script="unseen50/plover_kiln.py",
        machine="G",
        verdicts=(COMPUTE, LAUNCH, HOST),
        # cure: make the masks anew every 100 steps, not in each step
        fixes=("FX504", "FX326", "FX331"),
        shorter={"STEPS": "210"},
        at=(
            "plover_kiln.py: ordered, _ = torch.sort(score.flatten())",
            "plover_kiln.py: threshold = ordered[",
            "plover_kiln.py: masks.append((score > threshold).to(score.dtype))",
            "plover_kiln.py: self.forward_masks = self.creator.create(scores, FORWARD_SPARSITY)",
            "plover_kiln.py: self.backward_masks = self.creator.create(scores, BACKWARD_SPARSITY)",
            "plover_kiln.py: if step % self.refresh_every == 0:",
            "plover_kiln.py: self.refresh()",
            "plover_kiln.py: sparse = SparseTrainer(model, refresh_every=1 if",
            "plover_kiln.py: sparse.before_forward(step)",
        ),
    ),
    Thread(
        id="ZZ08",
        source="openai/parameter-golf#785 (trap: batches made in the step; made ahead: 83.53 to 83.44 ms)",
        script="unseen50/badger_mill.py",
        machine="G",
        not_verdicts=(INPUT, TRANSFER),
        not_fixes=("FX111", "FX101", "FX107", "FX508"),
        shorter={"STEPS": "120"},
        at=(),
    ),
)
