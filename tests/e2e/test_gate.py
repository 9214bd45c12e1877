"""`bottleneck gate` on real scripts: what passes, what fails, and where the finger points."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import forked
import pytest

from torch_bottleneck.compare.baseline_file import baseline_text, read_baseline
from torch_bottleneck.compare.sides import read_side

ROOT = Path(__file__).resolve().parents[2]
WINDOWS = ("--warmup", "3", "--baseline-steps", "8", "--steps", "3")

SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
data = torch.utils.data.TensorDataset(torch.randn(4096, 32), torch.randint(10, (4096,)))
loader = torch.utils.data.DataLoader(data, batch_size=16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def training_step(features, labels):
    loss = nn.functional.cross_entropy(model(features), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


losses = []
for features, labels in loader:
    loss = training_step(features, labels)
    losses.append(loss.item())
print("last loss", losses[-1])
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> Path:
    """The script and its baseline, made once."""
    folder = tmp_path_factory.mktemp("measured")
    (folder / "train.py").write_text(SCRIPT)
    words = ("--baseline", "base.json", "--update-baseline", "--times", "off", *WINDOWS, "train.py")
    done = forked.run(
        [sys.executable, "-m", "torch_bottleneck", "gate", *words],
        cwd=folder, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def project(measured, tmp_path) -> Path:
    """A project with a script and its baseline."""
    for name in ("train.py", "base.json"):
        shutil.copy(measured / name, tmp_path)
    return tmp_path


def edit(project: Path, old: str, new: str) -> None:
    text = (project / "train.py").read_text()
    assert old in text
    (project / "train.py").write_text(text.replace(old, new))


def gate(bottleneck, *options: str, **more):
    return bottleneck("gate", "--baseline", "base.json", "--times", "off", *options, "train.py", **more)


def test_the_same_script_passes_again_and_the_baseline_does_not_change(project, bottleneck):
    before = json.loads((project / "base.json").read_text())
    assert before["plan"] == {"baseline_steps": 8, "steps": 3, "warmup": 3}
    assert before["counters"]["values"]["syncs"]["value"] == 1
    assert before["counters"]["syncs"][0]["code"] == "losses.append(loss.item())"
    assert (project / "base.json").stat().st_size < 20_000
    done = gate(bottleneck)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("OK\n")
    assert "last loss" not in done.stdout, "stdout is for the report"
    assert gate(bottleneck, "--update-baseline", *WINDOWS).returncode == 0
    after = json.loads((project / "base.json").read_text())
    for counted in (before, after):
        counted["counters"].pop("run_steps")  # a busy machine makes the run a step longer
    assert after["counters"] == before["counters"], "exact, so rewriting it changes nothing"


def test_a_new_read_fails_and_is_annotated_at_its_line(project, bottleneck):
    edit(project, "    optimizer.step()\n", "    optimizer.step()\n    if loss > 9: print('high')\n")
    done = gate(bottleneck, "--report", "out.xml", "--report", "out.md", "--format", "github")
    assert done.returncode == 1, done.stdout + done.stderr
    line = (project / "train.py").read_text().splitlines().index("    if loss > 9: print('high')") + 1
    assert f"::error file=train.py,line={line},title=Regression%3A synchronisations::" in done.stdout
    failure = ET.parse(project / "out.xml").find(".//testcase[@name='syncs']/failure")
    assert failure is not None
    assert "if loss &gt; 9" in (project / "out.md").read_text()


def test_lines_above_it_that_move_a_read_change_nothing(project, bottleneck):
    edit(project, "import torch\n", "# a comment\n# and another\nimport torch\n")
    assert gate(bottleneck).returncode == 0


def test_the_summary_of_a_github_job_is_written(project, bottleneck, tmp_path):
    summary = tmp_path / "summary.md"
    done = gate(bottleneck, env={"GITHUB_STEP_SUMMARY": str(summary)})
    assert done.returncode == 0
    assert "No performance regression" in summary.read_text()


def test_another_batch_is_refused_unless_allowed(project, bottleneck):
    edit(project, "batch_size=16", "batch_size=32")
    done = gate(bottleneck)
    assert done.returncode == 3
    assert "--allow batch" in " ".join(done.stdout.split())
    assert gate(bottleneck, "--allow", "batch").returncode in (0, 1)


def test_limits_come_from_pyproject_and_misspelt_ones_are_errors(project, bottleneck):
    edit(project, "    optimizer.step()\n", "    optimizer.step()\n    loss.item()\n")
    file = project / "pyproject.toml"
    file.write_text("[tool.bottleneck.gate.counters]\nsyncs = { slack = 1 }\n")
    assert gate(bottleneck).returncode == 0
    file.write_text("[tool.bottleneck.gate.counters]\nsink = { slack = 1 }\n")
    done = gate(bottleneck)
    assert done.returncode == 2
    assert "sink" in done.stderr and "Traceback" not in done.stderr


def test_two_checkouts_in_turns_find_a_slower_step(project, bottleneck, tmp_path):
    (tmp_path / "main").mkdir()
    shutil.copy(project / "train.py", tmp_path / "main")
    edit(project, "import torch\n", "import time\nimport torch\n")
    edit(project, "    optimizer.step()\n", "    optimizer.step()\n    time.sleep(0.06)\n")
    # Counters are the same, so only the time can tell; 60 ms on a step of 1 ms no machine hides.
    done = bottleneck("gate", "--base", "main", "--repeat", "3", *WINDOWS, "--format", "json", "train.py")
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["time"]["decision"] == "slower"
    assert found["time"]["interleaved"] is True
    assert [row["status"] for row in found["counters"] if row["name"] == "syncs"] == ["same"]
    assert done.stderr.index("base 1") < done.stderr.index("head 1")
    assert done.stderr.index("head 2") < done.stderr.index("base 2"), "the order turns round"


def test_operators_that_crept_over_past_runs_are_drift_though_the_comparison_passes(project, bottleneck):
    assert gate(bottleneck, "--history", "past").returncode == 0
    entry = json.loads(next((project / "past").glob("*.json")).read_text())
    operators = entry["counters"]["operators"]
    for day, share in enumerate((0.96, 0.97, 0.98, 0.99)):
        older = {**entry, "created": f"2026-01-0{day + 1}", "counters": {"operators": operators * share}}
        (project / "past" / f"2026-01-0{day + 1}.json").write_text(json.dumps(older))
    done = gate(bottleneck, "--history", "past", "--format", "json")
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert {row["status"] for row in found["counters"]} == {"same"}
    assert [row["what"] for row in found["drifts"]] == ["operators"]
    assert len(list((project / "past").glob("*.json"))) == 6


def test_the_runs_can_be_kept_and_compared_again(project, bottleneck):
    assert gate(bottleneck, "--out", "kept").returncode == 0
    done = bottleneck("compare", "base.json", "kept")
    assert done.returncode == 0, done.stdout + done.stderr


def test_ranks_are_gated_together_and_rank_0_reports(tmp_path):
    script = ROOT / "tests" / "e2e" / "kinds" / "ddp.py"

    def launched(out: str, *options: str) -> subprocess.CompletedProcess[str]:
        words = ["--times", "off", "--out", out, "--baseline", "ddp.json", *options, str(script)]
        return forked.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
             "-m", "torch_bottleneck", "gate", *words],
            cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip

    done = launched("one", "--update-baseline", *WINDOWS)
    assert done.returncode == 0, done.stderr
    baseline = read_baseline(tmp_path / "ddp.json")
    assert baseline.workload is not None and baseline.counters is not None
    assert baseline.workload.world_size == 2
    assert baseline.counters.value("collectives") == 1
    (ranks,) = read_side([tmp_path / "one"]).baseline.ranks
    assert (ranks.size, sorted(ranks.own_ms)) == (2, ["0", "1"])
    done = launched("two")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("OK\n") == 1


def test_a_script_that_fails_fails_with_its_own_code(project, bottleneck):
    edit(project, "losses = []\n", "losses = []\nraise RuntimeError('no data')\n")
    done = gate(bottleneck)
    assert done.returncode == 4
    assert "no data" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("train.py",), "nothing to compare"),
        (("--baseline", "none.json", "train.py"), "--update-baseline"),
        (("--baseline", "train.py", "train.py"), "not a complete baseline"),
        (("--base", "nowhere", "train.py"), "no folder"),
        (("--base", "empty", "train.py"), "no script empty/train.py"),
        (("--base", "empty", __file__), "the same file for both sides"),
        (("--baseline", "base.json", "--base", ".", "train.py"), "Give one"),
        (("--baseline", "base.json", "none.py"), "no script"),
        (("--baseline", "base.json", "--no-gate", "sync", "train.py"), "no counter"),
        (("--baseline", "base.json", "--report", "x.pdf", "train.py"), "which format"),
    ],
)
def test_bad_usage_is_code_2_one_line_and_no_traceback(tmp_path, bottleneck, words, says):
    (tmp_path / "train.py").write_text("print('never run')\n")
    (tmp_path / "base.json").write_text('{"format": 1, "runs": []}')
    (tmp_path / "empty").mkdir()
    done = bottleneck("gate", *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert "never run" not in done.stdout + done.stderr


def test_our_own_ci_passes_and_fails_when_a_regression_is_planted(tmp_path):
    """What `make gate` runs, on a copy of one example: as it is, and with a read of the loss in its loop."""
    source = (ROOT / "examples" / "launch_bound.py").read_text()
    (tmp_path / "examples").mkdir()
    shutil.copytree(ROOT / "reports" / "baselines", tmp_path / "reports" / "baselines")
    script = tmp_path / "examples" / "launch_bound.py"

    def ci() -> subprocess.CompletedProcess[str]:
        words = [sys.executable, ROOT / "tests" / "benchmarks" / "gate_examples.py", "--root", tmp_path]
        return forked.run(words, capture_output=True, text=True, timeout=600, check=False)

    script.write_text(source)
    done = ci()
    assert done.returncode == 0, done.stdout + done.stderr
    assert source.count("loss.backward()\n") == 1
    script.write_text(source.replace("loss.backward()\n", "loss.backward(); loss.item()\n"))
    done = ci()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "synchronisations 0 → 1" in done.stdout
    assert "loss.backward(); loss.item()" in done.stdout


def test_every_example_has_a_committed_baseline_that_is_small_and_current():
    names = {path.stem for path in (ROOT / "examples").glob("*.py")}
    baselines = {path.stem: path for path in (ROOT / "reports" / "baselines").glob("*.json")}
    assert set(baselines) == names, "run: make baselines"
    for path in baselines.values():
        assert path.stat().st_size < 60_000
        assert baseline_text(read_baseline(path)) == path.read_text()
