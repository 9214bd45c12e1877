"""The formats of each kind of document that we write.

In: nothing. Out: `FORMATS`, by which `output.render_for` finds the function that renders a document.
"""

from __future__ import annotations

FORMATS: dict[str, dict[str, str]] = {
    "Diagnosis": {
        "text": "terminal",
        "md": "markdown",
        "json": "json",
        "html": "html",
        "brief": "brief",
        "sarif": "sarif",
    },
    "Watch": {
        "text": "watch_terminal",
        "md": "watch_markdown",
        "json": "json:document_text",
        "html": "html.watch",
        "brief": "watch_brief",
    },
    "Verification": {"text": "verify_terminal", "md": "verify_markdown", "json": "json:document_text"},
    "Comparison": {
        "text": "compare.terminal",
        "md": "compare.markdown",
        "json": "json:render_comparison",
        "junit": "compare.junit",
        "github": "compare.annotations:render_github",
        "gitlab": "compare.annotations:render_gitlab",
        "sarif": "sarif:render_comparison",
    },
}
"""Kind of document -> format, as typed after --format -> module of this package, and its function if that is
not `render`. A module is imported on first use: asking for JSON never imports the terminal library."""
