"""The acceleration state: which switches that decide a training's speed are on.

In: torch's flags, the environment, and what the hooks saw (`Seen`). Out: a flat mapping for
run.json. A switch that does not exist in this torch, or that nothing has shown, is absent.

    matmul.precision            "highest" | "high" | "medium"
    cudnn.precision             the same words, for convolutions (torch 2.9 and newer)
    matmul.allow_tf32, cudnn.allow_tf32, cudnn.enabled, cudnn.benchmark, cudnn.deterministic: bool
    matmul.fp16_reduced, matmul.bf16_reduced: bool     reduced-precision reductions allowed
    deterministic: bool                                 torch.use_deterministic_algorithms
    anomaly_mode: bool
    distributions.checked: bool  torch.distributions check their arguments, unless told otherwise
    function_modes: [...]       types of what each call of a function of torch's goes through
    python.traced: [...]        what Python calls for each line or call: "name (file:line)", or a type in C
    denormals.flushed: bool     the training thread takes denormal numbers for zeros
    sdp.flash, sdp.mem_efficient, sdp.math, sdp.cudnn: bool    backends allowed
    default_dtype: "float32", ...
    autocast.dtype              "none" | "bfloat16" | "float16" | ..., as seen in root forwards
    autocast.device             "cuda", "cpu"
    grad_scaler: bool           a GradScaler that is enabled was stepped
    zero_grad.set_to_none: bool as last called
    memory_format               "channels_last" | "contiguous" | "none": weights of convolutions over images
                                or volumes, of root modules
    parameters.dtype            {"float32": count, ...} of root modules
    modules                     class names of root modules, in order of appearance
    distributed.module          "ddp" | "fsdp" | "dp" | "deepspeed" | "none"
    distributed.backend         "nccl", "gloo", ...
    distributed.settings        {"static_graph": ..., "gradient_as_bucket_view": ...}
    distributed.sends_buffers   DDP sends the model's buffers from rank 0 to all others before each forward
    distributed.units           modules that FSDP gathers by themselves
    distributed.replica_bytes   what a rank would need beyond its shards to hold model, gradients and states
    distributed.searches_in_vain   DDP looks for unused parameters in each step, and none is unused
    gradients.unused_share: float   of the parameters, those with a gradient that no optimizer has
    ungraded.frozen: bool       no module that ran without gradients, or is frozen, has changed until now
    ungraded.inside: bool       a forward with gradients calls a module of whose parameters none needs one
    ungraded.twin: bool         what ran without gradients is built like a model that is trained
    ungraded.training: bool     what ran without gradients was in training mode, so it is a rollout, or a test
                                without eval()
    ungraded.first: bool        it ran before the first backward and before any loader was built, as a
                                rollout does that collects what is trained on
    ungraded.environment: bool  a library of environments is loaded: what ran without gradients acts in one
    embedding.dense_share: float    of the parameters, in large embedding tables with dense gradients
    torchscript: bool           a ScriptModule ran as a root
    threads.intra_op, threads.inter_op: int
    threads.oversubscribed: bool
    allocator.backend           "native" | "cudaMallocAsync" | ...
    allocator.expandable_segments: bool
    allocator.conf              the environment's text
    malloc.library              "glibc" | "jemalloc" | "tcmalloc" | "mimalloc"
    gc.enabled: bool, gc.thresholds: [int, int, int], gc.frozen: int
    switch_interval_s: float
    environment                 {name: value} of the variables in ENVIRONMENT that are set
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from ...model.run import LAUNCH_BLOCKING, NO_CACHING, JsonValue
from ...runs.environment import usable_cores
from .. import torch_private
from .repeats import is_untrained

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""The memory format with channels innermost, by a tensor's dimensions."""
_ENVIRONMENTS = ("gymnasium", "gym", "dm_env", "pettingzoo")
"""Libraries of what agents act in."""
ENVIRONMENT = (
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    NO_CACHING,
    LAUNCH_BLOCKING,
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_MODULE_LOADING",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_CUDNN_V8_API_DISABLED",
    "TORCHDYNAMO_DISABLE",
    "TORCH_COMPILE_DISABLE",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES",
    "TORCH_LOGS",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_NCCL_BLOCKING_WAIT",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_AVOID_RECORD_STREAMS",
    "TORCH_SHOW_CPP_STACKTRACES",
    "NCCL_P2P_DISABLE",
    "NCCL_IB_DISABLE",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_DEBUG",
    "NCCL_SOCKET_IFNAME",
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "OMP_PROC_BIND",
    "MKL_NUM_THREADS",
    "KMP_BLOCKTIME",
    "KMP_AFFINITY",
    "GOMP_CPU_AFFINITY",
    "ATEN_CPU_CAPABILITY",
    "LD_PRELOAD",
    "MALLOC_CONF",
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "GLIBC_TUNABLES",
    "PYTHONMALLOC",
    "PYTHONHASHSEED",
    "TOKENIZERS_PARALLELISM",
)
"""Variables that change how fast a training runs. Values are recorded, so no secrets here."""

MANY_ROWS = 20_000
"""Rows of an embedding table from which a batch touches few of them."""
MAX_ROOTS = 16
"""Root modules remembered: models and loss functions, not thousands of throw-away ones."""


class Seen:
    """What the hooks noticed that no flag would tell. Every method is cheap and never raises."""

    def __init__(self) -> None:
        self.autocast: dict[str, str] = {}
        """Device type -> dtype of autocast in root forwards with gradients on."""
        self.forwards = 0
        self.scaler: bool | None = None
        self.set_to_none: bool | None = None
        self.ungraded_modes: set[bool] = set()
        """`training` of the modules that steps began to run without gradients with."""
        self.updated = False
        """A backward or an update has begun."""
        self.acted_first = False
        """A model that can be trained ran without gradients before that, and before there was a loader."""
        self._roots: dict[int, Any] = {}
        self._ungraded: dict[int, tuple[Any, list[int]]] = {}
        """Modules called without gradients, with the versions that their parameters had then."""
        self.frozen_inside = False
        """A root with gradients is, or holds, a module of whose parameters none needs a gradient."""

    def root_forward(self, module: Any) -> None:
        """Note autocast and the module. Called from inside a forward that no other surrounds."""
        with contextlib.suppress(Exception):
            self.forwards += 1
            for device in ("cuda", "cpu", "xpu", "mps"):
                if device not in self.autocast and torch.is_autocast_enabled(device):
                    self.autocast[device] = _dtype_name(torch.get_autocast_dtype(device))
            if len(self._roots) < MAX_ROOTS and id(module) not in self._roots:
                self._roots[id(module)] = module
                for part in _frozen_parts(module):
                    self.frozen_inside = True
                    self.without_gradients(part)

    def without_gradients(self, module: Any, *, fed: bool = False) -> None:
        """Note a module that is called while gradients are off, or that needs none; see `Learned`."""
        with contextlib.suppress(Exception):
            if not (self.updated or fed) and any(each.requires_grad for each in module.parameters()):
                self.acted_first = True
        if id(module) in self._ungraded or len(self._ungraded) >= MAX_ROOTS:
            return
        with contextlib.suppress(Exception):
            self._ungraded[id(module)] = (module, torch_private.versions(module))

    def frozen(self, optimizers: Sequence[Any]) -> bool | None:
        """Return whether none of these modules has changed since; None without one that has parameters.

        What an optimizer updates changes, though a fused one counts no version.

        None, too, where one is built like a model that is trained and has not changed yet: a target network
        is copied from it every few hundred steps, a reference model never is.
        """
        kept = [(module, before) for module, before in self._ungraded.values() if before]
        updated = {id(p) for optimizer in optimizers for p in _parameters(optimizer) if p.requires_grad}
        for module, before in kept:
            if torch_private.versions(module) != before or any(id(p) in updated for p in module.parameters()):
                return False
        return None if not kept or self.twins else True

    @property
    def twins(self) -> bool:
        """One of these modules is built like a root that is trained."""
        trained = [(id(root), _shapes(root)) for root in self.roots if _needs_gradients(root)]
        return any(
            id(module) != root and _shapes(module) == shapes
            for module, before in self._ungraded.values()
            if before
            for root, shapes in trained
        )

    def zero_grad(self, set_to_none: bool) -> None:
        """Note how gradients were cleared."""
        self.set_to_none = bool(set_to_none)

    def grad_scaler(self, scaler: Any) -> None:
        """Note a scaler that was stepped."""
        with contextlib.suppress(Exception):
            self.scaler = bool(scaler.is_enabled()) or bool(self.scaler)

    def release(self) -> None:
        """Let go of the modules, once `read_settings` has looked at them."""
        self._roots.clear()
        self._ungraded.clear()

    @property
    def roots(self) -> list[Any]:
        """Root modules in order of appearance."""
        return list(self._roots.values())


def read_settings(seen: Seen | None = None, optimizers: Sequence[Any] = ()) -> dict[str, JsonValue]:
    """Return the settings in force now, in this process."""
    settings: dict[str, JsonValue] = {}
    for read in (
        _read_flags,
        _read_precision,
        _read_threads,
        _read_allocator,
        _read_python,
        _read_distributed,
    ):
        # One flag that this torch does not have must not hide the others.
        with contextlib.suppress(Exception):
            read(settings)
    settings["environment"] = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    if seen is not None:
        with contextlib.suppress(Exception):
            _read_seen(settings, seen, optimizers)
    return settings


def _is_ours(mode: str) -> bool:
    return mode.partition(".")[0] == __name__.partition(".")[0]


def _tracers() -> JsonValue:
    """Return what this thread's Python calls for each line or call, as debuggers and coverage have it do."""
    found: list[str] = []
    for tracer in filter(None, (sys.gettrace(), sys.getprofile())):
        function = getattr(tracer, "__func__", tracer)
        code = getattr(function, "__code__", None)
        named = function if code is not None else type(tracer)
        name = f"{named.__module__}.{named.__qualname__}"
        # A profiler of torch that keeps stacks: FX519 is about it.
        if not _is_ours(name) and name != "builtins.TraceContext":
            found.append(f"{name} ({code.co_filename}:{code.co_firstlineno})" if code is not None else name)
    return found or None


def _read_flags(settings: dict[str, JsonValue]) -> None:
    backends = torch.backends
    flags: dict[str, Callable[[], JsonValue]] = {
        "matmul.precision": torch.get_float32_matmul_precision,
        "matmul.allow_tf32": lambda: backends.cuda.matmul.allow_tf32,
        "matmul.fp16_reduced": lambda: backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        "matmul.bf16_reduced": lambda: backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "cudnn.enabled": lambda: backends.cudnn.enabled,
        "cudnn.allow_tf32": lambda: backends.cudnn.allow_tf32,
        "cudnn.benchmark": lambda: backends.cudnn.benchmark,
        "cudnn.deterministic": lambda: backends.cudnn.deterministic,
        "deterministic": torch.are_deterministic_algorithms_enabled,
        "anomaly_mode": torch.is_anomaly_enabled,
        "distributions.checked": torch_private.distributions_checked,
        "denormals.flushed": torch_private.denormals_flushed,
        "function_modes": lambda: [mode for mode in torch_private.function_modes() if not _is_ours(mode)],
        "python.traced": _tracers,
        "sdp.flash": backends.cuda.flash_sdp_enabled,
        "sdp.mem_efficient": backends.cuda.mem_efficient_sdp_enabled,
        "sdp.math": backends.cuda.math_sdp_enabled,
        "sdp.cudnn": backends.cuda.cudnn_sdp_enabled,
        "default_dtype": lambda: _dtype_name(torch.get_default_dtype()),
    }
    for name, read in flags.items():
        with contextlib.suppress(Exception):
            value = read()
            if value is None or isinstance(value, (bool, int, float, str, list)):
                settings[name] = value


_OLD_WORDS = {"ieee": "highest", "none": "highest", "tf32": "high", "bf16": "medium"}
"""What torch 2.9 and newer call the precision of fp32 math -> the words of set_float32_matmul_precision."""


def _read_precision(settings: dict[str, JsonValue]) -> None:
    """Read the switches of torch 2.9 where the script uses them: the old getters then raise."""
    backends = torch.backends
    general = getattr(backends, "fp32_precision", None)
    for name, part in (("matmul.precision", backends.cuda.matmul), ("cudnn.precision", backends.cudnn.conv)):
        own = getattr(part, "fp32_precision", None)
        word = general if own in (None, "none") else own
        if name not in settings and isinstance(word, str) and word in _OLD_WORDS:
            settings[name] = _OLD_WORDS[word]
    if "cudnn.allow_tf32" not in settings and "cudnn.precision" in settings:
        settings["cudnn.allow_tf32"] = settings["cudnn.precision"] != "highest"


def _read_threads(settings: dict[str, JsonValue]) -> None:
    threads, cores = torch.get_num_threads(), usable_cores()
    settings["threads.intra_op"] = threads
    settings["threads.inter_op"] = torch.get_num_interop_threads()
    settings["threads.oversubscribed"] = threads > cores


def _read_allocator(settings: dict[str, JsonValue]) -> None:
    settings["malloc.library"] = malloc_library()
    conf = next((os.environ[n] for n in ENVIRONMENT[:3] if n in os.environ and "ALLOC_CONF" in n), None)
    if conf is not None:
        settings["allocator.conf"] = conf
    if not torch.cuda.is_initialized():
        return
    settings["allocator.backend"] = torch.cuda.get_allocator_backend()
    # Set from Python it shows only here, and only in torch that has the getter.
    getter = getattr(torch._C, "_accelerator_getAllocatorSettings", None)
    told = str(getter()) if getter is not None else ""
    settings["allocator.expandable_segments"] = (
        "expandable_segments:true" in f"{told or conf or ''}".lower().replace(" ", "")
    )


def _read_python(settings: dict[str, JsonValue]) -> None:
    settings["gc.enabled"] = gc.isenabled()
    settings["gc.thresholds"] = list(gc.get_threshold())
    settings["gc.frozen"] = gc.get_freeze_count()
    settings["switch_interval_s"] = sys.getswitchinterval()


def _read_distributed(settings: dict[str, JsonValue]) -> None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        settings["distributed.backend"] = str(distributed.get_backend())


def _read_seen(settings: dict[str, JsonValue], seen: Seen, optimizers: Sequence[Any]) -> None:
    if seen.forwards:
        device = next(iter(seen.autocast), None)
        settings["autocast.dtype"] = seen.autocast[device] if device is not None else "none"
        if device is not None:
            settings["autocast.device"] = device
        roots = seen.roots
        settings["modules"] = [type(module).__qualname__ for module in roots]
        settings["distributed.module"], options = _wrapper(roots)
        if options:
            settings["distributed.settings"] = options
            settings["distributed.sends_buffers"] = torch_private.sends_buffers(roots)
            if options.get("find_unused_parameters"):
                unused = torch_private.unused_parameters(roots)
                settings["distributed.searches_in_vain"] = None if unused is None else unused == 0
        if settings["distributed.module"] == "fsdp":
            settings["distributed.units"] = options["units"]
            settings["distributed.replica_bytes"] = _replica_bytes(optimizers)
        settings["torchscript"] = any(isinstance(module, torch.jit.ScriptModule) for module in roots)
        _read_parameters(settings, roots)
        settings["gradients.unused_share"] = _unused_gradients(roots, optimizers)
    frozen = seen.frozen(optimizers)
    if frozen is not None:
        settings["ungraded.frozen"] = frozen
    if seen.twins:
        settings["ungraded.twin"] = True
    if seen.frozen_inside:
        settings["ungraded.inside"] = True
    if seen.ungraded_modes:
        settings["ungraded.training"] = False not in seen.ungraded_modes
        settings["ungraded.first"] = seen.acted_first
        if in_environment():
            settings["ungraded.environment"] = True
    if seen.scaler is not None:
        settings["grad_scaler"] = seen.scaler
    if seen.set_to_none is not None:
        settings["zero_grad.set_to_none"] = seen.set_to_none


def in_environment() -> bool:
    """Return whether a library of environments is loaded: there a model may act in evaluation mode."""
    return any(name in sys.modules for name in _ENVIRONMENTS)


def _shapes(module: Any) -> list[Any]:
    return [parameter.shape for parameter in module.parameters()]


def _needs_gradients(module: Any) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _frozen_parts(root: Any) -> list[Any]:
    """Return the outermost modules of whose parameters none needs a gradient."""
    found, pending = [], [root]
    while pending:
        module = pending.pop()
        if is_untrained(module):
            found.append(module)
        else:
            pending += module.children()
    return found


def is_convolution_weight(parameter: torch.Tensor) -> bool:
    """Whether channels_last changes it: kernels of one point lie the same way in both formats."""
    return parameter.dim() in CHANNELS_LAST and math.prod(parameter.shape[2:]) > 1


def is_channels_last(tensor: torch.Tensor) -> bool:
    """Whether an image, a volume or a weight for them lies with channels innermost."""
    return bool(tensor.is_contiguous(memory_format=CHANNELS_LAST[tensor.dim()]))


def _read_parameters(settings: dict[str, JsonValue], roots: list[Any]) -> None:
    dtypes: dict[str, int] = {}
    last, images = 0, 0
    parameters = {id(p): p for module in roots for p in module.parameters()}.values()
    for parameter in parameters:
        name = _dtype_name(parameter.dtype)
        dtypes[name] = dtypes.get(name, 0) + int(parameter.numel())
        if is_convolution_weight(parameter):
            images += 1
            last += is_channels_last(parameter)
    settings["parameters.dtype"] = dtypes
    total = sum(dtypes.values())
    if total:
        settings["embedding.dense_share"] = round(_dense_embeddings(roots) / total, 4)
    if parameters:
        laid = "channels_last" if last * 2 > images else "contiguous"
        settings["memory_format"] = laid if images else "none"


def _unused_gradients(roots: list[Any], optimizers: Sequence[Any]) -> float:
    """Return the share of the elements of modules in training that have a gradient and no optimizer.

    A module of which no optimizer has any parameter is updated in another way, or not in training.
    """
    held = {id(p) for optimizer in optimizers for p in _parameters(optimizer)}
    total = unused = 0
    for root in roots:
        parameters = list(root.parameters())
        if any(id(p) in held for p in parameters):
            total += sum(p.numel() for p in parameters)
            unused += sum(p.numel() for p in parameters if p.grad is not None and id(p) not in held)
    return round(unused / total, 4) if total else 0.0


def _parameters(optimizer: Any) -> Iterator[Any]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _replica_bytes(optimizers: Sequence[Any]) -> int:
    """Return the bytes that other ranks keep: of parameters, gradients and the optimizers' state."""
    total = 0
    for optimizer in optimizers:
        for parameter in _parameters(optimizer):
            states = [v for v in optimizer.state.get(parameter, {}).values() if torch.is_tensor(v)]
            copies = 2 + sum(state.numel() == parameter.numel() for state in states)
            total += copies * torch_private.missing_bytes(parameter)
    return total


def _dense_embeddings(roots: list[Any]) -> int:
    """Return the elements of large embedding tables whose gradient is dense and that nothing else shares."""
    owners: dict[int, set[int]] = {}
    tables: dict[int, Any] = {}
    for module in (inner for root in roots for inner in root.modules()):
        for parameter in module._parameters.values():
            if parameter is None:
                continue
            owners.setdefault(id(parameter), set()).add(id(module))
            table = isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and not module.sparse
            if table and parameter.requires_grad and parameter.shape[0] >= MANY_ROWS:
                tables[id(parameter)] = parameter
    # The table of a language model is its output layer as well, whose gradient is dense by nature.
    return sum(table.numel() for key, table in tables.items() if len(owners[key]) == 1)


def _wrapper(roots: list[Any]) -> tuple[str, dict[str, JsonValue]]:
    """Return how the root modules are wrapped for several devices, and the wrapper's options."""
    for module in roots:
        kinds = {base.__name__ for base in type(module).__mro__}
        if "DistributedDataParallel" in kinds:
            names = ("static_graph", "gradient_as_bucket_view", "find_unused_parameters")
            options = {n: bool(getattr(module, n)) for n in names if hasattr(module, n)}
            bucket = getattr(module, "bucket_bytes_cap", None)
            return "ddp", {**options, **({"bucket_bytes_cap": int(bucket)} if bucket else {})}
        if _is_sharded(module):
            return "fsdp", {"units": sum(_is_sharded(inner) for inner in module.modules())}
        if "DataParallel" in kinds:
            return "dp", {"devices": len(getattr(module, "device_ids", []))}
        if "DeepSpeedEngine" in kinds:
            return "deepspeed", {}
    return "none", {}


def _is_sharded(module: Any) -> bool:
    return not {"FullyShardedDataParallel", "FSDPModule"}.isdisjoint(b.__name__ for b in type(module).__mro__)


def malloc_library() -> str:
    """Return which malloc serves this process, by the libraries mapped into it."""
    with contextlib.suppress(OSError):
        mapped = Path("/proc/self/maps").read_text()
        for name in ("jemalloc", "tcmalloc", "mimalloc"):
            if f"lib{name}" in mapped:
                return name
        if "libc.so" in mapped or "libc-" in mapped:
            return "glibc"
    return "unknown"


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
