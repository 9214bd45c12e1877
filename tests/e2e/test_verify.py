"""The command tries fixes on a script that nobody edits, and says what came of each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

SECONDS = 200

SLOW_INPUT = """
import time
import torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Slow(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.004)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(8, generator=generator), torch.randn(1, generator=generator)


if __name__ == "__main__":
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.Adam(
        model.parameters(),
        lr=1e-3,
    )
    loader = DataLoader(Slow(), batch_size=4)
    for inputs, targets in loader:
        loss = (model(inputs) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

PLAIN = """
import os, sys
import torch

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
inputs = torch.randn(64, 32)
for step in range(400):
    loss = (model(inputs) - inputs[:, :1]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def verify(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torch_bottleneck", "verify", *words],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def write(folder: Path, source: str, name: str = "train.py") -> None:
    (folder / name).write_text(textwrap.dedent(source))


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "verify.json").read_text())
    return found


@pytest.mark.slow
def test_workers_are_found_to_help_without_touching_the_source(tmp_path: Path) -> None:
    write(tmp_path, SLOW_INPUT)
    got = verify(
        tmp_path,
        "--out",
        "v",
        "--steps",
        "12",
        "--patch",
        "fix.diff",
        "train.py",
        "--fix",
        "FX101:num_workers=2",
    )
    assert got.returncode == 0, got.stderr
    state = result(tmp_path / "v")
    (row,) = state["outcomes"]
    assert row["verdict"] == "faster", row
    assert 1.3 < row["measured"]["ratio"] < 4
    assert row["measured"]["low"] > 1
    assert row["parity"]["verdict"] == "same"
    assert row["evidence"] == "num_workers 0 -> 2, persistent_workers False -> True on 1 DataLoader"
    assert state["combination"] == ["FX101"]
    assert state["complete"]
    assert (tmp_path / "train.py").read_text() == SLOW_INPUT
    diff = (tmp_path / "fix.diff").read_text()
    assert "+    loader = DataLoader(Slow(), batch_size=4, num_workers=2, persistent_workers=True)" in diff
    patched = subprocess.run(
        ["git", "apply", "fix.diff"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert patched.returncode == 0, patched.stderr
    assert "num_workers=2" in (tmp_path / "train.py").read_text()


def test_what_changes_nothing_is_not_applied_and_what_fails_has_its_reason(tmp_path: Path) -> None:
    write(tmp_path, PLAIN)
    (tmp_path / "breaking.py").write_text(
        PLAIN.replace("for step", "import torch.optim\nfor step").replace(
            "    loss.backward()",
            "    assert not optimizer.defaults['fused'], 'no fused here'\n    loss.backward()",
        )
    )
    got = verify(tmp_path, "--out", "v", "--steps", "20", "breaking.py", "--fix", "FX101", "--fix", "FX311")
    assert got.returncode == 0, got.stderr
    workers, fused = result(tmp_path / "v")["outcomes"]
    assert (workers["verdict"], workers["reason"]) == ("not applied", "no DataLoader was built")
    assert fused["verdict"] == "failed"
    assert "no fused here" in fused["reason"]
    assert "no gain" not in got.stdout


def test_a_script_that_fails_by_itself_is_its_own_error(tmp_path: Path) -> None:
    write(tmp_path, "import torch\nraise ValueError('too bad')")
    got = verify(tmp_path, "--out", "v", "train.py", "--fix", "FX311")
    assert got.returncode == 4
    assert "too bad" in got.stderr
    assert "Traceback" not in got.stderr


def test_ctrl_c_leaves_what_was_measured_and_resume_goes_on(tmp_path: Path) -> None:
    write(tmp_path, PLAIN)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "torch_bottleneck",
            "verify",
            "--out",
            "v",
            "--steps",
            "20",
            "train.py",
            "--fix",
            "FX311",
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "run 2" in line:
            break
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, err
    assert "--resume" in out
    left = result(tmp_path / "v")
    assert not left["complete"]
    assert len([run for run in left["runs"] if run["status"] == "ok"]) >= 2
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    got = verify(tmp_path, "v", "--resume")
    assert got.returncode == 0, got.stderr
    done = result(tmp_path / "v")
    assert done["complete"]
    assert done["outcomes"][0]["measured"]["pairs"] >= 3
    assert {run["session"] for run in done["runs"]} == {1, 2}
