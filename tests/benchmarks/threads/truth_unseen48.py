"""What is true of the forty-eighth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN48`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, SYNC, Thread

UNSEEN48 = (
    Thread(
        id="XX01",
        source="qipeng/gcn-over-pruned-trees#11 (trees of values read on the GPU: 0.12 to 0.016 s/batch)",
        script="unseen48/birch_lantern.py",
        machine="G",
        verdicts=(SYNC, HOST, LAUNCH),
        # cure: copy heads, words and positions of the batch to the host once, then build the trees
        fixes=("FX502", "FX532", "FX514"),
        shorter={"STEPS": "130"},
        at=(
            "birch_lantern.py: subject = [i for i in range(length) if subj_pos[i] == 0]",
            "birch_lantern.py: object_ = [i for i in range(length) if obj_pos[i] == 0]",
            "birch_lantern.py: tokens = tokens[:length].tolist()",
            "birch_lantern.py: head = head[:length].tolist()",
            "birch_lantern.py: head_to_tree(head[i], words[i], lengths[i], PRUNE, subj_pos[i], obj_pos[i])",
            "birch_lantern.py: adjacency = self.adjacency(head, words, lengths, subj_pos, obj_pos)",
        ),
    ),
    Thread(
        id="XX02",
        source="axelspringer/ForwardTacotron#2 (phonemes repeated one by one: 0.9 to 2.5 steps/s; merged)",
        script="unseen48/copper_kettle.py",
        machine="G",
        verdicts=(LAUNCH, SYNC, HOST),
        # cure: build an index of all frames from the summed durations, gather once
        fixes=("FX532", "FX510", "FX502"),
        shorter={"STEPS": "120"},
        at=(
            "copper_kettle.py: output = [self.expand(x_i, dur_i) for x_i, dur_i in zip(x, durations)]",
            "copper_kettle.py: for i, frame in enumerate(x):",
            "copper_kettle.py: length = int(durations[i] + 0.5)",
            "copper_kettle.py: output.append(frame.expand(length, -1))",
            "copper_kettle.py: return torch.cat(output, 0)",
            "copper_kettle.py: x = self.regulator(x, durations) * frame_mask",
        ),
    ),
    Thread(
        id="XX03",
        source="Hanzy1996/CE-GZSL#1 (scores of classes sample by sample; one matrix: hours to 1 h, author)",
        script="unseen48/granite_harbor.py",
        machine="G",
        verdicts=(LAUNCH, HOST, SYNC),
        # cure: call the comparator once, on the pairs of all samples with all classes
        fixes=("FX528", "FX532", "FX510"),
        shorter={"STEPS": "130"},
        at=(
            "granite_harbor.py: for i, one in enumerate(embedding):",
            "granite_harbor.py: repeated = one.repeat(SEEN, 1)",
            "granite_harbor.py: pairs = torch.cat((repeated, data.attributes_seen.to(device)), dim=1)",
            "granite_harbor.py: scores[i] = comparator(pairs).div(CLASS_TEMPERATURE).squeeze(1)",
            "granite_harbor.py: scores = class_scores(embedding, data, comparator)",
        ),
    ),
    Thread(
        id="XX04",
        source="allenai/allennlp#2465 (best span sought in Python in each forward: 60.2 to 5.04 ms; merged)",
        script="unseen48/velvet_compass.py",
        machine="G",
        verdicts=(HOST, SYNC),
        # cure: add start and end logits of all pairs on the GPU, mask, one argmax
        fixes=("FX524", "FX532", "FX514"),
        shorter={"STEPS": "120"},
        at=(
            "velvet_compass.py: start_logits = start_logits.detach().cpu().numpy()",
            "velvet_compass.py: end_logits = end_logits.detach().cpu().numpy()",
            "velvet_compass.py: for b in range(count):",
            "velvet_compass.py: for j in range(length):",
            "velvet_compass.py: value = start_logits[b, best_start[b]]",
            "velvet_compass.py: if value < start_logits[b, j]:",
            "velvet_compass.py: other = end_logits[b, j]",
            "velvet_compass.py: if value + other > best_score[b]:",
            "velvet_compass.py: best_span[b, 0] = best_start[b]",
            "velvet_compass.py: best_span[b, 1] = j",
            "velvet_compass.py: best_score[b] = value + other",
            "velvet_compass.py: best_span = get_best_span(start_logits, end_logits)",
        ),
    ),
    Thread(
        id="XX05",
        source="DeNA/PyTorch_YOLOv3#2 (overlaps of boxes and labels on the CPU: the bottleneck; merged)",
        script="unseen48/maple_ferry.py",
        machine="G",
        verdicts=(HOST, SYNC),
        # cure: leave the predicted boxes on the GPU and compute the overlaps there
        fixes=("FX524", "FX502", "FX514"),
        shorter={"STEPS": "120"},
        at=(
            "maple_ferry.py: pred = pred.cpu()",
            "maple_ferry.py: overlap = boxes_iou(pred[b].view(-1, 4)",
            "maple_ferry.py: ignored = (overlap.max(dim=1)[0] > IGNORE)",
            "maple_ferry.py: top_left = torch.max(boxes[:, None, :2] - half",
            "maple_ferry.py: bottom_right = torch.min(boxes[:, None, :2] + half",
            "maple_ferry.py: inside = (top_left < bottom_right)",
            "maple_ferry.py: common = torch.prod(bottom_right - top_left, 2) * inside",
            "maple_ferry.py: return common / (area[:, None] + area_other - common)",
            "maple_ferry.py: where, scale, target, objects = self.assign(",
        ),
    ),
    Thread(
        id="XX06",
        source="deepmodeling/deepmd-kit#5960 (weights copied for all atoms: 16.48 to 1.09 ms; merged)",
        script="unseen48/silver_thicket.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: batch over degrees and groups, atoms as rows of the matrix product
        fixes=("FX355", "FX351", "FX343"),
        shorter={"STEPS": "280"},
        at=(
            "silver_thicket.py: return torch.matmul(x[..., None, :], weight[None]).squeeze(-2)",
            "silver_thicket.py: values = self.before(x)",
            "silver_thicket.py: x = x + self.after(gathered)",
            "silver_thicket.py: return x + self.outer(self.gate(self.inner(x)))",
        ),
    ),
    Thread(
        id="XX07",
        source="huggingface/transformers#22378 (causal mask made on the CPU, then copied; merged)",
        script="unseen48/amber_quarry.py",
        machine="G",
        verdicts=(SYNC, HOST),
        # cure: make the mask on the device of the embeddings
        fixes=("FX521", "FX524", "FX523"),
        shorter={"STEPS": "280"},
        at=(
            'amber_quarry.py: causal = make_causal_mask(shape, embedded.dtype, "cpu").to(embedded.device)',
            "amber_quarry.py: mask = torch.full((length, length)",
            "amber_quarry.py: mask.masked_fill_(places <",
            "amber_quarry.py: return mask.to(dtype)[None, None].expand(count, 1, length, length)",
            "amber_quarry.py: mask = self.prepare_mask(attention_mask, ids.shape, embedded)",
        ),
    ),
    Thread(
        id="XX08",
        source="pyg-team/pytorch-frame#477 (trap: loss read each step: eager 742.79 and 741.22 ms)",
        script="unseen48/willow_anchor.py",
        machine="G",
        not_verdicts=(SYNC, INPUT),
        not_fixes=("FX501", "FX503", "FX103", "FX104"),
        shorter={"STEPS": "120"},
        at=(),
    ),
)
