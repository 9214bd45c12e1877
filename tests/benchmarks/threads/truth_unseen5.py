"""What is true of the fifth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN5`. Their times on the device were not taken when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, SYNC, TRANSFER, Thread

GRAPH_BREAK = "graph-break-bound"

UNSEEN5 = (
    Thread(
        id="Y01",
        source="NVIDIA-NeMo/Speech#9041, #6347 (masks set sample by sample: 70 to 17 ms; 20x for the module)",
        script="unseen5/canary_asr.py",
        machine="G",
        verdicts=(LAUNCH, HOST),
        fixes=("FX510",),
        shorter={"STEPS": "300"},
        at=(
            "canary_asr.py: spec[sample, start:stop, :] = 0.0",
            "canary_asr.py: spec[sample, :, start:stop] = 0.0",
            "canary_asr.py: logits = model(features[",
        ),
    ),
    Thread(
        id="Y02",
        source="Project-MONAI/MONAI#8541 (batch taken apart and copied off each step: 4 to 2 days)",
        script="unseen5/spleen_unet.py",
        machine="G",
        verdicts=(TRANSFER, SYNC),
        fixes=("FX504", "FX503"),
        shorter={"STEPS": "150"},
        at=(
            "spleen_unet.py: item[key] = part.detach().cpu()",
            "spleen_unet.py: self.output = decollate(",
        ),
    ),
    Thread(
        id="Y03",
        source="Tencent-Hunyuan/UniRL#441 (Adam's step counters on the GPU: 34.6 to 28.6 ms)",
        script="unseen5/grpo_update.py",
        machine="G",
        verdicts=(SYNC,),
        # The fused step reads nothing on the host either, whatever the device of the counters.
        fixes=("FX502", "FX311"),
        shorter={"STEPS": "400"},
        at=(
            "grpo_update.py: optimizer.step()",
            "grpo_update.py: state[name] = value.to(target)",
        ),
    ),
    Thread(
        id="Y04",
        source="pytorch/pytorch#41162, dmlc/dgl#3729 (gradient of an index with duplicates: 2x slower)",
        script="unseen5/lidar_pillars.py",
        machine="G",
        verdicts=(COMPUTE,),
        # The cure: index_select (or embedding), whose gradient is summed in parallel.
        no_entry=True,
        shorter={"STEPS": "300"},
        at=("lidar_pillars.py: context = pooled[pillar]", "lidar_pillars.py: loss.backward()"),
    ),
    Thread(
        id="Y05",
        source="yenchenlin/nerf-pytorch#42, icon-lab/SynDiff#43 (anomaly detection on: 90 to 36 min)",
        script="unseen5/lego_rays.py",
        machine="G",
        verdicts=(SYNC, HOST, LAUNCH),
        fixes=("FX512",),
        shorter={"STEPS": "250"},
        at=(
            "lego_rays.py: torch.autograd.set_detect_anomaly(",
            "lego_rays.py: loss.backward()",
        ),
    ),
    Thread(
        id="Y06",
        source="NVIDIA/apex#1517, linkedin/Liger-Kernel#1441 (gradients of frozen weights: 20 %)",
        script="unseen5/prompt_tuning.py",
        machine="G",
        verdicts=(COMPUTE,),
        fixes=("FX325",),
        shorter={"STEPS": "130"},
        at=(
            "prompt_tuning.py: grad_weight = grad.flatten(",
            "prompt_tuning.py: return LinearWithCast.apply(",
            "prompt_tuning.py: loss.backward()",
        ),
    ),
    Thread(
        id="Y07",
        source="HVision-NKU/SRFormer#5 (masks computed on the host in each forward: no figures)",
        script="unseen5/light_sr.py",
        machine="G",
        verdicts=(HOST, SYNC, TRANSFER),
        fixes=("FX521",),
        shorter={"STEPS": "200"},
        at=(
            "light_sr.py: img_mask = torch.zeros(",
            "light_sr.py: img_mask[:, rows, columns, :] = region",
            "light_sr.py: attn_mask = windows.unsqueeze(1)",
            "light_sr.py: attn_mask = attn_mask.masked_fill(",
            "light_sr.py: return attn_mask.masked_fill(",
            "light_sr.py: mask = self.calculate_mask(",
        ),
    ),
    Thread(
        id="Y08",
        source="nomic-ai/contrastors#83, #84 (a check in each layer breaks the graph: over 30 %)",
        script="unseen5/text_embedder.py",
        machine="G",
        verdicts=(GRAPH_BREAK, LAUNCH, HOST),
        fixes=("FX401", "FX406"),
        shorter={"STEPS": "500"},
        at=(
            'text_embedder.py: return VARIANT == "a" and self.training',
            "text_embedder.py: if self.stale(x.shape[-2])",
            "text_embedder.py: vectors = compiled(",
            "text_embedder.py: x = layer(x)",
        ),
    ),
    Thread(
        id="Y09",
        source="huggingface/lerobot#4627 (images transformed one by one in workers: 425 to 1,200 / s)",
        script="unseen5/act_policy.py",
        machine="G",
        verdicts=(INPUT,),
        fixes=("FX107",),
        shorter={"STEPS": "130"},
        at=(
            "act_policy.py: for step, batch in enumerate(loader)",
            "act_policy.py: frames = self.transforms[i](frames)",
            "act_policy.py: cameras = torch.stack([self.transform(",
            "act_policy.py: loader = DataLoader(",
        ),
    ),
    Thread(
        id="Y10",
        source="ray-project/ray#17371 (minibatches copied in each pass: ~33 % faster loaded once)",
        script="unseen5/breakout_ppo.py",
        machine="G",
        verdicts=(TRANSFER, SYNC),
        # The cure: copy the rollout once, then take its minibatches on the device. Pinned memory
        # (FX103, FX104) or a copy ahead (FX508) would gain much of it, but were not what was measured.
        no_entry=True,
        shorter={"STEPS": "800"},
        at=(
            "breakout_ppo.py: return {name: column.to(device)",
            'breakout_ppo.py: yield batch if VARIANT == "b"',
            "breakout_ppo.py: batch = next(batches)",
        ),
    ),
    Thread(
        id="Y11",
        source="roboflow/rf-detr#1492 (164.3 to 14.7 synchronisations per step: +0.23 %)",
        script="unseen5/query_detector.py",
        machine="G",
        verdicts=(COMPUTE,),
        not_verdicts=(SYNC, TRANSFER, HOST),
        not_fixes=("FX501", "FX502", "FX503", "FX521"),
        shorter={"STEPS": "70"},
    ),
    Thread(
        id="Y12",
        source="huggingface/transformers#11764 (spans drawn by numpy in each forward: 1 %)",
        script="unseen5/speech_pretrain.py",
        machine="G",
        verdicts=(COMPUTE,),
        not_verdicts=(HOST, SYNC, TRANSFER, LAUNCH),
        not_fixes=("FX502", "FX503", "FX504", "FX510", "FX514", "FX521"),
        small=True,
        shorter={"STEPS": "140"},
    ),
)
