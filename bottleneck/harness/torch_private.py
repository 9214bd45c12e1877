"""Every private corner of torch that the hooks and captures need, each tested for before use.

In: nothing. Out: small functions that work on torch 2.6 to 2.15, or say that a thing is not there
(None, False); the caller then records "not measured". But for `autograd_private` and `loader_private`, no
other file of the hooks and captures touches an underscore name of torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.autograd import profiler as autograd_profiler
from torch.multiprocessing import reductions
from torch.optim import optimizer

from ..clocks import perf_counter_ns
from ..runs.environment import available_memory

record_function = torch.profiler.record_function


def checkpoint_ways() -> list[tuple[Any, str]]:
    """Return (module, name) of what `checkpoint()` calls: a class with and a generator without re-entry."""
    from torch.utils import checkpoint

    generator = "_checkpoint_without_reentrant_generator"
    # From torch 2.14 on that one only calls another, as `checkpoint()` does.
    generator += "_impl" if hasattr(checkpoint, f"{generator}_impl") else ""
    return [(checkpoint, name) for name in ("CheckpointFunction", generator) if hasattr(checkpoint, name)]


def cache_emptiers() -> list[tuple[Any, str]]:
    """Return (owner, name) of every function that empties the allocator's cache."""
    owners = (torch.cuda, torch.cuda.memory, getattr(torch, "accelerator", None))
    public = [(owner, "empty_cache") for owner in owners if hasattr(owner, "empty_cache")]
    names = ("_cuda_emptyCache", "_accelerator_emptyCache")
    return public + [(torch._C, name) for name in names if hasattr(torch._C, name)]


def fused_refuses(parameters: list[torch.Tensor]) -> str:
    """Return why a fused optimizer's step would not take these, or an empty text."""
    check = getattr(optimizer, "_device_dtype_check_for_fused", None)
    try:
        for parameter in parameters if check is not None else ():
            check(parameter)  # type: ignore[misc]
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""


def mark_skip(code: CodeType) -> bool:
    """Tell dynamo never to compile frames of this code; needs no `import torch._dynamo`.

    Without it a wrapper that runs after a graph break becomes a compiled frame of its own
    (2 more per backward), which the script's counters would show.

    Returns:
        Whether this torch offered a way.
    """
    eval_frame = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    if eval_frame is None:
        return False
    try:
        if hasattr(eval_frame, "set_code_exec_strategy"):
            action, strategy = eval_frame._FrameAction, eval_frame._FrameExecStrategy
            eval_frame.set_code_exec_strategy(code, strategy(action.SKIP, action.DEFAULT))
        else:
            eval_frame.skip_code(code)
    except (AttributeError, TypeError):
        return False
    return True


def script_names() -> dict[int, str]:
    """Return what TorchScript calls functions, by their ids: the table itself, or an empty one without it."""
    return getattr(sys.modules.get("torch.jit._builtins"), "_builtin_table", None) or {}


def skip_package(package: str) -> int:
    """Mark every function of our own package as code that dynamo skips.

    Where a script's compiled code has a graph break, dynamo looks at every Python frame that runs
    in between, and would compile what our wrappers call.

    Returns:
        The number of code objects marked.
    """
    marked = 0
    # A function of autograd and the class of its nodes hold each other.
    classes: set[type] = set()
    for name, module in list(sys.modules.items()):
        if name != package and not name.startswith(f"{package}."):
            continue
        pending: list[Any] = [v for v in vars(module).values() if _module_of(v) == name]
        while pending:
            item = pending.pop()
            if isinstance(item, CodeType):
                marked += mark_skip(item)
                pending.extend(c for c in item.co_consts if isinstance(c, CodeType))
            elif isinstance(item, type):
                pending.extend(vars(item).values() if item not in classes else ())
                classes.add(item)
            elif isinstance(item, property):
                pending.extend(f for f in (item.fget, item.fset) if f is not None)
            elif isinstance(item, (staticmethod, classmethod)):
                pending.append(item.__func__)
            elif isinstance(item, FunctionType):
                pending.append(item.__code__)
    return marked


def _module_of(value: object) -> str | None:
    return getattr(value, "__module__", None) if isinstance(value, (type, FunctionType)) else None


PROFILER_CALLS = ("_prepare_profiler", "_enable_profiler", "_disable_profiler")
"""Functions of torch.autograd.profiler that a profiler of either kind prepares, begins and ends recording
with. It takes no results for an empty recording."""


def profiler_running() -> bool:
    """Return whether some torch profiler records now, ours or the script's own."""
    return bool(getattr(autograd_profiler, "_is_profiler_enabled", False))


def record_in_this_thread(*, enabled: bool) -> None:
    """Have the profile that is on in this thread go on or pause, without a call to it.

    Paused, torch does not name its optimizer steps for it either.
    """
    with contextlib.suppress(AttributeError):
        torch.autograd._enable_record_function(enabled)
        autograd_profiler._set_is_profiler_enabled(enabled)


def enter_first(mode: Any) -> bool:
    """Put a mode of functions under all that the script may enter; False where it is inside one already.

    That of `torch.set_default_device` stays below all others; `with torch.device(...)` ends what is on top.
    """
    stack = getattr(torch.overrides, "_get_current_function_mode_stack", None)
    if stack is None or any(mode is not _default_context() for mode in stack()):
        return False
    mode.__enter__()
    return True


def function_modes() -> list[str]:
    """Return the types of the modes that each call of torch's functions on this thread goes through."""
    stack = getattr(torch.overrides, "_get_current_function_mode_stack", None)
    return [f"{type(mode).__module__}.{type(mode).__qualname__}" for mode in (stack() if stack else ())]


def default_device() -> torch.device | None:
    """Return what `torch.set_default_device` was given; None where it was not called, or given None."""
    return getattr(_default_context(), "device", None)


def _default_context() -> Any:
    """Return the mode of `torch.set_default_device`; None where there is none."""
    return getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)


def is_on(mode: Any) -> bool:
    """Return whether calls on this thread go through a mode of functions now; not while it handles one."""
    return mode in torch.overrides._get_current_function_mode_stack()


def leave(mode: Any) -> None:
    """Take a mode of functions away, wherever it stands among those that the script has entered since."""
    if not is_on(mode):
        return  # of another thread, or gone with all others
    above = []
    while (last := torch.overrides._pop_mode()) is not mode:
        above.append(last)
    for each in reversed(above):
        torch.overrides._push_mode(each)


def undisabled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what `torch._disable_dynamo` wrapped, so that wrapping again costs one layer only."""
    return getattr(function, "__wrapped__", function)


PHASE_FUNCTIONS = {
    ("torch/nn/modules/module.py", "_call_impl"): "forward",
    ("torch/autograd/graph.py", "_engine_run_backward"): "backward",
    ("torch/utils/data/dataloader.py", "__next__"): "data",
    ("torch/optim/optimizer.py", "wrapper"): "optimizer",
    ("torch/optim/optimizer.py", "zero_grad"): "zero_grad",
}
"""Functions of torch on the stack during a phase, by the end of their file's path and their name."""


def exchange_hook(handle: Any, hook: Any) -> bool:
    """Put another hook in the place of one that was registered, keeping its turn among the others.

    Returns whether it was done: not where the handle does not tell its table, or the hook is gone.
    """
    table = getattr(handle, "hooks_dict_ref", lambda: None)()
    key = getattr(handle, "id", None)
    if table is None or key not in table:
        return False
    if table[key] is not hook:
        table[key] = hook
    return True


def disable_dynamo(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function as torch wraps `Optimizer.zero_grad`: dynamo breaks, but looks no further."""
    wrap = getattr(torch, "_disable_dynamo", None)
    return wrap(function) if wrap is not None else function


def experimental_config(wish: dict[str, bool]) -> Any:
    """Return an `_ExperimentalConfig` with those wishes that this torch knows, or None."""
    factory = getattr(getattr(torch._C, "_profiler", None), "_ExperimentalConfig", None)
    if factory is None:
        return None
    kept: dict[str, bool] = {}
    for name, value in wish.items():
        with contextlib.suppress(TypeError):
            factory(**{**kept, name: value})
            kept[name] = value
    return factory(**kept) if kept else None


def device_kind() -> str:
    """Return "cuda", "rocm" or "cpu": what this process has *used* so far, not what exists."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return "rocm" if torch.version.hip else "cuda"
    return "cpu"


def watch_out_of_memory(observer: Callable[[int, int, int, int], None]) -> bool:
    """Have the CUDA allocator call `observer(device, requested, limit, free)` when it gives up.

    It calls without its lock held, before the exception is raised. Starts CUDA; cannot be undone.

    Returns:
        Whether this torch offers it.
    """
    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if attach is None:
        return False
    attach(observer)
    return True


def skip_random_numbers() -> None:
    """Have the generator of the device that is used draw other numbers from now on."""
    if device_kind() == "cpu":
        torch.rand(1)
    else:
        torch.rand(1, device="cuda")


def default_store() -> Any:
    """Return the key-value store of the default process group, or None when there is none."""
    try:
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()):
            return None
        return dist.distributed_c10d._get_default_store()
    except (ImportError, AttributeError, RuntimeError, ValueError):
        return None


def world() -> tuple[int, int]:
    """Return (rank, world size): of the process group if there is one, else of the launcher."""
    try:
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
    except (ImportError, RuntimeError, ValueError):
        pass
    try:
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1


def is_traced_module(module: object) -> bool:
    """Return whether a root module is a compiled graph: it runs with grad off, yet is training."""
    return type(module).__name__ in {"GraphModule", "<lambda>", "GraphModuleImpl"}


def versions(module: torch.nn.Module) -> list[int]:
    """Return how often each parameter of a module was written in place (not through `.data`)."""
    return [parameter._version for parameter in module.parameters()]


def unused_parameters(modules: Iterable[torch.nn.Module]) -> int | None:
    """Return how many parameters DDP found unused in the last backward; None where torch does not tell."""
    found = None
    for module in modules:
        reducer = getattr(module, "reducer", None)
        used_map = getattr(reducer, "_get_local_used_map", None)
        if used_map is not None and getattr(module, "find_unused_parameters", False):
            used = used_map()
            found = (found or 0) + int((used == 0).sum())
    return found


def sends_buffers(modules: Iterable[torch.nn.Module]) -> bool:
    """Return whether DDP sends buffers of one of these to all ranks before each forward."""
    return any(
        bool(getattr(module, "broadcast_buffers", False)) and len(getattr(module, "modules_buffers", ())) > 0
        for module in modules
    )


def gradient_buckets(modules: Iterable[torch.nn.Module]) -> list[list[int]]:
    """Return the bytes of each gradient, by the buckets in which DDP sends them, in its own order.

    Empty where no module is in DDP, where several are, and where DDP has not laid its buckets out by the
    order of the gradients yet: it does so in its second backward, and never with unused parameters.
    """
    found = []
    for module in modules:
        told = getattr(getattr(module, "logger", None), "_get_ddp_logging_data", None)
        facts = dict(told().strs_map) if told is not None else {}
        if not facts.get("rebuilt_per_bucket_param_indices"):
            continue
        ignored = getattr(module, "parameters_to_ignore", ())
        sent = [
            parameter.numel() * parameter.element_size()
            for name, parameter in module.module.named_parameters()
            if parameter.requires_grad and name not in ignored
        ]
        buckets = [
            list(map(int, each.split())) for each in facts["rebuilt_per_bucket_param_indices"].split(",")
        ]
        sizes = [int(each) for each in facts["rebuilt_bucket_sizes"].split(",")]
        if max(map(max, buckets)) >= len(sent):
            continue
        gradients = [[sent[i] for i in bucket] for bucket in buckets]
        # What DDP counts is right; a parameter that it sends in another type is not told apart.
        if [sum(each) for each in gradients] == sizes:
            found.append(gradients)
    return found[0] if len(found) == 1 else []


def missing_bytes(parameter: torch.Tensor) -> int:
    """Return the bytes of a parameter that FSDP keeps on other ranks."""
    # FSDP1 flattens the parameters of a module, FSDP2 makes them DTensors.
    whole = getattr(parameter, "_unpadded_unsharded_size", parameter.shape)
    here = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return max(0, int(whole.numel() - here.numel())) * int(parameter.element_size())


class ModuleHooks:
    """Calls of all modules, with their keywords, from now until `remove`."""

    def __init__(self, before: Callable[..., None], after: Callable[..., None]) -> None:
        """Call `before(module, args)` and `after(module, args, kwargs, output)` around each forward."""
        of = torch.nn.modules.module
        self._before = of.register_module_forward_pre_hook(before)
        self._after = of.register_module_forward_hook(after, with_kwargs=True)

    def remove(self) -> None:
        """Call them no more."""
        self._before.remove()
        self._after.remove()
        # Until torch 2.13 its handle forgets this table, and torch.compile warns of hooks that are gone.
        getattr(torch.nn.modules.module, "_global_forward_hooks_with_kwargs", {}).pop(self._after.id, None)


def is_capturing() -> bool:
    """Return whether the script is capturing a CUDA graph, of which whatever is launched becomes a part."""
    return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def wait_for_device() -> None:
    """Wait until the device has done what it was given.

    Raises:
        RuntimeError: a CUDA graph is being captured, which waiting would break.
    """
    if device_kind() != "cpu":
        if is_capturing():
            raise RuntimeError("a graph is being captured, which waiting would break")
        torch.cuda.synchronize()


def timed_apart(run: Callable[[], object], *, ahead_ns: int) -> tuple[int, int] | None:
    """Return what the host takes to hand something to the device, and what the device takes for it, in ns.

    `ahead_ns`: for so long the device is kept busy, in which the host must be done; None where it was not, or
    waits in between for what the device computes. The device's cache is overwritten first, as other work of a
    step would do.
    """
    keep_busy = getattr(torch.cuda, "_sleep", None)
    if device_kind() == "cpu" or keep_busy is None:
        return None
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    other = _as_large_as_the_cache()
    wait_for_device()
    keep_busy(_CYCLES_PER_NS * ahead_ns)
    if other is not None:
        other.zero_()
    begin.record()
    since_ns = perf_counter_ns()
    run()
    host_ns = perf_counter_ns() - since_ns
    end.record()
    was_late = begin.query()
    wait_for_device()
    return None if was_late else (host_ns, int(begin.elapsed_time(end) * 1e6))


def _as_large_as_the_cache() -> torch.Tensor | None:
    """Return memory of the device that fills its cache; None where there is little room."""
    size = 2 * getattr(torch.cuda.get_device_properties(), "L2_cache_size", 0)
    with contextlib.suppress(RuntimeError):
        if 0 < _ROOM * size < free_memory():
            return torch.empty(size, dtype=torch.uint8, device="cuda")
    return None


_ROOM = 8
"""Times as much must be free: nothing of the script's may have to make room."""
_CYCLES_PER_NS = 2
"""Of a device, at most."""


def free_memory() -> int:
    """Return how many bytes a tensor may still take where the script computes, before anything is freed."""
    if device_kind() == "cpu":
        return available_memory() or 0
    kept = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return int(torch.cuda.mem_get_info()[0] + kept)


def in_transform() -> bool:
    """Return whether a transform of torch.func runs (vmap, grad), in which tensors stand for others."""
    peek = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None)
    return peek is not None and peek() is not None


def is_compiled_module(module: object) -> bool:
    """Return whether a module was given to torch.compile, in place or as a wrapper of it."""
    return type(module).__name__ == "OptimizedModule" or (
        getattr(module, "_compiled_call_impl", None) is not None
    )


def compile_in_place(module: Any, **options: Any) -> None:
    """Compile a module under its own name, as `Module.compile()` does, whatever its class.

    `Module.compile()` compiles what `_call_impl` leads to; where that is a forward of torch's own
    (a plain `nn.Sequential`), dynamo skips every frame and compiles nothing. `torch.compile(module)`
    puts a frame in front that it does not skip, and so do we.
    """
    owner = str(getattr(type(module).forward, "__module__", ""))
    if owner.startswith("torch.nn.modules"):
        try:
            from torch._dynamo.external_utils import wrap_inline
        except ImportError:
            pass
        else:
            module._compiled_call_impl = torch.compile(wrap_inline(module._call_impl), **options)
            return
    # Some classes have a `compile` of their own: tasks that hold models, Keras-like trainers.
    torch.nn.Module.compile(module, **options)


def compiled_call(module: Any) -> Any:
    """Return what a module compiled in place calls, or None."""
    return getattr(module, "_compiled_call_impl", None)


def set_compiled_call(module: Any, call: Any) -> None:
    """Have a module call what was compiled of it before, or with None itself again."""
    if call is None:
        vars(module).pop("_compiled_call_impl", None)
    else:
        module._compiled_call_impl = call


@contextlib.contextmanager
def stays_eager_on_errors() -> Iterator[None]:
    """Have code that dynamo fails on run as it is, instead of raising. Imports dynamo."""
    from torch._dynamo import config

    was = config.suppress_errors
    config.suppress_errors = True
    try:
        yield
    finally:
        config.suppress_errors = was


def forget_compiled(modules: list[torch.nn.Module], *, everything: bool) -> None:
    """Drop what was compiled of modules, with its memory and its CUDA graphs.

    Their own forwards are forgotten. With `everything` all is: nobody else has compiled anything in this
    process.
    """
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None:
        return
    if everything:
        dynamo.reset()
        return
    forget = getattr(sys.modules.get("torch._dynamo.eval_frame"), "reset_code", None)
    if forget is not None:
        for code in {getattr(type(module).forward, "__code__", None) for module in modules}:
            if code is not None:
                forget(code)


def dynamo_counter(group: str, name: str | None) -> int | None:
    """Return one of dynamo's counters, or the sum of a group; None while dynamo is not in use."""
    utils = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utils, "counters", None)
    if counters is None:
        return None
    found = counters.get(group, {})
    return int(sum(found.values())) if name is None else int(found.get(name, 0))


def dynamo_looks() -> bool:
    """Return whether dynamo has looked at a frame in this process, whether or not it could capture a graph.

    It looks at what such frames call, too: at a mode of functions, or at hooks. With fullgraph=True it counts
    the graph, and not the frame.
    """
    return bool(dynamo_counter("frames", "total") or dynamo_counter("stats", "unique_graphs"))


def _recompile_limit_name(config: Any) -> str:
    # Renamed in 2.7; the old name stays an alias.
    return "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"


def set_recompile_limit(limit: int) -> None:
    """Let dynamo compile one function for so many variants; imports dynamo."""
    from torch._dynamo import config

    setattr(config, _recompile_limit_name(config), limit)


def recompile_limit() -> int | None:
    """Return dynamo's limit, or None while dynamo is not in use."""
    config = sys.modules.get("torch._dynamo.config")
    return None if config is None else int(getattr(config, _recompile_limit_name(config)))


def distributions_checked() -> bool:
    """Return whether torch.distributions check what they are given, unless told otherwise."""
    return bool(torch.distributions.Distribution._validate_args)


def check_distributions(checked: bool) -> None:
    """Have torch.distributions check what they are given, or not, unless told otherwise."""
    torch.distributions.Distribution.set_default_validate_args(checked)


_PAUSES_HARD = 2
"""`omp_pause_hard` of omp.h."""


def denormals_flushed() -> bool:
    """Return whether this thread takes denormal numbers for zeros."""
    half = torch.full((1,), torch.finfo(torch.float32).smallest_normal) * 0.5
    return not half.view(torch.int32).item()


def flush_denormals(flush: bool) -> None:
    """Have this thread, and those that operators share their work among, take denormals for zeros, or not.

    Each thread has a switch of its own and begins with that of the one that starts it, so OpenMP's threads
    are let go: the next operator starts new ones.

    Raises:
        RuntimeError: OpenMP does not let go of its threads (before GCC 9), or there is no such switch.
    """
    pauses = _pauses_of_openmp()
    if torch.get_num_threads() > 1 and not pauses:
        raise RuntimeError("this OpenMP does not let go of its threads, which keep their setting")
    if not torch.set_flush_denormal(flush):
        raise RuntimeError("this processor cannot take denormal numbers for zeros")
    for pause in pauses:
        pause(_PAUSES_HARD)


def _pauses_of_openmp() -> list[Callable[[int], int]]:
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    loaded = {line.rpartition(" ")[2] for line in maps if re.search(r"/lib[gi]?omp\d*[-.][^/]*$", line)}
    found = (getattr(ctypes.CDLL(path), "omp_pause_resource_all", None) for path in sorted(loaded))
    return [pause for pause in found if pause is not None]


def cudagraphs_recorded() -> int | None:
    """Return how many CUDA graphs inductor has recorded; None where this torch does not tell."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is None:
        return 0
    try:
        containers = trees.local.tree_manager_containers.values()
        managers = [container.tree_manager for container in containers]
        return sum(int(next(manager.graph_counter)) for manager in managers if manager is not None)
    except (AttributeError, TypeError):
        return None


def compile_in_this_process() -> None:
    """Have inductor compile here from now on: the processes that it has started serve another one."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    config = sys.modules.get("torch._inductor.config")
    if config is not None:
        config.compile_threads = 1  # type: ignore[attr-defined]


def end_compile_workers() -> None:
    """End the processes that inductor compiles in, without a word to them."""
    module = sys.modules.get("torch._inductor.async_compile")
    for pool in list(getattr(module, "_pool_set", ())):
        process = getattr(pool, "process", None)
        if process is not None:
            process.kill()


def set_allocator_settings(text: str) -> bool:
    """Set the CUDA allocator's settings in the running process; say whether this torch can."""
    for owner, name in (
        (torch._C, "_accelerator_setAllocatorSettings"),
        (torch.cuda.memory, "_set_allocator_settings"),
    ):
        setter = getattr(owner, name, None)
        if setter is not None:
            try:
                setter(text)
            except (RuntimeError, ValueError):
                return False
            return True
    return False


class WeakStorage:
    """The memory of a tensor, which it does not keep alive."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        """Refer to it."""
        self._reference = reductions.StorageWeakRef(storage)

    @property
    def key(self) -> int:
        """What no other storage has as long as this object lives."""
        return int(self._reference.cdata)

    def now(self) -> torch.UntypedStorage | None:
        """Return it, or None once it is gone."""
        found: torch.UntypedStorage | None = torch.UntypedStorage._new_with_weak_ptr(self._reference.cdata)
        return found
