"""Puts the report of a run into the README, where it shows what `make demo` prints.

    make demo
    python tests/benchmarks/readme_demo.py reports/demo-20260102-030405

In: a run folder. Out: README.md with the text between its demo marks replaced.
"""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"
MARKS = re.compile(r"(<!-- demo -->\n).*?(<!-- /demo -->)", re.DOTALL)


def main(run: str) -> None:
    """Render `run` as a terminal of 80 columns would show it, and write it into the README."""
    command = [sys.executable, "-m", "torch_bottleneck", "report", run]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    block = f"```\n{report}```\n"
    text, found = MARKS.subn(lambda mark: mark[1] + block + mark[2], README.read_text())
    if found != 1:
        sys.exit(f"{README} has {found} pairs of demo marks, not one.")
    README.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1])
