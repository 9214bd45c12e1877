"""The exceptions of the tool, each with a slug and an exit code.

In: nothing. Out: exception classes. The command line turns each into one clear line on stderr.

    BottleneckError            2   anything we can explain to the user
    +-- UsageError             2   bad command line
    +-- InputError             2   a file or folder is missing, damaged or of another kind
    |   +-- NotATraceError     2   the file is not a Kineto trace
    |   +-- RunFolderError     2   the folder is not a run folder, or has another format number
    |   +-- SnapshotError      2   the file is not a memory snapshot that can be read safely
    +-- UndeterminedError      3   the evidence does not allow a verdict
    +-- ScriptError            4   the user's script itself failed

`ValueError` is for misuse of our Python API; `assert` is for our own bugs.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "BottleneckError",
    "InputError",
    "NotATraceError",
    "RunFolderError",
    "ScriptError",
    "SnapshotError",
    "UndeterminedError",
    "UsageError",
]


class BottleneckError(Exception):
    """Base of every error that the user can solve; it says what to do.

    Args:
        message: what is wrong and where.
        remedy: what to do about it, one sentence; shown after the message.
    """

    slug: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()


class UsageError(BottleneckError):
    """The command line is wrong."""

    slug = "usage"


class InputError(BottleneckError):
    """A file or folder is missing, damaged or of another kind."""

    slug = "bad-input"


class NotATraceError(InputError):
    """The file is not a Kineto (Chrome JSON) trace."""

    slug = "not-a-trace"


class RunFolderError(InputError):
    """The folder is not a run folder, is incomplete, or has a format number we do not read."""

    slug = "bad-run-folder"


class SnapshotError(InputError):
    """The file is not a memory snapshot, is damaged, or holds more than plain data."""

    slug = "not-a-snapshot"


class UndeterminedError(BottleneckError):
    """The evidence does not allow a verdict."""

    slug = "undetermined"
    exit_code = 3


class ScriptError(BottleneckError):
    """The user's script itself failed; its own traceback has been shown."""

    slug = "script-failed"
    exit_code = 4
