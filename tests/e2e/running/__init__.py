"""How the end-to-end tests run a script: plainly, under the harness, or with the whole command.

A process is a fork of one that has imported torch; where a test is about how python itself starts and
ends, the fixture `new_interpreters` makes it a new one.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import forked
import msgspec

from torch_bottleneck.model.run import Run
from torch_bottleneck.runs.launch import ENTRY, ENVIRONMENT
from torch_bottleneck.runs.plan import Plan, encode_plan

__all__ = ["Result", "command_line", "diagnose", "harness", "harness_command", "plain", "read_run"]

PYTHON = sys.executable
SECONDS = 600


@dataclass(frozen=True)
class Result:
    """What a process did."""

    code: int
    out: str
    err: str
    folder: Path = field(default_factory=Path)


def environment(**extra: str) -> dict[str, str]:
    """One thread each: the machine is shared."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **extra}


def run(command: list[str], cwd: Path, *, stdin: str = "", **extra: str) -> Result:
    """Run a command to its end."""
    done = forked.run(
        command,
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        env=environment(**extra),
        timeout=SECONDS,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def plain(cwd: Path, *words: str, flags: tuple[str, ...] = (), stdin: str = "", **extra: str) -> Result:
    """`python WORDS...`."""
    return run([PYTHON, *flags, *words], cwd, stdin=stdin, **extra)


def harness_command(out: Path, *words: str, flags: tuple[str, ...] = (), **plan: object) -> list[str]:
    """The process in which the script runs, as `launch` starts it."""
    if words[0] == "-m":
        entry, target, arguments = ["-m", "torch_bottleneck.harness"], {"module": words[1]}, words[2:]
    else:
        entry, target, arguments = [str(ENTRY)], {"script": words[0]}, words[1:]
    wishes = {"quiet": True, "memory": False, **plan}
    text = encode_plan(Plan(out=str(out), **target, **wishes))  # type: ignore[arg-type]
    return [PYTHON, *flags, *entry, text, *arguments]


def harness(
    cwd: Path, out: Path, *words: str, flags: tuple[str, ...] = (), stdin: str = "", **plan: object
) -> Result:
    """Run a script under the harness alone; its folder is `out/main`."""
    done = run(harness_command(out, *words, flags=flags, **plan), cwd, stdin=stdin, **ENVIRONMENT)
    return Result(done.code, done.out, done.err, out / "main")


def command_line(*words: str) -> list[str]:
    """The whole command."""
    return [PYTHON, "-m", "torch_bottleneck", "diagnose", *words]


def diagnose(cwd: Path, *words: str, stdin: str = "", **extra: str) -> Result:
    """`bottleneck diagnose --out run WORDS...`."""
    done = run(command_line("--out", "run", *words), cwd, stdin=stdin, **extra)
    return Result(done.code, done.out, done.err, cwd / "run")


def read_run(folder: Path) -> Run:
    """run.json of a process folder."""
    return msgspec.json.decode((folder / "run.json").read_bytes(), type=Run)
