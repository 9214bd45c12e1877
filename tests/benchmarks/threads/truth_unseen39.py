"""What is true of the thirty-ninth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN39`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import ALLOCATOR, COMPUTE, HOST, INPUT, LAUNCH, SYNC, Thread

UNSEEN39 = (
    Thread(
        id="OO01",
        source="huggingface/diffusers#2563 (averaging weights empties the cache: 2x to 2.5x; merged)",
        script="unseen39/heron_pond.py",
        machine="G",
        verdicts=(ALLOCATOR,),
        # cure: do not call empty_cache() in the step of the averaged weights
        fixes=("FX204",),
        shorter={"STEPS": "90"},
        at=(
            "heron_pond.py: torch.cuda.empty_cache()",
            "heron_pond.py: shadow.step(model.parameters())",
            "heron_pond.py: def step(self, parameters):",
        ),
    ),
    Thread(
        id="OO02",
        source="EvolvingLMMs-Lab/lmms-engine#184 (places frame by frame, with reads: tens of ms; merged)",
        script="unseen39/russet_reel.py",
        machine="G",
        verdicts=(HOST, SYNC),
        # cure: bring ids, mask and grids to the host once, fill one array per row, copy it back
        fixes=("FX502", "FX532", "FX510", "FX514"),
        shorter={"STEPS": "150"},
        at=(
            "russet_reel.py: def places_by_spans(ids, mask, grids):",
            "russet_reel.py: t, h, w = grids[frame][0].item()",
            "russet_reel.py: count = (row[starts + 1] == PIXEL).sum()",
            "russet_reel.py: tokens = row.tolist()",
            "russet_reel.py: for _ in range(count):",
            "russet_reel.py: first = parts[-1].max() + 1 if parts else 0",
            "russet_reel.py: t_index = torch.arange(t)",
            "russet_reel.py: h_index = torch.arange(h)",
            "russet_reel.py: w_index = torch.arange(w)",
            "russet_reel.py: parts.append(torch.stack([t_index, h_index, w_index]) + text + first)",
            "russet_reel.py: parts.append(torch.arange(text).view(1, -1).expand(3, -1) + first)",
            "russet_reel.py: places = (places_by_spans if VARIANT",
            "russet_reel.py: scores = model(ids, mask, grids)",
        ),
    ),
    Thread(
        id="OO03",
        source="huggingface/sentence-transformers#3611 (batches without duplicates: "
        "rows compared as texts for each batch; hashed once: table of times; merged)",
        script="unseen39/juniper_post.py",
        machine="G",
        verdicts=(INPUT,),
        # cure: hash the texts of all rows once, and compare the numbers
        fixes=("FX107", "FX326"),
        shorter={"STEPS": "260"},
        at=(
            "juniper_post.py: def __getitem__(self, index):",
            "juniper_post.py: row[name] = buffer[ends[index] : ends[index + 1]].decode()",
            "juniper_post.py: def values_of(self, index):",
            "juniper_post.py: return {str(text) for name, text in self.table[index].items()",
            "juniper_post.py: values = self.values_of(index)",
            "juniper_post.py: for index in waiting:",
            "juniper_post.py: def __iter__(self):",
            "juniper_post.py: batch_sampler=DistinctBatches(table, BATCH, seed=1)",
            "juniper_post.py: ids = next(batches).to(device)",
        ),
    ),
    Thread(
        id="OO04",
        source="pytorch/rl#3297 (timers in compiled code break the graph; merged)",
        script="unseen39/fennel_clock.py",
        machine="G",
        verdicts=("graph-break-bound", COMPUTE, LAUNCH),
        # cure: hand out a nullcontext instead of the timer while the compiler traces
        fixes=("FX403", "FX401"),
        shorter={"STEPS": "250"},
        at=(
            'fennel_clock.py: with stage("trunk"):',
            'fennel_clock.py: with stage("heads"):',
            "fennel_clock.py: def stage(name):",
            "fennel_clock.py: return Stage(name)",
            "fennel_clock.py: self.begin = time.time()",
            "fennel_clock.py: entry[1] += time.time() - self.begin",
            "fennel_clock.py: def __enter__(self):",
            "fennel_clock.py: def __exit__(self, *exc):",
            "fennel_clock.py: trained = torch.compile(policy)",
            "fennel_clock.py: mean, value = trained(obs[i])",
        ),
    ),
    Thread(
        id="OO05",
        source="k2-fsa/OmniVoice#212 (flex_attention in float32 under autocast: ~4x; merged)",
        script="unseen39/opal_chorus.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: cast queries, keys and values to autocast's type before flex_attention
        fixes=("FX345", "FX303"),
        shorter={"STEPS": "80"},
        at=(
            "opal_chorus.py: def voice_attention(q, k, v, block_mask):",
            "opal_chorus.py: return attend(q, k, v, block_mask=block_mask)",
            "opal_chorus.py: y = voice_attention(q, k, v, block_mask)",
            "opal_chorus.py: v = v.transpose(1, 2).to(q.dtype)",
            "opal_chorus.py: q, k = turn(self.q_norm(q).transpose(1, 2), cos, sin)",
            "opal_chorus.py: return self.weight * y.to(x.dtype)",
            "opal_chorus.py: x = singer(x, self.cos, self.sin, block_mask)",
            "opal_chorus.py: attend = torch.compile(flex_attention, dynamic=False)",
        ),
    ),
    Thread(
        id="OO06",
        source="greentfrapp/lucent#45 (hooks of each picture stay; removed: confirmed)",
        script="unseen39/cobalt_lantern.py",
        machine="G",
        verdicts=(HOST,),
        # cure: remove the forward hooks when a picture is done
        no_entry=True,
        shorter={"STEPS": "700"},
        at=(
            "cobalt_lantern.py: self.handle = module.register_forward_hook(self.keep)",
            "cobalt_lantern.py: def keep(self, module, inputs, output):",
            "cobalt_lantern.py: self.output = output",
            "cobalt_lantern.py: def probe_layers(network):",
            "cobalt_lantern.py: probes[name] = LayerProbe(module)",
            "cobalt_lantern.py: self.probes = probe_layers(network)",
            "cobalt_lantern.py: def finish(self):",
            "cobalt_lantern.py: picture = frame.finish()",
            "cobalt_lantern.py: self.network(torch.roll(torch.sigmoid(self.picture), shift, (2, 3)))",
            "cobalt_lantern.py: frame = Frame(network, picture,",
        ),
    ),
    Thread(
        id="OO07",
        source="soran-ghaderi/torchebm#80 (score matching by directions, one by one; merged)",
        script="unseen39/amber_delta.py",
        machine="G",
        verdicts=(LAUNCH, HOST),
        # cure: repeat the batch once per direction, and differentiate all directions in one pass
        fixes=("FX510", "FX528", "FX532", "FX374"),
        shorter={"STEPS": "160"},
        at=(
            "amber_delta.py: for direction in directions:",
            "amber_delta.py: slope, curve = slope_and_curve(self.energy, x, direction)",
            "amber_delta.py: def slope_and_curve(energy, x, direction):",
            "amber_delta.py: logp = -energy(x).sum()",
            "amber_delta.py: score = torch.autograd.grad(logp, x, create_graph=True)[0]",
            "amber_delta.py: bent = torch.autograd.grad(along.sum(), x, create_graph=True)[0]",
            "amber_delta.py: total = total + (slope + curve).mean()",
            "amber_delta.py: loss = matching(x)",
        ),
    ),
    Thread(
        id="OO08",
        source="pytorch/torchtitan#2380, #1323 (states of generators kept: 30 to 50 us a block; merged)",
        script="unseen39/slate_meadow.py",
        machine="G",
        # trap: preserve_rng_state=True keeps the states of the generators for each block: < 1 %
        not_verdicts=(SYNC, HOST, LAUNCH),
        not_fixes=("FX502", "FX503", "FX521", "FX524"),
        shorter={"STEPS": "80"},
        at=("slate_meadow.py: x = checkpoint(block, x, use_reentrant=False",),
    ),
)
