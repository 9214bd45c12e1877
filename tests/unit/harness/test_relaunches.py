"""Which commands of the script are the script itself once more, for another rank."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType

import pytest

from torch_bottleneck.harness.process import relaunches
from torch_bottleneck.runs.launch import ENTRY
from torch_bottleneck.runs.plan import Plan, decode_plan


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    (tmp_path / "train.py").write_text("")
    return Plan(script=str(tmp_path / "train.py"), out=str(tmp_path / "run"), args=("--lr", "1"))


def test_the_script_itself_for_another_rank_runs_under_us(plan: Plan) -> None:
    assert plan.script is not None
    got = relaunches.observed(plan, [sys.executable, plan.script, "--lr", "2"], {"LOCAL_RANK": "1"})
    assert got is not None
    assert (got[0], got[-2:]) == (sys.executable, ["--lr", "2"])
    text = next(word for word in got if word.startswith("{"))
    rank = decode_plan(text, args=tuple(got[got.index(text) + 1 :]))
    assert (rank.script, rank.args, rank.child, rank.out) == (plan.script, ("--lr", "2"), True, plan.out)


def test_a_module_is_known_by_its_name(plan: Plan) -> None:
    module = Plan(module="pkg.train", out=plan.out)
    env = {"LOCAL_RANK": "1"}
    got = relaunches.observed(module, [sys.executable, "-m", "pkg.train", "-m", "x"], env)
    assert got is not None
    assert got[-2:] == ["-m", "x"]
    assert relaunches.observed(module, [sys.executable, "-m", "pkg.other"], env) is None


@pytest.mark.parametrize(
    ("command", "env"),
    [
        ("SCRIPT", None),
        ("SCRIPT", {"LOCAL_RANK": "0"}),
        ("SCRIPT", {}),
        ([sys.executable, "-c", "pass"], {"LOCAL_RANK": "1"}),
        ([sys.executable, "evaluate.py"], {"LOCAL_RANK": "1"}),
        (["/usr/bin/env", "SCRIPT"], {"LOCAL_RANK": "1"}),
        ([sys.executable], {"LOCAL_RANK": "1"}),
        ("nvidia-smi -L", {"LOCAL_RANK": "1"}),
        ([sys.executable, 3], {"LOCAL_RANK": "1"}),
    ],
)
def test_any_other_command_passes(plan: Plan, command: object, env: dict[str, str] | None) -> None:
    words = [sys.executable, plan.script] if command == "SCRIPT" else command
    assert relaunches.observed(plan, words, env) is None


def plan_in(command: list[str] | None) -> Plan:
    assert command is not None
    text = next(word for word in command if word.startswith("{"))
    return decode_plan(text, args=tuple(command[command.index(text) + 1 :]))


@pytest.mark.parametrize("flags", [[], ["-u"], ["-W", "ignore", "-Xdev"]])
def test_what_a_launcher_starts_runs_under_us(flags: list[str]) -> None:
    launcher = Plan(module="torch.distributed.run", args=("--nproc-per-node", "2", "t.py"), out="o", steps=3)
    command = [sys.executable, *flags, "t.py", "--lr", "2"]
    got = relaunches.observed(launcher, command, None, launcher=True)
    rank = plan_in(got)
    assert got is not None
    assert got[: 1 + len(flags)] == [sys.executable, *flags]
    assert (rank.script, rank.module, rank.args) == ("t.py", None, ("--lr", "2"))
    assert (rank.child, rank.launched, rank.out, rank.steps) == (True, True, "o", 3)
    rank = plan_in(
        relaunches.observed(launcher, [sys.executable, *flags, "-m", "a.b", "x"], None, launcher=True)
    )
    assert (rank.script, rank.module, rank.args) == (None, "a.b", ("x",))


@pytest.mark.parametrize(
    "words",
    [
        [sys.executable, "-c", "pass"],
        [sys.executable, "-u", "-c", "pass"],
        [sys.executable, "-"],
        [sys.executable, "-m"],
        [sys.executable, "-u"],
        ["/usr/bin/true", "t.py"],
        [sys.executable, "-u", "-m", "torch_bottleneck", "diagnose", "t.py"],
        [sys.executable, "-u", "-m", "torch_bottleneck.harness", "{}"],
        [sys.executable, str(ENTRY), "{}"],
    ],
)
def test_a_launcher_may_start_other_things_and_us(words: list[str]) -> None:
    assert relaunches.observed(Plan(module="torch.distributed.run"), words, None, launcher=True) is None


def test_a_launcher_is_known_by_the_code_that_calls() -> None:
    def frame_of(**names: object) -> FrameType:
        scope: dict[str, object] = {**names}
        exec("import sys\ndef inner():\n    return sys._getframe()\ngot = inner()", scope)
        return scope["got"]  # type: ignore[return-value]

    elastic = frame_of(__name__="torch.distributed.elastic.multiprocessing.subprocess_handler")
    assert relaunches.started_by_launcher(elastic)
    assert relaunches.started_by_launcher(
        frame_of(__name__="__main__", __spec__=ModuleSpec("accelerate.commands.launch", None))
    )
    assert not relaunches.started_by_launcher(frame_of(__name__="torch.distributed.runner"))
    assert not relaunches.started_by_launcher(frame_of(__name__="__main__", __spec__=None))


def test_a_process_is_started_as_before_and_popen_is_put_back(plan: Plan) -> None:
    original = subprocess.Popen.__init__
    relaunches.install(plan)
    try:
        env = {**os.environ, "LOCAL_RANK": "1"}
        said = subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, env=env, check=True)
    finally:
        relaunches.uninstall()
    assert said.stdout == b"1\n"
    assert subprocess.Popen.__init__ is original


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("torchrun --nproc-per-node 2 train.py", "torchrun"),
        (["/opt/bin/mpirun", "-n", "2", "python", "t.py"], "mpirun"),
        ([Path("/r/core/src/ray/raylet/raylet"), "--port=1"], "raylet"),
        (["/other/bin/python3.12", "-u", "jobs/train.py"], "train.py"),
        ([sys.executable, "-c", "pass"], None),
        ([sys.executable, "-m", "pip", "list"], None),
        (
            [sys.executable, "/v/lib/python3.12/site-packages/torch/_inductor/compile_worker/__main__.py"],
            None,
        ),
        (["git", "rev-parse", "HEAD"], None),
        ("", None),
        ([], None),
    ],
)
def test_programs_behind_which_training_may_go_on_unseen(command: object, name: str | None) -> None:
    assert relaunches._may_train(command) == name
