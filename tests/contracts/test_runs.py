"""The parent process: it starts the harness, needs no torch, and one function runs a script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from torch_bottleneck.runs.launch import command_of
from torch_bottleneck.runs.plan import Plan


@pytest.mark.parametrize("plan", [Plan(script="t.py"), Plan(module="t")], ids=["script", "module"])
def test_what_is_started_is_there(plan: Plan, tmp_path: Path) -> None:
    """Both ways into the harness are named by text, which moves past them unnoticed."""
    (tmp_path / "t.py").write_text("print('it ran')\n")
    plan = Plan(script=plan.script, module=plan.module, out=str(tmp_path / "run"), quiet=True)
    done = subprocess.run(
        [sys.executable, *command_of(plan)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "it ran\n", done.stderr
