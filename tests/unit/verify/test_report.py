"""One verification, as every format shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from torch_bottleneck.errors import InputError
from torch_bottleneck.model.documents import document_text, load_verification
from torch_bottleneck.model.run import DeviceFacts, SourceSite
from torch_bottleneck.model.schema import schema_of, schema_text, shipped
from torch_bottleneck.model.verify import (
    VERIFY_SCHEMA,
    Edit,
    Measured,
    Noise,
    Outcome,
    Parity,
    Protocol,
    RunRecord,
    Verification,
)
from torch_bottleneck.model.words import clean
from torch_bottleneck.reporters import verify_markdown, verify_terminal
from torch_bottleneck.reporters.rows.verify import headline, reason_lines, rows_of

HOSTILE = "<script>|`x`\x1b[31m\nnew"


def measured(ratio: float, low: float | None, high: float | None) -> Measured:
    return Measured(ratio=ratio, low=low, high=high, pairs=3, before_ms=10.0, after_ms=10.0 / ratio)


VERIFICATION = Verification(
    script="train.py",
    cwd="/home/me",
    device=DeviceFacts(kind="cuda", name="NVIDIA H200"),
    protocol=Protocol(steps=40),
    noise=Noise(runs=5, share=0.004, worst=0.011),
    reproducible="The script repeats itself exactly (5 runs with the same seed).",
    complete=True,
    combination=("FX101", "FX311"),
    outcomes=(
        Outcome(
            fixes=("FX101",),
            title="Give the DataLoader enough workers",
            verdict="faster",
            predicted_ms=5.0,
            predicted_ratio=2.0,
            measured=measured(1.5, 1.4, 1.6),
            error=-0.25,
            memory_bytes=-2_500_000,
            memory_is="device",
            startup_seconds=4.0,
            pays_after_steps=1200,
            parity=Parity(verdict="same"),
            evidence="num_workers 0 -> 4 on 1 DataLoader",
        ),
        Outcome(
            fixes=("FX303",),
            title="bf16",
            verdict="harmful",
            reason="The loss is not finite from backward 7 on.",
            predicted_ratio=4.0,
            bound=True,
            measured=measured(3.0, 2.9, 3.1),
            parity=Parity(verdict="harmful"),
        ),
        Outcome(fixes=("FX414",), title=HOSTILE, verdict="failed", reason=HOSTILE),
        Outcome(
            fixes=("FX311",),
            base=("FX101",),
            title="fused",
            verdict="faster",
            measured=measured(1.2, 1.1, 1.3),
            parity=Parity(verdict="close", text="The losses stay within 0.001.", steps_to_loss=(40, None)),
        ),
        Outcome(
            fixes=("FX101", "FX311"),
            title="Together",
            verdict="faster",
            measured=measured(1.8, 1.7, 1.9),
            parity=Parity(verdict="same"),
        ),
    ),
    edits=(
        Edit(
            fix="FX101",
            where=SourceSite(file="/home/me/train.py", line=7, function="main"),
            diff="--- a/train.py\n+++ b/train.py\n@@ -7 +7 @@\n-old\n+new\n",
        ),
        Edit(fix="FX311", what="Use it.", code="x = 1", reason="line 3 holds no such call"),
    ),
    runs=tuple(RunRecord(number=i + 1) for i in range(9)),
    notes=("A note.",),
)


def test_the_headline_is_the_combination_against_the_script_as_it_is() -> None:
    assert headline(VERIFICATION) == "FX101 + FX311: 10.0 → 5.6 ms, 1.80× (1.70 to 1.90), loss same."
    nothing = msgspec.structs.replace(VERIFICATION, combination=(), outcomes=VERIFICATION.outcomes[1:3])
    assert headline(nothing) == "None of the 2 fixes tried helps."
    open_ = msgspec.structs.replace(
        nothing, outcomes=(Outcome(fixes=("FX1",), title="", verdict="undecided"),)
    )
    assert headline(open_) == "No fix has been shown to help so far."
    # What was never timed has not been found to be of no help.
    alone = msgspec.structs.replace(nothing, outcomes=VERIFICATION.outcomes[2:3])
    assert headline(alone) == f"The fix failed: {clean(HOSTILE)}."
    absent = Outcome(fixes=("FX1",), title="", verdict="not applied", reason="no DataLoader was built")
    alone = msgspec.structs.replace(nothing, outcomes=(absent,))
    assert headline(alone) == "The fix was not applied: no DataLoader was built."
    both = msgspec.structs.replace(nothing, outcomes=(absent, VERIFICATION.outcomes[2]))
    assert headline(both) == "None of the 2 fixes could be measured: not applied, or failed."


def test_rows_hold_what_was_predicted_beside_what_was_measured() -> None:
    first, second, _failed, beside, _both = rows_of(VERIFICATION.outcomes)
    assert first.cells == ("FX101", "2.00×", "1.50× (1.40 to 1.60)", "-2 MB", "same", "faster")
    assert second.cells == ("FX303", "at best 4.00×", "3.00× (2.90 to 3.10)", "-", "harmed", "harmful")
    assert beside.fix == "FX311 beside FX101"
    assert (second.bad, second.good, first.good) == (True, False, True)


def test_reasons_say_what_figures_cannot() -> None:
    lines = reason_lines(VERIFICATION)
    assert "4 s more to start, paid back after 1 200 steps" in lines[0]
    assert "the prediction was 25 % off" in lines[0]
    assert "not finite from backward 7" in lines[1]
    assert "is not reached with the fix" in lines[3]


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_the_terminal_keeps_to_its_width_and_says_everything(width: int) -> None:
    text = verify_terminal.render(VERIFICATION, width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text
    for word in ("harmful", "failed", "FX101", "Keep: FX101 + FX311", "+new", "no patch: line 3", "0.4 %"):
        assert word in text, word
    assert "resume" not in text


def test_a_plain_stream_gets_ascii_and_an_unfinished_one_is_told_so() -> None:
    left = msgspec.structs.replace(VERIFICATION, complete=False)
    text = verify_terminal.render(left, unicode=False)
    assert text.isascii()
    assert "--resume" in text
    assert "\x1b[" in verify_terminal.render(VERIFICATION, color=True)


def test_markdown_holds_nothing_that_acts_as_markup() -> None:
    text = verify_markdown.render(VERIFICATION)
    assert "<script>" not in text
    assert "| FX101 | 2.00× | 1.50× (1.40 to 1.60) | -2 MB | same | faster |" in text
    assert "````diff" in text
    columns = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert columns == {7}


def test_json_comes_back_as_it_was_and_obeys_the_shipped_schema(tmp_path: Path) -> None:
    assert shipped(Verification).read_text() == schema_text(Verification), "run: make schema"
    document = json.loads(document_text(VERIFICATION))
    jsonschema.validate(document, schema_of(Verification))
    (tmp_path / "verify.json").write_text(json.dumps(document))
    assert load_verification(tmp_path) == VERIFICATION


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not a verify.json"),
        ("[]", "is not a verify.json"),
        ('{"schema": 1, "outcomes": 3}', "is not a verify.json"),
        (f'{{"schema": {VERIFY_SCHEMA + 1}}}', "Upgrade torch-bottleneck"),
    ],
)
def test_what_is_no_verification_is_refused(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "verify.json").write_text(content)
    with pytest.raises(InputError, match=said):
        load_verification(tmp_path)


def test_a_folder_without_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        load_verification(tmp_path)


def test_an_empty_verification_renders() -> None:
    empty: Any = Verification(script="train.py")
    assert "train.py" in verify_terminal.render(empty)
    assert verify_markdown.render(empty).startswith("# train.py")


def test_fixes_that_add_to_each_other_are_kept_before_they_were_timed_together() -> None:
    left = msgspec.structs.replace(VERIFICATION, outcomes=VERIFICATION.outcomes[:-1])
    assert headline(left) == (
        "FX101 + FX311: each improves on those before it; their combined gain is not measured yet."
    )
