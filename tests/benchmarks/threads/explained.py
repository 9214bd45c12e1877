"""Why the tool missed a thread, in words; shown only while it is missed.

In: nothing. Out: `EXPLAINED`, by thread.
"""

from __future__ import annotations

EXPLAINED: dict[str, str] = {
    "T01": (
        "Starting and stopping the workers is 13 % of the step here, and operator work more than half: on a "
        "busy machine the class is that of the work. FX105 stands first."
    ),
    "T03": (
        "Workers that start also take the cores from the evaluation, whose time counts as its own; and the "
        "cure was measured beside other programs than the diagnosis."
    ),
    "T09": "Decoding is two lines of one function: no single call has half of the production.",
    "T11": "Beside other programs the share of the input differs from run to run.",
    "T15": "The cure leaves a part of the call that is dear.",
    "T17": "The cure leaves a part of the batch's cost; the prediction is for all of it ('at best').",
    "T21": (
        "Keeping the workers (FX105) removes the start as a whole and stands first; measured is the thread's "
        "cure, a light dataset (FX223), whose workers still have to start. Its own price takes workers to "
        "boot side by side, for which a busy machine has no cores."
    ),
    "T25": (
        "Logging is two places, after the optimizer and in the module's own metrics; neither alone is "
        "more than the optimizer. Dispatch is what is left of a phase beside operator work; Python of "
        "the user's functions falls into it, and beside other processes all that waits for a "
        "processor."
    ),
    "G3": (
        "The measured window ends at about step 35, where the growth has hardly begun; a later one "
        "(--warmup) sees more. Nothing reports that a step grows."
    ),
    "T35": (
        "Beside other processes the trace stretches small operators, whose work then outweighs their "
        "dispatch: compute-bound, with low confidence. The fix has its price from the whole update."
    ),
    "T51": (
        "The budget takes more for communication on a busy machine than the cure gained; the context that "
        "does nothing is not named."
    ),
    "T55": "Its price is that of a busy machine.",
}
