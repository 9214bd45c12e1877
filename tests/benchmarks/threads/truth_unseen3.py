"""What is true of the threads of the third blind test, none of them in the other tables.

In: nothing. Out: `UNSEEN3`, in the form of truth.py's table. Found in public trackers by causes that had no
thread yet; this table stood before the tool was first run on the scripts, but for the fixes of W01, W03, W09
and W10, which the catalogue lacked then. Sources say what was measured.
"""

from __future__ import annotations

from truth import ALLOCATOR, COMPUTE, HOST, INPUT, LAUNCH, Thread

UNSEEN3 = (
    Thread(
        id="W01",
        source="huggingface/transformers#34692, pytorch/pytorch#146508 (float16 on the CPU: 246 to 1,650 s)",
        script="unseen3/doc_classifier.py",
        verdicts=(COMPUTE,),
        fixes=("FX322",),
        shorter={"STEPS": "40"},
        at=(
            "doc_classifier.py: return model.to(dtype)",
            "doc_classifier.py: model = load_model(",
            "doc_classifier.py: x = x + mix(",
            "doc_classifier.py: x = norm(x + narrow(",
        ),
    ),
    Thread(
        id="W02",
        source="lyuwenyu/RT-DETR#678, automl/nanoTabPFN#15, pytorch/pytorch#100347 (need_weights left on)",
        script="unseen3/object_queries.py",
        verdicts=(COMPUTE, ALLOCATOR),
        fixes=("FX306",),
        shorter={"STEPS": "40"},
        at=(
            "object_queries.py: tgt2, _ = self.self_attn(",
            "object_queries.py: tgt2, _ = self.cross_attn(",
        ),
    ),
    Thread(
        id="W03",
        source="Nerogar/OneTrainer#1109 (a mask that masks nothing: 8.6 to 6.6 and 2.3 to 1.85 s/it)",
        script="unseen3/text_to_image.py",
        verdicts=(COMPUTE, ALLOCATOR),
        fixes=("FX323",),
        shorter={"STEPS": "40"},
        at=(
            "text_to_image.py: out = scaled_dot_product_attention(",
            "text_to_image.py: attn_mask = torch.cat(",
            "text_to_image.py: x = block(x, attn_mask)",
        ),
    ),
    Thread(
        id="W04",
        source="kornia/kornia#2884 (Lovasz loss over the classes in a loop: 93.8 to 36.8 ms on a CPU)",
        script="unseen3/street_scenes.py",
        verdicts=(COMPUTE, LAUNCH),
        fixes=("FX510",),
        shorter={"STEPS": "60"},
        at=(
            "street_scenes.py: for image in range(BATCH):",
            "street_scenes.py: errors, order = torch.sort(errors",
            "street_scenes.py: losses.append(",
            "street_scenes.py: loss = lovasz_softmax(",
        ),
    ),
    Thread(
        id="W05",
        source="keiohta/tf2rl#126 (numpy.random.choice without replacement from all transitions: 1000x)",
        script="unseen3/expert_imitation.py",
        verdicts=(INPUT, HOST),
        fixes=("FX107", "FX504", "FX111"),
        shorter={"STEPS": "150"},
        at=("expert_imitation.py: indices = rng.choice(",),
    ),
    Thread(
        id="W06",
        source="mead-ml/mead-baseline#85 (a CRF sentence by sentence: 112.8 to 37.1 s per epoch)",
        script="unseen3/name_tagger.py",
        verdicts=(LAUNCH,),
        fixes=("FX510", "FX513"),
        shorter={"STEPS": "60"},
        at=(
            "name_tagger.py: for sentence, gold in zip(",
            "name_tagger.py: losses.append(",
            "name_tagger.py: alpha = torch.logsumexp(alpha[:, None]",
            "name_tagger.py: for scores in unary[1:]:",
        ),
    ),
    Thread(
        id="W07",
        source="Oldpan/Pytorch-Memory-Utils#21 (a tracker of live tensors left on: dozens of times slower)",
        script="unseen3/voice_cloning.py",
        verdicts=(HOST,),
        fixes=("FX504", "FX514"),
        shorter={"STEPS": "60"},
        at=(
            "voice_cloning.py: tracker.track()",
            "mem_report.py: new = {",
            "mem_report.py: for thing in gc.get_objects():",
            "mem_report.py: if torch.is_tensor(thing)",
        ),
    ),
    Thread(
        id="W08",
        source="ViTAE-Transformer/RSP#20 (scores of each batch by numpy: significantly faster without)",
        script="unseen3/change_detection.py",
        verdicts=(HOST,),
        fixes=("FX504", "FX514"),
        shorter={"STEPS": "100"},
        at=(
            "change_detection.py: scores.append(mean_f1(",
            "change_detection.py: return precision_recall_f1(",
            "scene_metrics.py: truth = np.array(",
            "scene_metrics.py: matrix = confusion_matrix(",
        ),
    ),
    Thread(
        id="W09",
        source="facebookresearch/dlrm#197 (the script's profiler left on: 23 to 43 ms)",
        script="unseen3/ad_ranking.py",
        verdicts=(HOST, LAUNCH),
        fixes=("FX519",),
        shorter={"STEPS": "150"},
        at=("ad_ranking.py: with torch.autograd.profiler.profile()",),
    ),
    Thread(
        id="W10",
        source="pytorch/pytorch#118499, #86270 (autocast on the CPU: 2.6 to 231 s per epoch; more than 2x)",
        script="unseen3/power_demand.py",
        verdicts=(COMPUTE,),
        fixes=("FX322",),
        shorter={"STEPS": "60"},
        at=(
            "power_demand.py: with torch.autocast(",
            "power_demand.py: loss = nn.functional.mse_loss(model(",
            "power_demand.py: return self.head(self.norm(self.rnn(",
        ),
    ),
)
