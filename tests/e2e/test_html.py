"""report.html through the command line: written where one looks for it, never over a terminal."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from recorded.cases import CASES

CASE = CASES["input-bound-cpu"].folder / "run"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_folder(tmp_path: Path, bottleneck: Run) -> Path:
    folder = tmp_path / "run"
    shutil.copytree(CASE, folder)
    done = bottleneck("analyze", folder, "--out", folder)
    assert done.returncode == 0, done.stderr
    return folder


def on_terminal(*arguments: str | Path) -> tuple[int, str, str]:
    """Run the command with a terminal for its stdout."""
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "torch_bottleneck", *map(str, arguments)],
        stdout=follower,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(follower)
        shown = b""
        try:
            while part := os.read(leader, 65536):
                shown += part
        except OSError:  # the last writer has closed its end
            pass
        _, errors = process.communicate(timeout=600)
    os.close(leader)
    return process.returncode, shown.decode(errors="replace"), errors


def test_a_run_folder_holds_the_page_beside_the_other_reports(run_folder: Path) -> None:
    html = (run_folder / "report.html").read_text(encoding="utf-8")
    assert html.startswith("<!DOCTYPE html>")
    assert "input-bound" in html
    assert len(html) < 3_000_000


def test_report_prints_the_page_into_a_pipe_and_a_file(run_folder: Path, bottleneck: Run) -> None:
    piped = bottleneck("report", run_folder, "--format", "html")
    assert piped.returncode == 0
    assert piped.stdout == (run_folder / "report.html").read_text(encoding="utf-8")
    written = bottleneck(
        "report", run_folder / "diagnosis.json", "--format", "html", "--out", run_folder / "x.html"
    )
    assert written.returncode == 0
    assert (run_folder / "x.html").read_text(encoding="utf-8") == piped.stdout


def test_on_a_terminal_the_page_goes_into_the_run_folder(run_folder: Path) -> None:
    (run_folder / "report.html").unlink()
    code, shown, errors = on_terminal("report", run_folder, "--format", "html")
    assert code == 0
    assert shown == ""
    assert f"Wrote {run_folder / 'report.html'}" in errors
    assert (run_folder / "report.html").is_file()


def test_analyze_says_what_to_do_instead_of_filling_a_terminal(run_folder: Path) -> None:
    code, shown, errors = on_terminal("analyze", CASE, "--format", "html")
    assert code == 2
    assert shown == ""
    assert "redirect" in errors
    assert "Traceback" not in errors
    code, shown, _ = on_terminal("analyze", CASE, "--format", "html", "--out", run_folder)
    assert code == 0
    assert "INPUT-BOUND" in shown
