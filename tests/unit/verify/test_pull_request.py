"""The patch of a pull request: made of what the patches saw in real scripts, taken by git, and it runs."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked
import pytest
import torch

from torch_bottleneck.catalog.registry import by_id
from torch_bottleneck.errors import InputError
from torch_bottleneck.harness.trials.patches import make_patches
from torch_bottleneck.model.run import SourceSite
from torch_bottleneck.model.verify import (
    Applied,
    Measured,
    Outcome,
    Parity,
    RunRecord,
    Verification,
    Wish,
)
from torch_bottleneck.reporters.pull_request import render
from torch_bottleneck.verify.edits import with_edits
from torch_bottleneck.verify.run import patch_of_pull_request

HANDED = '''\
"""Handed through functions, as PyTorch's own examples are."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SEEN = []


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4, 2)

    def forward(self, images):
        out = self.features(images)
        SEEN.append((out.dtype, images.is_contiguous(memory_format=torch.channels_last)))
        return self.head(out.mean((2, 3)))


def train(model, loader, optimizer):
    for images, labels in loader:
        optimizer.zero_grad()
        output = model(images)
        loss = nn.functional.cross_entropy(output, labels)
        loss.backward()
        optimizer.step()


def main():
    data = TensorDataset(torch.randn(8, 3, 8, 8), torch.randint(0, 2, (8,)))
    loader = DataLoader(data, batch_size=4)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train(model, loader, optimizer)
    return model, optimizer, loader


model, optimizer, loader = main()
'''
REPORT = """
import json
seen = sorted({(str(dtype), laid) for dtype, laid in SEEN})
weights = model.features.weight.is_contiguous(memory_format=torch.channels_last)
print(json.dumps({
    "allocator": os.environ["PYTORCH_CUDA_ALLOC_CONF"], "seen": seen, "weights": weights,
    "compiled": model._compiled_call_impl is not None, "fused": optimizer.param_groups[0]["fused"],
    "loader": [loader.num_workers, loader.pin_memory],
}))
"""
PARALLEL = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

SYNCED = []
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    for micro in range(2):
        loss = model(torch.randn(2, 4)).square().mean() / 2
        SYNCED.append(model.require_backward_grad_sync)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
OWNED = """\
import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, x):
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


trainer = Trainer()
for _ in range(3):
    trainer.step(torch.randn(2, 4))
"""


def run_with(script: Path, *wishes: Wish) -> list[Applied]:
    """Run a script with these fixes in force, and return what their patches saw."""
    patches = make_patches(tuple(wishes))
    for patch in patches:
        patch.install()
    try:
        runpy.run_path(str(script))
        return [patch.check() for patch in patches]
    finally:
        for patch in reversed(patches):
            patch.uninstall()


def proven(script: Path, *found: Applied) -> Verification:
    """The verification in which these fixes helped together."""
    fixes = tuple(applied.fix for applied in found)
    measured = Measured(ratio=1.5, low=1.4, high=1.6, pairs=3, before_ms=9.0, after_ms=6.0)
    together = Outcome(
        fixes=fixes,
        title="Together",
        verdict="faster",
        measured=measured,
        predicted_ratio=1.6,
        memory_bytes=-3_000_000,
        parity=Parity(verdict="close", text="Losses agree within 1 %."),
    )
    state = Verification(
        script=script.name,
        args=("--epochs", "a b"),
        cwd=str(script.parent),
        combination=fixes,
        wishes=tuple(Wish(fix=fix, options={"backend": "eager"} if fix == "FX414" else {}) for fix in fixes),
        outcomes=(together,),
        runs=(RunRecord(number=1, applied=list(found)),),
        complete=True,
    )
    return with_edits(state)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the script in a folder of it."""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "scripts").mkdir()
    return tmp_path


def apply(state: Verification, repository: Path) -> str:
    """Apply the patch at the root with git, and return the script's new text."""
    file = repository / "request" / "changes.patch"
    patch_of_pull_request(state, file, say=lambda _: None)
    done = subprocess.run(
        ["git", "apply", str(file)], cwd=repository, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + file.read_text()
    return (repository / "scripts" / "train.py").read_text()


def test_a_script_with_functions_gets_all_of_it_at_once_and_runs(repository: Path) -> None:
    script = repository / "scripts" / "train.py"
    script.write_text(HANDED)
    wishes = (
        Wish(fix="FX303"),
        Wish(fix="FX310"),
        Wish(fix="FX414", options={"backend": "eager"}),
        Wish(fix="FX311"),
    )
    found = run_with(script, *wishes)
    assert [applied.state for applied in found] == ["applied"] * len(wishes), found
    # Workers are not for the process of these tests, and memory is pinned on a machine with a GPU.
    found += [
        Applied(fix="FX201", state="applied"),
        of_loader("FX101", script, num_workers=2),
        of_loader("FX103", script, pin_memory=True),
    ]
    state = proven(script, *found)
    assert [edit.reason for edit in state.edits if not edit.diff] == []
    now = apply(state, repository)
    assert now.index("os.environ[") < now.index("import torch")
    script.write_text(now + REPORT)
    done = forked.run([sys.executable, str(script)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "allocator": "expandable_segments:True",
        "seen": [["torch.bfloat16", True]],
        "compiled": True,
        "weights": True,
        "fused": True,
        "loader": [2, True],
    }


def of_loader(fix: str, script: Path, **values: Any) -> Applied:
    """What a patch says of the loader's line."""
    line = next(i for i, text in enumerate(script.read_text().splitlines(), 1) if "DataLoader(data" in text)
    site = SourceSite(file=str(script), line=line)
    return Applied(fix=fix, state="applied", sites=[site], values=values)


@pytest.fixture
def _alone(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("_alone")
def test_accumulation_under_ddp_synchronises_once_and_runs(repository: Path) -> None:
    script = repository / "scripts" / "train.py"
    script.write_text(PARALLEL)
    found = run_with(script, Wish(fix="FX602"), Wish(fix="FX303"))
    assert [applied.state for applied in found] == ["applied"] * 2, found
    now = apply(proven(script, *found), repository)
    assert "with contextlib.nullcontext() if micro == 2 - 1 else model.no_sync():" in now
    assert now.count("with torch.autocast('cpu', dtype=torch.bfloat16):") == 1
    assert runpy.run_path(str(script))["SYNCED"] == [False, True] * 6


def test_a_class_keeps_its_model_and_what_is_not_plain_is_told(repository: Path) -> None:
    script = repository / "scripts" / "train.py"
    script.write_text(OWNED)
    found = run_with(
        script, Wish(fix="FX414", options={"backend": "eager"}), Wish(fix="FX303"), Wish(fix="FX313")
    )
    found = [applied for applied in found if applied.state == "applied"]
    now = apply(proven(script, *found), repository)
    assert "        self.model.compile(backend='eager')\n        self.optimizer" in now
    runpy.run_path(str(script))

    script.write_text(
        OWNED.replace("loss = self.model(x).square().mean()\n        loss", "self.model(x).mean()")
    )
    (found,) = run_with(script, Wish(fix="FX303"))
    state = proven(script, found)
    (edit,) = state.edits
    assert edit.diff == "" and "one statement" in edit.reason
    text = render(state)
    assert "to be done by hand" in text and by_id("FX303").code.splitlines()[2] in text


def test_the_text_has_what_was_predicted_measured_and_how_to_repeat_it(repository: Path) -> None:
    script = repository / "scripts" / "train.py"
    script.write_text(HANDED)
    (found,) = run_with(script, Wish(fix="FX311"))
    text = render(proven(script, found))
    for piece in (
        "# train.py: training step 1.50× as fast (9.00 to 6.00 ms)",
        "| FX311 | 1.60× | 1.50× (1.40 to 1.60) | -3 MB | close | faster |",
        "- FX311 Together: Losses agree within 1 %",
        "- FX311 at train.py:37 (main): in the patch.",
        "bottleneck verify --fix FX311 train.py --epochs 'a b'",
    ):
        assert piece in text, text


def test_without_a_winner_there_is_nothing_to_request(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No fix was proven"):
        patch_of_pull_request(Verification(cwd=str(tmp_path)), tmp_path / "x", say=lambda _: None)
