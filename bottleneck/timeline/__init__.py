"""Lanes, budget and replay: arrays in, arrays out; nothing here reads a file or knows a fix.

Where to look:

What a trace says
    `dialect` (one vocabulary for all profilers), `steps`, `periods`, `recorded` (where steps are, how long
    they took), `kernels`, `waits`, `collectives`, `stacks`, `intervals`; of devices: `peaks`, `math_rates`.
A GPU run
    `gpu` (the reading as a whole), `hostwork` (what the host does at each moment), `program` and `replay`,
    `calibrate`, `budget`; the questions: `gpu_questions`, `gpu_what_ifs`, `gpu_what_ifs_host`,
    `gpu_what_ifs_dispatch`, `gpu_what_ifs_device`, `gpu_edits`, `device_masks`, `device_work`, `fusion`,
    `compiler_reach`; names and numbers for them: `gpu_context`, `gpu_compute`, `gpu_spans`.
A run without a GPU
    `cpu` (the reading as a whole), `cpu_segments`, `cpu_ops`, `cpu_gaps`, `cpu_steady`, `cpu_baseline`,
    `cpu_pools` (how each phase divides), `cpu_budget`, `cpu_what_ifs`, `cpu_describe`, `anomalies`.
Both
    `result` (what either gives), `seams` (of broken graphs), `rare` (work of some steps), `recompute`,
    `loop_lines` and `loop_price`, `workload`; counts of what a step does: `counters`, `counters_run`,
    `counters_syncs`; what reports draw: `view`, `view_gpu`, `view_cpu`.
Memory
    `memory` (the summary), `memory_reading`, `memory_lives`, `memory_clock`, `memory_roles`, `memory_stacks`,
    `memory_segments`, `memory_facts`, `memory_curve`.
"""
