"""What is true of the tenth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN10`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import ALLOCATOR, COMPUTE, HOST, INPUT, LAUNCH, SYNC, TRANSFER, Thread

UNSEEN10 = (
    Thread(
        id="D01",
        source="pytorch/pytorch#1278 (max_norm of an embedding: 95 % of the time; renorm_ afterwards 20x)",
        script="unseen10/film_facts.py",
        verdicts=(COMPUTE, LAUNCH, HOST),
        # cure: no max_norm, but weight.renorm_ over the whole table once after each update.
        no_entry=True,
        shorter={"STEPS": "200"},
        at=(
            "film_facts.py: self.entity = nn.Embedding(ENTITIES",
            "film_facts.py: limit = 1.0 if",
            "film_facts.py: start = self.entity(heads)",
            "film_facts.py: return (wish[:, None] - self.entity(tails))",
        ),
    ),
    Thread(
        id="D02",
        source="openai/baselines#608, thu-ml/tianshou#387 (a process per CartPole: 5 times as slow as none)",
        script="unseen10/balance_pole.py",
        verdicts=(HOST, INPUT),
        # cure: step worlds so cheap one after another in the training process.
        no_entry=True,
        shorter={"STEPS": "260"},
        at=(
            "balance_pole.py: carts = (ProcessCarts if",
            "balance_pole.py: following, reward, done = carts.step(",
            "balance_pole.py: seen, rewards, done = zip(*[pipe.recv()",
            'balance_pole.py: pipe.send(("step", int(action)))',
            "balance_pole.py: process = multiprocessing.Process(",
        ),
    ),
    Thread(
        id="D03",
        source="NOAA-OWP/lstm#62, NVIDIA-NeMo/Emerging-Optimizers#255 (arrays made text for no log: ~2x)",
        script="unseen10/river_flow.py",
        verdicts=(HOST,),
        # cure: let the logger format, log(level, "%s", array): it does not where the level is off.
        fixes=("FX504",),
        shorter={"STEPS": "200"},
        at=(
            'river_flow.py: LOG.log(FINE, f"',
            'river_flow.py: trace("raw forcing"',
            'river_flow.py: trace("scaled forcing"',
            'river_flow.py: trace("inputs of the model"',
            'river_flow.py: trace("flow"',
            'river_flow.py: trace("outputs"',
            'river_flow.py: trace("state"',
            'river_flow.py: trace("cell"',
            'river_flow.py: trace(f"gradient of',
        ),
    ),
    Thread(
        id="D04",
        source="MIC-DKFZ/nnUNet#566, trueagi-io/minecraft-demo#194 (volumes compressed: 20x the loading)",
        script="unseen10/spleen_slices.py",
        verdicts=(INPUT,),
        # cure: files without compression, mapped, so that only the slice is read.
        fixes=("FX107",),
        shorter={"STEPS": "80"},
        at=(
            'spleen_slices.py: return np.load(path)["data"]',
            "spleen_slices.py: case = open_case(",
            "spleen_slices.py: np.savez_compressed(",
            "spleen_slices.py: loader = DataLoader(",
            "spleen_slices.py: for step, (images, outlines) in enumerate(loader):",
        ),
    ),
    Thread(
        id="D05",
        source="pytorch/pytorch#85147, #188394 (quantile sorts all: 100 to 14 ms by numpy; 2 to 8x selected)",
        script="unseen10/star_flicker.py",
        verdicts=(COMPUTE, ALLOCATOR),
        # cure: select the few ranks (numpy.quantile, kthvalue) instead of sorting.
        no_entry=True,
        shorter={"STEPS": "180"},
        at=(
            "star_flicker.py: return curves.quantile(",
            "star_flicker.py: low, middle, high = self.marks(curves)",
        ),
    ),
    Thread(
        id="D06",
        source="pytorch/functorch#1146, pytorch/pytorch#50584 (a Jacobian row by row: 16 to 0.05 s at once)",
        script="unseen10/arm_twin.py",
        verdicts=(LAUNCH, HOST),
        # cure: jacobian(..., vectorize=True).
        fixes=("FX510",),
        shorter={"STEPS": "300"},
        at=(
            "arm_twin.py: moves = jacobian(lambda a:",
            "arm_twin.py: move_error = (moves_of(",
            "arm_twin.py: together = VARIANT",
            "arm_twin.py: loss.backward()",
        ),
    ),
    Thread(
        id="D07",
        source="alxndrTL/mamba.py#57 (on a CPU the loop over time takes 2 s, the parallel scan 10 s)",
        script="unseen10/sensor_scan.py",
        verdicts=(COMPUTE, ALLOCATOR),
        # cure of what is suspected: a parallel scan. It is no faster here.
        not_verdicts=(INPUT, LAUNCH, HOST),
        not_fixes=("FX510", "FX513"),
        shorter={"STEPS": "80"},
    ),
    Thread(
        id="D08",
        source="Stability-AI/stable-audio-3#69 (adapters added to each weight, not to the output: 1.6 to 2x)",
        script="unseen10/birdsong_adapters.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: add the low-rank product to the layer's output; the full weight is never formed.
        no_entry=True,
        shorter={"STEPS": "140"},
        at=(
            "birdsong_adapters.py: weight = self.weight + self.scale",
            "birdsong_adapters.py: return F.linear(x, weight, self.bias)",
            "birdsong_adapters.py: loss.backward()",
        ),
    ),
    Thread(
        id="D09",
        source="jishengpeng/WavTokenizer#17, OpenRLHF/OpenRLHF#46 (CUDA_LAUNCH_BLOCKING left on: no figures)",
        script="unseen10/wave_codes.py",
        machine="G",
        verdicts=(SYNC, HOST, LAUNCH),
        # cure: do not set it.
        no_entry=True,
        shorter={"STEPS": "110"},
        at=('wave_codes.py: os.environ["CUDA_LAUNCH_BLOCKING"] = "1"',),
    ),
    Thread(
        id="D10",
        source="DLR-RM/stable-baselines3#2012, #2017, araffin/sbx#35 (PPO: 2,000 fps, on the CPU 5,000)",
        script="unseen10/swing_up.py",
        machine="G",
        verdicts=(LAUNCH, HOST, SYNC),
        # cure: train so small a network on the CPU.
        no_entry=True,
        shorter={"STEPS": "100"},
        at=(
            "swing_up.py: place = device if",
            "swing_up.py: policy = Policy().to(place)",
            "swing_up.py: choice, value = policy(seen)",
            "swing_up.py: answer = torch.stack(",
            "swing_up.py: choice, value = policy(seen[rows])",
            "swing_up.py: loss.backward()",
            "swing_up.py: optimizer.step()",
        ),
    ),
    Thread(
        id="D11",
        source="pytorch/pytorch#121414, facebookresearch/habitat-lab#297, #359 (floats made on the host: 4x)",
        script="unseen10/cell_outlines.py",
        machine="G",
        verdicts=(TRANSFER, HOST, INPUT),
        # cure: .to(device) first, then .to(torch.float32).
        fixes=("FX509", "FX524"),
        shorter={"STEPS": "120"},
        at=(
            "cell_outlines.py: x = images.to(device, dtype=torch.float32)",
            "cell_outlines.py: x = to_model(images[",
        ),
    ),
    Thread(
        id="D12",
        source="NVIDIA/apex#297, facebookresearch/fairchem#397 (mixed precision: 15 to 21 min; 5.6 to 9.5 s)",
        script="unseen10/octave_icons.py",
        machine="G",
        verdicts=(LAUNCH, HOST),
        # cure of what is suspected: mixed precision. With kernels so small it only adds casts.
        not_verdicts=(INPUT, TRANSFER),
        not_fixes=("FX303", "FX304"),
        shorter={"STEPS": "420"},
    ),
)
