"""What is true of the thirty-sixth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN36`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import ALLOCATOR, COMPUTE, HOST, INPUT, LAUNCH, SYNC, Thread

UNSEEN36 = (
    Thread(
        id="LL01",
        machine="G",
        script="unseen36/ballad_aligner.py",
        source="NVIDIA-NeMo/Speech#4718 (prior by scipy frame by frame: 800 to 72 s an epoch; merged)",
        verdicts=(INPUT,),
        # cure: compute the beta-binomial prior of all frames of an utterance at once, with lgamma
        fixes=("FX107", "FX532"),
        shorter={"STEPS": "90"},
        at=(
            "ballad_aligner.py: mel_text_probs.append(betabinom(phoneme_count - 1, a, b).pmf(x))",
            "ballad_aligner.py: for i in range(1, mel_count + 1):",
            "ballad_aligner.py: def align_prior_scipy(phoneme_count, mel_count, scaling=1.0):",
            "ballad_aligner.py: prior = align_prior(int(self.text_lens[i]), int(self.mel_lens[i]))",
            "ballad_aligner.py: def __getitem__(self, i):",
            "ballad_aligner.py: for step, batch in enumerate(loader):",
            "ballad_aligner.py: BalladSet(STEPS * BATCH),",
        ),
    ),
    Thread(
        id="LL02",
        machine="G",
        script="unseen36/drifter_gripper.py",
        source="UoA-CARES/cares_reinforcement_learning#117 (largest of all priorities sought per sample: "
        "time per episode grows up to 100 times; a simpler memory; merged)",
        verdicts=(HOST,),
        # cure: store a sample without a walk through the priorities of all samples stored so far
        fixes=("FX514", "FX504"),
        shorter={"STEPS": "1400"},
        at=(
            "drifter_gripper.py: max_priority = max(self.priorities) if self.priorities else 1.0",
            "drifter_gripper.py: def add(self, **experience): @1",
            "drifter_gripper.py: memory.add(state=s, action=a, reward=r, next_state=n)",
            "drifter_gripper.py: for s, a, r, n in zip(state, action, reward, nxt):",
        ),
    ),
    Thread(
        id="LL03",
        machine="G",
        script="unseen36/mirror_scout.py",
        source="HumanCompatibleAI/eirli#47 (loss and norms read for the log in each batch: 224 s; "
        "in every tenth: 160 s; merged)",
        verdicts=(SYNC, INPUT, HOST),
        # cure: compute and read what is logged every tenth batch only; meanwhile the host makes batches
        fixes=("FX501", "FX504"),
        shorter={"STEPS": "110"},
        at=(
            "mirror_scout.py: loss_item = loss.item()",
            "mirror_scout.py: grad_norm, weight_norm = self.calculate_norms()",
            'mirror_scout.py: "gradient_norm": grad_norm.item(),',
            'mirror_scout.py: "weight_norm": weight_norm.item(),',
            "mirror_scout.py: if step % CALC_LOG_INTERVAL == 0:",
            "mirror_scout.py: def calculate_norms(self):",
            "mirror_scout.py: def batch_update(self, step, contexts, targets):",
            "mirror_scout.py: loss = learner.batch_update(step, contexts, targets)",
        ),
    ),
    Thread(
        id="LL04",
        machine="G",
        script="unseen36/monsoon_streams.py",
        source="ecmwf/WeatherGenerator#2551 (weights of the teacher averaged one by one, by name: ~100 ms; "
        "pairs kept, all at once: ~10 ms; open)",
        verdicts=(LAUNCH, HOST),
        # cure: pair the parameters once, and average them with one foreach call
        fixes=("FX312", "FX510"),
        shorter={"STEPS": "350"},
        at=(
            "monsoon_streams.py: p_ema.lerp_(p_src, 1.0 - beta)",
            "monsoon_streams.py: def update_by_name(self, cur_step):",
            'monsoon_streams.py: if "identity" in name.lower() or "q_cells" in name.lower():',
            "monsoon_streams.py: p_src = self.src_params.get(name, None)",
            "monsoon_streams.py: teacher_update(step + 1)",
        ),
    ),
    Thread(
        id="LL05",
        machine="G",
        script="unseen36/tide_refiner.py",
        source="Lightning-AI/pytorch-lightning#21611, #21616 (autocast without its cache: weights cast anew "
        "in each call of one step; cache back; merged)",
        verdicts=(COMPUTE,),
        # cure: let autocast keep the cast weights within the step (cache_enabled=True)
        fixes=("FX326", "FX358"),
        shorter={"STEPS": "300"},
        at=(
            "tide_refiner.py: dtype=torch.bfloat16, cache_enabled=self.cache_enabled)",
            "tide_refiner.py: precision = MixedPrecision(cache_enabled=VARIANT",
            "tide_refiner.py: with precision.forward_context():",
            "tide_refiner.py: def forward_context(self):",
            "tide_refiner.py: return h + 0.1 * self.down(F.gelu(self.up(self.norm(h + context))))",
            "tide_refiner.py: h = self.block(h, context)",
            "tide_refiner.py: estimates = model(record)",
        ),
    ),
    Thread(
        id="LL06",
        machine="G",
        script="unseen36/orchard_policy.py",
        source="linkedin/Liger-Kernel#1274 (loss set by boolean masks breaks the graph; where: merged)",
        verdicts=("graph-break-bound", SYNC, LAUNCH, HOST),
        # cure: compute both gates for all tokens, and pick by torch.where
        fixes=("FX401", "FX404", "FX502"),
        shorter={"STEPS": "100"},
        at=(
            "orchard_policy.py: per_token_loss[positive] = gate(coef_1[positive], TEMPERATURE_POS)",
            "orchard_policy.py: per_token_loss[~positive] = gate(coef_1[~positive], TEMPERATURE_NEG)",
            "orchard_policy.py: def gated_by_index(coef_1, advantages):",
            "orchard_policy.py: per_token_loss = gated(torch.exp(log_ratio), advantages)",
            "orchard_policy.py: def chunk_loss(hidden, weight, ids, old_logps, advantages):",
            "orchard_policy.py: leaf[i : i + 1],",
            "orchard_policy.py: loss.backward()",
        ),
    ),
    Thread(
        id="LL07",
        machine="G",
        script="unseen36/kiln_horizon.py",
        source="pnnl/neuromancer#291 (rollout grown by torch.cat at each step: quadratic; a list, joined "
        "once: linear; merged)",
        verdicts=(COMPUTE, ALLOCATOR, LAUNCH),
        # cure: keep the steps of the rollout in lists, read them by index, and join them once at the end
        fixes=("FX346",),
        shorter={"STEPS": "120"},
        at=(
            "kiln_horizon.py: data3d[k] = torch.cat([data3d[k], data2d[k][:, None, :]], dim=1)",
            "kiln_horizon.py: def cat(self, data3d, data2d):",
            "kiln_horizon.py: data = self.cat(data, node(indata))",
            "kiln_horizon.py: indata = {k: data[k][:, i] for k in node.input_keys}",
            'kiln_horizon.py: out = system({"x": x0[step % 4], "r": ref[step % 4]})',
            "kiln_horizon.py: loss.backward()",
        ),
    ),
    # trap: the memory of the device is asked for and written down at the start of each batch
    Thread(
        id="LL08",
        machine="G",
        script="unseen36/harbor_tiles.py",
        source="open-edge-platform/geti#4118 (monitor of GPU memory in each batch: 113.9 s, without it "
        "112.3 s; merged)",
        not_verdicts=(HOST, SYNC, INPUT),
        not_fixes=("FX501", "FX504", "FX527"),
        shorter={"STEPS": "150"},
    ),
)
