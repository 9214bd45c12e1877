"""`bottleneck compare` on recorded runs, on the command line: outcomes, formats, exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from recorded.cases import CASES
from recorded.diagnosed import diagnosed

BREAKS = CASES["example-graph-breaks-cpu"].folder
SYNCS = CASES["example-sync-bound"].folder
LAUNCHES = CASES["example-launch-bound"].folder


def fewer_syncs(folder: Path, tmp_path: Path) -> Path:
    """A diagnosis of the run that has three synchronisations less, as a run before a regression."""
    from torch_bottleneck.reporters.output import save

    save(diagnosed(folder), tmp_path)
    path = tmp_path / "diagnosis.json"
    raw = json.loads(path.read_text())
    raw["counters"]["values"]["syncs"]["value"] -= 3
    path.write_text(json.dumps(raw))
    return path


def test_a_run_against_itself_is_ok_and_its_time_undecided(bottleneck):
    done = bottleneck("compare", BREAKS, BREAKS, "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["outcome"] == "ok"
    assert found["time"]["decision"] == "undecided"
    assert found["time"]["needed"] > 1


def test_a_growth_is_a_regression_in_every_format(bottleneck, tmp_path):
    base = fewer_syncs(SYNCS, tmp_path)
    done = bottleneck(
        "compare", base, SYNCS, "--report", "a.md", "--report", "a.json", "--report", "a.xml",
        "--report", "gitlab:quality.json", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1
    assert "435 → 438" in done.stdout
    assert "435 → 438" in (tmp_path / "a.md").read_text()
    assert json.loads((tmp_path / "a.json").read_text())["outcome"] == "regression"
    assert "<failure" in (tmp_path / "a.xml").read_text()
    assert json.loads((tmp_path / "quality.json").read_text())[0]["check_name"] == "bottleneck syncs"


def test_pairs_and_sides_are_two_ways_to_give_several_runs(bottleneck):
    pairs = bottleneck("compare", BREAKS, BREAKS, BREAKS, BREAKS, BREAKS, BREAKS, "--format", "json")
    found = json.loads(pairs.stdout)
    assert (found["time"]["interleaved"], found["time"]["base_runs"]) == (True, 3)
    assert found["time"]["decision"] == "no change", "the very same times three times over"
    sides = bottleneck("compare", "--base", BREAKS, "--base", BREAKS, "--head", BREAKS, "--format", "json")
    found = json.loads(sides.stdout)
    assert (found["time"]["interleaved"], found["time"]["base_runs"], found["time"]["head_runs"]) == (
        False, 2, 1,
    )  # fmt: skip


def test_what_cannot_be_compared_is_refused_with_code_3_and_the_way_round(bottleneck):
    done = bottleneck("compare", BREAKS, SYNCS)
    assert done.returncode == 3
    assert done.stdout.startswith("INCOMPARABLE")
    assert "--allow device" in " ".join(done.stdout.split())
    forced = bottleneck("compare", BREAKS, SYNCS, "--allow", "device", "--allow", "torch")
    assert forced.returncode in (1, 3)
    assert "Compared despite" in forced.stdout


def test_undecided_can_be_taken_for_ok_or_for_failure(bottleneck, tmp_path):
    base = fewer_syncs(SYNCS, tmp_path)
    raw = json.loads(base.read_text())
    del raw["counters"]["values"]["kernels"]
    head = tmp_path / "head.json"
    head.write_text(json.dumps(raw))
    for wish, code in (("stop", 3), ("ok", 0), ("fail", 1)):
        assert bottleneck("compare", base, head, "--undecided", wish).returncode == code


def truncated(tmp_path: Path) -> Path:
    path = fewer_syncs(BREAKS, tmp_path)
    path.write_text(path.read_text()[:500])
    return path


def newer(tmp_path: Path) -> Path:
    path = fewer_syncs(BREAKS, tmp_path)
    path.write_text(
        path.read_text().replace('"schema":1', '"schema":99').replace('"schema": 1', '"schema": 99')
    )
    return path


def empty_folder(tmp_path: Path) -> Path:
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


def cut_run(tmp_path: Path) -> Path:
    shutil.copytree(BREAKS, tmp_path / "run")
    run = tmp_path / "run" / "run.json"
    run.write_text(run.read_text()[:200])
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (truncated, "not a diagnosis"),
        (newer, "schema 99"),
        (empty_folder, "is empty"),
        (cut_run, "run.json"),
        (lambda tmp_path: tmp_path / "nowhere", "does not exist"),
    ],
    ids=["truncated", "newer", "empty folder", "cut run.json", "missing"],
)
def test_bad_input_is_code_2_one_line_and_no_traceback(bottleneck, tmp_path, make, says):
    done = bottleneck("compare", BREAKS, make(tmp_path))
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    "words",
    [
        (),
        (BREAKS,),
        (BREAKS, BREAKS, BREAKS),
        ("--base", BREAKS),
        (BREAKS, BREAKS, "--base", BREAKS),
        (BREAKS, BREAKS, "--allow", "anything"),
        (BREAKS, BREAKS, "--config", "none.toml"),
    ],
)
def test_bad_usage_is_code_2(bottleneck, words):
    done = bottleneck("compare", *words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
