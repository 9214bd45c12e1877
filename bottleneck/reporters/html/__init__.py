"""report.html: one file that opens anywhere, with charts, and asks nothing of a network.

In: a diagnosis. Out: the page. Jinja2 lays out the rows with autoescape on, so that names, paths and
messages from a script or a trace stay text; Apache ECharts (Apache-2.0, shipped whole in static/) draws
the charts from one JSON document in the page. A Content-Security-Policy in the page allows nothing but
its own scripts, by their hashes, and no connection to anywhere.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache

from ...model.diagnosis import Diagnosis
from .charts import chart_data, json_for_script
from .environment import environment, static
from .how import HOW
from .page import build
from .palette import variables

_SCRIPTS = ("page.js", "tables.js", "charts.js", "memory.js", "heat.js", "timeline.js")


@cache
def _own_script() -> str:
    parts = "\n".join(static(name) for name in _SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}\n}})();'


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def render(diagnosis: Diagnosis) -> str:
    """Return the page."""
    from markupsafe import Markup

    library, script = static("echarts.min.js"), _own_script()
    return (
        environment()
        .get_template("page.html")
        .render(
            page=build(diagnosis),
            how=HOW,
            # Ours, or made harmless by json_for_script: the only text that autoescape does not touch.
            style=Markup(static("report.css")),  # noqa: S704
            light=Markup(variables(dark=False)),  # noqa: S704
            dark=Markup(variables(dark=True)),  # noqa: S704
            library=Markup(library),  # noqa: S704
            script=Markup(script),  # noqa: S704
            script_hashes=" ".join(_hash(text) for text in (library, script)),
            data=Markup(json_for_script(chart_data(diagnosis))),  # noqa: S704
        )
    )
