"""Why the tool missed a thread, in words; shown only while it is missed.

In: nothing. Out: `EXPLAINED`, by thread.
"""

from __future__ import annotations

EXPLAINED: dict[str, str] = {
    "T01": (
        "Workers that start take the two cores from the training as well; that is not in the price. "
        "In an earlier run the cure brought 34.8 to 31.0 ms, and 32.1 were predicted."
    ),
    "T19": (
        "At best: all padding for gone, 28.7 of 82.0 ms; sequences of like lengths still hold some, "
        "35.5 of 73.6."
    ),
    "T21": (
        "FX105 and FX223 take parts of the same start of an epoch; the cure, both, leaves 36.7 of 104.3 ms; "
        "FX223 alone is promised 39.6 of 91.3."
    ),
    "T53": (
        "At best: all communication overlapped, 13.9 of 25.7 ms; the threads that send take the cores from "
        "the computation, as in T51."
    ),
    "T03": (
        "Workers that start also take the cores from the evaluation, whose time counts as its own; "
        "and the cure was measured beside other programs than the diagnosis."
    ),
    "T09": (
        "Third in this series, first in the one before: a call for each sample has its own price, 27.3 ms, "
        "and more workers and a fused optimizer promise more."
    ),
    "T11": "Beside other programs the share of the input differs from run to run.",
    "T15": "The cure leaves a part of the call that is dear.",
    "T17": "The cure leaves a part of the batch's cost; the prediction is for all of it ('at best').",
    "T25": (
        "The capture is older than the mend: the closure of Lightning's step counted as the "
        "optimizer. A new capture says host-bound, `self.log()`; in its own measurement the thread's "
        "cure gained nothing."
    ),
    "T31": (
        "The reads of values are scored; the loop around them, which the cure removes as well, is second: "
        "49.4 ms at best, 46.1 measured in the same proportion."
    ),
    "T35": (
        "Beside other processes the trace stretches small operators, whose work then outweighs their "
        "dispatch: compute-bound, with low confidence. The fix has its price from the whole update."
    ),
    "T51": (
        "What the reducer copies and the waiting for collectives are priced. The threads that send also take "
        "the cores from the computation: each rank has one. That is not priced."
    ),
    "T55": "As T51.",
    "G1": (
        "The handles that pile up are the smaller part in the first steps, which are sampled; that "
        "steps grow is told, and by how much, but not by what."
    ),
    "G3": (
        "The measured window ends at about step 35, where the growth has hardly begun; a later one "
        "(--warmup) sees more. `bottleneck watch` names the list that grows."
    ),
    "U01": (
        "Outside the loader, the processor time of a step is the same with the cure and without "
        "(measured in turns, 21 to 29 ms). The plain step took 72 ms, the diagnosed one 48: the gain "
        "holds what changed on the machine between single runs."
    ),
    "U04": (
        "The copies' own samples are priced; presumably what they push out of the caches slows the rest, too."
    ),
    "U06": (
        "'At best' is for the whole of the input; the cure gains more than its input takes: not looked into."
    ),
    "U08": ("One function of the metrics is named; the thread's cure rewrites the others as well."),
    "U09": "Not looked into.",
    "U10": (
        "Outside the loader, the processor time of a step is the same with the cure and without "
        "(measured in turns, 42 to 48 ms). The plain step took 65 ms, the diagnosed one 97, in single"
        " runs."
    ),
    "U11": (
        "The loader promised 250 steps, so all 66 steps of the script were timed before the trace; "
        "since then the first stretch ends after 3 s."
    ),
    "U14": (
        "What passes between the graphs is priced (3 % of the step). One graph saves more: it computes for "
        "15.5 ms where the pieces compute for 18.9, as less is written at their ends and read again; a trace "
        "of the pieces does not show that."
    ),
    "V02": (
        "Outside the loader, the processor time of a step is the same with the cure and without "
        "(measured in turns, 18 to 24 ms). The plain step took 134 ms, the diagnosed one 117 and 244,"
        " in single runs; the promise is an upper bound."
    ),
    "V03": (
        "A loop over boxes is taken for one over time steps (each pass needs the one before: FX513, "
        "not FX510), and stands at the line of the model, not of the loop inside it."
    ),
    "V04": (
        "A rollout of the policy without gradients, before every four updates, counted as an "
        "evaluation. Mended since, in its own way: forward passes without gradients in training mode, "
        "and FX515, which this table does not know."
    ),
    "V06": (
        "The samples of the steps that hold a checkpoint were left out, as in V11. Mended since: a "
        "new run says FX504, `writer.on_epoch_end()` at its line, 17.3 of 31.3 ms."
    ),
    "V08": "'At best' is for the whole of the input; the cure still pads and collates.",
    "V09": (
        "The function that draws a mask is priced as a whole (98 % of production). Outside the "
        "loader, the processor time of a step is the same with the cure and without (measured in "
        "turns, 83 to 95 ms); the plain step took 180 ms, the diagnosed one 143, in single runs."
    ),
    "V10": (
        "Priced is decompression alone, of 15 ms of 79; the cure was measured to gain 20 of 65. "
        "Outside the loader, the processor time of a step is the same with the cure and without "
        "(measured in turns, 87 to 97 ms): the rest of that gain is the machine's."
    ),
    "V11": (
        "The long steps, which the collector makes long, were left out of the samples. Mended since: "
        "read anew, the same run says FX505, `gc.collect()` at its line, 5.1 ms."
    ),
    "V15": (
        "Collectives of single values cost more in dispatch than in waiting, so the class is that of "
        "the loop around them; collectives that the script calls itself are not told from those of "
        "DDP."
    ),
    "V16": (
        "That the recompile limit was reached is found, at its line, and FX407 is suggested, but "
        "late: what compiled code would fuse has no price on the CPU."
    ),
    "V19": (
        "The replay took the host for as slow as under the profiler, since a ratio of its times that holds "
        "waiting for the device said so. Mended since: read anew, 39.7 ms are promised, 36.5 measured."
    ),
    "V20": "An upper bound ('at best'): 17.9 ms promised, 24.7 measured.",
    "V21": (
        "The loop over experts stands first with all of its dispatch ('at best'). Mended since: reading the "
        "loss less often is not proposed where most waits are for sizes, so FX502 is second, 16 % off."
    ),
    "V23": (
        "The work was named without its call; mended since: read anew, the same run says "
        "`self.rng.normal()`. The price is right in ms (10.5, measured 10.8); the diagnosed step was "
        "longer (58 and 49 ms)."
    ),
    "V25": (
        "No finding asks how many groups of parameters an optimizer has: a fused one is launched for each."
    ),
    "W01": "No entry for 16 bits on a CPU. Mended since (BN313, FX322).",
    "W02": (
        "That attention writes its scores was found, without a price or a line of its own. Mended since: "
        "FX306 is first, at the calls of nn.MultiheadAttention."
    ),
    "W03": (
        "Masks were not looked at. Since then they are found at their line (BN314) and tried off in the run "
        "(FX323); a trace cannot price them, so that bounds may stand before it."
    ),
    "W04": (
        "The process had a processor for 43 % of its working time, and what that adds outside the phases "
        "counted as host work. Mended since: launch-bound."
    ),
    "W06": "As W04. Mended since: launch-bound.",
    "W07": (
        "Not looked into. Presumably the tracker, which walks all objects of the process, finds more of them "
        "under the tool."
    ),
    "W09": (
        "A step with a profiler of the script's own cannot be traced. Since then the line and FX518 are "
        "given; there is still no verdict, and no trial, as this one records across the update."
    ),
    "W10": (
        "Autocast on a CPU had no entry; half of the step is dispatch with and without it, so launch-bound "
        "is not wrong. Since then FX322 is suggested, where products are slower in bfloat16."
    ),
    "X02": (
        "The update as a whole counted as element-wise work that a foreach optimizer spares. Mended since: "
        "decompositions are work of their own, FX312 promises nothing, and the line of `eigh` is the first "
        "cause's. No entry says to do it every N steps."
    ),
    "X04": (
        "FX107 takes away the longest line only; 'Whose code' says 45.3 ms without `apply(self.data)`, which "
        "is what was measured."
    ),
    "X06": (
        "Work fills 54 % of the step, and the targets 32 %: just less than the third from which host work "
        "that no known fix takes away leads beside that. Fix and line are right; the class' limit is named."
    ),
    "X08": "An upper bound ('at best'): 13.6 ms promised, 21.8 measured.",
    "X09": (
        "No entry at the time. Mended since (BN316, FX326): the same script again, 19.4 of 30.7 ms predicted "
        "(1.58 times), 1.68 (1.50 to 1.88) tried, at quadruped_ppo.py:32."
    ),
    "X10": (
        "Page faults were told at the call of the model. Mended since: at the line of the loss below which "
        "most of them are. No entry says which operations to write otherwise."
    ),
    "X11": (
        "Two causes of like size, both in the headline: the better known price leads. The loop and its line "
        "are the second suggestion."
    ),
    "T05": (
        "Verdict, line and fix are right. glibc's malloc maps blocks anew from a size on that grows with "
        "what has been freed. The names in the tool's modules let a table of Python's grow once more, from "
        "0.96 to 1.9 MB, and this script's arrays lie between: 24 ms a step by itself, 12 with the tool."
    ),
    "Y02": (
        "The copies to the host are named as what they are in this program, extra work in the step, with "
        "their call, line and price. Nearly as much is told of transfer (at most 5.9 ms) and of sync."
    ),
    "Y04": (
        "No entry, and nothing named the one kernel that took 48 % of the step. Mended since (BN317, FX327, "
        "lines that the device works for): first suggestion, at best 10.2 ms, tried 1.90 times faster."
    ),
    "Y06": (
        "The line is named, by what the device does for it: 31 ms, LinearWithCastBackward. That a gradient "
        "is computed inside a function of the script's own, and then dropped, nothing sees."
    ),
    "Y08": (
        "The line and the class are right. What no entry named was taken for a call to wrap; dynamo says of "
        "this one that it cannot be traced at all. Mended since: FX401."
    ),
    "Y09": (
        "Without the workers the training's own thread is faster than it was beside them, which the replay "
        "cannot know."
    ),
    "Y10": (
        "No entry at the time. Mended since (FX523): second suggestion, 5.4 of 9.6 ms promised, tried 1.71 "
        "times faster; 1.80 by hand."
    ),
    "Y12": (
        "A convolution on 16 streams: the replay let them overlap where no wait had been seen. Mended since: "
        "the trace tells the waits."
    ),
    "Z01": (
        "No entry. The line is named, with half of the step; that it is the vocabulary's odd size was not. "
        "Mended since (BN319, FX329): first suggestion, at best 55.8 ms of 94.4, 56.3 measured."
    ),
    "Z02": (
        "The loop with its backward is taken away whole, which is a bound and called one: one GRU over all "
        "frames takes time, too."
    ),
    "Z03": (
        "Turning determinism off was a note without a price. Mended since (BN318, FX328): second suggestion "
        "behind compiling, 92.5 of 104.9 ms, 91.3 of 104.5 measured."
    ),
    "Z04": (
        "Loops were looked for in forward, loss and behind the update, not inside the script's own "
        "optimizer, half of the step. Mended since: they are named with their price (BN503, FX510). Not run "
        "again."
    ),
    "Z05": (
        "No entry: that most rows of the logits are cut off behind the head, nothing sees. The lines of "
        "the head and of the loss are named."
    ),
    "Z07": (
        "The dense gradient is paid for in page faults, which are named as what they are; the cure is first. "
        "On this machine the faults cost more than the sparse gradient saves."
    ),
    "Z08": (
        "No entry: that a window is a product of two lines is mathematics. The line and its call are named."
    ),
    "Z09": (
        "No entry. Faults, products and dispatch have a like share each; all three are the packed LSTM's, "
        "whose line is named."
    ),
    "Z10": (
        "Only parameters that no optimizer has are looked at. Those of the generator have one, which clears "
        "their gradients unread."
    ),
    "A01": (
        "An operator that computes on the host counted as dispatch. Mended since (FX524): host-bound, its "
        "line, its fix first."
    ),
    "A02": (
        "No entry: that workers keep up and batches arrive late was not told; the call named is that of the "
        "production, which is not the limit. Mended since (BN108, FX116): 22.3 of 59.8 ms at best."
    ),
    "A03": "No entry: that a long filter is cheaper by Fourier transforms is mathematics. The line is named.",
    "A04": (
        "A bound, and too high a step for one: what recurrent layers dispatch was left out, as no compiler "
        "takes it over. Mended since: 35.5 ms at best. One operator for all of it computes faster, too."
    ),
    "A05": (
        "On a GPU it was not told that Python stands between forward and backward; a loop of NumPy was taken "
        "for one over time steps. Mended since: FX514 first."
    ),
    "A07": "As A05.",
    "A08": (
        "Copies of what the host has just made were priced as copies only. Mended since (FX524): 29.4 of "
        "70.1 ms predicted."
    ),
    "B02": (
        "What another thread takes of the interpreter lock and of the cores has no price. It was told only "
        "from 30 % of a processor on; since then with its figure: 38 % at line 26."
    ),
    "B03": "No entry named the cache of keys and values. Since then FX515 does, which was first already.",
    "B04": "No entry: sparse matrices in another layout. Line and call are named.",
    "B05": "A bound: without all of the production. What the cure leaves is not told apart.",
    "B06": "As B05: rows of lists cost half of the production, the bound takes all of it.",
    "B07": "A bound: without the metric. The cure computes it once instead of twice.",
    "B08": (
        "The head's price is right (67.7 ms), the advice is not: a frozen head behind layers that are "
        "trained is no model whose outputs can be kept. Since then it is not given there, and BN311 says "
        "that nothing which is trained reads those outputs; no fix is suggested for it."
    ),
    "B10": (
        "Work fills a little more than half of the step, and input is the largest cause beside it. Since "
        "then FX116, which was first already, says that 11.2 MiB are sent for 324 KiB."
    ),
    "C03": (
        "No entry: windows of queries and keys in chunks, as matrix products. Its line is named; FX414 was "
        "not tried to its end."
    ),
    "C04": (
        "Python in the forward had no fix, and its line was that of the model's call: the copies' label hid "
        "that it stands in the forward. Mended since: line 59, FX514 first, 26.8 ms at best. The rest of "
        "the price is the true step: 138 ms while it was watched, 103 alone."
    ),
    "C05": (
        "A bound that was too high for one: Python inside the loop and the floor of 5,860 kernels stayed. "
        "Mended since (the trace of this run was too large to be kept)."
    ),
    "C06": (
        "An error of the calibration: host and device each took 3 % longer than the timed steps, and the "
        "device alone was made faster, to half of its time. Mended since: compute-bound, its line first, "
        "60 % of the step. No entry for einsum as tiny products."
    ),
    "C07": (
        "Two stalled steps of 408 made the mean 5 % longer than the device's work; dispatch was blamed, and "
        "was then in the way of the step without the encoder. Mended since: 25.1 ms at best."
    ),
    "C11": (
        "Conversions around instance norms stay with channels_last_3d, and their kernels are no batch norms "
        "for NCHW. Mended since: 84.1 ms; and the trial, which refused weights of five dimensions, measures "
        "0.73x."
    ),
    "E01": (
        "All 37.7 ms of making batches are priced; the cure leaves the rest of the collation, and "
        "brought 26 of 57 ms in this pair."
    ),
    "E03": (
        "No entry: a subclass of Tensor whose __torch_function__ runs in Python. Its line is the first "
        "one of dispatching."
    ),
    "E04": (
        "Taking the metrics out is priced: 27.3 of 52.5 ms. The cure keeps one of seven, and this pair "
        "is noisy."
    ),
    "E05": (
        "No entry: an argmax over an axis that is not the innermost. `most_likely()` and its line are "
        "right; FX504 takes it out, where the cure makes it cheaper. Mended since (FX335): first, 3.04 "
        "times at best, tried 3.05 times (2.78 to 3.34)."
    ),
    "E06": (
        "No entry: products of integer matrices, which no BLAS computes. Their lines are named. Mended since "
        "(FX336): first, 2.58 times at best, tried 2.65 times (2.41 to 2.90)."
    ),
    "E07": "FX107 is third: FX112 and FX101 promise more for the same line.",
    "E08": "A bound: the Python between batch and update, of which the cure takes nearly all.",
    "E09": (
        "No entry: a distribution that factorises a diagonal matrix. To the tool a step is one update, "
        "to the script a round of them."
    ),
    "E11": (
        "The price is that of `image.filter()` and the like; the cure makes them cheaper, and this pair "
        "is noisy."
    ),
    "E12": (
        "Each slice's gradient is made at full size: the page faults that this costs are the first "
        "cause, and FX205 answers them. FX510 is there, fifth, as it has no price. Mended since (FX339): "
        "first, 2.62 times at best, tried 1.54 times (1.44 to 1.66), with the line; by hand 1.48 times."
    ),
    "G01": (
        "Eight updates follow each round of the environment, whose Python is 1.09 of 4.43 ms per update and "
        "has a price; that operators are at work for 59 % decides, and the fused optimizer promises as much."
    ),
    "G03": (
        "Reading by an index counted as handling rows wherever it stood, here in a search for neighbours: "
        "FX112 was promised what FX107 saves. Mended since: FX107 first, 31.9 of 43.1 ms."
    ),
    "G05": (
        "A thread that asks a full queue again and again was a note, without a price. Mended since (BN908, "
        "FX526): host-bound, its line, first, 61.9 of 77.8 ms; by hand 80.3 to 50.3."
    ),
    "G06": "Run beside other work. Alone: input-bound, missed nothing.",
    "G08": "No entry: a loss over the matrix of all pairs, where rows of one would do. Its line is named.",
    "G09": "The line and the call are first. Beside other work.",
    "G10": (
        "As G05; and what a thread used that had ended before the script was not known. Mended since: "
        "host-bound, its line, FX526 first, 31.8 of 39.5 ms; by hand 33.7 to 25.1."
    ),
    "G11": (
        "The loop over terms that are masked off is up to 13.4 ms of dispatch, second; page faults have a "
        "figure (7.9 ms), dispatch a bound. FX510 names the loop and stands second."
    ),
    "G12": (
        "All between the first and the last operator inside the user's own backward counted as recomputed, "
        "its gradients too, and there was no line. Mended since: line 84, 35.7 of 45.0 ms."
    ),
    "G13": "No entry: an iteration on a wide matrix that the small square one allows. Its line is named.",
    "H02": (
        "FX524 has the copy to the device gone with the conversion before it; its bytes are still to be "
        "copied. FX103, tried in the run, is first and brings more than the thread's cure: 2.35x."
    ),
    "H03": (
        "The line and the call are right; that copies to the host wait for the device is left in the price."
    ),
    "H04": (
        "A call before the forward had no price where no batch is fetched, and so no fix. Mended since: by "
        "the host's time, 24.5 of 114.9 ms when run again, of which its cure brought 24.7 of 101.6. CUDA "
        "graphs stand first, tried 2.25x."
    ),
    "H05": (
        "FX326 is third, 'at best' by all calls that repeat; in its trial the host scattered by 15 %. The "
        "time for trials ended before CUDA graphs, which stand first, unproven."
    ),
    "H06": "FX414 is predicted to do more (20.5 ms) than the thread's own cure (29.7 of 43.5).",
    "H08": "As H03.",
    "H09": (
        "No entry at that time: activations that save_on_cpu moves to the host. Mended since: FX341 first, "
        "31.1 of 44.6 ms, tried 1.46x in the run (1.56x by hand)."
    ),
    "H10": (
        "Code given up at the recompile limit had no price on a GPU. Mended since: compile-bound, FX409 "
        "first, 15.2 of 40.9 ms (12.1 measured)."
    ),
    "H11": (
        "Parts that are written in a loop had no price. Mended since: FX339 first, with its line, at best "
        "34.6 of 73.8 ms (28.5 measured)."
    ),
    "E13": (
        "FX101 is promised 6 % at best, where 5 % is allowed: the step makes its input for 7.5 of 116 ms."
    ),
    "D01": (
        "No entry: an embedding's max_norm normalises its rows anew at each lookup. Its line is the first "
        "cause's; FX506 was tried and is a gain, of another kind."
    ),
    "D02": (
        "No entry: environments that are cheaper than the pipes to them. `pipe.recv()`, its line and its "
        "price are right (12.4 ms at best, 14.0 by hand); FX514 is no advice for it."
    ),
    "D03": (
        "Found at its line. Samples see 8.8 of the 14.7 ms that making the texts takes: the rest is in calls "
        "of NumPy's from other lines of the same function."
    ),
    "D04": (
        "Diagnosed beside other work: 119 ms where 76 were timed. Alone it is called compute-bound: the step "
        "waits for 3 ms, but the worker that decompresses takes the training's second core. Since then "
        "FX107 is priced by that, too, and first: 40.6 of 78.3 ms at best; the verdict is not."
    ),
    "D05": "No entry: a quantile sorts all of its values. The operator's line is named.",
    "D06": (
        "FX510 is there, third, as it has no price. Before it stood an optimiser that a trial could not "
        "decide about and `loss = ...` as extra work: the first four beginnings of a backward were all the "
        "Jacobian's, so that the loss seemed to stand behind the backward. The latter is mended since."
    ),
    "D09": (
        "No entry: nothing read the variable. Since then BN506 and FX525: second, 49.1 ms at best, with the "
        "line that sets it when it is run anew."
    ),
    "D10": (
        "No entry: a small policy trained on the CPU. To the tool a step is one update, to the script all "
        "sixteen of them, so that the price compares shares."
    ),
    "D11": (
        "FX524 is third, 19.5 ms predicted; before it two that were tried and gain as much (pinned memory "
        "2.43x: the trial pins the bytes before they are converted)."
    ),
    "J01": (
        "All of the wait for input is told as the gain, 37.3 of 81.3 ms. The two plain runs differ by more, "
        "88.5 and 43.9 ms (74.4 and 41.0 by the script's author)."
    ),
    "J02": (
        "Work filled 60 % of the step, and the one call that helps takes 26 %. Mended since: a bound of what "
        "the script does itself counts for the class by its weight; input-bound now."
    ),
    "J05": (
        "No count of threads in processes that the script starts by itself. The class is mended since (as "
        "J02: input-bound, the wait for these processes). Run again with waiting threads asleep, as this "
        "benchmark sets it, the cure gains nothing (74 and 81 ms, cured 77 and 86); without that, 132 ms."
    ),
    "J06": "The cure still joins the matrices: FX101 and FX107 take all of that for gone.",
    "J08": (
        "No entry at that time: one backward per loss through a shared body. Mended since: FX342 first, with "
        "its line, 27.6 of 54.3 ms at best (39.2 to 18.3 by hand)."
    ),
    "J09": "No entry: all pairs side by side where a sum of two would do. The line is named.",
    "J10": "No entry: SparseAdam for gradients that are sparse in name only. Its price is in page faults.",
    "J12": "No entry: the order in which one einsum contracts three operands. The line is named.",
    "J13": "FX414 is listed behind FX205: what an own Function computes again in its backward is not priced.",
    "J14": (
        "Page faults cost 26 % of the step, and three fixes bound by that are listed; nobody had tried them "
        "there. The thread's own buffer brings nothing."
    ),
    "K01": (
        "The line, the call and 20.4 ms without it were told (21.5 measured); scored is FX524, second, which "
        "is a bound of the search alone. Since: input-bound, FX107, 20.4 ms."
    ),
    "K02": (
        "The values read one by one are told third, 48.1 of 60.7 ms: the replay leaves the host's time for "
        "them. Precision was promised more, and brings more than the thread's cure (34.9 ms predicted)."
    ),
    "K04": "CUDA graphs first, 18.8 ms. Scored is FX510, 37.6 ms at best: it counts the lookups alone.",
    "K05": "No entry: products in the order in which the large one comes last. The line is named.",
    "K11": "The two plain runs take 259 and 81 ms, the diagnosed step 233: what else the host does is left.",
    "K13": "No entry: windows of the same data cut anew in each step; 15 % of it. TF32 and bf16 are told.",
    "K14": (
        "The call and its price were told (11.8 ms, 10.7 measured), as work to take out of the step: FX504, "
        "which the table does not accept. Since: the step makes its own input; FX107, 11.7 ms."
    ),
    "K15": (
        "Only modules were compared, and the second time it is a plain linear function. Since: products "
        "inside modules, too; on a CPU FX326 first with its line, 1.16x predicted, tried 1.11x."
    ),
    "K16": "FX101 and FX107 take all production for gone; the cure leaves a third of it.",
    "L02": (
        "36.2 ms were predicted and 35.9 measured; scored by shares: the diagnosed step took 67.4 ms, "
        "not 53.0."
    ),
    "L03": (
        "25.4 ms were predicted and 26.6 measured; scored by shares: the diagnosed step took 51.2 ms, "
        "not 63.5."
    ),
    "L04": (
        "The loop is priced without its launches, 27.1 of 72.5 ms at best; one call for all leaves "
        "19.4 of 62.5."
    ),
    "L05": (
        "The price is that of batches made ahead of time, which the table accepts: 42.8 ms of NumPy "
        "in each step. The thread's own cure, to read the losses less often, brings 13 %."
    ),
    "L06": ("No entry: weights of a frozen model that autocast casts in each call. They cost 10 % here."),
    "L11": (
        "The loop over rows is priced without its launches, 45.1 of 124.5 ms at best; measured 33.9 of 118.8."
    ),
    "L13": (
        "Compiling was promised 26.6 of 49.8 ms; the thread's cure, one operator for the loss, leaves 36.9."
    ),
    "L14": (
        "Predicted 18.6 of 59.5 ms without the call; its work on the device is 14.0 of 61.0: the "
        "batch is not brought to the host either."
    ),
    "L15": ("32.0 ms at best were predicted, 21.3 measured; the diagnosed step took 107 to 230 ms (95 %)."),
    "L16": (
        "Attention that writes its scores is told second, for 4.3 %: most of this one is the sampling "
        "of keys and its products, which the full attention has none of."
    ),
    "M02": (
        "98.5 ms were predicted without `image.convert()`, which decodes; draft() makes the decoding of a "
        "large picture four times as fast and the shrinking as well: 37.3."
    ),
    "M03": (
        "No entry at that time; the line was named. Since: FX344 first, at best 38.1 ms (38.3 measured), by "
        "the warps that the trace tells of each kernel."
    ),
    "M05": (
        "`self.model.train()` counted as making the step's input, and had no fix. Since: extra work, with "
        "its line and price (on a CPU; the trace of this run was not kept)."
    ),
    "M06": "The loop is priced without its launches: 36.2 of 98.1 ms at best; 28.8 of 105.9 measured.",
    "M07": (
        "Compiling was promised 26.1 of 51.4 ms, which the table accepts; the thread's own cure leaves 40.0."
    ),
    "P01": "No entry: pools of 5, 9 and 13 where one of 5 thrice does. The line is named.",
    "P05": (
        "FX340 (a dot product is no matrix) is first, at best 104.4 of 144.4 ms, with its line; "
        "measured were 114.8 of 153.1. The table accepts FX510 only."
    ),
    "P09": (
        "No entry: the order of two products. Page faults of the large temporary are priced, 43 ms; the cure "
        "makes it smaller."
    ),
    "R01": (
        "Compiling was promised 38.3 of 100.5 ms, which the table accepts; the thread's own cure leaves 52.7."
    ),
    "R02": (
        "Only modules and products were compared with what they had computed before. Since: all functions, "
        "by the numbers of their values. BN316: 9.5 of 24.6 ms (12.0 measured)."
    ),
    "R04": (
        "Fewer bytes: all of the copies are taken for gone; the cure copies one batch for three. Pinned "
        "memory is first, tried 2.11x."
    ),
    "R06": (
        "Samples of the first batch, which fills the buffer, counted for all. Since: 21.9 of 152.4 ms, as "
        "measured."
    ),
    "R07": ("34.2 ms were predicted and 31.5 measured. By shares: the diagnosed step took 148.7, not 189.4."),
    "R09": (
        "A loop's share was that of samples of the warm-up. Since, by what its lines ask for: 40.6 of 169.0 "
        "at best. One grouped product needs less of the device, too."
    ),
    "S01": "All that makes classes of colours is taken for gone; 26.3 of 75.1 ms by the script's author.",
    "S03": "No entry: fft where rfft does. Its line is named.",
    "S04": (
        "FX504 was kept off by a model that acts in every sixth step, though that is a third of the other "
        "host work. Since: FX504 first, `copy.deepcopy()`."
    ),
    "S05": "No entry: rows of a table by a product with one-hot rows. Its line is named.",
    "S06": (
        "Forces by autograd.grad, which no loss reads: that its result is dropped nothing sees. FX342 is "
        "told, as the backward goes through the same nodes again."
    ),
    "S07": (
        "FX510 is third, 68.7 of 81.1 ms (67.8 of 80.5 measured), behind the fused optimizer and compiling."
    ),
    "S08": "As R02. Since: FX326 first, with its line, 22.7 of 28.1 ms, tried 1.22x (29.9 of 40.0 by hand).",
    "I02": (
        "FX307 is a note. Since: FX345, which the set's author did not know, is first: 18.3 of 38.6 ms at "
        "best (17.0 measured), tried 2.09x."
    ),
    "I04": "11.7 of 51.9 ms at best; the diagnosed step was 20 % longer than the plain one. Tried 3.14x.",
    "I05": "The tree of sums that takes its place has 4 ms of work: at best is too low by them.",
    "I06": "CUDA graphs are first, tried 3.07x; vmap, the thread's own way, spares work of the device, too.",
    "I08": (
        "A fused optimizer counts no version of its parameters, so the model was called frozen (FX110). "
        "Since: FX326 first, with its line, 16.1 of 21.5 ms at best (16.4 measured)."
    ),
    "I09": (
        "No entry but FX510, without a price. Since: FX528, with its line, is first: 68.8 of 154.3 ms (58.4 "
        "of 141.2 measured)."
    ),
    "Q02": (
        "FX504 says to take `memory.add()` out of the step; its line is the one that rolls the whole memory. "
        "Since: FX346 is second, 24.1 of 46.6 ms at best (41.5 of 73.7 by its author)."
    ),
    "Q03": "FX107 is third, behind workers on two cores and the fused optimizer, which gains 25 % there.",
    "Q04": "The loop over members has no price on a CPU where its operators work rather than are dispatched.",
    "Q05": "The pair was taken beside other work: 78.3 and 32.1 ms; the author measured 67.6 and 34.8.",
    "Q07": "No chain of operators is priced on a CPU; compiling is, by its dispatch: 94.7 of 100.8 ms.",
    "Q08": (
        "The environments' own Python is 17.8 of 27.6 ms of each fourth step; told are the forward passes in "
        "it, and FX515 promises all of it at best."
    ),
    "Q09": (
        "The line that joins the record anew was in no finding. Since: FX346, with its line, sixth: they "
        "take 0.8 of 16.3 ms; without them the step is 8 ms shorter, as less memory is asked for and moved."
    ),
    "O01": (
        "Of the copies' wait the pinned part is priced; the thread's cure makes the target on the device, "
        "and copies no byte of it."
    ),
    "O03": (
        "The call is the optimizer's own step, which cannot leave the step: FX504 does not fit there. "
        "Its line that copies is named, and the price is right. Since: FX504 for `self.put_away()`."
    ),
    "O04": "At best: as R09, the loop's price is too low; the kernels of one operator are fewer as well.",
    "O05": (
        "No entry: weights of an LSTM that do not lie in one buffer are copied together in each call. Its "
        "line is named."
    ),
    "O06": "The diagnosed step took 124.3 ms, the plain one 142.1; what is left is right: 16.9 (16.6).",
    "O07": (
        "Launches into a CUDA graph that was being recorded counted as lost kernels. Since: a verdict, and "
        "its cause: cuDNN's attention plans 110 ms for each new length. FX347: 45.3 of 88.8 ms; without it "
        "59.8 of 103.8 were measured."
    ),
    "O08": "The loop over matrices is priced; the cure needs no eigenvalues, and less of the device.",
    "AA01": "At best, and more: compiled, the small operations stay kernels of their own; the cure has one.",
    "AA02": "No entry: a matrix exponential that has a closed form. Its line is named.",
    "AA03": (
        "Device work of a function that stands behind the update is told as extra work, host-bound. Its call "
        "is FX344, 13.1 of 26.9 ms."
    ),
    "AA04": (
        "The line had no price in the model's forward. Since: FX529, second, 41.1 of 57.6 ms at best (38.7 "
        "of 52.5 were measured)."
    ),
    "AA05": "At best: the cure makes production cheaper by a third, and less of it than the step waits for.",
    "AA06": (
        "inspect.stack() took ten times as long under the tool, as it looked for the module of the tool's "
        "first file: the diagnosed step took 200.4 ms, the plain one 83.6. Since mended."
    ),
    "BB01": (
        "No entry: 1.4 % of the weights are denormal. Since: BN324 and FX348, which a trial flushes; what a "
        "product with such numbers takes is measured."
    ),
    "BB02": "At best: all that the loop over the nodes dispatches; the cure joins eight products to two.",
    "BB03": "At best: the step without its input; rows that lie together take a third of the time.",
    "BB04": (
        "The diagnosed step took 5.6 ms, the plain one 4.7; making the batch at once takes time, and what "
        "stands in `optimizer.step()` stays."
    ),
    "BB05": (
        "`speller.loss()` is trained on: it cannot leave the step. Since: lines that the backward follows "
        "are the loss, and FX530 names `noted()`, which calls no operator."
    ),
    "BB06": "No entry: cummax, line by line faster by torch.maximum. Its line is named.",
    "BB09": (
        "FX510 is third, without a price: sum() over a list of tensors is one line and no loop of the "
        "user's. The cure brings 11 % here."
    ),
    "CC02": ("No entry: cuDNN switched off. Since: BN325 and FX349, 23.6 ms at best (24.2 measured)."),
    "CC03": (
        "The same eigenvectors in each step are seen (FX326, priced at 4.7 ms of 48.3), but the gates' loop "
        "dispatches more. The cure spares the product with them, too."
    ),
    "CC05": (
        "Not named: another driver of the decomposition (gesvda) does all matrices at once. Its line is "
        "named, with 17.3 ms."
    ),
    "CC07": (
        "No entry: PYTORCH_NO_CUDA_MEMORY_CACHING was taken for empty_cache() in the loop. Since: FX225, and "
        "the line that sets it; 93.4 of 211.3 ms (99.1 of 199.3 measured)."
    ),
    "CC08": "At best: the loop's kernels of the backward stay in the replay.",
    "DD01": (
        "No entry: a default device has each call look at it. Since: BN508 and FX531, 5.4 of 7.5 ms, tried "
        "1.68x. The class is where these calls stand: each step makes its own input with them."
    ),
    "DD02": "At best and more: production is priced without that line; the list has to be made.",
    "DD03": (
        "Loops were not looked for in steps without a module. Since: FX510, 6.3 of 10.0 ms at best (9.6 of "
        "15.8 measured); compiling stands before it, at best, too."
    ),
    "DD07": "No entry: lgamma of counts that are nearly all zero. Its line is named.",
    "DD08": "No entry: a product and a sum in place of a matrix product. Its line is named.",
    "DD09": "No entry: an inverse and a product in place of a solve. Its line is named.",
    "EE01": (
        "Not named: the mask hides all but one window, which the call computes in full. Since: FX365, tried "
        "with the call's own arguments, 29.6 of 39.2 ms (26.6 of 39.2 measured)."
    ),
    "EE02": "At best: the regions' whole production, which workers share; the cure leaves a part of it.",
    "EE03": (
        "The loop behind it was named, which goes over their result and carries a state (FX513). Since: "
        "FX510, 11.7 of 40.0 ms at best."
    ),
    "EE04": "At best: the cure leaves the sampling of the grid.",
    "EE05": (
        "Not named: a product with rows into which a few numbers were scattered. Since: FX353, second, "
        "18.7 of 25.8 ms (18.2 of 26.0 measured); bf16 before it, tried 1.84 times."
    ),
    "EE06": "No entry: comparisons with all edges in place of a search. Its line is named.",
    "EE07": (
        "FX510 third, FX306 at the price of its softmax. Since: FX510 first, 74.0 of 178.5 ms at best; all "
        "heads in one call also spare the copies of slices."
    ),
    "EE08": "Its gain is said right, 54.0 of 56.1 ms (53.8 measured); nothing else brings as much.",
    "FF01": (
        "Not named: a weight made as a Kronecker product. Since: FX352, 33.5 of 60.7 ms (25.4 of 44.0 "
        "measured)."
    ),
    "FF02": (
        "The draws by QR are work of the forward, which makes new numbers in each step: nothing tells that "
        "old ones would do. Their line is named."
    ),
    "FF05": (
        "Not named: a cube of ones. Since: FX359, one axis after the other, 96.8 of 143.6 ms, tried 1.99 "
        "times; "
        "running sums, the cure, spare more (81.1 of 161.4)."
    ),
    "FF06": "At best: the loop's dispatching, all of it; the cure leaves the loop.",
    "FF07": (
        "No entry: frames by F.unfold. Since: FX367 for the call itself; here the views are copied behind "
        "it, "
        "too, and nothing shows."
    ),
    "FF08": "At best: one operator for the whole chain; pairs of links leave eight rounds.",
    "FF09": (
        "The draws stand where the step makes its own input, which is its class here; multinomial with "
        "replacement is known as FX338 for one sample of each row only."
    ),
    "GG02": (
        "The loop was left out, as its operators mostly compute: that small ones compute badly was not "
        "asked. Since: FX375 first, with what the whole sequence takes, tried with the calls' own arguments: "
        "54.5 of 75.8 ms (31.7 of 54.5 measured for the LSTM alone), and FX374 for the attention's calls."
    ),
    "GG03": (
        "No entry: the transform of three taps, filled up with zeros. Its line is named; page faults cost "
        "more here than one class of operators, and malloc's threshold spares them (1.36 times, tried)."
    ),
    "GG04": (
        "No entry: what a copy could share. The call, `copy.deepcopy()`, and its line are named; the moves "
        "are still to be made, so that not all of their time is spared."
    ),
    "GG05": "The draws beside the call are named; the array is made in a sampler's generator.",
    "GG06": (
        "No entry: a running sum in place of a mean of all values. The call, `np.mean()`, and its line are "
        "named; its price grows with the run."
    ),
    "GG08": "At best: all of the evaluation, which the cure leaves.",
    "GG09": "The first pass of the model goes on without gradients in the cure, and draws one by one stay.",
    "GG10": (
        "Fifth: what is computed again is promised 13 % of the step, and tried here without a difference "
        "from noise. Page faults are suggested first."
    ),
    "HH01": (
        "Rows without a part in the loss were sought in the last layer only. Since: FX330 second, behind "
        "compiling, 40.8 of 50.3 ms (44.6 of 49.8 measured: picking rows and adding them back takes a part)."
    ),
    "HH02": (
        "Third, behind TF32 (9.9 ms, tried 5.0 times faster) and bf16, which gain more. The products that "
        "centre had no entry. Since: FX376 and FX368, 14.5 and 10.0 ms of 47.5, which leaves 23.0 (22.2 "
        "measured)."
    ),
    "HH03": "At best: the loop without what each of its 35 diagonals still launches.",
    "HH04": (
        "FX369 knew bags of one length only. Since: first, 4.3 of 23.4 ms, tried with the calls' own "
        "arguments (6.8 measured)."
    ),
    "HH05": (
        "Each of 1,000 reads was priced by its wait, not by the operators that pick its value. Since: "
        "sync-bound, FX502 first, 34.7 of 49.6 ms (32.3 of 51.3 measured)."
    ),
    "HH06": (
        "Three causes stand in line: without its copies, the host waits at the next read. Since: sync-bound "
        "(low), at the line, FX521 for the constant of the same line first, 88.1 ms."
    ),
    "HH07": "No entry: shifts that cancel. The lines of the transforms are named.",
    "II01": (
        "That matmul writes repeated matrices out was not asked. Since: FX355 second, behind malloc's "
        "threshold: 50.1 of 61.9 ms (62.1 of 77.6 measured)."
    ),
    "II02": (
        "An einsum of two tensors was not tried another way. Since: FX351 first, 33.6 of 47.0 ms (42.1 of "
        "66.8 measured)."
    ),
    "II03": (
        "No entry: to compute all rows and mask the result. The lines of the spline are named, and those "
        "of its look-ups."
    ),
    "II04": (
        "What a Function's own backward calls was not looked at. Since: FX360 second, behind malloc's "
        "threshold, 24.8 of 27.4 ms: the sum in the backward, one of three changes of the cure."
    ),
    "II06": (
        "No entry: a running maximum over views. The function and its line are named, as work on the "
        "batch before the model: the step's own input, where the thread's truth says compute."
    ),
    "JJ01": (
        "What else the crop does with whole volumes is gone, too. The first suggestion was none: a copy is "
        "made to be changed. Since, copies are no calls that compute again, and FX107 is first."
    ),
    "JJ02": (
        "Leaving the average out was tried; how to make it in less time was a line of that entry's text. "
        "Since: FX532 for loops of extra work, second, 33.7 of 47.7 ms (37.9 of 52.2 measured)."
    ),
    "JJ03": "At best: the cure still appends to its lists, and joins them once an epoch.",
    "JJ04": (
        "As JJ02, and the price of the call held that of the input that the step makes itself. Since: FX532 "
        "second, 12.1 of 27.5 ms; the cure of both calls leaves 11.4 of 22.2."
    ),
    "JJ07": "The copies that the cure removes, by the name of transfers, which the table does not know.",
    "KK02": (
        "Second: FX532 (for all at once), 58.0 of 79.4 ms (62.0 of 86.1 measured), an entry of the same day, "
        "which the table does not name. The cure makes the average in place."
    ),
    "KK03": (
        "The table does not know the class graph-break-bound, which this is. The price is that of the seams; "
        "what a whole graph fuses, and one region of threads for many, comes on top."
    ),
    "KK05": "At best: without all that makes batches. The cure halves what it computes.",
    "KK07": (
        "Rounds of the inner loop were ruled out, since those of the outer one need each other. Since: "
        "launch-bound, FX374 first, 36.7 of 51.3 ms on an idle machine, where threads do not wait."
    ),
    "LL01": (
        "The step of the diagnosis was 213 ms, on a slower day of the same kind of machine; the plain run "
        "began with a queue of batches that were made."
    ),
    "LL03": (
        "Workers for a loader that has none bring more than the log does, and were measured to: 1.59x. What "
        "the log reads is third, 54.1 of 65.8 ms; without it, 70.5 of 80.1 were measured."
    ),
    "LL04": (
        "The average was third, by its line: FX532, 42.5 of 60.9 ms, near what was measured. Before it are "
        "the launches of the whole step, and the loop over streams in the forward, at best."
    ),
    "LL05": (
        "Not known: weights are cast anew in each call of a step, since autocast's cache is off. Since: "
        "FX377, 24.0 of 31.1 ms at best, second to CUDA graphs, which were tried: 1.27x."
        " Measured: 28.0 of 34.0 ms."
    ),
    "LL07": (
        "What grows by torch.cat was seen only where it needs no gradient. Since: BN323 and FX346, by the "
        "line, 95.2 of 131.7 ms at best, third behind two bounds for the whole loop."
    ),
    "MM01": (
        "At best: without all that makes batches, of which cutting texts is 60 %. The line had no name. "
        "Since: the function that takes most of it on whatever lines, `self.tokenize()`."
    ),
    "MM02": (
        "FX107 named the call and its line, at the price of the cure. Since: the fix for that call, FX518, "
        "in its place."
    ),
    "MM04": (
        "The cure also makes one tensor of what were scalars, which FX520 tells third. Collections, of the "
        "objects that go, take 7 ms of the step."
    ),
    "MM06": (
        "That Python calls a function for each line was unknown. Since: FX533, tried in the run, first: "
        "1.51x of 34.1 ms on an idle machine."
    ),
    "MM07": (
        "The call and its line were named, the fix was that of a model that acts often. Since: FX504, of "
        "that call, first. A step here is one of four updates between two rollouts."
    ),
    "NN02": (
        "The step that the tool saw was 57.3 ms, on a machine that varies: tried in the run, 2.59x. Both "
        "plain runs give 2.06x."
    ),
    "NN03": (
        "No mask tells the padding. Since: by rows of integers that end in one number, FX109 first, 23.2 of "
        "52.3 ms at best."
    ),
    "NN07": (
        "The price is that of the call alone. The cure makes it once for several patches, and spares the "
        "reading, too."
    ),
    "OO02": (
        "The reads alone were taken away, and all of their waits. The cure keeps one read of everything, and "
        "works in numpy for 6 ms."
    ),
    "OO03": (
        "The sampler was taken for a part of the collate, of which workers were to relieve the step. Since: "
        "FX107 by the sampler's line, first, 19.0 of 35.4 ms; workers are promised nothing."
    ),
    "OO04": (
        "No graph was captured, so that the breaks had no price, and hooks of the tool were compiled. Since: "
        "graph-break-bound, FX401 first, 17.2 of 25.5 ms; of the recording, which holds those hooks, too."
    ),
    "OO07": (
        "Gradients that the rounds ask for were none of the loop's. Since: FX510 first, 27.8 of 145.1 ms at "
        "best; larger products take even less."
    ),
    "PP01": (
        "In the diagnosis the sampler took 33 of 86 ms, in the plain run 39 of 76: the machine computed "
        "slower then."
    ),
    "PP02": (
        "The price is that of calls of the model alone; without all of the loop, second, it is 24.1 ms at "
        "best. The cure left 24.8 of 52.0."
    ),
    "PP03": (
        "Page faults cost twice as much there, at best. The table was fourth, by its line: FX326, 38.9 of "
        "44.9 ms; 37.1 would be the cure's."
    ),
    "PP04": (
        "The call was first, with `handle.remove()` and its price. That the handles are of hooks which are "
        "gone is for the reader to see."
    ),
    "PP06": (
        "Loops were looked for where no gradient is being made. Since: launch-bound, FX510 first by the "
        "loop's line, 32.5 of 47.4 ms at best; what small operators work is not taken away."
    ),
    "QQ01": (
        "A loop of small operators on the host, between two device calls, counted as dispatch. Since mended: "
        "input-bound, the line, FX107 first."
    ),
    "QQ04": (
        "The run saw steps of 198 ms, where the script alone took 149.6: two runs of a script that this host "
        "binds differ by a quarter."
    ),
    "QQ05": (
        "Streams of cuDNN's LSTM wait for one another: the replay lost these waits where the host ran ahead, "
        "and said so. Since mended; the trial was right."
    ),
    "OO06": (
        "Steps grow: in the measured window they take 14.4 ms, in the whole run 19.7. What hooks take in "
        "Python lies between operators and counts as dispatch; FX530 has its price: 9.2 ms, 9.1 measured."
    ),
    "RR02": (
        "Where the number of pictures changes, the trial checked each anew within its own time, and "
        "upsamplings were made another way, too, slower or not. Since: tried 1.42x, 1.44x measured."
    ),
    "RR05": "The cure keeps one table and one cut per sample, which take time: at best.",
    "RR07": (
        "At best: stored vectors must be looked up. When its author ran it, the cure left 59 % of the step; "
        "54 % were predicted."
    ),
    "RR08": (
        "The step does wait 2.1 of 24 ms for the hand-over of batches that are made; without workers it was "
        "1.10x as fast. The thread's cure has nothing to do with it, and gains nothing."
    ),
    "SS01": (
        "What picks by masks records nothing: the loop had only the part of its calls that records, and the "
        "waits had a price of their own. Since, these have lines, too: in a second run FX510 is first, at "
        "best 14.4 of 101.0 ms."
    ),
    "SS03": (
        "No entry for look-ups of the same rows again and again. FX520 had the whole wait in a fetch as its "
        "price, though the workers keep up: since mended, FX414 is first, in a second run, too."
    ),
    "SS04": (
        "The line was one that training runs through, too; since mended: line 180. At best: the evaluation "
        "for gone; the cure evaluates in larger batches."
    ),
    "SS06": (
        "The steps of this run took 187 ms, alone 145.7. A generator that goes through the loader for ever "
        "hid that the dataset does the work: workers had no price, and one was tried. Since mended: FX101 "
        "is first, 23.7 ms."
    ),
    "SS07": (
        "The cure saves 3.2 of 27.8 ms. What is named is larger: collecting takes 10.8 ms of each step. The "
        "lines of the cure record no gradient, so they had no part in the list; in a second run :96 and :98 "
        "have 4.8 of 25.7 ms, behind the critic's 5.9."
    ),
    "SS08": (
        "The waits are real, 8.7 ms a step here, half of which the cure takes away: 8.7 % against a limit of "
        "8, at low confidence. Two runs of the script alone differed by 15 %."
    ),
    "TT01": (
        "Of the step without all of the wait, 29.0 ms, 20.7 are left when workers have little to do: beside "
        "four that compute, its own operators take longer."
    ),
    "TT05": "8.6 of 44.7 ms were predicted, the cure left 6.8 of 44.5: most of the difference is copies.",
    "UU01": (
        "The cure saves 3.7 of 38.7 ms here. The loop of the masks is seen, 7.7 ms in the samples, but the "
        "mask has an embedding that is not trained: FX110 takes its module for a frozen model, but it draws."
    ),
    "UU02": (
        "The cure needs no calls at all: it reads the predictions that the step has. FX528 is priced as one "
        "call for all, which stays."
    ),
    "UU04": (
        "10.7 of 16.5 ms were promised, 9.0 were left: the price is of draws by the running sum, the cure "
        "is a permutation."
    ),
    "UU07": (
        "A loop over all edges for each graph, in Python, between operators of its function: it counted as "
        "their dispatch, and the time of its way back stood at the function's head. Both mended since: "
        "host-bound, the loop's line, FX530 first, 55.1 of 90.0 ms."
    ),
    "VV02": (
        "Of picking by masks only the waits had a price; the sums of its gradients were FX327's, which is "
        "for rows named twice. Since mended: in a second run FX502 is first, at best 29.1 of 45.1 ms."
    ),
    "VV03": (
        "At best 12.0 of 29.4 ms; the cure left 7.6 of 32.5. The steps of the two runs differed by a tenth, "
        "and without the draws on the host the rest, too, takes less."
    ),
    "VV04": (
        "The noted step had other numbers of words than the traced ones: its lines stood for none of them, "
        "and the backward of the loop was guessed. Since mended: FX510 by the line of the other loop, :63, "
        "at best 28.8 of 42.6 ms; the cure left 24.0."
    ),
    "VV05": (
        "FX330 is priced by rows of products; of the triplets nearly none counts. Since, the loss as a whole "
        "has a price: the step without `first_form()` is 14.5 of 24.0 ms; the cure left 17.2."
    ),
    "WW01": (
        "A small evaluation stands beside the callbacks of each epoch's end, and all of it was told as an "
        "evaluation. Since mended: `net.end_epoch()` 9.1 of 22.8 ms, and FX504 is second."
    ),
    "WW03": (
        "Other work of ours ran beside the diagnosis (106.9 ms a step, 67.5 alone). That the three runs of "
        "the solver could be one is not seen: their right sides differ."
    ),
    "WW04": (
        "Two backward passes for each update, and the next zero_grad clears all that the second one makes; "
        "where all of a pass is unread, it was left alone. Since mended: FX325 is first, by the closure's "
        "backward, 15.8 of 20.6 ms; the cure, without the second forward, too, left 14.5 of 22.2."
    ),
    "WW07": (
        "A third of the step goes to page faults of the temporaries that the cure does not make; it was 0.50 "
        "against a limit of 0.50 for compute-bound. Distances in several calls are no call with another way."
    ),
    "XX01": (
        "FX501, reading the loss later, was first where the model itself reads the values it works with. "
        "Since mended: FX502 is first. Only the waits have a price, not what is computed for each read."
    ),
    "XX03": (
        "The steps under the tool took 88 ms, alone 56; those of the other six agree within 3 %. Not "
        "explained yet: the model is called 96 times a step, and the hooks of that take 4 ms."
    ),
    "XX05": (
        "What the host computes in the forward stood in the price of `clip_grad_norm_()`. Since mended: "
        "`model()`, mostly `self.assign()`, and FX524 is first, 66.8 of 94.7 ms; the cure left 69.6."
    ),
    "XX06": (
        "Its copies lie on the device, and counted as copies from pageable memory that the host waits for. "
        "Since mended: compute-bound, by that line (without it 14.7 of 23.3 ms). The line's other way was "
        "found on a CPU and not here, where it takes the host longer; since mended, and not run again."
    ),
    "XX07": (
        "The mask's copy from pageable memory is the wait, at its line; transfer-bound was not among the "
        "classes that the author was given. FX524 was third, 22.2 of 29.3 ms; the cure left 19.9 of 28.4."
    ),
    "XX04": (
        "The reads, the loop in Python and the stores of single numbers are one detour over the host; only "
        "the waits had a price, and FX521 took the numbers for constants. Since mended: FX524 is first, "
        "at best 22.8 of 49.6 ms; the cure left 22.2 of 58.2."
    ),
    "YY01": (
        "Nothing looks for values that no one uses: the layers behind the one that is read, and their "
        "outputs. The frozen model has its line and its price."
    ),
    "YY02": (
        "The steps under the tool took 33 ms, alone 25: the machine varied. Without any of `load_wave()` is "
        "more than the cure saves, which still adds the noise."
    ),
    "YY03": (
        "Parameters whose `requires_grad` was switched in between counted as others, and the critic's "
        "backward as one through the generator. Since mended: FX326 is first, 19.8 of 32.4 ms, measured "
        "1.29x; the cure left 24.6 of 34.6."
    ),
    "YY04": "A bound, and it holds: the line is gone, and making one array of the list takes time, too.",
    "YY05": (
        "Page faults of temporaries, 18 % of the step, were as much as dispatch, and said with low "
        "confidence. The loop's price is without its dispatch; its operators on single rows stay in it."
    ),
    "YY07": "The price is without any decompression; the cure's cache holds a part of the rows.",
    "ZZ01": (
        "The cure is two: workers, and zeros made on the device. Scored by the workers alone, 45.2 ms; "
        "FX524 stands third, 52.5."
    ),
    "ZZ02": (
        "The loop is priced by its kernels and their dispatch: 10.4 of 39.4 ms at best, where the cure "
        "left 6.5 of 49.1. What autograd does for each node before its backward begins stays."
    ),
    "ZZ03": (
        "The look-ups are priced as the batch's; that the same tables are kept up to date behind the "
        "update is a suggestion of its own, 10.6 ms, and gone with the cure, too."
    ),
    "ZZ04": (
        "Its trial measured 5.15x, where scripts alone gave 4.17x: with the anomalies looked for, steps "
        "took 116 ms in the process and 98 alone."
    ),
    "ZZ05": (
        "Scored by FX502, of which only the waits have a price. FX510, the first, had 11.0 of 24.2 ms for "
        "one of two loops; the cure mends both and left 10.8 of 29.1."
    ),
    "ZZ06": (
        "Work in NumPy between a read and a copy back had the price of its Python and no entry of its own. "
        "Since mended: FX524 is first, at best 3.8 of 52.3 ms; operators on the device take time, too."
    ),
    "ZZ07": "Masks that come out the same were priced; the sorts that make them differ by step were not.",
    "AB02": "Timed steps took 29.0 ms under the tool and 24.9 alone: the share of one line differs by that.",
    "AB03": (
        "Making all pairs anew is no repetition for the tool, which sees other molecules in each step. The "
        "loop is first, as FX510: at best 20.5 of 41.0 ms, where the cure left 19.6 of 37.2."
    ),
    "AB04": (
        "256 calls of small layers are work that one call does faster, not dispatch alone: said to be "
        "compute. Since: launch-bound, with these calls in the headline. The sums and joins between stay."
    ),
    "AB05": "The loop's own dispatch is its price; operators on single rows stay, which the cure has not.",
    "AB06": (
        "All far longer steps were left out of the lines once passes without gradients were seen in some. "
        "Since mended: FX518 names the line, at best 12.0 of 19.9 ms; its cure left 14.3 of 19.6."
    ),
    "AC03": (
        "The step made its input, said at the deepest line that took half of it. Since mended: the line of "
        "the loop, and FX532 first, 20.9 of 57.5 ms at best; the cure left 19.8 of 56.1. The class stays."
    ),
    "AC04": (
        "The price is without any production; the cure takes the normalising alone to the device. Two lines "
        "share it, none of which is half of a batch."
    ),
    "AC05": (
        "22.8 of 174.0 ms at best, where the cure left 13.3 of 162.2: what autograd does for each node "
        "before and behind its backward stays in it, and operators of the loop on single chunks."
    ),
    "AC06": "What the loop makes on the device instead takes time, too: the price is a bound.",
    "AC07": (
        "FX532 is scored, a bound with all of the loop gone; the cure keeps its norms and drops its reads: "
        "FX502, 53.7 of 61.8 ms, and 58.0 of 67.3 measured."
    ),
    "AD01": (
        "The ranks take turns in having most work, which nothing priced yet: FX606 had no figure. With "
        "BN805: communication-bound, 127.5 of 164.3 ms, measured 131.9 of 156.8."
    ),
    "AD02": (
        "`full_tensor()` gathers, and counted as other host work, by its line. As communication (BN806) "
        "it has the class; the catalogue has no entry for keeping to shards."
    ),
    "AD03": (
        "Class, line and the price of the call are right; the catalogue has no entry for objects that "
        "could be one tensor."
    ),
    "AD04": (
        "Line: the evaluation stood at its forward, not at the maps that it draws. Price: without the "
        "whole evaluation; the cure keeps all of it but most maps."
    ),
    "AD05": (
        "8,200 page faults a step, of 2.6 us each on this machine, take as long as the broadcast. The "
        "fix was tried in the run: 1.59x."
    ),
    "AD06": "The price is without any production of what the line makes; the cure still decodes half of it.",
    "AD07": (
        "Half the bytes were promised all of the time in communication. They save half of it at best "
        "now: 31.8 of 33.5 ms."
    ),
    "AE01": (
        "Scored by cheaper production, 62.6 of 172.6 ms, which leaves the other columns. Workers, first,"
        " were tried in the run: 2.98x."
    ),
    "AE04": (
        "The tool's step is one of the environment's, of which sixteen make an iteration; the price is "
        "without any acting."
    ),
    "AE05": "The price is without the line; finding the labels in one sorted search takes time, too.",
    "N12": (
        "Compiled code was said to take the host 11.9 ms for the launches of 654 kernels; the cure's step is "
        "8 ms longer than that promised."
    ),
    "T33a": (
        "Synchronising costs a launch-bound step little: 1.12x. What stands first, CUDA graphs, was tried "
        "and measured at 1.74x."
    ),
    "T37": (
        "Constants made anew are the second largest cause, and their fix the first suggestion. The class is "
        "that of the dispatch of all operators, theirs included."
    ),
    "T43": "The price is the step without any search, with the algorithms found; without it others run.",
    "T49": "The line is of the operators in the model; the thread's is the call of forward and backward.",
    "AF01": (
        "What a hook of DDP's computes, in the backward or when a message has come, was taken for waiting: "
        "the step stands still for it like for a message. In a second series launch-bound. Compressing "
        "all gradients of a shape at once is not thought of."
    ),
    "AF02": (
        "No entry of the catalogue takes statistics over ranks out of a model. The first suggestion was "
        "about DDP's gradients; it is made only where something waits for these now."
    ),
    "AF03": (
        "The tool's steps took 110 ms and those of the script alone 89: the machine varied. The share is "
        "near: 30 % of the step for uneven ranks, and the cure leaves some of it (17 %)."
    ),
    "AF05": (
        "Reading whole files takes system time, of which half was taken for page faults of the training. "
        "Since, each sample of the stack knows the faults: input-bound, 28.7 of 38.9 ms."
    ),
    "AF06": (
        "Two threads wait for each other at these sizes: one thread alone, tried in the run, made the step "
        "2.39 times faster (53 of 134 ms, also alone), nearly as much as the thread's cure (2.64). "
        "That autograd.grad() is asked for gradients which nobody looks at is not seen."
    ),
    "AF07": (
        "The backward whose gradients are cleared unread was found, by the line of its closure, which is "
        "called for gradients that are read, too; the line is now that of the call. FX325 says to leave it "
        "out; the forward before it is not in its price, 30.9 of 36.6 ms at best."
    ),
    "AG02": (
        "FX524 is third. The first one, pinning what is copied, was tried at 1.34x, as much as the cure "
        "gained (1.34x)."
    ),
    "AG03": (
        "Replayed at best 46.6 ms, and the cure left 49.4; scored by the trial, which reaches only some of "
        "the casts: 1.31x."
    ),
    "AG06": (
        "The loop stands in a function with a backward of its own: all that it launches stood at the line "
        "of apply(), and the loop had no price. Since: sync-bound, and one operator for the loop is second, "
        "30.9 of 38.4 ms at best (the cure left 29.1 of 38.8)."
    ),
}
