"""What is true of the fifty-third set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN53`. Of the catalogue only the titles were seen when this was written.
All of them train on two ranks: `torchrun --nproc-per-node 2 script.py`.
"""

from __future__ import annotations

from truth import COMMUNICATION, HOST, INPUT, SYNC, Thread

UNSEEN53 = (
    Thread(
        id="AD01",
        source="huggingface/transformers#47340 (ranks draw unlike lengths; dealt evenly: 1.58x; merged)",
        script="unseen53/willow_courier.py",
        machine="D",
        verdicts=(COMMUNICATION,),
        # cure: deal the messages of each global batch out so that all ranks get like numbers of tokens
        fixes=("FX606",),
        shorter={"STEPS": "30"},
        at=(
            "willow_courier.py: sampler = DistributedSampler(range(MESSAGES), world, rank",
            "willow_courier.py: for hand in hands:",
            "willow_courier.py: hands = BatchSampler(sampler",
            "willow_courier.py: (loss * world / total).backward()",
            "willow_courier.py: dist.all_reduce(total)",
        ),
    ),
    Thread(
        id="AD02",
        source="thu-ml/Causal-Forcing#20, fairscale#789 (averages of gathered weights; of shards; said)",
        script="unseen53/basalt_lantern.py",
        machine="D",
        verdicts=(COMMUNICATION,),
        # cure: average each rank's own shard of the weights, gather only for a checkpoint
        no_entry=True,
        shorter={"STEPS": "40"},
        at=(
            'basalt_lantern.py: return p.full_tensor() if VARIANT == "a" else p.to_local()',
            "basalt_lantern.py: self.shadow[name].lerp_(self.read(p), 1 - DECAY)",
            "basalt_lantern.py: average.update(model)",
        ),
    ),
    Thread(
        id="AD03",
        source="bo-ke/llm-internal-medicine#68 (metrics gathered as objects; one vector; merged)",
        script="unseen53/heron_ledger.py",
        machine="D",
        verdicts=(HOST, COMMUNICATION),
        # cure: reduce one vector of all numbers over the ranks, name them afterwards
        no_entry=True,
        shorter={"STEPS": "100"},
        at=(
            "heron_ledger.py: mine = dict(zip(KEYS, numbers.tolist()))",
            "heron_ledger.py: dist.all_gather_object(everyone, mine)",
            "heron_ledger.py: values = [state[key] for state in everyone if key in state]",
            "heron_ledger.py: for key in KEYS:",
            "heron_ledger.py: merged[key] = sum(values) / len(values)",
            "heron_ledger.py: ledger = gather_state(model.module)",
        ),
    ),
    Thread(
        id="AD04",
        source="m2lines/Samudra#456, #677 (maps drawn after each epoch, GPUs idle; each tenth; agreed)",
        script="unseen53/maple_tides.py",
        machine="D",
        verdicts=(HOST, COMMUNICATION),
        # cure: draw the maps of the validation (rank 0) after every tenth epoch only
        fixes=("FX504", "FX511"),
        shorter={"STEPS": "104"},
        at=(
            "maple_tides.py: book = validate(model, fields, truth, device",
            'maple_tides.py: maps[f"{name}/expected"] = draw_map(expected[n])',
            'maple_tides.py: maps[f"{name}/foretold"] = draw_map(got[n])',
            'maple_tides.py: maps[f"{name}/missed"] = draw_map(got[n] - expected[n])',
            "maple_tides.py: low, high = np.percentile(field, (2, 98))",
            "maple_tides.py: level = np.kron(level, np.ones((SCALE, SCALE)))",
            "maple_tides.py: colours = np.stack([level",
            "maple_tides.py: return zlib.compress((255 * colours)",
        ),
    ),
    Thread(
        id="AD05",
        source="karpathy/nanoGPT#151 (DDP sends the causal masks in each step; not sent: to 8 %; open)",
        script="unseen53/onyx_letters.py",
        machine="D",
        verdicts=(COMMUNICATION,),
        # cure: have DDP ignore the masks, which are buffers (broadcast_buffers=False does it, too)
        fixes=("FX609",),
        shorter={"STEPS": "60"},
        at=(
            'onyx_letters.py: self.register_buffer("past"',
            "onyx_letters.py: logits = model(ids[:, :-1])",
            "onyx_letters.py: model = DDP(Letters().to(device)",
        ),
    ),
    Thread(
        id="AD06",
        source="huggingface/transformers#20770, datasets#5369 (each rank decodes all; its own; agreed)",
        script="unseen53/amber_harvest.py",
        machine="D",
        verdicts=(INPUT,),
        # cure: give each rank shards of its own, so that it decodes only what it uses
        fixes=("FX108", "FX107"),
        shorter={"STEPS": "80"},
        at=(
            "amber_harvest.py: yield unpack(packed), label",
            "amber_harvest.py: for item in self.stream:",
            "amber_harvest.py: photo = np.frombuffer(zlib.decompress(packed), np.uint8)",
            "amber_harvest.py: photo = photo.reshape(SIDE, 2, SIDE, 2, 3)",
            "amber_harvest.py: part = RankPart(Photographs(shards), rank, world)",
            "amber_harvest.py: photos, labels = next(batches)",
        ),
    ),
    Thread(
        id="AD07",
        source="Denys88/rl_games#369 (trap: KL reduced after each part, put off: not faster; merged)",
        script="unseen53/pine_rover.py",
        machine="D",
        # cure: none; the reduction of one number is nearly free next to the update
        not_verdicts=(COMMUNICATION, SYNC),
        not_fixes=("FX501", "FX503", "FX602", "FX603"),
        shorter={"STEPS": "130"},
        at=(),
    ),
)
