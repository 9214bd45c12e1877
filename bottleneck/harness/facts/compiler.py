"""What torch.compile did during the run: breaks, recompiles, compilations with their step.

In: dynamo's own records, in memory, read at cuts. Out: compile.json. Nothing is installed until
the script (or torch for it) has imported `torch._dynamo`, and a cut after which nothing was
compiled costs three comparisons. Access is the same on torch 2.6 to 2.15; fields that a version
lacks are read with a default.
"""

from __future__ import annotations

import contextlib
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch

from ...clocks import epoch_ns, perf_counter_ns
from ...model.run import CompileEvent, CompileFacts, GraphBreak, Recompile, SourceSite
from ...runs.store import Store
from ..events.replacing import Replacements
from ..imports import ImportWatch
from ..lines.sites import is_library
from .compile_records import (
    ATTEMPT,
    break_site,
    failed_guard,
    first_line,
    gave_up_silently,
    guard_line,
    hint,
    sites,
)

METRICS_KEPT = 4096
"""Dynamo keeps 64 compilations by default; a model compiled per block makes more."""
_NUMBER = re.compile(r"\d+")
_RESUMED = re.compile(r"torch_dynamo_resume_in_(?P<function>.+)_at_\d+$")


class CompileWatch:
    """Collects facts about compilations. One per process."""

    def __init__(self, store: Store, *, began: Callable[[], None] = lambda: None) -> None:
        """Watch nothing yet; `began` is called at the beginning of each compilation."""
        self._store = store
        self._tell_began = began
        self._watch = ImportWatch("torch._dynamo", self._on_dynamo)
        self._running = 0
        self._begun = 0
        self._seen_begun = 0
        self._seen_metrics = 0
        self._seen_breaks = 0
        self._callbacks = False
        self.asked_for = False
        """The program compiles something, or has said that it will."""
        self._events: list[CompileEvent] = []
        self._breaks: dict[tuple[str, int, str], GraphBreak] = {}
        self._recompiles: dict[tuple[str, int, str], Recompile] = {}
        self._frames: dict[str, SourceSite] = {}
        self._given_up: list[SourceSite] = []
        self._blamed: dict[str, int] = {}
        self._limits: list[str] = []
        self._skips: list[str] = []
        self._modules: list[str] = []
        self._modes: list[str] = []
        self._counters: dict[str, dict[str, int]] = {}
        self._base: dict[str, dict[str, int]] = {}
        self._problem: str | None = None
        self._replaced = Replacements()

    @property
    def compiling(self) -> bool:
        """A compilation is under way right now, in some thread."""
        return self._running > 0

    def install(self) -> None:
        """Note what is given to torch.compile; wait for dynamo."""
        self._replaced.put(torch, "compile", self._make_compile)
        self._watch.install()

    def uninstall(self) -> None:
        """Take everything off again."""
        self._watch.uninstall()
        self._replaced.undo()
        if self._callbacks:
            handler = getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
            with contextlib.suppress(Exception):
                handler.remove_start_callback(self._on_start)  # type: ignore[union-attr]
                handler.remove_end_callback(self._on_end)  # type: ignore[union-attr]
            self._callbacks = False

    @property
    def foretells(self) -> bool:
        """A compilation will be noticed when it begins, not only at the next cut."""
        return self._callbacks or "torch._dynamo.utils" not in sys.modules

    def at_cut(self, step_index: int) -> bool:
        """Read what is new since the last cut; return whether the step that ends here compiled."""
        utils = sys.modules.get("torch._dynamo.utils")
        if utils is None:
            return False
        metrics = getattr(utils, "_compilation_metrics", ())
        if self._begun == self._seen_begun and len(metrics) == self._seen_metrics:
            return False
        try:
            self._seen_begun = self._begun
            return self._collect(utils, metrics, step_index)
        except Exception:
            # Dynamo's records differ from what any version we know has; the run goes on.
            self._problem = traceback.format_exc(limit=-2)
            return True

    def write(self) -> None:
        """Write compile.json with what is known so far. Never raises."""
        try:
            utils = sys.modules.get("torch._dynamo.utils")
            if utils is not None:
                self._read_counters(utils)
            self._store.write_json("compile", self._facts())
            if self._problem is not None:
                self._store.artefact("compile", "failed", reason=self._problem)
        except Exception:
            self._store.artefact("compile", "failed", reason=traceback.format_exc(limit=-2))

    # -- while the program runs -----------------------------------------------------------------

    def _make_compile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile(*args: Any, **kwargs: Any) -> Any:  # noqa: A001 - stands in for it
            with contextlib.suppress(Exception):
                self._note_call(args[0] if args else kwargs.get("model"), kwargs)
            return original(*args, **kwargs)

        return compile

    def _on_dynamo(self) -> None:
        with contextlib.suppress(Exception):
            from torch._dynamo import callback, utils

            utils.set_compilation_metrics_limit(METRICS_KEPT)
            callback.on_compile_start(self._on_start)
            callback.on_compile_end(self._on_end)
            self._callbacks = True

    def _on_start(self, *_args: object) -> None:
        # torch 2.6 passes nothing, later versions CallbackArgs.
        self._running += 1
        self._begun += 1
        self.asked_for = True
        self._tell_began()

    def _on_end(self, *_args: object) -> None:
        self._running = max(0, self._running - 1)

    def _note_call(self, target: Any, options: dict[str, Any]) -> None:
        """Note name and mode of something that is given to torch.compile."""
        self.asked_for = True
        self._tell_began()
        if target is None and not options:
            return
        mode = options.get("mode") or "default"
        backend = options.get("backend", "inductor")
        if backend != "inductor":
            mode = backend if isinstance(backend, str) else getattr(backend, "__name__", "custom")
        if mode not in self._modes:
            self._modes.append(str(mode))
        owner = getattr(target, "__self__", target)
        if isinstance(owner, torch.nn.Module):
            name = type(owner).__qualname__
        else:
            name = str(getattr(target, "__qualname__", "") or "")
        if name and name not in self._modules:
            self._modules.append(name)

    # -- reading --------------------------------------------------------------------------------

    def _collect(self, utils: Any, metrics: Sequence[Any], step: int) -> bool:
        if len(metrics) < self._seen_metrics:
            self._seen_metrics = 0  # the script cleared them
        new = list(metrics)[self._seen_metrics :]
        self._seen_metrics = len(metrics)
        for metric in new:
            self._add_metric(utils, metric, step)
        self._read_breaks(utils)
        self._blame_old_record(utils)
        self._read_counters(utils, compiled=any(getattr(metric, "co_name", None) for metric in new))
        return True

    def _add_metric(self, utils: Any, metric: Any, step: int) -> None:
        started = getattr(metric, "start_time", None)
        compile_id = str(getattr(metric, "compile_id", "") or "")
        frame = str(getattr(metric, "co_name", "") or "")
        file, line = getattr(metric, "co_filename", None), getattr(metric, "co_firstlineno", None)
        number = compile_id.lstrip("!").partition("/")[0]
        if file and line:
            resumed = _RESUMED.match(frame)
            function = resumed["function"] if resumed is not None else frame
            self._frames[number] = SourceSite(file=file, line=int(line), function=function)
        # A compilation given up at the recompile limit does not say whose it was; its number does.
        site = self._frames.get(number)
        kind, why = getattr(metric, "fail_type", None), getattr(metric, "fail_reason", None)
        fail = f"{kind}: {first_line(why)}" if kind else None
        reason = getattr(metric, "recompile_reason", None)
        found = ATTEMPT.match(compile_id)
        again = found is not None and int(found["number"]) > 0 and bool(frame) and not kind
        if again and not reason:
            reason = failed_guard(utils, file, line, compile_id)
        self._events.append(
            CompileEvent(
                frame=frame,
                compile_id=compile_id,
                site=site,
                start_ns=_on_our_clock(started),
                seconds=_seconds(metric),
                step=step,
                fail=fail,
                recompile_reason=guard_line(reason) if again else None,
            )
        )
        if again:
            self._add_recompile(frame, site, guard_line(reason), step)
        if kind and frame and site is not None:
            self._add_skipped(metric, site, str(why or ""))
        elif frame and site is not None and gave_up_silently(metric):
            self._given_up.append(site)
        skip = getattr(metric, "cudagraph_skip_reason", None)
        if skip and str(skip) not in self._skips:
            self._skips.append(str(skip))
        if fail is not None and "limit" in f"{kind} {why}".lower():
            text = f"{site.function} ({site.file}:{site.line})" if site is not None else frame
            if text and text not in self._limits:
                self._limits.append(text)

    def _add_recompile(self, frame: str, site: SourceSite | None, guard: str, step: int) -> None:
        """Count recompilations of a frame by the guard that failed, whatever the sizes were."""
        key = (site.file, site.line) if site is not None else (frame, 0)
        full = (*key, _NUMBER.sub("#", guard))
        known = self._recompiles.get(full)
        self._recompiles[full] = Recompile(
            frame=frame,
            site=site,
            guard=guard if known is None else known.guard,
            count=1 if known is None else known.count + 1,
            steps=[step] if known is None else [*known.steps, step],
        )

    def _add_skipped(self, metric: Any, function: SourceSite, text: str) -> None:
        """Note a function that was given up as a whole: a break in a loop, or what nothing can resume.

        Dynamo's list of breaks does not hold these; the failed compilation says where it ended.
        """
        if "limit" in text.lower():
            return  # given up for its many variants, not for a line in it
        file = getattr(metric, "fail_user_frame_filename", None)
        line = getattr(metric, "fail_user_frame_lineno", None)
        exact = SourceSite(file=str(file), line=int(line)) if file and line else function
        # The innermost line of the user's own that is known: in a library it is the caller's.
        site = function if is_library(exact.file) and not is_library(function.file) else exact
        self._add_break(text, site, exact, [function, *([exact] if exact != function else [])], whole=True)

    def _blame_old_record(self, utils: Any) -> None:
        """Find the reason of functions that torch 2.6 gave up: it counts reasons, without their line."""
        counters = getattr(utils, "counters", {})
        counted = {
            str(text): int(n)
            for group in ("unimplemented", "inline_call")
            for text, n in dict(counters.get(group, {})).items()
        }
        fresh = [text for text, n in counted.items() if n > self._blamed.get(text, 0)]
        self._blamed = counted
        given_up, self._given_up = self._given_up, []
        if not given_up or not fresh:
            return
        text = fresh[-1]
        known = next((k for k, b in self._breaks.items() if b.reason == first_line(text)), None)
        for function in given_up:
            if known is None:
                self._add_break(text, function, function, [function], whole=True)
            elif function not in self._breaks[known].skipped:
                found = self._breaks[known]
                self._breaks[known] = msgspec.structs.replace(found, skipped=[*found.skipped, function])

    def _read_breaks(self, utils: Any) -> None:
        reasons = getattr(utils, "graph_break_reasons", [])
        if len(reasons) < self._seen_breaks:
            self._seen_breaks = 0
        for entry in reasons[self._seen_breaks :]:
            text = str(getattr(entry, "reason", entry))
            stack = sites(getattr(entry, "user_stack", None) or [])
            site, exact = break_site(stack)
            self._add_break(text, site, exact, stack)
        self._seen_breaks = len(reasons)

    def _add_break(
        self,
        text: str,
        site: SourceSite | None,
        exact: SourceSite | None,
        stack: list[SourceSite],
        *,
        whole: bool = False,
    ) -> None:
        """Join what is known of one place; a function given up whole counts as no report of its own."""
        key = (exact.file, exact.line, first_line(text)) if exact else ("", 0, text)
        known = self._breaks.get(key) or GraphBreak(reason=first_line(text), hits=0)
        better = site if site is not None and (site.function or known.site is None) else known.site
        self._breaks[key] = msgspec.structs.replace(
            known,
            site=better,
            hint=known.hint or hint(text, site, exact),
            hits=(known.hits or 0) + (not whole),
            stacks=known.stacks if stack in known.stacks or whole else [*known.stacks, stack],
            skipped=[*known.skipped, stack[0]] if whole and stack[0] not in known.skipped else known.skipped,
        )

    def _read_counters(self, utils: Any, *, compiled: bool = False) -> None:
        """Copy dynamo's counters; the script may reset them, so earlier sums are kept apart.

        `compiled`: frames were compiled since the last reading, so a sum that has not grown is new.
        """
        now = {
            str(group): {str(name): int(n) for name, n in counter.items()}
            for group, counter in list(getattr(utils, "counters", {}).items())
        }
        frames = ("frames", "total")
        total = _count(now, *frames)
        known = _count(self._counters, *frames) - _count(self._base, *frames)
        if total < known or (compiled and 0 < total == known):
            self._base = self._counters
        self._counters = _add(self._base, now)

    def _facts(self) -> CompileFacts:
        skips = list(self._skips)
        counted = _count(self._counters, "inductor", "cudagraph_skips")
        if counted and not skips:
            skips = [f"{counted} skipped; this torch does not record why"]
        return CompileFacts(
            used=bool(self._events) or _count(self._counters, "frames", "total") > 0,
            unique_graphs=_count(self._counters, "stats", "unique_graphs"),
            breaks=[msgspec.structs.replace(b, hits=b.hits or len(b.skipped)) for b in self._breaks.values()],
            recompiles=list(self._recompiles.values()),
            compiles=self._events,
            limit_hit=self._limits,
            cudagraph_skips=skips,
            compiled_modules=self._modules,
            mode=", ".join(self._modes) or None,
            counters=self._counters,
        )


def _on_our_clock(epoch_seconds: float | None) -> int | None:
    """Return a time since the epoch on the clock of the step times (perf_counter_ns)."""
    if epoch_seconds is None:
        return None
    return int(epoch_seconds * 1e9) - epoch_ns() + perf_counter_ns()


def _seconds(metric: Any) -> float | None:
    whole = getattr(metric, "entire_frame_compile_time_s", None)
    if whole is not None:
        return float(whole)
    microseconds = getattr(metric, "duration_us", None)
    return float(microseconds) / 1e6 if microseconds is not None else None


def _count(counters: dict[str, dict[str, int]], group: str, name: str) -> int:
    return counters.get(group, {}).get(name, 0)


def _add(a: dict[str, dict[str, int]], b: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    return {
        group: {
            name: a.get(group, {}).get(name, 0) + b.get(group, {}).get(name, 0)
            for name in {**a.get(group, {}), **b.get(group, {})}
        }
        for group in {**a, **b}
    }
