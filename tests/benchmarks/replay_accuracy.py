"""Predicted against measured: what the replay said of recorded runs, and what the fix then gave.

    python tests/benchmarks/replay_accuracy.py        writes reports/replay-accuracy.md

Reads tests/recorded/ (measured on an H200, see each CASE.md); needs no GPU.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

from torch_bottleneck.ingest import read_trace
from torch_bottleneck.model.codes import WhatIf
from torch_bottleneck.timeline.gpu import read_gpu
from torch_bottleneck.timeline.steps import find_steps

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from recorded.cases import CASES  # noqa: E402

HEAD = """# Predicted against measured

What the replay predicted for a recorded H200 step with one cause removed, and what the step measured
once the cause was removed for real. Made by `python tests/benchmarks/replay_accuracy.py` from
`tests/recorded/`; misses are not left out.

| case | question | step | predicted | measured | error of the step |
| --- | --- | ---: | ---: | ---: | ---: |
"""


def main() -> None:
    rows: list[str] = []
    errors: list[float] = []
    for name, case in CASES.items():
        fixed = case.facts.get("fixed_step_ms")
        if not fixed or case.true_step_ms is None or "what_if" not in case.facts:
            continue
        trace = read_trace(case.traces[0])
        timeline = read_gpu(trace, find_steps(trace), true_ms=case.true_step_ms)
        assert timeline is not None
        question = WhatIf(case.facts["what_if"])
        answer = timeline.what_ifs.get(question)
        predicted = answer.step_ms if answer is not None else timeline.true_ms
        error = predicted / float(fixed) - 1
        errors.append(abs(error))
        rows.append(
            f"| {name} | {question.value} | {case.true_step_ms:.2f} ms | {predicted:.2f} ms "
            f"| {float(fixed):.2f} ms | {error:+.1%} |"
        )
    text = HEAD + "\n".join(rows)
    text += (
        f"\n\nMedian error {median(errors):.1%}, worst {max(errors):.1%}, over {len(errors)} cases. Some "
        "constants of the replay (docstrings in `bottleneck/timeline/gpu_what_ifs.py`) were chosen "
        "on these very runs: the gallery and the trials are the independent record.\n"
    )
    (ROOT / "reports" / "replay-accuracy.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
