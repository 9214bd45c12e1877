"""Patches around torch.compile: compiling what is not, and compiling otherwise what is.

In: root modules at their first call, and the arguments of `torch.compile`. Out: compiled modules,
under their own names: `Module.compile()` changes neither attributes nor state_dict. What does not
compile fails as it would in the script; that is a result.
"""

from __future__ import annotations

import contextlib
import types
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch.optim import optimizer as optim_module

from ....model.fix import Beside
from ....model.verify import Applied, CompilerLook
from ... import torch_private
from ...lines.sites import user_site
from .base import Patch, Program, plural
from .graph_gradients import GraphGradients
from .optimizer_state import OptimizerState
from .outside import Outside
from .roots import RootPatch

_GRAPHS_ALONE = "cudagraphs"
"""torch's back end that makes CUDA graphs of the kernels that there are: it generates no code."""
MANY = 32
"""Recompilation limit, as in the code of its fix."""


class _Compiling(RootPatch):
    """Compiles root modules that train, unless the script has."""

    mode: str | None = None
    settles = 4
    foresees = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._compiled: weakref.WeakKeyDictionary[torch.nn.Module, Any] = weakref.WeakKeyDictionary()
        self._looks = False
        """Nothing is made of what dynamo captures."""
        self._turns = 0
        self._before = Counted()
        """What dynamo had counted when the first turn began."""
        self._eager = contextlib.ExitStack()
        self._outside = Outside()

    def arguments(self) -> dict[str, Any]:
        """Return the keywords for `Module.compile`."""
        if self._looks:
            return {"backend": self._outside.backend}
        wanted = {"mode": self.option("mode", self.mode), "dynamic": self.option("dynamic", None)}
        wanted["backend"] = self.option("backend", None)
        return {name: value for name, value in wanted.items() if value is not None}

    def takes(self, module: torch.nn.Module) -> bool:
        if not any(p.requires_grad for p in module.parameters()):
            return False
        if torch_private.is_compiled_module(module):
            self.passed(f"{type(module).__name__} is compiled already")
            return False
        if isinstance(module, torch.jit.ScriptModule):
            self.passed(f"{type(module).__name__} is TorchScript")
            return False
        targets = repeated_blocks(module) if self.option("blocks", default=False) else [module]
        if not targets:
            self.passed(f"{type(module).__name__} has no repeated blocks")
            return False
        for target in targets:
            if (before := self._compiled.get(target)) is not None:
                torch_private.set_compiled_call(target, before)
            else:
                torch_private.compile_in_place(target, **self.arguments())
                self._compiled[target] = torch_private.compiled_call(target)
            blocks = {"blocks": True} if target is not module else {}
            self.acted(None, **self.arguments(), **blocks)
        return True

    def put_in(self, program: Program) -> None:
        """Compile the roots; what was compiled at an earlier turn is used again."""
        if not self._turns:
            self._before = Counted.now()
        super().put_in(program)
        self._take_now(program)
        self._turns += 1

    def uninstall(self) -> None:
        super().uninstall()
        for target, ours in self._compiled.items():
            if torch_private.compiled_call(target) is ours:
                torch_private.set_compiled_call(target, None)

    def settle_steps(self, program: Program) -> int:  # noqa: ARG002 - the method's signature
        """Compiling at the first turn; recording CUDA graphs, which may take as many steps again."""
        return self.settles if self.is_on and self._turns == 1 else 2

    def close(self) -> None:
        """Give back the memory of what was compiled."""
        if self._compiled:
            _forget(list(self._compiled), self._before)
        self._compiled.clear()
        self._turns = 0
        self._end_looking()

    def foresee(self, program: Program) -> None:
        """Compile without a back end, which takes seconds: dynamo captures what it would capture."""
        self._looks = True
        self._outside = Outside()
        self._eager.enter_context(torch_private.stays_eager_on_errors())
        try:
            self.switch_on(program)
        except BaseException:
            self._end_looking()
            raise
        self._outside.begin(program.roots)

    def foreseen(self) -> str | None:
        self._outside.end()
        try:
            self.switch_off()
            captured = Counted.now().since(self._before)
            names = ", ".join(dict.fromkeys(type(module).__name__ for module in self._compiled))
            self.close()
        finally:
            self._end_looking()
        outside = self._outside
        share = 0.0 if not captured.calls else None if outside.share is None else 1.0 - outside.share
        self.look = CompilerLook(
            graphs=captured.graphs, breaks=captured.breaks, share=share, outside=list(outside.names)
        )
        return None if captured.calls else f"dynamo captures nothing of {names}"

    def _end_looking(self) -> None:
        self._eager.close()
        self._looks = False
        self._found = None

    def check(self) -> Applied:
        """Ask dynamo whether there are graphs."""
        if not self.count:
            return self.not_applied()
        return _with_graphs(self, self.evidence(), self._before)

    def evidence(self) -> str:
        told = ", ".join(f"{name}={value!r}" for name, value in self.arguments().items())
        return f"{plural(self.count, 'module')} compiled" + (f" with {told}" if told else "")


class Compile(_Compiling):
    """The root modules; option blocks=true compiles their repeated blocks instead."""

    fix = "FX414"


class CompileArguments(Patch):
    """Other keywords for what the script gives to torch.compile itself."""

    after_watches = True
    why_not_live = "what the script compiles is compiled with its own keywords by now"
    forced: ClassVar[dict[str, Any]] = {}
    """The keywords to set."""
    nothing_to_do = "the script gives nothing to torch.compile"

    def install(self) -> None:
        self.replaced.put(torch, "compile", self._make_compile)

    def _make_compile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile(model: Any = None, **kwargs: Any) -> Any:  # noqa: A001 - stands in for it
            if model is not None:
                self.compiles(kwargs)
            return original(model, **kwargs)

        return compile

    def compiles(self, kwargs: dict[str, Any]) -> None:
        """Something is given to torch.compile with these keywords, which may be changed."""
        kwargs.update(self.forced)
        self.acted(user_site(), **self.forced)

    def check(self) -> Applied:
        if not self.count:
            return self.not_applied()
        return _with_graphs(self, self.evidence())


class FullGraph(CompileArguments):
    """A graph break is an error."""

    fix = "FX406"
    forced: ClassVar[dict[str, Any]] = {"fullgraph": True}


class DynamicShapes(CompileArguments):
    """One graph for all sizes."""

    fix = "FX407"
    forced: ClassVar[dict[str, Any]] = {"dynamic": True}


class RecompileLimit(CompileArguments):
    """More graphs of one function before the compiler gives up on it."""

    fix = "FX411"
    why_not_live = "what the compiler has given up stays given up"

    def compiles(self, kwargs: dict[str, Any]) -> None:  # noqa: ARG002 - the limit is no keyword
        limit = int(self.option("limit", MANY))
        torch_private.set_recompile_limit(limit)
        self.acted(user_site(), recompile_limit=limit)

    def check(self) -> Applied:
        if self.count and torch_private.recompile_limit() != self.values.get("recompile_limit"):
            return self.not_applied("the script set the limit back")
        return super().check()


class CudaGraphs(_Compiling):
    """mode="reduce-overhead", for what the script compiles or else for its root modules."""

    mode = "reduce-overhead"
    settles = 7

    def _watch(self, kinds: set[type]) -> None:
        self._users: _ForcedMode | None = None
        self._gradients = GraphGradients(self.options)
        self._gradients.install()
        super()._watch(kinds)

    def arguments(self) -> dict[str, Any]:
        """See `_Compiling`; in turns the kernels that there are get recorded: seconds, not a minute."""
        if self.tried_as and not self._looks:
            return {"backend": _GRAPHS_ALONE}
        return super().arguments()

    def put_in(self, program: Program) -> None:
        if not {"mode", "backend"} & self.options.keys():
            self.tried_as = "by CUDA graphs alone"
        super().put_in(program)
        self._gradients.remember(program)

    def uninstall(self) -> None:
        self._gradients.take_out()
        super().uninstall()

    def takes(self, module: torch.nn.Module) -> bool:
        users = self._users
        if users is None:
            return super().takes(module)
        if users.count:
            return True
        users.ours = True
        try:
            return super().takes(module)
        finally:
            users.ours = False

    def around(self, original: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """Tell CUDA graphs, once an update, that the outputs of the one before are no longer needed.

        Not in a look, which records none: the first time it loads all of inductor, for seconds that would
        count as outside of graphs.
        """
        mark = getattr(torch.compiler, "cudagraph_mark_step_begin", None)
        if not self._looks and self._gradients.first_pass(module) and mark is not None:
            mark()
        return original(module, *args, **kwargs)

    def join(self, users: _ForcedMode) -> None:
        """Know of the patch that changes the script's own calls."""
        self._users = users

    def check(self) -> Applied:
        """Ask whether graphs were recorded, or why not."""
        users = self._users
        if users is not None and users.count:
            for site in users._sites.values():
                self.acted(site, mode=self.mode)
        if not self.count:
            return self.not_applied()
        if torch_private.device_kind() != "cuda":
            return self.not_applied("CUDA graphs need an NVIDIA GPU")
        recorded = torch_private.cudagraphs_recorded()
        if recorded == 0:
            skips = torch_private.dynamo_counter("inductor", "cudagraph_skips")
            why = f" ({skips} skipped)" if skips else ""
            return self.not_applied(f"no CUDA graph was recorded{why}")
        told = [self.evidence()]
        if recorded:
            told.append(f"{plural(recorded, 'CUDA graph')} recorded")
        if kept := self._gradients.evidence():
            told.append(kept)
        if self._gradients.count:
            self.beside = [Beside.GRADIENTS_DROPPED]
        return _with_graphs(self, "; ".join(told), self._before)


class _ForcedMode(CompileArguments):
    """The half of `ReduceOverhead` that changes the script's own calls of torch.compile."""

    ours = False
    """It is the other half that compiles something now."""

    def compiles(self, kwargs: dict[str, Any]) -> None:
        if self.ours:
            return
        if kwargs.get("backend", "inductor") != "inductor":
            self.passed("another backend than inductor is in use")
            return
        kwargs.pop("options", None)
        kwargs["mode"] = "reduce-overhead"
        self.acted(user_site(), mode="reduce-overhead")


class ReduceOverhead(CudaGraphs):
    """CUDA graphs of what the script compiles, or else of its root modules."""

    fix = "FX412"

    after_watches = True

    def install(self) -> None:
        super().install()
        users = _ForcedMode(self.options)
        users.install()
        self.join(users)

    def uninstall(self) -> None:
        if self._users is not None:
            self._users.uninstall()
        super().uninstall()


class Regional(_Compiling):
    """The repeated blocks of a model, instead of the whole model that the script compiles."""

    fix = "FX410"

    after_watches = True

    def install(self) -> None:
        super().install()
        self._inside = False
        self.replaced.put(torch, "compile", self._make_compile)

    def _make_compile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile(model: Any = None, **kwargs: Any) -> Any:  # noqa: A001 - stands in for it
            owner = getattr(model, "__self__", model)
            if self._inside or not isinstance(owner, torch.nn.Module):
                return original(model, **kwargs)
            blocks = repeated_blocks(owner)
            if not blocks:
                self.passed(f"{type(owner).__name__} has no repeated blocks")
                return original(model, **kwargs)
            self._inside = True
            try:
                for block in blocks:
                    torch_private.compile_in_place(block, **kwargs)
                    self.acted(user_site())
            finally:
                self._inside = False
            self._roots[owner] = True
            return model

        return compile

    def takes(self, module: torch.nn.Module) -> bool:
        self.options["blocks"] = True
        self._inside = True
        try:
            return super().takes(module)
        finally:
            self._inside = False

    def evidence(self) -> str:
        return f"{plural(self.count, 'block')} compiled one by one"


class CompiledStep(Patch):
    """The optimizer's step, compiled from its second call on."""

    fix = "FX416"
    live = True
    settles = 4
    nothing_to_do = "no optimizer of torch made a step"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._compiled: dict[int, Any] = {}
        """Id of an optimizer -> its compiled step, kept from turn to turn."""
        self._were: list[OptimizerState] = []
        self._before = Counted()
        self._turns = 0

    def install(self) -> None:
        self.replaced.hook(optim_module.register_optimizer_step_pre_hook(self._before_step))
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def put_in(self, program: Program) -> None:
        """See `Patch`; dynamo moves the counts of steps to the device."""
        if not self._turns:
            self._before = Counted.now()
        self._turns += 1
        self._were = [OptimizerState(optimizer) for optimizer in program.optimizers]
        self.install()

    def uninstall(self) -> None:
        super().uninstall()
        for was in self._were:
            was.put_back()
        self._were = []

    def settle_steps(self, program: Program) -> int:  # noqa: ARG002 - the method's signature
        """The step of the first turn's second update compiles."""
        return self.settles if self.is_on and self._turns == 1 else 2

    def close(self) -> None:
        if self._compiled:
            _forget([], self._before)
        self._compiled.clear()

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if torch.compiler.is_compiling() or optimizer in self._seen:
            return
        self._seen.add(optimizer)
        hooked = type(optimizer).step
        inner = getattr(hooked, "__wrapped__", None)
        if inner is None:
            self.passed(f"{type(optimizer).__name__} has a step() of its own making")
            return
        if id(optimizer) not in self._compiled:
            self._compiled[id(optimizer)] = self._compile(inner)
        self.replaced.set(optimizer, "step", types.MethodType(self._compiled[id(optimizer)], optimizer))
        self.acted(user_site())

    def _compile(self, inner: Any) -> Any:
        """Compile only what lies inside torch's hooks: those are how steps are seen."""
        compiled = torch.compile(inner)

        def update(opt: Any, *args: Any, **kwargs: Any) -> Any:
            # By the first step a scheduler has wrapped step(), and wants to know whether it was called.
            opt._opt_called = True
            return compiled(opt, *args, **kwargs)

        return optim_module.Optimizer.profile_hook_step(update)

    def check(self) -> Applied:
        if not self.count:
            return self.not_applied()
        return _with_graphs(self, f"step() of {plural(self.count, 'optimizer')} compiled", self._before)


def repeated_blocks(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the layers of a model: children of one class in the container that holds most weights."""
    best: list[torch.nn.Module] = []
    most = 0
    for container in module.modules():
        if not isinstance(container, (torch.nn.ModuleList, torch.nn.Sequential)):
            continue
        children = [child for child in container.children() if next(child.parameters(), None) is not None]
        if len(children) < 2 or len({type(child) for child in children}) > 1:
            continue
        held = sum(p.numel() for child in children for p in child.parameters())
        if held > most:
            best, most = children, held
    return best


class Counted(NamedTuple):
    """What dynamo has counted so far; nothing while it is not in use."""

    frames: int = 0
    graphs: int = 0
    calls: int = 0
    """Calls of operators and the like that graphs hold."""
    breaks: int = 0

    @classmethod
    def now(cls) -> Counted:
        """Return what it says now."""
        counter = torch_private.dynamo_counter
        return cls(
            frames=counter("frames", "total") or 0,
            graphs=counter("stats", "unique_graphs") or 0,
            calls=counter("stats", "calls_captured") or 0,
            breaks=counter("graph_break", None) or 0,
        )

    def since(self, before: Counted) -> Counted:
        """Return what was counted since then."""
        return Counted(*(now - then for now, then in zip(self, before, strict=True)))


_NOTHING = Counted()


class _Ours:
    """What patches have had compiled in turns so far, in this process."""

    frames: ClassVar[int] = 0


def _forget(modules: list[torch.nn.Module], before: Counted) -> None:
    """Drop what a patch has had compiled since its first turn; all of it, where nobody else compiles."""
    alone = before.frames <= _Ours.frames
    _Ours.frames += Counted.now().since(before).frames
    torch_private.forget_compiled(modules, everything=alone)


def _with_graphs(patch: Patch, evidence: str, before: Counted = _NOTHING) -> Applied:
    """Return "applied" if dynamo has made graphs since, with what else it says."""
    if torch_private.dynamo_counter("stats", "unique_graphs") is None:
        return patch.applied(evidence)
    made = Counted.now().since(before)
    if not made.graphs:
        return patch.not_applied("torch.compile was called, but no graph was compiled")
    told = [evidence, plural(made.graphs, "graph")]
    if made.breaks > 0:
        told.append(plural(made.breaks, "graph break"))
    return patch.applied("; ".join(told))
