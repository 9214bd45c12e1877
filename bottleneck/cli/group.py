"""The verbs of `bottleneck`, each imported when it is called.

In: command-line arguments. Out: the verb's command; for an unknown verb, what was probably meant.
"""

from __future__ import annotations

import difflib
import re
import shlex
from importlib import import_module
from pathlib import Path

import click

from .. import __version__
from ..runs.training_scripts import training_scripts

LOCAL_RANK = re.compile(r"--local[-_]rank=\d+")
"""What `deepspeed` and `torch.distributed.launch` add to the script's arguments, as the first."""
SCRIPT_WORDS = "torch_bottleneck.script_words"
"""Key in a context's `meta`: arguments for the script that came before the verb."""
VERBS: dict[str, str] = {
    "diagnose": "Run a training script and say what its step waits on.",
    "watch": "Run a script to its end and say where the time of the whole job went.",
    "analyze": "Diagnose run folders, or anyone's profiler traces.",
    "compare": "Compare two sets of runs: what grew, and why.",
    "gate": "Run a script and fail if its step got worse than the baseline.",
    "report": "Show the diagnosis of a run again, as text, Markdown, JSON or HTML.",
    "verify": "Try fixes without editing the script, and measure their effect.",
    "review": "Look at runs in TensorBoard, with the diagnosis next to the trace.",
    "doctor": "Check versions, permissions and files for problems.",
    "catalog": "List, show and search the fixes.",
    "explain": "Explain a finding, a class or a fix.",
    "mcp": "Serve these commands to an assistant (Model Context Protocol).",
    "completion": "Print the completion script for bash, zsh or fish.",
}
"""Verb -> its line in `bottleneck --help`. Kept here so that help imports no verb."""


class LazyGroup(click.Group):
    """A group whose verbs are modules of this package, imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order in which they are used."""
        del ctx
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb's module and return its command."""
        del ctx
        if cmd_name not in VERBS:
            return None
        command = import_module(f".{cmd_name}", __package__).command
        assert isinstance(command, click.Command), f"cli/{cmd_name}.py must offer `command`"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of verbs without importing any of them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep for the script the argument that a launcher puts before the verb."""
        if args[1:2] in (["diagnose"], ["watch"]) and LOCAL_RANK.fullmatch(args[0]):
            ctx.meta[SCRIPT_WORDS] = (args[0],)
            args = args[1:]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; if there is none of that name, say what was probably meant."""
        name = args[0] if args else ""
        if name and name not in VERBS and not name.startswith("-"):
            near = difflib.get_close_matches(name, VERBS, n=1)
            hint = f" Did you mean `{near[0]}`?" if near else ""
            if name.endswith(".py"):
                hint = f" Did you mean `bottleneck diagnose {name}`?"
            ctx.fail(f"No such command {name!r}.{hint}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="bottleneck")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Why is this PyTorch training slow?

    \b
    bottleneck diagnose train.py --epochs 1     run it and get the verdict
    bottleneck analyze trace.json.gz            start from a profiler trace
    bottleneck explain BN101                    read what a finding means
    """
    if ctx.invoked_subcommand is None:
        scripts = training_scripts(Path.cwd())
        if scripts:
            click.echo("To see why a training step here is slow:\n")
            for name in scripts:
                click.echo(f"  bottleneck diagnose {shlex.quote(name)}")
            click.echo("\nGive the script's own arguments behind its name, as with python.\n")
        click.echo(ctx.get_help())
