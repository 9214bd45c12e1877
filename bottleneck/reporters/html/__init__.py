"""report.html: one file that opens anywhere, with charts, and asks nothing of a network.

In: a diagnosis. Out: the page. Jinja2 lays out the rows with autoescape on, so that names, paths and
messages from a script or a trace stay text; Apache ECharts (Apache-2.0, shipped whole in static/) draws
the charts from one JSON document in the page. A Content-Security-Policy in the page allows nothing but
its own scripts, by their hashes, and no connection to anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..rows.diagnosis import NEGLIGIBLE
from .charts import chart_data, json_for_script
from .how import HOW
from .page import build
from .palette import variables

if TYPE_CHECKING:
    from jinja2 import Environment

    from ...model.diagnosis import Diagnosis

__all__ = ["render"]

_HERE = Path(__file__).parent
_LONGEST_TEXT = 4_000
"""Characters; the longest code of the catalogue has an eighth of that."""
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|(?:ms|µs|s|[KMGT]iB|steps?)\b))")
_SCRIPTS = ("page.js", "tables.js", "charts.js", "memory.js", "timeline.js")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates", encoding="utf-8"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_bounded,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["whole"] = _whole
    environment.globals["negligible"] = NEGLIGIBLE
    return environment


def _whole(text: str) -> str:
    """Keep a number and its unit on one line."""
    return _BEFORE_UNIT.sub("\u00a0", text)


def _bounded(value: object) -> object:
    """Cut a text that runs on: a script can make any name or message as long as it likes."""
    if type(value) is str and len(value) > _LONGEST_TEXT:
        return f"{value[:_LONGEST_TEXT]}…"
    return value


@cache
def _static(name: str) -> str:
    return (_HERE / "static" / name).read_text(encoding="utf-8")


@cache
def _own_script() -> str:
    parts = "\n".join(_static(name) for name in _SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}\n}})();'


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def render(diagnosis: Diagnosis, *, verbose: bool = False) -> str:
    """Return the page; it always holds everything, so `verbose` changes nothing."""
    from markupsafe import Markup

    del verbose
    library, script = _static("echarts.min.js"), _own_script()
    return (
        _environment()
        .get_template("page.html")
        .render(
            page=build(diagnosis),
            how=HOW,
            # Ours, or made harmless by json_for_script: the only text that autoescape does not touch.
            style=Markup(_static("report.css")),  # noqa: S704
            light=Markup(variables(dark=False)),  # noqa: S704
            dark=Markup(variables(dark=True)),  # noqa: S704
            library=Markup(library),  # noqa: S704
            script=Markup(script),  # noqa: S704
            script_hashes=" ".join(_hash(text) for text in (library, script)),
            data=Markup(json_for_script(chart_data(diagnosis))),  # noqa: S704
        )
    )
