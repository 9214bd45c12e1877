"""The diagnosis in a tracker of experiments: MLflow or Weights & Biases.

In: a diagnosis. Out: a run of the tracker with the figures that TensorBoard gets, under `bottleneck/`, the
settings in force, and the report as an artefact. Back: the diagnosis of a run that MLflow holds. Where the
tracker is, and which run goes on, its own variables say (MLFLOW_TRACKING_URI, MLFLOW_RUN_ID, WANDB_MODE).
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, UsageError
from ..model.documents import DIAGNOSIS_FILE
from ..reporters.output import save
from .events import hyperparameters, scalars, tag_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..model.diagnosis import Diagnosis

__all__ = ["TRACKED_RUN", "TRACKERS", "expect_tracker", "fetch_diagnosis", "log_diagnosis"]

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


def log_diagnosis(diagnosis: Diagnosis, tracker: str) -> str:
    """Log a diagnosis, and return the run of the tracker that has it.

    Args:
        diagnosis: what was found.
        tracker: one of `TRACKERS`.

    Raises:
        UsageError: its library is not installed.
        InputError: it did not take the diagnosis.
    """
    expect_tracker(tracker)
    with tempfile.TemporaryDirectory() as folder:
        save(diagnosis, Path(folder))
        try:
            return (_to_mlflow if tracker == "mlflow" else _to_wandb)(diagnosis, folder)
        except Exception as error:
            raise InputError(
                f"{tracker} did not take the diagnosis: {type(error).__name__}: {error}.",
                remedy="The report is complete without it.",
            ) from error


def _to_mlflow(diagnosis: Diagnosis, folder: str) -> str:
    import mlflow
    from mlflow.entities import Metric, RunTag

    client = mlflow.MlflowClient()
    with mlflow.start_run() as run:
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
