"""The command tries fixes on a script that nobody edits, and says what came of each."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import forked
import pytest
from verifying import SECONDS, verify

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


def write(folder: Path, source: str, name: str = "train.py") -> None:
    (folder / name).write_text(textwrap.dedent(source))


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "verify.json").read_text())
    return found


def left_behind(folder: Path, *, seconds: float = 120.0) -> list[str]:
    """Commands of processes that still run for a verification in this folder."""
    end = time.monotonic() + seconds
    while True:
        found = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if str(folder) in words and "harness" in words:
                    found.append(words)
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.2)


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
        "--pull-request",
        "request",
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
    assert (tmp_path / "request" / "changes.patch").read_text() == diff
    request = (tmp_path / "request" / "pull-request.md").read_text()
    assert "bottleneck verify --fix FX101:num_workers=2 train.py" in request
    assert f"# train.py: training step {row['measured']['ratio']:.2f}× as fast" in request
    assert "+    loader = DataLoader(Slow(), batch_size=4, num_workers=2, persistent_workers=True)" in diff
    patched = subprocess.run(
        ["git", "apply", "fix.diff"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert patched.returncode == 0, patched.stderr
    assert "num_workers=2" in (tmp_path / "train.py").read_text()


def test_a_change_of_one_s_own_runs_from_a_diff_and_the_source_stays(tmp_path: Path) -> None:
    write(tmp_path, PLAIN.replace("range(400)", "range(60)"))
    before = (tmp_path / "train.py").read_text()
    slower = before.replace("optimizer.step()", "optimizer.step(); import time; time.sleep(0.05)")
    lines = difflib.unified_diff(before.splitlines(True), slower.splitlines(True), "a/train.py", "b/train.py")
    (tmp_path / "slower.diff").write_text("".join(lines))
    done = verify(
        tmp_path, "--out=v", "--fix=slower.diff", "--steps=20", "--pairs=2", "--max-pairs=2", "train.py"
    )
    assert done.returncode == 0, done.stderr
    (row,) = result(tmp_path / "v")["outcomes"]
    assert row["evidence"] == "1 file of the change in use"
    assert row["measured"]["after_ms"] - row["measured"]["before_ms"] > 25
    assert (row["verdict"], row["parity"]["verdict"]) == ("slower", "same")
    assert (tmp_path / "train.py").read_text() == before


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


def test_a_script_that_is_over_too_soon_is_told_so_and_not_called_failing(tmp_path: Path) -> None:
    write(tmp_path, PLAIN.replace("range(400)", "range(4)"))
    got = verify(tmp_path, "--out", "v", "train.py", "--fix", "FX311")
    assert got.returncode == 4
    assert "train.py is too short to measure: it ended after 4 steps" in got.stderr
    assert "fails" not in got.stderr


def test_under_a_launcher_it_says_how_it_wants_to_be_started(tmp_path: Path) -> None:
    write(tmp_path, PLAIN)
    got = forked.run(
        [sys.executable, "-m", "torch_bottleneck", "verify", "train.py", "--fix", "FX311"],
        cwd=tmp_path,
        env={**os.environ, "TORCHELASTIC_RUN_ID": "1", "RANK": "0", "WORLD_SIZE": "2"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert got.returncode == 2
    assert '--launcher "torchrun' in got.stderr


def test_a_script_that_is_killed_has_failed_and_was_not_interrupted(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n")
    got = verify(tmp_path, "--all", "train.py")
    assert got.returncode == 4
    assert "could not be diagnosed: ended by SIGKILL" in got.stderr


def test_ctrl_c_leaves_what_was_measured_and_resume_goes_on(tmp_path: Path) -> None:
    write(tmp_path, PLAIN)
    process = forked.Popen(
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
    assert left_behind(tmp_path) == []
    got = verify(tmp_path, "v", "--resume")
    assert got.returncode == 0, got.stderr
    done = result(tmp_path / "v")
    assert done["complete"]
    assert done["outcomes"][0]["measured"]["pairs"] >= 3
    assert {run["session"] for run in done["runs"]} == {1, 2}


@pytest.mark.slow
@pytest.mark.timeout(5400)  # four commands one after the other, each with a limit of its own
def test_a_run_folder_brings_script_suggestions_and_predictions(tmp_path: Path) -> None:
    write(tmp_path, SLOW_INPUT)
    tool = [sys.executable, "-m", "torch_bottleneck"]
    done = forked.run(
        [*tool, "diagnose", "-q", "--out", "run", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (tmp_path / "run" / "diagnosis.json").is_file(), done.stderr
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    got = verify(elsewhere, "../run", "--fix", "FX101", "--max-pairs", "3", "--steps", "12", "--format", "md")
    assert got.returncode == 0, got.stderr
    state = result(tmp_path / "run" / "verify")
    (row,) = state["outcomes"]
    assert row["verdict"] == "faster", row
    assert row["predicted_ratio"] > 1.2
    assert row["error"] is not None
    assert abs(row["error"]) < 0.6
    assert list(row["options"]["FX101"]) == ["num_workers"]
    assert got.stdout.startswith("# train.py: fixes tried")
    for report in ("report.md", "report.html"):
        assert "Measured" in (tmp_path / "run" / report).read_text(), "beside what was predicted"
    shown = forked.run(
        [*tool, "report", "run"], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert "measured: " in shown.stdout
    again = verify(tmp_path, "run/verify", "--resume", "--format", "json")
    assert again.returncode == 0, again.stderr
    assert len(json.loads(again.stdout)["runs"]) == len(state["runs"]), "there was nothing left to do"


IMAGES = """
import torch

torch.set_num_threads(1)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3), torch.nn.Flatten(),
    torch.nn.Linear(16 * 12 * 12, 4),
)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
images, labels = torch.randn(8, 3, 16, 16), torch.randint(4, (8,))
for step in range(400):
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.timeout(5400)  # some thirty runs of the script
def test_fixes_of_every_kind_take_effect_without_a_gpu_and_keep_the_loss(tmp_path: Path) -> None:
    write(tmp_path, IMAGES)
    fixes = ("FX310", "FX506:threads=2", "FX414:backend=aot_eager", "FX313", "FX205", "FX505")
    chosen = [word for fix in fixes for word in ("--fix", fix)]
    words = ("--out", "v", "--pairs", "2", "--max-pairs", "2", "--steps", "8", *chosen, "train.py")
    got = verify(tmp_path, *words, seconds=3600)
    assert got.returncode == 0, got.stderr
    rows = {row["fixes"][0]: row for row in result(tmp_path / "v")["outcomes"]}
    assert rows["FX310"]["evidence"].startswith("channels_last on 1 module and")
    assert rows["FX506"]["evidence"] == "1 -> 2 intra-op threads"
    assert rows["FX414"]["evidence"] == "1 module compiled with backend='aot_eager'; 1 graph"
    assert rows["FX313"]["evidence"].startswith("set_to_none=True in")
    assert rows["FX505"]["evidence"].startswith("collector off")
    for name, row in rows.items():
        assert row["verdict"] in ("faster", "slower", "no gain", "undecided"), (name, row)
        assert row["parity"]["verdict"] in ("same", "close"), (name, row)
        assert row["measured"]["pairs"] == 2
        assert row["memory_bytes"] is not None
    assert not (tmp_path / "v" / ".inductor").exists()


@pytest.mark.slow
def test_all_diagnoses_first_and_keeps_to_its_budget(tmp_path: Path) -> None:
    write(tmp_path, PLAIN)
    got = verify(tmp_path, "--budget", "0.1", "--pairs", "2", "train.py", "--all")
    assert got.returncode == 0, got.stderr
    assert "diagnosing first" in got.stderr
    (file,) = (tmp_path / "reports").glob("*/verify/verify.json")
    state = json.loads(file.read_text())
    assert len(state["outcomes"]) > 4
    assert not state["complete"]
    # However slow the machine: a run is only begun while there is room for another one.
    assert sum(run["seconds"] for run in state["runs"][:-1]) < 0.1 * 60
    assert {"not run"} & {row["verdict"] for row in state["outcomes"]}
    assert any("time budget" in row["reason"] for row in state["outcomes"])


def test_losses_gone_bad_are_harm_whatever_the_speed(tmp_path: Path) -> None:
    # The fused step stands in for a fix that breaks training: the script makes it so.
    source = PLAIN.replace(
        "    optimizer.zero_grad()",
        "    if optimizer.defaults['fused'] and step > 12:\n"
        "        loss = loss * float('nan')\n"
        "    optimizer.zero_grad()",
    )
    write(tmp_path, source)
    got = verify(tmp_path, "--out", "v", "--steps", "20", "train.py", "--fix", "FX311")
    assert got.returncode == 0, got.stderr
    state = result(tmp_path / "v")
    (row,) = state["outcomes"]
    assert row["verdict"] == "harmful"
    assert "not finite from backward 14 on" in row["reason"]
    assert state["combination"] == []
    assert "Keep" not in got.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Nothing to verify"),
        (["train.py"], "No fix is given"),
        (["--fix", "FX999", "train.py"], "There is no fix 'FX999'"),
        (["train.py", "--fix", "FX107"], "cannot be applied without editing"),
        (["nowhere.py", "--fix", "FX311"], "There is no script nowhere.py"),
        (["."], "is not a run folder"),
        (["--resume", "train.py"], "No verification to resume"),
        (["--pairs", "1", "--fix", "FX311", "train.py"], "1"),
        (["--out", ".", "--fix", "FX311", "train.py"], "already exists"),
        (["--fix", "FX101:workers=2", "train.py"], "FX101 has no option 'workers'. Its options: num_workers"),
        (["--fix", "FX101:num_workers=many", "train.py"], "num_workers must be a whole number"),
        (["--fix", "FX311:fused=true", "train.py"], "It has no options"),
        (["--fix", "FX602", "--launcher", "nosuchprogram", "train.py"], "there is no program"),
        (["--fix", "FX602", "--launcher", "torchrun '", "train.py"], "cannot be read"),
    ],
    ids=" ".join,
)
def test_mistakes_get_one_clear_message(words: list[str], said: str, tmp_path: Path) -> None:
    write(tmp_path, PLAIN)
    got = verify(tmp_path, *words)
    assert got.returncode == 2, got.stderr
    assert said in got.stderr
    assert "Traceback" not in got.stderr
    assert got.stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


def test_options_behind_the_script_s_own_are_the_script_s(tmp_path: Path) -> None:
    write(tmp_path, f"import sys\nassert sys.argv[1:] == ['--all', '--fix', 'x'], sys.argv\n{PLAIN}")
    got = verify(
        tmp_path, "--out", "v", "--steps", "10", "train.py", "--fix", "FX101", "--", "--all", "--fix", "x"
    )
    assert got.returncode == 0, got.stderr
    assert result(tmp_path / "v")["args"] == ["--all", "--fix", "x"]


def started(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    """A verification whose second run begins."""
    process = subprocess.Popen(
        [sys.executable, "-m", "torch_bottleneck", "verify", "--out", "v", *words],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "one run takes" in line:
            break
    return process


def test_killed_without_warning_it_leaves_no_training_behind(tmp_path: Path) -> None:
    write(tmp_path, PLAIN.replace("range(400)", "range(4_000_000)"))
    process = started(tmp_path, "train.py", "--fix", "FX311")
    until = time.monotonic() + 120
    while left_behind(tmp_path, seconds=0) == []:
        assert time.monotonic() < until, "the next run never began"
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=600)
    assert left_behind(tmp_path) == []


@pytest.mark.slow
def test_a_run_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    source = PLAIN.replace(
        "for step in",
        "if optimizer.defaults['fused']:\n"
        "    import subprocess, signal, time\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    sleep = 'import time; time.sleep(600)'\n"
        "    child = subprocess.Popen([sys.executable, '-c', sleep, os.getcwd() + ' harness'])\n"
        "    time.sleep(600)\n"
        "for step in",
    )
    write(tmp_path, source)
    got = verify(tmp_path, "--out", "v", "--steps", "20", "--run-limit", "0.3", "train.py", "--fix", "FX311")
    assert got.returncode == 0, got.stderr
    (row,) = result(tmp_path / "v")["outcomes"]
    assert (row["verdict"], row["reason"]) == ("failed", "it did not end within 18 s")
    assert left_behind(tmp_path) == []
