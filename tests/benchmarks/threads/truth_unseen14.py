"""What is true of the fourteenth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN14`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, SYNC, TRANSFER, Thread

UNSEEN14 = (
    Thread(
        id="H01",
        source="pykeen/pykeen#825, #417 (negatives triple by triple: epoch 24.1 s, by batch 2.2)",
        script="unseen14/museum_facts.py",
        machine="G",
        verdicts=(INPUT, HOST),
        # cure: draw the wrong facts of the whole batch with one call, when the batch is put together.
        fixes=("FX107", "FX112", "FX101"),
        shorter={"STEPS": "110"},
        at=(
            "museum_facts.py: return (fact, self.corrupt(fact)) if VARIANT",
            "museum_facts.py: def corrupt(self, facts):",
            "museum_facts.py: wrong = facts.unsqueeze(-2)",
            "museum_facts.py: other = torch.randint(",
            "museum_facts.py: first = torch.rand(",
            "museum_facts.py: wrong[..., 0] = torch.where(",
            "museum_facts.py: wrong[..., 2] = torch.where(",
            "museum_facts.py: def __getitem__(self, item):",
            "museum_facts.py: loader = DataLoader(",
            "museum_facts.py: yield from loader",
            "museum_facts.py: facts, wrong = next(batches)",
        ),
    ),
    Thread(
        id="H02",
        source="Kaixhin/Rainbow#48 (frames made floats on the host, then copied; cast afterwards: faster)",
        script="unseen14/kart_frames.py",
        machine="G",
        verdicts=(TRANSFER, HOST, SYNC, INPUT),
        # cure: copy the bytes, make them floats on the device: a quarter of the bytes.
        fixes=("FX509", "FX524"),
        shorter={"STEPS": "70"},
        at=(
            "kart_frames.py: return stacked.to(device=device, dtype=torch.float32)",
            "kart_frames.py: def pictures(self, first):",
            "kart_frames.py: state, following = self.pictures(first)",
            "kart_frames.py: state, actions, rewards, following = memory.sample(",
        ),
    ),
    Thread(
        id="H03",
        source="lucidrains/ema-pytorch#5, huggingface/diffusers#7685 (averaged weights kept on the host)",
        script="unseen14/carpet_patterns.py",
        machine="G",
        verdicts=(TRANSFER, SYNC, HOST),
        # cure: keep the averaged weights on the device, where the weights are.
        fixes=("FX524", "FX523", "FX504", "FX503"),
        shorter={"STEPS": "80"},
        at=(
            "carpet_patterns.py: mean.lerp_(p.to(mean.device)",
            "carpet_patterns.py: for mean, p in zip(self.means",
            "carpet_patterns.py: def update(self, model):",
            'carpet_patterns.py: self.place = torch.device("cpu")',
            "carpet_patterns.py: self.means = [p.detach().to(",
            "carpet_patterns.py: smoothed.update(model)",
        ),
    ),
    Thread(
        id="H04",
        source="pytorch/pytorch#61398 (load_state_dict in each step: 200x slower than a plain copy loop)",
        script="unseen14/letter_styles.py",
        machine="G",
        verdicts=(HOST, LAUNCH),
        # cure: copy all weights with one _foreach_copy_ into tensors that were listed once.
        fixes=("FX514", "FX312", "FX510", "FX504"),
        shorter={"STEPS": "190"},
        at=(
            "letter_styles.py: learner.load_state_dict(self.state)",
            "letter_styles.py: def enter(self, learner):",
            "letter_styles.py: school.enter(learner)",
        ),
    ),
    Thread(
        id="H05",
        source="pytorch/pytorch#2176, #7313 (weight norm anew in each time step; cached(): no figures)",
        script="unseen14/tram_counts.py",
        machine="G",
        verdicts=(COMPUTE, LAUNCH, HOST),
        # cure: parametrize.cached() around the loop: each weight is normalised once per forward.
        fixes=("FX326",),
        shorter={"STEPS": "110"},
        at=(
            "tram_counts.py: self.see = weight_norm(",
            "tram_counts.py: self.recall = weight_norm(",
            "tram_counts.py: keep, mix, new = self.see(x)",
            "tram_counts.py: old_keep, old_mix, old_new = self.recall(",
            "tram_counts.py: with parametrize.cached() if VARIANT",
            "tram_counts.py: for hour in x.unbind(1):",
            "tram_counts.py: lower = self.first(hour, lower)",
            "tram_counts.py: upper = self.second(lower, upper)",
            "tram_counts.py: foretold = model(",
            "tram_counts.py: loss.backward()",
        ),
    ),
    Thread(
        id="H06",
        source="kornia/kornia#3272 (focal loss by one-hot labels; gathered: up to 4x; merged)",
        script="unseen14/street_scenes.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: gather the true class first, then weigh one number per pixel, not one per class.
        fixes=("FX330", "FX414", "FX314"),
        shorter={"STEPS": "170"},
        at=(
            "street_scenes.py: weight = torch.pow(1.0 - log_share.exp()",
            "street_scenes.py: loss = -self.alpha * weight * log_share",
            "street_scenes.py: loss = loss * F.one_hot(labels",
            "street_scenes.py: return loss.sum(1).mean()",
            "street_scenes.py: loss = focal(scores.float()",
            "street_scenes.py: loss.backward()",
        ),
    ),
    Thread(
        id="H07",
        source="laboroai/border#44 (replay buffer on the GPU, not copied batch by batch: about 3 %)",
        script="unseen14/harbour_crane.py",
        machine="G",
        verdicts=(COMPUTE,),
        not_verdicts=(INPUT, TRANSFER, SYNC),
        not_fixes=("FX103", "FX104", "FX508", "FX509", "FX523", "FX524", "FX111"),
        shorter={"STEPS": "230"},
    ),
    Thread(
        id="H08",
        source="lucidrains/ema-pytorch#5, alphafold3-pytorch#119 (averaged weights kept on the CPU: low use)",
        script="unseen14/quilt_patterns.py",
        machine="G",
        verdicts=(HOST, SYNC, TRANSFER),
        # cure: the averaged weights live on the device of the model (or are updated every few steps).
        fixes=("FX524", "FX504"),
        shorter={"STEPS": "60"},
        at=(
            "quilt_patterns.py: mean.lerp_(now.to(mean.device)",
            "quilt_patterns.py: for mean, now in zip(",
            "quilt_patterns.py: self.network = copy.deepcopy(model).to(",
            "quilt_patterns.py: smoothed.update(model)",
        ),
    ),
    Thread(
        id="H09",
        source="pytorch/pytorch#174436, #167880 (activations moved to the host: 44.2 to 29.2 samples/s)",
        script="unseen14/village_voices.py",
        machine="G",
        verdicts=(TRANSFER, SYNC, HOST),
        # cure: what backward needs stays on the device, where there is room for it.
        no_entry=True,
        shorter={"STEPS": "120"},
        at=(
            "village_voices.py: return torch.autograd.graph.save_on_cpu(",
            "village_voices.py: with self.room():",
            "village_voices.py: x = self.front(bands)",
            "village_voices.py: x = F.gelu(self.first(bands[:, None]))",
            "village_voices.py: x = F.gelu(self.second(x))",
            "village_voices.py: x = F.gelu(self.third(x))",
            "village_voices.py: scores = model(bands[rows])",
            "village_voices.py: loss.backward()",
        ),
    ),
    Thread(
        id="H10",
        source="pytorch/pytorch#128319, meta-pytorch/torchrec#4338 (a counter recompiles, then eager)",
        script="unseen14/tide_levels.py",
        machine="G",
        verdicts=(COMPUTE, LAUNCH, HOST),
        # cure: count outside of what is compiled; a counter of a module is a constant of its graph.
        fixes=("FX409",),
        shorter={"STEPS": "130"},
        at=(
            "tide_levels.py: self.hours_seen += levels.shape[0]",
            "tide_levels.py: self.hours_seen = 0",
            "tide_levels.py: forecast = torch.compile(model)",
            "tide_levels.py: predicted = forecast(rows[:, :-1])",
            "tide_levels.py: def forward(self, levels):",
        ),
    ),
    Thread(
        id="H11",
        source="SynodicMonth/ChebyKAN#7 (polynomials degree by degree, written in place: ~11x; merged)",
        script="unseen14/wine_tastes.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: all degrees at once, cos(n acos(x)); no writes into parts of a tensor that is differentiated.
        fixes=("FX510", "FX513", "FX339", "FX224"),
        shorter={"STEPS": "100"},
        at=(
            "wine_tastes.py: values[..., k] = 2 * x * values",
            "wine_tastes.py: for k in range(2, DEGREE + 1):",
            "wine_tastes.py: values[..., 1] = x",
            "wine_tastes.py: values = torch.ones(",
            "wine_tastes.py: def basis(self, x):",
            'wine_tastes.py: return torch.einsum("bid,iod->bo"',
            "wine_tastes.py: x = x + layer(norm(x))",
            "wine_tastes.py: loss.backward()",
        ),
    ),
    Thread(
        id="H12",
        source="lezcano/geotorch#34, pytorch/pytorch#7313 (orthogonal weight anew in each time step)",
        script="unseen14/hand_signs.py",
        machine="G",
        verdicts=(LAUNCH, SYNC, HOST, COMPUTE),
        # cure: the weight once per forward pass: parametrize.cached() around the loop.
        fixes=("FX326",),
        shorter={"STEPS": "100"},
        at=(
            "hand_signs.py: y = x[:, t] + self.onward(state)",
            "hand_signs.py: for t in range(x.shape[1]):",
            "hand_signs.py: self.onward = parametrizations.orthogonal(",
            "hand_signs.py: with parametrize.cached() if",
            "hand_signs.py: return self.head(self.memory(",
            "hand_signs.py: loss.backward()",
        ),
    ),
    Thread(
        id="H13",
        source="vwxyzjn/cleanrl#270 (discrete SAC: actor's loss through the critics: 77 to 94 steps/s)",
        script="unseen14/pinball_agent.py",
        machine="G",
        verdicts=(COMPUTE, LAUNCH),
        # cure: the critics' values for the actor's loss under no_grad; their gradients are thrown away.
        fixes=("FX325",),
        shorter={"STEPS": "120"},
        at=(
            "pinball_agent.py: values = torch.min(self.q1(now)",
            "pinball_agent.py: with torch.set_grad_enabled(",
            "pinball_agent.py: loss = (chances * (ALPHA * logs - values))",
            "pinball_agent.py: loss.backward() @2",
            "pinball_agent.py: def learn_moves(self, now):",
            "pinball_agent.py: gain = agent.learn_moves(now)",
        ),
    ),
    Thread(
        id="H14",
        source="facebookresearch/pycls#138 (averaged weights at times: nearly free)",
        script="unseen14/moth_photos.py",
        machine="G",
        verdicts=(COMPUTE,),
        # expected: averaging every eighth step costs about 1 %; a loop over 320 tensors is what one suspects.
        not_verdicts=(HOST, SYNC),
        not_fixes=("FX312", "FX504", "FX510", "FX514"),
        shorter={"STEPS": "160"},
    ),
)
