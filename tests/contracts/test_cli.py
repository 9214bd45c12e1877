"""The command line: what it imports, what it answers, how it fails."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from unit.reporters.sample import empty, sample

from torch_bottleneck import __version__
from torch_bottleneck.cli import main as cli_main
from torch_bottleneck.errors import InputError
from torch_bottleneck.reporters.output import save

Run = Callable[..., "subprocess.CompletedProcess[str]"]

HEAVY = ("torch", "pandas", "tensorboard", "torch_tb_profiler")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--help"],
        ["--version"],
        ["diagnose", "--help"],
        ["analyze", "--help"],
        ["report", "--help"],
        ["review", "--help"],
        ["doctor", "--help"],
        ["catalog"],
        ["catalog", "list"],
        ["catalog", "show", "FX101"],
        ["catalog", "search", "tf32"],
        ["explain", "BN101"],
        ["explain", "FX301"],
        ["completion", "bash"],
        ["verify", "--help"],
        ["watch", "--help"],
    ],
    ids=" ".join,
)
def test_answers_come_without_torch_or_pandas(arguments: list[str], tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from torch_bottleneck.cli.main import run\n"
        f"status = run({arguments!r})\n"
        f"heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "sys.exit(f'imports {heavy}' if heavy else status)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_every_verb_is_listed_and_offers_a_command_with_help() -> None:
    context = click.Context(cli_main.cli)
    for verb in cli_main.cli.list_commands(context):
        command = cli_main.cli.get_command(context, verb)
        assert command is not None
        assert command.name == verb
        assert command.help, verb
        assert re.search(rf'^ *.*bottleneck"?,? .*\b{verb}\b', command.help, re.MULTILINE), (
            f"{verb}: no example"
        )
        assert "\\b" not in command.get_help(context), "a raw docstring hides the mark from click"
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help or parameter.name == "format_", (verb, parameter.name)


def test_no_verb_starts_slowly() -> None:
    """Help is typed often: count what is imported rather than the clock."""
    code = "import sys; from torch_bottleneck.cli.main import run; run(['--help']); print(len(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True
    )
    assert int(done.stdout.split()[-1]) < 400


def test_version(bottleneck: Run) -> None:
    assert bottleneck("--version").stdout == f"bottleneck, version {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["diagnoze"], "Did you mean `diagnose`?"),
        (["train.py"], "Did you mean `bottleneck diagnose train.py`?"),
        (["report"], "Missing argument"),
        (["report", "nowhere"], "nowhere does not exist"),
        (["report", ".", "--format", "yaml"], "yaml"),
        (["analyze"], "Missing argument"),
        (["analyze", "x", "--true-step-ms", "0"], "0"),
        (["analyze", "nowhere.json"], "nowhere.json"),
        (["catalog", "show", "FX999"], "There is no fix 'FX999'"),
        (["explain", "BN999"], "BN999"),
        (["explain", "BN1O1"], "Did you mean BN101?"),
        (["diagnose", "nowhere.py"], "nowhere.py"),
        (["diagnose", "-m"], "-m needs a module"),
        (["gate"], "bottleneck gate [options] train.py"),
        (["gate", "--baseline", "b.json", "python", "train.py"], "bottleneck gate train.py"),
        (["verify", "--fix", "FX101", "torchrun", "train.py"], '--launcher "torchrun ..."'),
        (["doctor", "nowhere.json"], "nowhere.json does not exist"),
        (["diagnose", "--max-seconds", "nan", "train.py"], "not a finite number"),
        (["analyze", "x", "--true-step-ms", "inf"], "not a finite number"),
        (["compare", "a", "b", "--time-tolerance", "nan"], "not a finite number"),
        (["verify", "--budget", "inf", "train.py"], "not a finite number"),
        (["verify", "--resume", "--fix", "FX101", "v"], "--fix was fixed"),
        (["verify", "--pairs", "5", "--max-pairs", "2", "--fix", "FX101", "t.py"], "more than --max-pairs 2"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_get_one_clear_message_and_exit_code_2(
    bottleneck: Run, arguments: list[str], words: str
) -> None:
    done = bottleneck(*arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("train.ipynb", b'{"cells": [], "nbformat": 4}', "jupyter nbconvert --to script train.ipynb"),
        ("trace.json", b'{"traceEvents": []}', "bottleneck analyze trace.json"),
        ("train.pyz", b"PK\x03\x04", "zip archive"),
        ("train.so", b"\x7fELF\0", "binary file"),
        ("train.sh", b"#!/bin/sh\necho hello\n", "not Python source"),
    ],
)
def test_what_is_no_script_is_named_and_not_run(
    bottleneck: Run, tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    done = bottleneck("diagnose", name)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert not (tmp_path / "reports").exists()


@pytest.mark.parametrize("verb", ["diagnose", "analyze"])
def test_a_pipe_is_refused_rather_than_waited_for(bottleneck: Run, tmp_path: Path, verb: str) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    done = bottleneck(verb, "pipe.py", timeout=600)
    assert done.returncode == 2
    assert "is a pipe or a device" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "--fix", "FX101", "--patch", "taken/x.diff", "train.py"],
        ["verify", "--fix", "FX101", "--patch", "folder", "train.py"],
        ["gate", "--baseline", "taken/b.json", "--update-baseline", "train.py"],
        ["gate", "--baseline", "b.json", "--update-baseline", "--report", "taken/r.md", "train.py"],
    ],
    ids=" ".join,
)
def test_a_file_that_cannot_be_written_is_told_before_anything_runs(
    bottleneck: Run, tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "train.py").write_text("open('ran', 'w')\n")
    (tmp_path / "taken").write_text("a file")
    (tmp_path / "folder").mkdir()
    done = bottleneck(*arguments)
    assert done.returncode == 2
    assert "Cannot write" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_a_history_that_holds_something_else_is_told_before_anything_runs(
    bottleneck: Run, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("open('ran', 'w')\n")
    (tmp_path / "history").mkdir()
    (tmp_path / "history" / "settings.json").write_text("{}")
    done = bottleneck("gate", "--baseline", "b.json", "--update-baseline", "--history", "history", "train.py")
    assert done.returncode == 2
    assert "not a history entry" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_analyze_writes_over_its_own_reports_only(bottleneck: Run, tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    (tmp_path / "report.md").write_text("my thesis")
    done = bottleneck("analyze", "trace.json", "--out", ".")
    assert done.returncode == 2
    assert "report.md exists" in done.stderr
    assert (tmp_path / "report.md").read_text() == "my thesis"
    for _ in range(2):
        assert bottleneck("analyze", "trace.json", "--out", "out").returncode == 3


def test_help_fits_a_terminal_of_80_columns() -> None:
    def pages(command: click.Command, words: list[str]) -> list[tuple[str, str]]:
        context = click.Context(command, info_name=" ".join(words), max_content_width=80, terminal_width=80)
        found = [(" ".join(words), command.get_help(context))]
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                found += pages(inner, [*words, name])
        return found

    wide = [
        f"{name}: {line}"
        for name, page in pages(cli_main.cli, ["bottleneck"])
        for line in page.splitlines()
        if len(line) > 80
    ]
    assert wide == []


def test_a_bug_of_ours_shows_its_traceback_and_how_to_report_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def bug(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(cli_main.cli, "main", bug)
    assert cli_main.run(["catalog"]) == 1
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert "RuntimeError: a bug" in told
    assert "report it" in told


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("no", remedy="Do."), 2),
        (OSError(errno.ENOSPC, "No space left on device", "reports/x"), 2),
        (PermissionError(errno.EACCES, "Permission denied", "reports/x"), 2),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
    ],
)
def test_errors_become_exit_codes(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(cli_main.cli, "main", fail)
    assert cli_main.run([]) == code
    assert "Traceback" not in capsys.readouterr().err


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    save(sample(), tmp_path / "run")
    return tmp_path / "run"


def test_a_damaged_diagnosis_of_a_run_says_how_to_make_it_again(bottleneck: Run, run_folder: Path) -> None:
    file = run_folder / "diagnosis.json"
    file.write_bytes(file.read_bytes()[:100])
    assert "analyze" not in bottleneck("report", run_folder).stderr
    (run_folder / "run.json").write_text("{}")
    done = bottleneck("report", run_folder)
    assert done.returncode == 2
    assert f"bottleneck analyze {run_folder} --out {run_folder}" in done.stderr


def test_report_in_all_formats(bottleneck: Run, run_folder: Path) -> None:
    text = bottleneck("report", run_folder)
    assert text.returncode == 0
    assert text.stdout.startswith("INPUT-BOUND")
    assert "\x1b" not in text.stdout, "no colour: stdout is not a terminal"
    assert bottleneck("report", run_folder, "--format", "md").stdout.startswith("# train.py: input-bound")
    document = json.loads(bottleneck("report", run_folder / "diagnosis.json", "--format", "json").stdout)
    assert document["verdict"]["class"] == "input-bound"


def test_report_to_a_file_and_to_stdout(bottleneck: Run, run_folder: Path) -> None:
    done = bottleneck("report", run_folder, "--format", "md", "--out", run_folder / "again.md")
    assert done.stdout == ""
    assert "again.md" in done.stderr
    assert (run_folder / "again.md").read_text().startswith("# train.py")
    assert bottleneck("report", run_folder, "--out", "-").stdout.startswith("INPUT-BOUND")


def test_streams_that_are_not_utf_8_get_ascii(bottleneck: Run, run_folder: Path) -> None:
    done = bottleneck("report", run_folder, env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "(2.65x)" in done.stdout


def test_a_terminal_gets_colour_unless_no_color(run_folder: Path) -> None:
    coloured = in_a_terminal("report", str(run_folder))
    assert "\x1b[" in coloured
    assert "\x1b[" not in in_a_terminal("report", str(run_folder), NO_COLOR="1")


def in_a_terminal(*arguments: str, **env: str) -> str:
    import pty

    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", **env}
    process = subprocess.Popen(
        [sys.executable, "-m", "torch_bottleneck", *arguments],
        stdout=child,
        stderr=child,
        stdin=child,
        env=environment,
    )
    os.close(child)
    received = b""
    while True:
        try:
            chunk = os.read(parent, 65536)
        except OSError:  # Linux says EIO when the other side has closed
            break
        if not chunk:
            break
        received += chunk
    os.close(parent)
    assert process.wait(timeout=600) == 0, received
    return received.decode()


def test_closed_stdout_is_no_error(run_folder: Path) -> None:
    command = f"{sys.executable} -m torch_bottleneck report {run_folder} >&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_undetermined_diagnosis_renders(bottleneck: Run, tmp_path: Path) -> None:
    save(empty(), tmp_path / "run")
    assert bottleneck("report", tmp_path / "run").stdout.startswith("UNDETERMINED")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(bottleneck: Run, shell: str) -> None:
    done = bottleneck("completion", shell)
    assert done.returncode == 0
    assert "_BOTTLENECK_COMPLETE" in done.stdout


def test_completion_offers_the_verbs(bottleneck: Run) -> None:
    done = bottleneck(
        env={"_BOTTLENECK_COMPLETE": "bash_complete", "COMP_WORDS": "bottleneck ", "COMP_CWORD": "1"}
    )
    assert {"plain,diagnose", "plain,analyze", "plain,catalog"} <= set(done.stdout.split("\n"))


def test_without_arguments_it_says_what_to_type_for_the_scripts_that_are_there(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli_main.run([]) == 0
    assert "bottleneck diagnose train.py --epochs 1" in capsys.readouterr().out, "an example of the help"
    (tmp_path / "train me.py").write_text("import torch\nloss.backward()\n")
    (tmp_path / "a.py").write_text("from lightning import Trainer\nTrainer().fit(m)\n")
    (tmp_path / "model.py").write_text("import torch\nclass Net: pass\n")
    (tmp_path / "bad.py").write_bytes(b"\xff\xfe import torch")
    (tmp_path / "folder.py").mkdir()
    assert cli_main.run([]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[2:4] == ["bottleneck diagnose 'train me.py'", "bottleneck diagnose a.py"]
    assert not {"bottleneck diagnose model.py", "bottleneck diagnose folder.py"} & set(lines)
