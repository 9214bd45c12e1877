"""The `bottleneck` command: runs the verb, turns errors into one clear line and an exit code.

In: command-line arguments. Out: an exit code.

    0  done, or a script that was stopped once enough was measured
    2  bad usage or input
    3  undetermined: the evidence does not allow a verdict
    4  the user's script itself failed
    1  a regression (`gate`, `compare`), no match (`catalog search`), or a bug of ours with its traceback
    130  interrupted
    any other: that of a script that `diagnose` ran (`RunFolder.exit_code`)
"""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from ..errors import BottleneckError
from ..reporters.stream import tell, tell_lines
from .group import cli

OUTSIDE_ERRORS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "Free some space, or write elsewhere."),
    **dict.fromkeys((errno.EROFS, errno.ENAMETOOLONG), "Write elsewhere."),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "Change its permissions, or choose another place."),
    errno.ELOOP: "Give the path without the link.",
}
"""System errors that are not bugs of ours, and what to do about them."""
ISSUES_HINT = (
    "This is a bug in bottleneck, not in your script. Please report it with the traceback above,\n"
    "the command you ran and the output of `bottleneck --version`."
)


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; only a bug of ours shows a traceback."""
    try:
        result = cli.main(
            args=None if argv is None else list(argv), prog_name="bottleneck", standalone_mode=False
        )
    except click.ClickException as error:
        if isinstance(error, click.UsageError) and error.ctx is not None:
            tell_lines(error.ctx.get_usage())
            tell(f"Try '{error.ctx.command_path} --help' for help.")
        # click lists the choices of an argument on lines of their own.
        tell(f"Error: {error.format_message().replace(chr(10) + chr(9), ' ')}")
        return 2
    except BottleneckError as error:
        tell(f"Error: {error}")
        return error.exit_code
    except OSError as error:
        if error.errno not in OUTSIDE_ERRORS:
            return _bug()
        where = f"{error.filename}: " if error.filename else ""
        tell(f"Error: {where}{error.strerror}. {OUTSIDE_ERRORS[error.errno]}")
        return 2
    except MemoryError:
        tell("Error: there is not enough memory for this. Give a smaller file, or a larger machine.")
        return 2
    except (click.Abort, KeyboardInterrupt):
        tell("Interrupted.")
        return 130
    except Exception:  # noqa: BLE001 - the last line of defence: a bug of ours, shown whole
        return _bug()
    return result if isinstance(result, int) else 0


def main() -> NoReturn:
    """Run the command line of this process and exit with its exit code."""
    sys.exit(run())


def _bug() -> int:
    tell_lines(traceback.format_exc().rstrip())
    tell_lines(ISSUES_HINT)
    return 1
