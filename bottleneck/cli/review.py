"""`bottleneck review RUN...`: look at runs in TensorBoard, one or several side by side.

In: run folders, traces, or a folder of runs. Out: a log folder with adapted traces, the diagnosis as
text and figures, and a running TensorBoard on this machine's local address.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from pathlib import Path

import click

from ..errors import InputError
from ..model.words import visible
from .console import say
from .options.values import PlacePath


@click.command("review")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=PlacePath())
@click.option(
    "--out",
    type=PlacePath(file_okay=False),
    help="Prepare this folder and keep it. Default: a temporary folder, removed when TensorBoard ends.",
)
@click.option(
    "--no-serve", is_flag=True, help="Only prepare the folder (--out, or tensorboard-review by default)."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Default: 6006 or the next free port; 0: any free port."
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Answer to this host name too, for a proxy. May be given several times. Default: only localhost.",
)
def command(
    runs: tuple[Path, ...], *, out: Path | None, no_serve: bool, port: int | None, hosts: tuple[str, ...]
) -> None:
    """Show RUN... in TensorBoard: run folders, traces, or a folder of runs.

    The traces are copied with the names that TensorBoard's profiler tab understands, because its
    figures are wrong for traces of torch 2. The diagnosis is drawn above them. The Diagnosis tab says
    what to change and zooms to each cause. Of a watched job, step times and parts are drawn over steps.
    Nothing needs the internet, and the runs are not changed.

    \b
    bottleneck review reports/train-20260101-120000
    bottleneck review before/ after/ --port 6007
    bottleneck review --no-serve --out logs traces/
    """
    from ..diagnose import diagnose_paths
    from ..reporters.output import emit
    from ..review.prepare import expand, prepare_runs

    # If we are ended by a signal, neither TensorBoard nor the temporary folder may be left behind.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` ignores one of them, and means it
            signal.signal(number, _leave)
    if no_serve and out is None:
        out = Path("tensorboard-review")
    folder = out if out is not None else Path(tempfile.mkdtemp(prefix="bottleneck-review-"))
    try:
        prepare_runs(expand(runs), folder, diagnose=lambda run: diagnose_paths([run]), say=say)
        if no_serve:
            shown = visible(str(folder))
            emit(f"Prepared {shown}. Show it with: tensorboard --logdir {shown}\n")
        else:
            _serve(folder, port=port, hosts=hosts)
    finally:
        if out is None:
            shutil.rmtree(folder, ignore_errors=True)


def _serve(folder: Path, *, port: int | None, hosts: tuple[str, ...]) -> None:
    from ..reporters.output import emit
    from ..review.serve import running

    with running(folder, port=port, names=hosts) as tensorboard:
        emit(f"Review: {tensorboard.address}#bottleneck   (Ctrl-C ends it)\n")
        try:
            code = tensorboard.wait()
        except KeyboardInterrupt:
            return
    raise InputError(f"TensorBoard ended by itself with exit code {code}.", remedy="Run `bottleneck doctor`.")


def _leave(number: int, frame: object) -> None:
    del frame
    sys.exit(128 + number)
