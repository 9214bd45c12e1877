"""What a notebook's cell shows: short, without scripts, and with no markup of others."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from unit.reporters.sample import empty, hostile, sample

from torch_bottleneck.reporters.html.fragment import render_fragment


@pytest.mark.parametrize("make", [sample, empty, hostile])
def test_it_is_short_and_has_no_script_and_no_markup_of_others(make: Any) -> None:
    page = render_fragment(make(), place="reports/<b>/report.html")
    assert len(page) < 200_000
    tags = set(re.findall(r"<(\w+)", page))
    assert tags <= {
        "div", "style", "p", "strong", "span", "br", "details", "summary", "table", "tr", "th", "td", "code",
        "pre", "ul", "li",
    }  # fmt: skip
    assert "reports/&lt;b&gt;/report.html" in page


def test_it_says_what_the_report_says_and_stays_short_with_many_fixes() -> None:
    diagnosis = sample()
    page = render_fragment(diagnosis, place="report.html")
    assert diagnosis.verdict.bottleneck_class.value in page
    assert diagnosis.suggestions[0].fix in page
    many = tuple(
        msgspec.structs.replace(diagnosis.suggestions[0], title=f"fix {n}", code="x = 1\n" * 5000)
        for n in range(300)
    )
    assert len(render_fragment(msgspec.structs.replace(diagnosis, suggestions=many), place="")) < 200_000
