"""The record of one captured run: the content of run.json, loader.json and compile.json.

In: JSON bytes. Out: frozen structs. This file is the contract between the harness, which writes a
run folder in the user's process, and everything that reads one later, perhaps on another machine.
A measurement that was not taken is `None` or missing from its mapping, never zero; why it is
missing stands in `Run.artefacts` or in the window's `reason`.

Clocks: every `_ns` time point is `time.perf_counter_ns()` of the captured process, which on Linux
is CLOCK_MONOTONIC and therefore comparable across the processes of one machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

RUN_FORMAT = 1
"""Format number of a run folder. Raise it when a reader of the old number would misread the new."""

JsonValue: TypeAlias = bool | int | float | str | list[Any] | dict[str, Any] | None


class _Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """Base of every stored struct: frozen, keyword-only, unknown fields ignored on reading."""


class SourceSite(_Record, frozen=True, kw_only=True):
    """A line of the user's program: the first frame outside site-packages and the stdlib."""

    file: str
    line: int
    function: str = ""

    @property
    def short(self) -> str:
        """The name of the file, and the line: for the middle of a sentence."""
        return f"{self.file.rpartition('/')[2]}:{self.line}"

    def told_from(self, root: Path) -> SourceSite:
        """Return the line with its file's path from a folder, where it lies below that."""
        path = Path(self.file)
        if not path.is_absolute():
            return self
        for base in (root, root.resolve()):
            if path.is_relative_to(base):
                return msgspec.structs.replace(self, file=str(path.relative_to(base)))
        return self


class Artefact(_Record, frozen=True, kw_only=True):
    """State of one artefact of the capture; `reason` says why it is absent or failed."""

    status: Literal["ok", "absent", "failed"]
    path: str | None = None
    """Relative to the run folder."""
    reason: str | None = None
    bytes: int | None = None


class StepTable(_Record, frozen=True, kw_only=True):
    """Per-step measurements of one window, as columns of equal length n (one entry per step).

    A step runs from cut to cut (see the step rule of the harness). Lists that were not measured
    are empty, except `phases_ms`, which simply lacks the phase.
    """

    index: list[int] = []
    """Step number counted from the start of the program."""
    start_ns: list[int] = []
    wall_ms: list[float] = []
    """Host time from this cut to the next, no synchronisation of ours inside."""
    device_ms: list[float | None] = []
    """Device time between CUDA events recorded at the two cuts (GPU runs only)."""
    phases_ms: dict[str, list[float]] = {}
    """Host time inside each phase: data, h2d, forward, backward, optimizer, zero_grad, and user
    labels. Phases are exclusive: a nested one is subtracted from the one around it."""
    batch_bytes: list[int] = []
    """Bytes of the tensors in the batches fetched in this step; 0 where none was seen."""
    batch_elements: list[int] = []
    validation: list[bool] = []
    """The step contains evaluation forwards (grad off); leave it out of medians."""
    compiled: list[bool] = []
    """The step contains a compilation (dynamo / inductor)."""
    micro_steps: list[int] = []
    """Backward passes in the step."""
    minor_faults: list[int] = []
    user_cpu_ms: list[float] = []
    """getrusage user time of the whole process, all threads."""
    system_cpu_ms: list[float] = []
    gc_ms: list[float] = []
    """Time in Python's garbage collector."""


class Counters(_Record, frozen=True, kw_only=True):
    """Process-wide counters read at one instant: allocator statistics and getrusage."""

    allocator: dict[str, int] = {}
    """Selected keys of torch.cuda.memory_stats: num_alloc_retries, num_ooms, num_device_alloc,
    num_device_free, num_sync_all_streams, allocated_bytes.all.{current,peak}, reserved_bytes.all.
    {current,peak}, active_bytes.all.{current,peak}, inactive_split_bytes.all.{current,peak},
    allocation.all.allocated, segment.all.{current,allocated,freed}."""
    rusage: dict[str, float] = {}
    """ru_utime, ru_stime (s), ru_minflt, ru_majflt, ru_nvcsw, ru_nivcsw, ru_maxrss (kB)."""
    rss_bytes: int | None = None


class Stretch(_Record, frozen=True, kw_only=True):
    """One piece of the baseline, which is timed before, between and after the other windows."""

    window: Literal["baseline", "between", "after"]
    """In which it was timed; `baseline`: before all others."""
    steps: int
    counted: bool = True
    """False: the captures may still have changed these steps, which were slower than those before (on a GPU)
    or had fewer page faults, so that the baseline goes without them."""


class Window(_Record, frozen=True, kw_only=True):
    """Steps with one set of things attached."""

    name: Literal["warm-up", "baseline", "trace", "between", "memory", "after"]
    """between, after: unprofiled steps between trace and memory window, and after all captures. They are
    stretches of the baseline, which holds them as well if they count: then its `steps.index` has gaps, and
    its counters are the sums over its stretches."""
    status: Literal["ok", "short", "absent", "failed"]
    """short: fewer steps than planned (the script ended, Ctrl-C, time limit)."""
    reason: str | None = None
    planned_steps: int = 0
    steps: StepTable = StepTable()
    before: Counters | None = None
    after: Counters | None = None
    stretches: list[Stretch] = []
    """Baseline only, in the order of time; empty where it is one piece."""
    settled: bool | None = None
    """Warm-up only: step times were stable when it ended (False: it ended at its limit)."""


class DeviceFacts(_Record, frozen=True, kw_only=True):
    """One accelerator (or none: kind "cpu")."""

    kind: Literal["cuda", "rocm", "mps", "xpu", "cpu"]
    index: int = 0
    name: str = ""
    total_bytes: int | None = None
    compute_capability: str | None = None
    multiprocessors: int | None = None
    driver: str | None = None
    memory_fraction_cap: float | None = None
    nvlink_gbytes_per_s: float | None = None
    """Of all its NVLinks that are up together, in one direction, GB/s (1e9), as the driver says; None: there
    are none, it does not say, or the process was in no job of several."""


class HostFacts(_Record, frozen=True, kw_only=True):
    """The machine and the versions."""

    os: str = ""
    cpu: str = ""
    cores: int | None = None
    """Cores this process may use (affinity and cgroup)."""
    cores_at_start: int | None = None
    """The same, when it began."""
    memory_bytes: int | None = None
    load_average: list[float] = []
    python: str = ""
    torch: str = ""
    cuda: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    packages: dict[str, str] = {}
    """Versions of lightning, transformers, accelerate, deepspeed, ... if imported."""


class OptimizerFacts(_Record, frozen=True, kw_only=True):
    """One optimizer as constructed."""

    cls: str
    module: str = ""
    flavour: Literal["fused", "foreach", "for-loop", "unknown"] = "unknown"
    """The implementation that step() uses: torch chooses foreach by default for CUDA parameters."""
    parameters: int = 0
    parameter_bytes: int = 0
    parameter_dtype: str = ""
    """Dtype of most elements, like "float32"; empty if not recorded."""
    compiled: bool = False
    denormal_share: float | None = None
    """Of the numbers that it has on the CPU (parameters, gradients, state), those that are denormal. None
    where it has none there, or an earlier version did not look."""
    site: SourceSite | None = None


SAMPLED = ("sampled before", "sampled between", "sampled after", "sampled forward", "sampled update")
SAMPLED_BACKWARD = "sampled backward"
"""Phases of `SiteTime` that are parts of the training loop, from samples of the warm-up: before the
step's first forward, between forward and update, after the update (or building modules, wherever that
stands); and inside a forward."""


JOINS = "CatBackward0"
"""Autograd's node of `torch.cat`."""

LAUNCH_BLOCKING = "CUDA_LAUNCH_BLOCKING"
"""The variable of the environment with which each launch waits for its kernel, and the phase of the
`SiteTime` of the line that names it."""

NO_CACHING = "PYTORCH_NO_CUDA_MEMORY_CACHING"
"""The same of the variable with which no freed memory of a device is kept; any value of it does."""

DEFAULT_DEVICE = "set_default_device"
"""The same of the function that has each call of torch's functions look at the device."""

BUSY_THREAD = "busy thread"
"""Phase of `SiteTime`: another thread of the program that used a processor during the warm-up."""


class SiteTime(_Record, frozen=True, kw_only=True):
    """A user line and how often it was seen, for phases or host samples."""

    site: SourceSite
    phase: str
    call: str = ""
    """As written at that line, of most of the time; empty if not known."""
    callee: str = ""
    """`module.name` of that in a library; empty if it is the user's own or not known."""
    count: int = 0
    total_ms: float | None = None
    share: float | None = None
    """Of a busy thread: how much of the time it was on a processor."""


class LoopTime(_Record, frozen=True, kw_only=True):
    """A Python loop inside a step, and in how many samples of the warm-up it ran."""

    site: SourceSite
    """Its first line."""
    begins: int = 0
    """The first line of its rounds: what its head calls, to go over the result, runs once. 0: not known."""
    last_line: int
    carried: bool = False
    """Each iteration reads the result of the one before, so they cannot become one operation."""
    seen: dict[str, int] = {}
    """Part of the training loop (`SAMPLED`, or making gradients) -> samples in which it ran."""
    of: dict[str, int] = {}
    """Every part that was sampled -> all samples of it."""

    @property
    def rounds(self) -> tuple[int, int]:
        """First and last line of what each round runs."""
        return self.begins or self.site.line, self.last_line


class Overhead(_Record, frozen=True, kw_only=True):
    """What the capture itself cost, measured."""

    hook_us_per_step: float | None = None
    profiler_start_ms: float | None = None
    profiler_stop_ms: float | None = None
    trace_export_ms: float | None = None
    after_trace_ratio: float | None = None
    """Median step after all captures over the baseline's: how much they still disturb."""
    total_seconds: float | None = None
    """Wall time that the harness added in all: captures, exports, its own start-up."""


class ScriptOutcome(_Record, frozen=True, kw_only=True):
    """How the user's script ended."""

    how: Literal["stopped", "finished", "raised", "exited", "interrupted", "killed", "running"]
    """stopped: by us, all windows done. finished: it ended by itself. running: --run-to-end."""
    exit_code: int | None = None
    exception: str | None = None
    """Type and message; the traceback has gone to stderr as python shows it."""
    out_of_memory: bool = False
    diverted_saves: list[str] = []
    """Paths that the script tried to save to after the stop; kept under the run folder instead."""
    notes: list[str] = []


class Run(_Record, frozen=True, kw_only=True):
    """run.json: one process (rank) of one captured run."""

    format: int = RUN_FORMAT
    tool_version: str = ""
    created: str = ""
    """ISO 8601, UTC."""
    command: list[str] = []
    """sys.argv of the script as run, first the script path as typed (or -m module)."""
    cwd: str = ""
    place: int = 0
    """Inode of the folder in which the process made its own: a copy from elsewhere has another."""
    rank: int = 0
    world_size: int = 1
    launched: bool | None = None
    """True: a launcher started the ranks, so another run needs one. False: the script started them."""
    local_rank: int = 0
    meet: str = ""
    """Folder, of another machine's ranks, to which this one's files went."""
    pid: int = 0
    began_ns: int | None = None
    """When the script began, without the interpreter's start and ours; None where the program calls us."""
    torch_import_ms: float | None = None
    """Of the script's own import of torch; None where it was there already."""
    install_ms: float = 0.0
    """Of ours: putting the hooks in, right after that."""
    host: HostFacts = HostFacts()
    devices: list[DeviceFacts] = []
    """Devices this process used; a CPU run has one entry of kind "cpu"."""
    step_signal: str = ""
    """What a step is: "optimizer", "optimizer+fetch", "zero_grad", "backward", "closure", "api", "none"."""
    step_period: int = 1
    windows: list[Window] = []
    settings: dict[str, JsonValue] = {}
    """Settings in force, read when the trace window ended; keys in harness/facts/settings.py."""
    optimizers: list[OptimizerFacts] = []
    gradient_buckets: list[list[int]] = []
    """Bytes of each gradient, by the buckets in which DistributedDataParallel sends them, in its own order.
    Empty where it does not say, or none is used."""
    sites: list[SiteTime] = []
    """User lines of fetch, forward, backward, optimizer.step, zero_grad, as seen while learning."""
    loops: list[LoopTime] = []
    """Python loops inside a step, from samples of the warm-up; the most frequent first."""
    core_wait_share: float | None = None
    """Share of the warm-up that threads which compute for the training could run and had no core, all
    together; None where Linux does not tell."""
    dispatch_ns: float | None = None
    """CPU runs: fixed host cost of one small eager operator, measured on this machine (median)."""
    plain_dispatch_ns: float | None = None
    """The same without anomaly detection, if the script uses it; otherwise None."""
    parallel_us: tuple[float, float] | None = None
    """CPU runs: one operator just large enough for several threads, on the script's threads and on one of
    them (means, in microseconds). None with one thread, or where the script goes on after the capture."""
    mode_ns: float | None = None
    """What the modes that each call of a function of torch's goes through add to a small operator, ns; None
    where there are none."""
    denormal_factor: float | None = None
    """CPU runs whose optimizers have denormal numbers: time of a product with such numbers over that of one
    with others, on this machine."""
    profiles_itself: bool = False
    """The script's own profiler recorded during the run; only one can record in a process."""
    pinned_gbps: float | None = None
    """GPU runs: measured bandwidth of a pinned host-to-device copy, GB/s (1e9)."""
    pageable_gbps: float | None = None
    matmul_tflops: dict[str, float] = {}
    """Measured dense matmul rate by dtype: fp32, tf32, bf16, fp16; empty if not run. CPU runs: only where the
    script computes in 16 bits, fp32 and that type, at the shapes of the step's largest products."""
    product_tflops: dict[str, float] = {}
    """GPU runs that compute in fp32: the same of the step's largest products, all of them together, at their
    own shapes; empty if not run."""
    flops: FlopCount | None = None
    """None: not counted; the reason is under "flops" in `artefacts`."""
    masks: MaskFacts | None = None
    """None: fused attention was not called, or not looked at."""
    repeats: RepeatFacts | None = None
    above_operators: list[tuple[str, str]] | None = None
    """File and name of the user's functions that call operators, themselves or in what they call; None: not
    looked at."""
    above_lines: dict[str, list[int]] = {}
    """By file: the lines of these functions at which they do. Empty in recordings of before."""
    trained_writes: list[SourceSite] = []
    """The user's lines that lead to writes into parameters of optimizers, or into their gradients, outside of
    the backward; and those that read them in a function that writes. Empty where nobody looked, too."""
    promotions: list[SourceSite] = []
    """The user's lines at which tensors of 16 and 32 bits meet and give 32, the most elements first."""
    graph: GraphLines | None = None
    """None: there is no device, or it was not looked at."""
    operators: OperatorLines | None = None
    """None: likewise."""
    copied: CopyFacts | None = None
    """None: there is no device, or nothing was copied to it by `.to()` or `.cuda()`."""
    artefacts: dict[str, Artefact] = {}
    """Keys: trace, memory, compile, loader, and one per failed piece of the capture."""
    overhead: Overhead = Overhead()
    outcome: ScriptOutcome = ScriptOutcome(how="running")
    tracked: dict[str, dict[str, str]] = {}
    """Trackers of experiments (mlflow, wandb) in which the script had a run open: the variables with which
    another process goes on with that run."""
    warnings: list[str] = []

    @property
    def watched(self) -> bool:
        """`watch` made it: steps are timed from the first on, and nothing is ever attached."""
        return self.window("baseline") is not None and self.window("warm-up") is None

    @property
    def launches_block(self) -> bool | None:
        """Each launch waits for its kernel, as the environment wants it; None where it was not read."""
        environment = self.settings.get("environment")
        return environment.get(LAUNCH_BLOCKING) == "1" if isinstance(environment, dict) else None

    @property
    def caches_memory(self) -> bool | None:
        """Freed memory of the device is kept, as the environment wants it; None where it was not read."""
        environment = self.settings.get("environment")
        return NO_CACHING not in environment if isinstance(environment, dict) else None

    @property
    def half_types(self) -> list[str]:
        """The types of 16 bits that the script computes in: autocast's, and then those of parameters."""
        types = [self.settings.get("autocast.dtype"), *(item.parameter_dtype for item in self.optimizers)]
        return list(dict.fromkeys(str(each) for each in types if each in ("float16", "bfloat16")))

    def window(self, name: str) -> Window | None:
        """Return the window of that name, or None when the capture never reached it."""
        return next((w for w in self.windows if w.name == name), None)


class RepeatFacts(_Record, frozen=True, kw_only=True):
    """Calls of modules and functions, where FLOPs were counted: which computed again what they had."""

    calls: int
    """Repeated calls."""
    module: str = ""
    """The class of the module that most of their time is in."""
    share: float = 0.0
    """Of the time in modules."""
    graded_share: float = 0.0
    """Of the time in modules whose operators are recorded for backward: such calls have a backward, too."""
    sites: list[SiteTime] = []
    """The user's lines that lead to them, the most expensive first."""
    fed_share: float | None = None
    """Of the time in modules of whose parameters none needs a gradient: in those that run with gradients on
    and are given tensors which need one. None where no such module was called."""
    steady: str = ""
    """The function that most of the time is in of those that compute in each step what does not change."""
    steady_share: float = 0.0
    """Of the time in modules: in such calls."""
    outside_share: float = 0.0
    """Of the time of functions outside of modules: in calls that compute what is known."""
    ungraded_share: float = 0.0
    """Of the time of functions that record nothing for backward: in calls that compute what is known."""
    carried_share: float = 0.0
    """Of the time in modules: in calls that copy most of what an earlier call at their line has made."""
    carried_outside_share: float = 0.0
    """Of the time of functions outside of modules: in such calls."""
    carried_ungraded_share: float = 0.0
    """Of the time of functions that record nothing for backward: in such calls."""
    apart_calls: float = 0.0
    """Calls per step of models that are called several times on inputs of one shape before one backward."""
    apart_share: float = 0.0
    """Of the time in modules whose operators are recorded for backward: in all such calls but the first."""

    def at(self, phase: str) -> list[SiteTime]:
        """Return such sites, the most expensive first.

        Repeated: they repeat others of their step. Tested: they run without gradients what this step trains
        on. Steady: they compute in each step what does not change. Apart: a model has several calls that one
        could make. Carried: they copy most of what an earlier call there has made.
        """
        return [item for item in self.sites if item.phase == phase]

    def ms_of(self, phase: str) -> float:
        """Return the time of the calls at such sites, ms, over the steps that were looked at."""
        return sum(item.total_ms or 0.0 for item in self.at(phase))

    def call_at(self, phase: str) -> str:
        """Return the first known call at such sites; empty where none is known."""
        return next((item.call for item in self.at(phase) if item.call), "")


class UnreadGradients(_Record, frozen=True, kw_only=True):
    """A backward of whose gradients nobody reads some: they are cleared first, or no optimizer has them."""

    site: SourceSite
    tensors: int
    """Tensors that get a gradient."""
    unread: int
    """Of these, those whose gradient nobody reads."""


class GraphLines(_Record, frozen=True, kw_only=True):
    """The user's line of each node that the backward of one step visits, in the order of their recording."""

    node: list[int]
    """Index into `names`."""
    line: list[int]
    """Index into `sites` and `texts`; -1 where no line of the user's is known."""
    inner: list[int] = []
    """The same of the line below it in which a package of models records the node; -1 where there is none."""
    chain: list[int] = []
    """Index into `chains`; empty in recordings of before."""
    chains: list[tuple[int, ...]] = []
    """The user's lines that were being run, the innermost first: indices into `sites`."""
    names: list[str] = []
    """Like "AddmmBackward0"."""
    sites: list[SourceSite] = []
    texts: list[str] = []
    """The source, shortened."""
    dropped: dict[str, float] = {}
    """By name of a node, of the gradients that a function of a script's own computes: the share that autograd
    drops, since no gradient is needed there. Only those that drop any."""
    unread: list[float] = []
    """By node: the share of what its backward computes that leads to nothing but gradients nobody reads.
    Empty where there are none."""
    unread_by: list[UnreadGradients] = []
    """The backwards that make them."""
    idle: list[float] = []
    """By node, from the loss to the matrix products nearest to it: the share of its numbers that are of rows
    whose gradient is zero, so that they have no part in the loss. Empty where there are none."""
    again: list[float] = []
    """By node: 1 where it converts what another one has converted before. Empty where none does."""
    weights_again: int = 0
    """How many of these convert a parameter: autocast keeps what it converts of them, if its cache is on."""
    joined: list[float] = []
    """By node: 1 where it joins by `torch.cat` what another one joins again with a little more, or reads one
    entry of that. Empty where none does."""

    def joins(self) -> list[bool]:
        """Return which nodes of `joined` join, and do not read."""
        joined = self.joined or [0.0] * len(self.node)
        return [
            bool(is_one) and self.names[node] == JOINS for is_one, node in zip(joined, self.node, strict=True)
        ]

    def sites_of(self, chosen: Iterable[bool]) -> list[SourceSite]:
        """Return the lines of those nodes that are chosen, the one with most of them first."""
        lines = Counter(line for line, is_one in zip(self.line, chosen, strict=True) if line >= 0 and is_one)
        return [self.sites[line] for line, _ in lines.most_common()]


class OperatorLines(_Record, frozen=True, kw_only=True):
    """The user's lines below which the operators of one step are called, in whatever mode of gradients."""

    calls: dict[str, list[int]]
    """By name, like "aten::cumprod", of each call in the step, by their beginnings: index into `chains`; -1
    where it is another operator that calls it, or a thread of the backward's. Only names with a line."""
    chains: list[tuple[int, ...]]
    """The user's lines that were being run, the innermost first: indices into `sites`."""
    inner: list[int]
    """By chain: the line below it in which a package of models calls the operator; -1 where there is none."""
    sites: list[SourceSite]
    texts: list[str]
    """The source, shortened."""


class CopyFacts(_Record, frozen=True, kw_only=True):
    """Copies to the device by `.to()` and `.cuda()`, over the steps in which they were labelled."""

    calls: int
    bytes: int
    kept_calls: int = 0
    """Of these, those from memory from which several steps copied, and which two steps later was still there
    and as it had been."""
    kept_bytes: int = 0
    """What those copied."""
    kept_sizes: list[int] = []
    """The sizes in bytes of the latter, where no other copy had that size."""
    held_bytes: int = 0
    """All memory that they read from, with what of it they did not read."""
    sites: list[SiteTime] = []
    """The user's lines of `kept_calls`, the most frequent first."""


class MaskFacts(_Record, frozen=True, kw_only=True):
    """Masks of fused attention, over the steps in which FLOPs were counted."""

    calls: int
    masked: int = 0
    """Calls with a mask that needs no gradient."""
    idle: int = 0
    """Of these, those whose mask masked nothing."""
    sites: list[SiteTime] = []
    """The user's lines of the latter, the most frequent first."""
    shapes: list[AttentionCall] = []
    """Of the latter, those with most work, at most four."""
    timed_ms: tuple[float, float] | None = None
    """What the calls of `shapes` take with their masks and without, timed after the capture, all together."""
    single: list[AttentionCall] = []
    """GPU runs: of all calls in float32, those with most work, at most four."""
    single_ms: tuple[float, float] | None = None
    """What these take in float32 and in bfloat16, timed likewise."""


class AttentionCall(_Record, frozen=True, kw_only=True):
    """Calls of fused attention that look alike."""

    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    dtype: str
    """In which is computed: "float32", ..."""
    mask: tuple[int, ...]
    """Its shape; 1 where it is expanded; empty: none."""
    mask_dtype: str = "bool"
    causal: bool = False
    gradients: bool = True
    """A backward follows."""
    dropout: float = 0.0
    count: int = 0


class CostlyCalls(_Record, frozen=True, kw_only=True):
    """Calls of one operator in one step for which there is a cheaper way, by axes, types and sizes."""

    operator: str
    """As in "aten::argmax"."""
    callee: str = ""
    """As Python calls it; empty: as the operator is called."""
    places: list[int]
    """Which of the operator's calls in the step they are, from 0."""
    of: int
    """How many calls it has there."""
    tensors: int = 0
    """Of parts: from how many tensors, all of one shape, they are taken; 0: not known."""
    left: float | None = None
    """Of their time, forward and backward, what another way takes, tried with their own arguments."""
    left_on_host: float | None = None
    """Of the host's time for them, where `left` is the device's; None: as `left`."""
    site: SourceSite | None = None
    """Where most of them are, if tried."""
    shown: str = ""
    """The calls, as a reader knows them; empty: the callee."""


_PRODUCTS = ("mm", "addmm", "_addmm_activation", "bmm", "baddbmm")


class FlopCount(_Record, frozen=True, kw_only=True):
    """FLOPs of a step, counted from the operators' shapes in steps of their own."""

    step: int
    """The first of them."""
    flops: float
    """Of a step on average; multiply and add count as two."""
    steps: int = 1
    """In how many was counted."""
    by_dtype: dict[str, float] = {}
    """FLOPs by type of the operands: "float32", "bfloat16", ..."""
    by_operator: dict[str, float] = {}
    operators: list[str] = []
    """Operators whose FLOPs are counted, found or not."""
    products: list[tuple[int, int, int, int]] = []
    """Of the matrix products in the first step, those with most FLOPs: (rows, inner, columns, how many)."""
    batches: list[int] = []
    """Of each of these, how many one call makes; 0: not known."""
    costly: list[CostlyCalls] = []
    """In the first step."""

    def odd_products(self) -> list[tuple[int, int, int, int]]:
        """Return those of these products of which a size is no multiple of 8."""
        return [each for each in self.products if any(size % 8 for size in each[:3])]

    @property
    def products_share(self) -> float:
        """Share of all matrix products in the FLOPs of a step."""
        made = sum(flops for operator, flops in self.by_operator.items() if operator in _PRODUCTS)
        return made / self.flops if self.flops else 0.0


class Production(_Record, frozen=True, kw_only=True):
    """Cost of producing one batch, measured where it is produced."""

    where: Literal["workers", "main"]
    batches: int = 0
    fetch_ms: list[float] = []
    """Per batch: dataset[...] calls (samples), at most the last 512."""
    collate_ms: list[float] = []
    busy_share: float | None = None
    """Share of the workers' time spent producing."""
    core_wait_ms: list[float] = []
    """Per batch, as `fetch_ms`: time in which the worker could run and had no core; empty if not measured."""
    worker_cores: int | None = None
    """Cores that a worker may use: the fewest, after its last batch."""
    computed_ms: float | None = None
    """Per batch: processor time of the thread that makes it, in a worker."""
    helped_ms: float | None = None
    """Per batch: processor time of threads that libraries have started there (BLAS, OpenMP, OpenCV)."""
    sites: list[SiteTime] = []
    samples: int = 0
    """Of the producing, those outside the user's lines among them; 0 where there are no others."""
    rows_share: float | None = None
    """Share of the samples in which rows are handled one by one: torch's fetching and collating, reading by
    an index. None where it is not known."""


class BatchFacts(_Record, frozen=True, kw_only=True):
    """A typical batch as the loader handed it over."""

    bytes: int = 0
    memory_bytes: int = 0
    """Of the memory that they are slices of, each counted once: from a worker all of it is sent."""
    tensors: list[str] = []
    """Like "float32[64, 3, 224, 224]"."""
    device: str = "cpu"
    pinned: bool | None = None
    distinct_shapes: int | None = None
    padding_share: float | None = None
    """Of the positions of the first batches."""
    beyond_share: float | None = None
    """Of these positions, those behind the end of the longest sample of their batch."""


class WorkerStart(_Record, frozen=True, kw_only=True):
    """One start of a loader's worker processes, for an iterator of its own."""

    step: int
    """Index of the step in which the first batch came."""
    making_ms: float
    """Host time to make the iterator: its processes are started in it."""
    wait_ms: float
    """Host time blocked in the first `__next__`."""
    stop_step: int = -1
    """Index of the step in which they were stopped; -1 if none saw it."""
    stopping_ms: float = 0.0
    """Host time in the `__next__` that found no further batch: the workers are waited for."""
    pickled_bytes: int = 0
    """Sent to all workers; 0 where they are forked."""
    pickling_ms: float = 0.0
    """Of `making_ms`: pickling what is sent."""
    unpickling_ms: float = 0.0
    """Of all workers: reading what was sent."""
    booting_ms: float = 0.0
    """Of the slowest worker: from its start until it reads what was sent, or works."""


class LoaderFacts(_Record, frozen=True, kw_only=True):
    """One DataLoader as really constructed (loader.json is a list of these)."""

    id: int
    cls: str
    site: SourceSite | None = None
    dataset: str = ""
    iterable: bool = False
    length: int | None = None
    batch_size: int | None = None
    num_workers: int = 0
    pin_memory: bool = False
    persistent_workers: bool = False
    prefetch_factor: int | None = None
    drop_last: bool | None = None
    shuffle: bool | None = None
    start_method: str | None = None
    role: Literal["train", "eval", "unknown"] = "unknown"
    fetches: int = 0
    iterators: int = 0
    """How many times it was iterated (epochs, for a training loader)."""
    startup_ms: list[float] = []
    """Per iterator: creation to the first batch handed over."""
    starts: list[WorkerStart] = []
    """Each iterator for which worker processes were started."""
    wait_ms: list[float] = []
    """Baseline and its later stretches, per fetch: host time blocked in __next__."""
    wait_step: list[int] = []
    """Step index of each entry of `wait_ms`."""
    production: Production | None = None
    batch: BatchFacts | None = None
    duplicated_samples_share: float | None = None


class GraphBreak(_Record, frozen=True, kw_only=True):
    """One place where dynamo broke the graph (compile.json)."""

    reason: str
    site: SourceSite | None = None
    hint: str = ""
    hits: int | None = None
    """Times reported while compiling; executions per step come from the trace."""
    stacks: list[list[SourceSite]] = []
    """User stacks it was reported with, outermost first, each once: one per frame that it cut."""
    skipped: list[SourceSite] = []
    """Functions (file, first line) that were given up as a whole because of it: where it lies in a
    loop, or inside something that cannot be resumed."""


class Recompile(_Record, frozen=True, kw_only=True):
    """A frame compiled again because a guard failed."""

    frame: str
    site: SourceSite | None = None
    guard: str = ""
    count: int = 1
    steps: list[int] = []


class CompileEvent(_Record, frozen=True, kw_only=True):
    """One compilation."""

    frame: str
    compile_id: str = ""
    site: SourceSite | None = None
    start_ns: int | None = None
    seconds: float | None = None
    step: int | None = None
    fail: str | None = None
    recompile_reason: str | None = None


class CompileFacts(_Record, frozen=True, kw_only=True):
    """compile.json; all zero and empty when nothing was compiled, absent when not measured."""

    used: bool = False
    unique_graphs: int = 0
    breaks: list[GraphBreak] = []
    recompiles: list[Recompile] = []
    compiles: list[CompileEvent] = []
    limit_hit: list[str] = []
    cudagraph_skips: list[str] = []
    compiled_modules: list[str] = []
    mode: str | None = None
    counters: dict[str, dict[str, int]] = {}
    """torch._dynamo.utils.counters, verbatim."""
