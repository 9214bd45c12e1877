"""`python -m torch_bottleneck.harness PLAN [ARGS]...`: the process in which the script runs.

In: a plan as JSON, then the script's own arguments. Out: the script's effects and exit code, and a
run folder. Started by `launch`, not by people.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # With `-m` python puts the working folder first on the path. Nothing of ours may come from
    # there (people do stand in folders that hold a `torch` or a `typing.py`), nor the script's
    # imports unless python would do the same for it.
    working_folder = None if getattr(sys.flags, "safe_path", False) else sys.path.pop(0)

    from .runner import main

    main(working_folder)
