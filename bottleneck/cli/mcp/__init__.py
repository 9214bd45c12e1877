"""`bottleneck mcp`: the commands as tools for an assistant, over the Model Context Protocol.

In: a folder. Out: a server that speaks the protocol on stdin and stdout until stdin ends.
"""

from __future__ import annotations

from pathlib import Path

import click

from ...errors import UsageError
from ..options.values import PlacePath


@click.command("mcp")
@click.argument("folder", type=PlacePath(exists=True, file_okay=False), default=".")
def command(folder: Path) -> None:
    """Serve diagnose, analyze, explain, catalog, verify and compare to an assistant, on stdin and stdout.

    FOLDER is the project (the current folder by default): paths outside of it are refused, and only scripts
    that a call names are run. It needs `pip install 'torch-bottleneck[mcp]'`.

    \b
    {"mcpServers": {"bottleneck":
        {"command": "bottleneck", "args": ["mcp", "/my/project"]}}}
    """
    try:
        from .server import make_server
    except ImportError as error:
        raise UsageError(
            f"bottleneck mcp needs the SDK of the protocol ({error}).",
            remedy="pip install 'torch-bottleneck[mcp]'",
        ) from None
    make_server(folder.resolve()).run("stdio")
