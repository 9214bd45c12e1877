"""Lines are quoted as they ran, or not at all."""

from __future__ import annotations

import datetime as dt
import os
import time

import pytest

from torch_bottleneck.ingest.source_text import line_text
from torch_bottleneck.model.run import Run, SourceSite


@pytest.fixture
def run(tmp_path):
    (tmp_path / "train.py").write_text("import torch\n    print(loss.item())\n" + "x" * 500 + "\n")
    now = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
    return Run(cwd=str(tmp_path), created=now)


def at(line: int, file: str = "train.py") -> SourceSite:
    return SourceSite(file=file, line=line)


def test_a_line_is_quoted_without_its_indentation_and_cut(run, tmp_path):
    assert line_text(at(2), run) == "print(loss.item())"
    assert line_text(at(2, str(tmp_path / "train.py")), run) == "print(loss.item())"
    assert len(line_text(at(3), run)) == 120


def test_a_file_written_after_the_run_began_is_not_quoted(run, tmp_path):
    later = time.time() + 60
    os.utime(tmp_path / "train.py", (later, later))
    assert line_text(at(2), run) == ""


@pytest.mark.parametrize("site", [at(0), at(99), at(1, "none.py"), at(1, "<string>"), at(1, ".")])
def test_what_is_not_there_is_not_quoted(run, site):
    assert line_text(site, run) == ""


def test_a_run_that_does_not_say_when_it_began_quotes_nothing(tmp_path, run):
    assert line_text(at(2), Run(cwd=str(tmp_path), created="")) == ""
