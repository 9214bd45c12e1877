"""What is true of the fifty-fifth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN55`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import COMMUNICATION, COMPUTE, HOST, INPUT, LAUNCH, SYNC, Thread

UNSEEN55 = (
    Thread(
        id="AF01",
        source="pytorch/pytorch#74907, #75157 (PowerSGD matrix by matrix; batched by shape: -62 %; in)",
        script="unseen55/walnut_relay.py",
        machine="D",
        verdicts=(LAUNCH, HOST),
        # cure: have the compression hook work on all gradients of a shape at once (bmm, batched QR)
        fixes=("FX532", "FX510"),
        shorter={"STEPS": "300"},
        at=(
            "walnut_relay.py: state = PowerSGDState(",
            'walnut_relay.py: batch_tensors_with_same_shape=VARIANT != "a",',
            "walnut_relay.py: model.register_comm_hook(state, powerSGD_hook)",
            "walnut_relay.py: loss.backward()",
        ),
    ),
    Thread(
        id="AF02",
        source="HuangJunJie2017/BEVDet#147 (SyncBN: an epoch 25 min, 20 with BN; maintainer)",
        script="unseen55/linden_canopy.py",
        machine="D",
        verdicts=(COMMUNICATION,),
        # cure: normalise with the statistics of each rank's own batch
        no_entry=True,
        shorter={"STEPS": "100"},
        at=(
            "linden_canopy.py: dist.all_reduce(sums)",
            "linden_canopy.py: dist.all_reduce(grad)",
            "linden_canopy.py: sums = Totals.apply(sums)",
            'linden_canopy.py: Canopy(pooled=VARIANT == "a").to(device),',
        ),
    ),
    Thread(
        id="AF03",
        source="Tencent-Hunyuan/UniRL#45 (siblings dealt in order; by tokens: 28.4 to 15.3 s; merged)",
        script="unseen55/umber_chorus.py",
        machine="D",
        verdicts=(COMMUNICATION, COMPUTE),
        # cure: deal the answers to the ranks such that each has about as many tokens
        fixes=("FX606",),
        shorter={"STEPS": "110"},
        at=(
            "umber_chorus.py: return [answers[i * each : (i + 1) * each] for i in range(world)]",
            'umber_chorus.py: DEAL = in_order if VARIANT == "a" else by_tokens',
            "umber_chorus.py: mine = DEAL(answers, world)[rank]",
            "umber_chorus.py: loss.backward()",
        ),
    ),
    Thread(
        id="AF04",
        source="hpcaitech/Open-Sora#527 (trap: dist.barrier() in each step: negligible; maintainer)",
        script="unseen55/slate_harvest.py",
        machine="D",
        # cure: none; the ranks are in step anyway, the convolutions take the time
        not_verdicts=(COMMUNICATION, SYNC),
        not_fixes=("FX527", "FX606", "FX611"),
        shorter={"STEPS": "105"},
        at=(),
    ),
    Thread(
        id="AF05",
        source="deepmodeling/deepmd-kit#5023, #4616 (whole set read per frame; mapped: to 40x; merged)",
        script="unseen55/fern_lattice.py",
        machine="C2",
        verdicts=(INPUT,),
        # cure: map the files of a set into memory once, and take the one row of a frame
        fixes=("FX107",),
        shorter={"STEPS": "240"},
        at=(
            'fern_lattice.py: return np.load(path) if VARIANT == "a" else mapped(path)',
            "fern_lattice.py: frame = {key: self.values(self.sets[number], key)[row]",
            "fern_lattice.py: frames = next(batches)",
        ),
    ),
    Thread(
        id="AF06",
        source="kjaved0/mrcl#15 (inner steps take gradients of fixed weights, too; by the author)",
        script="unseen55/heron_garden.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # cure: ask for gradients of the weights only that the inner loop changes
        fixes=("FX325",),
        shorter={"STEPS": "75"},
        at=(
            'heron_garden.py: names = list(weights) if VARIANT == "a" else chosen',
            "heron_garden.py: grads = torch.autograd.grad(loss, [weights[name] for name in names]",
            "heron_garden.py: weights = adapt(learner, weights, shown, names)",
        ),
    ),
    Thread(
        id="AF07",
        source="Lightning-AI/pytorch-lightning#4188, #4190 (L-BFGS: a pass before step(); merged)",
        script="unseen55/violet_orbit.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # cure: leave out the pass before step(), which runs the closure and returns its loss
        fixes=("FX326",),
        shorter={"STEPS": "260"},
        at=(
            "violet_orbit.py: loss = self.closure().detach()",
            "violet_orbit.py: trainer.run_batch(flux, properties)",
        ),
    ),
    Thread(
        id="AF08",
        source="coax-dev/coax#25 (transitions drawn from a deque; from a list: much faster; merged)",
        script="unseen55/magpie_circuit.py",
        machine="C2",
        verdicts=(INPUT, HOST),
        # cure: keep the transitions in a list that is overwritten in turn
        fixes=("FX107", "FX514"),
        shorter={"STEPS": "270"},
        at=(
            'magpie_circuit.py: self.rows = deque(maxlen=capacity) if VARIANT == "a" else []',
            "magpie_circuit.py: rows = torch.from_numpy(np.stack([self.rows[i] for i in chosen]))",
            "magpie_circuit.py: s, a, r, n = replay.sample(BATCH)",
        ),
    ),
)
