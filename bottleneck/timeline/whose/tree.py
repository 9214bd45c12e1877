"""The step as a tree: its lines by the user's functions, with the time and the role of each.

In: `Stacks`, the true step and its phases. Out: `Tree`. Each phase is scaled to its time in the steps that
were timed with nothing attached, and the whole to the true step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal

import msgspec

from ...model.run import SiteTime, SourceSite
from ...model.stacks import StackFrame, Stacks
from ...model.view import COLLECTIVES, Role
from .branch import Branch, Key
from .places import Chain, Roles, with_packages, with_waits
from .plain import AboveOperators, PlainCode

_FAR_LONGER = 2.0
"""Times the median step: such a step holds something that the others lack."""
_RARE = 1 / 3
"""More such steps are no exceptions."""
_TRAINERS = {
    "transformers": ("transformers.trainer.",),
    "lightning": ("lightning.pytorch.", "pytorch_lightning."),
}
"""Library -> how what scripts call of its trainer begins."""
_ALL = 0.98
"""Share of the time in one line that makes it the way to the loop of steps, not a part of it."""
_SURE = 0.01
"""Share of the samples below which a phase was sampled too seldom to be brought to its true time."""
_MODEL = {"forward", "backward", "evaluation"}
"""Phases in which a model runs."""

_LOOP = "loop"

LOADER = "torch.utils.data."
"""What is called there makes batches."""
_MAKES_BATCH = f"{LOADER}_utils."
"""What torch calls there fetches samples and collates them."""


_TRAINS = {"forward", "backward", "optimizer"}
_BETWEEN_STEPS: tuple[Role, ...] = ("extra", "input")
_TRAINING_CODE: frozenset[Role] = frozenset({"forward", "no-grad forward", "loss", "update"})
"""What code of the user's runs for, operators or not, that training does need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The step by whose code it is."""

    root: Branch
    steps: int
    """Steps that were sampled and count: see `build_tree`."""
    owner: str = ""
    """Library whose trainer the script calls, where that runs nearly all of the step."""
    plain: tuple[Branch, ...] = ()
    """Functions and loops of the user's below which no operator is called, in the model, the loss and the
    update: the longest first, each with all of its calls. Empty where operators were not looked at."""
    sent: Mapping[tuple[str, Role], float] = field(default_factory=dict)
    """Time of the user's own collectives, by phase and role, ms per step."""
    system: Mapping[tuple[str, Role], tuple[float, float]] = field(default_factory=dict)
    """Page faults and system time, ms, per step, by phase and role; empty in recordings of before."""

    def extras(self) -> list[Branch]:
        """Return the branches that are extra work as a whole, the longest first; none is inside another.

        Lines of one function that make the same call are one branch. A function of the user's that is called
        for nothing there is called for nothing in the forward, too: those calls belong to it. What also holds
        forward, backward or update is none: those lines below it are that are.
        """
        found: dict[tuple[str, str, str], list[Branch]] = {}
        pending = self.root.branches()
        while pending:
            branch = pending.pop()
            frame = branch.frame
            if branch.is_mostly("extra") and frame is not None and not (branch.trains and branch.calls_more):
                same = branch.call or str(frame.line)
                found.setdefault((frame.file, frame.function, same), []).append(branch)
            else:
                pending += branch.children.values()
        whole = [_together([*each, *self._also_called(each)]) for each in found.values()]
        return sorted(whole, key=lambda branch: -branch.total_ms)

    def _also_called(self, extra: Sequence[Branch]) -> list[Branch]:
        """Return the branches that are no extra work by their place, but call what `extra` calls.

        None where a model runs in it, as in an evaluation.
        """
        called = {branch.calls_function for branch in extra}
        if called == {None} or len(called) > 1 or any(branch.by_phase.keys() & _MODEL for branch in extra):
            return []
        found, pending = [], self.root.branches()
        while pending:
            branch = pending.pop()
            # A helper that averages gradients may average what is logged, too.
            if branch.is_mostly("extra") or branch.is_mostly("communication"):
                continue
            if branch.calls_function in called and branch.call == extra[0].call:
                found.append(branch.as_extra())
            else:
                pending += branch.children.values()
        return found

    def within(self, file: str, first: int, last: int) -> Branch:
        """Return all that runs in these lines of a file, as one branch."""
        whole, pending = Branch(), self.root.branches()
        while pending:
            branch = pending.pop()
            frame = branch.frame
            if frame is None or frame.file != file or not first <= frame.line <= last:
                pending += branch.children.values()
                continue
            whole.add(branch)
        return whole

    def in_fetches(self) -> Branch:
        """Return what the training process does in a fetch beside making the batch, in the user's lines.

        That is drawing the indices of batches, by a sampler.
        """
        whole, pending = Branch(), self.root.branches()
        while pending:
            branch = pending.pop()
            # A loop that does little else than fetch has the name of the line in it.
            if branch.is_loop or not branch.callee.startswith(LOADER) or not branch.by_role.get("input"):
                pending += branch.children.values()
                continue
            for key, child in branch.children.items():
                if child.frame is None or not child.frame.via.startswith(_MAKES_BATCH):
                    whole.add(child)
                    whole.children[key] = child
        return whole

    def own_input_ms(self) -> float:
        """Return what the training process itself does for its input, outside of all phases.

        A line that has a model act for what is trained on makes no batch.
        """
        ms, pending = 0.0, [self.root]
        while pending:
            branch = pending.pop()
            if "evaluation" in branch.by_phase and not branch.by_phase.keys() & _TRAINS:
                continue
            if branch.is_mostly("input"):
                ms += branch.ms.get(("", "input"), 0.0)
            else:
                pending += branch.calls_more
        return ms

    @property
    def own_input_share(self) -> float:
        """Of what is extra work and input outside of all phases: what makes a batch."""
        made_ms = self.own_input_ms()
        both = sum(self.root.ms.get(("", role), 0.0) for role in _BETWEEN_STEPS)
        return made_ms / both if both > 0 else 0.0

    def input_branch(self) -> Branch:
        """Return what the training process does for its input, as one branch."""
        whole, pending = Branch(), self.root.branches()
        while pending:
            branch = pending.pop()
            if branch.is_mostly("input"):
                whole.add(branch)
                whole.children[str(len(whole.children)), 0, "", ""] = branch
            else:
                pending += branch.children.values()
        return whole

    def input_line(self) -> SiteTime | None:
        """Return the deepest line, or call of one function on several, that takes most of `input_branch`.

        None where none does, or that is waiting for a loader.
        """
        whole = self.input_branch()
        line = whole.most()
        if line.callee.startswith(LOADER):
            return None
        if line.children:
            functions = map(_together, whole.by_function().values())
            able = [each for each in functions if 2 * each.total_ms >= whole.total_ms]
            below = [each for each in able if all(inner is not line for inner in each.walk())]
            line = min(below, key=lambda branch: branch.total_ms, default=line)
        return line.site_time()

    def update_loop(self) -> SourceSite | None:
        """Return the loop of the user's that most of the update runs in; None where it runs in a library.

        A loop that the model runs in, too, is the training's.
        """
        spent: dict[tuple[str, str, int, int], float] = {}
        for branch in self.root.walk():
            frame = branch.frame
            ms = branch.ms.get(("optimizer", "update"), 0.0)
            # Loops are branches of their own; a line inside of one knows where the innermost begins.
            if frame is None or not frame.loops or branch.children or not ms:
                continue
            loop = (frame.file, frame.function, *frame.loops[-1])
            spent[loop] = spent.get(loop, 0.0) + ms
        whole = self.root.by_phase.get("optimizer", 0.0)
        for (file, function, first, last), ms in spent.items():
            model = self.within(file, first, last).by_phase.keys() & {"forward", "backward"}
            if ms > 0.5 * whole and not model:
                return SourceSite(file=file, line=first, function=function)
        return None

    def extra_ms(self, phase: str) -> float:
        """Return the extra work in a phase that is no waiting for other ranks, ms per step."""
        return self.root.ms.get((phase, "extra"), 0.0) - self.sent.get((phase, "extra"), 0.0)

    def sent_ms(self, phase: str) -> float:
        """Return the time of the user's own collectives in a phase, ms per step."""
        return sum(ms for (each, _), ms in self.sent.items() if each == phase)

    def plain_ms(self, phase: str) -> float:
        """Return the time of functions that call no operator in a phase, ms per step."""
        return sum(branch.by_phase.get(phase, 0.0) for branch in self.plain)

    def calls_ms(self, module: str) -> float:
        """Return the time in calls of library functions whose names begin so, ms per step."""
        leaves = [branch for branch in self.root.walk() if not branch.children]
        return sum(
            ms for leaf in leaves for (_, callee), ms in leaf.calls.items() if callee.startswith(module)
        )

    @property
    def evaluation_is_extra(self) -> bool:
        """What runs without gradients is extra work, and no teacher or policy of the step."""
        extra = self.root.ms.get(("evaluation", "extra"), 0.0)
        return extra > 0.5 * self.root.by_phase.get("evaluation", 0.0)


def _together(branches: Sequence[Branch]) -> Branch:
    """Return one branch for several, at the line of the longest, with each as a child."""
    first, *others = sorted(branches, key=lambda branch: -branch.total_ms)
    if not others:
        return first
    whole = Branch(first.frame)
    for branch in (first, *others):
        whole.add(branch)
        assert branch.frame is not None
        whole.children[branch.frame.file, branch.frame.line, branch.frame.function, ""] = branch
    return whole


@dataclass(slots=True)
class _Sample:
    chain: Chain
    phase: str
    role: Role
    ms: float
    count: int
    below: Chain = ()
    """Of packages."""
    faults: float = 0.0
    """Page faults meanwhile, per step."""
    system_ms: float = 0.0
    """System time meanwhile, per step."""


def build_tree(
    stacks: Stacks,
    *,
    true_ms: float,
    phases_ms: Mapping[str, float],
    grown_ms: float = 0.0,
    steps: Literal["all", "ordinary", "rare"] = "ordinary",
    evaluation: int = 0,
    broken_at: Collection[tuple[str, int]] = (),
    above: AboveOperators | None = None,
) -> Tree | None:
    """Build the tree; None where nothing was sampled.

    `phases_ms` is empty where phases were not timed. `grown_ms` of the time outside them is what the first
    steps had not: the samples are of a few steps, and training does not grow, so that is extra work. Which
    steps: "rare" are those that hold what the others lack, "ordinary" the others, and "all" both. Where what
    is rare is a pass without gradients, `evaluation` is over how many steps one goes; 0: it is another thing.
    A single step that holds anything else is left out of all. `broken_at`: see `Roles`. `above`: what of the
    user's calls operators; None where that is not known.
    """
    far = _far(stacks.step_ms)
    rare = _evaluating(stacks, far, over=evaluation) if evaluation else far
    apart = rare if steps == "ordinary" else set()
    single = far - apart if len(far - apart) == 1 else set()
    kept = rare if steps == "rare" else set(range(len(stacks.step_ms))) - apart - single
    frames = with_waits(stacks.frames)
    chains = [tuple(frames[k] for k in stack) for stack in stacks.stacks]
    packages = [tuple(frames[k] for k in stack) for stack in stacks.below] or [()] * len(chains)
    places = with_packages(stacks, chains, packages)
    roles = Roles(stacks, places, broken_at=broken_at)
    system = (column or [0] * len(stacks.step) for column in (stacks.faults, stacks.system_us))
    columns = (stacks.step, stacks.stack, stacks.phase, stacks.after, stacks.us, stacks.counts, *system)
    samples: list[_Sample] = []
    others: list[_Sample] = []
    known: dict[tuple[int, int, int], Role] = {}
    for step, stack, phase, after, us, count, faults, system_us in zip(*columns, strict=True):
        role = known.get((stack, phase, after))
        if role is None:
            role = roles.of(places[stack], stacks.phases[phase], stacks.phases[after])
            known[stack, phase, after] = role
        if us > 0:
            into = samples if step in kept else others
            over = max(1, len(kept))
            into.append(
                _Sample(
                    chains[stack], stacks.phases[phase], role, us / 1e3 / over, count, packages[stack],
                    faults=faults / over, system_ms=system_us / 1e3 / over,
                )
            )  # fmt: skip
    if not samples:
        return None
    _scale(samples, true_ms=true_ms, phases_ms=phases_ms)
    _let_grow(samples, grown_ms)
    # Rare work may take nearly all of its steps; the way to the loop is that of the others.
    depth = _depth(others if steps == "rare" else samples, roles.training)
    paths = [list(_keys(sample.chain[depth:], depth, roles.training)) for sample in samples]
    root = _grow(samples, paths)
    if _take_batches(samples, paths, root):
        root = _grow(samples, paths)
    if phases_ms and not phases_ms.get("data") and _leave_calls(samples, paths, root):
        root = _grow(samples, paths)
    for branch in root.walk():
        if not branch.trains:
            branch.below = {}
    plain = _plain(samples, depth, above) if above is not None else ()
    return Tree(
        root=root,
        steps=len(kept),
        owner=_owner(samples),
        plain=plain,
        sent=_by_cell((each, each.ms) for each in samples if _sends(each)),
        system=_system(samples) if stacks.faults else {},
    )


def _system(samples: Sequence[_Sample]) -> dict[tuple[str, Role], tuple[float, float]]:
    faults = _by_cell((each, each.faults) for each in samples)
    system_ms = _by_cell((each, each.system_ms) for each in samples)
    return {cell: (faults[cell], system_ms[cell]) for cell in faults}


def _sends(sample: _Sample) -> bool:
    last = sample.chain[-1].callee if sample.chain else ""
    return sample.phase != "data" and last.startswith(COLLECTIVES)


def _by_cell(amounts: Iterable[tuple[_Sample, float]]) -> dict[tuple[str, Role], float]:
    """Return the sums by phase and role."""
    out: dict[tuple[str, Role], float] = {}
    for sample, amount in amounts:
        cell = (sample.phase, sample.role)
        out[cell] = out.get(cell, 0.0) + amount
    return out


def _plain(samples: Sequence[_Sample], depth: int, above: AboveOperators) -> tuple[Branch, ...]:
    """Return the functions and loops below which no operator is called: of each stack the outermost."""
    calls: dict[PlainCode, list[tuple[_Sample, list[tuple[Key, StackFrame]]]]] = {}
    for sample in samples:
        for at in range(depth, len(sample.chain) if sample.role in _TRAINING_CODE else 0):
            if (known := above.plain(sample.chain[at])) is not None:
                code, frame = known
                path = _keys((frame, *sample.chain[at + 1 :]), at, ())
                calls.setdefault(code, []).append((replace(sample, below=()), list(path)))
                break
    found = []
    for code, within in calls.items():
        whole = _grow([sample for sample, _ in within], [path for _, path in within])
        whole.frame, whole.calls = whole.branches()[0].frame, {(code.name, ""): whole.total_ms}
        if code.line and whole.frame is not None:
            whole.frame, whole.is_loop = msgspec.structs.replace(whole.frame, line=code.line), True
        found.append(whole)
    return tuple(sorted(found, key=lambda branch: -branch.total_ms))


def _owner(samples: Sequence[_Sample]) -> str:
    total = sum(sample.ms for sample in samples)
    for library, begins in _TRAINERS.items():
        calls = (s.ms for s in samples if any(frame.callee.startswith(begins) for frame in s.chain))
        if sum(calls) >= _ALL * total:
            return library
    return ""


def _grow(samples: Sequence[_Sample], paths: Sequence[Sequence[tuple[Key, StackFrame]]]) -> Branch:
    root = Branch()
    for sample, path in zip(samples, paths, strict=True):
        cell = (sample.phase, sample.role)
        branches = _along(root, path)
        below = sample.below if sample.chain else ()
        whole = [*path, *(((frame.file, frame.line, frame.function, ""), frame) for frame in below)]
        for key, frame in whole[len(path) :]:
            branches.append(branches[-1].below.setdefault(key, Branch(frame)))
        for branch in branches:
            branch.ms[cell] = branch.ms.get(cell, 0.0) + sample.ms
            branch.samples += sample.count
        for branch, (_, frame) in zip(branches[1:], whole, strict=True):
            call = (frame.call, frame.callee)
            branch.calls[call] = branch.calls.get(call, 0.0) + sample.ms
    return root


def _along(root: Branch, path: Sequence[tuple[Key, StackFrame]]) -> list[Branch]:
    branches = [root]
    for key, frame in path:
        branches.append(branches[-1].children.setdefault(key, Branch(frame, is_loop=key[3] == _LOOP)))
    return branches


def _take_batches(
    samples: Sequence[_Sample], paths: Sequence[Sequence[tuple[Key, StackFrame]]], root: Branch
) -> bool:
    """Count batches that an evaluation behind the update fetches as part of it; return whether any are."""
    found = False
    for sample, path in zip(samples, paths, strict=True):
        if sample.phase != "data" or sample.role == "extra":
            continue
        for branch in _along(root, path)[1:]:
            phases = branch.by_phase
            if ("evaluation", "extra") in branch.ms and not phases.keys() & {"forward", "backward"}:
                sample.role, found = "extra", True
                break
    return found


def _leave_calls(
    samples: Sequence[_Sample], paths: Sequence[Sequence[tuple[Key, StackFrame]]], root: Branch
) -> bool:
    """Count calls before the forward whose value is thrown away as extra work; return whether there are any.

    For steps that fetch no batch. Where one is fetched, such a call may change it in place; and inside of
    what makes one it may be a part of that.
    """
    found = False
    for sample, path in zip(samples, paths, strict=True):
        if sample.role != "input":
            continue
        first = next((branch for branch in _along(root, path)[1:] if branch.is_mostly("input")), None)
        # The call that a package trains in is thrown away, too.
        if first is not None and first.frame is not None and first.frame.discards and not first.trains:
            sample.role, found = "extra", True
    return found


def _far(step_ms: Sequence[float]) -> set[int]:
    """Return the steps that hold something that the others lack."""
    usual = median(step_ms) if step_ms else 0.0
    far = {k for k, ms in enumerate(step_ms) if ms > _FAR_LONGER * usual}
    return far if len(far) <= _RARE * len(step_ms) else set()


def _evaluating(stacks: Stacks, far: set[int], *, over: int) -> set[int]:
    """Return which of these steps belong to an evaluation that goes over so many; all if none is."""
    name = stacks.phases.index("evaluation") if "evaluation" in stacks.phases else None
    ends = {step for step, phase in zip(stacks.step, stacks.phase, strict=True) if phase == name}
    # Of one that begins at the end of the window the rest was not seen.
    ends |= set(range(len(stacks.step_ms), len(stacks.step_ms) + over - 1))
    return {step for step in far if not ends.isdisjoint(range(step, step + over))} or far


def _scale(samples: list[_Sample], *, true_ms: float, phases_ms: Mapping[str, float]) -> None:
    sampled: dict[str, float] = {}
    for sample in samples:
        sampled[sample.phase] = sampled.get(sample.phase, 0.0) + sample.ms
    total = sum(sampled.values())
    true = {**phases_ms, "": true_ms - sum(phases_ms.values())} if phases_ms else {}
    factors = {
        phase: true[phase] / ms for phase, ms in sampled.items() if ms >= _SURE * total and phase in true
    }
    whole = sum(sample.ms * factors.get(sample.phase, 1.0) for sample in samples)
    for sample in samples:
        sample.ms *= factors.get(sample.phase, 1.0) * (true_ms / whole if whole > 0 else 1.0)


def _let_grow(samples: Sequence[_Sample], grown_ms: float) -> None:
    """Have the extra work outside the phases take as much as is grown, out of what else is there."""
    outside = [sample for sample in samples if sample.phase == ""]
    whole = sum(sample.ms for sample in outside)
    extra = sum(sample.ms for sample in outside if sample.role == "extra")
    grown_ms = min(grown_ms, whole)
    if not 0 < extra < grown_ms:
        return
    for sample in outside:
        sample.ms *= grown_ms / extra if sample.role == "extra" else (whole - grown_ms) / (whole - extra)


def _depth(samples: Sequence[_Sample], training: Sequence[Chain]) -> int:
    """Return how many frames lead to the loop of steps: those that nearly all time has in common.

    They lead to the training, too: nearly all of a step may be in one line beside it.
    """
    total, depth = sum(sample.ms for sample in samples), 0
    while True:
        lines: dict[tuple[str, int], float] = {}
        for sample in samples:
            if len(sample.chain) > depth:
                line = (sample.chain[depth].file, sample.chain[depth].line)
                lines[line] = lines.get(line, 0.0) + sample.ms
        most = max(lines, key=lambda line: lines[line], default=("", 0))
        if lines.get(most, 0.0) < _ALL * total:
            return depth
        leads = [(there[depth].file, there[depth].line) for there in training if len(there) > depth]
        if training and most not in leads:
            return depth
        if not any(len(sample.chain) > depth + 1 for sample in samples):
            return depth
        depth += 1


def _keys(chain: Chain, depth: int, anchors: Sequence[Chain]) -> Iterator[tuple[Key, StackFrame]]:
    """Yield the branches that a stack stands in, the outermost first: lines, and loops around them."""
    for at, frame in enumerate(chain, start=depth):
        same = [there[at] for there in anchors if len(there) > at]
        same = [a for a in same if (a.file, a.function) == (frame.file, frame.function)]
        loop = _loop(frame, same)
        if loop is not None:
            yield (frame.file, loop, frame.function, _LOOP), frame
        yield (frame.file, frame.line, frame.function, ""), frame


def _loop(frame: StackFrame, anchors: Sequence[StackFrame]) -> int | None:
    """Return the first line of the outermost loop around a frame that does not hold the training itself."""
    for first, last in frame.loops:
        if not any(first <= anchor.line <= last for anchor in anchors):
            return first
    return None
