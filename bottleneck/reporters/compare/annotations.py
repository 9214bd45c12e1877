"""A comparison as annotations at the user's lines, for GitHub and for GitLab.

In: a comparison. Out: GitHub's workflow commands, printed to the log of a job, or GitLab's Code
Quality report, a JSON artefact.

Formats: docs.github.com "Workflow commands for GitHub Actions" (percent-encoding of %, CR, LF, and
of : and , in properties); docs.gitlab.com "Code Quality report format".
"""

from __future__ import annotations

import msgspec

from ...model.compare import Annotation, Comparison
from ...model.words import clean
from ..sarif import fingerprint

_SEVERITY = {"error": "major", "warning": "minor", "notice": "info"}


def render_github(comparison: Comparison) -> str:
    """Return one workflow command per annotation; empty when there is nothing to say."""
    lines = [_command(note) for note in comparison.annotations]
    if comparison.outcome == "undecided":
        lines.append(f"::warning title=Performance undecided::{_data(comparison.headline)}")
    return "".join(f"{line}\n" for line in lines)


def _command(note: Annotation) -> str:
    properties = []
    if note.site is not None:
        properties += [f"file={_property(note.site.file)}", f"line={note.site.line}"]
    properties.append(f"title={_property(note.title)}")
    return f"::{note.level} {','.join(properties)}::{_data(note.message)}"


def _data(text: str) -> str:
    return clean(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def render_gitlab(comparison: Comparison) -> str:
    """Return the Code Quality report, a JSON list; a place is required, so what has none names the script."""
    rows: list[dict[str, object]] = []
    seen: dict[str, int] = {}
    for note in comparison.annotations:
        path = note.site.file if note.site is not None else comparison.head.title or comparison.head.label
        line = note.site.line if note.site is not None else 1
        text = clean(note.message)
        mark = "\0".join((note.key, path, str(line) if note.site is not None else ""))
        seen[mark] = seen.get(mark, 0) + 1
        mark += f"\0{seen[mark]}" if seen[mark] > 1 else ""
        rows.append(
            {
                "description": text,
                "check_name": f"bottleneck {note.key or note.title}",
                "fingerprint": fingerprint(mark),
                "severity": _SEVERITY[note.level],
                "location": {"path": clean(path), "lines": {"begin": line}},
            }
        )
    return msgspec.json.format(msgspec.json.encode(rows), indent=2).decode() + "\n"
