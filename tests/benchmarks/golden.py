"""Freeze what the tool says about every recorded run: one file per case in tests/golden/.

In: tests/recorded/. Out: tests/golden/NAME.json with verdict, grade, causes and prices, ranking of fixes
with predictions, and budget; `--full DIR` writes whole diagnoses, to compare two versions line by line.

    python tests/benchmarks/golden.py            # rewrite the golden files
    python tests/benchmarks/golden.py --check    # say what differs; exit status 1 if anything does
    python tests/benchmarks/golden.py --full DIR [NAME...]

A change that alters a golden file says why in its commit, with the measurement that makes the new
answer right.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec
from recorded.cases import CASES

from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.model.diagnosis import Diagnosis

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
REL, ABS_MS = 1e-3, 2e-3
"""Two answers are the same within a thousandth, or 2 us: what rounding and the order of sums may change."""


def answer_of(name: str) -> dict[str, Any]:
    """Return what the tool says about a recorded run today, as plain JSON values."""
    return summary(diagnose_paths([CASES[name].folder]))


def summary(found: Diagnosis) -> dict[str, Any]:
    """Reduce a diagnosis to its decisions and figures; sentences are left out on purpose."""
    verdict = found.verdict
    return {
        "class": verdict.bottleneck_class.value,
        "confidence": verdict.confidence,
        "also": [c.value for c in verdict.also],
        "quality": found.capture.quality,
        "step": {
            "true_ms": _ms(found.step.true_ms),
            "profiled_ms": _ms(found.step.profiled_ms),
            "count": found.step.count,
            "true_is": found.step.true_is,
        },
        "replay_error": _ms(found.capture.replay_error),
        "dispatch_scale": _ms(found.capture.dispatch_scale),
        "budget": {line.part.value: _ms(line.ms) for line in found.budget},
        "causes": [
            {
                "class": cause.bottleneck_class.value,
                "code": cause.code,
                "cost_ms": _ms(cause.cost_ms),
                "predicted_ms": _ms(cause.predicted_ms),
                "after_previous_ms": _ms(cause.after_previous_ms),
                "negligible": cause.negligible,
            }
            for cause in found.causes
        ],
        "findings": [
            {"code": f.code, "cost_ms": _ms(f.cost_ms), "time_ms": _ms(f.time_ms), "note": f.note}
            for f in found.findings
        ],
        "suggestions": [
            {
                "fix": s.fix,
                "finding": s.finding,
                "predicted_ms": _ms(s.predicted_ms),
                "adds_ms": _ms(s.adds_ms),
                "bound": s.bound,
                "can_try": s.can_try,
                "note": s.note,
                "site": f"{Path(s.site.file).name}:{s.site.line}" if s.site is not None else None,
            }
            for s in found.suggestions
        ],
        "applicable": [s.fix for s in found.applicable],
        "combination": [*found.combination.fixes, _ms(found.combination.predicted_ms)]
        if found.combination is not None
        else None,
        "what_ifs": {
            " ".join(filter(None, (answer.question.value, answer.about))): [_ms(answer.step_ms), answer.bound]
            for answer in found.what_ifs
        },
    }


def decisions(found: Diagnosis) -> dict[str, Any]:
    """Return all that a diagnosis decides, and nothing of what it says."""
    fixes = (*found.suggestions, *found.applicable)
    return {
        **summary(found),
        "doubts": sorted(found.capture.codes),
        "named": sorted(found.verdict.doubts),
        "edits": [(fix.can_try, fix.options) for fix in fixes],
    }


def sentences(found: Diagnosis) -> list[str]:
    """Return the headline and the titles of the findings."""
    return [found.verdict.headline, *(finding.title for finding in found.findings)]


def _ms(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """Return where two answers differ by more than rounding, as "path: old -> new"."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for key in [*old, *(key for key in new if key not in old)]
            for line in differences(old.get(key), new.get(key), f"{where}.{key}" if where else key)
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            line
            for i, (a, b) in enumerate(zip(old, new, strict=True))
            for line in differences(a, b, f"{where}[{i}]")
        ]
    if isinstance(old, (int, float)) and isinstance(new, (int, float)) and not isinstance(old, bool):
        return [] if abs(old - new) <= max(ABS_MS, REL * abs(old)) else [f"{where}: {old} -> {new}"]
    return [] if old == new else [f"{where}: {old} -> {new}"]


def main() -> int:
    """Write or compare; the exit status says whether anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", default=sorted(CASES))
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--full", type=Path, metavar="DIR")
    args = parser.parse_args()
    names = args.names or sorted(CASES)
    if args.full is not None:
        args.full.mkdir(parents=True, exist_ok=True)
        for name in names:
            found = msgspec.structs.replace(diagnose_paths([CASES[name].folder]), created="")
            (args.full / f"{name}.json").write_bytes(
                msgspec.json.format(msgspec.json.encode(found), indent=1)
            )
        return 0
    changed = 0
    for name in names:
        path, answer = GOLDEN / f"{name}.json", answer_of(name)
        if not args.check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(answer, indent=1) + "\n")
            continue
        lines = differences(json.loads(path.read_text()) if path.is_file() else None, answer)
        changed += bool(lines)
        for line in lines:
            print(f"{name}: {line}")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
