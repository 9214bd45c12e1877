"""Fixes tried in the running script: measured, put back, and never the script's problem."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path
from typing import Any

import pytest
from e2e.running import Result, diagnose, plain

TRAIN = """
import os, signal, sys
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
layers = [torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.Linear(512, 1)]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
print("starts")
for i in range(int(os.environ.get("STEPS", "100000"))):
    optimizer.zero_grad(set_to_none=False)
    loss = model(torch.randn(16, 64)).square().mean()
    loss.backward()
    optimizer.step()
    BODY
print("ends", i)
"""


SHORT = ("--quiet", "--warmup", "4", "--steps", "3", "--max-seconds", "0.3")
"""For runs in which only what comes after the capture matters."""


def script(folder: Path, body: str = "pass") -> None:
    (folder / "train.py").write_text(TRAIN.replace("BODY", textwrap.indent(body, " " * 4).strip()))


def trials(got: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((got.folder / "trials.json").read_text())
    return found


def diagnosis(got: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((got.folder / "diagnosis.json").read_text())
    return found


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("tried")
    script(folder)
    return diagnose(folder, *SHORT, "--trial-seconds", "10", "train.py")


def test_suggestions_are_measured_and_shown(tried: Result) -> None:
    assert tried.code == 0, tried.err
    rows = {row["fix"]: row for row in trials(tried)["rows"]}
    assert rows["FX311"]["state"] == "measured", rows
    assert len(rows["FX311"]["with_ms"]) == len(rows["FX311"]["without_ms"]) >= 3
    suggested = {s["fix"]: s.get("measured") for s in diagnosis(tried)["suggestions"]}
    assert suggested["FX311"]["verdict"] in ("faster", "slower", "no-difference", "undecided")
    assert suggested["FX311"]["loss"] == "same", "the fused optimizer computes the same"
    assert "in this run" in tried.out
    assert "FX311" in (tried.folder / "report.md").read_text()


def test_losses_repeat_from_the_state_that_was_kept(tried: Result) -> None:
    found = trials(tried)
    assert found["losses"] == found["losses_again"] != []
    assert not found["no_losses"]


def test_the_script_printed_what_it_prints_and_was_stopped(tried: Result) -> None:
    assert tried.out.startswith("starts\n")
    assert "ends" not in tried.out
    run = json.loads((tried.folder / "run.json").read_text())
    assert run["outcome"]["how"] == "stopped"
    assert run["artefacts"]["trials"]["status"] == "ok"


def test_the_capture_says_nothing_of_what_was_tried(tried: Result) -> None:
    """Compile facts and loaders are those of the script, not of the fixes."""
    assert diagnosis(tried)["compile"] in (None, {}) or not diagnosis(tried)["compile"].get("graphs")
    assert [window["name"] for window in diagnosis(tried)["windows"]][-1] != "trials"


def test_none_are_made_when_none_are_wanted(tmp_path: Path) -> None:
    script(tmp_path)
    got = diagnose(tmp_path, *SHORT, "--trial-seconds", "0", "train.py")
    assert got.code == 0
    assert not (got.folder / "trials.json").exists()


def test_with_run_to_end_the_script_is_left_alone_unless_it_is_asked_for(tmp_path: Path) -> None:
    script(tmp_path)
    words = ("--run-to-end", "train.py")
    got = diagnose(tmp_path, *SHORT, *words, STEPS="400", BOTTLENECK_TRIAL_SECONDS="")
    assert got.code == 0 and "ends 399" in got.out
    assert not (got.folder / "trials.json").exists()


def test_a_script_that_is_over_first_gets_its_report(tmp_path: Path) -> None:
    script(tmp_path)
    got = diagnose(tmp_path, *SHORT, "--trial-seconds", "20", "train.py", STEPS="150")
    assert got.code == 0 and "ends 149" in got.out
    states = {row["state"] for row in trials(got)["rows"]} if (got.folder / "trials.json").exists() else set()
    assert states <= {"not tried"}


WHOLE = """
import hashlib, os, pickle, random, sys
import numpy, torch
random.seed(0), numpy.random.seed(0), torch.manual_seed(0)
torch.set_num_threads(int(os.environ.get("THREADS", "1")))

class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.rows, self.asked = torch.randn(256, 32), []
        self.file = open("bytes.bin", "rb")
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, i):
        self.asked.append(i)
        byte = self.file.read(1) or (self.file.seek(0), self.file.read(1))[1]
        return self.rows[i] + random.random() + numpy.random.rand() + byte[0] / 1000

rows = Rows()
workers = int(os.environ.get("WORKERS", "0"))
loader = torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True, num_workers=workers,
    multiprocessing_context="fork" if workers else None)  # the dataset holds an open file
layers = [torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(64, 1)]
model = torch.nn.Sequential(*layers)
shared = torch.zeros(1).share_memory_()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 50, gamma=0.9)
log = open("log.txt", "w")
count, losses = 0, []
for epoch in range(int(os.environ["EPOCHS"])):
    for batch in loader:
        count += 1
        optimizer.zero_grad(set_to_none=False)
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        shared += 1
        losses.append(loss.item())
        print(count, losses[-1])
        log.write(f"{count} {random.random()}\\n")
        if count % 100 == 0:
            torch.save(model.state_dict(), "last.pt")
        BODY
state = [count, losses, rows.asked, shared.item(), scheduler.get_last_lr()]
state += [random.random(), numpy.random.rand(), torch.rand(1).item()]
state += [p.tolist() for p in model.parameters()]
state += [[v.tolist() for v in s.values()] for s in optimizer.state.values()]
print(hashlib.sha256(pickle.dumps(state)).hexdigest())
sys.exit(5)
"""
"""All that a trial may disturb is in what it prints and writes."""


def whole(folder: Path, body: str = "pass", **extra: str) -> tuple[Result, Result]:
    """The script as it is, and run to its end with trials; each in a folder of its own."""
    results = []
    for name, run in (("plain", plain), ("tried", diagnose)):
        place = folder / name
        place.mkdir()
        (place / "bytes.bin").write_bytes(bytes(range(256)) * 5)
        (place / "train.py").write_text(WHOLE.replace("BODY", body))
        words = () if run is plain else (*SHORT, "--run-to-end", "--trial-seconds", "4")
        results.append(run(place, *words, "train.py", **extra))
    return results[0], results[1]


def assert_alike(folder: Path, one: Result, other: Result) -> None:
    assert one.code == other.code == 5, other.err
    assert other.out.startswith(one.out), "the report comes after what the script prints"
    names = {path.name for path in (folder / "plain").iterdir()}
    assert {path.name for path in (folder / "tried").iterdir()} == names | {"run"}
    for name in names:
        assert (folder / "plain" / name).read_bytes() == (folder / "tried" / name).read_bytes(), name


@pytest.mark.parametrize(("threads", "workers"), [("2", "0"), ("1", "1")])
def test_the_rest_of_a_run_to_the_end_is_as_without_trials(
    tmp_path: Path, threads: str, workers: str
) -> None:
    """Order of the batches, dropout, momentum, schedule, counters, shared memory and open files included."""
    # Long enough that it does not end before the first trial does.
    as_it_is, got = whole(tmp_path, EPOCHS="80", THREADS=threads, WORKERS=workers)
    found = trials(got)
    assert "measured" in {row["state"] for row in found["rows"]}, found["rows"]
    assert found["losses"] == found["losses_again"] != []
    assert_alike(tmp_path, as_it_is, got)
    run = json.loads((got.folder / "run.json").read_text())
    assert run["outcome"]["how"] == "exited" and not run["outcome"]["diverted_saves"]
    assert run["artefacts"]["trials"]["status"] == "ok"


def test_what_a_copy_must_not_write_rules_trials_out(tmp_path: Path) -> None:
    as_it_is, got = whole(tmp_path, "open('more.csv', 'a').write(f'{count}\\n')", EPOCHS="20")
    reasons = {row["reason"] for row in trials(got)["rows"]}
    assert len(reasons) == 1 and "more.csv at" in reasons.pop()
    assert_alike(tmp_path, as_it_is, got)


DEATHS = {
    "raises": 'raise RuntimeError("out of luck")',
    "exits": "sys.exit(7)",
    "leaves": "os._exit(9)",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "hangs": "import time; time.sleep(1000)",
}


@pytest.mark.parametrize("name", list(DEATHS))
def test_whatever_ends_the_script_during_trials_costs_the_report_nothing(tmp_path: Path, name: str) -> None:
    """The death comes with the first trial's steps at the latest."""
    script(tmp_path, f"if any(p.endswith('trials.json') for p in glob()):\n    {DEATHS[name]}")
    source = (tmp_path / "train.py").read_text()
    helper = (
        "import glob as _glob\n"
        "def glob():\n"
        f"    return _glob.glob({os.fspath(tmp_path)!r} + '/.run.partial/.main.partial/*')\n"
    )
    (tmp_path / "train.py").write_text(helper + source)
    # One that hangs is ended a while after its time.
    got = diagnose(tmp_path, *SHORT, "--trial-seconds", "3" if name == "hangs" else "20", "train.py")
    assert got.code == 0, got.err
    assert diagnosis(got)["verdict"]["class"]
    run = json.loads((got.folder / "run.json").read_text())
    assert run["outcome"]["how"] == "stopped"
    states = {row["state"] for row in trials(got)["rows"]}
    assert states <= {"not tried", "under way", "failed", "measured"}
    assert name != "exits" or "failed" not in states, "that a script is over is no fault of a fix"
    assert name != "hangs" or "it did not end in time" in json.dumps(trials(got)["rows"])
