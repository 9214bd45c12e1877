"""The head of the page, for the output of a notebook's cell: no script, and styles that stay inside.

In: a diagnosis. Out: HTML of well under 200 KB; each long section is folded.
"""

from __future__ import annotations

from ...model.diagnosis import Diagnosis
from .environment import environment
from .page import build


def render_fragment(diagnosis: Diagnosis, *, place: str) -> str:
    """Return the HTML."""
    return environment().get_template("fragment.html").render(page=build(diagnosis), place=place)
