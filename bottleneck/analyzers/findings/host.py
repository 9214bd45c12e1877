"""Host-bound: the step waits for other work on the training thread.

In: facts. Out: findings BN901 to BN911.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec

from ...model.codes import Part, WhatIf
from ...model.diagnosis import WhatIfResult
from ...model.finding import NEGLIGIBLE_SHARE, Evidence, Finding
from ...model.run import BUSY_THREAD, JsonValue, SourceSite
from ...model.view import CodeNode
from ...model.words import ms, percent
from ...timeline.cpu.reading import waiting_threads
from ...timeline.result import SpanKind
from ...timeline.steps.loop_lines import MAIN_SHARE, NEARLY_ALL, rounds_of
from ..base import Analyzer, Facts

_Line: TypeAlias = tuple[str, int, str]
"""File, line and call."""
_MOST_NAMED = 5
_EVALUATION = "evaluation"
HALF = 0.5
"""One line with so much of what a finding is about is what it speaks of; below `NEARLY_ALL` of all extra work
it says that there is more."""


class OtherHostWork(Analyzer):
    """Python code that neither prepares batches nor runs the model takes part of the step.

    What it means
        Checkpoints, logging, metrics, progress bars, validation or other Python code run on the
        training thread between (or inside) the steps. Nothing is computed meanwhile.

    How it is measured
        CPU: stretches of more than half a millisecond without any operator; evaluation; and step
        time outside every phase that the traced steps do not show. GPU: device idle time during
        such work. The figures are means over the window, so work done every N steps counts 1/N.
        Steps that regularly take at least twice as long as the others, outside every phase or in an
        evaluation, are compared with the others.

    What it costs you
        The step without that work.

    What it is not
        Not Python between two operators: that is dispatch (BN501). Not the time between fetch and
        forward: that counts as input (BN101).

    What to do
        Do it less often, or in another thread or process: asynchronous checkpoints, buffered
        logging, metrics kept on the device.

    Source
        PyTorch documentation, torch.distributed.checkpoint.async_save; hook measurements of this
        tool.
    """

    code = "BN901"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price host work and say where it is."""
        answer = facts.ask(WhatIf.HOST_WORK_GONE)
        if answer is None or answer.saves_ms < 0.005 * facts.true_ms:
            return
        spans = [span for span in facts.spans(Part.HOST) if span.kind is not SpanKind.COLLECTOR]
        evidence = [
            Evidence(
                text=f"{span.what}: {ms(span.exposed_ms)} per step",
                value=span.exposed_ms,
                unit="ms/step",
                source="trace" if facts.timeline.steps else "baseline window",
                site=span.site,
            )
            for span in spans[:5]
            if span.exposed_ms > 0
        ]
        grown = facts.number("host.grown_ms")
        if grown:
            evidence.insert(
                0,
                Evidence(
                    text=f"Steps grow: {ms(grown)} of the mean step was not in the first ones",
                    value=grown,
                    unit="ms/step",
                    source="baseline window",
                ),
            )
        # What costs more than all other host work dispatches operators, too, and has a finding of its own.
        most = answer.saves_ms / NEARLY_ALL
        extras = [
            node
            for node in _extras(facts)
            if node.price_ms is not None
            and not (node.bound and node.price_ms > most)
            and not node.mostly_sends
        ]
        rare = next((span for span in spans[:1] if span.kind is SpanKind.RARE), None)
        for known in (
            extras,
            sorted([*extras, *facts.timeline.plain], key=lambda node: -(node.price_ms or 0)),
        ):
            if sum(node.price_ms or 0.0 for node in known) >= MAIN_SHARE * answer.saves_ms:
                yield self._by_code(facts, answer, known, evidence[:1] if grown or rare else [])
                return
        title = f"Other host work costs {ms(answer.saves_ms)} per step"
        if rare is not None:
            title = f"{rare.what[0].upper()}{rare.what[1:]}: {ms(rare.exposed_ms)} per step"
        # Where the main part has no line, a small part's line would be taken for the whole.
        sites = [span.site for span in spans if span.exposed_ms >= MAIN_SHARE * answer.saves_ms]
        node = _at_line(facts.timeline.tree, sites[0]) if sites and rare is None else None
        if node is not None:
            title = f"`{node.name}` at {_at(node)}: other host work for {ms(answer.saves_ms)} per step"
            title += _mostly(node)
            sites = [*_sites(node), *sites[1:]]
        found = self.finding(
            facts,
            title,
            answer=answer,
            time_ms=sum(span.called_ms for span in spans) or None,
            evidence=evidence,
            sites=sites,
            not_this="Dispatch of operators and input are counted separately.",
        )
        # What the model, the loss or the update do is not to be taken out of the step.
        yield _about(facts, found, node) if node is not None and node.role == "extra" else found

    def _by_code(
        self, facts: Facts, answer: WhatIfResult, extras: Sequence[CodeNode], evidence: list[Evidence]
    ) -> Finding:
        """Say whose code it is: one line or function and its call, or how many there are."""
        first, cost = extras[0], extras[0].price_ms or 0.0
        # A function that the model calls, too, takes more than all work beside it.
        dearest = next(iter(facts.timeline.extras), None)
        if dearest is None or not dearest.mostly_sends:
            answer = facts.ask(WhatIf.HOST_WORK_GONE, WhatIf.EXTRA_GONE) or answer
        title = _costs(first)
        if cost < NEARLY_ALL * answer.saves_ms:
            title = f"{title}, of {ms(answer.saves_ms)} of other host work"
        found = self.finding(
            facts,
            title,
            answer=answer,
            time_ms=sum(node.ms for node in extras),
            evidence=[*evidence, *(_as_evidence(node) for node in extras[:_MOST_NAMED])],
            sites=[
                site
                for node in extras
                if (node.price_ms or 0.0) >= MAIN_SHARE * answer.saves_ms
                for site in _sites(node)
            ],
            not_this="Dispatch of operators and input are counted separately.",
        )
        if cost >= HALF * answer.saves_ms:
            return _about(facts, found, first)
        needed_ms = sum(node.price_ms or 0.0 for node in extras if _is_needed(facts, node))
        return msgspec.structs.replace(found, is_needed=needed_ms >= HALF * answer.saves_ms)


def _at_line(node: CodeNode | None, site: SourceSite | None) -> CodeNode | None:
    """Return the call that a line of the step makes; None if it is not known."""
    if node is None or (node.call and node.site == site):
        return node
    return next((found for child in node.children if (found := _at_line(child, site))), None)


def _about(facts: Facts, finding: Finding, node: CodeNode) -> Finding:
    return msgspec.structs.replace(
        finding,
        call=f"`{node.name}`",
        callee=node.callee,
        is_needed=_is_needed(facts, node),
        in_rounds=bool(rounds_of([node])) or (node.mostly_sends and node.sends_in_rounds),
    )


def _is_needed(facts: Facts, node: CodeNode) -> bool:
    """Return whether a line, or what it calls, writes into what is trained."""
    writes = facts.run.trained_writes if facts.run is not None else []
    return (node.file, node.line) in {(site.file, site.line) for site in writes}


def _extras(facts: Facts, *, most: int | None = None) -> Iterator[CodeNode]:
    """Yield the extra work, the longest first; of what training needs the parts that it does not."""
    for node in facts.timeline.extras[:most]:
        yield from _not_needed(facts, node)


def _not_needed(facts: Facts, node: CodeNode) -> list[CodeNode]:
    """Return the node; of one that training needs the parts that it does not, if they are most of it."""
    if not _is_needed(facts, node):
        return [node]
    parts = [part for child in node.children for part in _not_needed(facts, child)]
    others = [part for part in parts if not _is_needed(facts, part)]
    return others if sum(part.ms for part in others) >= HALF * node.ms else [node]


def _within(node: CodeNode) -> CodeNode:
    """Return the deepest line that takes nearly all of what a line does, by whatever calls it is reached."""
    spent: defaultdict[_Line, float] = defaultdict(float)
    deepest: dict[_Line, tuple[int, CodeNode]] = {}

    def add(within: CodeNode, around: tuple[_Line, ...]) -> None:
        for child in within.children:
            line = (child.file, child.line, child.name)
            if line not in around:  # what calls itself counts once
                spent[line] += child.ms
            deepest[line] = max(deepest.get(line, (0, child)), (len(around), child), key=lambda at: at[0])
            add(child, (*around, line))

    add(node, ())
    most = [deepest[line] for line, ms_ in spent.items() if ms_ >= NEARLY_ALL * node.ms]
    return max(most, key=lambda at: at[0], default=(0, node))[1]


def _sites(node: CodeNode) -> list[SourceSite | None]:
    """Return a line and the deepest one below it; that one first where it calls what is expensive."""
    inner = _within(node)
    is_call = inner.callee != "" and node.callee != _EVALUATION
    return [inner.site, node.site] if is_call else [node.site, inner.site]


def _costs(node: CodeNode) -> str:
    most = "up to " if node.bound else ""
    # Of one call at several lines, the node stands at the first of them.
    several = any(child.name == node.name and child.site == node.site for child in node.children)
    same = sum(several and child.name == node.name for child in node.children)
    where = f"{_at(node)} and {same - 1} more line{'s' if same > 2 else ''}" if same > 1 else _at(node)
    text = f"`{node.name}` at {where} costs {most}{ms(node.price_ms or 0.0)} per step"
    return text + _mostly(node)


def _mostly(node: CodeNode) -> str:
    """Name the line below that nearly all of the time is spent in; empty where there is none."""
    inner = _within(node)
    named = (inner.name, inner.site) != (node.name, node.site) and node.callee != _EVALUATION
    return f", mostly `{inner.name}` at {_at(inner)}" if named else ""


def _at(node: CodeNode) -> str:
    return node.site.short if node.site is not None else ""


def _as_evidence(node: CodeNode) -> Evidence:
    return Evidence(
        text=f"{node.name}: {ms(node.ms)} per step, in {node.samples} samples",
        value=node.ms,
        unit="ms/step",
        source="stacks.json",
        site=node.site,
    )


class ExtraWork(Analyzer):
    """A line of the training loop does what no part of training needs.

    What it means
        The step's code makes a batch, runs the model, computes a loss, runs the backward and updates
        the weights. This line does something else in every step: it evaluates, collects garbage,
        writes logs or files, copies the model, looks at gradients.

    How it is measured
        In a second of steps with nothing else attached, the stack of the training thread is sampled.
        The phase that a sample falls into, and where its line stands between forward, backward and
        update, tell what it is for. Hooks in the backward count, too.

    What it costs you
        The step without that line and all that it calls, by replay. On a GPU, its share of what all
        such work costs, with the kernels that it launches: an upper bound.

    What it is not
        Not a judgement: gradient clipping or averaged weights may be what you want. The price says
        what they cost.

    What to do
        Do it less often, once per epoch, or in another thread or process.

    Source
        Stack samples of this tool.
    """

    code = "BN904"
    sends = False
    """Whether it is about work that mostly waits for other ranks."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """Name each line that does extra work, with its price."""
        return [
            _about(
                facts,
                self.finding(
                    facts,
                    _costs(node),
                    cost_ms=node.price_ms,
                    time_ms=node.ms,
                    evidence=[
                        _as_evidence(each)
                        for each in dict.fromkeys((node, *node.children[:1], _within(node)))
                    ],
                    sites=_sites(node),
                    not_this="It may be wanted: the price says what it costs.",
                ),
                node,
            )
            for node in _extras(facts, most=_MOST_NAMED)
            if node.price_ms is not None
            and node.price_ms >= NEGLIGIBLE_SHARE * facts.true_ms
            and node.mostly_sends is self.sends
        ]


class PythonWithoutOperators(Analyzer):
    """A function or loop of yours, in the model, the loss or the update, is Python alone.

    What it means
        No operator is called in it or below it: it checks shapes or types, looks up settings, makes
        names, searches lists. While it runs, nothing is dispatched.

    How it is measured
        While FLOPs are counted, each function and line of the user's on the stack of an operator is
        noted. Stack samples of untraced steps tell the time of those that are on none.

    What it costs you
        The step without these functions and loops, by replay.

    What it is not
        Not the Python around operators, nor that of libraries: this is dispatch (BN501).

    What to do
        Switch off what checks, compute once what is the same in every step, and take out of the
        forward what does not depend on the batch.

    Source
        Stack samples of this tool.
    """

    code = "BN910"

    def find(self, facts: Facts) -> Sequence[Finding]:
        """Name each such function or loop, with its price."""
        return [
            _about(
                facts,
                self.finding(
                    facts,
                    f"{_costs(node)}, and calls no operator",
                    cost_ms=node.price_ms,
                    time_ms=node.ms,
                    evidence=[_as_evidence(each) for each in dict.fromkeys((node, _within(node)))],
                    sites=_sites(node),
                    not_this="Its value may be needed: then it can be computed once, or faster.",
                ),
                node,
            )
            for node in facts.timeline.plain[:_MOST_NAMED]
            if (node.price_ms or 0.0) >= NEGLIGIBLE_SHARE * facts.true_ms
        ]


class GarbageCollector(Analyzer):
    """Python's garbage collector pauses the training thread.

    What it means
        A full collection visits every object of the process. In a large program, or with
        gc.collect() in the loop, that takes milliseconds in which nothing is launched.

    How it is measured
        gc.callbacks in the baseline window: the exact time per step, not a sample.

    What it costs you
        On a CPU that time; on a GPU the part of it in which the device ran out of queued kernels.

    What it is not
        Not the freeing of tensors: reference counting does that immediately.

    What to do
        gc.freeze() after set-up, gc.disable() with a gc.collect() every few hundred steps; no
        gc.collect() in the loop.

    Source
        Python documentation, module gc.
    """

    code = "BN902"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price the collector."""
        spent = facts.number("gc.ms_per_step")
        answer = facts.ask(WhatIf.GC_FREE)
        cost = answer.saves_ms if answer is not None else None
        if any(node.callee.startswith("gc.") for node in facts.timeline.extras):
            return  # it is called for, at a line that has its own finding
        if not spent or max(spent, cost or 0.0) < 0.005 * facts.true_ms:
            return
        yield self.finding(
            facts,
            f"Garbage collection takes {ms(spent)} per step",
            answer=answer,
            time_ms=spent,
            evidence=[
                Evidence(
                    text=f"{ms(spent)} per step in Python's collector ({percent(spent / facts.true_ms)})",
                    value=spent,
                    unit="ms/step",
                    source="gc.callbacks, baseline window",
                )
            ],
            not_this="Tensors are freed without the collector.",
        )


class ThreadSettings(Analyzer):
    """More threads than cores compete, or cores are idle.

    What it means
        Intra-op threads, loader workers and other processes share the cores. With more runnable
        threads than cores, every parallel operator waits for the thread that was not scheduled.

    How it is measured
        Thread settings, the load average and loader workers are compared with the cores that this
        process may use (affinity and cgroup limits). After the windows, one parallel operator is
        timed with all threads and with one.

    What it costs you
        Unknown until tried, so this is a note unless the operator waited for its threads. One step of a
        small network took 1.7 ms on a quiet machine, and 6 or 280 ms beside two busy processes.

    What it is not
        Not a problem by itself: threads that wait cost little.

    What to do
        Set torch.set_num_threads (or OMP_NUM_THREADS) to the number of cores less the loader
        workers. If other processes keep the cores busy, use fewer threads, down to one.

    Source
        PyTorch documentation, "CPU threading and TorchScript inference".
    """

    code = "BN903"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Note oversubscription on this host."""
        cores = facts.number("host.cores")
        threads = facts.number("threads.intra_op")
        if not cores or not threads:
            return
        workers = facts.number("loader.num_workers") or 0.0
        load = facts.run.host.load_average if facts.run is not None else []
        busy_input = facts.timeline.part_ms(Part.INPUT) >= NEGLIGIBLE_SHARE * facts.true_ms
        problems = []
        if threads > cores:
            problems.append(f"{threads:.0f} intra-op threads on {cores:.0f} cores")
        first = facts.run.host.cores_at_start if facts.run is not None else None
        if first and first > cores:
            problems.append(f"the process may use {cores:.0f} of the {first} cores with which it began")
        if workers > cores:
            problems.append(f"{workers:.0f} loader workers on {cores:.0f} cores")
        # Without a GPU the share of processor time that the process got says more: a doubt of the capture.
        if load and load[0] > 1.5 * cores + workers and facts.timeline.kind == "gpu" and busy_input:
            problems.append(f"load average {load[0]:.1f} on {cores:.0f} cores: others use this machine")
        waiting = waiting_threads(facts.run)
        if waiting is not None:
            together, alone = waiting
            problems.append(
                f"an operator took {together:.0f} us on {threads:.0f} threads, {alone:.0f} us on one"
            )
        if not problems:
            return
        yield self.finding(
            facts,
            "Threads compete for the cores: " + "; ".join(problems),
            evidence=[Evidence(text=text, source="settings in force") for text in problems],
            sites=facts.sites("threads"),
            not_this="A risk, not a measured cost.",
            note=waiting is None,
        )


class ThreadTakesCores(Analyzer):
    """Another thread of the program takes cores from the training.

    What it means
        A thread that asks a full queue again and again, or reads figures of the system without end,
        needs a core for it. Where all are busy, the training waits: its own thread, or one of those
        that share its operators with it, for which the others wait.

    How it is measured
        Linux accounts to each thread how long it ran and how long it could run but had no core. In
        the warm-up the stacks of all threads are looked at; the line is the one met most often.

    What it costs you
        The time for which the threads that compute had no core, but no more than that thread used.
        The step may gain more: parallel operators wait for the last of their threads, and Python
        for the interpreter lock.

    What it is not
        Not other programs on the machine, and not loader workers, which are processes.

    What to do
        Have it block until it is needed: queue.put and queue.get with no timeout, Event.wait. What
        must compute there belongs in a process of its own.

    Source
        proc(5), schedstat; ray-project/ray pull request 16162.
    """

    code = "BN908"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Name the line of the thread that takes most."""
        run = facts.run
        busy = [site for site in run.sites if site.phase == BUSY_THREAD] if run is not None else []
        most = max(busy, key=lambda site: site.share or 0.0, default=None)
        if run is None or most is None or not most.share or not run.core_wait_share:
            return
        share = min(most.share, run.core_wait_share)
        # Beside a device the training's thread may wait for a core, and the device for nothing.
        if facts.timeline.kind != "cpu" or share < NEGLIGIBLE_SHARE:
            return
        call = f"`{most.site.function}()`"
        told = f"it used a core for {percent(most.share)} of the time"
        found = self.finding(
            facts,
            f"Another thread takes cores from the training: {call} at {most.site.short}, for {percent(share)}"
            " of the time",
            cost_ms=share * facts.true_ms,
            evidence=[
                Evidence(text=told, value=most.share, unit="share", source="schedstat, warm-up"),
                Evidence(
                    text=f"the threads that compute had no core for {percent(run.core_wait_share)}",
                    value=run.core_wait_share,
                    unit="share",
                    source="schedstat, warm-up",
                ),
            ],
            sites=[most.site],
            not_this="What it computes may be needed; waiting is not.",
        )
        yield msgspec.structs.replace(found, call=call)


class ScriptProfiler(Analyzer):
    """The script's own profiler records in every step.

    What it means
        A profiler of torch that a script begins itself, and never ends, records every operator of
        every step. Steps of small operators take twice as long or more, and memory may grow.

    How it is measured
        torch.profiler and torch.autograd.profiler are seen to begin and to end. Only one profiler
        can record at a time, so that a step with the script's own cannot be traced.

    What it costs you
        Not known without a trace. A trial can run the step with that profiler off, unless it records
        across the update.

    What it is not
        Not a profiler with a schedule that ends after some steps.

    What to do
        Remove it, or let it end: schedule(wait=1, warmup=1, active=3, repeat=1).

    Source
        PyTorch documentation, torch.profiler; facebookresearch/dlrm issue 197 (23 and 43 ms).
    """

    code = "BN905"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Report a profiler that kept the step from being traced."""
        if facts.context.get("profiler.always") is not True:
            return
        yield self.finding(
            facts,
            "The script's own profiler records every step",
            evidence=[Evidence(text="it left no step to trace", source="profilers that begin and end")],
            sites=facts.sites("script profiler"),
            not_this="Its own results are not lost: they are what slows the step.",
        )


class PythonTraced(Analyzer):
    """Python calls a function for each line, or for each call, that the training thread runs.

    What it means
        A debugger, a measurement of coverage or a profiler of Python is on. What the script's Python
        takes is several times as long then, and so is what libraries do in Python.

    How it is measured
        sys.gettrace and sys.getprofile on the training thread, once between its steps.

    What it costs you
        Not known from a trace. A trial runs steps without it.

    What it is not
        Not tools that watch by sys.monitoring or by samples, which cost little.

    What to do
        Train without it. End a debugger's tracing behind the lines that it was for.

    Source
        Python documentation, sys.settrace; pytorch/pytorch issue 134191.
    """

    code = "BN911"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Name what is called."""
        tracers = facts.context.get("python.traced")
        if not isinstance(tracers, list):
            return
        names = ", ".join(f"`{str(tracer).partition(' ')[0].rpartition('.')[2]}()`" for tracer in tracers)
        yield self.finding(
            facts,
            f"Python calls {names} for each line or call that it runs",
            evidence=[Evidence(text=str(each), source="sys.gettrace, sys.getprofile") for each in tracers],
            sites=[site for site in map(_site_of, tracers) if site is not None],
            not_this="What the script itself computes stays.",
        )


def _site_of(tracer: JsonValue) -> SourceSite | None:
    """Return the line of "name (file:line)"."""
    found = re.fullmatch(r"(.*) \((.*):(\d+)\)", str(tracer))
    return SourceSite(file=found[2], line=int(found[3]), function=found[1]) if found else None


class ConvolutionsSearched(Analyzer):
    """Convolutions time their algorithms again in the step.

    What it means
        With torch.backends.cudnn.benchmark on, a convolution that meets a new size runs all
        algorithms, waits for each, and keeps the fastest for this size. Where sizes change all the
        time, that never ends. It also empties the allocator's cache each time.

    How it is measured
        An operator of convolution waits for the device only while it times its algorithms.

    What it costs you
        The step is replayed without what these operators do up to their last wait, and without the
        allocations that follow.

    What it is not
        Not the first steps of a run with fixed sizes: these are over before the trace begins.

    What to do
        torch.backends.cudnn.benchmark = False, or pad inputs to a few sizes.

    Source
        ATen, native/cudnn/Conv_v7.cpp and Conv_v8.cpp; pytorch issue 2759, vision issue 5985.
    """

    code = "BN906"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price the searches."""
        answer = facts.ask(WhatIf.SEARCHES_GONE)
        if answer is None or answer.saves_ms <= 0:
            return
        yield self.finding(
            facts,
            f"Convolutions time their algorithms again for {ms(answer.saves_ms)} per step",
            answer=answer,
            evidence=[
                Evidence(text=answer.basis, source="replay"),
                Evidence(
                    text=f"torch.backends.cudnn.benchmark is {facts.is_on('cudnn.benchmark')}",
                    source="settings in force",
                ),
            ],
            sites=facts.forward_sites(),
            not_this="The convolution itself, with the algorithm that was chosen, stays.",
        )


class AttentionPlanned(Analyzer):
    """cuDNN's attention plans how to compute new sizes in the step.

    What it means
        On newer NVIDIA GPUs scaled_dot_product_attention may take cuDNN's kernels. For each new size
        (sequence length, batch, heads, strides) cuDNN makes a plan and compiles kernels for it: 50 ms
        for the forward and 60 for the backward on an H200. Where lengths change from batch to batch,
        that does not end until all lengths have come.

    How it is measured
        The operator asks for the version of the CUDA runtime only while it plans.

    What it costs you
        The step is replayed without the time between that and the operator's launches.

    What it is not
        Not the first steps of a run with fixed sizes: these are over before the trace begins.

    What to do
        torch.backends.cuda.enable_cudnn_sdp(False): flash attention needs no plan. Or pad inputs to a
        few lengths.

    Source
        ATen, native/cudnn/MHA.cpp (a cache of graphs by their sizes).
    """

    code = "BN909"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price the plans."""
        answer = facts.ask(WhatIf.PLANS_GONE)
        if answer is None or answer.saves_ms <= 0:
            return
        yield self.finding(
            facts,
            f"Attention in cuDNN plans for new sizes for {ms(answer.saves_ms)} per step",
            answer=answer,
            evidence=[Evidence(text=answer.basis, source="replay")],
            sites=facts.forward_sites(),
            not_this="The attention itself stays, with what it launches.",
        )


class TensorsOfLists(Analyzer):
    """Tensors are made value by value.

    What it means
        torch.tensor(), torch.as_tensor() and torch.FloatTensor() read a list one value after the
        other. Of a list of NumPy arrays each value is a Python object of its own on the way: half a
        million values take 90 ms.

    How it is measured
        Stack samples of the training thread, or of the DataLoader's workers, inside such a call. What
        computes the list itself is not counted where it is another line or function.

    What it costs you
        The step without the lines that call it. In workers, their share of production while the step
        waits for it. It is part of the price of input (BN101) or of host work (BN901).

    What it is not
        Not the copy to a device. Not a call that gets one array, which is only copied: that is
        seldom long.

    What to do
        Make one array first: torch.from_numpy(np.stack(arrays)). NumPy copies whole arrays.

    Source
        torch warns of it: "Creating a tensor from a list of numpy.ndarrays is extremely slow";
        pytorch/pytorch issue 13918, facebookresearch/ParlAI issue 4470.
    """

    code = "BN907"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price all lines that make tensors so, and name the most expensive one."""
        tree = facts.timeline.tree
        made = tree.making_tensors() if tree is not None else []
        cost = min(facts.true_ms, sum(_alone_ms(node) for node in made))
        if cost < NEGLIGIBLE_SHARE * facts.true_ms:
            return
        first, more = made[0], len({node.site for node in made}) - 1
        where = _at(first) + (f" and {more} more line{'s' if more > 1 else ''}" if more else "")
        most = "up to " if first.bound else ""
        found = self.finding(
            facts,
            f"`{first.name}` at {where} makes tensors value by value, for {most}{ms(cost)} per step",
            cost_ms=cost,
            time_ms=sum(node.ms for node in made),
            evidence=[_as_evidence(node) for node in made[:_MOST_NAMED]],
            sites=[node.site for node in made],
            not_this="The copy to a device is not counted.",
        )
        yield _about(facts, found, first)


def _alone_ms(node: CodeNode) -> float:
    """Return what a line costs, without the user's functions that it calls."""
    inner = sum(child.ms for child in node.children)
    return (node.price_ms or 0.0) * max(0.0, 1.0 - inner / node.ms) if node.ms > 0 else 0.0
