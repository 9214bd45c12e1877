"""What is true of the twelfth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN12`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, SYNC, Thread

UNSEEN12 = (
    Thread(
        id="F01",
        source="huggingface/transformers#45041, sgl-project/sglang-omni#539 (patches by Conv3d: 3.7 s)",
        script="unseen12/cell_videos.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: a convolution whose kernel is as large as its input is one matrix product; F.linear.
        no_entry=True,
        shorter={"STEPS": "160"},
        at=(
            "cell_videos.py: return self.proj(cubes).view(",
            "cell_videos.py: self.proj = nn.Conv3d(",
            "cell_videos.py: x = self.embed(cubes).view(",
            "cell_videos.py: loss.backward()",
            "cell_videos.py: model(cubes, CLIPS)",
        ),
    ),
    Thread(
        id="F02",
        source="pytorch/pytorch#143281 (QR of a batch of 3 x 3: 8.1 s on an H100, 0.11 s on the CPU)",
        script="unseen12/horse_joints.py",
        machine="G",
        verdicts=(LAUNCH, HOST, COMPUTE),
        # cure: not the library's QR on the GPU, which goes from matrix to matrix: on the CPU, or written out.
        no_entry=True,
        shorter={"STEPS": "260"},
        at=(
            "horse_joints.py: q, r = torch.linalg.qr(",
            "horse_joints.py: return to_rotation(raw.float()",
            "horse_joints.py: predicted = model(tracks)",
        ),
    ),
    Thread(
        id="F03",
        source="explosion/thinc#746 (found_inf read from the GPU per parameter; kept: -25 % of the update)",
        script="unseen12/recipe_tagger.py",
        machine="G",
        verdicts=(SYNC, HOST, LAUNCH),
        # cure: read the flag once per step and keep it on the host.
        fixes=("FX502", "FX503", "FX501"),
        shorter={"STEPS": "320"},
        at=(
            "recipe_tagger.py: return self.known if VARIANT",
            "recipe_tagger.py: if not scaler.overflowed:",
            "recipe_tagger.py: finish_update(model, optimizer, scaler) @2",
        ),
    ),
    Thread(
        id="F04",
        source="tristandeleu/pytorch-maml-rl#13 (slope of the KL anew in each CG round; kept: ~10 %)",
        script="unseen12/glider_policy.py",
        machine="G",
        verdicts=(COMPUTE, LAUNCH, HOST),
        # cure: forward pass and first gradient once per update, their graph kept for all products.
        fixes=("FX326",),
        shorter={"STEPS": "80"},
        at=(
            "glider_policy.py: slope = self.slope(states) if kept is None",
            "glider_policy.py: kl = self.divergence(states)",
            "glider_policy.py: return flatten(torch.autograd.grad(kl",
            "glider_policy.py: now = self.policy(states)",
            "glider_policy.py: z = product(p)",
            "glider_policy.py: way = self.conjugate(product, gradient)",
            "glider_policy.py: region.step(states, actions, advantages)",
            "glider_policy.py: return kl_divergence(old, now)",
        ),
    ),
    Thread(
        id="F05",
        source="learnables/learn2learn#127 (deepcopy for each clone; a shallow copy: 35 % faster; merged)",
        script="unseen12/leaf_shots.py",
        machine="G",
        verdicts=(HOST, LAUNCH),
        # cure: copy the modules' dictionaries only, not their contents, which are replaced anyway.
        fixes=("FX514",),
        shorter={"STEPS": "130"},
        at=(
            "leaf_shots.py: twin = copy.deepcopy(module)",
            "leaf_shots.py: learner = duplicate(model)",
        ),
    ),
    Thread(
        id="F06",
        source="facebookresearch/fairseq2#1210, lightseekorg/TorchSpec#86 (masks by layer: 40 %, kept: 65 %)",
        script="unseen12/patent_packs.py",
        machine="G",
        verdicts=(HOST, LAUNCH, COMPUTE),
        # cure: the block mask once per batch, not in each layer.
        no_entry=True,
        shorter={"STEPS": "110"},
        at=(
            "patent_packs.py: mask = claims_apart(claims) @1",
            "patent_packs.py: return create_block_mask(visible",
            "patent_packs.py: return (i >= j) & (claims[b, i]",
            "patent_packs.py: x = layer(x, claims, mask)",
            "patent_packs.py: x = x + self.attention(self.norm1(x), claims, mask)",
        ),
    ),
    Thread(
        id="F07",
        source="issamemari/pytorch-multilabel-balanced-sampler#9 (loop over labels: > 60 to 9 s; merged)",
        script="unseen12/reef_tags.py",
        machine="G",
        verdicts=(INPUT, HOST),
        # cure: add the row of labels to the counts at once, not label by label.
        fixes=("FX107",),
        shorter={"STEPS": "380"},
        at=(
            "reef_tags.py: for tag, present in enumerate(",
            "reef_tags.py: if present == 1:",
            "reef_tags.py: self.counts[tag] += 1",
            "reef_tags.py: self.note(chosen)",
            "reef_tags.py: sampler=RareFirst(reef.tags",
            "reef_tags.py: for step, (photos, tags) in enumerate(loader):",
            "reef_tags.py: loader = DataLoader(",
        ),
    ),
    Thread(
        id="F08",
        source="brownvc/R3GAN#9, rosinality/stylegan2-pytorch#175, pytorch/pytorch#7714 (0.065 to 0.330 s)",
        script="unseen12/pottery_faces.py",
        machine="G",
        verdicts=(COMPUTE, LAUNCH, HOST),
        # cure: the penalties in every eighth step only, eight times as strong (lazy regularisation).
        no_entry=True,
        shorter={"STEPS": "200"},
        at=(
            "pottery_faces.py: (slope,) = torch.autograd.grad(",
            "pottery_faces.py: penalty = steepness(of_real, real)",
            "pottery_faces.py: total.backward()",
            "pottery_faces.py: loss = game.judge_step(real)",
            "pottery_faces.py: smooth = self.turn % EVERY",
            "pottery_faces.py: if smooth:",
        ),
    ),
    Thread(
        id="F09",
        source="NeuracoreAI/neuracore#889 (start of the episode searched for each sample; merged)",
        script="unseen12/arm_demos.py",
        machine="G",
        verdicts=(INPUT,),
        # cure: offsets of the episodes and the settings made once, when the dataset is made.
        fixes=("FX107",),
        shorter={"STEPS": "230"},
        at=(
            "arm_demos.py: return episode, item - self.episode_indices.index(episode)",
            "arm_demos.py: episode, now = self.moment(item)",
            "arm_demos.py: order, width, places = self.settings or",
            "arm_demos.py: loader = DataLoader(",
            "arm_demos.py: for batch in loader:",
        ),
    ),
    Thread(
        id="F10",
        source="huggingface/transformers#34570 (eigvals where eigvalsh does: over 2x of all fine-tuning)",
        script="unseen12/story_words.py",
        machine="G",
        verdicts=(HOST, SYNC, COMPUTE, LAUNCH),
        # cure: the eigenvalues of a symmetric matrix by eigvalsh.
        no_entry=True,
        shorter={"STEPS": "130"},
        at=(
            "story_words.py: values = torch.linalg.eigvals(matrix)",
            "story_words.py: if self.is_positive(spread):",
            "story_words.py: model.add_words(NEW)",
        ),
    ),
    Thread(
        id="F11",
        source="rwth-i6/returnn#1593 (frames packed without nonzero and its wait: slightly slower, given up)",
        script="unseen12/whale_frames.py",
        machine="G",
        verdicts=(COMPUTE,),
        not_verdicts=(SYNC, INPUT),
        not_fixes=("FX501", "FX502", "FX503"),
        shorter={"STEPS": "180"},
    ),
    Thread(
        id="F12",
        source="RWKV/RWKV-infctx-trainer#17 (8 loader workers and not more: no effect on training; merged)",
        script="unseen12/saga_words.py",
        machine="G",
        verdicts=(COMPUTE,),
        not_verdicts=(INPUT,),
        not_fixes=("FX101", "FX102", "FX106"),
        shorter={"STEPS": "140"},
    ),
    Thread(
        id="F13",
        source="karpathy/nanoGPT#195, suno-ai/bark#364 (no fused attention with dropout: 4,731 to 3,774 ms)",
        script="unseen12/weather_notes.py",
        machine="G",
        verdicts=(COMPUTE,),
        fixes=("FX306",),
        shorter={"STEPS": "180"},
        at=(
            "weather_notes.py: k.transpose(-2, -1) / math.sqrt(",
            "weather_notes.py: scores = scores.masked_fill(",
            "weather_notes.py: y = self.drop_weights(F.softmax(",
            "weather_notes.py: self.quick = hasattr(",
            "weather_notes.py: if self.quick:",
            "weather_notes.py: x = x + self.attention(self.norm1(x))",
        ),
    ),
    Thread(
        id="F14",
        source="huggingface/transformers#48692, #48915 (RMSNorm in float32 pieces: 0.605 to 0.486 s a step)",
        script="unseen12/court_letters.py",
        machine="G",
        verdicts=(COMPUTE,),
        fixes=("FX314", "FX414"),
        shorter={"STEPS": "140"},
        at=(
            "court_letters.py: y = x.float()",
            "court_letters.py: y = y * torch.rsqrt(",
            "court_letters.py: y = y * (1.0 + self.weight.float())",
            "court_letters.py: return y.type_as(x)",
            "court_letters.py: q, k = self.norm_q(q), self.norm_k(k)",
            "court_letters.py: x = x + self.attention(self.norm1(x))",
            "court_letters.py: y = self.norm2(x)",
        ),
    ),
)
