"""However a script ends, what was measured is kept, and the command says plainly what happened."""

from __future__ import annotations

import json
import shlex
import subprocess
import textwrap
from pathlib import Path

import pytest
from e2e.running import PYTHON, Result, command_line, diagnose, plain, read_run

TRAIN = """
import os, signal, sys, time
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters())
for i in range(int(os.environ.get("STEPS", "30"))):
    loss = model(torch.randn(16, 32)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def write(path: Path, source: str, *, after_training: bool = True) -> None:
    path.write_text((TRAIN if after_training else "") + textwrap.dedent(source))


def verdict(got: Result) -> str:
    diagnosis = json.loads((got.folder / "diagnosis.json").read_text())
    return str(diagnosis["verdict"]["class"])


ENDS = {
    "raises": ("raise ValueError('too bad')", "ValueError: too bad", 1),
    "exits": ("sys.exit(3)", "exit code 3", 3),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL", 137),
    "crashes": ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV", 139),
    "leaves": ("os._exit(9)", "exit code 9", 9),
    "memory": ("raise MemoryError", "ran out of memory", 1),
    "torch memory": ("torch.empty(1 << 60)", "ran out of memory", 1),
}


@pytest.mark.parametrize("name", list(ENDS))
def test_a_script_that_fails_after_training_gets_its_report(tmp_path: Path, name: str) -> None:
    source, said, code = ENDS[name]
    write(tmp_path / "train.py", source)
    got = diagnose(tmp_path, "--run-to-end", "--steps", "2", "train.py")
    assert got.code == code
    assert said in got.err
    assert "What each cause costs" in got.out or "step" in got.out
    assert (got.folder / "report.md").is_file()
    run = read_run(got.folder)
    assert run.outcome.how == {"raises": "raised", "killed": "killed", "crashes": "killed"}.get(
        name, "raised" if "memory" in name else "exited"
    )
    assert run.outcome.out_of_memory == ("memory" in name)
    # A process that is killed keeps the windows that were whole by then.
    whole = {window.name: len(window.steps.index) for window in run.windows if window.status == "ok"}
    assert whole["warm-up"] >= 2
    assert whole["baseline"] >= 5
    assert whole["trace"] == 2


@pytest.mark.parametrize(
    ("source", "said", "code"),
    [
        ("import a_module_that_is_not_there", "own interpreter", 4),
        ("import sys; sys.exit(3)", "exit code 3", 3),
        ("import sys; sys.exit('no data')", "no data", 1),
        ("import torch\n1 / 0", "ZeroDivisionError", 4),
        ("def broken(:", "SyntaxError", 4),
    ],
)
def test_a_script_that_fails_before_training_shows_python_s_error_and_ours(
    tmp_path: Path, source: str, said: str, code: int
) -> None:
    write(tmp_path / "train.py", source, after_training=False)
    expected = plain(tmp_path, "train.py")
    got = diagnose(tmp_path, "train.py")
    assert got.code == code
    assert got.out == ""
    assert expected.err in got.err
    assert said in got.err
    assert "nothing was measured" in got.err
    assert "torch_bottleneck" not in got.err


def test_a_script_that_is_terminated_before_its_first_step_is_told_with_the_line_it_was_at(
    tmp_path: Path,
) -> None:
    source = (
        "import os, signal, time, torch\n"
        "def prepare():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(60)\n"
        "prepare()\n"
    )
    write(tmp_path / "train.py", source, after_training=False)
    got = diagnose(tmp_path, "train.py")
    assert got.code == 4
    assert "the script was terminated (SIGTERM), at train.py:" in got.err
    assert "(prepare).\n" in got.err and "nothing was measured" in got.err


@pytest.mark.parametrize(
    "source", ["print('no torch here')", "import torch\ntorch.randn(3).sum()", "import sys; sys.exit(0)"]
)
def test_a_script_that_trains_nothing_is_undetermined_and_told_why(tmp_path: Path, source: str) -> None:
    write(tmp_path / "train.py", source, after_training=False)
    got = diagnose(tmp_path, "train.py")
    assert got.code == 3, got.err
    assert verdict(got) == "undetermined"
    assert read_run(got.folder).outcome.how == "finished"
    assert "Traceback" not in got.err


@pytest.mark.parametrize("steps", ["1", "4", "12"])
def test_a_script_that_ends_early_is_analysed_as_far_as_it_goes(tmp_path: Path, steps: str) -> None:
    write(tmp_path / "train.py", "print('done')")
    got = diagnose(tmp_path, "train.py", STEPS=steps)
    assert got.code in (0, 3), got.err
    assert got.out.startswith("done\n")
    assert "Traceback" not in got.err
    run = read_run(got.folder)
    assert run.outcome.how == "finished"
    assert verdict(got)
    # What the rest of the job is told from.
    warm_up = run.window("warm-up")
    assert run.began_ns is not None and run.torch_import_ms is not None and warm_up is not None
    assert run.began_ns + 1e6 * (run.torch_import_ms + run.install_ms) < warm_up.steps.start_ns[0]


def test_hooks_that_cannot_be_put_in_leave_the_script_alone(tmp_path: Path) -> None:
    write(tmp_path / "train.py", "print('done')")
    (tmp_path / "sitecustomize.py").write_text(
        "import torch_bottleneck.harness.process.stopping as s\n"
        "s.Stopper.at_first_safe_point = lambda self, call: None\n"
        "import sys; sys.modules['torch_bottleneck.harness.events.hooks'] = None\n"
    )
    got = diagnose(tmp_path, "train.py", PYTHONPATH=str(tmp_path))
    assert got.out.startswith("done\n")
    assert "could not be put in" in got.err
    assert got.code == 3
    assert read_run(got.folder).artefacts["harness"].status == "failed"
    assert "failed to watch the script (ModuleNotFoundError" in " ".join(got.out.split())


STREAMS = {
    "stdout full": (">/dev/full", 2),
    "stderr full": ("2>/dev/full", 3),
    "all closed": ("<&- >&- 2>&-", 3),
}
"""Exit code of a script in which no step was seen."""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("name", list(STREAMS))
def test_streams_that_cannot_be_written_cost_nothing_that_was_captured(tmp_path: Path, name: str) -> None:
    streams, code = STREAMS[name]
    (tmp_path / "train.py").write_text(
        "import os, sys\n"
        "open('said', 'w').write(repr([sys.stdin is None, sys.stdout is None, sys.stderr is None]))\n"
    )
    words = {"plain": [PYTHON, "train.py"], "ours": command_line("--out", "run", "train.py")}
    said, codes = {}, {}
    for way, command in words.items():
        done = subprocess.run(
            ["bash", "-c", f"{shlex.join(command)} {streams}"], cwd=tmp_path, check=False, timeout=600
        )
        codes[way], said[way] = done.returncode, (tmp_path / "said").read_text()
    assert said["ours"] == said["plain"]
    assert codes == {"plain": 0, "ours": code}
    kept = {path.name for path in (tmp_path / "run").iterdir()}
    assert kept >= {"run.json", "diagnosis.json", "report.md", "report.html", "tensorboard"}


WRONG = {
    "no script": ((), "No script given"),
    "missing": (("nothing.py",), "There is no script nothing.py"),
    "python": (("python", "train.py"), "Leave out `python`"),
    "torchrun": (("torchrun", "train.py"), "launcher first"),
    "folder": (("data",), "is a folder"),
    "binary": (("model.pt",), "binary"),
    "shell": (("run.sh",), "not Python"),
    "steps": (("--steps", "0", "train.py"), "--steps"),
    "option": (("--no-such-option", "train.py"), "--no-such-option"),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_a_wrong_command_line_is_one_clear_error(tmp_path: Path, name: str) -> None:
    words, said = WRONG[name]
    (tmp_path / "data").mkdir()
    (tmp_path / "model.pt").write_bytes(b"PK\x03\x04\0\0")
    (tmp_path / "run.sh").write_text("for i in 1 2; do echo $i; done")
    got = diagnose(tmp_path, *words)
    assert got.code == 2
    assert said in got.err
    assert "Traceback" not in got.err
    assert not (tmp_path / "run").exists()


def test_an_out_folder_in_use_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/thesis.tex").write_text("precious")
    (tmp_path / "train.py").write_text("print('ran')")
    got = diagnose(tmp_path, "train.py")
    assert (got.code, got.out) == (2, "")
    assert "already exists" in got.err
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.tex"]


def test_an_out_folder_that_cannot_be_written_is_said_before_the_script_runs(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    (tmp_path / "train.py").write_text("print('ran')")
    got = diagnose(tmp_path, "train.py")
    assert (got.code, got.out) == (2, "")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("train.py", "--steps", "5", "-m", "x", "--out", "y", "--help"), "--steps 5 -m x --out y --help"),
        (("train.py", "--", "--lr", "1"), "--lr 1"),
        (("train.py", "a", "--", "b"), "a -- b"),
        (("-m", "train", "--steps", "5", "-q"), "--steps 5 -q"),
        (("-mtrain", "--verbose"), "--verbose"),
        (("--", "train.py", "-q"), "-q"),
    ],
)
def test_what_stands_behind_the_script_is_the_script_s(
    tmp_path: Path, words: tuple[str, ...], expected: str
) -> None:
    (tmp_path / "train.py").write_text("import sys; print(' '.join(sys.argv[1:])); sys.exit(1)")
    got = diagnose(tmp_path, *words)
    assert got.out == f"{expected}\n"


def test_a_profiler_of_the_scripts_own_is_waited_for_no_longer_than_the_time_limit(tmp_path: Path) -> None:
    """Fewer steps than it may be on for, but longer than --max-seconds."""
    (tmp_path / "train.py").write_text(
        TRAIN.replace(
            "for i in range", "own = torch.autograd.profiler.profile()\nown.__enter__()\nfor i in range"
        )
        + "    time.sleep(0.02)\n"
    )
    got = diagnose(tmp_path, "--max-seconds", "0.5", "train.py", STEPS="150")
    assert got.code == 3, "a step with that profiler cannot be traced"
    run = read_run(got.folder)
    assert run.outcome.how == "stopped", "the capture ends before the script does"
    assert run.profiles_itself
    assert "baseline" in {window.name for window in run.windows}
