"""The fixture `step_gate`: baselines beside the tests, failures that say what grew, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import forked
import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
TESTS = """\
import torch

WINDOWS = {"warmup": 3, "baseline_steps": 6, "steps": 2}
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
loader = torch.utils.data.DataLoader(data, batch_size=8)


def training(compiled=False):
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def logits(x):
        out = model(x)
        torch._dynamo.graph_break()
        return out.float()

    called = torch.compile(logits, backend="eager") if compiled else model

    def step(batch):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(called(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def test_marked(step_gate):
    step = training()
    with step_gate("marked", **WINDOWS) as gate:
        for batch in gate.steps(loader):
            step(batch)


def test_plain_loop(step_gate):
    step = training()
    with step_gate("plain", **WINDOWS):
        for epoch in range(4):
            for batch in loader:
                loss = step(batch)


def test_one_step(step_gate):
    step, batch = training(compiled=True), next(iter(loader))
    with step_gate("one", **WINDOWS) as gate:
        for _ in gate.steps():
            step(batch)


def test_compiled_before(step_gate):
    step, batch = training(compiled=True), next(iter(loader))
    step(batch)
    with step_gate("compiled", **WINDOWS) as gate:
        while not gate.done:
            with gate.step():
                step(batch)
"""
PLUGINS = ("-p", "no:cacheprovider", "-p", "torch_bottleneck.pytest_plugin", "-p", "xdist")
NAMES = ("compiled", "marked", "one", "plain")


def as_installed(folder: Path) -> Path:
    """Make the entry points of pyproject.toml known, as an installation does."""
    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    installed = folder / "installed" / "as_installed-1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: as-installed\nVersion: 1\n")
    lines = [f"{key} = {value}" for key, value in group.items()]
    (installed / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines, ""]))
    return installed.parent


def start(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return forked.run(
        [sys.executable, "-m", "pytest", *PLUGINS, *words],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with tests and their baselines, made once."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "tests").mkdir()
    (folder / "pytest.ini").write_text(
        "[pytest]\nfilterwarnings =\n    error\n    ignore:The .grad attribute:UserWarning\n"
        # The server of forks has imported the plugin.
        "    ignore:Module already imported:pytest.PytestAssertRewriteWarning\n"
    )
    (folder / "tests" / "test_train.py").write_text(TESTS)
    done = start(folder, "--bottleneck-update")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "marked: wrote tests/bottleneck_baselines/test_train/marked.json" in done.stdout
    return folder


@pytest.fixture
def project(measured: Path, tmp_path: Path) -> Path:
    shutil.copytree(measured, tmp_path / "project")
    return tmp_path / "project"


def edit(project: Path, old: str, new: str) -> None:
    file = project / "tests" / "test_train.py"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def test_baselines_count_steps_whoever_marks_them_and_whatever_was_compiled_before(measured: Path) -> None:
    files = sorted((measured / "tests" / "bottleneck_baselines" / "test_train").glob("*.json"))
    assert tuple(file.stem for file in files) == NAMES
    found = {file.stem: json.loads(file.read_bytes()) for file in files}
    signals = {name: baseline["workload"]["step_signal"] for name, baseline in found.items()}
    assert signals == {"compiled": "api", "marked": "api", "one": "api", "plain": "optimizer+fetch"}
    for baseline in found.values():
        assert baseline["plan"] == {"baseline_steps": 6, "steps": 2, "warmup": 3}
        assert baseline["counters"]["values"]["operators"]["value"] > 20
        assert "peak_allocated_bytes" not in baseline["counters"]["values"]
        assert baseline["command"] == []
    assert found["one"]["counters"]["values"]["graph_breaks"]["value"] == 1
    assert found["compiled"]["counters"]["values"]["graph_breaks"]["value"] == 1
    operators = {name: b["counters"]["values"]["operators"]["value"] for name, b in found.items()}
    assert operators["marked"] == pytest.approx(operators["plain"], abs=10)


def test_the_same_tests_pass_alone_together_and_in_two_workers(project: Path) -> None:
    alone = start(project, "-q", "-k", "compiled_before or plain")
    assert alone.returncode == 0, alone.stdout
    before = (project / "tests" / "bottleneck_baselines" / "test_train" / "plain.json").read_text()
    spread = start(project, "-q", "-n", "2")
    assert spread.returncode == 0, spread.stdout
    assert "4 passed" in spread.stdout
    after = (project / "tests" / "bottleneck_baselines" / "test_train" / "plain.json").read_text()
    assert before == after


def test_a_failure_says_what_grew_from_what_to_what_and_where(project: Path) -> None:
    edit(project, "        optimizer.step()\n", "        optimizer.step()\n        loss.item()\n")
    (project / "tests" / "bottleneck_baselines" / "test_train" / "one.json").unlink()
    done = start(project, "-k", "marked or plain or one_step")
    assert done.returncode == 1
    assert "step_gate('one') has no baseline yet: run pytest with --bottleneck-update once" in done.stdout
    line = (project / "tests" / "test_train.py").read_text().splitlines().index("        loss.item()") + 1
    assert done.stdout.count("synchronisations 0 → 1 per step") >= 2
    assert f"tests/test_train.py:{line}" in done.stdout
    assert "baseline: tests/bottleneck_baselines/test_train/marked.json" in done.stdout
    assert "pytest --bottleneck-update 'tests/test_train.py::test_marked'" in done.stdout
    assert "Traceback" not in done.stdout
    updated = start(project, "--bottleneck-update", "-k", "marked")
    assert updated.returncode == 0
    assert "marked: rewrote tests/" in updated.stdout


def test_limits_come_from_pyproject_and_a_loop_that_is_too_short_says_so(project: Path) -> None:
    edit(project, "        optimizer.step()\n", "        optimizer.step()\n        loss.item()\n")
    edit(project, "in range(4)", "in range(0)")
    (project / "pyproject.toml").write_text(
        "[tool.bottleneck.gate.counters]\nsyncs = { slack = 1 }\noperators = { slack = 4 }\n"
    )
    done = start(project, "-k", "marked or plain")
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "trained too few steps" in done.stdout
    assert "gate.steps(loader)" in done.stdout


def test_a_run_of_tests_without_it_imports_no_more_than_this_file(tmp_path: Path) -> None:
    (tmp_path / "test_none.py").write_text(
        "import sys\n"
        "def test_nothing():\n"
        "    ours = sorted(name for name in sys.modules if name.startswith('torch_bottleneck'))\n"
        "    assert ours == ['torch_bottleneck', 'torch_bottleneck.pytest_plugin']\n"
        "    assert not {'torch', 'numpy', 'msgspec', 'pandas', 'rich'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_none.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(as_installed(tmp_path))},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
