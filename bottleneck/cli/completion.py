"""`bottleneck completion SHELL`: the completion script to evaluate in a shell.

In: the name of a shell. Out: its script on stdout.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash:  eval "$(bottleneck completion bash)"
    zsh:   eval "$(bottleneck completion zsh)"
    fish:  bottleneck completion fish | source
    """
    from .group import cli

    completion = get_completion_class(shell)
    assert completion is not None, shell
    click.echo(completion(cli, {}, "bottleneck", "_BOTTLENECK_COMPLETE").source())
