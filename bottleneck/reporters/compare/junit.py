"""A comparison as JUnit XML, which every CI system shows.

In: a comparison. Out: XML: one test case per counter, one for the step time, one per drift. What could
not be measured is skipped with its reason, unless it decided the outcome: then it is an error.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from ...model.compare import (
    Comparison,
    CounterRow,
    GrowthChange,
    TimeRow,
    counter_words,
    drift_words,
    growth_words,
    mismatch_words,
    part_words,
    rank_words,
    time_words,
)
from ...model.words import clean


def render(comparison: Comparison) -> str:
    """Return the document."""
    title = clean(comparison.head.title or comparison.head.label)
    suite = ET.Element("testsuite", name=f"bottleneck: {title}")
    for mismatch in comparison.mismatches:
        if not mismatch.allowed:
            case = _case(suite, title, f"comparable: {mismatch.what}")
            _add(case, "error", mismatch_words(mismatch))
    for row in comparison.counters:
        _counter(_case(suite, title, row.name), row, comparison)
    if comparison.outcome != "incomparable":
        ranks = "; ".join(map(rank_words, comparison.ranks))
        _time(_case(suite, title, "step time"), comparison.time, time_words(comparison.time), ranks)
    for part in comparison.job:
        _time(_case(suite, title, f"job: {part.part}"), part.time, part_words(part))
    if comparison.growth is not None:
        _growth(_case(suite, title, "growth of the step"), comparison.growth)
    for drift in comparison.drifts:
        _add(_case(suite, title, f"drift of {drift.what}"), "failure", drift_words(drift))
    for kind in ("failure", "error", "skipped"):
        count = sum(case.find(kind) is not None for case in suite)
        suite.set({"failure": "failures", "error": "errors", "skipped": "skipped"}[kind], str(count))
    suite.set("tests", str(len(suite)))
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _case(suite: ET.Element, title: str, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=title, name=name, time="0")


def _add(case: ET.Element, kind: str, message: str, details: str = "") -> None:
    element = ET.SubElement(case, kind, message=clean(message))
    element.text = clean(details) or None


def _counter(case: ET.Element, row: CounterRow, comparison: Comparison) -> None:
    text = counter_words(row)
    if row.status == "worse":
        lines = [a.message for a in comparison.annotations if a.key == row.name]
        _add(case, "failure", text, "; ".join(lines))
    elif row.status in ("unstable", "unknown"):
        _add(case, "error", text)
    elif row.status == "off":
        _add(case, "skipped", row.note or "not gated")
    else:
        ET.SubElement(case, "system-out").text = clean(text)


def _growth(case: ET.Element, row: GrowthChange) -> None:
    if row.status == "worse":
        _add(case, "failure", growth_words(row))
    else:
        ET.SubElement(case, "system-out").text = clean(growth_words(row))


def _time(case: ET.Element, row: TimeRow, text: str, details: str = "") -> None:
    if row.decision == "slower" and row.gated:
        _add(case, "failure", text, details)
    elif row.decision == "undecided" and row.gated:
        _add(case, "error", text)
    elif row.decision in ("undecided", "not compared") or not row.gated:
        _add(case, "skipped", text)
    else:
        ET.SubElement(case, "system-out").text = clean(text)
