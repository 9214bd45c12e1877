"""For notebooks, and for anyone at a prompt: diagnose a loop that is right there.

    %load_ext torch_bottleneck

    %%bottleneck
    for batch in loader:
        train_step(batch)

    torch_bottleneck.diagnose(lambda: train_step(next(batches)))

    with torch_bottleneck.diagnosing():
        trainer.fit(model)

In: steps that run in this process. Out: a run folder, and `Found`, which a notebook shows as the head of the
report. The report is made by a process of its own, so that nothing of it stays in the kernel.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from .callback import REPORT_FOLDER
from .errors import UndeterminedError
from .files import decode_json, json_of
from .model.diagnosis import Diagnosis
from .model.documents import load_diagnosis
from .model.words import shown
from .reporters.html.fragment import render_fragment
from .reporters.output import PAGE_FILE, render_for
from .runs.analysis import begin_analysis
from .runs.layout import holds_steps
from .runs.place import free_folder
from .runs.plan import Plan

__all__ = ["Found", "diagnose", "diagnosing", "load_ipython_extension"]

_log = logging.getLogger("torch_bottleneck")


class Found:
    """What a capture has found; a notebook shows it by itself, and `print` shows the report as text."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        """The run folder."""
        self.diagnosis: Diagnosis | None = None
        """Once the block has ended; None where too few steps ran in it, and on all ranks but the first."""

    @property
    def page(self) -> Path:
        """The whole report."""
        return self.folder / REPORT_FOLDER / PAGE_FILE

    def __repr__(self) -> str:
        if self.diagnosis is None:
            return f"<no diagnosis: too few steps were captured in {shown(self.folder)}>"
        return render_for(self.diagnosis, "text")

    def _repr_html_(self) -> str | None:
        if self.diagnosis is None:
            return None
        return render_fragment(self.diagnosis, place=shown(self.page))

    def _read(self) -> None:
        if os.environ.get("RANK", "0") != "0" or not holds_steps(self.folder):
            return  # the first of several ranks reads them all
        report = begin_analysis(self.folder, self.folder / REPORT_FOLDER)
        try:
            report.wait()
        finally:
            report.terminate()
        self.diagnosis = _with_cells(load_diagnosis(self.folder / REPORT_FOLDER))


_CELL_FILE = re.compile(r"[^\s\"]*/ipykernel_\d+/\d+\.py|<ipython-input-\d+-\w+>")


def _with_cells(diagnosis: Diagnosis) -> Diagnosis:
    """Return it with cells named as the notebook names them: IPython compiles each as a file of its own."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        return diagnosis
    text = json_of(diagnosis).decode()
    for file in set(_CELL_FILE.findall(text)):
        known = shell.compile.format_code_name(file)
        if known is not None:
            cell = known[1].removeprefix("Cell ")
            text = text.replace(file, cell).replace(Path(file).name, cell)
    return decode_json(text.encode(), Diagnosis)


def diagnose(
    step: Callable[[], object],
    *,
    steps: int = Plan().steps,
    out: str | os.PathLike[str] | None = None,
    **wishes: Any,
) -> Found:
    """Call a training step again and again until enough is measured, and say what it waits on.

    Args:
        step: one training step, its batch and its update included. It really trains.
        steps: how many of its calls are traced; more are timed without the profiler.
        out: the run folder; None: one in `reports`.
        wishes: further options of `torch_bottleneck.Harness`, as `max_seconds=20`.

    Raises:
        UndeterminedError: another capture watches this process.
    """
    from .harness.process.api import Harness

    found = Found(_folder(out))
    with Harness(found.folder, steps=steps, **{"quiet": True, **wishes}) as harness:
        if not harness.captures:
            raise UndeterminedError("Another capture watches this process.")
        while not harness.done:
            with harness.step():
                step()
    found._read()  # noqa: SLF001 - of this module
    return found


@contextlib.contextmanager
def diagnosing(out: str | os.PathLike[str] | None = None, **wishes: Any) -> Iterator[Found]:
    """Capture the training steps of a block, which runs to its end, and then show what was found.

    A step ends with an update of the weights. Interrupting a notebook's cell also ends the block, and what
    was captured is shown. Nothing that fails here fails the block: a line of the log says so.

    Args:
        out: the run folder; None: one in `reports`.
        wishes: further options of `torch_bottleneck.Harness`, as `steps=4`.
    """
    from .harness.process.api import Harness

    found = Found(_folder(out))
    show = True
    try:
        with Harness(found.folder, **{"quiet": True, "find_steps": True, **wishes}):
            yield found
    except KeyboardInterrupt:
        raise
    except BaseException:
        show = False
        raise
    finally:
        if show:
            try:
                found._read()  # noqa: SLF001 - of this module
                _show(found)
            except Exception as error:
                _log.warning("bottleneck: there is no diagnosis: %s: %s", type(error).__name__, error)


def _folder(out: str | os.PathLike[str] | None) -> Path:
    return Path(out).absolute() if out is not None else Path(free_folder("notebook")).absolute()


def _show(found: Found) -> None:
    """Show it in the cell; outside of a notebook the log has the verdict."""
    if getattr(sys.modules.get("builtins"), "__IPYTHON__", False):
        from IPython.display import display

        display(found)
    elif found.diagnosis is not None:
        verdict = found.diagnosis.verdict
        _log.warning("bottleneck: %s: %s; %s", verdict.bottleneck_class.value, verdict.headline, found.page)
    else:
        _log.warning("bottleneck: %r", found)


# -- the magic ---------------------------------------------------------------------------------


@click.command("%%bottleneck", add_help_option=False)
@click.option("--out")
@click.option("--steps", type=click.IntRange(min=1))
@click.option("--warmup", type=click.IntRange(min=0))
@click.option("--max-seconds", type=click.FloatRange(min=0, min_open=True))
def _wishes(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def load_ipython_extension(shell: Any) -> None:
    """Add `%%bottleneck` to a shell of IPython; called by `%load_ext torch_bottleneck`."""

    def bottleneck(line: str, cell: str) -> None:
        """Run the cell and say what its training step waits on: %%bottleneck [--steps N] [--out FOLDER]."""
        try:
            wishes = _wishes.main(shlex.split(line), standalone_mode=False)
        except (click.ClickException, ValueError) as error:
            from IPython.core.error import UsageError

            raise UsageError(f"%%bottleneck: {error}") from None
        source = shell.transform_cell(cell)
        # Known to the shell, so that tracebacks and reports show its lines.
        name = shell.compile.cache(source, shell.execution_count, raw_code=cell)
        code = shell.compile(source, name, "exec")
        with diagnosing(**wishes):
            exec(code, shell.user_ns)  # noqa: S102 - the cell that the user has just run

    shell.register_magic_function(bottleneck, "cell", "bottleneck")
