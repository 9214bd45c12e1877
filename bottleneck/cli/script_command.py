"""Commands that run a script: where our options end and the script's own arguments begin.

In: the words of the command line. Out: the same, in the order in which click reads them.
"""

from __future__ import annotations

from pathlib import Path

import click

_OURS_AFTER_SCRIPT = ("--fix", "--all", "--resume")
"""Options that may also come directly after SCRIPT, before its own arguments."""


class ScriptCommand(click.Command):
    """A command whose options end at the script: everything after it belongs to the script."""

    allow_interspersed_args = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """End our options after `-m module` too, as python does."""
        return super().parse_args(ctx, self._close_after_module(args))

    def target_position(self, args: list[str]) -> int:
        """Return the position of the script, or of the `-m` in its place, or of `--`, or the end."""
        valued = {
            name
            for parameter in self.params
            if isinstance(parameter, click.Option) and not parameter.is_flag
            for name in parameter.opts
        }
        position = 0
        while position < len(args):
            word = args[position]
            if word in ("--", "-") or not word.startswith("-"):
                break
            if word.startswith("-m") and not word.startswith("--"):
                break
            position += 2 if word in valued else 1
        return min(position, len(args))

    def _close_after_module(self, args: list[str]) -> list[str]:
        position = self.target_position(args)
        word = args[position] if position < len(args) else ""
        if word == "-m":
            return [*args[: position + 2], "--", *args[position + 2 :]]
        if word.startswith("-m"):
            return [*args[:position], "-m", word[2:], "--", *args[position + 1 :]]
        return args


class VerifyCommand(ScriptCommand):
    """A command whose options may also follow a run folder; some may follow a script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move our options to the front."""
        position = self.target_position(args)
        if position < len(args) and args[position] != "--":
            target, rest = args[position], args[position + 1 :]
            if Path(target).is_dir():
                args = [*args[:position], *rest, target]
            else:
                ours = _leading(rest)
                args = [*args[:position], *rest[:ours], target, *rest[ours:]]
        return super().parse_args(ctx, args)


def _leading(words: list[str]) -> int:
    """Return how many of the words after a script are our options."""
    count = 0
    while count < len(words):
        name = words[count].partition("=")[0]
        if name not in _OURS_AFTER_SCRIPT:
            break
        count += 2 if words[count] == "--fix" else 1
    return min(count, len(words))
