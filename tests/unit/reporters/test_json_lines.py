"""diagnosis.json keeps lists of numbers on one line and loses nothing by it."""

from __future__ import annotations

import msgspec
from unit.reporters.sample import sample

from torch_bottleneck.model.diagnosis import Diagnosis
from torch_bottleneck.model.view import Lane, Span, StepTimeline, WindowSteps
from torch_bottleneck.reporters.json import render

TRICKY = '[\n  1,\n  2\n] "[\\n 3\\n]" [\n  [1, 2]\n]'


def drawn() -> Diagnosis:
    spans = (Span(0.0, 1.5, 0, 2), Span(1e-7, 12345678.25, 1, -1, 1, 3))
    return msgspec.structs.replace(
        sample(),
        notes=(TRICKY,),
        windows=(WindowSteps(name="baseline", index=(1, 2, 3), ms=(1.0, None, 2.5e3)),),
        timeline=StepTimeline(
            length_us=10.0, lanes=(Lane(kind="stream", name=TRICKY, spans=spans),), names=(TRICKY, "[1, 2]")
        ),
    )


def test_the_text_reads_back_as_the_same_diagnosis() -> None:
    diagnosis = drawn()
    assert msgspec.json.decode(render(diagnosis).encode(), type=Diagnosis) == diagnosis


def test_columns_and_spans_take_one_line_each() -> None:
    text = render(drawn())
    assert '"index": [1, 2, 3]' in text
    assert '"ms": [1.0, null, 2500.0]' in text
    assert '"spans": [[0.0, 1.5, 0, 2, 0, 1], [1e-7, 12345678.25, 1, -1, 1, 3]]' in text
