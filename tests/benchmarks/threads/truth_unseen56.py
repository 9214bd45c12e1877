"""What is true of the fifty-sixth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN56`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, SYNC, TRANSFER, Thread

UNSEEN56 = (
    Thread(
        id="AG01",
        source="pytorch/vision#7413, #9673 (blur by a square; by two lines: 167 to 34 ms; open)",
        script="unseen56/maple_atlas.py",
        machine="G",
        verdicts=(INPUT,),
        # cure: blur the image along the rows and then along the columns
        fixes=("FX107", "FX359", "FX524"),
        shorter={"STEPS": "20"},
        at=(
            "maple_atlas.py: weight = torch.mm(line[:, None], line[None, :]).expand(channels, 1, k, k)",
            "maple_atlas.py: return F.conv2d(padded, weight, groups=channels)[0]",
            "maple_atlas.py: return focus(self.jitter(image)).sub_(0.5).div_(0.25)",
            "maple_atlas.py: return self.view(tile, self.focus[0]), self.view(tile, self.focus[1])",
            "maple_atlas.py: for first, second in loader:",
        ),
    ),
    Thread(
        id="AG02",
        source="hbb1/2d-gaussian-splatting#8, #3 (pixel grid on the host: 5.9 to 53 it/s; merged)",
        script="unseen56/heron_quarry.py",
        machine="G",
        verdicts=(TRANSFER, HOST),
        # cure: make the grid of pixels on the device
        fixes=("FX524", "FX521", "FX523"),
        shorter={"STEPS": "300"},
        at=(
            "heron_quarry.py: grid_x, grid_y = torch.meshgrid(torch.arange(WIDTH) + 0.5",
            "heron_quarry.py: pixels = torch.stack([grid_x, grid_y, torch.ones_like(grid_x)], dim=-1)",
            "heron_quarry.py: surface = normals_from(depths_to_points(view, depth))",
        ),
    ),
    Thread(
        id="AG03",
        source="ml-explore/mlx-examples#613, mflux-community/mflux#740 (fp32 by adapters; merged)",
        script="unseen56/juniper_clinic.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: cast what an adapter adds to the type of its input
        fixes=("FX345", "FX303"),
        shorter={"STEPS": "100"},
        at=(
            "juniper_clinic.py: return y + update",
            "juniper_clinic.py: update = self.scale * z",
            "juniper_clinic.py: z = self.dropout(x).to(self.lora_a.dtype) @ self.lora_a @ self.lora_b",
            "juniper_clinic.py: return F.linear(x, self.packed.to(x.dtype) * self.scale.to(x.dtype))",
        ),
    ),
    Thread(
        id="AG04",
        source="NVIDIA/makani#150 (wandb.watch in a compiled model: graph breaks; off: merged)",
        script="unseen56/tundra_ledger.py",
        machine="G",
        verdicts=("graph-break-bound", HOST),
        # cure: do not watch the modules of a compiled model
        fixes=("FX403", "FX401"),
        shorter={"STEPS": "250"},
        at=(
            "tundra_ledger.py: board.follow(model)",
            "tundra_ledger.py: logits = compiled(entries, fields)",
            "activity_board.py: module.register_forward_hook(self.hook(name))",
            "activity_board.py: self.note(name, output)",
            "activity_board.py: with self.lock:",
            "activity_board.py: def after(module, inputs, output):",
        ),
    ),
    Thread(
        id="AG05",
        source="facebookresearch/ParlAI#935 (replies as text for accuracy, F1: 77 to 40 s; merged)",
        script="unseen56/pebble_gazette.py",
        machine="G",
        verdicts=(HOST, SYNC),
        # cure: count the right tokens on the device, and write no texts while training
        fixes=("FX504", "FX514", "FX524"),
        shorter={"STEPS": "370"},
        at=(
            "pebble_gazette.py: for row, answer in zip(guesses.tolist(), answers):",
            "pebble_gazette.py: self.teacher.observe(self.dictionary.vec2txt(row), answer)",
            "pebble_gazette.py: guess, answer = normalize(guess), normalize(answer)",
            "pebble_gazette.py: common = sum((Counter(guess) & Counter(answer)).values())",
            'pebble_gazette.py: return " ".join(ARTICLES.sub(" ", MARKS.sub(" ", text.lower())).split())',
            'pebble_gazette.py: return " ".join(self.words[i] for i in row if i != NULL)',
        ),
    ),
    Thread(
        id="AG06",
        source="NVIDIA-NeMo/Speech#3653 (RNN-T costs copied one by one: ~10x its kernels; merged)",
        script="unseen56/cinder_choir.py",
        machine="G",
        verdicts=(SYNC, LAUNCH),
        # cure: take the costs of all utterances with one operation on the device
        fixes=("FX502", "FX532", "FX510"),
        shorter={"STEPS": "290"},
        at=(
            "cinder_choir.py: for mb in range(len(costs)):",
            "cinder_choir.py: costs[mb] = -ll_forward[mb]",
            "cinder_choir.py: costs = AlignmentFunction.apply(log_probs, targets, frames, labels)",
        ),
    ),
    Thread(
        id="AG07",
        source="Deci-AI/super-gradients#1990, #1987 (trap: next batch by a thread: no gain)",
        script="unseen56/orchid_relay.py",
        machine="G",
        # cure: none; the workers of the loader are ahead already, the network keeps the GPU at work
        not_verdicts=(INPUT,),
        not_fixes=("FX101", "FX106", "FX107", "FX111", "FX508"),
        shorter={"STEPS": "190"},
        at=(),
    ),
)
