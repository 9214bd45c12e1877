"""What every test may rely on: one thread per process, no colours from the environment, a way to run us."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forked
import pytest
from session import FOLDER

if TYPE_CHECKING:
    from reviewing import Review

ROOT = Path(__file__).resolve().parents[1]
REVIEW = ("/browser/test_review.py", "/e2e/test_review.py")
"""Files whose tests share a TensorBoard: it reads its runs for longer than most of them take."""

# Before torch is imported anywhere: tests and the scripts that they start share few cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
# What a capture is tested by needs no trials after it; tests of trials ask for them.
os.environ.setdefault("BOTTLENECK_TRIAL_SECONDS", "0")

# Containers set it to keep their images small; here each process under test would compile all of us again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
forked.remember()

# Started in the background of a shell, as runners do, a process inherits "ignore SIGINT", and with nohup
# "ignore SIGHUP", and so would every script under test: tests of signals need the ordinary disposition.
for _number, _ordinary in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _ordinary)


def pytest_configure(config: pytest.Config) -> None:
    """Make a folder that the processes of this session share; with xdist, the one that starts them does."""
    if not hasattr(config, "workerinput"):
        folder = os.environ[FOLDER] = tempfile.mkdtemp(prefix="bottleneck-tests-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal out single tests of e2e and fuzz, which take seconds each, and the other files whole, e2e first.

    So both of two workers are at work until the end: a file of e2e alone may take a quarter of the time.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if file.endswith(REVIEW):
                return "review"
            return nodeid if "/e2e/" in file or "/fuzz/" in file else file

    config.option.loadscopereorder = False
    return Scheduling(config, log)


@pytest.fixture(autouse=True)
def _torch_as_it_was() -> Iterator[None]:
    """Fail the test that leaves a switch of torch as no other test expects it, not one that comes later.

    What a monkeypatch changed has been put back by then: `_plain_terminal` asks for it after this.
    """
    before = _switches()
    yield
    after = _switches()
    if before and after:
        assert after == before


def _switches() -> dict[str, object]:
    """Return the switches of torch that hold for the whole process; none while it is not imported."""
    torch = sys.modules.get("torch")
    if not hasattr(torch, "compile"):
        return {}
    cudnn = torch.backends.cudnn
    return {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "fills": torch.utils.deterministic.fill_uninitialized_memory,
        "precision": torch.get_float32_matmul_precision(),
        "dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "anomaly": torch.is_anomaly_enabled(),
        "threads": torch.get_num_threads(),
        **{f"cudnn.{name}": getattr(cudnn, name) for name in ("allow_tf32", "benchmark", "deterministic")},
    }


@pytest.fixture(autouse=True)
def _plain_terminal(_torch_as_it_was: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what a developer's shell says about terminals; tests that need it say so themselves."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    return


@pytest.fixture(scope="session")
def review(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Review]:
    """A TensorBoard on recorded runs, and their diagnoses."""
    from reviewing import reviewed

    with reviewed(tmp_path_factory.mktemp("review") / "logs") as found:
        yield found


@pytest.fixture
def bottleneck(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the `bottleneck` command in a process of its own, in an empty folder; see `forked`."""

    def run(
        *arguments: str | Path,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 600,
    ) -> subprocess.CompletedProcess[str]:
        return forked.run(
            [sys.executable, "-m", "torch_bottleneck", *map(str, arguments)],
            cwd=cwd or tmp_path,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run
