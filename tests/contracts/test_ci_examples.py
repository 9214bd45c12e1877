"""The ready-made CI files parse, and every command, option and file format in them exists."""

from __future__ import annotations

import json
import re
import shlex
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
