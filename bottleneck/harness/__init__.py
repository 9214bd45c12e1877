"""The capture, in the user's process: the only folder that imports torch.

In: a plan. Out: a run folder, which is all that the analysis ever sees. Nothing is imported here,
since the command line's light parent process reads `plan`, `store` and `launch` without torch.

Where to look, from the command line inwards:

The parent process, without torch
    `plan` (the wishes), `place` (where a run goes), `tasks` (which of several processes this is),
    `leftovers` (of killed runs), `launch` and `launch_apart` (starting the script), `layout` (putting
    the run folder together), `patch_environment`, `self_test` (for the doctor).
The script's process
    `__main__` and `runner` (running it as python would), `session` (everything of ours in one process),
    `imports` (torch has come), `stopping`, `dropped`, `saves` (checkpoints while stopping), `children`
    and `relaunches` (processes that it starts), `presence`, `progress`, `store` (the run folder being
    written), `api` (for people who own their loop).
Events
    `hooks` (what is replaced in torch; `quick` while steps are timed, `replacing` puts it back),
    `observer` (what hooks tell), `agent` (hears it), `tape` and `tape_deck` (notes it for later),
    `tracker` (what it means for the step), `steps` (where a step ends), `phases` and `meter` (the clock of
    one), `update_label`, `torch_private` (every private corner of torch).
Windows
    `capture` (from one to the next), `timetable` and `windows` (how long each lasts), `horizon` (steps
    left), `ranks` (all alike), `window_book` and `table` (their rows), `device_clock`, `counters`,
    `trace_window` and `trace`, `memory_window`, `memory`, `memory_notes` and `out_of_memory`, `flops`.
Facts
    `facts` (what is written, and when), `learned` (from the first events), `settings`, `devices`,
    `optimizers`, `probes`, `own_cost`; lines of the user's: `sites`, `loop_lines`, `step_loops`,
    `read_lines`, `line_sampler`, `switching`; loaders: `loader`, `loader_facts`, `loader_worker`,
    `batch_facts`; compilations: `compiler`, `compile_records`; other threads: `busy_threads`.
Experiments
    `trial` (one run of `verify`), `losses`, and the fixes that can be tried in `patches/`.
"""
