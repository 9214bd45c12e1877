"""What a command tells beside its report.

In: a sentence. Out: a line on stderr.
"""

from __future__ import annotations

import click

__all__ = ["say", "silent"]


def say(text: str) -> None:
    """Write a line that shows who speaks: the script writes there as well."""
    click.echo(f"bottleneck: {text}", err=True)


def silent(_text: str) -> None:
    """Say nothing: --quiet."""
