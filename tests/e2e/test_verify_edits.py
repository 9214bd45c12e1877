"""The edits of a verification on a package with loaders of every shape: shown, written, or refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from verifying import verify

DATA = '''\
"""Loaders, written in the ways that people write them."""

import time

import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.004)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(8, generator=generator), torch.randn(1, generator=generator)


def training():
    return DataLoader(
        Slow(),
        batch_size=4,  # small
    )


def named(): return DataLoader(Slow(), batch_size=4, num_workers=0)


def by_position():
    return DataLoader(Slow(), 4, False, None, None, 0)


def unpacked(**options):
    return DataLoader(Slow(), **options)
'''
TRAIN = """\
import torch

from package import data
from package.more import other


def main():
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loaders = [data.named(), data.by_position(), data.unpacked(batch_size=4), other.LOADER]
    print(len(loaders), [loader.num_workers for loader in loaders])
    for inputs, targets in data.training():
        loss = (model(inputs) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
"""
OTHER = """\
from torch.utils.data import DataLoader

from package.data import Slow

LOADER = DataLoader(Slow())
"""


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def sources(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("package/**/*.py")}


@pytest.mark.slow
def test_edits_of_a_package_are_shown_written_and_refused(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "package" / "more").mkdir(parents=True)
    for name, text in (
        ("__init__.py", ""),
        ("data.py", DATA),
        ("train.py", TRAIN),
        ("more/__init__.py", ""),
        ("more/other.py", OTHER),
    ):
        (project / "package" / name).write_text(text)
    (project / ".gitignore").write_text("v/\nfix.diff\n__pycache__/\n")

    # Outside git nothing is run for an edit that could not be made.
    refused = verify(project, "--write", "--fix", "FX101:num_workers=2", "-m", "package.train")
    assert refused.returncode == 2
    assert "not under git" in refused.stderr

    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-qm", "first")
    got = verify(
        project,
        *("--out", "v", "--steps", "12", "--pairs", "2", "--fix", "FX101:num_workers=2"),
        *("--patch", "fix.diff", "-m", "package.train"),
    )
    assert got.returncode == 0, got.stderr
    state = json.loads((project / "v" / "verify.json").read_text())
    assert state["combination"] == ["FX101"], state["outcomes"]
    assert git(project, "status", "--porcelain") == "", "nothing but --write edits"
    reasons = [edit["reason"] for edit in state["edits"] if not edit["diff"]]
    assert len(reasons) == 1
    assert "gets **options" in reasons[0]
    assert "FX101 must be edited by hand" in got.stderr

    # A verification that is complete is not run again for its edits.
    copy = tmp_path / "copy"
    shutil.copytree(project, copy)
    (copy / "package" / "data.py").write_text(DATA + "\n# not committed\n")
    before = sources(project)
    moved = (copy / "v" / "verify.json").read_text().replace(str(project), str(copy))
    (copy / "v" / "verify.json").write_text(moved)
    dirty = verify(copy, "--yes", "v", "--resume", "--write")
    assert dirty.returncode == 2
    assert "data.py has uncommitted changes" in dirty.stderr
    assert sources(copy)["package/more/other.py"] == OTHER, "all or nothing"

    written = verify(project, "v", "--resume", "--write")
    assert written.returncode == 0, written.stderr
    assert written.stderr.count("changed") == 2
    now = sources(project)
    assert {name for name in now if now[name] != before[name]} == {"package/data.py", "package/more/other.py"}
    for piece in (
        "        batch_size=4,  # small\n        num_workers=2,\n        persistent_workers=True,\n    )",
        "def named(): return DataLoader(Slow(), batch_size=4, num_workers=2, persistent_workers=True)",
        "DataLoader(Slow(), 4, False, None, None, 2, persistent_workers=True)",
        "DataLoader(Slow(), **options)",
    ):
        assert piece in now["package/data.py"], piece
    assert (
        "LOADER = DataLoader(Slow(), num_workers=2, persistent_workers=True)" in now["package/more/other.py"]
    )

    # The diff says the same, and git takes it.
    git(project, "checkout", "-q", ".")
    git(project, "apply", "fix.diff")
    assert sources(project) == now
    done = subprocess.run(
        [sys.executable, "-c", "from package import data; print(data.by_position().num_workers)"],
        cwd=project,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "2\n"
