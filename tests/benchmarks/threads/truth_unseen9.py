"""What is true of the ninth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN9`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import ALLOCATOR, COMPUTE, HOST, INPUT, LAUNCH, SYNC, TRANSFER, Thread

UNSEEN9 = (
    Thread(
        id="C01",
        source="MIC-DKFZ/nnUNet#3063 (augmented in the workers; on the GPU by batch: 302.4 to 145.5 ms)",
        script="unseen9/kidney_volumes.py",
        machine="G",
        verdicts=(INPUT,),
        # cure: change the batch on the device, not each sample in a worker.
        fixes=("FX107", "FX524"),
        shorter={"STEPS": "90"},
        at=(
            "kidney_volumes.py: image, label = augment(image, label, rng)",
            "kidney_volumes.py: image = ndimage.affine_transform(",
            "kidney_volumes.py: label = ndimage.affine_transform(",
            "kidney_volumes.py: image = ndimage.zoom(ndimage.zoom(",
            "kidney_volumes.py: loader = DataLoader(Patches(",
            "kidney_volumes.py: for step, (image, label) in enumerate(loader):",
        ),
    ),
    Thread(
        id="C02",
        source="sdatkinson/neural-amp-modeler#164, #165 (a loss by spectra on the CPU: up to 6x; merged)",
        script="unseen9/amp_clone.py",
        machine="G",
        verdicts=(SYNC, HOST, TRANSFER),
        fixes=("FX524",),
        shorter={"STEPS": "160"},
        at=(
            "amp_clone.py: mrstft = self.spectral(predicted.to(",
            "amp_clone.py: a = torch.stft(predicted",
            "amp_clone.py: b = torch.stft(wanted",
            "amp_clone.py: loss.backward()",
        ),
    ),
    Thread(
        id="C03",
        source="gdewael/bio-attention#1 (windows by unfold and einsum; in chunks: the module ~13x; merged)",
        script="unseen9/promoter_windows.py",
        machine="G",
        verdicts=(COMPUTE, ALLOCATOR),
        # cure: matrix products of chunks with what lies around them, more arithmetic but less memory.
        no_entry=True,
        shorter={"STEPS": "120"},
        at=(
            "promoter_windows.py: k = F.pad(k, (0, 0, 0, 0, self.reach, self.reach)).unfold(1, length",
            "promoter_windows.py: v = F.pad(v, (0, 0, 0, 0, self.reach, self.reach)).unfold(1, length",
            'promoter_windows.py: scores = torch.einsum("bqnh,bknhq->bqkn"',
            'promoter_windows.py: return torch.einsum("bqkn,bknhq->bqnh"',
            "promoter_windows.py: y = self.by_position(q, k, v) if",
        ),
    ),
    Thread(
        id="C04",
        source="HLR/DomiKnowS#290 (all parameters listed to find the device, per item: 397 to 3.3 s a step)",
        script="unseen9/family_rules.py",
        machine="G",
        verdicts=(HOST,),
        # cure: ask for the device once, in __init__.
        fixes=("FX504", "FX514"),
        shorter={"STEPS": "90"},
        at=(
            "family_rules.py: parameters = list(self.parameters())",
            "family_rules.py: return [self.move(item) for item in value]",
            "family_rules.py: return {key: self.move(item)",
            "family_rules.py: stories = self.move(stories)",
        ),
    ),
    Thread(
        id="C05",
        source="shawnh2/GNN-CCA#3 (messages node by node; all edges at once: about 60x, says a user)",
        script="unseen9/court_matching.py",
        machine="G",
        verdicts=(LAUNCH, HOST),
        fixes=("FX510",),
        shorter={"STEPS": "110"},
        at=(
            "court_matching.py: for node in range(len(x)):",
            'court_matching.py: entering = graph["entering"][node]',
            "court_matching.py: near = x[node].expand(",
            "court_matching.py: message = self.node_message(torch.cat([near",
            "court_matching.py: rows.append(message.sum(0))",
        ),
    ),
    Thread(
        id="C06",
        source="leaderj1001/Stand-Alone-Self-Attention#14 (einsum of elementwise products: 2 min to 53 s)",
        script="unseen9/leaf_attention.py",
        machine="G",
        verdicts=(COMPUTE, ALLOCATOR),
        # cure: (out * value).sum(-1), for einsum makes one tiny matrix product per pixel of it.
        no_entry=True,
        shorter={"STEPS": "160"},
        at=('leaf_attention.py: out = torch.einsum("bnchwk,bnchwk -> bnchw"',),
    ),
    Thread(
        id="C07",
        source="invoke-ai/invoke-training#23, #35 (pictures through the frozen VAE each step: ~20 to 25 %)",
        script="unseen9/ink_portraits.py",
        machine="G",
        verdicts=(COMPUTE,),
        fixes=("FX110",),
        shorter={"STEPS": "350"},
        at=("ink_portraits.py: mean, spread = encoder(pictures[rows])",),
    ),
    Thread(
        id="C08",
        source="nvidia-cosmos/cosmos-predict1#31 (no workers; 8 and pinned: waits of 3.2 s to < 50 ms)",
        script="unseen9/robot_clips.py",
        machine="G",
        verdicts=(INPUT,),
        fixes=("FX101",),
        shorter={"STEPS": "36"},
        at=(
            "robot_clips.py: return DataLoader(data, batch_size=BATCH, drop_last=True)",
            "robot_clips.py: for step, batch in enumerate(make_loader(",
            "robot_clips.py: image = Image.open(io.BytesIO(data))",
        ),
    ),
    Thread(
        id="C09",
        source="allenai/open-instruct#1445 (padded to the maximum to spare recompiling: 1.04 to 0.42 s)",
        script="unseen9/answer_preferences.py",
        machine="G",
        verdicts=(COMPUTE, ALLOCATOR),
        # cure: pad to the longest of the batch; the recompilations feared cost less.
        fixes=("FX109",),
        not_fixes=("FX408",),
        shorter={"STEPS": "150"},
        at=(
            "answer_preferences.py: length = MAX_LENGTH if",
            "answer_preferences.py: tokens = torch.zeros(len(rows), length",
            "answer_preferences.py: labels = torch.full((len(rows), length)",
            'answer_preferences.py: collate = Collator("max_length"',
        ),
    ),
    Thread(
        id="C10",
        source="dreamquark-ai/tabnet#243 (norms of parts of a batch in a loop; a user's plot, open: weak)",
        script="unseen9/loan_default.py",
        machine="G",
        verdicts=(LAUNCH, HOST),
        fixes=("FX510",),
        shorter={"STEPS": "150"},
        at=(
            "loan_default.py: parts = x.chunk(max(1",
            "loan_default.py: return torch.cat([self.norm(part) for part in parts])",
        ),
    ),
    Thread(
        id="C11",
        source="pytorch/pytorch#59168 (channels_last_3d with InstanceNorm3d: 24 % more GPU time in nnU-Net)",
        script="unseen9/liver_unet.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure of what is suspected: the model and its input in channels_last_3d. It was slower.
        not_verdicts=(INPUT, HOST, LAUNCH),
        not_fixes=("FX310",),
        shorter={"STEPS": "70"},
    ),
    Thread(
        id="C12",
        source="ZKI-PH-ImageAnalysis/seq2squiggle#2, Dao-AILab/flash-attention#81, #607 (short: no gain)",
        script="unseen9/pore_signal.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure of what is suspected: scaled_dot_product_attention. "No large difference", no figures: weak.
        not_verdicts=(INPUT, HOST),
        not_fixes=("FX306",),
        shorter={"STEPS": "180"},
    ),
)
