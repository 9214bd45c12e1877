"""Attaching to a process that runs already.

What `sys.remote_exec` does from Python 3.14 on, an older one does here when a signal comes: it runs a file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import forked
import pytest

from torch_bottleneck.cli.main import run
from torch_bottleneck.errors import InputError, UsageError
from torch_bottleneck.harness.process import attached
from torch_bottleneck.model.documents import load_watch, read_run
from torch_bottleneck.runs.plan import Plan
from torch_bottleneck.watching import attach as module
from torch_bottleneck.watching.attach import plan_of_process

TRAIN = """
import hashlib, signal, sys, time
import torch

def remote(number, frame):
    with open("remote.txt") as file:
        source = open(file.read()).read()
    exec(compile(source, "remote", "exec"), {})

torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())
paths = list(sys.path)
signal.signal(signal.SIGUSR2, remote)
for step in range(int(sys.argv[1])):
    if step == 50:
        open("ready", "w").close()
        while "wait" in sys.argv and not any("torch_bottleneck" in name for name in sys.modules):
            time.sleep(0.01)
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    time.sleep(0.002)
    optimizer.step()
print(float(loss).hex(), hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest())
print(sys.path == paths, signal.getsignal(signal.SIGUSR2) is remote, sorted(globals()))
if "fails" in sys.argv:
    raise ValueError("too bad")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the script lies; `sys.remote_exec` is there."""

    def remote_exec(pid: int, script: str) -> None:
        (tmp_path / "remote.txt").write_text(script)
        os.kill(pid, signal.SIGUSR2)

    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN))
    monkeypatch.chdir(tmp_path)
    if sys.version_info < (3, 14):
        monkeypatch.setattr(sys, "remote_exec", remote_exec, raising=False)
    return tmp_path


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "train.py", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not (folder / "ready").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    return process


@pytest.mark.parametrize("ends", ["by itself", "fails"])
def test_a_process_is_watched_from_then_on_and_does_what_it_does(
    folder: Path, ends: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fails = ["fails"] if ends == "fails" else []
    alone = forked.run(
        [sys.executable, "train.py", "800", *fails], cwd=folder, capture_output=True, text=True, check=False
    )
    (folder / "ready").unlink()
    process = start(folder, "800", "wait", *fails)
    code = run(["watch", "--attach", str(process.pid), "--out", "run"])
    out, err = process.communicate(timeout=60)
    assert (out, err) == (alone.stdout, alone.stderr)
    assert process.returncode == alone.returncode == code == (1 if fails else 0)
    told = load_watch(folder / "run")
    assert 700 <= told.steps <= 750
    assert told.command == ["train.py", "800", "wait", *fails]
    assert sum(line.s for line in told.account) == pytest.approx(told.wall_s, rel=0.01)
    assert read_run(folder / "run/run.json").outcome.how == ("raised" if fails else "finished")
    said = capsys.readouterr()
    assert "Where the job goes" in said.out
    assert f"watching process {process.pid}" in said.err
    assert not list(folder.glob(".*.partial"))


def test_a_process_that_does_not_answer_or_does_not_allow_it_is_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.2)
    scripts: list[Path] = []
    monkeypatch.setattr(sys, "remote_exec", lambda pid, script: scripts.append(Path(script)))
    assert run(["watch", "--attach", str(os.getpid()), "--out", "run"]) == 2
    assert "did not answer" in capsys.readouterr().err
    assert scripts[0].read_text() == ""

    def refuse(pid: int, script: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(sys, "remote_exec", refuse)
    assert run(["watch", "--attach", str(os.getpid()), "--out", "run"]) == 2
    assert "Operation not permitted" in capsys.readouterr().err
    assert not list(folder.iterdir()) or [path.name for path in folder.iterdir()] == ["train.py"]


def test_a_process_with_other_files_is_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: path.name != "attach.py" and exists(path))
    monkeypatch.setattr(sys, "remote_exec", lambda pid, script: pytest.fail("attached"))
    assert run(["watch", "--attach", str(os.getpid()), "--out", "run"]) == 2
    assert "does not see the files" in capsys.readouterr().err


def test_a_process_that_is_importing_torch_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    half_done = SimpleNamespace(__spec__=SimpleNamespace(_initializing=True))
    monkeypatch.setitem(sys.modules, "torch", half_done)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="importing torch"):
        attached.attach("", ())


def test_what_cannot_be_attached_to_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "remote_exec", raising=False)
    with pytest.raises(UsageError, match="Attaching needs Python 3"):
        plan_of_process(os.getpid(), Plan())
    assert run(["watch", "--attach", "1"]) == 2
    monkeypatch.setattr(sys, "remote_exec", print, raising=False)
    with pytest.raises(InputError, match="There is no process"):
        plan_of_process(2**22 + 1, Plan())
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    with pytest.raises(InputError, match="is another user's"):
        plan_of_process(os.getpid(), Plan())
    monkeypatch.undo()
    monkeypatch.setattr(sys, "remote_exec", print, raising=False)
    assert run(["watch", "--attach", "1", "train.py"]) == 2
    assert run(["watch", "--attach", "1", "--diagnose", "."]) == 2
