"""The ready-made CI files parse, and every command, option and file format in them exists."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml

from torch_bottleneck.cli.group import cli
from torch_bottleneck.compare.settings import read_settings
from torch_bottleneck.model.gate import GateSettings, gate_schema_text
from torch_bottleneck.reporters.compare.output import wished_reports

CI = Path(__file__).resolve().parents[2] / "examples" / "ci"
GITHUB = CI / "github-actions.yml"
GITLAB = CI / "gitlab-ci.yml"
ACTION = CI / "github" / "action.yml"
RECORDED = Path(__file__).resolve().parents[1] / "recorded" / "cpu-loss-in-numpy"


def github_commands(document: dict[str, Any]) -> list[str]:
    steps = [step for job in document["jobs"].values() for step in job["steps"]]
    return [step["run"] for step in steps if "run" in step]


def gitlab_commands(document: dict[str, Any]) -> list[str]:
    return [line for job in document.values() if isinstance(job, dict) for line in job.get("script", [])]


def commands() -> list[str]:
    """Every command line of ours in the files, comments included."""
    found = github_commands(yaml.safe_load(GITHUB.read_text()))
    found += gitlab_commands(yaml.safe_load(GITLAB.read_text()))
    for file in (GITHUB, GITLAB):
        found += re.findall(r"^#\s+(bottleneck .*)$", file.read_text(), re.MULTILINE)
    return [line for line in found if line.startswith("bottleneck ")]


def action_steps() -> dict[str, dict[str, Any]]:
    """The steps of the action by their names."""
    return {step["name"]: step for step in yaml.safe_load(ACTION.read_text())["runs"]["steps"]}


def parsed(line: str) -> dict[str, Any]:
    """Parse a command as click does, without running it."""
    words = shlex.split(line.replace("$SCRIPT", "train.py --epochs 1"))
    context = click.Context(cli)
    command = cli.get_command(context, words[1])
    assert command is not None, words[1]
    return command.make_context(words[1], words[2:], parent=context).params


def test_there_are_commands_to_check():
    assert len(commands()) >= 6


@pytest.mark.parametrize("line", commands())
def test_every_command_is_one_of_ours_with_options_that_exist(line):
    parameters = parsed(line)
    assert parameters["script"] == ("train.py", "--epochs", "1")
    assert bool(parameters["baseline"]) != bool(parameters["base_folder"])
    wished_reports(parameters["reports"])


def test_what_is_uploaded_is_what_is_written():
    document = yaml.safe_load(GITLAB.read_text())
    reports = document["counters"]["artifacts"]["reports"]
    wishes = wished_reports(parsed(document["counters"]["script"][0])["reports"])
    written = {str(path): name for path, name in wishes.items()}
    assert written[reports["junit"]] == "junit"
    assert written[reports["codequality"]] == "gitlab"
    github = yaml.safe_load(GITHUB.read_text())
    assert set(github["jobs"]) == {"counters", "times", "drift"}
    assert github[True], "`on` is a truth value to YAML 1.1"


def test_jobs_on_shared_machines_gate_times_only_in_turns():
    for line in commands():
        parameters = parsed(line)
        if parameters["baseline"] and not parameters["history"]:
            assert parameters["times"] == "off"
        if parameters["base_folder"]:
            assert parameters["undecided"] == "ok", "a noisy runner must not be a red one"


def test_the_settings_shown_are_the_defaults_and_obey_the_schema():
    toml = __import__("tomllib" if sys.version_info >= (3, 11) else "tomli")
    file = CI / "pyproject-gate.toml"
    table = toml.loads(file.read_text())["tool"]["bottleneck"]["gate"]
    jsonschema.validate(table, json.loads(gate_schema_text()))
    shown, defaults = read_settings(file), GateSettings()
    for name in GateSettings.__struct_fields__:
        if name != "counters":
            assert getattr(shown, name) == getattr(defaults, name), name


GATE = """\
#!{python}
# Stands in for the run alone: `gate` takes the recorded run for it, and compares as `compare` does.
import pathlib, shutil, sys
from torch_bottleneck.cli.main import run
from torch_bottleneck.cli.group import cli
import click
words = sys.argv[1:]
if words[0] != "gate":
    sys.exit(run(words))
options = cli.get_command(click.Context(cli), "gate").make_context("gate", list(words[1:])).params
assert options["script"] == ("train.py", "--epochs", "1"), options["script"]
shutil.copytree({recorded!r}, options["out"] / "head-1")
if options["update_baseline"]:
    from torch_bottleneck.compare.baseline_file import write_baseline
    from torch_bottleneck.compare.sides import read_side
    write_baseline(read_side([options["out"] / "head-1"]).baseline, options["baseline"])
    sys.exit(0)
reports = [word for name in options["reports"] for word in ("--report", name)]
sys.exit(run(["compare", str(options["baseline"]), str(options["out"]), "--times", options["times"],
              "--format", options["format_"], *reports]))
"""


@pytest.fixture
def runner(tmp_path, monkeypatch):
    """A checkout on a runner, with a `bottleneck` that takes a recorded run for the script's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "bottleneck"
    command.write_text(GATE.format(python=sys.executable, recorded=str(RECORDED)))
    command.chmod(0o755)
    (folder / "python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    work = tmp_path / "work"
    work.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=work, check=True)
    for name in ("SUMMARY", "OUTPUT"):
        file = tmp_path / name.lower()
        file.touch()
        monkeypatch.setenv(f"GITHUB_{'STEP_' * (name == 'SUMMARY')}{name}", str(file))

    def step(name: str, **env: str) -> subprocess.CompletedProcess[str]:
        told = action_steps()[name]
        variables = {"SCRIPT": "train.py --epochs 1", "BASELINE": ".bottleneck/baseline.json"}
        variables |= {"OPTIONS": "--times off", "ACCEPTED": "false", "OMP_NUM_THREADS": "1", **env}
        unset = set(told.get("env", {})) - set(variables)
        assert not unset, unset
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", told["run"]],
            cwd=work,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    return step


def outputs(tmp_path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in (tmp_path / "output").read_text().splitlines())


def test_the_action_compares_shows_and_fails_as_the_gate_does(runner, tmp_path):
    work = tmp_path / "work"
    first = runner("Run and compare")
    assert first.returncode == 0, first.stderr
    assert outputs(tmp_path) == {"keep": "no", "outcome": "new"}
    shutil.rmtree(work / "bottleneck-report")

    again = runner("Run and compare")
    assert again.returncode == 0, again.stderr
    assert outputs(tmp_path)["outcome"] == "ok"
    assert runner("Write the diagnosis of the run").returncode == 0
    assert (work / "bottleneck-report" / "report.html").exists()
    summary = (tmp_path / "summary").read_text()
    assert "No performance regression" in summary
    diagnosis = json.loads((work / "bottleneck-report" / "diagnosis.json").read_text())
    title, verdict = diagnosis["title"], diagnosis["verdict"]
    assert f"# {title}: {verdict['class']}" in summary
    shutil.rmtree(work / "bottleneck-report")

    baseline = work / ".bottleneck" / "baseline.json"
    better = json.loads(baseline.read_text())
    better["counters"]["values"]["syncs"] = {"value": 0.0}
    baseline.write_text(json.dumps(better))
    worse = runner("Run and compare")
    assert worse.returncode == 1, worse.stderr
    assert outputs(tmp_path)["outcome"] == "regression"
    assert "::error" in worse.stdout
    sarif = json.loads((work / "bottleneck-report" / "performance.sarif").read_text())
    assert sarif["runs"][0]["results"]
    shutil.rmtree(work / "bottleneck-report")

    # What is merged is accepted, unless people keep the baseline in the repository.
    merged = runner("Run and compare", ACCEPTED="true")
    assert merged.returncode == 0, merged.stderr
    assert outputs(tmp_path)["keep"] == "yes"
    assert json.loads(baseline.read_text())["counters"]["values"]["syncs"]["value"] > 0
    shutil.rmtree(work / "bottleneck-report")
    subprocess.run(["git", "add", "-f", str(baseline)], cwd=work, check=True)
    assert runner("Run and compare", ACCEPTED="true").returncode == 0
    assert outputs(tmp_path) == {"keep": "no", "outcome": "ok"}


def test_the_action_uploads_what_its_steps_write():
    steps = action_steps()
    kept = steps["Keep the reports"]["with"]["path"]
    assert "bottleneck-report/report.html" in kept
    assert steps["Show the lines to blame"]["with"]["sarif_file"].endswith("performance.sarif")
    for name in ("Write the diagnosis of the run", "Keep the reports"):
        assert steps[name]["if"] == "always()"
    declared = yaml.safe_load(ACTION.read_text())
    used = set(re.findall(r"inputs\.([a-z-]+)", ACTION.read_text()))
    assert used == set(declared["inputs"])
    ids = {step["id"] for step in steps.values() if "id" in step}
    assert set(re.findall(r"steps\.([a-z]+)\.", ACTION.read_text())) <= ids
    for step in steps.values():
        assert ("run" in step) == ("shell" in step), "each run step of an action names its shell"
