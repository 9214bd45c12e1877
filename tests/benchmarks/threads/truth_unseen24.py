"""What is true of the twenty-fourth set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN24`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import ALLOCATOR, COMPUTE, HOST, INPUT, LAUNCH, SYNC, TRANSFER, Thread

UNSEEN24 = (
    Thread(
        id="O01",
        source="birdnet-team/geomodel#19 (dense target made on the host and copied: 55 % of a step; merged)",
        script="unseen24/meadow_map.py",
        machine="G",
        verdicts=(INPUT, TRANSFER, HOST, SYNC),
        # cure: hand over the indices only, and scatter them into the dense target on the device.
        fixes=("FX509", "FX524", "FX107", "FX116", "FX101", "FX111", "FX103", "FX508", "FX514"),
        shorter={"STEPS": "160"},
        at=(
            "meadow_map.py: present = torch.zeros(count, PLANTS",
            "meadow_map.py: present[rows, columns] = 1.0",
            "meadow_map.py: return where, presence(rows, columns, len(samples))",
            "meadow_map.py: return where, target.to(device)",
            "meadow_map.py: where, present = on_device(*batch)",
            "meadow_map.py: loader = DataLoader(",
            "meadow_map.py: for step, batch in enumerate(endless(loader)):",
            "meadow_map.py: yield from loader",
        ),
    ),
    Thread(
        id="O02",
        source="karpathy/nanoGPT#428, #708 (memmap opened anew for each batch: overhead negligible; merged)",
        script="unseen24/folk_songs.py",
        machine="G",
        verdicts=(COMPUTE,),
        not_verdicts=(INPUT,),
        not_fixes=("FX107", "FX101", "FX111", "FX112", "FX103", "FX104", "FX504", "FX508", "FX514", "FX520"),
        shorter={"STEPS": "170"},
    ),
    Thread(
        id="O03",
        source="PrimeIntellect-ai/prime-rl#3552 (merged), vllm-project/vllm-omni#1694 (pinned anew: -19 %)",
        script="unseen24/drama_lines.py",
        machine="G",
        verdicts=(TRANSFER, SYNC, HOST, ALLOCATOR),
        # cure: pinned memory made once, and copies into it without waiting for each.
        fixes=("FX103", "FX503", "FX104", "FX207", "FX341", "FX205", "FX508"),
        shorter={"STEPS": "55"},
        at=(
            'drama_lines.py: tensor = tensor.to("cpu", copy=True)',
            "drama_lines.py: return tensor.pin_memory() if PIN",
            "drama_lines.py: state[key] = self.to_host(state[key]",
            "drama_lines.py: self.put_away()",
            "drama_lines.py: optimizer.step() @2",
        ),
    ),
    Thread(
        id="O04",
        source="allenai/olmoearth_pretrain#542 (patches told apart sample by sample, item(), eye; merged)",
        script="unseen24/bay_patches.py",
        machine="G",
        verdicts=(LAUNCH, SYNC, HOST),
        # cure: all samples at once, what is not hidden masked.
        fixes=("FX510", "FX502", "FX339", "FX501", "FX521", "FX337"),
        shorter={"STEPS": "120"},
        at=(
            "bay_patches.py: for k in range(len(guess)):",
            "bay_patches.py: count = int(hide[k].sum().item())",
            "bay_patches.py: mine, theirs = guess[k][hide[k]], goal[k][hide[k]]",
            "bay_patches.py: theirs.T / heat",
            "bay_patches.py: theirs.T > 0.999",
            "bay_patches.py: alike &= ~torch.eye(count,",
            "bay_patches.py: scores = scores.masked_fill(alike, -1e4)",
            "bay_patches.py: total = total + F.cross_entropy(scores",
            "bay_patches.py: loss = tell_apart(guess, goal, hide)",
            "bay_patches.py: loss.backward()",
        ),
    ),
    Thread(
        id="O05",
        source="mlverse/torch#461, pytorch/pytorch#3752, #24155 (LSTM weights compacted at each call)",
        script="unseen24/photo_captions.py",
        machine="G",
        verdicts=(COMPUTE, LAUNCH, HOST),
        # cure: leave the weights in their one buffer (copy into them, or flatten_parameters() afterwards).
        fixes=("FX326",),
        no_entry=True,
        shorter={"STEPS": "240"},
        at=(
            "photo_captions.py: query, state = self.memory(",
            "photo_captions.py: p.data = saved[name].clone()",
            "photo_captions.py: start_from(model, saved) @2",
            "photo_captions.py: self.memory = nn.LSTM(",
            "photo_captions.py: for t in range(caption.shape[1]):",
            "photo_captions.py: scores = model(regions[rows]",
        ),
    ),
    Thread(
        id="O06",
        source="speechbrain#2410, sanchit-gandhi/seq2seq-speech#90 (resampler: 100x, 12x; merged)",
        script="unseen24/marsh_calls.py",
        machine="G",
        verdicts=(INPUT,),
        # cure: the weights of the 320 phases once, and a strided convolution, not weights for every sample.
        fixes=("FX107", "FX326", "FX524", "FX504", "FX110"),
        shorter={"STEPS": "130"},
        at=(
            "marsh_calls.py: weights = kernel(near - at[:, None])",
            "marsh_calls.py: near = np.floor(at)",
            "marsh_calls.py: (padded[near + REACH] * weights)",
            "marsh_calls.py: at = np.arange(count) * OLD / NEW",
            "marsh_calls.py: return CUT * np.sinc(",
            "marsh_calls.py: window = np.cos(",
            "marsh_calls.py: return to_16k(self.sounds[item]",
            "marsh_calls.py: loader = DataLoader(",
            "marsh_calls.py: for step, (sounds, birds) in enumerate(",
            "marsh_calls.py: yield from loader",
        ),
    ),
    Thread(
        id="O07",
        source="pytorch/pytorch#188150 (CUDA graphs for each padded length: 22 to 25 s)",
        script="unseen24/letter_replies.py",
        machine="G",
        verdicts=(HOST, LAUNCH, SYNC, ALLOCATOR, COMPUTE),
        # cure: few lengths (padded to a multiple of 128), so that the graphs recorded are used again.
        fixes=("FX408", "FX413", "FX202", "FX329", "FX410"),
        priced=False,
        shorter={"STEPS": "130"},
        at=(
            "letter_replies.py: longest = max(len(row) for row in rows) - 1",
            "letter_replies.py: tokens = torch.full((len(rows), longest + 1)",
            "letter_replies.py: batches = [pad_letters(rows)",
            "letter_replies.py: scores = quick(tokens[:, :-1])",
            "letter_replies.py: quick = torch.compile(model",
            "letter_replies.py: loss.backward()",
        ),
    ),
    Thread(
        id="O08",
        source="ldeecke/gmm-torch#19, danieltan07/dagmm#4 (log det by eigenvalues; Cholesky: 20x; merged)",
        script="unseen24/ship_engines.py",
        machine="G",
        verdicts=(SYNC, HOST, COMPUTE, LAUNCH),
        # cure: the log of the determinant from the Cholesky factors, of all matrices at once.
        fixes=("FX510",),
        no_entry=True,
        shorter={"STEPS": "100"},
        at=(
            "ship_engines.py: values = torch.linalg.eigvals(spread[k])",
            "ship_engines.py: logs.append(values.log().sum().real)",
            "ship_engines.py: for k in range(len(spread)):",
            "ship_engines.py: self.log_det(spread) + z.shape[1]",
            "ship_engines.py: energy = self.mixture(z, self.kind(z)",
            "ship_engines.py: again, energy = model(gauges)",
        ),
    ),
)
