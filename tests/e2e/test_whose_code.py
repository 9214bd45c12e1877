"""Extra work in a step has its name, its line, and the price that taking it out was measured to have.

Each script is run twice: diagnosed, and timing its own steps with and without the extra work in turns.
"""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
from e2e.running import Result, diagnose, plain, read_run

from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.model.diagnosis import Diagnosis

HEAD = """
import copy, gc, json, os, statistics, sys, time
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
layers = []
for _ in range(8):
    layers += [torch.nn.Linear(160, 160), torch.nn.ReLU()]
model = torch.nn.Sequential(*layers, torch.nn.Linear(160, 24))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = torch.nn.BCEWithLogitsLoss()
x, y = torch.randn(4096, 160), torch.randint(0, 2, (4096, 24)).float()
history = [{"step": i, "loss": i / 3, "name": f"run {i}"} for i in range(4000)]
average = copy.deepcopy(model)
# Batches that exist already: what takes the time is the test, on any machine, and not the making of them.
batches = torch.utils.data.TensorDataset(x[:1024].view(4, 256, 160), y[:1024].view(4, 256, 24))
held = torch.utils.data.DataLoader(batches, batch_size=None)
WANTED = True
"""

TAIL = """

if os.environ.get("MEASURE"):
    times = {True: [], False: []}
    for step in range(120):
        WANTED = step % 2 == 0
        begin = time.perf_counter()
        train(step)
        times[WANTED].append(time.perf_counter() - begin)
    print(statistics.median(times[False][5:]) / statistics.median(times[True][5:]))
else:
    for step in range(int(os.environ.get("STEPS", "100"))):
        train(step)
    print(loss_now)
"""

STEP = """
def train(step):
    global loss_now, kept
    index = torch.randint(0, 4096, (128,))
    loss = criterion(model(x[index]), y[index])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss_now = loss.item()
    if WANTED:
"""


@dataclass(frozen=True)
class Extra:
    """One kind of extra work."""

    work: str
    """Behind the update, the line meant with the mark."""
    call: str
    before: str = ""


EXTRAS = {
    "evaluation": Extra(
        "for a, b in held:\n    test(a, b)  # here",
        "test()",
        "def test(a, b):\n    with torch.no_grad():\n        return criterion(model(a), b).item()\n",
    ),
    # What a fork of the tests was started with is no garbage to look at: objects of its own.
    "collection": Extra(
        "gc.collect()  # here", "gc.collect()", "alive = [{'i': [i]} for i in range(80_000)]\n"
    ),
    "average": Extra(
        "update_average()  # here",
        "update_average()",
        "def update_average():\n    with torch.no_grad():\n"
        "        for old, new in zip(average.parameters(), model.parameters()):\n"
        "            for _ in range(6):\n                old.data = 0.9 * old.data + 0.1 * new.data\n",
    ),
    "log": Extra("text = json.dumps(history)  # here", "json.dumps()"),
    "copy": Extra("for _ in range(3):\n    kept = copy.deepcopy(model)  # here", "copy.deepcopy()"),
}


def script(extra: Extra) -> str:
    work = textwrap.indent(extra.work, " " * 8)
    return f"{HEAD}{extra.before}{STEP}{work}\n{TAIL}"


def line_of(path: Path) -> int:
    lines = path.read_text().splitlines()
    return 1 + next(k for k, line in enumerate(lines) if "# here" in line)


def measured_ratio(folder: Path, **extra: str) -> float:
    """The step without the extra work over the step with it, in turns in one process."""
    return float(plain(folder, "train.py", MEASURE="1", **extra).out.split()[-1])


def read(got: Result) -> Diagnosis:
    assert got.code in (0, 3), got.err
    return diagnose_paths([got.folder])


@pytest.mark.parametrize("name", EXTRAS)
def test_extra_work_has_its_call_its_line_and_its_price(tmp_path: Path, name: str) -> None:
    extra, path = EXTRAS[name], tmp_path / "train.py"
    path.write_text(script(extra))
    diagnosis = read(diagnose(tmp_path, "train.py"))
    ratio = measured_ratio(tmp_path)

    found = next(f for f in diagnosis.findings if f.code == "BN904")
    assert found.call == f"`{extra.call}`"
    assert abs(found.sites[0].line - line_of(path)) <= 1
    assert found.predicted_step_ms is not None and diagnosis.step.true_ms is not None
    # Beside other programs the step itself is not known better.
    low, high = diagnosis.step.true_ci_ms or (diagnosis.step.true_ms, diagnosis.step.true_ms)
    unknown = (high - low) / 2 / diagnosis.step.true_ms
    assert abs(found.predicted_step_ms / diagnosis.step.true_ms - ratio) <= 0.15 + unknown

    assert extra.call in diagnosis.verdict.headline
    first = diagnosis.suggestions[0]
    assert extra.call in first.title
    assert first.site is not None and abs(first.site.line - line_of(path)) <= 1


HOOKS = """
def watch(name):
    def look(grad):
        history[hash(name) % 9] = [torch.histc(grad, bins=64).tolist() for _ in range(6)]  # here
    return look


if not os.environ.get("CURED"):
    for name, parameter in model.named_parameters():
        parameter.register_hook(watch(name))
"""


def test_hooks_in_the_backward_are_named_and_no_backward(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"{HEAD}{HOOKS}{STEP}        pass\n{TAIL}")
    diagnosis = read(diagnose(tmp_path, "train.py"))
    found = next(f for f in diagnosis.findings if f.code == "BN904")
    assert abs(found.sites[0].line - line_of(path)) <= 1
    assert diagnosis.verdict.bottleneck_class.value == "host-bound"
    with_hooks = diagnosis.step.true_ms
    assert with_hooks is not None and found.predicted_step_ms is not None
    assert found.predicted_step_ms < 0.7 * with_hooks


WORKERS = """
import numpy as np

weights = np.random.rand(20_000)
weights /= weights.sum()


def collate(samples):
    for _ in range(12):
        chosen = np.random.choice(20_000, 100, replace=False, p=weights)  # here
    return torch.utils.data.default_collate(samples)


data = torch.utils.data.TensorDataset(x, y)
loader = torch.utils.data.DataLoader(data, batch_size=32, num_workers=1, collate_fn=collate)
for a, b in loader:
    optimizer.zero_grad()
    criterion(model(a), b).backward()
    optimizer.step()
"""


def test_a_call_in_a_worker_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(HEAD + WORKERS)
    diagnosis = read(diagnose(tmp_path, "train.py"))
    assert diagnosis.verdict.bottleneck_class.value == "input-bound"
    assert "np.random.choice()" in diagnosis.verdict.headline
    assert diagnosis.tree is not None
    wait = next(node for node in diagnosis.tree.children if node.role == "input")
    made = wait.children[0]
    assert (made.name, made.role) == ("np.random.choice()", "input")
    assert abs(made.line - line_of(path)) <= 1


LOSSES = """
def train(step):
    global loss_now
    index = torch.randint(0, 4096, (128,))
    out, target = model(x[index]), y[index]
    if WANTED:
        loss = 0
        for c in range(24):
            loss = loss + criterion(out[:, c], target[:, c])  # here
    else:
        loss = criterion(out, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss_now = loss.item()
"""


def test_a_loop_over_losses_takes_its_part_of_the_backward_along(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(HEAD + LOSSES + TAIL)
    diagnosis = read(diagnose(tmp_path, "train.py"))
    ratio = measured_ratio(tmp_path)
    assert diagnosis.tree is not None and diagnosis.step.true_ms is not None
    nodes = list(diagnosis.tree.children)
    for above in nodes:
        nodes += above.children
    node = next(n for n in nodes if abs(n.line - line_of(path)) <= 1)
    # Half of the line is the call, half are the views and the sum: either is said, by chance.
    assert node.call.startswith("criterion(") or "+ criterion(" in node.call
    assert node.price_ms is not None and node.bound
    # The price is the most that can be won.
    assert -0.3 <= (diagnosis.step.true_ms - node.price_ms) / diagnosis.step.true_ms - ratio <= 0.15


def test_sampling_changes_no_result_and_lies_in_no_window_that_is_timed(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(script(EXTRAS["average"]))
    alone = plain(tmp_path, "train.py", STEPS="90")
    got = diagnose(tmp_path, "--run-to-end", "train.py", STEPS="90")
    assert got.out.splitlines()[0] == alone.out.splitlines()[0]
    stacks = json.loads((got.folder / "stacks.json").read_text())
    run = read_run(got.folder)
    timed = {step for window in run.windows for step in window.steps.index}
    assert len(timed) + len(stacks["step_ms"]) < 90
    assert run.artefacts["stacks"].status == "ok"
