"""What is true of the fortieth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN40`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, Thread

UNSEEN40 = (
    Thread(
        id="PP01",
        source="catalyst-team/catalyst#921, #1256 (labels of a sampler searched in a list, "
        "in NumPy 500x; merged)",
        script="unseen40/heron_rings.py",
        machine="C2",
        verdicts=(INPUT, HOST),
        # cure: keep the labels as one NumPy array and look for a class with np.where
        fixes=("FX107", "FX532", "FX514"),
        shorter={"STEPS": "250"},
        at=(
            "heron_rings.py: return [i for i, label in enumerate(self.labels) if label == bird]",
            "heron_rings.py: def crops_of(self, bird)",
            "heron_rings.py: owned = self.crops_of(bird)",
            "heron_rings.py: def __iter__(self)",
            "heron_rings.py: for step, (crops, birds) in enumerate(loader)",
        ),
    ),
    Thread(
        id="PP02",
        source="StanfordASL/neural-network-lyapunov#121 (Lyapunov loss state by state; "
        "by batch 40 % of the time; merged)",
        script="unseen40/buoy_keeping.py",
        machine="C2",
        verdicts=(LAUNCH, HOST),
        # cure: compute the loss of all states of the batch with one call
        fixes=("FX528", "FX532", "FX510"),
        shorter={"STEPS": "300"},
        at=(
            "buoy_keeping.py: for i in range(states.shape[0])",
            "buoy_keeping.py: loss = loss + self.decrease_at(states[i])",
            "buoy_keeping.py: def decrease(self, states)",
            "buoy_keeping.py: def decrease_at(self, state)",
            "buoy_keeping.py: keeper.decrease(probes)",
        ),
    ),
    Thread(
        id="PP03",
        source="huggingface/transformers#40007, tatp22/multidim-positional-encoding#19 (sines "
        "of the positions anew per forward; kept: 24.4 to 25.8 fps; merged)",
        script="unseen40/lichen_plates.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # cure: keep the table of positions, which depends on the shape only
        fixes=("FX326", "FX358"),
        shorter={"STEPS": "250"},
        at=(
            "lichen_plates.py: def places(self, shape, dtype)",
            "lichen_plates.py: return self.places(tuple(feature.shape), feature.dtype)",
            "lichen_plates.py: across = torch.stack((across",
            "lichen_plates.py: down = torch.stack((down",
            "lichen_plates.py: across = cols[:, :, :, None] / rate",
            "lichen_plates.py: return torch.cat((down, across)",
            "lichen_plates.py: pixels = fine + self.grid(fine)",
        ),
    ),
    Thread(
        id="PP04",
        source="facebookresearch/fairscale#1143, #1139 (handles of removed hooks kept and "
        "removed again in each iteration; words/s fell; merged)",
        script="unseen40/kelp_shards.py",
        machine="C2",
        verdicts=(HOST,),
        # cure: empty the list of handles once they are removed
        no_entry=True,
        shorter={"STEPS": "250"},
        at=(
            "kelp_shards.py: for _, handle in self.handles",
            "kelp_shards.py: handle.remove()",
            "kelp_shards.py: def after_backward(self)",
            "kelp_shards.py: keeper.after_backward()",
            "kelp_shards.py: self.handles.append((node, handle))",
        ),
    ),
    Thread(
        id="PP05",
        source="pytorch/pytorch#22512 (input of a GRU multiplied step by step on the CPU; "
        "for all steps at once: 77 to 43 ms)",
        script="unseen40/tide_gauges.py",
        machine="C2",
        verdicts=(COMPUTE, LAUNCH, HOST),
        # cure: one matrix product for the inputs of all time steps, before the loop
        fixes=("FX374", "FX510", "FX375"),
        shorter={"STEPS": "200"},
        at=(
            "tide_gauges.py: gates_in = F.linear(hour, self.weight_in, self.bias_in)",
            "tide_gauges.py: for hour in sequence.unbind(0)",
            "tide_gauges.py: def forward(self, sequence) @1",
            "tide_gauges.py: sequence = layer(sequence)",
        ),
    ),
    Thread(
        id="PP06",
        source="isayevlab/aimnetcentral#73 (Hessian row by row: 1,223 ms, by vmap 189; merged), "
        "deepmodeling/deepmd-kit#6035",
        script="unseen40/ring_springs.py",
        machine="C2",
        verdicts=(LAUNCH, HOST),
        # cure: all rows of the Hessian with one batched backward (vmap)
        fixes=("FX532", "FX510"),
        shorter={"STEPS": "250"},
        at=(
            "ring_springs.py: (row,) = torch.autograd.grad(flat[i], ring, create_graph=True)",
            "ring_springs.py: for i in range(size)",
            "ring_springs.py: def stiffness_of(model, ring)",
            "ring_springs.py: F.mse_loss(stiffness_of(model, ring), target_stiff)",
        ),
    ),
    Thread(
        id="PP07",
        source="deepchem/deepchem#3615, #3511 (attributes of molecule graphs made per batch: "
        "2.65 of 3.68 s; made once: 3.2x; merged)",
        script="unseen40/moss_graphs.py",
        machine="C2",
        verdicts=(HOST, INPUT),
        # cure: make the attributes of each molecule once, before training
        fixes=("FX326", "FX107", "FX514"),
        shorter={"STEPS": "225"},
        at=(
            "moss_graphs.py: parts = [attributes(c) for c in batch]",
            "moss_graphs.py: def attributes(compound)",
            "moss_graphs.py: compound.atom_feats[start].tolist() + feats.tolist()",
            "moss_graphs.py: for bond, (start, end) in enumerate(compound.edges)",
            "moss_graphs.py: return (np.array(f_bonds, np.float32)",
        ),
    ),
    Thread(
        id="PP08",
        source="ray-project/ray#10878 (samples in lists or in a central buffer: the buffer is "
        "not really faster)",
        script="unseen40/cliff_gliders.py",
        machine="C2",
        # trap: rows of a rollout in lists, made arrays afterwards; the updates of the policy take the time
        not_fixes=("FX520", "FX223", "FX529"),
        not_verdicts=(INPUT,),
        shorter={"STEPS": "150"},
        at=(
            "cliff_gliders.py: loss.backward()",
            "cliff_gliders.py: logp, worth = policy(seen[rows])",
            "cliff_gliders.py: seen = self.eyes(views[:, None])",
        ),
    ),
)
