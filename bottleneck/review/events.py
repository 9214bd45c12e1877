"""Event files: the diagnosis for the tabs that every TensorBoard has, with or without our plugin.

In: a diagnosis and a folder. Out: one `events.out.tfevents...` file with the report as text, the step
times and the budget as scalars, and the settings in force as hyperparameters, so that runs compare side
by side. Needs neither torch nor TensorFlow.
"""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from ..model.diagnosis import Diagnosis
from ..model.watch import Watch
from ..model.words import clean

_LARGEST = 3.4e38
"""TensorBoard keeps numbers in 32 bits."""
_NOT_IN_A_TAG = re.compile(r"[^\w.\-]+")


def write_events(
    folder: Path,
    *,
    run: str,
    report: str,
    values: Iterable[tuple[str, int, float, str]],
    switches: dict[str, float | str],
    created: str = "",
) -> None:
    """Write the event file of one run.

    The folder is that of the adapted traces: the same folder is the same run in every tab. `run` tells its
    hyperparameters from those of other runs. The events have the time of the diagnosis, if it has one: a
    folder made twice shows the same.

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

    when = _seconds(created)
    writer = EventFileWriter(str(folder), filename_suffix=".bottleneck")

    def add(step: int, summary: Any) -> None:
        writer.add_event(event_pb2.Event(wall_time=when, step=step, summary=summary))

    def value(step: int, tag: str, metadata: Any, tensor: Any) -> None:
        add(step, summary_pb2.Summary(value=[{"tag": tag, "metadata": metadata, "tensor": tensor}]))

    try:
        text = text_metadata.create_summary_metadata(display_name="diagnosis", description="")
        value(0, "diagnosis", text, make_tensor_proto(report.encode("utf-8", "backslashreplace")))
        for tag, step, number, description in values:
            metadata = scalar_metadata.create_summary_metadata(display_name="", description=description)
            shown = min(max(float(number), -_LARGEST), _LARGEST)
            value(step, tag, metadata, make_tensor_proto(shown, dtype="float32"))
        add(0, hparams.hparams_pb(switches, trial_id=run, start_time_secs=when))
    finally:
        writer.close()


def job_scalars(watch: Watch) -> Iterator[tuple[str, int, float, str]]:
    """Yield (tag, step, value, description): step times in ms, and the s of each part up to a step."""
    for step, ms in zip(watch.step_times.step, watch.step_times.ms, strict=False):
        yield "step_ms/job", step, ms, "A usual step, without a profiler, in ms."
    if watch.goodput is not None:
        yield "job/goodput", watch.steps, watch.goodput, "Share of the job in steps at their best speed."
    timeline = watch.timeline
    known: set[str] = set()
    if timeline is not None:
        last = {step: i for i, step in enumerate(timeline.steps)}
        for part, column in timeline.parts.items():
            known.add(part)
            so_far = list(accumulate(column))
            for step, i in last.items():
                if so_far:
                    s = so_far[min(i, len(so_far) - 1)]
                    yield (
                        f"job_s/{tag_of(part)}",
                        step,
                        s,
                        "Seconds of the job in this part, up to this step.",
                    )
    for line in watch.account:
        if line.part not in known:
            yield f"job_s/{tag_of(line.part)}", watch.steps, line.s, "Seconds of the job in this part."


def scalars(diagnosis: Diagnosis) -> Iterator[tuple[str, int, float, str]]:
    """Yield (tag, step, value, description), times in ms."""
    for tag, ms, description in figures(diagnosis):
        yield tag, 0, ms, description
    for window in diagnosis.windows:
        tag = f"step_ms/{tag_of(window.name)}"
        for index, step_ms in zip(window.index, window.ms, strict=False):
            if step_ms is not None:
                yield tag, index, step_ms, f"Step times of the {clean(window.name)} window, in ms."


def figures(diagnosis: Diagnosis) -> Iterator[tuple[str, float, str]]:
    """Yield (tag, value, description) of what there is one of in a run, times in ms."""
    if diagnosis.step.true_ms is not None:
        yield "step_ms/true", diagnosis.step.true_ms, "Mean step time without the profiler, in ms."
    for line in diagnosis.budget:
        yield f"budget_ms/{tag_of(line.part.value)}", line.ms, "This line of the step budget, in ms."


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


def tag_of(text: str) -> str:
    """Return a name without the characters that trackers refuse."""
    return _NOT_IN_A_TAG.sub("_", text).strip("_") or "unnamed"


def _seconds(created: str) -> float:
    try:
        return dt.datetime.fromisoformat(created).timestamp()
    except ValueError:
        return time.time()
