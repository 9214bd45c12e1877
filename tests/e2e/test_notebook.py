"""Cells in a real kernel: what was found shows itself, and the cell runs as it would without us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked
import pytest
from recorded.cases import CASES

from torch_bottleneck import notebook

pytest.importorskip("nbclient", reason="of the test extra")
pytest.importorskip("ipykernel", reason="of the test extra")

SETUP = """
import time, torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def batches():
    while True:
        time.sleep(0.004)
        yield torch.randn(8, 64)
def train_step(batch):
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
MAGIC = """%%bottleneck --max-seconds 3
seen = 0
for batch in batches():
    train_step(batch)
    seen += 1
    if seen == 500:
        break
"""
FUNCTION = """
import torch_bottleneck
source = batches()
calls = []
def step():
    calls.append(1)
    train_step(next(source))
torch_bottleneck.diagnose(step, steps=4, max_seconds=3)
"""
BLOCK = """
with torch_bottleneck.diagnosing("named", max_seconds=3) as found:
    for index, batch in enumerate(batches()):
        train_step(batch)
        if index == 500:
            break
"""


DRIVER = """
import json, sys
import nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

class Kernels(KernelSpecManager):  # this interpreter, wherever kernels are installed
    def get_kernel_spec(self, kernel_name):
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name="tests", language="python")

cells = [nbformat.v4.new_code_cell(cell) for cell in json.load(sys.stdin)]
notebook = nbformat.v4.new_notebook(cells=cells)
manager = AsyncKernelManager(kernel_spec_manager=Kernels(), transport="ipc")
NotebookClient(notebook, km=manager, timeout=600, allow_errors=True).execute()
json.dump([cell.outputs for cell in notebook.cells], sys.stdout)
"""


def run_cells(folder: Path, *cells: str) -> list[Any]:
    """Return the outputs of each cell; the kernel's client leaves sockets behind, so it has a process."""
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        input=json.dumps(cells),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outputs: list[Any] = json.loads(done.stdout)
    return outputs


def shown(outputs: Any) -> Any:
    """Return the one thing that a cell shows; nothing else may stand beside it."""
    (output,) = outputs
    assert output["output_type"] in ("display_data", "execute_result"), output
    return output["data"]


def test_the_magic_the_function_and_the_block_show_what_was_found(bottleneck: Any, tmp_path: Path) -> None:
    (_, _, magic, seen, function, calls, block, text) = run_cells(
        tmp_path,
        SETUP,
        "%load_ext torch_bottleneck",
        MAGIC,
        "seen",
        FUNCTION,
        "len(calls)",
        BLOCK,
        "print(found)",
    )
    for outputs in (magic, function, block):
        data = shown(outputs)
        page = data["text/html"]
        assert len(page) < 200_000
        assert "<details" in page and "<script" not in page
        assert "In[1]:" in page, "a cell is named as the notebook names it"
        assert "ipykernel" not in page and "ipykernel" not in data["text/plain"]
    assert shown(seen)["text/plain"] == "500", "the cell's names are the notebook's"
    assert int(shown(calls)["text/plain"]) > 20
    assert "input-bound" in shown(magic)["text/html"]
    assert text[0]["text"].splitlines()[0] == shown(block)["text/plain"].splitlines()[0]
    run = json.loads((tmp_path / "named" / "run.json").read_bytes())
    assert run["step_signal"] == "optimizer"
    assert (tmp_path / "named" / "diagnosis" / "report.html").is_file()
    verify = bottleneck("verify", "named", "--yes")
    assert verify.returncode == 2
    assert "does not record which script it ran" in verify.stderr, "the kernel is no script"


def test_errors_of_a_cell_are_its_own_and_few_steps_are_said(tmp_path: Path) -> None:
    (_, _, wrong, failed, one, none, after) = run_cells(
        tmp_path,
        SETUP,
        "%load_ext torch_bottleneck",
        "%%bottleneck --stepz 3\n1",
        "%%bottleneck\n1 / 0",
        "%%bottleneck\ntrain_step(torch.randn(8, 64))",
        "%%bottleneck\n0",
        "import sys; [name for name in ('pandas', 'torch_bottleneck.diagnose') if name in sys.modules]",
    )
    assert "No such option" in wrong[0]["text"]
    (error,) = failed
    assert error["ename"] == "ZeroDivisionError"
    assert shown(one)["text/plain"].startswith("UNDETERMINED")
    assert shown(none)["text/plain"].startswith("<no diagnosis: too few steps")
    assert shown(after)["text/plain"] == "[]", "the report is made elsewhere"


SCRIPT = """
import sys
import torch_bottleneck
from train import *
try:
    with torch_bottleneck.diagnosing("run", max_seconds=3):
        for index, batch in enumerate(batches()):
            train_step(batch)
            if index == 500:
                raise SystemExit(7) if sys.argv[1:] else KeyboardInterrupt
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("arguments", [[], ["fail"]])
def test_a_block_of_a_script_is_told_in_the_log_and_ends_as_it_would(
    tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "train.py").write_text(SETUP)
    (tmp_path / "script.py").write_text(SCRIPT)
    done = forked.run(
        [sys.executable, "script.py", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stdout) == ((7, "") if arguments else (0, "interrupted\n")), done.stderr
    assert (tmp_path / "run" / "run.json").is_file()
    assert ("bottleneck: input-bound: " in done.stderr) == (not arguments)


def test_of_several_ranks_the_first_one_reads_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    found = notebook.Found(CASES["cpu-short-epochs"].folder)
    found._read()
    assert found.diagnosis is None
