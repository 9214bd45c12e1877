"""What is to be run: a script or a module, with its arguments.

In: words of the command line. Out: a `Target`, or an error that says why python could not run it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError, UsageError

LAUNCHERS = {
    "python": "Leave out `python`: bottleneck {verb} train.py",
    "python3": "Leave out `python3`: bottleneck {verb} train.py",
    "torchrun": "Put the launcher first: torchrun ... -m torch_bottleneck {verb} train.py",
    "accelerate": "Put the launcher first: accelerate launch ... -m torch_bottleneck {verb} train.py",
    "deepspeed": "Put the launcher first: deepspeed ... --module torch_bottleneck {verb} train.py",
}
OTHER_KINDS = {
    ".ipynb": ("a notebook", "Convert it first: jupyter nbconvert --to script {}"),
    ".json": ("JSON", "To read a profiler trace: bottleneck analyze {}"),
}
"""Suffix -> what it is, and what to do. JSON that happens to be a Python expression would run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is run."""

    script: str | None = None
    """Path as typed; None where `module` is given."""
    module: str | None = None
    args: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    """Words in front, as in ("torchrun", "--nproc-per-node", "2")."""
    cwd: Path | None = None
    """Working folder; None: ours."""

    @property
    def name(self) -> str:
        """The script as typed, or -m and the module."""
        return self.script if self.script is not None else f"-m {self.module}"


def find_target(module: str | None, words: tuple[str, ...], *, verb: str) -> Target:
    """Return what the words name; a script is checked.

    A `--` before the arguments is dropped.

    Raises:
        UsageError: they name nothing.
        InputError: there is no such script, or it is no Python source.
    """
    if module is not None:
        if module == "--":
            raise UsageError("-m needs a module.", remedy=f"bottleneck {verb} -m package.module")
        return Target(module=module, args=_without_dashes(words))
    if not words:
        raise UsageError("No script given.", remedy=f"bottleneck {verb} [options] train.py [its arguments]")
    check_script(words[0], verb=verb)
    return Target(script=words[0], args=_without_dashes(words[1:]))


def _without_dashes(words: tuple[str, ...]) -> tuple[str, ...]:
    return words[1:] if words[:1] == ("--",) else words


def check_script(target: str, *, verb: str) -> None:
    """Check, before anything runs, that python can run the script.

    Raises:
        InputError: there is no such script, or it is no Python source.
    """
    path = Path(target)
    if path.is_dir():
        inside = path / "__main__.py"
        hint = f"Run {inside}, or `-m {path.name}`." if inside.is_file() else "Give the script in it."
        raise InputError(f"{target} is a folder, not a script.", remedy=hint)
    if not path.exists():
        hint = f"The working folder is {Path.cwd()}."
        if path.name in LAUNCHERS:
            hint = LAUNCHERS[path.name].format(verb=verb)
            if verb == "verify" and not path.name.startswith("python"):
                hint = f'Give the launcher and its options separately: --launcher "{path.name} ..."'
        if target.startswith("-"):
            hint = f"Options of bottleneck come before the script: see `bottleneck {verb} --help`."
        raise InputError(f"There is no script {target}.", remedy=hint)
    if not path.is_file():
        # Reading a pipe would wait for its writer, and leave nothing for the script's process.
        raise InputError(f"{target} is a pipe or a device, not a file.", remedy="Write the script to a file.")
    if path.suffix in OTHER_KINDS:
        kind, hint = OTHER_KINDS[path.suffix]
        raise InputError(f"{target} is {kind}, not Python source.", remedy=hint.format(path))
    try:
        source = path.read_bytes()
    except OSError as error:
        raise InputError(f"Cannot read {target}: {error.strerror}.") from None
    if source.startswith(b"PK\x03\x04") and path.suffix in (".pyz", ".zip"):
        raise InputError(f"{target} is a zip archive.", remedy="Unpack it, and give the script in it.")
    if b"\0" in source[:65536]:
        raise InputError(f"{target} is a binary file, not Python source.")
    if path.suffix != ".py":
        try:
            compile(source, target, "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            raise InputError(f"{target} is not Python source.") from None
