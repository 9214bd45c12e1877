"""`bottleneck catalog`: the fixes, without a run.

In: nothing, ids, or search words. Out: a list, or pages.
"""

from __future__ import annotations

import sys

import click

from ..catalog.registry import FIXES, by_id, search
from ..reporters.manual import fix_list, fix_page
from ..reporters.output import emit, traits
from ..reporters.stream import tell


@click.group("catalog", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """List, show and search the fixes; without a verb, list them.

    \b
    bottleneck catalog search workers
    bottleneck catalog show FX101
    """
    if ctx.invoked_subcommand is None:
        _list()


@command.command("list")
def _list_command() -> None:
    """List all fixes with the findings they answer."""
    _list()


@command.command("show")
@click.argument("ids", nargs=-1, required=True, metavar="FIX...")
def _show(ids: tuple[str, ...]) -> None:
    """Show what FIX changes, when it applies, what it may break, how to undo and verify it."""
    pages = [fix_page(by_id(fix_id), width=traits(sys.stdout).width) for fix_id in ids]
    emit("\n".join(pages))


@command.command("search")
@click.argument("words", nargs=-1, required=True, metavar="WORD...")
@click.pass_context
def _search(ctx: click.Context, words: tuple[str, ...]) -> None:
    """List the fixes that mention every WORD. The exit code is 1 when there is none, as with grep."""
    found = search(" ".join(words))
    if not found:
        tell(f"No fix mentions {' and '.join(words)}.")
        ctx.exit(1)
    emit(fix_list(sorted(found, key=lambda fix: fix.family), width=traits(sys.stdout).width))


def _list() -> None:
    emit(fix_list(FIXES, width=traits(sys.stdout).width))
