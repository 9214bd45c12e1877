"""What is true of the fifty-fourth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN54`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import HOST, INPUT, LAUNCH, TRANSFER, Thread

UNSEEN54 = (
    Thread(
        id="AE01",
        source="huggingface/transformers#32101, #45852 (4D masks padded as lists: 3.65 to 0.012 s)",
        script="unseen54/linnet_grammar.py",
        machine="G",
        verdicts=(INPUT,),
        # cure: stack the masks as tensors in the collator, in place of lists of numbers
        fixes=("FX107", "FX101", "FX111"),
        shorter={"STEPS": "180"},
        at=(
            "linnet_grammar.py: columns = {key: [row[key].tolist() for row in rows] for key in rows[0]}",
            "linnet_grammar.py: return {key: torch.tensor(column) for key, column in columns.items()}",
            'linnet_grammar.py: data_collator=PadToLongest() if VARIANT == "a" else StackRows(),',
        ),
    ),
    Thread(
        id="AE02",
        source="arogozhnikov/einops#250, #251 (each rearrange breaks the graph: 99 breaks; merged)",
        script="unseen54/tern_lattice.py",
        machine="G",
        verdicts=("graph-break-bound",),
        # cure: let the compiler see through the rearrangements
        fixes=("FX417", "FX401"),
        shorter={"STEPS": "550"},
        at=(
            "tern_lattice.py: arrange = torch.compiler.disable(tern_axes.arrange)",
            'tern_lattice.py: q = arrange(self.to_q(y), "b n (h d) -> b h n d", h=HEADS)',
            'tern_lattice.py: k = arrange(self.to_k(y), "b n (h d) -> b h n d", h=HEADS)',
            'tern_lattice.py: v = arrange(self.to_v(y), "b n (h d) -> b h n d", h=HEADS)',
            'tern_lattice.py: y = arrange(y, "b h n d -> b n (h d)")',
            'tern_lattice.py: y = arrange(y, "b n (two f) -> two b n f", two=2)',
            "tern_axes.py: def arrange(x, pattern, **known):",
        ),
    ),
    Thread(
        id="AE03",
        source="Lightning-AI/pytorch-lightning#20388 (a loss and metric per output: 40-50 %; open)",
        script="unseen54/osprey_ledger.py",
        machine="G",
        verdicts=(HOST, LAUNCH),
        # cure: take the outputs as one, with one loss and one metric
        fixes=("FX532", "FX510"),
        shorter={"STEPS": "550"},
        at=(
            "osprey_ledger.py: for i, metric in enumerate(self.errors):",
            "osprey_ledger.py: part = F.mse_loss(pred[:, i], y[:, i])",
            "osprey_ledger.py: metric(pred[:, i].detach(), y[:, i])",
            'osprey_ledger.py: self.log(f"loss_{i}", part, on_step=True, on_epoch=False)',
            'osprey_ledger.py: self.log(f"error_{i}", metric, on_step=False, on_epoch=True)',
            'osprey_ledger.py: loss = self.per_target(pred, y) if VARIANT == "a"',
        ),
    ),
    Thread(
        id="AE04",
        source="HorizonRobotics/alf#583 (to the GPU env by env; stacked: 14.3 to 9.0 s; merged)",
        script="unseen54/heron_harness.py",
        machine="G",
        verdicts=(TRANSFER, HOST),
        # cure: stack the readings of all environments in NumPy, then copy each kind once
        fixes=("FX532", "FX520", "FX510"),
        shorter={"STEPS": "75"},
        at=(
            "heron_harness.py: reports = [self.to_tensors(w.step(a)) for w, a in zip(self.walkers, actions)]",
            "heron_harness.py: return {key: torch.stack([r[key] for r in reports]) for key in FIELDS}",
            "heron_harness.py: return {key: torch.as_tensor(report[key]).to(device) for key in FIELDS}",
            "heron_harness.py: batch = crowd.step(action.cpu().numpy())",
        ),
    ),
    Thread(
        id="AE05",
        source="Snapchat/GiGL#681 (labels sought anchor by anchor; sorted: 40 to 15 s; merged)",
        script="unseen54/swift_bazaar.py",
        machine="G",
        verdicts=(INPUT, HOST),
        # cure: look the labels of all anchors up in the sorted nodes with one searchsorted
        fixes=("FX370", "FX532", "FX107"),
        shorter={"STEPS": "400"},
        at=(
            "swift_bazaar.py: for i, ids in enumerate(labels):",
            "swift_bazaar.py: hit = node.unsqueeze(1) == ids.unsqueeze(0)",
            "swift_bazaar.py: places[i] = hit.any(1).nonzero().squeeze(1)",
            "swift_bazaar.py: pairs = remap(node, labels)",
        ),
    ),
    Thread(
        id="AE06",
        source="dmlc/dgl#2453, #1697 (features copied batch by batch: 28 to 16 s; merged)",
        script="unseen54/mill_pond.py",
        machine="G",
        verdicts=(TRANSFER, INPUT),
        # cure: move the features and labels to the GPU once, before training
        fixes=("FX523", "FX524"),
        shorter={"STEPS": "380"},
        at=(
            "mill_pond.py: feat, label = shop.feat, shop.label",
            "mill_pond.py: x = feat[nodes].to(device)",
        ),
    ),
    Thread(
        id="AE07",
        source="deepchem/deepchem#458 (a checkpoint each epoch: longer than the epoch; merged)",
        script="unseen54/dunlin_assay.py",
        machine="G",
        verdicts=(HOST,),
        # cure: save every tenth epoch (checkpoint_interval)
        fixes=("FX504",),
        shorter={"STEPS": "550"},
        at=(
            "dunlin_assay.py: torch.save(state, os.path.join(self.folder,",
            "dunlin_assay.py: keeper.save(epoch)",
            'dunlin_assay.py: CHECKPOINT_INTERVAL = 1 if VARIANT == "a" else 10',
            "dunlin_assay.py: if epoch % CHECKPOINT_INTERVAL == 0:",
        ),
    ),
    Thread(
        id="AE08",
        source="krrish94/nerf-pytorch#6 (trap: encoding by a loop, or by a list: no improvement)",
        script="unseen54/wren_canopy.py",
        machine="G",
        # cure: none; the MLP over all places keeps the GPU at work
        not_verdicts=(LAUNCH, HOST),
        not_fixes=("FX532", "FX510", "FX530"),
        shorter={"STEPS": "450"},
        at=(),
    ),
)
