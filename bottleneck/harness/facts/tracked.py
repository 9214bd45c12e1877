"""The runs that the script has open in trackers of experiments.

In: the trackers, if the script has imported them; asked on the training thread, since MLflow keeps what is
open by thread. Out: for each the variables with which another process goes on with that run, without the
password that an address may hold.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import Any

_PASSWORD = re.compile(r"(?<=://)[^/@]*@")


def open_runs() -> dict[str, dict[str, str]]:
    """Return variables by tracker; empty for most scripts."""
    found = {}
    for tracker, ask in (("mlflow", _of_mlflow), ("wandb", _of_wandb)):
        with contextlib.suppress(Exception):
            if variables := ask(sys.modules.get(tracker)):
                found[tracker] = {name: str(value) for name, value in variables.items() if value}
    return found


def _of_mlflow(mlflow: Any) -> dict[str, Any]:
    run = mlflow.active_run()
    if run is None:
        return {}
    address = mlflow.get_tracking_uri()
    if address == os.environ.get("MLFLOW_TRACKING_URI"):
        address = ""  # the other process has it, with its password
    return {"MLFLOW_RUN_ID": run.info.run_id, "MLFLOW_TRACKING_URI": _PASSWORD.sub("", address)}


def _of_wandb(wandb: Any) -> dict[str, Any]:
    run = wandb.run
    if run is None or run.disabled:
        return {}
    settings = run.settings
    return {
        "WANDB_RUN_ID": run.id,
        "WANDB_RESUME": "allow",
        "WANDB_ENTITY": run.entity,
        "WANDB_PROJECT": run.project,
        "WANDB_MODE": settings.mode,
        "WANDB_DIR": settings.root_dir,
    }
