"""How each figure of the page was measured: shown on hover, and in full at the end of each section.

In: nothing. Out: `HOW`, topic -> one or two sentences.
"""

from __future__ import annotations

__all__ = ["HOW"]

HOW: dict[str, str] = {
    "step": (
        "Mean of the baseline window: steps timed with nothing attached, between device events on a GPU, "
        "by the host's clock without one. The interval is a 95 % interval of that mean."
    ),
    "step_profiled": (
        "Taken from the profiler's trace, since no step was timed without it. A profiler slows the host, so "
        "the true step is shorter."
    ),
    "step_given": "Given with --true-step-ms.",
    "budget": (
        "Every microsecond of the true step belongs to exactly one line; the lines add up to it. Device work "
        "is split by kernel class, idle time by what the host did while the device ran dry, both at the "
        "speed of the true step."
    ),
    "budget_cpu": (
        "Phases are timed in the baseline window, without a profiler; the trace only says how a phase "
        "divides into operator work, dispatch and the rest. The lines add up to the true step."
    ),
    "cost": (
        "The traced step is replayed without this cause; the difference is its cost. Time spent in a call is "
        "not its cost: what the device hides costs nothing."
    ),
    "predicted": (
        "Step time that the replay gives with this fix alone. 'At best' marks an upper bound of the gain. "
        "Gains do not add up."
    ),
    "tried": (
        "The script run with and without the fix in turns, each in a process of its own, unobserved while "
        "its steps are timed. Measured is the step without over the step with; the losses of both were "
        "compared step by step."
    ),
    "windows": (
        "One dot per step. Only the baseline window counts for the step time; trace and memory windows are "
        "slowed by what is attached to them. Hollow dots are left out of the mean."
    ),
    "timeline": (
        "One step as the profiler recorded it, so the host is slower than it truly is. Where a lane holds "
        "more events than a screen can show, short neighbours are drawn as one block; hovering says how many."
    ),
    "kernels": (
        "Device time per step by kernel (without a GPU: work per step by operator), scaled to the true step. "
        "Classes are told from kernel names."
    ),
    "memory": (
        "From the allocator's history over a few steps. Bytes are what the program asked for; the allocator "
        "rounds up and reserves more. Inferred categories say so."
    ),
    "compile": (
        "Collected from torch._dynamo while the script ran. The price of a break is the replay without its "
        "seams: guards, resumed bytecode and eager fallback between graphs."
    ),
    "loader": (
        "DataLoader arguments as really constructed. Waiting is the host's time inside next() in the "
        "baseline window; production is timed in the workers, or in the training process without any."
    ),
    "compute": (
        "FLOPs are counted from operator shapes, times from the trace scaled to the true step; the peak is "
        "measured on this device or taken from its data sheet, as stated."
    ),
    "settings": "Read while the script ran. What kernels show outranks what a flag asks for.",
    "capture": (
        "Before any verdict the capture is judged: kernels against launches, number and spread of steps, how "
        "well the replay reproduces the profiled window."
    ),
    "ranks": "Each rank is timed by itself; waiting is time in collectives beyond the last rank to arrive.",
}
