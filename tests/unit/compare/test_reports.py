"""Every report, rendered from one regression, and from a hostile twin of it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import msgspec
import pytest
from unit.compare.sides import baseline, budget, counters, runs, side, site, sync, workload

from torch_bottleneck.compare.decide import compare_sides
from torch_bottleneck.errors import UsageError
from torch_bottleneck.model.compare import Comparison
from torch_bottleneck.model.counters import SyncSite
from torch_bottleneck.model.work import LoaderArguments
from torch_bottleneck.reporters.compare.output import (
    COMPARE_FORMATS,
    write_job_summary,
    write_reports,
)
from torch_bottleneck.reporters.output import render_for

OLD = sync(20, "print(loss.item())")
NEW = sync(48, "log(loss.item())", file="model.py", function="training_step")


def regression() -> Comparison:
    return compare_sides(
        side("reports/baseline.json", runs=runs(10, 10.1, 9.9, 10.05)),
        side(
            "train.py",
            runs=runs(19.1, 19.2, 19.0, 19.15),
            counters=counters(
                {"syncs": 2, "operators": 203},
                syncs=(OLD, NEW),
                names={"aten::mm": 10.0, "aten::add": 4.0, "aten::exp": 3.0},
            ),
            budget=budget(OTHER_MATH=8.0, DISPATCH=3.2, SYNC=7.9),
            workload=workload(
                loaders=(LoaderArguments(cls="DataLoader", role="train", batch_size=16, num_workers=2),)
            ),
        ),
        interleaved=True,
    )


EVIL = "\x1b[31m|`<b>]]>&\n::error::x%0A,:\u202e"


def hostile() -> Comparison:
    evil = SyncSite(what=EVIL, count=2.0, site=site(1, file=f"dir/{EVIL}.py", function=EVIL), code=EVIL)
    return compare_sides(
        side(EVIL),
        side(EVIL, title=EVIL, counters=counters({"syncs": 2}, syncs=(evil,), names={EVIL: 3.0})),
    )


def test_the_terminal_says_what_why_and_where():
    text = render_for(regression(), "text")
    assert text.startswith("REGRESSION\n")
    assert "✗ synchronisations" in text
    assert "1 → 2" in text
    assert "model.py:48" in text
    assert "train loader: num_workers: 0 → 2" in text
    assert "blocked in a synchronisation" in text
    assert "aten::exp: 0 → 3" in text
    assert max(map(len, text.splitlines())) <= 80


def test_every_counter_is_in_the_verbose_text_and_folded_in_markdown():
    assert "= graph breaks" not in render_for(regression(), "text")
    assert "= graph breaks" in render_for(regression(), "text", verbose=True)
    text = render_for(regression(), "md")
    before, folded = text.split("<details>", 1)
    assert "graph breaks" not in before and "graph breaks" in folded
    assert len(before) < 1500, "what is not folded is short"
    assert text.count("<details>") == text.count("</details>") > 3


def test_junit_has_a_case_per_counter_and_one_for_the_time():
    root = ET.fromstring(render_for(regression(), "junit"))
    suite = root[0]
    cases = {case.get("name"): case for case in suite}
    assert suite.get("tests") == str(len(cases))
    assert suite.get("failures") == "2"
    failure = cases["syncs"].find("failure")
    assert failure is not None and "1 → 2" in (failure.get("message") or "")
    assert "model.py:48" in (failure.text or "") or "log(loss.item())" in (failure.text or "")
    assert cases["step time"].find("failure") is not None
    assert cases["graph_breaks"].find("failure") is None


def test_junit_of_an_incomparable_pair_is_an_error():
    other = msgspec.structs.replace(baseline().machine, torch="2.12.0")
    root = ET.fromstring(render_for(compare_sides(side(), side(machine=other)), "junit"))
    assert root[0].get("errors") == "1"


def test_github_annotates_the_line_and_escapes_what_would_end_the_command():
    lines = render_for(regression(), "github").splitlines()
    assert lines[0].startswith("::error file=model.py,line=48,title=Regression%3A synchronisations::")
    for line in render_for(hostile(), "github").splitlines():
        head, _, data = line[2:].partition("::")
        assert head.split(" ")[0] in ("error", "warning", "notice")
        assert "\n" not in data
        assert "%0A" not in data.replace("%250A", ""), "a percent sign of the user's is not an escape of ours"
        for prop in head.split(" ", 1)[1].split(","):
            assert prop.split("=")[0] in ("file", "line", "title")


def test_gitlab_rows_have_what_code_quality_asks_for_and_a_stable_fingerprint():
    rows = json.loads(render_for(regression(), "gitlab"))
    assert rows[0]["location"] == {"path": "model.py", "lines": {"begin": 48}}
    assert rows[0]["severity"] == "major"
    assert len({row["fingerprint"] for row in rows}) == len(rows)
    again = json.loads(render_for(regression(), "gitlab"))
    assert [row["fingerprint"] for row in again] == [row["fingerprint"] for row in rows]


def test_sarif_has_the_line_that_is_to_blame():
    (run,) = json.loads(render_for(regression(), "sarif"))["runs"]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("model.py", 48)
    assert run["results"][0]["level"] == "error"


def test_json_comes_back_as_it_went(tmp_path):
    path = tmp_path / "compare.json"
    write_reports(regression(), {path: "json"})
    assert msgspec.json.decode(path.read_bytes(), type=Comparison) == regression()


@pytest.mark.parametrize("name", COMPARE_FORMATS)
def test_nothing_hostile_passes_through(name):
    text = render_for(hostile(), name)
    assert "\u202e" not in text or name == "json"
    assert "\x1b" not in text
    if name == "md":
        assert "<b>" not in text
    if name == "junit":
        ET.fromstring(text)


def test_the_job_summary_is_written_where_github_wants_it(tmp_path, capsys):
    place = tmp_path / "summary.md"
    place.write_text("before\n")
    write_job_summary(regression(), environ={"GITHUB_STEP_SUMMARY": str(place)})
    assert place.read_text().startswith("before\n### ❌ Performance regression: train.py")
    write_job_summary(regression(), environ={})
    write_job_summary(regression(), environ={"GITHUB_STEP_SUMMARY": str(tmp_path / "no" / "where")})
    assert "could not be written" in capsys.readouterr().err


def test_an_unknown_format_is_named():
    with pytest.raises(UsageError, match="yaml"):
        render_for(regression(), "yaml")
