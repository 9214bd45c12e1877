"""What is true of the fifty-first set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN51`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, SYNC, Thread

UNSEEN51 = (
    Thread(
        id="AB01",
        source="THUDM/GATNE#115 (diagonal picked type by type; with one call: 12.43 to 0.04 s; merged)",
        script="unseen51/orchard_links.py",
        machine="C2",
        verdicts=(LAUNCH, COMPUTE),
        # cure: take the diagonal with one call, so that backward makes one gradient and not one per type
        fixes=("FX339", "FX374", "FX510"),
        shorter={"STEPS": "500"},
        at=(
            "orchard_links.py: own_type = torch.cat(",
            "orchard_links.py: embed_neighbours[:, i, :, i, :].unsqueeze(1)",
        ),
    ),
    Thread(
        id="AB02",
        source="gaoyuezhou/patch_policy#4 (range(T) copies the episode per window: 1,168 to 92.6 ms)",
        script="unseen51/copper_arm.py",
        machine="C2",
        verdicts=(INPUT, HOST),
        # cure: slice the episode (a view), do not index it with a range (a copy)
        fixes=("FX107", "FX346", "FX224"),
        shorter={"STEPS": "550"},
        at=(
            "copper_arm.py: frames = range(length)",
            "copper_arm.py: return self.features[index, frames], self.actions[index, frames]",
            "copper_arm.py: return [value[begin:end] for value in self.dataset[index]]",
        ),
    ),
    Thread(
        id="AB03",
        source="choderalab/modelforge#141, #146 (pairs of atoms listed anew in each forward; kept: merged)",
        script="unseen51/amber_flask.py",
        machine="C2",
        verdicts=(LAUNCH, HOST),
        # cure: list the pairs of each molecule once, with the dataset; the batch only shifts them
        fixes=("FX326", "FX532", "FX374"),
        shorter={"STEPS": "600"},
        at=(
            "amber_flask.py: for atom in range(n):",
            "amber_flask.py: i_indices = torch.repeat_interleave(torch.tensor(atom), repeats=n - 1)",
            "amber_flask.py: j_indices = torch.cat((torch.arange(atom), torch.arange(atom + 1, n)))",
            "amber_flask.py: same_molecule = subsystem[i_indices] == subsystem[j_indices]",
            "amber_flask.py: i_final_pairs = torch.cat((i_final_pairs, i_indices[same_molecule]), dim=0)",
            "amber_flask.py: j_final_pairs = torch.cat((j_final_pairs, j_indices[same_molecule]), dim=0)",
            "amber_flask.py: pair_indices = self.enumerate_all_pairs(subsystem)",
        ),
    ),
    Thread(
        id="AB04",
        source="kimhc6028/relational-networks#9 (network g called pair by pair; at once: ~10x; merged)",
        script="unseen51/marble_table.py",
        machine="C2",
        verdicts=(LAUNCH, HOST),
        # cure: pass all pairs of cells through g as one large batch
        fixes=("FX528", "FX510", "FX374"),
        shorter={"STEPS": "120"},
        at=(
            "marble_table.py: for i in range(count):",
            "marble_table.py: for j in range(count):",
            "marble_table.py: pair = torch.cat([cells[:, i], cells[:, j], questions], dim=1)",
            "marble_table.py: total = total + self.relate(pair)",
        ),
    ),
    Thread(
        id="AB05",
        source="KaiyangZhou/pytorch-center-loss#6 (distances picked row by row; by mask: to a third; merged)",
        script="unseen51/saffron_faces.py",
        machine="C2",
        verdicts=(LAUNCH, HOST),
        # cure: multiply the distances with the mask, clamp and add up once
        fixes=("FX532", "FX374", "FX510"),
        shorter={"STEPS": "400"},
        at=(
            "saffron_faces.py: for i in range(batch_size):",
            "saffron_faces.py: value = distmat[i][mask[i]]",
            "saffron_faces.py: value = value.clamp(min=1e-12, max=1e12)",
        ),
    ),
    Thread(
        id="AB06",
        source="NVlabs/GR00T-WholeBodyControl#194 (gc.collect() in each iteration of PPO; left out: merged)",
        script="unseen51/willow_stride.py",
        machine="C2",
        verdicts=(HOST,),
        # cure: no full collection of garbage after each iteration
        fixes=("FX518", "FX505", "FX504"),
        shorter={"STEPS": "550"},
        at=("willow_stride.py: gc.collect()",),
    ),
    Thread(
        id="AB08",
        source="EugenHotaj/pytorch-generative#10 (trap: logs after each step, flushed by hundreds: closed)",
        script="unseen51/violet_pixels.py",
        machine="C2",
        not_verdicts=(HOST, SYNC),
        not_fixes=("FX504", "FX501", "FX511"),
        shorter={"STEPS": "110"},
        at=(),
    ),
)
