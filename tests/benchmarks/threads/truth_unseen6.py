"""What is true of the sixth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN6`. Their times on the device were not taken when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, SYNC, TRANSFER, Thread

UNSEEN6 = (
    Thread(
        id="Z01",
        source="LAION-AI/Open-Assistant#1979, RobertRiachi/nanoPALM#6 (vocabulary not padded: ~10 %; 4 %)",
        script="unseen6/story_lm.py",
        machine="G",
        verdicts=(COMPUTE,),
        # Since its first try: a vocabulary rounded up to a multiple of 64 (or 8), so that rows are aligned.
        fixes=("FX329",),
        shorter={"STEPS": "150"},
        at=(
            "story_lm.py: logits = self.lm_head(",
            "story_lm.py: self.lm_head = nn.Linear(",
            "story_lm.py: loss.backward()",
        ),
    ),
    Thread(
        id="Z02",
        source="alex-petrenko/sample-factory#26 (a GRUCell per frame, not one packed GRU: ~2x the learner)",
        script="unseen6/arena_appo.py",
        machine="G",
        verdicts=(LAUNCH, HOST),
        fixes=("FX513",),
        shorter={"STEPS": "600"},
        at=(
            "arena_appo.py: for t in range(RECURRENCE)",
            "arena_appo.py: state = self.core(features[t], state)",
            "arena_appo.py: state = state * (1 - dones[t])",
            "arena_appo.py: x = self.recurrent(",
            "arena_appo.py: loss.backward()",
        ),
    ),
    Thread(
        id="Z03",
        source="ultralytics/ultralytics#26180, #26181 (determinism fills each new tensor: 206 to 181 ms)",
        script="unseen6/roof_segments.py",
        machine="G",
        verdicts=(COMPUTE,),
        # The cure turns off the fills alone. Without determinism there are none either, but the runs
        # would no longer be repeatable.
        fixes=("FX309", "FX328"),
        shorter={"STEPS": "200"},
        at=(
            "roof_segments.py: torch.use_deterministic_algorithms(",
            "roof_segments.py: loss.backward()",
        ),
    ),
    Thread(
        id="Z04",
        source="ultralytics/ultralytics#25288 (matrices made orthogonal one by one: step 62.2 to 7.7 ms)",
        script="unseen6/nano_detector.py",
        machine="G",
        verdicts=(LAUNCH, HOST),
        fixes=("FX510",),
        shorter={"STEPS": "300"},
        at=(
            "nano_detector.py: muon.step()",
            "ortho_sgd.py: return [zeropower(moment.flatten(1))",
            "ortho_sgd.py: updates = [update.to(",
            "ortho_sgd.py: gram = x",
            "ortho_sgd.py: poly = b * gram + c * gram",
            "ortho_sgd.py: x = a * x + poly",
        ),
    ),
    Thread(
        id="Z05",
        source="verl-project/verl#7686 (logits of the prompts, which no loss reads: 54.4 to 50.7 s)",
        script="unseen6/essay_grpo.py",
        machine="G",
        verdicts=(COMPUTE,),
        # Since its first try: the hidden states cut to the answers before the head, not the logits after it.
        fixes=("FX330",),
        shorter={"STEPS": "200"},
        at=(
            "essay_grpo.py: logits = actor(tokens)[:, :-1].float()",
            "essay_grpo.py: return self.lm_head(",
            "essay_grpo.py: logps = -F.cross_entropy(",
            "essay_grpo.py: loss.backward()",
        ),
    ),
    Thread(
        id="Z06",
        source="pytorch/pytorch#90752 (fused Adam: 46,250 to 46,363 tok/s), Lightning-AI/litgpt#857 (2-3 ms)",
        script="unseen6/news_translation.py",
        machine="G",
        verdicts=(COMPUTE,),
        not_verdicts=(LAUNCH, HOST, SYNC, TRANSFER),
        not_fixes=("FX311", "FX312", "FX416"),
        small=True,
        shorter={"STEPS": "200"},
    ),
    Thread(
        id="Z07",
        source="pytorch/pytorch#5309 (a gradient as large as the table of words; sparse: helps a lot)",
        script="unseen6/press_topics.py",
        verdicts=(COMPUTE, HOST),
        fixes=("FX321",),
        shorter={"STEPS": "300"},
        at=(
            "press_topics.py: self.words = nn.Embedding(",
            "press_topics.py: loss.backward()",
            "press_topics.py: optimizer.step()",
        ),
    ),
    Thread(
        id="Z08",
        source="kornia/kornia#2383, #1850 (SSIM by square windows, not separable ones: 40 % over L1)",
        script="unseen6/night_photos.py",
        verdicts=(COMPUTE,),
        # The cure: two passes with a line as the window, as a Gaussian is separable.
        no_entry=True,
        shorter={"STEPS": "150"},
        at=(
            "night_photos.py: return filter2d(images, self.kernel)",
            "night_photos.py: return F.conv2d(padded",
            "night_photos.py: mu1, mu2 = self.blur(",
            "night_photos.py: sigma1 = self.blur(",
            "night_photos.py: sigma2 = self.blur(",
            "night_photos.py: sigma12 = self.blur(",
            "night_photos.py: 0.5 * ssim(output, target)",
            "night_photos.py: loss.backward()",
        ),
    ),
    Thread(
        id="Z09",
        source="pytorch/pytorch#149194 (packed LSTM: forward 5 to 100 times, backward 3 to 80 times padded)",
        script="unseen6/ward_vitals.py",
        verdicts=(COMPUTE, HOST),
        # The cure: leave the batch padded (the loss is masked), so that one fused operator runs.
        no_entry=True,
        shorter={"STEPS": "150"},
        at=(
            "ward_vitals.py: packed = pack_padded_sequence(",
            "ward_vitals.py: x, _ = pad_packed_sequence(",
            "ward_vitals.py: loss.backward()",
        ),
    ),
    Thread(
        id="Z10",
        source="pytorch/examples#116 (backward through the generator for the discriminator; detach: faster)",
        script="unseen6/tile_gan.py",
        verdicts=(COMPUTE,),
        fixes=("FX325",),
        shorter={"STEPS": "200"},
        at=(
            "tile_gan.py: fake = self.netG(torch.randn(len(real)",
            "tile_gan.py: loss = F.softplus(-self.netD(real))",
            "tile_gan.py: loss.backward() @1",
        ),
    ),
    Thread(
        id="Z11",
        source="kitzeslab/opensoundscape#403, #423 (the whole recording read for each clip: no figures)",
        script="unseen6/frog_calls.py",
        verdicts=(INPUT,),
        fixes=("FX107",),
        shorter={"STEPS": "200"},
        at=(
            "frog_calls.py: frames = file.readframes(count)",
            "frog_calls.py: return cls(np.frombuffer(",
            "frog_calls.py: clip = Audio.from_file(path).trim(",
            "frog_calls.py: loader = DataLoader(",
            "frog_calls.py: for sound, species in loader",
        ),
    ),
    Thread(
        id="Z12",
        source="kashif/firedup#8 (no_grad around what needs no gradient: it was no faster)",
        script="unseen6/cheetah_sac.py",
        verdicts=(COMPUTE, HOST),
        not_verdicts=(INPUT,),
        not_fixes=("FX325",),
        small=True,
        shorter={"STEPS": "500"},
    ),
)
