"""The user's own change: a copy of the program with a diff applied, which runs beside the program as it is.

In: a unified diff, and what is run. Out: a target in a folder in which the script and each changed file are
copies and everything else is a link, so that data are found and the sources stay as they are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ..errors import InputError
from ..model.words import shown
from ..runs.target import Target
from .edits import names_in, repository_of, script_file

_CACHE = "__pycache__"
"""Linked, it would keep what was compiled of a changed file for the unchanged one."""


def read_diff(file: Path) -> str:
    """Return the text of a diff.

    Raises:
        InputError: it cannot be read, or is none.
    """
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read: {error}") from None
    if not names_in(text):
        raise InputError(f"{file} is not a unified diff.", remedy="Write one: git diff > faster.diff")
    return text


def with_change(target: Target, diff: str, place: Path) -> tuple[Target, list[str]]:
    """Return what is run instead with that diff applied, and the changed files there.

    `place`: the folder for the copy, which is made if it is not there yet.

    Raises:
        InputError: the diff does not apply.
    """
    cwd = (target.cwd or Path.cwd()).resolve()
    root = repository_of(cwd)
    names = names_in(diff)
    # As git writes it, from the root of the repository; as diff and `git diff --relative` do, from here.
    base = root if any((root / name).is_file() for name in names) else cwd
    script = script_file(cwd, target.script, target.module)
    if not place.exists():
        copies = [base / name for name in names] + ([script] if script is not None else [])
        # From the top of the file system on, so that `../data` leads there from the copy, too.
        _mirror(Path("/"), place, [Path(os.path.normpath(file)) for file in copies])
        _apply(diff, _moved(base, place))
    files = [str(_moved(base / name, place)) for name in names]
    typed = target.script
    if typed is not None and Path(typed).is_absolute():
        typed = str(_moved(Path(typed), place))
    return dataclasses.replace(target, cwd=_moved(cwd, place), script=typed), files


def _moved(path: Path, place: Path) -> Path:
    return place / path.relative_to("/")


def _mirror(source: Path, place: Path, copied: Sequence[Path]) -> None:
    """Link everything in a folder, but copy these files, and make the folders that they lie in."""
    place.mkdir()
    inside = {source / file.relative_to(source).parts[0] for file in copied}
    with contextlib.suppress(PermissionError):
        inside |= set(source.iterdir())
    for child in inside:
        there = place / child.name
        below = [file for file in copied if file.is_relative_to(child)]
        if child.name == _CACHE:
            continue
        if below and child.is_dir():
            _mirror(child, there, below)
        elif below and child.is_file():
            shutil.copyfile(child, there)
        elif child.is_symlink() or child.exists():
            there.symlink_to(child)


def _apply(diff: str, folder: Path) -> None:
    # Anything above is none of git's business: in the middle of a repository it would skip files.
    apart = {**os.environ, "GIT_DIR": os.devnull}
    words = ["git", "apply", "--whitespace=nowarn", "-p1" if _has_prefixes(diff) else "-p0", "-"]
    try:
        done = subprocess.run(
            words, cwd=folder, env=apart, input=diff, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise InputError("A diff is applied with git, which is not installed.") from None
    if done.returncode:
        raise InputError(f"The diff does not apply to {shown(folder)}: {done.stderr.strip()}")


def _has_prefixes(diff: str) -> bool:
    return bool(re.search(r"^(?:--- a/|\+\+\+ b/|rename )", diff, re.MULTILINE))
