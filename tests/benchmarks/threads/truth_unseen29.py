"""What is true of the twenty-ninth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN29`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, SYNC, Thread

UNSEEN29 = (
    Thread(
        id="EE01",
        source="huggingface/transformers#37363 (windows by a mask over the whole sequence; each by "
        "itself: 4.30 to 1.88 s; merged)",
        script="unseen29/sonar_windows.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: attends within each window by itself, without a mask of all pairs of tokens.
        fixes=("FX323",),
        shorter={"STEPS": "170"},
        at=(
            "sonar_windows.py: F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)",
            "sonar_windows.py: elif allowed is not None",
            "sonar_windows.py: class MosaicAttention",
            "sonar_windows.py: def forward(self, x, allowed)",
            "sonar_windows.py: def make_mask(self, device)",
            "sonar_windows.py: return window[:, None] == window[None, :]",
            "sonar_windows.py: window_mask = self.make_mask(patches.device)",
            "sonar_windows.py: x = x + self.attn(self.norm1(x), window_mask)",
            "sonar_windows.py: x = block(x, window_mask)",
            "sonar_windows.py: guess = model(patches * (1 - cover))",
        ),
    ),
    Thread(
        id="EE02",
        source="MIC-DKFZ/nnUNet#2136, MIC-DKFZ/batchgenerators#120 (regions made small one by one; "
        "all in one map: the transform ~2 to ~0.2 s)",
        script="unseen29/core_regions.py",
        machine="G",
        verdicts=(INPUT, HOST),
        # cure: packs all regions as bits into one map, which is made small once for each size.
        fixes=("FX107",),
        shorter={"STEPS": "210"},
        at=(
            "core_regions.py: def resize_map(seg, shape)",
            "core_regions.py: yy, xx = np.meshgrid",
            "core_regions.py: return seg.astype(np.float64)[yy, xx]",
            "core_regions.py: class RegionPyramid",
            "core_regions.py: def each_region(self, regions, shapes)",
            "core_regions.py: np.stack([resize_map(region, shape) for region in regions])",
            "core_regions.py: def __call__(self, regions)",
            "core_regions.py: reduce = self.each_region if",
            "core_regions.py: return [regions] + reduce(regions, shapes)",
            "core_regions.py: def __getitem__(self, index)",
            "core_regions.py: for t in self.pyramid(regions)",
            "core_regions.py: loader = DataLoader(CoreSlices",
            "core_regions.py: in enumerate(loader)",
        ),
    ),
    Thread(
        id="EE03",
        source="UM-ARM-Lab/pytorch_kinematics#26 (a rotation made joint by joint; of all joints at "
        "once: 131 to 14 ms; merged)",
        script="unseen29/crane_reach.py",
        machine="G",
        verdicts=(LAUNCH, HOST),
        # cure: makes the rotations of all joints with a few operations on all angles.
        fixes=("FX510",),
        shorter={"STEPS": "800"},
        at=(
            "crane_reach.py: def rotation(self, angle)",
            "crane_reach.py: half = 0.5 * angle",
            "crane_reach.py: w = torch.cos(half)",
            "crane_reach.py: (torch.sin(half)[:, None] * self.axis).unbind(-1)",
            "crane_reach.py: rows = torch.stack(",
            "crane_reach.py: 1 - 2 * (y * y + z * z)",
            "crane_reach.py: 2 * (x * y + z * w)",
            "crane_reach.py: 2 * (x * z - y * w)",
            "crane_reach.py: def rotations(self, angles)",
            "crane_reach.py: return [joint.rotation(angles[:, i])",
            "crane_reach.py: def tip(self, angles)",
            "crane_reach.py: in zip(self.rotations(angles), self.joints)",
            "crane_reach.py: arm.tip(angles.float())",
        ),
    ),
    Thread(
        id="EE04",
        source="Project-MONAI/MONAI#2172 (grid of all voxels made anew for each sample; kept: 0.55 "
        "to 0.13 s on the CPU; confirmed)",
        script="unseen29/kelp_volumes.py",
        machine="G",
        verdicts=(INPUT, HOST),
        # cure: makes the grid of coordinates once and keeps it.
        fixes=("FX107", "FX326"),
        shorter={"STEPS": "300"},
        at=(
            "kelp_volumes.py: def create_grid(size)",
            "kelp_volumes.py: ranges = [np.linspace",
            "kelp_volumes.py: coords = np.asarray(np.meshgrid(",
            "kelp_volumes.py: return np.concatenate([coords",
            "kelp_volumes.py: def make_grid(self)",
            "kelp_volumes.py: torch.from_numpy(create_grid(self.size)).float()",
            "kelp_volumes.py: return grid.flatten(1).t().contiguous()",
            "kelp_volumes.py: self.grid = self.make_grid() if keep_grid",
            "kelp_volumes.py: def __call__(self, volume, rng)",
            "kelp_volumes.py: grid = self.make_grid() if self.grid is None",
            "kelp_volumes.py: self.affine = RandomAffine(",
            "kelp_volumes.py: def __getitem__(self, index)",
            "kelp_volumes.py: return self.affine(self.volumes[index",
            "kelp_volumes.py: loader = DataLoader(KelpVolumes",
            "kelp_volumes.py: in enumerate(loader)",
        ),
    ),
    Thread(
        id="EE05",
        source="decoderesearch/SAELens#550, #428 (few atoms of many decoded by a dense product; by "
        "their rows: faster, plotted; merged)",
        script="unseen29/birdsong_atoms.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: sums up the rows of the atoms that were kept, by embedding_bag, in place of the dense product.
        fixes=("FX353",),
        shorter={"STEPS": "340"},
        at=(
            "birdsong_atoms.py: def spread(self, values, which)",
            "birdsong_atoms.py: values.new_zeros(len(values), len(self.atoms))",
            "birdsong_atoms.py: def decode(self, values, which)",
            "birdsong_atoms.py: return self.spread(values, which)",
            "birdsong_atoms.py: return self.decode(values, which), values",
            "birdsong_atoms.py: rebuilt, values = model(x)",
        ),
    ),
    Thread(
        id="EE06",
        source="bebeal/mipnerf-pytorch#8 (interval of each draw sought by comparing with all edges; "
        "by searchsorted: ~20x; author agrees)",
        script="unseen29/fog_field.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: finds the interval of each draw by searchsorted and gathers its ends.
        fixes=(),
        no_entry=True,
        shorter={"STEPS": "270"},
        at=(
            "fog_field.py: def between_all(edges, cdf, u)",
            "fog_field.py: inside = u[:, None, :] >= cdf[:, :, None]",
            "fog_field.py: def ends(values)",
            "fog_field.py: low = torch.max(torch.where(",
            "fog_field.py: high = torch.min(torch.where(",
            "fog_field.py: return *ends(edges), *ends(cdf)",
            "fog_field.py: def resample(edges, weights, count)",
            "fog_field.py: find = between_all if",
            "fog_field.py: e0, e1, c0, c1 = find(",
            "fog_field.py: edges = resample(even, weights, SAMPLES)",
        ),
    ),
    Thread(
        id="EE07",
        source="siliconflow/onediff#145, huggingface/diffusers#4487 (attention slice by slice where "
        "memory suffices: 12.66 to 18.53 it/s)",
        script="unseen29/pollen_denoiser.py",
        machine="G",
        verdicts=(LAUNCH, COMPUTE, HOST),
        # cure: attends to all heads at once by scaled_dot_product_attention.
        fixes=("FX306", "FX510"),
        shorter={"STEPS": "180"},
        at=(
            "pollen_denoiser.py: class SlicedAttention",
            "pollen_denoiser.py: def __call__(self, q, k, v)",
            "pollen_denoiser.py: for i in range(batch * heads // self.slice_size)",
            "pollen_denoiser.py: part = slice(",
            "pollen_denoiser.py: scores = torch.baddbmm(",
            "pollen_denoiser.py: hidden[part] = torch.bmm(",
            "pollen_denoiser.py: self.attend = SlicedAttention(slice_size)",
            "pollen_denoiser.py: def set_attention_slice(self, slice_size)",
            "pollen_denoiser.py: self.proj(self.attend(q, k, v)",
            "pollen_denoiser.py: def enable_attention_slicing(self)",
            "pollen_denoiser.py: block.set_attention_slice(",
            "pollen_denoiser.py: model.enable_attention_slicing()",
            "pollen_denoiser.py: x = block(x)",
        ),
    ),
    Thread(
        id="EE08",
        source="huggingface/diffusers#1665 (all words but one put back after each step: 1.2 s/it "
        "with and without; merged)",
        script="unseen29/glyph_word.py",
        machine="G",
        verdicts=(COMPUTE,),
        # suspected: all words put back by a mask after each step; variant b learns one vector by itself.
        not_verdicts=(SYNC, HOST, LAUNCH, INPUT),
        not_fixes=("FX321", "FX325", "FX327", "FX346", "FX502"),
        shorter={"STEPS": "130"},
    ),
)
