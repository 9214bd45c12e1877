"""The head of the page and what every report shows: verdict, budget, causes, fixes, settings.

In: a diagnosis. Out: plain rows of clean text; the templates only lay them out and escape them.
"""

from __future__ import annotations

from types import SimpleNamespace

from ...model.codes import BottleneckClass
from ...model.diagnosis import Diagnosis
from ...model.words import clean, milliseconds
from ..rows import details
from ..rows.closing import capture_line
from ..rows.code import code_rows, flame_blocks
from ..rows.compiler import compile_section, compute_facts, math_rows
from ..rows.diagnosis import CauseRow, cause_rows, device_line, headline
from ..rows.fixes import combination_line, fix_rows, useless_rows
from ..rows.fleet import (
    bubble_line,
    bucket_lines,
    clock_line,
    late_lines,
    link_lines,
    own_lines,
    path_line,
    together_lines,
    traffic_rows,
)
from ..rows.groups import group_lines
from ..rows.heat import heat_map
from ..rows.job import job_rows
from ..rows.memory import memory_sections
from ..rows.verify import rows_of
from .charts import blocks_of
from .head import budget_groups, figures
from .tables import count_rows, kernel_rows, loader_rows, rank_rows, window_rows
from .timeline_rows import timeline_section

_FEW_FIXES = 3


def build(diagnosis: Diagnosis) -> SimpleNamespace:
    """Return everything that the templates lay out."""
    verdict = diagnosis.verdict
    undetermined = verdict.bottleneck_class is BottleneckClass.UNDETERMINED
    gpu = _on_gpu(diagnosis)
    worth, small = cause_rows(diagnosis)
    fixes = fix_rows(diagnosis)
    shown = [f for f in fixes if not f.minor and not f.instead_of]
    few = shown[:_FEW_FIXES]
    memory = diagnosis.capture.artefacts.get("memory")
    heat = heat_map(diagnosis)
    return SimpleNamespace(
        title=clean(diagnosis.title) or "Diagnosis",
        verdict=verdict.bottleneck_class.value,
        classes=tuple(c.value for c in verdict.also),
        undetermined=undetermined,
        confidence=verdict.confidence,
        headline=headline(diagnosis),
        reason="" if undetermined else clean(verdict.reason),
        remedy=clean(verdict.remedy),
        outcome=clean(diagnosis.outcome),
        where=device_line(diagnosis),
        command=clean(" ".join(diagnosis.command)),
        created=clean(diagnosis.created),
        version=clean(diagnosis.tool_version),
        figures=figures(diagnosis, undetermined=undetermined),
        first_fix=shown[0] if shown else None,
        fixes=tuple(few),
        more_fixes=tuple(f for f in fixes if not f.minor and f not in few),
        notes_fixes=tuple(f for f in fixes if f.minor),
        useless=tuple(useless_rows(diagnosis)),
        tried_here=any(s.measured is not None for s in diagnosis.suggestions),
        combination=combination_line(diagnosis),
        # Cells under `COLUMNS` of the verification's own report.
        tried=tuple(row.cells for row in rows_of(diagnosis.tried)),
        budget=budget_groups(diagnosis, gpu=gpu),
        gpu=gpu,
        causes=_causes(diagnosis, worth),
        small_causes=tuple(small),
        code=tuple(code_rows(diagnosis)),
        flame=tuple(flame_blocks(diagnosis)),
        windows=window_rows(diagnosis),
        job=tuple(job_rows(diagnosis)),
        timeline=timeline_section(diagnosis),
        kernels=kernel_rows(diagnosis),
        counts=count_rows(diagnosis),
        memory=memory_sections(diagnosis),
        memory_absent=clean(memory.reason or "") if memory is not None else "",
        compile=compile_section(diagnosis),
        # The acceleration state says so, whether details of what was compiled are known or not.
        compiled=any(
            row.name == "torch.compile" and row.state in ("on", "partly") for row in diagnosis.acceleration
        ),
        compute=compute_facts(diagnosis),
        math=math_rows(diagnosis),
        loaders=loader_rows(diagnosis),
        settings=tuple(
            (clean(row.name), row.state, clean(row.value), clean(row.seen_by))
            for row in diagnosis.acceleration
        ),
        ranks=tuple(sorted(rank_rows(diagnosis), key=lambda row: not row.late)),  # who is late first
        late=tuple(late_lines(diagnosis)),
        bubble=bubble_line(diagnosis),
        path=path_line(diagnosis),
        clock=clock_line(diagnosis),
        own=tuple(own_lines(diagnosis)),
        groups=tuple(group_lines(diagnosis)),
        heat=heat,
        heat_most=milliseconds(heat.most_ms) if heat is not None else "",
        together=(*together_lines(diagnosis), *bucket_lines(diagnosis)),
        traffic=tuple(traffic_rows(diagnosis)),
        links=tuple(link_lines(diagnosis)),
        quality=diagnosis.capture.quality,
        capture=tuple(capture_line(diagnosis).split("; ")[1:]),
        problems=tuple(clean(text) for text in diagnosis.capture.problems),
        notes=tuple(clean(text) for text in diagnosis.notes),
        evidence=_evidence(diagnosis),
    )


_PLACES = {
    "Findings, with their evidence": "causes",
    "What if": "causes",
    "Host time per phase": "steps",
    "Settings in force": "settings",
    "The rest of the job": "",
    # Tables of their own show these.
    "Kernels and operators, per step": "",
    "Ranks": "",
}


def _evidence(diagnosis: Diagnosis) -> dict[str, tuple[tuple[str, tuple[tuple[int, str], ...]], ...]]:
    """Return the lists that every verbose report has, by the section that they belong to."""
    sections = details.sections(diagnosis)
    return {
        place: tuple(
            (title, tuple(rows)) for title, rows in sections if _PLACES.get(title, "capture") == place
        )
        for place in ("causes", "steps", "settings", "capture")
    }


def _on_gpu(diagnosis: Diagnosis) -> bool:
    if diagnosis.device is not None:
        return diagnosis.device.kind != "cpu"
    return diagnosis.timeline is not None and any(lane.kind == "stream" for lane in diagnosis.timeline.lanes)


def _causes(diagnosis: Diagnosis, worth: list[CauseRow]) -> tuple[SimpleNamespace, ...]:
    causes = [cause for cause in diagnosis.causes if not cause.negligible]
    largest = max((cause.share for cause in causes), default=0.0)
    cells = []
    for cause, row in zip(causes, worth, strict=True):
        blocks, ms = blocks_of(diagnosis.timeline, cause.bottleneck_class)
        cells.append(
            SimpleNamespace(
                row=row,
                width=round(100 * max(cause.share, 0.0) / largest, 2) if largest > 0 else 0.0,
                blocks=blocks,
                blocks_ms=milliseconds(ms),
                index=diagnosis.causes.index(cause),  # as the page's script knows it
            )
        )
    return tuple(cells)
