"""Event files: the diagnosis for the tabs that every TensorBoard has, with or without our plugin.

In: a diagnosis and a folder. Out: one `events.out.tfevents...` file with the report as text, the step
times and the budget as scalars, and the settings in force as hyperparameters, so that runs compare side
by side. Needs neither torch nor TensorFlow.
"""

from __future__ import annotations

import datetime as dt
import re
import time
from typing import TYPE_CHECKING, Any

from ..model.words import clean
from ..reporters.base import reporter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ..model.diagnosis import Diagnosis

__all__ = ["hyperparameters", "scalars", "write_events"]

_LINKS = "\n[Open the diagnosis](#bottleneck) · [open the trace](#pytorch_profiler)\n"
_NOT_IN_A_TAG = re.compile(r"[^\w.\-]+")


def write_events(diagnosis: Diagnosis, folder: Path, *, run: str) -> None:
    """Write the event file of one run.

    Args:
        diagnosis: what was found.
        folder: where the adapted traces lie: the same folder is the same run in every tab.
        run: tells its hyperparameters from those of other runs.

    Raises:
        ImportError: TensorBoard is not installed.
        OSError: the folder cannot be written to.
    """
    from tensorboard.compat.proto import event_pb2, summary_pb2
    from tensorboard.plugins.hparams import summary_v2 as hparams
    from tensorboard.plugins.scalar import metadata as scalar_metadata
    from tensorboard.plugins.text import metadata as text_metadata
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
    from tensorboard.util.tensor_util import make_tensor_proto

    # The time of the diagnosis, not of the writing: a folder made twice shows the same.
    when = _seconds(diagnosis.created)
    writer = EventFileWriter(str(folder), filename_suffix=".bottleneck")

    def add(step: int, summary: Any) -> None:
        writer.add_event(event_pb2.Event(wall_time=when, step=step, summary=summary))

    def value(step: int, tag: str, metadata: Any, tensor: Any) -> None:
        add(step, summary_pb2.Summary(value=[{"tag": tag, "metadata": metadata, "tensor": tensor}]))

    try:
        report = reporter("md").render(diagnosis, verbose=True) + _LINKS
        text = text_metadata.create_summary_metadata(display_name="diagnosis", description="")
        value(0, "diagnosis", text, make_tensor_proto(report.encode("utf-8", "backslashreplace")))
        for tag, step, number, description in scalars(diagnosis):
            metadata = scalar_metadata.create_summary_metadata(display_name="", description=description)
            value(step, tag, metadata, make_tensor_proto(float(number), dtype="float32"))
        add(0, hparams.hparams_pb(hyperparameters(diagnosis), trial_id=run, start_time_secs=when))
    finally:
        writer.close()


def scalars(diagnosis: Diagnosis) -> Iterator[tuple[str, int, float, str]]:
    """Yield (tag, step, value, description), times in ms."""
    true_ms = diagnosis.step.true_ms
    if true_ms is not None:
        yield "step_ms/true", 0, true_ms, "Mean step time without the profiler, in ms."
    for window in diagnosis.windows:
        tag = f"step_ms/{_tag(window.name)}"
        for index, ms in zip(window.index, window.ms, strict=False):
            if ms is not None:
                yield tag, index, ms, f"Step times of the {clean(window.name)} window, in ms."
    for line in diagnosis.budget:
        yield f"budget_ms/{_tag(line.part.value)}", 0, line.ms, "This line of the step budget, in ms."


def hyperparameters(diagnosis: Diagnosis) -> dict[str, float | str]:
    """Return what a reader compares runs by: the verdict, and the switches that were on."""
    out: dict[str, float | str] = {"verdict": diagnosis.verdict.bottleneck_class.value}
    for row in diagnosis.acceleration:
        # States compare, sentences do not; a number says more than "on".
        number = _number(row.value)
        out[clean(row.name)] = row.state if number is None else number
    for loader in diagnosis.loaders[:1]:
        if loader.batch_size is not None:
            out["batch size"] = float(loader.batch_size)
    return out


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _tag(text: str) -> str:
    return _NOT_IN_A_TAG.sub("_", text).strip("_") or "unnamed"


def _seconds(created: str) -> float:
    try:
        return dt.datetime.fromisoformat(created).timestamp()
    except ValueError:
        return time.time()
