"""What is true of the fifteenth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN15`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import ALLOCATOR, COMPUTE, HOST, INPUT, LAUNCH, Thread

UNSEEN15 = (
    Thread(
        id="J01",
        source="luxonis/luxonis-ml#159, milesial/Pytorch-UNet#317, #449 (folder searched by glob for each "
        "sample: an epoch of 6 h to 10.5 min on GCP; merged)",
        script="unseen15/pantry_masks.py",
        machine="C2",
        verdicts=(INPUT,),
        # cure: the path made of name and ending, which the records know; no listing of the folder per sample.
        fixes=("FX107",),
        shorter={"STEPS": "75"},
        at=(
            "pantry_masks.py: return next(folder.glob(",
            "pantry_masks.py: photo = Image.open(self.locate(",
            "pantry_masks.py: outline = Image.open(self.locate(",
            "pantry_masks.py: def locate(self, folder, record):",
            "pantry_masks.py: for photos, outlines in loader:",
            "pantry_masks.py: loader = DataLoader(",
        ),
    ),
    Thread(
        id="J02",
        source="uber/petastorm#762 (all waiting rows joined anew for each batch: 145.3 to 43.8 s; merged)",
        script="unseen15/ferry_tickets.py",
        machine="C2",
        verdicts=(INPUT, HOST, ALLOCATOR),
        # cure: cut batches from the first group while it lasts; join groups only at its end.
        fixes=("FX107", "FX224", "FX207"),
        shorter={"STEPS": "240"},
        at=(
            "ferry_tickets.py: self.waiting = [[torch.cat(parts)",
            "ferry_tickets.py: crossings, cars = next(batches)",
            'ferry_tickets.py: if VARIANT == "a" or len(self.waiting',
            "ferry_tickets.py: def __next__(self):",
        ),
    ),
    Thread(
        id="J03",
        source="pytorch/rl#2669, #2031, #4084 (ends of trajectories sought in the whole buffer per sample: "
        "4.8 ms to 1.65 s as it grows; kept: 0.54 to 0.16 ms; merged)",
        script="unseen15/kiln_control.py",
        machine="C2",
        verdicts=(INPUT, HOST, COMPUTE, ALLOCATOR),
        # cure: keep first and last places until the next firing is added.
        fixes=("FX107", "FX504", "FX514"),
        shorter={"STEPS": "110"},
        at=(
            "kiln_control.py: change = self.firing[1:] != self.firing[:-1]",
            "kiln_control.py: last = torch.cat([change.nonzero()",
            "kiln_control.py: self.bounds = self.find_bounds()",
            "kiln_control.py: def find_bounds(self):",
            "kiln_control.py: loss = model(*firings.draw())",
            'kiln_control.py: if VARIANT == "a" or self.bounds is None:',
        ),
    ),
    Thread(
        id="J04",
        source="fastai/fastai#2516 (confusion matrix by comparing all pairs of classes: very slow with many "
        "classes; merged, no figures)",
        script="unseen15/moth_wings.py",
        machine="C2",
        verdicts=(HOST, COMPUTE, ALLOCATOR),
        # cure: count the pairs that occur, by bincount; no classes x classes x batch comparison.
        fixes=("FX504", "FX337", "FX340"),
        shorter={"STEPS": "130"},
        at=(
            "moth_wings.py: hits = (guesses == self.numbers",
            "moth_wings.py: self.table += hits.sum(",
            "moth_wings.py: mixups.update(scores",
            "moth_wings.py: def update(self, guesses, species):",
        ),
    ),
    Thread(
        id="J05",
        source="pytorch/rl#1325, #1559, osudrl/apex#13 (a thread per core in each process: 2x to 4x; merged)",
        script="unseen15/ant_walk.py",
        machine="C2",
        verdicts=(HOST, INPUT),
        # cure: torch.set_num_threads(1) in the walking processes.
        fixes=("FX506", "FX115"),
        shorter={"STEPS": "32"},
        at=(
            "ant_walk.py: walkers = [context.Process(target=walk",
            "ant_walk.py: found = sorted((walks.get()",
            "ant_walk.py: def walk(number, policy, orders, walks):",
            "ant_walk.py: torch.set_num_threads(1)",
            'ant_walk.py: if VARIANT == "b":',
            "ant_walk.py: mean, _ = policy(views[-1])",
            "ant_walk.py: walker.start()",
        ),
    ),
    Thread(
        id="J06",
        source="pyg-team/pytorch_geometric#8664, #8670 (sparse matrices batched through their entries and "
        "sorted again: training ~3x slower; merged)",
        script="unseen15/pipe_pressure.py",
        machine="C2",
        verdicts=(INPUT,),
        # cure: join the CSR arrays of the matrices as they are, with no way through COO.
        fixes=("FX107", "FX334"),
        shorter={"STEPS": "230"},
        at=(
            "pipe_pressure.py: entries = matrix.to_sparse_coo()",
            "pipe_pressure.py: place = entries.indices().clone()",
            "pipe_pressure.py: place[0] += rows",
            "pipe_pressure.py: joined = torch.sparse_coo_tensor(",
            "pipe_pressure.py: return joined.coalesce().to_sparse_csr()",
            "pipe_pressure.py: def join_by_entries(matrices):",
            "pipe_pressure.py: return [join(kind) for kind in",
            "pipe_pressure.py: def join_nets(nets):",
            "pipe_pressure.py: join = join_by_entries if",
            "pipe_pressure.py: loader = DataLoader(",
            "pipe_pressure.py: for pipes, seen, leak in loader:",
        ),
    ),
    Thread(
        id="J07",
        source="dreamquark-ai/tabnet#258 (rows fetched one by one; whole batches: no speed-up seen)",
        script="unseen15/hay_quality.py",
        machine="C2",
        verdicts=(COMPUTE, LAUNCH, ALLOCATOR),
        not_verdicts=(INPUT,),
        not_fixes=("FX107", "FX111", "FX112", "FX101", "FX106"),
        shorter={"STEPS": "55"},
    ),
    Thread(
        id="J08",
        source="mitmul/chainer-faster-rcnn#16, rentruewang/brief#1 (backward for each loss; sum: ~3x)",
        script="unseen15/flat_adverts.py",
        machine="C2",
        verdicts=(COMPUTE, ALLOCATOR),
        # cure: add the losses up and go back through the shared body once, not once per loss.
        no_entry=True,
        shorter={"STEPS": "120"},
        at=(
            "flat_adverts.py: loss.backward(retain_graph=True)",
            "flat_adverts.py: for loss in losses.values():",
            "flat_adverts.py: def learn(model, optimizer, losses)",
            "flat_adverts.py: learn(model, optimizer, losses) @2",
        ),
    ),
    Thread(
        id="J09",
        source="diegoantognini/pyGAT#63 (all pairs of nodes side by side; broadcast: faster; merged)",
        script="unseen15/weather_masts.py",
        machine="C2",
        verdicts=(COMPUTE, ALLOCATOR),
        # cure: multiply each node by its half of the vector, then add the two by broadcasting.
        no_entry=True,
        shorter={"STEPS": "200"},
        at=(
            "weather_masts.py: left, right = h.repeat_interleave(",
            "weather_masts.py: both = torch.cat([left, right]",
            "weather_masts.py: return F.leaky_relu((both",
            "weather_masts.py: def affinity(self, h)",
            "weather_masts.py: e = self.affinity(h)",
            "weather_masts.py: heard = torch.cat([F.elu(ear(own, links))",
            "weather_masts.py: return self.head(torch.cat([F.elu(self.last(",
            "weather_masts.py: loss.backward()",
        ),
    ),
    Thread(
        id="J10",
        source="pytorch/pytorch#81162 (SparseAdam coalesces on the CPU: slower than dense Adam)",
        script="unseen15/museum_walks.py",
        machine="C2",
        verdicts=(COMPUTE, ALLOCATOR, LAUNCH, HOST),
        # cure: sparse=False and plain Adam: the batch touches most of so small a table.
        no_entry=True,
        not_fixes=("FX321",),
        shorter={"STEPS": "200"},
        at=(
            "museum_walks.py: self.table = nn.Embedding(PLACES",
            "museum_walks.py: kind = torch.optim.SparseAdam",
            "museum_walks.py: kind(list(model.table.parameters())",
            "museum_walks.py: optimizer.step()",
            "museum_walks.py: loss.backward()",
        ),
    ),
    Thread(
        id="J11",
        source="pytorch/pytorch#191191 (a hook more on each weight with each call: backward grows)",
        script="unseen15/ferry_queues.py",
        machine="C2",
        verdicts=(HOST, LAUNCH, COMPUTE),
        # cure: register the hooks once, before the loop.
        fixes=("FX504", "FX514", "FX510"),
        priced=False,
        shorter={"STEPS": "350"},
        at=(
            "ferry_queues.py: weight.register_hook(",
            "ferry_queues.py: for weight in self.model.parameters():",
            "ferry_queues.py: def guard(self)",
            "ferry_queues.py: self.guard() @2",
            "ferry_queues.py: loss.backward()",
            "ferry_queues.py: total += trainer.step(",
        ),
    ),
    Thread(
        id="J12",
        source="pytorch/pytorch#60295, #60191 (einsum contracts left to right; best order: 59x and more)",
        script="unseen15/river_gauges.py",
        machine="C2",
        verdicts=(COMPUTE, ALLOCATOR),
        # cure: contract keys with values first, so that no matrix of days by days arises.
        no_entry=True,
        shorter={"STEPS": "65"},
        at=(
            'river_gauges.py: y = torch.einsum("bhnd,bhmd,bhme->bhne"',
            "river_gauges.py: x = x + mix(self.norms[2 * i](x))",
            "river_gauges.py: class LongMixing(",
            "river_gauges.py: loss.backward()",
        ),
    ),
    Thread(
        id="J13",
        source="lukemelas/EfficientNet-PyTorch#88, pytorch/pytorch#3169 (own swish recomputes in backward)",
        script="unseen15/bread_crust.py",
        machine="C2",
        verdicts=(COMPUTE, ALLOCATOR),
        # cure: F.silu, one kernel each way, in place of the function of its own.
        fixes=("FX414", "FX314"),
        shorter={"STEPS": "75"},
        at=(
            "bread_crust.py: return x * torch.sigmoid(x)",
            "bread_crust.py: gate = torch.sigmoid(x)",
            "bread_crust.py: return grad * (gate * (1 + x",
            "bread_crust.py: return Glide.apply(x) if VARIANT",
            "bread_crust.py: class Glide(torch.autograd.Function)",
            "bread_crust.py: loss.backward()",
        ),
    ),
    Thread(
        id="J14",
        source="facebookresearch/ParlAI#1139 (padded into memory kept from batch to batch: 756 to 765 s)",
        script="unseen15/council_minutes.py",
        machine="C2",
        verdicts=(COMPUTE, ALLOCATOR),
        not_verdicts=(INPUT,),
        not_fixes=("FX207", "FX107", "FX224"),
        shorter={"STEPS": "200"},
    ),
)
