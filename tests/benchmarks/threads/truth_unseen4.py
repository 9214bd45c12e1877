"""What is true of the threads of the fourth blind test, none of them in the other tables.

In: nothing. Out: `UNSEEN4`, in the form of truth.py's table. Found in public trackers, mostly by symptoms.
This table and the scripts were written by someone who had read neither the tool nor its reports, and stood
before the tool was first run on them. Sources say what was measured.
"""

from __future__ import annotations

from truth import ALLOCATOR, COMPUTE, HOST, INPUT, LAUNCH, SYNC, Thread

UNSEEN4 = (
    Thread(
        id="X01",
        source="luxonis/luxonis-ml#183 (all other indices listed for each item; merged, grows with the data)",
        script="unseen4/parking_mosaic.py",
        verdicts=(INPUT,),
        fixes=("FX107",),
        shorter={"STEPS": "150"},
        at=(
            "parking_mosaic.py: others = [i for i in range(len(self)) if i != idx]",
            "parking_mosaic.py: return random.sample(others",
            "parking_mosaic.py: for part, index in enumerate([idx, *self.partners(idx)])",
        ),
    ),
    Thread(
        id="X02",
        source="kozistr/pytorch_optimizer#100, #103 (cheaper roots: 4.3x), #129 (then every 1,000 steps)",
        script="unseen4/mixer_shampoo.py",
        verdicts=(COMPUTE,),
        no_entry=True,
        shorter={"STEPS": "60"},
        at=(
            "mixer_shampoo.py: values, vectors = torch.linalg.eigh(",
            'mixer_shampoo.py: state["left_root"] = inverse_root(',
            'mixer_shampoo.py: state["right_root"] = inverse_root(',
            "mixer_shampoo.py: optimizer.step()",
        ),
    ),
    Thread(
        id="X03",
        source="facebookresearch/ParlAI#997 (examples counted anew each time: 79 to 9 s with 40 threads)",
        script="unseen4/story_world.py",
        verdicts=(HOST, INPUT),
        fixes=("FX107", "FX504"),
        shorter={"STEPS": "150"},
        at=(
            "story_teachers.py: return sum(len(episode) for episode in self.episodes)",
            "story_teachers.py: return text, labels, self.told >= self.num_examples()",
            "story_teachers.py: text, labels, epoch_done = self.next_example()",
            "story_world.py: observations = [teacher.act()",
        ),
    ),
    Thread(
        id="X04",
        source="time-series-foundation-models/lag-llama#51 (each series transformed anew: improved a lot)",
        script="unseen4/turbine_lags.py",
        verdicts=(INPUT,),
        fixes=("FX107",),
        shorter={"STEPS": "120"},
        at=(
            "turbine_lags.py: for entry in data if data is not None else self.chain.apply(self.data):",
            "turbine_lags.py: entry = step(entry)",
            "turbine_lags.py: index = pd.date_range(",
            "turbine_lags.py: features = [index.hour / 23",
        ),
    ),
    Thread(
        id="X05",
        source="KevinMusgrave/pytorch-metric-learning#192, #200 (triplets in a loop: training 5x slower)",
        script="unseen4/track_embeddings.py",
        verdicts=(HOST,),
        fixes=("FX514", "FX510"),
        shorter={"STEPS": "150"},
        at=(
            "pair_utils.py: same = np.where(",
            "pair_utils.py: other = np.where(",
            "pair_utils.py: negatives += list(np.random.choice(",
            "track_embeddings.py: anchors, positives, negatives = self.pick(",
        ),
    ),
    Thread(
        id="X06",
        source="DeepLabCut/DeepLabCut#2632, donnyyou/torchcv#4 (targets in loops take most of a step)",
        script="unseen4/cage_pose.py",
        verdicts=(HOST,),
        fixes=("FX514", "FX107"),
        shorter={"STEPS": "120"},
        at=(
            'cage_pose.py: target = self.model.get_target(batch["annotations"])',
            "cage_pose.py: heatmap, locref = self.targets(annotations)",
            "cage_pose.py: near = np.linalg.norm(way, axis=2)",
            "cage_pose.py: locref[b, 2 * j][near] = ",
        ),
    ),
    Thread(
        id="X07",
        source="mindee/doctr#2141 (the loss set by set, image by image: the block 434 to 13 ms)",
        script="unseen4/invoice_layout.py",
        verdicts=(LAUNCH, HOST),
        fixes=("FX510", "FX514"),
        shorter={"STEPS": "70"},
        at=(
            "invoice_layout.py: loss = sum(compute_loss(*each, targets) for each in found)",
            "invoice_layout.py: cost = torch.cdist(boxes[image], target",
            "invoice_layout.py: loss = loss + nn.functional.binary_cross_entropy_with_logits(logits[image]",
            "invoice_layout.py: loss = loss + 5 * nn.functional.l1_loss(boxes[image]",
        ),
    ),
    Thread(
        id="X08",
        source="ranahanocka/MeshCNN#41 (edges united one by one: 314 to 149 s per epoch)",
        script="unseen4/mesh_parts.py",
        verdicts=(LAUNCH, HOST),
        fixes=("FX510",),
        shorter={"STEPS": "120"},
        at=(
            "mesh_union.py: self.groups[target, :] += self.groups[source, :]",
            "mesh_parts.py: union.union(edge, partner)",
            "mesh_parts.py: pooled = [self.pool_one(",
        ),
    ),
    Thread(
        id="X09",
        source="Toni-SM/skrl#156 (the shared network runs for the policy and for the value; merged)",
        script="unseen4/quadruped_ppo.py",
        verdicts=(COMPUTE,),
        no_entry=True,
        shorter={"STEPS": "170"},
        at=(
            "quadruped_ppo.py: features = self.net(states) if self.features is None",
            'quadruped_ppo.py: value = self.model.compute(states, "value")[:, 0] @2',
            "quadruped_ppo.py: _, log_prob, entropy = self.model.act(states, actions)",
        ),
    ),
    Thread(
        id="X10",
        source="huggingface/sentence-transformers#4026 (distances tiled to batch cubed: 58.4 to 3.4 ms)",
        script="unseen4/product_titles.py",
        verdicts=(COMPUTE, ALLOCATOR),
        no_entry=True,
        shorter={"STEPS": "100"},
        at=(
            "product_titles.py: tile = pairwise.repeat(size, 1)",
            "product_titles.py: mask = other.repeat(size, 1) & ",
            "product_titles.py: return ((data - top) * mask).min(",
            "product_titles.py: return torch.where(found, masked_min(tile, mask)",
        ),
    ),
    Thread(
        id="X11",
        source="NVIDIA-NeMo/labs-molt#29, NVIDIA-NeMo/RL#4156 (returns token by token: 1,060 to 0.9 ms)",
        script="unseen4/proof_policy.py",
        verdicts=(LAUNCH, HOST),
        fixes=("FX510", "FX513", "FX514"),
        shorter={"STEPS": "80"},
        at=(
            "proof_policy.py: running = rewards[:, t] + self.gamma * running",
            "proof_policy.py: returns[:, t] = running",
            "proof_policy.py: for t in reversed(range(rewards.shape[1])):",
            "proof_policy.py: returns = self.estimator.returns(rewards, mask)",
        ),
    ),
    Thread(
        id="X12",
        source="Mawiszus/TOAD-GAN#3 (images of the levels logged while training: 3x without)",
        script="unseen4/level_gan.py",
        verdicts=(HOST,),
        fixes=("FX504",),
        shorter={"STEPS": "110"},
        at=(
            "level_gan.py: board.log(step, numbers, levels",
            "level_gan.py: path.write_bytes(png(self.images.render(level)))",
            'level_gan.py: return b"\\x89PNG',
            "level_gan.py: picture[y * TILE : (y + 1) * TILE",
        ),
    ),
    Thread(
        id="X13",
        source="open-mmlab/mmdetection#276 (anchors kept, not made anew: no speed-up, says the maintainer)",
        script="unseen4/ship_anchors.py",
        not_verdicts=(HOST, LAUNCH),
        not_fixes=("FX510", "FX514", "FX521", "FX504"),
        shorter={"STEPS": "80"},
    ),
    Thread(
        id="X14",
        source="ultralytics/ultralytics#26150 (costs of boxes of other images, where boxes are few: 1.003x)",
        script="unseen4/crossing_queries.py",
        not_verdicts=(HOST, SYNC),
        not_fixes=("FX510", "FX514", "FX504"),
        shorter={"STEPS": "70"},
    ),
)
