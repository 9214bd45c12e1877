"""The template engine of the pages: all text is escaped, bounded, and kept together with its unit.

In: the name of a template or of a static file. Out: the engine, or the text of the file.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..rows.diagnosis import NEGLIGIBLE

if TYPE_CHECKING:
    from jinja2 import Environment

_HERE = Path(__file__).parent
_LONGEST_TEXT = 4_000
"""Characters; the longest code of the catalogue has an eighth of that."""
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|(?:ms|µs|s|[KMGT]iB|steps?)\b))")


@cache
def environment() -> Environment:
    """Return the engine, made once."""
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
def static(name: str) -> str:
    """Return the text of a file in `static`."""
    return (_HERE / "static" / name).read_text(encoding="utf-8")
