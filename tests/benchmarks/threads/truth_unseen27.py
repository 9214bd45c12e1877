"""What is true of the twenty-seventh set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN27`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import ALLOCATOR, COMPUTE, HOST, INPUT, LAUNCH, SYNC, Thread

UNSEEN27 = (
    Thread(
        id="CC01",
        source="pytorch/pytorch#92701 (set_default_device sees every call: 0.036 to 0.162 ms each; open)",
        script="unseen27/tank_valves.py",
        machine="G",
        verdicts=(LAUNCH, HOST),
        # cure: the default device is set only around the building of the model, not for the whole run.
        no_entry=True,
        shorter={"STEPS": "280"},
        at=("tank_valves.py: torch.set_default_device(device)",),
    ),
    Thread(
        id="CC02",
        source="speedinghzl/Pytorch-Deeplab#1 (cudnn.enabled = False left in; faster when on, author agrees)",
        script="unseen27/wetland_tiles.py",
        machine="G",
        verdicts=(COMPUTE, LAUNCH),
        # cure: cuDNN is left on.
        no_entry=True,
        shorter={"STEPS": "300"},
        at=(
            "wetland_tiles.py: torch.backends.cudnn.enabled =",
            "wetland_tiles.py: y = F.relu(self.norm1(self.conv1(x)))",
            "wetland_tiles.py: y = self.norm2(self.conv2(y))",
            "wetland_tiles.py: x = self.body(F.relu(self.stem(x)))",
            "wetland_tiles.py: out = net(tiles[step",
        ),
    ),
    Thread(
        id="CC03",
        source="PennyLaneAI/pennylane#4866, #2269 (a Hermitian diagonalised for each mean; product: merged)",
        script="unseen27/ion_ladder.py",
        machine="G",
        verdicts=(COMPUTE, LAUNCH, SYNC),
        # cure: the mean is taken by the product of the matrix and the state, without eigenvectors.
        fixes=("FX326",),
        shorter={"STEPS": "380"},
        at=(
            "ion_ladder.py: levels, basis = torch.linalg.eigh(self.matrix)",
            "ion_ladder.py: def mean_by_levels(self, state)",
            "ion_ladder.py: return self.mean_by_levels(state)",
            "ion_ladder.py: return self.scale * self.energy(state)",
            "ion_ladder.py: loss = (model(samples[k])",
        ),
    ),
    Thread(
        id="CC04",
        source="gasteigerjo/dimenet#8 (rbf and sbf anew in each pass: not significant, says the author)",
        script="unseen27/truss_loads.py",
        machine="G",
        verdicts=(COMPUTE,),
        # suspected: the radial and angular bases made anew in each forward; variant b keeps them.
        not_fixes=("FX326", "FX521"),
        not_verdicts=(INPUT, SYNC, HOST),
        shorter={"STEPS": "450"},
    ),
    Thread(
        id="CC05",
        source="pytorch/pytorch#41306, #74521 (SVD of many skinny matrices; gesvda: 1,609 to 84 ms; merged)",
        script="unseen27/bark_patches.py",
        machine="G",
        verdicts=(LAUNCH, COMPUTE, SYNC),
        # cure: the batched driver gesvda in place of the default, which goes matrix by matrix.
        fixes=("FX344",),
        shorter={"STEPS": "330"},
        at=(
            "bark_patches.py: values = torch.linalg.svdvals(centred, driver=DRIVER)",
            "bark_patches.py: def thickness(points)",
            "bark_patches.py: loss = thickness(smooth).mean()",
            "bark_patches.py: DRIVER = ",
        ),
    ),
    Thread(
        id="CC06",
        source="bytedance/Protenix#283 (letters of names coded one by one: loader -37 %; merged)",
        script="unseen27/glaze_recipes.py",
        machine="G",
        verdicts=(INPUT,),
        # cure: all letters of a recipe are read by frombuffer and coded by one call of one_hot.
        fixes=("FX107",),
        shorter={"STEPS": "450"},
        at=(
            "glaze_recipes.py: def encode_by_letter(codes, kinds)",
            "glaze_recipes.py: letter_rows = {chr",
            "glaze_recipes.py: kind_rows = {kind",
            "glaze_recipes.py: for code, kind in zip(codes, kinds)",
            "glaze_recipes.py: for letter in code.ljust(4):",
            "glaze_recipes.py: row += letter_rows[letter]",
            "glaze_recipes.py: row += kind_rows[kind]",
            "glaze_recipes.py: rows.append(np.array(row",
            "glaze_recipes.py: return torch.from_numpy(np.stack(rows))",
            "glaze_recipes.py: def __getitem__(self, index)",
            "glaze_recipes.py: rows = encode_by_letter(codes, names)",
            "glaze_recipes.py: loader = DataLoader(",
            "glaze_recipes.py: in enumerate(loader):",
        ),
    ),
    Thread(
        id="CC07",
        source="chelsea0x3b/dfdx#678 (no caching of memory in PyTorch: step 16.5 to 76 ms)",
        script="unseen27/postcard_vit.py",
        machine="G",
        verdicts=(ALLOCATOR, SYNC),
        # cure: PYTORCH_NO_CUDA_MEMORY_CACHING is not set.
        no_entry=True,
        shorter={"STEPS": "55"},
        at=('postcard_vit.py: os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"]',),
    ),
    Thread(
        id="CC08",
        source="descriptinc/audiotools#33, pytorch/audio#1408 (IIR filter looped on the GPU: 21 s; merged)",
        script="unseen27/tremor_picker.py",
        machine="G",
        verdicts=(LAUNCH,),
        # cure: the recursion sample by sample becomes one product of spectra with its response.
        fixes=("FX513", "FX510"),
        shorter={"STEPS": "180"},
        at=(
            "tremor_picker.py: def recurse(trace, b, a)",
            "tremor_picker.py: for i, o in enumerate(forced.t())",
            "tremor_picker.py: torch.addmv(o,",
            "tremor_picker.py: def by_sample(self, trace)",
            "tremor_picker.py: for b, a in SECTIONS:",
            "tremor_picker.py: trace = recurse(trace, b, a)",
            "tremor_picker.py: weighted = self.by_sample(flat)",
            "tremor_picker.py: loudness = weighting(trace)",
        ),
    ),
)
