"""The diagnosis in a tracker of experiments: MLflow or Weights & Biases.

In: a diagnosis. Out: a run of the tracker with the figures that TensorBoard gets, under `bottleneck/`, the
settings in force, and the report as an artefact. Back: the diagnosis of a run that MLflow holds. Where the
tracker is, and which run goes on, its own variables say (MLFLOW_TRACKING_URI, MLFLOW_RUN_ID, WANDB_MODE).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import defaultdict
from contextlib import nullcontext
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from ..errors import InputError, UsageError
from ..files import project_table
from ..model.documents import DIAGNOSIS_FILE, read_run, run_files
from ..reporters.output import save
from .events import hyperparameters, scalars, tag_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ..model.diagnosis import Diagnosis

    Log: TypeAlias = Callable[[Diagnosis, Path], Iterator[str]]

TRACKERS = ("mlflow", "wandb")
TRACKED_RUN = "runs:/"
"""How MLflow begins the address of a run."""
_OURS = "bottleneck"
_BATCH = 500
"""MLflow takes 1,000 figures at once."""


def expect_tracker(name: str) -> None:
    """Raise UsageError if the library of a tracker is not installed."""
    if find_spec(name) is None:
        raise UsageError(
            f"{name} is not installed.", remedy=f"pip install 'torch-bottleneck[{name}]', or leave out --log."
        )


def log_diagnosis(diagnosis: Diagnosis, tracker: str, *, into: Mapping[str, str] | None = None) -> str:
    """Log a diagnosis, and return the run of the tracker that has it.

    Args:
        diagnosis: what was found.
        tracker: one of `TRACKERS`.
        into: variables that name the run to go on with; None: as the environment says, or a new one.

    Raises:
        UsageError: its library is not installed.
        InputError: it did not take the diagnosis.
    """
    expect_tracker(tracker)
    os.environ.update(into or {})
    with tempfile.TemporaryDirectory() as folder:
        save(diagnosis, Path(folder))
        try:
            return (_to_mlflow if tracker == "mlflow" else _to_wandb)(diagnosis, folder)
        except Exception as error:
            raise InputError(
                f"{tracker} did not take the diagnosis: {type(error).__name__}: {error}.",
                remedy="The report is complete without it.",
            ) from error


def log_of(tracker: str | None, folder: Path) -> Log:
    """Return what logs a diagnosis, given its run folder, and yields the runs of trackers that have it.

    Args:
        tracker: into which: the run that the script had open there, or a new one. None: into all that the
            script had open, if the project asks for it: `log = true` under [tool.bottleneck].
        folder: of the project, or in it.

    Raises:
        InputError: a pyproject.toml cannot be read, or is no TOML.
        UsageError: it says something that cannot be understood, or the tracker is not installed.
    """
    if tracker is not None:
        expect_tracker(tracker)
    by_itself = tracker is None and _asked_in(folder)

    def log(diagnosis: Diagnosis, folder: Path) -> Iterator[str]:
        tracked = read_run(run_files(folder)[0]).tracked
        for name in [tracker] if tracker else tracked if by_itself else ():
            yield log_diagnosis(diagnosis, name, into=tracked.get(name))

    return log


class _Wishes(msgspec.Struct, forbid_unknown_fields=True):
    log: bool = False
    gate: object = None


def _asked_in(folder: Path) -> bool:
    found = project_table(folder, "tool", "bottleneck")
    if found is None:
        return False
    table, file = found
    try:
        return msgspec.convert(table, type=_Wishes).log
    except msgspec.ValidationError as error:
        raise UsageError(f"{file}: [tool.bottleneck]: {error}.") from None


def _to_mlflow(diagnosis: Diagnosis, folder: str) -> str:
    import mlflow
    from mlflow.entities import Metric, RunTag

    client = mlflow.MlflowClient()
    # A run that goes on keeps the state that it is in: how the script ended is not ours to say.
    given = os.environ.get("MLFLOW_RUN_ID")
    with mlflow.start_run() if given is None else nullcontext(client.get_run(given)) as run:
        name, now = run.info.run_id, round(time.time() * 1000)
        figures = (Metric(f"{_OURS}/{tag}", ms, now, step) for tag, step, ms, _ in scalars(diagnosis))
        while batch := list(islice(figures, _BATCH)):
            client.log_batch(name, metrics=batch)
        # A run that goes on may have been diagnosed before: parameters can be set once only.
        client.log_batch(
            name, tags=[RunTag(f"{_OURS}.{key}", str(value)) for key, value in _switches(diagnosis)]
        )
        client.log_artifacts(name, folder, _OURS)
    return f"{TRACKED_RUN}{name}"


def _to_wandb(diagnosis: Diagnosis, folder: str) -> str:
    import wandb

    rows: dict[int, dict[str, float]] = defaultdict(dict)
    for tag, step, ms, _ in scalars(diagnosis):
        rows[step][f"{_OURS}/{tag}"] = ms
    with wandb.init() as run:
        # By a step of our own: the script's may be further on already.
        run.define_metric(f"{_OURS}/*", step_metric=f"{_OURS}/step")
        for step, row in sorted(rows.items()):
            run.log({f"{_OURS}/step": step, **row})
        run.config.update({_OURS: dict(_switches(diagnosis))}, allow_val_change=True)
        artefact = wandb.Artifact(f"{_OURS}-{run.id}", type="diagnosis")
        artefact.add_dir(folder)
        run.log_artifact(artefact)
        return str(run.url or run.dir)


def _switches(diagnosis: Diagnosis) -> Iterator[tuple[str, Any]]:
    return ((tag_of(name), value) for name, value in hyperparameters(diagnosis).items())


def fetch_diagnosis(address: str, folder: Path) -> Path:
    """Return the diagnosis that a run of MLflow holds, once it lies in a folder.

    Args:
        address: `runs:/` and the run's id.
        folder: where to put it.

    Raises:
        UsageError: MLflow is not installed.
        InputError: there is no such run, or it holds no diagnosis.
    """
    expect_tracker("mlflow")
    import mlflow

    run = address.removeprefix(TRACKED_RUN).strip("/")
    try:
        found = mlflow.artifacts.download_artifacts(
            run_id=run, artifact_path=f"{_OURS}/{DIAGNOSIS_FILE}", dst_path=str(folder / run)
        )
    except Exception as error:
        raise InputError(
            f"MLflow has no diagnosis of {address}: {error}.", remedy="Log it with `diagnose --log mlflow`."
        ) from error
    return Path(found)
