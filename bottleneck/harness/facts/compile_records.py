"""How dynamo words its records: breaks with their stack, failed guards, functions given up.

In: entries of dynamo's own lists, of torch 2.6 to 2.15. Out: plain texts and source lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ...model.run import SourceSite
from ..lines.sites import is_library

ATTEMPT = re.compile(r"^!?(?P<frame>\d+)/(?P<number>\d+)")
"""Number of a compilation: frame and attempt."""
_COMMENT = re.compile(r"\s{2,}#.*$")
"""Dynamo appends the source line of the guard in a comment far to the right."""


def gave_up_silently(metric: Any) -> bool:
    """Whether a function came to no graph and the record does not say why (before torch 2.7 or so)."""
    if hasattr(metric, "recompile_reason"):
        return False
    return not getattr(metric, "graph_op_count", 1)


def sites(stack: Sequence[Any]) -> list[SourceSite]:
    """Return the lines of a user stack, outermost first."""
    return [
        SourceSite(file=str(frame.filename), line=int(frame.lineno or 0), function=str(frame.name or ""))
        for frame in stack
    ]


def break_site(sites: list[SourceSite]) -> tuple[SourceSite | None, SourceSite | None]:
    """Return (innermost line of the user's own code, innermost line at all)."""
    if not sites:
        return None, None
    own = [site for site in sites if not is_library(site.file)]
    return (own or sites)[-1], sites[-1]


def hint(text: str, site: SourceSite | None, exact: SourceSite | None) -> str:
    """Return dynamo's explanation and hints on one line, and where in a library it happened."""
    parts = []
    for line in text.splitlines()[1:]:
        label, _, rest = line.strip().partition(":")
        if label in ("Explanation", "Hint") and rest.strip():
            parts.append(rest.strip())
    if site is not None and exact is not None and site != exact:
        parts.append(f"inside {exact.function} at {exact.file}:{exact.line}")
    return " ".join(parts)


def failed_guard(utils: Any, file: str | None, line: int | None, compile_id: str) -> str:
    """Return the guard whose failure caused this compilation, from the record of failures.

    The record grows by all entries that failed; the first of the newest group is the cause. It
    names the entry that failed ("2/0: ..."), so the frame's number picks the group.
    """
    frame = compile_id.lstrip("!").partition("/")[0]
    for code, failures in getattr(utils, "guard_failures", {}).items():
        if getattr(code, "co_filename", None) != file or code.co_firstlineno != line:
            continue
        texts = [failure_text(failure) for failure in failures]
        mine = [text for text in texts if text.startswith(f"{frame}/")]
        if mine or texts:
            return (mine or texts)[-1]
    return ""


def failure_text(failure: Any) -> str:
    """Return why something was given up."""
    return str(getattr(failure, "reason", failure))


def guard_line(reason: object) -> str:
    """Return the failed guard as one line, without the number of the entry it belongs to."""
    lines = [line.strip(" -\t") for line in str(reason or "").splitlines()]
    for line in lines:
        head, separator, rest = line.partition(": ")
        text = rest if separator and ATTEMPT.match(head) else line
        if text and not text.startswith(("Recompiling", "triggered by")):
            return _COMMENT.sub("", text)
    return ""


def first_line(text: object) -> str:
    """Return what a text of several lines says first; empty for None."""
    return str(text or "").strip().split("\n", 1)[0].strip()
