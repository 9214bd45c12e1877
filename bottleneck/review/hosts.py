"""TensorBoard that answers to its own names only; runs in TensorBoard's process.

In: the names, then TensorBoard's own arguments. Out: a TensorBoard. A page on the internet can let its
own name point to 127.0.0.1 (DNS rebinding) and would then be allowed to read what is served here. The
browser still sends that page's name as Host.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from typing import Any

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_REFUSED = b"This TensorBoard answers to localhost only. Start `bottleneck review` with --host NAME.\n"


def host_name(header: str) -> str:
    """Return the name in a Host header, without its port."""
    name = header.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].removesuffix(".")


def only_for(application: Callable[..., Any], names: Iterable[str]) -> Callable[..., Any]:
    """Return the WSGI application that refuses requests for any other host."""
    known = LOCAL | {host_name(name) for name in names}

    def answer(environ: dict[str, Any], respond: Callable[..., Any]) -> Any:
        if host_name(str(environ.get("HTTP_HOST", ""))) in known:
            return application(environ, respond)
        respond("403 Forbidden", [("Content-Type", "text/plain"), ("Content-Length", str(len(_REFUSED)))])
        return [_REFUSED]

    return answer


def start(names: Iterable[str]) -> None:
    """Run TensorBoard with the rest of the command line, and leave with its exit code."""
    program: Any = importlib.import_module("tensorboard.program")
    serve = program.create_port_scanning_werkzeug_server
    program.create_port_scanning_werkzeug_server = lambda wsgi_app, flags: serve(
        only_for(wsgi_app, names), flags
    )
    sys.exit(importlib.import_module("tensorboard.main").run_main())
