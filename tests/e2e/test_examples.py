"""The shipped examples run, slow and fixed, and the tool names the class that each was written for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked
import pytest
from session import folder, once

Bottleneck = Callable[..., "subprocess.CompletedProcess[str]"]
Diagnose = Callable[..., dict[str, Any]]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))

# Where the class exists without a GPU. The others only show there that the tool does not claim it.
ON_CPU = {
    "allocator_thrashing": "allocator-thrashing",
    "compute_bound": "compute-bound",
    "graph_breaks": "graph-break-bound",
    "input_bound": "input-bound",
    "launch_bound": "launch-bound",
}
GPU_ONLY = {
    "empty_cache": "allocator-thrashing",
    "sync_bound": "sync-bound",
    "transfer_bound": "transfer-bound",
}


def test_every_example_has_its_class_here() -> None:
    assert {path.stem for path in SCRIPTS} == set(ON_CPU) | set(GPU_ONLY)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_header_states_the_commands_and_the_class(script: Path) -> None:
    text = script.read_text()
    stated = re.search(rf"bottleneck diagnose examples/{script.name} *# verdict: ([a-z-]+)", text)
    assert stated is not None
    assert stated.group(1) == {**ON_CPU, **GPU_ONLY}[script.stem]
    assert f"python examples/{script.name} --fixed" in text
    compile(text, script.name, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("fixed", [False, True], ids=["slow", "fixed"])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_runs_and_prints_its_step_time(script: Path, fixed: bool) -> None:
    ended = forked.run(
        [sys.executable, str(script), "--steps", "4", *(["--fixed"] if fixed else [])],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    line = re.search(r"^step_ms=([\d.]+) device=\w+ fixed=(\w+) loss=(\S+)$", ended.stdout, re.MULTILINE)
    assert line is not None, ended.stdout
    assert float(line.group(1)) > 0
    assert line.group(2) == str(fixed)
    assert line.group(3) not in ("nan", "inf")


@pytest.fixture
def diagnosis_of(bottleneck: Bottleneck, request: pytest.FixtureRequest) -> Diagnose:
    """Diagnose an example, once in a session; a test that is tried again has a run of its own."""
    attempt = getattr(request.node, "execution_count", 1)

    def diagnose(name: str, *options: str) -> dict[str, Any]:
        key = "-".join(("example", name, *options, str(attempt)))

        def make() -> bytes:
            words = ("-q", "--max-seconds", "20", "--out", folder() / key, EXAMPLES / f"{name}.py")
            ended = bottleneck("diagnose", *words, *options)
            assert ended.returncode == 0, ended.stderr
            return (folder() / key / "diagnosis.json").read_bytes()

        found: dict[str, Any] = json.loads(once(f"{key}.json", make))
        return found

    return diagnose


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ON_CPU))
def test_the_class_of_a_slow_example_leads_the_verdict(diagnosis_of: Diagnose, name: str) -> None:
    diagnosis = diagnosis_of(name)
    # On a busy machine two classes may lie within the noise: then both are headlined.
    assert ON_CPU[name] in (diagnosis["verdict"]["class"], *diagnosis["verdict"]["also"])
    assert diagnosis["device"]["kind"] in ("cpu", "cuda")


@pytest.mark.slow
def test_the_fixed_twin_of_the_input_example_waits_less(diagnosis_of: Diagnose) -> None:
    slow, fixed = diagnosis_of("input_bound"), diagnosis_of("input_bound", "--fixed")
    assert fixed["phases_ms"]["data"] < slow["phases_ms"]["data"]
