"""Values on the command line that click has no type for.

In: words. Out: finite numbers, ranks, paths, addresses; or click's own error.
"""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """A range without "nan", which every range would accept, and without "inf", which JSON cannot hold."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or raise click's own error."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


class RanksNamed(click.ParamType):  # type: ignore[type-arg]  # not generic in older versions
    """Ranks as in "0,8-15", or "all"."""

    name = "ranks"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text, or raise click's own error."""
        from ...runs.tasks import ranks_named

        try:
            if value not in ("", "all"):
                ranks_named(value)
        except ValueError:
            self.fail(f"{value!r} is no list of ranks, as in 0,8-15.", param, ctx)
        return str(value)


class PlacePath(click.Path):
    """A path; an empty one is a mistake (an unset variable), not the current folder."""

    def __init__(self, *, path_type: type | None = Path, **wanted: bool) -> None:
        super().__init__(path_type=path_type, **wanted)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, or raise click's own error."""
        if not os.fspath(value):
            self.fail("the path is empty.", param, ctx)
        return super().convert(value, param, ctx)


class TrackedPath(PlacePath):
    """A path, or a run of MLflow (runs:/ID), of which the diagnosis is fetched."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, or raise click's own error."""
        if ctx is None or not os.fspath(value).startswith("runs:/"):
            return super().convert(value, param, ctx)
        from ...review.tracking import fetch_diagnosis

        return fetch_diagnosis(os.fspath(value), Path(ctx.with_resource(TemporaryDirectory())))


class PlaceOrAddress(PlacePath):
    """A path, or an address like s3://bucket/traces, which stays text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path or the address."""
        from ...ingest.remote import is_address

        return value if is_address(value) else super().convert(value, param, ctx)


def expand_patterns(
    _ctx: click.Context, _param: click.Parameter, places: tuple[Path | str, ...]
) -> tuple[Path | str, ...]:
    """Return the places; in their order those of a pattern that no shell has expanded ("traces/rank*")."""
    out: list[Path | str] = []
    for place in places:
        found: list[Path] = []
        # What is no pattern either (as "a**b") is told as any other place that does not exist.
        with contextlib.suppress(OSError, ValueError):
            if isinstance(place, Path) and not place.exists():
                root = Path(place.anchor)
                found = sorted(root.glob(str(place.relative_to(root))))
        out += found or [place]
    return tuple(out)
