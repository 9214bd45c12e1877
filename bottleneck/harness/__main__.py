"""The process in which the script runs: `python .../harness/__main__.py PLAN [ARGS]...`.

In: a plan as JSON, then the script's own arguments. Out: the script's effects and exit code, and a
run folder. Started by `launch`, not by people: by path for a script, by `-m` for a module, because
then the path and the traceback begin as they do under python.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # First on the path is now our own folder, whose `trace` and `loader` nobody is to import, or
    # for `-m` the working folder, where people do keep a `torch` or a `typing.py`. Nothing of ours
    # may come from either; the runner puts back what python would have there.
    working_folder = None if getattr(sys.flags, "safe_path", False) else sys.path.pop(0)

    # By its full name: run by path, this file belongs to no package.
    from torch_bottleneck.harness.process.runner import main

    main(working_folder)
