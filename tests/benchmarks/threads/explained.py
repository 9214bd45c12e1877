"""Why the tool missed a thread, in words; shown only while it is missed.

In: nothing. Out: `EXPLAINED`, by thread.
"""

from __future__ import annotations

EXPLAINED: dict[str, str] = {
    "T01": (
        "Evaluation is one block of time: that most of it is the start of its own loader's worker is "
        "not seen."
    ),
    "T03": (
        "Evaluation is one block of time: that most of it is the start of its own loader's workers is "
        "not seen. Keeping the workers is priced from the time in `data` only; BN104 prices the same "
        "start six times as high."
    ),
    "T09": "The cure leaves some of the input's cost; the prediction is for all of it ('at best').",
    "T11": (
        "The input's share is below that of the operators: `compute-bound` stands first although no "
        "fix of it gains as much. FX112 is left out below FX101 where its bound is equal."
    ),
    "T15": "The cure leaves a part of the input's cost; the prediction is for all of it ('at best').",
    "T17": "The cure leaves a part of the batch's cost; the prediction is for all of it ('at best').",
    "T19": "Padding is known, but has no price, so its fix stands behind fixes of a few percent.",
    "T21": (
        "All of the capture lies in the first epoch. The start of its iterator is seen (seconds), but "
        "is only priced once a second iterator has started."
    ),
    "T25": (
        "Logging is two places, after the optimizer and in the module's own metrics; neither alone is "
        "more than the optimizer. Dispatch is what is left of a phase beside operator work; Python of "
        "the user's functions falls into it, and beside other processes all that waits for a "
        "processor."
    ),
    "T27": (
        "Work in hooks of backward counts as backward's dispatch. Dispatch is what is left of a phase "
        "beside operator work; Python of the user's functions falls into it, and beside other "
        "processes all that waits for a processor."
    ),
    "T29": (
        "A test pass in each step is taken for a frozen model (BN311), which has a time but no cost, "
        "so that the operators of the test pass count as the step's own."
    ),
    "T35": (
        "An optimizer of the user's own class is no case for FX311 or FX312, and its per-tensor loop "
        "is not priced: FX510 names the forward's loop instead."
    ),
    "G1": (
        "The measured window ends at about step 35, where the growth has hardly begun; a later one "
        "(--warmup) sees more. Nothing reports that a step grows. Dispatch is what is left of a phase "
        "beside operator work; Python of the user's functions falls into it, and beside other "
        "processes all that waits for a processor."
    ),
    "G3": (
        "The measured window ends at about step 35, where the growth has hardly begun; a later one "
        "(--warmup) sees more. Nothing reports that a step grows."
    ),
    "T51": "The line of the micro-step's backward is named; the context that does nothing is not.",
    "T53": "That no parameter was ever unused is known to DDP, not to the tool.",
}
