"""The benchmark of trials: its list of scripts, the longer copies of ours, and its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.tried_here import OWN, SCRIPTS, lengthened, listed, own, table


def test_a_list_names_folder_script_and_arguments(tmp_path: Path) -> None:
    file = tmp_path / "list"
    file.write_text(f"# of others\n{tmp_path} train.py --lr '1 2'  # a word\n\n{tmp_path}/a b.py\n")
    first, second = listed(file)
    assert first.words == ("train.py", "--lr", "1 2") and first.folder == tmp_path.resolve()
    assert first.name == f"{tmp_path.name}_train" and second.name == "a_b"


@pytest.mark.parametrize("name", OWN)
def test_scripts_of_ours_are_made_longer_and_differ_in_nothing_else(name: str, tmp_path: Path) -> None:
    (job,) = own([name], tmp_path)
    before = (SCRIPTS / f"{name}.py").read_text("utf-8").splitlines()
    after = (job.folder / job.words[0]).read_text("utf-8").splitlines()
    changed = [(one, other) for one, other in zip(before, after, strict=True) if one != other]
    assert len(changed) == 1 and "range(" in changed[0][0]
    compile("\n".join(after), name, "exec")


def test_the_loop_that_trains_is_found_in_what_it_calls() -> None:
    source = (
        "def step():\n    loss.backward()\nfor i in range(3):\n    i\nfor i in range(1, n + 1):\n    step()"
    )
    assert "range(1, (n + 1) * 200)" in lengthened(source)
    assert "range(3)" in lengthened(source)


def stored(folder: Path, fix: str, *, speedup: float, verified: float) -> None:
    measured = {"verdict": "faster" if speedup > 1 else "slower", "speedup": speedup, "loss": "same"}
    suggestion = {"fix": fix, "predicted_ms": 50.0, "measured": measured}
    diagnosis: dict[str, Any] = {
        "step": {"true_ms": 100.0},
        "suggestions": [suggestion],
        "capture": {"trials_s": 12.0},
    }
    (folder / "verify").mkdir(parents=True)
    (folder / "diagnosis.json").write_text(json.dumps(diagnosis))
    (folder / "trials.json").write_text(json.dumps({"rows": [{"fix": fix, "seconds": 7.0}]}))
    outcome = {"fixes": [fix], "measured": {"ratio": verified, "low": 0.5, "high": 3.0}}
    (folder / "verify" / "verify.json").write_text(json.dumps({"outcomes": [outcome]}))


def test_the_table_sets_prediction_trial_and_verify_side_by_side(tmp_path: Path) -> None:
    stored(tmp_path / "agrees", "FX311", speedup=1.9, verified=2.0)
    stored(tmp_path / "differs", "FX412", speedup=0.9, verified=1.2)
    text = table(tmp_path)
    assert "| agrees | FX311 | 2.00× | 1.90× | 2.00× (0.50 to 3.00) | yes | same | 7 |" in text
    assert "| differs | FX412 | 2.00× | 0.90×, slower | 1.20× (0.50 to 3.00) | NO | same | 7 |" in text
    assert "1 with another sign" in text and "took 12 s (median)" in text


def test_a_fix_that_the_trial_moved_back_counts_as_what_was_promised_first(tmp_path: Path) -> None:
    stored(tmp_path / "one", "FX412", speedup=0.9, verified=0.9)
    file = tmp_path / "one" / "diagnosis.json"
    diagnosis = json.loads(file.read_text())
    (last,) = diagnosis["suggestions"]
    gains = {
        "fix": "FX311",
        "predicted_ms": 80.0,
        "saves_ms": 20.0,
        "measured": {**last["measured"], "verdict": "faster"},
    }
    diagnosis["suggestions"] = [gains, {**last, "saves_ms": 50.0}]
    file.write_text(json.dumps(diagnosis))
    text = table(tmp_path)
    assert "First suggestions that trials decided about: 1, of them gains: 1." in text
    assert "First by what they promised: 1, of them gains: 0." in text
