"""What is true of the forty-first set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN41`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import ALLOCATOR, COMPUTE, HOST, INPUT, LAUNCH, SYNC, Thread

UNSEEN41 = (
    Thread(
        id="QQ01",
        source="NovaSky-AI/SkyRL#1808 (loss mask of packed rows written token by token; by slices; merged)",
        script="unseen41/lantern_rollout.py",
        machine="G",
        verdicts=(HOST, INPUT),
        # cure: write each sequence's part of the loss mask as one slice, not token by token
        fixes=("FX532", "FX107", "FX514"),
        shorter={"STEPS": "60"},
        at=(
            "lantern_rollout.py: for p in range(n - 1):",
            "lantern_rollout.py: target = full[p + 1]",
            "lantern_rollout.py: if start + p < self.capacity - 1:",
            "lantern_rollout.py: loss_mask[row, start + p] = float(target)",
            "lantern_rollout.py: def __call__(self, examples):",
            "lantern_rollout.py: [t.to(device) for t in collate(picked)]",
        ),
    ),
    Thread(
        id="QQ02",
        source="mapbox/robosat#112 (IoU of each training tile by NumPy on the host: the GPU idle; merged)",
        script="unseen41/rooftop_tiles.py",
        machine="G",
        verdicts=(HOST, SYNC),
        # cure: count the confusion matrix of each tile on the GPU, read four numbers
        fixes=("FX524", "FX504"),
        shorter={"STEPS": "40"},
        at=(
            "rooftop_tiles.py: def add_arrays(self, actual, predicted):",
            "rooftop_tiles.py: present = np.union1d(actual, predicted)",
            "rooftop_tiles.py: matrix = np.bincount(",
            "rooftop_tiles.py: actual = mask.data.cpu().numpy()",
            "rooftop_tiles.py: prediction = output.data.max(0)[1].cpu().numpy()",
            "rooftop_tiles.py: iou.add_arrays(actual.ravel(), prediction.ravel())",
            "rooftop_tiles.py: for mask, output in zip(y, outputs):",
        ),
    ),
    Thread(
        id="QQ03",
        source="pytorch/pytorch#133898, #134171 (OneCycleLR's beta1 recompiles AdamW to the limit; closed)",
        script="unseen41/tidal_cycle.py",
        machine="G",
        verdicts=("graph-break-bound", SYNC, LAUNCH, HOST),
        # cure: beta1, which the schedule changes each step, as a tensor: no new guard, no new compilation
        fixes=("FX409",),
        shorter={"STEPS": "60"},
        at=(
            "tidal_cycle.py: low, high = 0.85, 0.95",
            "tidal_cycle.py: base_momentum=low, max_momentum=high",
            "tidal_cycle.py: scheduler = torch.optim.lr_scheduler.OneCycleLR(",
            "tidal_cycle.py: @torch.compile(backend=BACKEND)",
            "tidal_cycle.py: def update():",
            "tidal_cycle.py: optimizer.step()",
            "tidal_cycle.py: scheduler.step()",
            "tidal_cycle.py: optimizer = torch.optim.AdamW(",
        ),
    ),
    Thread(
        id="QQ04",
        source="AnswerDotAI/ModernBERT#236 (long texts tokenized while training: 30 % of the speed on H100)",
        script="unseen41/archive_words.py",
        machine="G",
        verdicts=(INPUT, HOST),
        # cure: tokenize the texts once, before training
        fixes=("FX107",),
        shorter={"STEPS": "45"},
        at=(
            "archive_words.py: def split_word(self, word):",
            "archive_words.py: def clean(self, text):",
            "archive_words.py: def __call__(self, text, max_length):",
            "archive_words.py: ids.extend(self.split_word(word))",
            "archive_words.py: return torch.tensor(self.tokenizer(self.texts[i], LENGTH))",
            "archive_words.py: def __getitem__(self, i):",
            "archive_words.py: for step, ids in enumerate(loader):",
            "archive_words.py: loader = DataLoader(",
        ),
    ),
    Thread(
        id="QQ05",
        source="batra-mlp-lab/visdial-challenge-starter-pytorch#34, #25 (empty_cache per batch; merged)",
        script="unseen41/gallery_dialog.py",
        machine="G",
        verdicts=(ALLOCATOR, HOST, SYNC),
        # cure: empty_cache() once per epoch, not after every batch
        fixes=("FX204",),
        shorter={"STEPS": "50"},
        at=("gallery_dialog.py: torch.cuda.empty_cache()", "gallery_dialog.py: (step + 1) % per_epoch == 0"),
    ),
    Thread(
        id="QQ06",
        source="FGA-DIKU/BONSAI#162 (bfloat16 autocast: 19 to 12 minutes an epoch; merged)",
        script="unseen41/ward_records.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: bfloat16 autocast for forward and loss
        fixes=("FX303",),
        shorter={"STEPS": "60"},
        at=(
            "ward_records.py: dtype=torch.bfloat16, enabled=mixed",
            "ward_records.py: mixed = VARIANT != ",
            "ward_records.py: states = model(codes.masked_fill(masked, 1), ages, segments)",
            "ward_records.py: class WardBlock(nn.Module):",
            "ward_records.py: self.qkv(self.n1(x))",
            "ward_records.py: a = F.scaled_dot_product_attention(q, k, v)",
            "ward_records.py: x = x + self.out(",
            "ward_records.py: self.down(F.silu(self.gate(y)) * self.up(y))",
            "ward_records.py: x = block(x)",
            "ward_records.py: scaler.scale(loss).backward()",
        ),
    ),
    Thread(
        id="QQ07",
        source="neuronflow/blob_loss#6 (a loss blob by blob; all of a crop at once: 1.8x to 2.2x; open)",
        script="unseen41/lesion_blobs.py",
        machine="G",
        verdicts=(LAUNCH, SYNC, HOST),
        # cure: all lesions of a crop in one tensor, one loss call
        fixes=("FX510", "FX532", "FX502"),
        shorter={"STEPS": "60"},
        at=(
            "lesion_blobs.py: def lesion_loss(criterion, outputs, labels):",
            "lesion_blobs.py: for u in torch.unique(label):",
            "lesion_blobs.py: if u == 0:",
            "lesion_blobs.py: keep[label == u] = 1",
            "lesion_blobs.py: target = label == u",
            "lesion_blobs.py: losses.append(criterion(output * keep, target.float()))",
            "lesion_blobs.py: per_crop.append(sum(losses) / len(losses))",
            "lesion_blobs.py: each = lesion_loss(bce, outputs, labels) + lesion_loss(dice, outputs, labels)",
        ),
    ),
    Thread(
        id="QQ08",
        source="NVIDIA/DALI#892 (trap: loading ten times as fast, training no faster: GPU-bound)",
        script="unseen41/orchard_faces.py",
        machine="G",
        not_verdicts=(INPUT,),
        # not the cause: crops, mirrors and light on the host, in four workers that keep up
        at=(),
        not_fixes=("FX101", "FX106", "FX107", "FX524"),
        shorter={"STEPS": "60"},
    ),
)
