"""What is true of the seventh set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN7`. Their times on the device were not taken when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, SYNC, TRANSFER, Thread

UNSEEN7 = (
    Thread(
        id="A01",
        source="rasbt/reasoning-from-scratch#178 (tokens drawn on the CPU: 46-50 to 57-64 tokens per s)",
        script="unseen7/riddle_rollout.py",
        machine="G",
        verdicts=(SYNC, HOST),
        # Since its first try: what is computed on the host.
        fixes=("FX502", "FX524"),
        shorter={"STEPS": "90"},
        at=("riddle_rollout.py: following = torch.multinomial(probas.cpu()",),
    ),
    Thread(
        id="A02",
        source="roboflow/rf-detr#1399 (114 tensors per batch from workers, 9 when packed: 1.25x to 1.67x)",
        script="unseen7/drone_boxes.py",
        machine="G",
        verdicts=(INPUT,),
        # Since its first try: tensors handed over one by one.
        fixes=("FX116",),
        shorter={"STEPS": "120"},
        at=(
            "drone_boxes.py: targets = [target for _, target in samples]",
            "drone_boxes.py: return images, targets",
            "drone_boxes.py: for step, (images, targets) in enumerate(loader)",
            "drone_boxes.py: return [{k: v.to(device, non_blocking=True)",
            "drone_boxes.py: loader = DataLoader(",
        ),
    ),
    Thread(
        id="A03",
        source="pytorch/pytorch#21462 (Conv1d with a kernel of 1024: 20 times as slow as by FFT)",
        script="unseen7/whale_calls.py",
        machine="G",
        verdicts=(COMPUTE,),
        no_entry=True,
        shorter={"STEPS": "120"},
        at=(
            "whale_calls.py: return F.conv1d(x, self.weight, self.bias",
            "whale_calls.py: x = x + F.gelu(self.long(x))",
        ),
    ),
    Thread(
        id="A04",
        source="IBM/pytorch-seq2seq#32 (a decoder fed word by word where all words are known: 25 %)",
        script="unseen7/proverb_translate.py",
        machine="G",
        verdicts=(LAUNCH, HOST),
        fixes=("FX513",),
        shorter={"STEPS": "150"},
        at=(
            "proverb_translate.py: for t in range(target.shape[1]):",
            "proverb_translate.py: scores, state = self.forward_step(target[:, t : t + 1]",
            "proverb_translate.py: output, state = self.rnn(self.embed(words), state)",
        ),
    ),
    Thread(
        id="A05",
        source="shivammehta25/Matcha-TTS#73, jaywalnut310/glow-tts#37 (alignment in NumPy; kept: no figures)",
        script="unseen7/audiobook_voice.py",
        machine="G",
        verdicts=(SYNC, HOST),
        fixes=("FX504", "FX514"),
        shorter={"STEPS": "90"},
        at=(
            "audiobook_voice.py: path = saved[i] if saved is not None",
            "audiobook_voice.py: scores = value.detach().cpu().numpy()",
            "audiobook_voice.py: for j in range(frames):",
            "audiobook_voice.py: for j in reversed(range(frames)):",
        ),
    ),
    Thread(
        id="A06",
        source="Toni-SM/skrl#233, ray-project/ray#50440 (distributions that check their values: no figures)",
        script="unseen7/maze_worldmodel.py",
        machine="G",
        verdicts=(SYNC, LAUNCH, HOST),
        fixes=("FX517",),
        shorter={"STEPS": "120"},
        at=(
            "maze_worldmodel.py: return Independent(OneHotCategoricalStraightThrough(",
            "maze_worldmodel.py: prior = categorical(self.prior(state))",
            "maze_worldmodel.py: posterior = categorical(",
            "maze_worldmodel.py: picture = Independent(Normal(",
        ),
    ),
    Thread(
        id="A07",
        source="JunMa11/SegLossOdyssey#42, LIVIAETS/boundary-loss#59 (distance maps in the loss: no figures)",
        script="unseen7/lesion_contours.py",
        machine="G",
        verdicts=(SYNC, HOST),
        fixes=("FX504", "FX514"),
        shorter={"STEPS": "120"},
        at=(
            "lesion_contours.py: distances = np.stack([signed_distance(mask) for mask in masks])",
            'lesion_contours.py: masks = batch["mask"].cpu().numpy()',
            "lesion_contours.py: away = distance_transform_edt(~inside) * ~inside",
        ),
    ),
    Thread(
        id="A08",
        source="signatrix/efficientdet#30 (targets of the loss made on the CPU, then copied: about 4x)",
        script="unseen7/orchard_fruit.py",
        machine="G",
        verdicts=(TRANSFER, SYNC, HOST),
        # Since its first try: what is computed on the host.
        fixes=("FX521", "FX524"),
        shorter={"STEPS": "100"},
        at=(
            "orchard_fruit.py: targets = (torch.ones(classification.shape) * -1)",
            "orchard_fruit.py: alpha_factor = torch.ones(targets.shape)",
            "orchard_fruit.py: zeros = torch.zeros(cls_loss.shape)",
        ),
    ),
    Thread(
        id="A09",
        source="wandb/senpai#1555, #1188 (a loop over the samples, with reads, vectorised: no speed-up)",
        script="unseen7/airfoil_fields.py",
        machine="G",
        not_verdicts=(HOST, LAUNCH, SYNC),
        not_fixes=("FX501", "FX502", "FX503", "FX510", "FX514"),
        shorter={"STEPS": "100"},
    ),
    Thread(
        id="A10",
        source="voicepaw/so-vits-svc-fork#216 (units stretched frame by frame; interpolate: 100 times)",
        script="unseen7/choir_voice.py",
        verdicts=(INPUT,),
        fixes=("FX107",),
        at=(
            "choir_voice.py: for i in range(target_len):",
            "choir_voice.py: if i < temp[current_pos + 1]:",
            "choir_voice.py: target[:, i] = content[:, current_pos] @1",
            "choir_voice.py: target[:, i] = content[:, current_pos] @2",
            "choir_voice.py: units = repeat_expand_2d(self.units[i]",
        ),
    ),
    Thread(
        id="A11",
        source="rail-berkeley/rlkit#112 (goals of the replay drawn one by one: the part 80 times)",
        script="unseen7/arm_reacher.py",
        verdicts=(INPUT, HOST),
        fixes=("FX107", "FX504", "FX514"),
        at=(
            "arm_reacher.py: for i in indices:",
            "arm_reacher.py: chosen.append(possible[int(np.random.randint(0, options))])",
            "arm_reacher.py: goals[-number:] = self.reached[self.draw_later(",
        ),
    ),
    Thread(
        id="A12",
        source="Lightning-AI/pytorch-lightning#6534 (set_to_none: 41.42 and 41.05 s)",
        script="unseen7/shelf_goods.py",
        not_verdicts=(HOST, LAUNCH),
        not_fixes=("FX313",),
    ),
)
