"""What is true of each thread: its cause, its line, its cure, as its reporters confirmed them.

In: nothing. Out: `THREADS`. A place is `file: a piece of its source`, which must stand in one line of
that file only, so that it survives edits of the scripts; `file: piece @2` is the second line with it.

A thread with `not_fixes` or `not_verdicts` is a trap: something is suspected by everyone that was shown not
to be it, or whose share is small. No fix of `not_fixes` may then be promised more than was measured and
5 % of the step; unless `small`, none may be suggested first either.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

FOLDER = Path(__file__).parent
Machine = Literal["C2", "G", "D"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """One thread, its script and the answers that are right."""

    id: str
    source: str
    script: str
    machine: Machine = "C2"
    verdicts: tuple[str, ...] = ()
    at: tuple[str, ...] = ()
    fixes: tuple[str, ...] = ()
    priced: bool = True
    """False: the step grows, so that no two windows have one price."""
    not_verdicts: tuple[str, ...] = ()
    not_fixes: tuple[str, ...] = ()
    small: bool = False
    """The fix is right, but what it gains is little."""
    no_entry: bool = False
    """The catalogue has no entry for the cure yet: a miss until it has one."""
    environment: dict[str, str] = field(default_factory=dict)
    """Of all its runs."""
    shorter: dict[str, str] = field(default_factory=dict)
    """Of the plain runs: fewer steps than the tool may need."""

    @property
    def trap(self) -> bool:
        """Whether it is judged only by what is not said."""
        return not (self.fixes or self.no_entry) and bool(self.not_fixes or self.not_verdicts)

    @property
    def path(self) -> Path:
        """Where the script lies."""
        return FOLDER / self.script

    def places(self) -> list[tuple[str, int]]:
        """File name and line of each place of `at`."""
        found = []
        for place in self.at:
            name, piece = place.split(": ", 1)
            before, at, which = piece.rpartition(" @")
            at = at if which.isdecimal() else ""  # a product of matrices is no number of a place
            piece = before if at else piece
            lines = (self.path.parent / name).read_text().splitlines()
            numbers = [n for n, line in enumerate(lines, 1) if piece in line]
            assert at or len(numbers) == 1, f"{self.id}: {place!r} stands in lines {numbers}"
            found.append((name, numbers[int(which) - 1 if at else 0]))
        return found


HOST, INPUT, COMPUTE, LAUNCH = "host-bound", "input-bound", "compute-bound", "launch-bound"
SYNC, ALLOCATOR, COMMUNICATION = "sync-bound", "allocator-thrashing", "communication-bound"
TRANSFER = "transfer-bound"

THREADS = (
    Thread(
        id="T01",
        source="pytorch/examples#1368",
        script="cpu/digits.py",
        verdicts=(INPUT,),
        fixes=("FX105", "FX114"),
        shorter={"EPOCHS": "12"},
        at=(
            "digits.py: train_loader = DataLoader",
            "digits.py: for data, target in loader: @1",
            "digits.py: test_loader = DataLoader",
        ),
    ),
    Thread(
        id="T03",
        source="k2-fsa/icefall#1215",
        script="cpu/yesno_ctc.py",
        verdicts=(INPUT,),
        fixes=("FX105", "FX114"),
        shorter={"EPOCHS": "10"},
        at=(
            "yesno_ctc.py: return DataLoader(Utterances(30",
            "yesno_ctc.py: for batch in train_dl:",
            "yesno_ctc.py: self.options =",
        ),
    ),
    Thread(
        id="T05",
        source="ultralytics#11195, pytorch#101850, #99625",
        script="cpu/machine_sounds.py",
        verdicts=(INPUT,),
        fixes=("FX522",),
        shorter={"STEPS": "200"},
        at=(
            "machine_sounds.py: loader = DataLoader(Sounds()",
            "seeding.py: os.sched_setaffinity(0, {min(CORES)})",
        ),
    ),
    Thread(
        id="T09",
        source="huggingface/lerobot#2549, #2895",
        script="cpu/robot_policy.py",
        verdicts=(INPUT,),
        fixes=("FX107",),
        shorter={"STEPS": "90"},
        at=(
            "robot_store.py: return self.table[i][self.key]",
            "robot_policy.py: state = torch.as_tensor",
            "robot_policy.py: action = torch.stack",
            "robot_store.py: frame = np.asarray",
        ),
    ),
    Thread(
        id="T11",
        source="pytorch#10260, #4959, #106704, #26957",
        script="cpu/tabular_regression.py",
        verdicts=(INPUT,),
        fixes=("FX112",),
        shorter={"STEPS": "170"},
        at=(
            "tabular_regression.py: return DataLoader(dataset, batch_size=BATCH",
            "tabular_regression.py: yield from loader",
        ),
    ),
    Thread(
        id="T15",
        source="Tai-Hsien/MeshSegNet#31",
        script="cpu/tooth_meshes.py",
        verdicts=(INPUT,),
        fixes=("FX107",),
        shorter={"STEPS": "30"},
        at=("tooth_meshes.py: distance = np.sqrt(",),
    ),
    Thread(
        id="T17",
        source="ageron/handson-ml#204",
        script="cpu/cart_dqn.py",
        verdicts=(HOST, INPUT),
        fixes=("FX107", "FX504", "FX514"),
        shorter={"STEPS": "120"},
        at=("cart_dqn.py: picked = random.sample",),
    ),
    Thread(
        id="T19",
        source="kyutai-labs/pocket-tts#309, Lightning-AI/lit-llama#396",
        script="cpu/speech_tokens.py",
        verdicts=(COMPUTE, ALLOCATOR),
        fixes=("FX109",),
        shorter={"STEPS": "45"},
        at=("speech_tokens.py: tokens = pad_sequence(", "speech_tokens.py: loader = DataLoader("),
    ),
    Thread(
        id="T21",
        source="allenai/olmoearth_pretrain#150, facebookresearch/spdl#1594",
        script="cpu/tiles_pretraining.py",
        verdicts=(INPUT,),
        fixes=("FX223", "FX105"),
        at=(
            "tiles_pretraining.py: self.samples = [",
            "tiles_pretraining.py: loader = DataLoader(",
            "tiles_pretraining.py: for tiles, labels in loader:",
        ),
    ),
    Thread(
        id="T25",
        source="Lightning-AI/pytorch-lightning#7093",
        script="cpu/lit_classifier.py",
        verdicts=(HOST,),
        fixes=("FX504",),
        shorter={"STEPS": "150"},
        at=(
            "lit_classifier.py: trainer.fit(",
            "lit_classifier.py: trainer = L.Trainer(",
            'lit_classifier.py: self.log("loss"',
            'lit_classifier.py: self.log("top3"',
        ),
    ),
    Thread(
        id="T27",
        source="wandb/wandb#2268, #3701",
        script="cpu/residual_mlp.py",
        verdicts=(HOST,),
        fixes=("FX504",),
        priced=False,
        shorter={"STEPS": "150"},
        at=(
            "run_tracker.py: low, high = grad.min()",
            "run_tracker.py: counts = grad.float()",
            "run_tracker.py: self.path.write_text",
        ),
    ),
    Thread(
        id="T29",
        source="JiaRenChang/PSMNet#80",
        script="cpu/stereo_depth.py",
        verdicts=(HOST,),
        fixes=("FX511",),
        shorter={"STEPS": "32"},
        at=(
            "stereo_depth.py: output = model(left, right)",
            "stereo_depth.py: for batch in test_loader: @1",
            "stereo_depth.py: total += test(model, *batch) @1",
        ),
    ),
    Thread(
        id="T35",
        source="facebookresearch/schedule_free#10",
        script="cpu/scale_free_mlp.py",
        verdicts=(LAUNCH,),
        fixes=("FX311", "FX312", "FX416"),
        shorter={"STEPS": "100"},
        at=(
            "scale_free_mlp.py: optimizer.step()",
            "paper_adamw.py: square = state[",
            'paper_adamw.py: for p in group["params"]:',
        ),
    ),
    Thread(
        id="T35b",
        source="deepmodeling/deepmd-kit#4463",
        script="cpu/descriptor_fit.py",
        verdicts=(COMPUTE, ALLOCATOR, LAUNCH),
        not_fixes=("FX311", "FX312", "FX416"),
        small=True,
        shorter={"STEPS": "40"},
    ),
    Thread(
        id="T41",
        source="mvandenhi/SCBM#4",
        script="cpu/concept_model.py",
        verdicts=(COMPUTE, ALLOCATOR),
        not_verdicts=(LAUNCH, HOST),
        not_fixes=("FX510", "FX513"),
        small=True,
        shorter={"STEPS": "25"},
    ),
    Thread(
        id="G1",
        source="EleutherAI/bergson#55",
        script="cpu/gradient_index.py",
        verdicts=(HOST,),
        fixes=("FX504", "FX514"),
        priced=False,
        shorter={"STEPS": "600"},
        at=("gradient_index.py: handle.remove()",),
    ),
    Thread(
        id="G3",
        source="Lightning-AI/torchmetrics#1823, pytorch-lightning#20076, ulissigroup/amptorch#11",
        script="cpu/running_scores.py",
        verdicts=(HOST,),
        fixes=("FX211", "FX504"),
        priced=False,
        shorter={"STEPS": "400"},
        at=(
            "running_scores.py: outputs, labels = torch.cat(",
            "running_scores.py: accuracy, gap = metric.update(",
        ),
    ),
    Thread(
        id="N04",
        source="liebharc/homr#128",
        script="cpu/sheet_music.py",
        verdicts=(COMPUTE, ALLOCATOR),
        not_verdicts=(INPUT,),
        not_fixes=("FX101", "FX102", "FX506", "FX107"),
        shorter={"STEPS": "35"},
    ),
    Thread(
        id="N06",
        source="graphdeco-inria/gaussian-splatting#85",
        script="cpu/splats.py",
        verdicts=(COMPUTE, ALLOCATOR),
        not_fixes=("FX201", "FX202", "FX203", "FX204"),
        shorter={"STEPS": "100"},
    ),
    Thread(
        id="N10",
        source="boreshkinai/delta-interpolator#3",
        script="cpu/delta_poses.py",
        verdicts=(COMPUTE, ALLOCATOR, LAUNCH),
        not_verdicts=(INPUT,),
        not_fixes=("FX103", "FX104", "FX105"),
        shorter={"STEPS": "90"},
    ),
    Thread(
        id="T23",
        source="huggingface/transformers#31372, #31530",
        script="gpu/caption_trainer.py",
        machine="G",
        verdicts=(ALLOCATOR,),
        fixes=("FX204",),
        at=("caption_trainer.py: clear_device_cache()", "accelerator.py: torch.cuda.empty_cache()"),
    ),
    Thread(
        id="T31",
        source="facebookresearch/fairchem#2193, #2195",
        script="gpu/molecule_tasks.py",
        machine="G",
        verdicts=(SYNC,),
        fixes=("FX501", "FX502"),
        at=(
            "molecule_tasks.py: count = mask.sum().item()",
            "molecule_tasks.py: part = error[mask",
            "molecule_tasks.py: if not torch.isfinite(part)",
        ),
    ),
    Thread(
        id="T33a",
        source="HuguesTHOMAS/KPConv-PyTorch#22",
        script="gpu/point_clouds.py",
        machine="G",
        verdicts=(SYNC, LAUNCH),
        fixes=("FX502", "FX501", "FX503"),
        at=("point_clouds.py: torch.cuda.synchronize() @1",),
    ),
    Thread(
        id="T33b",
        source="HuguesTHOMAS/KPConv-PyTorch#22, eight times the batch",
        script="gpu/point_clouds.py",
        machine="G",
        environment={"CLOUDS": "32"},
        verdicts=(COMPUTE,),
        not_verdicts=(SYNC,),
        not_fixes=("FX501", "FX502", "FX503"),
    ),
    Thread(
        id="T37",
        source="deepmodeling/deepmd-kit#3421",
        script="gpu/potential_fit.py",
        machine="G",
        verdicts=(SYNC, TRANSFER),
        fixes=("FX521", "FX502", "FX503"),
        at=(
            "potential_fit.py: weight = torch.tensor(weight",
            "potential_fit.py: types = self.types if",
            "potential_fit.py: torch.tanh(layer(x)) * torch.tensor(0.5",
        ),
    ),
    Thread(
        id="T43",
        source="pytorch#2759, pytorch/vision#5985",
        script="gpu/page_layout.py",
        machine="G",
        verdicts=(HOST, COMPUTE, SYNC, LAUNCH),
        fixes=("FX324",),
        not_fixes=("FX308",),
        shorter={"STEPS": "20"},
        at=("page_layout.py: torch.backends.cudnn.benchmark =", "page_layout.py: scores = model(pages)"),
    ),
    Thread(
        id="T49",
        source="fangwei123456/spikingjelly#740",
        script="gpu/spiking.py",
        machine="G",
        verdicts=(LAUNCH,),
        fixes=("FX412", "FX414"),
        at=("spiking.py: loss = forward_backward() @2",),
    ),
    Thread(
        id="N08",
        source="fangwei123456/spikingjelly#740, batch 96",
        script="gpu/spiking.py",
        machine="G",
        environment={"BATCH": "96"},
        verdicts=(COMPUTE,),
        not_verdicts=(LAUNCH,),
        not_fixes=("FX412",),
    ),
    Thread(
        id="N12",
        source="roboflow/rf-detr#1410",
        script="gpu/set_detector.py",
        machine="G",
        verdicts=(LAUNCH, COMPUTE),
        fixes=("FX414", "FX412"),
        at=(
            "detector_config.py: if config.compile and not",
            "set_detector.py: scores, predicted = model(images)",
        ),
    ),
    Thread(
        id="T51",
        source="NVIDIA/cosmos-framework#161",
        script="ranks/world_model.py",
        machine="D",
        verdicts=(COMMUNICATION,),
        fixes=("FX602",),
        shorter={"STEPS": "40"},
        at=(
            "world_model.py: with quiet(model):",
            "world_model.py: loss.backward() @1",
            "engine.py: return contextlib.nullcontext()",
        ),
    ),
    Thread(
        id="T53",
        source="m2lines/Samudra#630, numenta/nupic.research#526",
        script="ranks/ocean_emulator.py",
        machine="D",
        verdicts=(COMMUNICATION, HOST, LAUNCH),
        fixes=("FX601",),
        shorter={"STEPS": "50"},
        at=(
            "ocean_emulator.py: model = DistributedDataParallel(",
            'ocean_emulator.py: options = {"find_unused',
        ),
    ),
    Thread(
        id="T55",
        source="goodfire-ai/spd#215, ultralytics/yolov5#790, huggingface/accelerate#106",
        script="ranks/decomposition.py",
        machine="D",
        verdicts=(COMMUNICATION,),
        fixes=("FX602",),
        shorter={"STEPS": "40"},
        at=("decomposition.py: loss.backward()",),
    ),
)
