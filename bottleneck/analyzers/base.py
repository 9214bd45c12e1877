"""The base class of analyzers, the facts that they read, and their registry.

In: `Facts` of one rank. Out: findings. An analyzer is one class per finding code; its docstring is
the page that `bottleneck explain CODE` prints and has the headings of `HEADINGS`.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ..errors import UsageError
from ..model.codes import FINDING_CODES, BottleneckClass, Part, QuestionKey, WhatIf
from ..model.diagnosis import StepSummary, WhatIfResult
from ..model.finding import Evidence, Finding, Interval
from ..model.memory import MemorySummary
from ..model.run import CompileFacts, FlopCount, JsonValue, LoaderFacts, Run, SourceSite
from ..model.view import CodeNode, Role
from ..model.words import ms, percent
from ..timeline.result import HostSpan, Timeline
from ..timeline.steps.loop_lines import main_site
from ..timeline.steps.supply import training_loader

_LEADS = 0.2
"""Share of the forward below a line from which another line is one of those that it leads to."""
HEADINGS = (
    "What it means",
    "How it is measured",
    "What it costs you",
    "What it is not",
    "What to do",
    "Source",
)


def _ms(nodes: Iterable[CodeNode]) -> float:
    return sum(node.ms for node in nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything known about one rank when its findings are made."""

    timeline: Timeline
    step: StepSummary
    run: Run | None = None
    loaders: tuple[LoaderFacts, ...] = ()
    compile: CompileFacts | None = None
    flops: FlopCount | None = None
    """FLOPs of one step: counted in an extra step, or from the shapes in a trace."""
    memory: tuple[MemorySummary, ...] = ()
    """Per device, the fullest first."""
    context: Mapping[str, JsonValue] = field(default_factory=dict)
    phases_ms: Mapping[str, float] = field(default_factory=dict)
    rank: int = 0

    @property
    def true_ms(self) -> float:
        """The step time that costs are shares of."""
        return self.timeline.true_ms

    def number(self, key: str) -> float | None:
        """Return a numeric context value, None where it was not measured."""
        value = self.context.get(key)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def is_on(self, key: str) -> bool | None:
        """Return a context flag, None where it was not measured."""
        value = self.context.get(key)
        return value if isinstance(value, bool) else None

    def ask(self, *questions: QuestionKey) -> WhatIfResult | None:
        """Return the answer that saves most, None if no question was answered."""
        if not self.timeline.usable_what_ifs:
            return None
        known = [self.timeline.what_ifs[q] for q in questions if q in self.timeline.what_ifs]
        return max(known, key=lambda answer: answer.saves_ms, default=None)

    def spans(self, *parts: Part) -> list[HostSpan]:
        """Return the host spans of some budget parts, the largest first."""
        return [span for span in self.timeline.spans if span.part in parts]

    def sites(self, *phases: str) -> tuple[SourceSite, ...]:
        """Return the user's lines of some phases, the most frequent first."""
        if self.run is None:
            return ()
        found = [item for item in self.run.sites if item.phase in phases]
        found.sort(key=lambda item: -item.count)
        return tuple(dict.fromkeys(item.site for item in found))

    def forward_sites(self) -> tuple[SourceSite, ...]:
        """Return the lines inside the model that most of its forward is in, and then those that call it."""
        return tuple(dict.fromkeys((*self.lines_of("forward"), *self.sites("forward"))))

    def lines_of(self, *roles: Role) -> tuple[SourceSite, ...]:
        """Return the lines that most of what has these roles is in; none where no stacks were sampled.

        From the step down to the first line that leads to several others, the most expensive of these first;
        past these where they lead to one again, as calls of one function do.
        """
        tree = self.timeline.tree
        most = [[tree]] if tree is not None else []
        while most:
            inner: dict[SourceSite | None, list[CodeNode]] = {}
            for child in (child for nodes in most for node in nodes for child in node.children):
                if child.role in roles:
                    inner.setdefault(child.site, []).append(child)
            if len(most) == 1:
                least_ms = _LEADS * sum(map(_ms, inner.values()))
            else:
                least_ms = (1.0 - _LEADS) * sum(map(_ms, most))
            leading = sorted((nodes for nodes in inner.values() if _ms(nodes) >= least_ms), key=_ms)
            if not leading:
                break
            most = leading[::-1]
        return tuple(nodes[0].site for nodes in most if nodes[0].site is not None)

    def lines_of_work(self) -> tuple[SourceSite, ...]:
        """Return the lines of models and loss that most of their time is in, and those that call a model.

        Those that the device works for come first, where they are known. Of several models the one that takes
        longer comes first. Of an update that takes longer than forward and backward, its own lines.
        """
        took = self.phases_ms
        if took.get("optimizer", 0.0) > took.get("forward", 0.0) + took.get("backward", 0.0):
            return self.lines_of("update") or self.sites("optimizer")
        roles: tuple[Role, ...] = ("forward", "loss")
        phases = ["forward"]
        if self.ask(WhatIf.FORWARD_STORED) is not None:
            roles = (*roles, "no-grad forward")
            phases.insert(took.get("evaluation", 0.0) <= took.get("forward", 0.0), "evaluation")
        sampled = (*self.lines_of(*roles), *(site for phase in phases for site in self.sites(phase)))
        device = (node.site for node in self.timeline.device_lines if node.site is not None)
        return tuple(dict.fromkeys((*device, *sampled)))

    def sampled_site(self, *parts: str) -> SourceSite | None:
        """Return the line that most samples of some parts of the loop fell on; None if they scatter."""
        return main_site(self.run, *parts)

    def training_loader(self) -> LoaderFacts | None:
        """Return the loader that feeds the training, if one was seen."""
        return training_loader(self.loaders)

    def interval(self, saves_ms: float) -> Interval | None:
        """Spread a predicted saving by the noise of the step and the replay's own error."""
        ci = self.step.true_ci_ms
        if ci is None or self.true_ms <= 0:
            return None
        noise = (ci[1] - ci[0]) / 2 / self.true_ms * saves_ms
        noise += (self.timeline.replay_error or 0.0) * saves_ms
        return Interval(low_ms=max(0.0, saves_ms - noise), high_ms=saves_ms + noise)


def share_evidence(share: float, what: str, *, source: str = "trace") -> Evidence:
    """State which share of the step something takes."""
    return Evidence(text=f"{percent(share)} of the step in {what}", value=share, unit="share", source=source)


def priced(facts: Facts, *questions: QuestionKey) -> WhatIfResult | None:
    """Return the replay's answer, if it saves at least half a percent of the step."""
    answer = facts.ask(*questions)
    return answer if answer is not None and answer.saves_ms >= 0.005 * facts.true_ms else None


def predicted_evidence(answer: WhatIfResult, says: str) -> Evidence:
    """State the step time that the replay predicts; `says` is like "compiling predicts"."""
    bound = "at best " if answer.bound else ""
    return Evidence(
        text=f"{says} {bound}{ms(answer.step_ms)} per step",
        value=answer.step_ms,
        unit="ms",
        source="replay",
    )


def kernel_evidence(facts: Facts, *parts: Part, most: int = 3) -> list[Evidence]:
    """Name the most expensive kernels (CPU: operators) of some budget parts, or of all."""
    rows = [row for row in facts.timeline.kernels if not parts or row.part in parts]
    return [
        Evidence(
            text=f"{row.name}: {ms(row.ms)} per step in {row.count:.0f} calls ({percent(row.share)})",
            value=row.ms,
            unit="ms/step",
            source="trace",
        )
        for row in rows[:most]
    ]


def call_evidence(spans: Sequence[HostSpan], *, most: int = 4) -> list[Evidence]:
    """Name the calls that the step waits in, the most expensive first."""
    return [
        Evidence(
            text=f"{span.count:.1f} {span.what} per step, {ms(span.called_ms)} in them, "
            f"{ms(span.exposed_ms)} of device idle time",
            value=span.called_ms,
            unit="ms/step",
            source="trace",
            site=span.site,
        )
        for span in spans[:most]
    ]


class Analyzer(ABC):
    """One finding code. Subclasses register themselves by `code`."""

    code: ClassVar[str]
    needs_step: ClassVar[bool] = True
    """False: can find something even without a step, as in a memory snapshot."""

    def __init_subclass__(cls) -> None:
        assert cls.code in FINDING_CODES, f"{cls.__name__}: unknown code {cls.code}"
        assert cls.code not in REGISTRY, f"{cls.code} is claimed twice"
        REGISTRY[cls.code] = cls

    @property
    def bottleneck_class(self) -> BottleneckClass | None:
        """Class of the code, from the append-only table."""
        return FINDING_CODES[self.code].bottleneck_class

    @abstractmethod
    def find(self, facts: Facts) -> Iterable[Finding]:
        """Find what there is; nothing if the data is missing."""

    def finding(
        self,
        facts: Facts,
        title: str,
        *,
        answer: WhatIfResult | None = None,
        cost_ms: float | None = None,
        time_ms: float | None = None,
        evidence: Sequence[Evidence] = (),
        sites: Sequence[SourceSite | None] = (),
        not_this: str = "",
        note: bool = False,
    ) -> Finding:
        """Make a finding, priced by an answer of the replay where there is one."""
        cost = answer.saves_ms if answer is not None else cost_ms
        true_ms = facts.true_ms
        return Finding(
            code=self.code,
            bottleneck_class=self.bottleneck_class,
            title=title,
            cost_ms=cost,
            cost_share=cost / true_ms if cost is not None and true_ms > 0 else None,
            interval=facts.interval(cost) if cost is not None else None,
            time_ms=time_ms,
            predicted_step_ms=true_ms - cost if cost is not None else None,
            evidence=tuple(evidence),
            sites=tuple(dict.fromkeys(site for site in sites if site is not None)),
            not_this=not_this,
            note=note,
            ranks=(facts.rank,),
        )


REGISTRY: dict[str, type[Analyzer]] = {}
"""Finding code -> its analyzer; filled when the modules of this folder are imported."""


def explain(code: str) -> str:
    """Return the page of a finding code.

    Raises:
        UsageError: there is no such code.
    """
    wanted = code.strip().upper()
    if wanted not in REGISTRY:
        known = ", ".join(sorted(REGISTRY))
        raise UsageError(f"There is no finding {code!r}.", remedy=f"Known codes: {known}.")
    entry = FINDING_CODES[wanted]
    title = f"{entry.code} {entry.name}"
    if entry.bottleneck_class is not None:
        title += f" ({entry.bottleneck_class.value})"
    return f"{title}\n\n{inspect.getdoc(REGISTRY[wanted]) or ''}\n"
