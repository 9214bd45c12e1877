"""What is true of the eighth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN8`. Written without a look at the catalogue: what cures a script stands beside it in
words. The fixes that say so were filled in before the first run, but for those marked as later.
"""

from __future__ import annotations

from truth import ALLOCATOR, COMPUTE, HOST, INPUT, LAUNCH, SYNC, Thread

UNSEEN8 = (
    Thread(
        id="B01",
        source="f90/Wave-U-Net#25 (resampling by FFT, lengths with large primes: 15 minutes to 36 s a song)",
        script="unseen8/marsh_birds.py",
        verdicts=(INPUT,),
        # cure: resample in the time domain (polyphase: signal.resample_poly), or once beforehand.
        fixes=("FX107",),
        shorter={"STEPS": "60"},
        at=(
            "marsh_birds.py: return signal.resample(clip, int(",
            "marsh_birds.py: clip = self.load(i)",
        ),
    ),
    Thread(
        id="B02",
        source="rwth-i6/returnn#1479 (a thread that watches memory reads smaps: 85 % in py-spy)",
        script="unseen8/syllable_blstm.py",
        verdicts=(HOST,),
        # cure: ask for memory_info().rss only, or much less often, or from a process of its own.
        fixes=("FX504",),
        shorter={"STEPS": "120"},
        at=(
            "syllable_blstm.py: maps = process.memory_maps()",
            "syllable_blstm.py: for name, size in self.usage(process).items():",
            "syllable_blstm.py: watch.start()",
        ),
    ),
    Thread(
        id="B03",
        source="meta-pytorch/torchtune#2066 (rollouts of PPO without a KV cache: 13.1 to 5.4 hours)",
        script="unseen8/limerick_ppo.py",
        verdicts=(COMPUTE, HOST, LAUNCH),
        # cure: keep keys and values of the words written so far, and feed only the newest word.
        # Since its first try.
        fixes=("FX515",),
        shorter={"STEPS": "45"},
        at=(
            "limerick_ppo.py: logits = writer(words, pasts)",
            "limerick_ppo.py: words = write(writer, prompts)",
            "limerick_ppo.py: for _ in range(ANSWER):",
        ),
    ),
    Thread(
        id="B04",
        source="DeepGraphLearning/torchdrug#173 (adjacency in COO; in CSR: 16 to 8 minutes an epoch)",
        script="unseen8/trade_network.py",
        verdicts=(COMPUTE,),
        # cure: build the adjacency once, in CSR (or at least coalesced), and multiply by that.
        no_entry=True,
        shorter={"STEPS": "120"},
        at=(
            "trade_network.py: messages = torch.sparse.mm(adjacency, x)",
            "trade_network.py: adjacency = network.matrix()",
            "trade_network.py: return torch.sparse_coo_tensor(",
        ),
    ),
    Thread(
        id="B05",
        source="TorchDSP/torchsig#314 (filters designed anew for each sample; kept: 41.8 to 24.7 s per 100)",
        script="unseen8/radio_modes.py",
        verdicts=(INPUT,),
        # cure: design each filter once and keep it (functools.cache on low_pass).
        fixes=("FX107",),
        shorter={"STEPS": "70"},
        at=(
            "radio_modes.py: frequency, response = signal.freqz(h",
            "radio_modes.py: h = signal.firwin(taps",
            "radio_modes.py: wave = signal.upfirdn(low_pass(factor)",
        ),
    ),
    Thread(
        id="B06",
        source="huggingface/datasets#7210 (arrays of a dataset handed out as Python lists: 1.4 to 0.04 s)",
        script="unseen8/beehive_sensors.py",
        verdicts=(INPUT,),
        # cure: dataset.with_format("numpy") (or "torch"), so that no lists of floats are made.
        fixes=("FX107",),
        shorter={"STEPS": "150"},
        at=(
            'beehive_sensors.py: return dataset.with_format("numpy") if',
            'beehive_sensors.py: readings = torch.tensor(np.array([row["readings"]',
            'beehive_sensors.py: weather = torch.tensor(np.array([row["weather"]',
            "beehive_sensors.py: for readings, swarms in loader:",
            "beehive_sensors.py: loader = DataLoader(hives()",
        ),
    ),
    Thread(
        id="B07",
        source="Lightning-AI/torchmetrics#984, #126 (a metric's forward updates twice: up to half its time)",
        script="unseen8/night_photos.py",
        verdicts=(HOST, COMPUTE),
        # cure: full_state_update = False, or only update() in the loop, or the metric less often.
        fixes=("FX504", "FX511", "FX326"),
        shorter={"STEPS": "60"},
        at=(
            "night_photos.py: now = likeness(restored, target)",
            "night_photos.py: full_state_update =",
            "night_photos.py: spread_p, spread_t = self.blur(",
            "night_photos.py: return F.conv2d(x, self.bell, groups=3)",
        ),
    ),
    Thread(
        id="B08",
        source="NVIDIA/Isaac-GR00T#734 (scores of all words, read by nothing: 13.4 to 0.5 ms a batch)",
        script="unseen8/kitchen_arm.py",
        verdicts=(COMPUTE, ALLOCATOR),
        # cure: logits_to_keep=1, or call the body of the model without its head.
        fixes=("FX330",),
        shorter={"STEPS": "70"},
        at=(
            "kitchen_arm.py: outputs = self.model(",
            "kitchen_arm.py: order = self.backbone(words, mask)",
        ),
    ),
    Thread(
        id="B09",
        source="Mayukhdeb/torch-dreams#14, naoto0804/pytorch-AdaIN#3 (gradients of a frozen network)",
        script="unseen8/dream_postcards.py",
        verdicts=(COMPUTE, ALLOCATOR),
        # cure: network.requires_grad_(False), so that backward makes gradients of the pictures only.
        fixes=("FX325",),
        shorter={"STEPS": "60"},
        at=(
            "dream_postcards.py: loss.backward()",
            "dream_postcards.py: activity = network(shaken(postcards()))",
            "dream_postcards.py: network = nn.Sequential(stage(3, 24)",
            "dream_postcards.py: network = picture_network()",
        ),
    ),
    Thread(
        id="B10",
        source="pytorch/pytorch#65604, embeddings-benchmark/mteb#4747 (of a slice all its storage is sent)",
        script="unseen8/gait_clips.py",
        verdicts=(INPUT,),
        # cure: clone the slice before the worker returns it (or load only those frames: mmap_mode="r").
        # Since its first try.
        fixes=("FX116",),
        shorter={"STEPS": "200"},
        at=(
            "gait_clips.py: clip = video[first : first + length]",
            'gait_clips.py: return {"clip": clip',
            "gait_clips.py: video = torch.from_numpy(np.load(",
            "gait_clips.py: for step, walks in enumerate(loader):",
            "gait_clips.py: loader = DataLoader(",
        ),
    ),
    Thread(
        id="B11",
        source="CorentinJ/Real-Time-Voice-Cloning#883, #893 (list of arrays to tensor: still 0.52 steps/s)",
        script="unseen8/story_reader.py",
        # cure of what is suspected: np.array(voices) first. It gained nothing.
        not_verdicts=(INPUT, HOST),
        not_fixes=("FX107", "FX112", "FX116", "FX504"),
        shorter={"STEPS": "60"},
    ),
    Thread(
        id="B12",
        source="lnccbrown/LANfactory#120 (float(loss) in every step: 1.97 and 1.89 ms, < 1 % of real steps)",
        script="unseen8/choice_times.py",
        # cure of what is suspected: add up the losses as tensors. It gained nothing.
        not_verdicts=(SYNC, HOST),
        not_fixes=("FX501", "FX502", "FX503", "FX504"),
        shorter={"STEPS": "250"},
    ),
)
