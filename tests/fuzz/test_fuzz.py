"""Damaged input of every kind: no command shows a traceback, hangs, or says with 1 that something grew.

`make fuzz` runs 10,000 cases and finds new ones each time; the suite runs the same 300. What was found lies
in findings/, one folder per case with the words of its command, and is tried first.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tomllib
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_bottleneck.cli.main import run

from . import bases
from .damage import as_json, as_pickle, as_toml, damaged, damaged_bytes

FINDINGS = Path(__file__).parent / "findings"
CASES = int(os.environ.get("FUZZ_CASES", "300"))
SECONDS = 20.0
"""Processor time for one command; the largest of these take a tenth of one."""
BYTES = 3 * 2**30
"""Memory beyond what this process has."""
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGVTALRM)
_ACTIVE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
fuzzed = settings(
    max_examples=max(CASES // 6, 1),
    deadline=None,
    derandomize="FUZZ_CASES" not in os.environ,
    database=None,
    suppress_health_check=list(HealthCheck),
)


class TookTooLongError(BaseException):
    """Raised in the middle of a command; no handler of errors catches it."""


def _too_long(number: int, frame: object) -> None:
    del number, frame
    raise TookTooLongError


@contextlib.contextmanager
def limits(*, most_bytes: int = BYTES) -> Iterator[None]:
    """Bound processor time and memory, and put back what `review` does to signals."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    memory = resource.getrlimit(resource.RLIMIT_AS)
    earlier = {number: signal.getsignal(number) for number in _SIGNALS}
    signal.signal(signal.SIGVTALRM, _too_long)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + most_bytes, memory[1]))
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, memory)
        for number, handler in earlier.items():
            signal.signal(number, handler)


def call(*words: str | Path) -> tuple[int, str, str]:
    """Run a command in this process and return exit code, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with limits(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = run([str(word) for word in words])
        except SystemExit as end:
            code = int(end.code or 0)
    return code, out.getvalue(), err.getvalue()


def check(*words: str | Path) -> None:
    """Run a command; whatever it reads, it ends with 0, 2 or 3, and says why in one line.

    With FUZZ_KEEP=FOLDER what fails is put there, one case per place in our code, and the search goes on.
    """
    try:
        judge(*words)
    except (AssertionError, TookTooLongError) as error:
        if "FUZZ_KEEP" not in os.environ:
            raise
        told = "".join(traceback.format_exception(error))
        shown = told.partition("\nassert ")[0]  # behind it pytest tells the beginning once more
        lines = re.findall(r'/bottleneck/(\S+)\.py", line (\d+)', shown)[-1:] or [("unknown", "0")]
        kept = Path(os.environ["FUZZ_KEEP"]) / "-".join((*lines[0], str(words[0]))).replace("/", ".")
        if not kept.exists():
            shutil.copytree(Path.cwd(), kept)
            (kept / "command.txt").write_text(
                " ".join(os.path.relpath(w) if isinstance(w, Path) else w for w in words)
            )
            (kept / "told.txt").write_text(told)


def judge(*words: str | Path) -> int:
    """Run a command, check how it ends, and return its exit code."""
    code, out, err = call(*words)
    assert "Traceback" not in err, err[-4000:]
    assert code in (0, 2, 3), (code, err[-2000:])
    assert not _ACTIVE.search(err), err[-2000:]
    if not {"html", "json", "gitlab", "sarif"} & set(words):
        assert not _ACTIVE.search(out), _ACTIVE.search(out)
    if code == 2:
        assert err.count("\n") == 1, err[-2000:]
    return code


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _write(file: Path, data: bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


@cache
def _run_texts() -> list[dict[str, bytes]]:
    return [{file: as_json(value) for file, value in files.items()} for files in bases.runs()]


@cache
def _baseline_text() -> bytes:
    return as_json(bases.baselines()[0])


def _of(values: Callable[[], list[Any]]) -> st.SearchStrategy[Any]:
    """Return a strategy of these values, damaged; they are made when the first test runs."""
    return st.deferred(lambda: st.integers(0, len(values()) - 1).flatmap(lambda n: damaged(values()[n])))


REPORT = st.sampled_from(
    [
        ("-v",),
        (),
        ("-v", "--format", "md"),
        ("--format", "json"),
        ("-v", "--format", "html"),
        ("--format", "sarif"),
        ("--format", "brief"),
    ]
)
COMPARISON = st.sampled_from(
    [
        ("-v",),
        (),
        *(("-v", "--format", name) for name in ("md", "json", "junit", "github", "gitlab", "sarif")),
    ]
)
"""How what was read is shown."""
SETTINGS = tomllib.loads(bases.CONFIG) if sys.version_info >= (3, 11) else {}


@fuzzed
@given(_of(bases.traces).map(as_json).flatmap(damaged_bytes), REPORT)
def test_traces(place: Path, data: bytes, shown: tuple[str, ...]) -> None:
    check("analyze", *shown, _write(place / "t.json", data))


@fuzzed
@given(_of(bases.snapshots), st.data())
def test_snapshots(place: Path, content: Any, data: Any) -> None:
    packed = data.draw(damaged_bytes(as_pickle(content)))
    check("analyze", *data.draw(REPORT), _write(place / "s.pickle", packed))


@fuzzed
@given(st.integers(0, len(bases.RUNS) - 1), st.data())
def test_run_folders(place: Path, number: int, data: Any) -> None:
    shutil.rmtree(place / "run", ignore_errors=True)
    files = bases.runs()[number]
    name = data.draw(st.sampled_from(["run.json", "run.json", *files]))
    texts = _run_texts()[number]
    for file, value in files.items():
        text = data.draw(damaged_bytes(as_json(data.draw(damaged(value))))) if file == name else texts[file]
        _write(place / "run" / file, text)
    command = data.draw(st.sampled_from(["analyze", "analyze", "analyze", "compare", "verify", "review"]))
    words: dict[str, tuple[str, ...]] = {
        "analyze": ("analyze", *data.draw(REPORT), "run"),
        "compare": ("compare", *data.draw(COMPARISON), "run", "run"),
        "verify": ("verify", "run"),
        "review": ("review", "--no-serve", "--out", "shown", "run"),
    }
    check(*words[command])


@fuzzed
@given(_of(bases.diagnoses).map(as_json).flatmap(damaged_bytes), st.integers(0, 4), st.data())
def test_diagnoses(place: Path, packed: bytes, compared: int, data: Any) -> None:
    file = _write(place / "diagnosis.json", packed)
    if compared == 0:
        check("compare", *data.draw(COMPARISON), file, file)
    else:
        check("report", "--out", "-", *data.draw(REPORT), file)


@fuzzed
@given(
    st.deferred(lambda: damaged(bases.watched()["watch.json"])).map(as_json).flatmap(damaged_bytes), st.data()
)
def test_watched_jobs(place: Path, packed: bytes, data: Any) -> None:
    _write(place / "run" / "watch.json", packed)
    _write(place / "run" / "run.json", as_json(bases.watched()["run.json"]))
    shutil.rmtree(place / "shown", ignore_errors=True)
    command = data.draw(st.sampled_from(["report", "report", "compare", "review"]))
    words: dict[str, tuple[str, ...]] = {
        "report": ("report", "--out", "-", *data.draw(REPORT), "run"),
        "compare": ("compare", *data.draw(COMPARISON), "run", "run"),
        "review": ("review", "--no-serve", "--out", "shown", "run"),
    }
    check(*words[command])


@fuzzed
@given(_of(bases.baselines).map(as_json).flatmap(damaged_bytes), COMPARISON)
def test_baselines(place: Path, data: bytes, shown: tuple[str, ...]) -> None:
    file = _write(place / "baseline.json", data)
    check("compare", *shown, file, file)


@fuzzed
@given(damaged(SETTINGS).map(as_toml).flatmap(damaged_bytes))
def test_configurations(place: Path, data: bytes) -> None:
    good = _write(place / "baseline.json", _baseline_text())
    check("compare", "--config", _write(place / "c.toml", data), good, good)


@pytest.mark.parametrize("case", sorted(path.name for path in FINDINGS.iterdir() if path.is_dir()))
def test_what_was_found_stays_mended(place: Path, case: str) -> None:
    shutil.copytree(FINDINGS / case, place, dirs_exist_ok=True)
    check(*(place / "command.txt").read_text("utf-8").split())
