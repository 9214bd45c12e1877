"""How each figure of the page was measured: shown on hover, and in full at the end of each section.

In: nothing. Out: `HOW` and `JOB_HOW`, topic -> one or two sentences.
"""

from __future__ import annotations

HOW: dict[str, str] = {
    "step": (
        "Mean of the baseline window, in which no profiler is attached: stretches of steps before, between "
        "and after the other windows. Steps are timed between device events on a GPU, otherwise with the "
        "host's clock. The interval is the 95 % interval of that mean, for steps that depend on each other: "
        "another run of the same script may differ by more."
    ),
    "step_profiled": (
        "Taken from the profiler's trace, because no step was timed without it. A profiler slows the host, "
        "so the true step is shorter."
    ),
    "step_given": "Given with --true-step-ms.",
    "budget": (
        "Every microsecond of the true step belongs to exactly one line; the lines add up to it. Device work "
        "is split by kernel class, idle time by what the host did while the device waited. Both are scaled "
        "to the true step."
    ),
    "budget_cpu": (
        "Phases are timed in the baseline window, without a profiler; the trace only shows how a phase "
        "divides into operator work, dispatch and the rest. The lines add up to the true step."
    ),
    "cost": (
        "The traced step is replayed without this cause; the difference is its cost. Time spent in a call is "
        "not its cost: a call costs nothing while the device has queued work."
    ),
    "code": (
        "The stack of the training thread was sampled in steps with nothing else attached. A sample stands "
        "for the time since the one before; phases are scaled to their true times. The step without a line "
        "is replayed: one of the model or the loss takes its part of the backward along. What a device does "
        "for a line is the time of the kernels that its operations asked for, forward and backward; autograd "
        "noted the lines in one step in which nothing was timed."
    ),
    "predicted": (
        "Step time that the replay predicts with this fix alone. 'At best' marks an upper bound of the gain. "
        "Gains do not add up."
    ),
    "measured_here": (
        "Once everything was captured, the fix was switched on and off in the running process, a few steps "
        "each in turns. The figure is the true step over the measured speed-up."
    ),
    "tried": (
        "The script was run with and without the fix in turns, each time in a new process, with no profiler "
        "while steps were timed. The figure is the step time without the fix over the step time with it; the "
        "losses were compared step by step."
    ),
    "windows": (
        "One dot per step. Only the baseline window counts for the step time; in the trace and memory "
        "windows the profiler slows the steps. Hollow dots are left out of the mean."
    ),
    "job": (
        "From the script's first line to the first step, and what the first steps took beyond usual ones. "
        "The interpreter's own start is not in it, nor is what the job does later: `bottleneck watch` tells "
        "of all."
    ),
    "timeline": (
        "One step as the profiler recorded it, so the host is slower than without it. Where a lane has more "
        "events than a screen can show, short neighbours are drawn as one block; hover to see how many."
    ),
    "kernels": (
        "Device time per step by kernel (without a GPU: work per step by operator), scaled to the true step. "
        "Classes are derived from kernel names."
    ),
    "memory": (
        "From the allocator's history over a few steps. Bytes are what the program asked for; the allocator "
        "rounds up and reserves more. Inferred categories are marked."
    ),
    "compile": (
        "Collected from torch._dynamo while the script ran. The price of a break is what the replay saves "
        "without its seams: guards, resumed bytecode and eager code between graphs."
    ),
    "loader": (
        "Arguments with which the DataLoader was actually constructed. Waiting is the host's time inside "
        "next() in the baseline window; production is timed in the workers, or without any in the training "
        "process."
    ),
    "compute": (
        "FLOPs are counted from operator shapes, times from the trace scaled to the true step; the peak is "
        "measured on this device or taken from its data sheet, as stated."
    ),
    "settings": "Read while the script ran. Where kernels and flags disagree, the kernels count.",
    "capture": (
        "Before any verdict the capture is checked: kernels against launches, number and spread of steps, "
        "and how well the replay reproduces the profiled window."
    ),
    "ranks": (
        "A collective ends on all ranks together, and its kernel begins when its rank is there: what is "
        "longer than on the last rank is waiting for that one. Own work, waiting and transfer add up to the "
        "step. GB/s: bytes that a rank sends over the transfer of one collective; beside others, and in "
        "small sizes, that is less than the link gives."
    ),
}

JOB_HOW: dict[str, str] = {
    "account": (
        "Every moment of the job belongs to exactly one part, so they add up to its time. What has a clock "
        "of its own (a save, a collection, the start of an epoch) is taken out of its step; of the rest the "
        "step keeps its usual time. Places are from looks at the stack, twenty a second."
    ),
    "goodput": (
        "Share of the job's time in which training steps ran at their best speed: their number times a step "
        "in the fastest tenth of the job, over the time from start to end."
    ),
    "job_step": "Median of the latest usual steps: without an evaluation, a save, a compilation or a start.",
    "job_steps": (
        "Means of neighbouring usual steps, without the fastest and the slowest of each eight. A growth is "
        "drawn where a trend is significant; its band is the 95 % interval of the slope."
    ),
}
"""The same for the page of a watched job."""
