"""A diagnosis in MLflow (a store of files) and in Weights & Biases (offline), and back from MLflow."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorded.cases import CASES

from torch_bottleneck.model.documents import load_diagnosis, read_run, run_files
from torch_bottleneck.review.events import scalars

CASE = CASES["cpu-short-epochs"].folder
TRAIN = """
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(400):
    loss = model(torch.randn(8, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def store(folder: Path) -> dict[str, str]:
    """Return the environment of a store of files, which MLflow 3 wants to be asked for."""
    return {"MLFLOW_TRACKING_URI": (folder / "store").as_uri(), "MLFLOW_ALLOW_FILE_STORE": "true"}


def test_mlflow_has_the_figures_of_tensorboard_and_the_report_and_two_runs_are_compared(
    bottleneck: Callable[..., Any], tmp_path: Path
) -> None:
    pytest.importorskip("mlflow", reason="the extra `mlflow`")
    where = store(tmp_path)
    runs = []
    for out in ("first", "second"):
        done = bottleneck("analyze", CASE, "--log", "mlflow", "--out", out, env=where)
        assert done.returncode == 0, done.stderr
        runs.extend(re.findall(r"^bottleneck: logged to (runs:/\w+)$", done.stderr, flags=re.MULTILINE))
    assert len(set(runs)) == 2
    (folder,) = (tmp_path / "store").glob(f"*/{runs[0].removeprefix('runs:/')}")
    diagnosis = load_diagnosis(tmp_path / "first")
    for tag, step, value, _ in scalars(diagnosis):
        lines = [line.split() for line in (folder / "metrics" / "bottleneck" / tag).read_text().splitlines()]
        assert [float(figure) for _, figure, at in lines if int(at) == step] == [pytest.approx(value)]
    verdict = (folder / "tags" / "bottleneck.verdict").read_text()
    assert verdict == diagnosis.verdict.bottleneck_class.value
    kept = folder / "artifacts" / "bottleneck"
    assert {path.name for path in kept.iterdir()} == {"diagnosis.json", "report.md", "report.html"}
    local = bottleneck("compare", "first", "second", "--format", "json")
    tracked = bottleneck("compare", *runs, "--format", "json", env=where)
    assert tracked.returncode == local.returncode == 0, tracked.stderr
    assert json.loads(tracked.stdout)["counters"] == json.loads(local.stdout)["counters"]
    missing = bottleneck("compare", runs[0], "runs:/0123", env=where)
    assert missing.returncode == 2
    assert "MLflow has no diagnosis of runs:/0123" in missing.stderr
    assert "Traceback" not in missing.stderr


def test_a_run_of_mlflow_that_goes_on_takes_it_twice_and_its_end_is_not_ours(
    bottleneck: Callable[..., Any], tmp_path: Path
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="the extra `mlflow`")
    where = store(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in where.items():
            patch.setenv(name, value)
        client = mlflow.MlflowClient(tracking_uri=where["MLFLOW_TRACKING_URI"])
        run = client.create_run(experiment_id="0").info.run_id
        for out in ("one", "two"):
            done = bottleneck(
                "diagnose", "--log", "mlflow", "--max-seconds", "3", "--out", out, "train.py",
                env={**where, "MLFLOW_RUN_ID": run},
            )  # fmt: skip
            assert f"logged to runs:/{run}" in done.stderr
        assert client.get_run(run).data.metrics["bottleneck/step_ms/true"] > 0


TRACKED = """
import sys
if "mlflow" in sys.argv:
    import mlflow
    mlflow.start_run()
if "wandb" in sys.argv:
    import wandb
    wandb.init(project="mine")
"""


@pytest.mark.parametrize("asked", [True, False])
def test_what_the_script_has_open_has_it_by_itself_where_the_project_asks(
    bottleneck: Callable[..., Any], tmp_path: Path, asked: bool
) -> None:
    pytest.importorskip("mlflow", reason="the extra `mlflow`")
    pytest.importorskip("wandb", reason="the extra `wandb`")
    where = store(tmp_path)
    (tmp_path / "train.py").write_text(TRACKED + TRAIN)
    (tmp_path / "pyproject.toml").write_text(f"[tool.bottleneck]\nlog = {str(asked).lower()}\n")
    offline = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(tmp_path)}
    done = bottleneck(
        "diagnose", "--max-seconds", "3", "--trial-seconds", "0", "--out", "out",
        "train.py", "mlflow", "wandb",
        env={**where, **offline},
    )  # fmt: skip
    assert done.returncode in (0, 3), done.stderr
    tracked = read_run(run_files(tmp_path / "out")[0]).tracked
    assert set(tracked) == {"mlflow", "wandb"}
    assert "MLFLOW_TRACKING_URI" not in tracked["mlflow"], "the environment has it"
    name = tracked["mlflow"]["MLFLOW_RUN_ID"]
    (folder,) = (tmp_path / "store").glob(f"*/{name}")
    assert (folder / "artifacts" / "bottleneck" / "report.html").exists() is asked
    assert (f"bottleneck: logged to runs:/{name}\n" in done.stderr) is asked
    runs = list((tmp_path / "wandb").glob(f"offline-run-*-{tracked['wandb']['WANDB_RUN_ID']}"))
    assert len(runs) == (2 if asked else 1), "offline the same run has a second folder, for `wandb sync`"
    assert len(list((tmp_path / "store").glob("*/*/artifacts"))) == 1, "no run of our own"


def test_a_wish_that_the_project_misspells_is_told_before_the_script_runs(
    bottleneck: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("open('ran', 'w')\n")
    (tmp_path / "pyproject.toml").write_text("[tool.bottleneck]\nlogs = true\n")
    done = bottleneck("diagnose", "train.py")
    assert done.returncode == 2
    assert "pyproject.toml: [tool.bottleneck]: Object contains unknown field `logs`." in done.stderr
    assert not (tmp_path / "ran").exists()


def test_weights_and_biases_has_the_figures_and_the_report(
    bottleneck: Callable[..., Any], tmp_path: Path
) -> None:
    pytest.importorskip("wandb", reason="the extra `wandb`")
    offline = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(tmp_path)}
    done = bottleneck("analyze", CASE, "--log", "wandb", "--out", "out", "--format", "json", env=offline)
    assert done.returncode == 0, done.stderr
    assert "bottleneck: logged to " in done.stderr
    json.loads(done.stdout)  # and nothing of the tracker's
    (file,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    kept = file.read_bytes()
    for tag, *_ in scalars(load_diagnosis(tmp_path / "out")):
        assert f"bottleneck/{tag}".encode() in kept, tag
    assert b"report.html" in kept and b"diagnosis.json" in kept


@pytest.mark.parametrize("tracker", ["mlflow", "wandb"])
def test_a_tracker_that_is_missing_or_fails_is_one_line(
    bottleneck: Callable[..., Any], tmp_path: Path, tracker: str
) -> None:
    (tmp_path / "train.py").write_text("open('ran', 'w')\n")
    (tmp_path / "path").mkdir()
    # As if not installed.
    hide = f"import sys; sys.modules[{tracker!r}] = None\n"
    (tmp_path / "path" / "sitecustomize.py").write_text(hide)
    gone = bottleneck("diagnose", "--log", tracker, "train.py", env={"PYTHONPATH": str(tmp_path / "path")})
    assert gone.returncode == 2
    assert f"pip install 'torch-bottleneck[{tracker}]'" in gone.stderr
    assert not (tmp_path / "ran").exists()
    (tmp_path / "path" / "sitecustomize.py").unlink()
    (tmp_path / "path" / f"{tracker}.py").write_text("raise ValueError('out of order')\n")
    broken = bottleneck("analyze", CASE, "--log", tracker, env={"PYTHONPATH": str(tmp_path / "path")})
    assert broken.returncode == 2
    assert f"{tracker} did not take the diagnosis: ValueError: out of order." in broken.stderr
    assert "Traceback" not in broken.stderr
    assert broken.stdout, "the report is there all the same"
