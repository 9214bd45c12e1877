"""What is true of the nineteenth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN19`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import ALLOCATOR, COMPUTE, HOST, INPUT, LAUNCH, Thread

UNSEEN19 = (
    Thread(
        id="P01",
        source="ultralytics/yolov5#4420 (SPP by three large pools, SPPF by one pool thrice: faster; merged)",
        script="unseen19/hive_spots.py",
        machine="C2",
        verdicts=(COMPUTE, ALLOCATOR),
        # cure: a pool of 5 applied once, twice, thrice gives the pools of 5, 9 and 13.
        no_entry=True,
        shorter={"STEPS": "120"},
        at=(
            "hive_spots.py: return self.out(torch.cat([x] + [view(x)",
            "hive_spots.py: self.views = nn.ModuleList(nn.MaxPool2d(",
            "hive_spots.py: return self.head(self.neck(x))",
            "hive_spots.py: loss = F.cross_entropy(model(batch)",
            "hive_spots.py: loss.backward()",
        ),
    ),
    Thread(
        id="P02",
        source="Lightning-AI/pytorch-lightning#4302 (terminate_on_nan looks at all weights: always slower)",
        script="unseen19/tram_delays.py",
        machine="C2",
        verdicts=(HOST, LAUNCH, COMPUTE),
        # cure: look at the loss only, not at each weight and each gradient in each step.
        fixes=("FX504", "FX312", "FX510"),
        shorter={"STEPS": "120"},
        at=(
            "tram_delays.py: for name, p in self.model.named_parameters():",
            "tram_delays.py: if not torch.isfinite(p).all():",
            "tram_delays.py: if p.grad is not None and not torch.isfinite(",
            "tram_delays.py: watch.look(loss)",
        ),
    ),
    Thread(
        id="P03",
        source="mozilla/DeepSpeech#126, #187, #776 (WER of each batch on the CPU; at display steps only)",
        script="unseen19/ferry_calls.py",
        machine="C2",
        verdicts=(HOST,),
        # cure: the error rate at some steps only.
        fixes=("FX504", "FX511", "FX514"),
        shorter={"STEPS": "85"},
        at=(
            "ferry_calls.py: corner, row[j] = row[j], min(",
            "ferry_calls.py: for j, b in enumerate(written, 1):",
            "ferry_calls.py: for i, a in enumerate(wanted, 1):",
            "ferry_calls.py: wrong = sum(distance(text, written)",
            "ferry_calls.py: errors = error_rate(",
            "ferry_calls.py: if step % REPORT == 0:",
            "ferry_calls.py: REPORT = 1 if",
        ),
    ),
    Thread(
        id="P04",
        source="neuro-galaxy/torch_brain#97, huggingface/transformers#10221, OpenNMT/CTranslate2#1335 "
        "(positions anew in each attention layer; once for all layers: merged)",
        script="unseen19/loom_patterns.py",
        machine="C2",
        verdicts=(COMPUTE, ALLOCATOR, LAUNCH),
        # cure: the bias once per forward, handed to all layers.
        fixes=("FX326", "FX521"),
        shorter={"STEPS": "60"},
        at=(
            "loom_patterns.py: bias = self.nearness(t) if VARIANT",
            "loom_patterns.py: added = self.added(torch.where(",
            "loom_patterns.py: ratio = (apart.float()",
            "loom_patterns.py: wide = (half +",
            "loom_patterns.py: apart = (span[:, None]",
            "loom_patterns.py: return added.permute(2, 0, 1)",
            "loom_patterns.py: x = layer(x, bias)",
            "loom_patterns.py: loss.backward()",
        ),
    ),
    Thread(
        id="P05",
        source="explosion/spacy-experimental#47, pytorch/pytorch#58093 (nn.Bilinear; by hand: 3.5x)",
        script="unseen19/clause_links.py",
        machine="C2",
        verdicts=(COMPUTE, ALLOCATOR, LAUNCH),
        # cure: one product for all kinds of links, not one per output inside nn.Bilinear.
        fixes=("FX510",),
        shorter={"STEPS": "55"},
        at=(
            "clause_links.py: return self.form(left, right)",
            "clause_links.py: self.form = nn.Bilinear(",
            "clause_links.py: return self.pairing(",
            "clause_links.py: scores = model(",
            "clause_links.py: loss.backward()",
        ),
    ),
    Thread(
        id="P06",
        source="aleju/imgaug#624, MIC-DKFZ/batchgenerators#37 (warp by cubic splines; order 0: 3 to 4x)",
        script="unseen19/fern_sheets.py",
        machine="C2",
        verdicts=(INPUT,),
        # cure: nearest neighbour (or linear), not cubic interpolation, in the warp.
        fixes=("FX107", "FX101", "FX111"),
        shorter={"STEPS": "190"},
        at=(
            "fern_sheets.py: return ndimage.map_coordinates(",
            "fern_sheets.py: SMOOTHNESS = 3 if",
            "fern_sheets.py: sheet = self.bend(",
            "fern_sheets.py: loader = DataLoader(",
            "fern_sheets.py: for sheets, kinds in loader:",
        ),
    ),
    Thread(
        id="P07",
        source="numpy/numpy#15713, rougier/numpy-100#145 (unique rows; as one integer: 42.7 to 2.5 ms)",
        script="unseen19/orchard_scans.py",
        machine="C2",
        verdicts=(INPUT,),
        # cure: fold the three coordinates into one integer before np.unique.
        fixes=("FX107", "FX101", "FX111"),
        shorter={"STEPS": "70"},
        at=(
            "orchard_scans.py: return np.unique(cells, axis=0",
            "orchard_scans.py: boxes, member = self.boxes(points)",
            "orchard_scans.py: loader = DataLoader(",
            "orchard_scans.py: for boxes, owner, trees in loader:",
        ),
    ),
    Thread(
        id="P08",
        source="open-dynamic-robot-initiative/trifinger_simulation#74, numpy/numpy#14281 (np.clip of single "
        "numbers in the simulation: 13 % of it; merged)",
        script="unseen19/greenhouse_vents.py",
        machine="C2",
        verdicts=(HOST, INPUT),
        # cure: compare plain floats, no np.clip for single numbers.
        fixes=("FX514", "FX504", "FX107", "FX515"),
        shorter={"STEPS": "200"},
        at=(
            "greenhouse_vents.py: return np.clip(value, low, high)",
            "greenhouse_vents.py: told = [house.step(",
            "greenhouse_vents.py: vent, heat, water = limit(",
            "greenhouse_vents.py: sun = limit(",
            "greenhouse_vents.py: self.warm = limit(",
            "greenhouse_vents.py: self.damp = limit(",
            "greenhouse_vents.py: self.soil = limit(",
            "greenhouse_vents.py: comfort = limit(",
            "greenhouse_vents.py: self.cloud = limit(",
            "greenhouse_vents.py: self.wind = limit(",
        ),
    ),
    Thread(
        id="P09",
        source="dmlc/dgl#1385 (GraphConv: weights first where they make features fewer), "
        "GraphSAINT/GraphSAINT#31 (order of the two products; merged, no figures)",
        script="unseen19/recipe_shelves.py",
        machine="C2",
        verdicts=(COMPUTE, ALLOCATOR),
        # cure: multiply by the weight first, then sum over the neighbours (128 columns, not 500).
        no_entry=True,
        shorter={"STEPS": "40"},
        at=(
            "recipe_shelves.py: return torch.zeros_like(x).index_add(",
            "recipe_shelves.py: return gather(links, x)",
            "recipe_shelves.py: y = F.dropout(F.relu(self.norm(self.first(",
            "recipe_shelves.py: scores = model(links, words)",
        ),
    ),
    Thread(
        id="P10",
        source="Lyken17/Efficient-PyTorch#18, #4 (photos packed into one lmdb: no faster than a file each)",
        script="unseen19/shell_drawers.py",
        machine="C2",
        verdicts=(COMPUTE, ALLOCATOR),
        not_verdicts=(INPUT,),
        not_fixes=("FX107", "FX101", "FX106", "FX111", "FX112"),
        shorter={"STEPS": "60"},
        # measured: one packed, memory-mapped file 1.01x.
    ),
)
