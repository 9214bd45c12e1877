"""report.html: whole, bounded, in need of no network, and with no markup of a script's in it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from recorded.diagnosed import diagnosis_of
from unit.reporters.drawn import drawn, odd, planted
from unit.reporters.sample import empty, hostile, sample

from torch_bottleneck.model.codes import Part
from torch_bottleneck.model.diagnosis import Diagnosis
from torch_bottleneck.model.words import byte_size
from torch_bottleneck.reporters import html
from torch_bottleneck.reporters.html import render
from torch_bottleneck.reporters.html.charts import chart_data, json_for_script
from torch_bottleneck.reporters.html.how import HOW
from torch_bottleneck.reporters.html.page import build
from torch_bottleneck.reporters.html.palette import COLOURS
from torch_bottleneck.reporters.output import render_for

MARKUP = "\"'><b class=planted onmouseover=planted()>&amp;</script><script>planted()</script><!--"
VOID = {"meta", "input", "br", "hr", "img", "link"}


class Parsed(HTMLParser):
    """Elements with their attributes, the text outside scripts, and the scripts."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append((self.elements[-1][1], data))
        elif not (self.open and self.open[-1] == "style"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def parsed(diagnosis: Diagnosis) -> Parsed:
    return Parsed(render(diagnosis))


@pytest.mark.parametrize(
    "diagnosis",
    [sample(), drawn(), hostile(), empty(), odd()],
    ids=["sample", "drawn", "hostile", "empty", "odd"],
)
def test_every_element_is_closed_and_ids_are_unique(diagnosis: Diagnosis) -> None:
    page = parsed(diagnosis)
    assert page.open == []
    ids = Counter(attrs["id"] for _, attrs in page.elements if "id" in attrs)
    assert [name for name, count in ids.items() if count > 1] == []
    pointed = [attrs.get("aria-labelledby") for _, attrs in page.elements if attrs.get("aria-labelledby")]
    links = [str(attrs["href"]) for tag, attrs in page.elements if tag == "a"]
    pointed += [link[1:] for link in links if link.startswith("#")]
    assert set(pointed) <= set(ids)


def test_the_answer_stands_in_the_page_without_its_scripts() -> None:
    text = parsed(drawn()).text
    for told in (
        "input-bound", "confidence high", "54.6 of 87.4 ms (62 %)", "87.4 → 33.0 ms (2.65×)", "num_workers=4",
        "train.py:41 (main)", "FX101", "95 %: 86.9 to 88.1", "unexplained", "launch-bound",
        "Compile the model",
        "nvjet_tst_128x256_64x4_2x1_v_bz_coopB_TNN", "bfloat16", "replay off by 1.2 %", "call to print()",
        "peak 150 MiB of 1000 MiB (15 %), in backward of step 2", "Photos", "absent: --no-memory", "baseline",
    ):  # fmt: skip
        assert told in text, told


def test_the_budget_is_grouped_and_its_groups_add_up() -> None:
    groups = build(drawn()).budget
    assert [g.title for g in groups] == ["GPU idle, by what the host did", "GPU at work"]
    assert sum(float(g.ms) for g in groups) == pytest.approx(87.4, abs=0.15)
    assert sum(len(g.rows) for g in groups) == len(drawn().budget)


def test_what_was_not_measured_says_so() -> None:
    text = parsed(empty()).text
    assert "undetermined" in text
    assert "Let it run for at least 10 steps." in text
    assert "The script raised ValueError: bad input" in text
    assert text.count("Not measured") >= 5
    assert "No DataLoader was seen." in text
    assert "Not priced: the capture does not support a verdict" in text
    assert "No cause costs" not in text, "missing is not zero"


def test_nothing_in_the_page_asks_for_anything_outside_it() -> None:
    html = render(drawn())
    page = Parsed(html)
    for tag, attrs in page.elements:
        assert "src" not in attrs, tag
        assert tag not in ("link", "iframe", "img", "object", "form", "base")
        if "href" in attrs:
            assert str(attrs["href"]).startswith("#")
        assert not any(name.startswith("on") for name in attrs), tag
    styles = "".join(re.findall(r"<style>(.*?)</style>", html, re.DOTALL))
    assert "url(" not in styles
    assert "@import" not in styles


def test_the_policy_allows_exactly_the_scripts_in_the_page() -> None:
    page = parsed(drawn())
    policy = next(str(a["content"]) for t, a in page.elements if t == "meta" and a.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    assert "connect-src" not in policy, "falls back to default-src: no connection to anywhere"
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    run = [text for attrs, text in page.scripts if attrs.get("type") != "application/json"]
    found = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in run}
    assert found == allowed
    assert len(found) == 2


def test_markup_planted_in_every_field_stays_text() -> None:
    page = parsed(planted(drawn(), MARKUP))
    for tag, attrs in page.elements:
        assert attrs.get("class") != "planted", tag
        assert not any("planted" in name or name.startswith("on") for name in attrs), (tag, attrs)
    assert len([tag for tag, _ in page.elements if tag == "script"]) == 3
    shown = page.text.count("class=planted")
    # Everything that a reader sees was replaced: titles, sites, reasons, kernels, settings, loaders, ...
    assert shown > 60
    document = next(text for attrs, text in page.scripts if attrs.get("type") == "application/json")
    assert "<" not in document
    assert msgspec.json.decode(document)["timeline"]["names"][0].startswith("\"'><b class=planted")


@pytest.mark.parametrize("nasty", ["</script>", "<!--", "]]>", "\u2028", "&lt;", "\\u003c", "\x00"])
def test_the_document_in_the_script_element_reads_back(nasty: str) -> None:
    text = json_for_script({"a": nasty})
    assert not set("<>&\u2028") & set(text)
    assert msgspec.json.decode(text) == {"a": nasty}


def test_a_page_stays_below_three_megabytes_however_large_the_diagnosis() -> None:
    large = planted(drawn(), "x" * 20_000)
    assert len(render(large).encode()) < 3_000_000
    assert len(render(drawn()).encode()) < 1_500_000


def test_html_is_a_format_like_the_others() -> None:
    assert render_for(sample(), "html", verbose=True) == render(sample())


def test_every_part_has_a_colour_and_every_topic_is_used() -> None:
    assert set(COLOURS) == set(Part)
    for light in (0, 1):
        assert len({pair[light] for pair in COLOURS.values()}) == len(Part)
    text = parsed(drawn()).text
    for topic, words in HOW.items():
        if topic not in ("step", "step_profiled", "step_given", "budget_cpu"):
            assert " ".join(words.split()) in text, topic


def test_a_price_that_is_a_bound_says_so() -> None:
    bare = diagnosis_of("launch-h200")
    labels = [figure.label for figure in build(bare).figures]
    assert "launch-bound costs at most" in labels
    assert "input-bound costs" in [figure.label for figure in build(drawn()).figures]


def test_counts_show_their_range_and_why_one_was_not_measured() -> None:
    rows = {row.title: row for row in build(drawn()).counts}
    assert rows["synchronisations"].value == "24"
    copied = next(row for row in rows.values() if row.spread == "1.86 GiB to 3.73 GiB")
    assert copied.value == "2.79 GiB"
    missing = next(row for row in rows.values() if row.value == "not measured")
    assert missing.spread == "no shapes in the trace"


def test_the_chart_library_is_the_file_that_npm_packs_and_its_licence_is_beside_it() -> None:
    """echarts@6.1.0, dist/echarts.min.js; a change of version changes this line and the pyproject's."""
    static = Path(html.__file__).parent / "static"
    digest = hashlib.sha256((static / "echarts.min.js").read_bytes()).hexdigest()
    assert digest == "b66b25aeb4df84e33199dc21694014d336d222cbd9deb0e5a7c14bd6aa0d0fd0"
    assert "Apache License" in (static / "echarts.LICENSE").read_text(encoding="utf-8")
    assert "Apache Software Foundation" in (static / "echarts.NOTICE").read_text(encoding="utf-8")


def test_a_diagnosis_of_an_older_version_still_makes_a_page() -> None:
    old = msgspec.json.decode(msgspec.json.encode(sample()))
    for name in ("windows", "timeline", "loaders", "memory", "compile", "compute", "counters"):
        old.pop(name)
    page = parsed(msgspec.convert(old, Diagnosis))
    assert "87.4 → 33.0 ms (2.65×)" in page.text
    assert "an older version wrote the diagnosis" in page.text


def test_causes_know_their_blocks_in_the_timeline() -> None:
    cells = {c.row.name: c for c in build(drawn()).causes}
    assert (cells["input-bound"].blocks, cells["input-bound"].blocks_ms) == (2, "60.0")
    assert cells["launch-bound"].blocks == 2
    data = chart_data(drawn())
    assert data["causes"][0]["lanes"] == [1]
    assert data["causes"][2]["lanes"] == [], "no synchronisation in this step"


@pytest.mark.parametrize(
    ("tera", "text"),
    [(177.2, "177 TFLOP/s"), (0.19, "0.19 TFLOP/s"), (0.0168, "16.8 GFLOP/s"), (4.72e-6, "4.72 MFLOP/s")],
)
def test_flops_are_worded_in_a_unit_that_keeps_them_readable(tera: float, text: str) -> None:
    run = drawn()
    assert run.compute is not None
    compute = msgspec.structs.replace(run.compute, achieved_tflops=tera)
    facts = dict(build(msgspec.structs.replace(run, compute=compute)).compute)
    assert facts["Achieved over the step"] == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (150 << 20, "150 MiB"),
    ],
)
def test_sizes_are_worded_in_binary_units(value: int, text: str) -> None:
    assert byte_size(value) == text
