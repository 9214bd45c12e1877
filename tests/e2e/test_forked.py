"""A fork that stands in for a new interpreter shows a script what python would show it: see `forked`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked
import pytest

LOOK = """
import os, sys, pickle, inspect, __main__
class Thing:
    pass
def function():
    return 1
print(repr(__name__), repr(__file__), repr(__package__), getattr(__spec__, "origin", None), repr(__doc__))
print(type(__loader__).__name__, type(__builtins__).__name__, sorted(globals()))
print(sys.argv, sys.path, os.getcwd(), os.environ["GIVEN"], sys.stdin.read())
# Of its flags hashes alone differ: they are the same in every fork.
print(str(sys.flags).replace("hash_randomization=0", "hash_randomization=1"))
print(function.__code__.co_filename, inspect.getsource(function))
print(type(pickle.loads(pickle.dumps(Thing()))) is Thing, sys.modules["__main__"].__dict__ is globals())
print([word for word in open("/proc/self/cmdline").read().split(chr(0)) if word], "torch" in sys.modules)
import atexit, threading
atexit.register(print, "at exit")
threading.Thread(target=lambda: (threading.main_thread().join(), print("thread"))).start()
"""
ENDS = {
    "to its end": "",
    "raises": "def f():\n    1 / 0\nf()",
    "exit code": "sys.exit(3)",
    "exit text": "sys.exit('why')",
    "interrupt": "raise KeyboardInterrupt",
    "killed": "sys.stdout.flush(); os.kill(os.getpid(), 9)",
    "left": "sys.stdout.flush(); os._exit(5)",
}


@pytest.mark.parametrize("end", list(ENDS))
@pytest.mark.parametrize(
    "words", [("look.py", "a b"), ("-m", "package.look", "-x")], ids=["script", "module"]
)
def test_a_fork_starts_and_ends_as_python_does(tmp_path: Path, words: tuple[str, ...], end: str) -> None:
    (tmp_path / "package").mkdir()
    for file in ("look.py", "package/look.py"):
        (tmp_path / file).write_text(LOOK + ENDS[end])
    how = {"cwd": tmp_path, "env": {**os.environ, "GIVEN": "x"}, "capture_output": True, "text": True}
    expected = subprocess.run([sys.executable, *words], input="typed", check=False, **how)  # type: ignore[call-overload]
    got = forked.run([sys.executable, *words], input="typed", **how)
    assert (got.returncode, got.stdout, got.stderr) == (
        expected.returncode,
        expected.stdout,
        expected.stderr,
    )


def test_torch_is_imported_when_the_script_says_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import importlib.util, sys\n"
        "assert not [name for name in sys.modules if name.partition('.')[0] == 'torch']\n"
        "assert importlib.util.find_spec('torch')\n"
        "import torch.nn as nn\n"
        "import torch\n"
        "assert nn is torch.nn and 'torch._dynamo' not in sys.modules\n"
        "assert torch.__spec__.origin == torch.__file__, torch.__spec__\n"
        "doubled = torch.compile(lambda x: 2 * x, backend='eager')\n"
        "print(doubled(torch.ones(2)).tolist(), torch._dynamo is sys.modules['torch._dynamo'])\n"
        "print(torch.randn(2).tolist())\n"
    )
    command = [sys.executable, "train.py"]
    got = forked.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert got.returncode == 0, got.stderr
    assert got.stdout.startswith("[2.0, 2.0] True\n")
    assert got.stdout == forked.run(command, cwd=tmp_path, capture_output=True, text=True).stdout


def test_signals_reach_a_fork_and_waiting_may_be_limited(tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    command = [sys.executable, "wait.py"]
    with forked.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.05)
        assert os.getpgid(process.pid) == process.pid
        os.killpg(process.pid, signal.SIGTERM)
    assert process.returncode == -signal.SIGTERM


def test_what_python_reads_when_it_starts_makes_a_real_start(tmp_path: Path) -> None:
    (tmp_path / "neighbour").mkdir()
    (tmp_path / "neighbour" / "only_here.py").write_text("print('found')")
    (tmp_path / "look.py").write_text("import only_here")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "neighbour")}
    got = forked.run([sys.executable, "look.py"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert got.stdout == "found\n"
    assert forked.run([sys.executable, "-c", "print(7)"], capture_output=True, text=True).stdout == "7\n"


@pytest.mark.parametrize("flags", [[], ["-B"]])
def test_a_command_without_buffers_may_be_a_fork_whatever_flags_this_interpreter_has(
    monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    """torchrun starts its ranks so."""
    monkeypatch.setattr(subprocess, "_args_from_interpreter_flags", lambda: flags)
    words = ["-m", "torch_bottleneck", "doctor"]
    for given in (["-u"], flags, []):
        assert forked._words_of([sys.executable, *given, *words]) == words


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="forks take Linux 5.3")
@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="no forks beside a GPU")
def test_the_server_has_the_variables_of_the_session_not_of_the_test_that_asks_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all later tests of that worker would start real processes."""
    (tmp_path / "parent.py").write_text("import os\nprint(os.getppid())\n")
    monkeypatch.setattr(forked, "_ask", None)

    def parent() -> int:
        got = forked.run([sys.executable, "parent.py"], cwd=tmp_path, capture_output=True, check=True)
        return int(got.stdout)

    with monkeypatch.context() as patch:
        patch.setenv("LD_PRELOAD", "")
        assert parent() == os.getpid()
    assert parent() != os.getpid()
    assert forked._ask is not None
    forked._ask.close()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="forks take Linux 5.3")
@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="no forks beside a GPU")
def test_the_server_does_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the suite would be slow, and nothing would say why."""
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # as accelerate leaves it
    monkeypatch.setenv("KMP_DUPLICATE_LIB_OK", "True")  # as threadpoolctl does
    (tmp_path / "parent.py").write_text("import os, time\nprint(os.getppid(), flush=True)\ntime.sleep(600)\n")
    parents = []
    for _ in range(2):
        command = [sys.executable, "parent.py"]
        with forked.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            parents.append(int(process.stdout.readline()))
            process.kill()
    assert parents[0] == parents[1] != os.getpid()
    until = time.monotonic() + 60
    while Path(f"/proc/{process.pid}").exists():
        assert time.monotonic() < until, "its end is waited for"
        time.sleep(0.01)
