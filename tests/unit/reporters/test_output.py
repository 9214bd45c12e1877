"""Where reports go: files that are whole, streams that close early, terminals of all kinds."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from unit.reporters.sample import sample

from torch_bottleneck.errors import InputError, UsageError
from torch_bottleneck.model import documents
from torch_bottleneck.model.documents import load_diagnosis as load
from torch_bottleneck.reporters import output


class Terminal(io.StringIO):
    def __init__(self, encoding: str = "utf-8", *, terminal: bool = True) -> None:
        super().__init__()
        self.name_of_encoding = encoding
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.name_of_encoding


def test_colour_needs_a_terminal_and_no_color_forbids_it() -> None:
    assert output.traits(Terminal(), environ={}).color
    assert not output.traits(Terminal(terminal=False), environ={}).color
    assert not output.traits(Terminal(), environ={"NO_COLOR": "1"}).color
    assert output.traits(Terminal(), environ={"NO_COLOR": ""}).color, "an empty NO_COLOR says nothing"
    assert not output.traits(Terminal(), environ={"TERM": "dumb"}).color
    assert output.traits(Terminal(terminal=False), environ={"FORCE_COLOR": "1"}).color
    assert not output.traits(Terminal(), environ={"FORCE_COLOR": "1", "NO_COLOR": "1"}).color


@pytest.mark.parametrize(
    ("encoding", "unicode"),
    [("utf-8", True), ("UTF-8", True), ("utf8", True), ("ascii", False), ("latin-1", False)],
)
def test_unicode_needs_utf_8(encoding: str, unicode: bool) -> None:
    assert output.traits(Terminal(encoding), environ={}).unicode is unicode


@pytest.mark.parametrize(("columns", "width"), [("20", 40), ("72", 72), ("300", 100), ("x", 80), ("0", 80)])
def test_width_stays_readable(columns: str, width: int) -> None:
    assert output.traits(Terminal(terminal=False), environ={"COLUMNS": columns}).width == width


def test_a_closed_or_missing_stream_is_not_a_terminal() -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed):
        assert not output.traits(stream, environ={}).color


@pytest.mark.parametrize("terminal", [True, False])
def test_a_report_in_a_terminal_begins_on_a_line_of_its_own(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that shows its progress in one line is stopped in the middle of it."""
    screen = Terminal(terminal=terminal)
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    screen.write(" 0%| 40/10000 [02:27<7:38:38]")
    output.print_diagnosis(sample(), "text")
    assert screen.getvalue().partition("7:38:38]")[2].startswith("\n") is terminal


def test_save_writes_both_files_whole(tmp_path: Path) -> None:
    written = output.save(sample(), tmp_path / "run")
    files = ["diagnosis.json", "report.html", "report.md"]
    assert sorted(path.name for path in written) == files
    assert load(tmp_path / "run") == sample()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == files
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(written[0].stat().st_mode) == 0o666 & ~umask


def test_a_failed_write_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "report.md"
    target.write_text("old")

    def full(self: Path, other: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InputError, match="No space left on device"):
        documents.write_text(target, "new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_an_impossible_place_is_the_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="Cannot write"):
        documents.write_text(tmp_path / "file" / "report.md", "text")


def test_a_pipe_is_written_into_and_stays_one(tmp_path: Path) -> None:
    """/dev/null and /dev/stdout too: put in their place, a report would take them from the whole machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    documents.expect_writable(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        documents.write_text(pipe, "whole")
        assert os.read(reader, 100) == b"whole"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_what_a_link_leads_to_is_written_and_the_link_stays(tmp_path: Path) -> None:
    file, link = tmp_path / "report.md", tmp_path / "latest"
    file.write_text("an older, longer report")
    link.symlink_to(file)
    documents.expect_writable(link)
    documents.write_text(link, "new")
    assert link.is_symlink()
    assert file.read_text() == "new"


def test_emit_to_a_file_says_so_on_stderr_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output.emit("text\n", out=tmp_path / "report.txt")
    told = capsys.readouterr()
    assert told.out == ""
    assert "report.txt" in told.err
    assert (tmp_path / "report.txt").read_text() == "text\n"


def test_emit_survives_a_stream_that_cannot_show_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    output.emit("kernel é\n")
    assert stream.buffer.getvalue() == b"kernel \\xe9\n"  # type: ignore[attr-defined]


@pytest.mark.parametrize("stream", [None, "closed"])
def test_emit_survives_no_stream(stream: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed if stream else None)
    output.emit("text\n")


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    output.save(sample(), tmp_path)
    command = (
        f"{sys.executable} -m torch_bottleneck report {tmp_path} --verbose | head -1; exit ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout.startswith("INPUT-BOUND")
    assert done.stderr == ""
    assert done.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("verb", ["report {}", "catalog", "explain BN101", "doctor --quick --format json"])
def test_a_full_device_is_an_error_of_one_line(verb: str, tmp_path: Path) -> None:
    output.save(sample(), tmp_path)
    command = f"{sys.executable} -m torch_bottleneck {verb.format(tmp_path)} > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: Cannot write to standard output: No space left")
    assert "Traceback" not in done.stderr


def test_there_is_no_such_format() -> None:
    with pytest.raises(UsageError, match="yaml"):
        output.render_for(sample(), "yaml")
