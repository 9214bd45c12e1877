"""What was measured of a run's fixes stands beside what its diagnosis predicts, in every report."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from torch_bottleneck.model.diagnosis import Diagnosis
from torch_bottleneck.model.documents import document_text
from torch_bottleneck.model.documents import load_diagnosis as load
from torch_bottleneck.model.verify import Measured, Outcome, Parity, Verification
from torch_bottleneck.reporters import html, markdown, terminal
from torch_bottleneck.verify.record import tried_in, with_tried

GALLERY = Path(__file__).parents[3] / "reports" / "gallery" / "launch_bound"


@pytest.fixture(scope="module")
def diagnosis() -> Diagnosis:
    return load(GALLERY)


def outcome(*fixes: str, verdict: str = "faster", ratio: float = 1.58) -> Outcome:
    measured = Measured(
        ratio=ratio, low=ratio - 0.1, high=ratio + 0.1, pairs=3, before_ms=12.7, after_ms=12.7 / ratio
    )
    return Outcome(
        fixes=fixes,
        title="",
        verdict=verdict,  # type: ignore[arg-type]
        measured=None if verdict in ("failed", "not run") else measured,
        reason="it <b>broke</b>" if verdict == "failed" else "",
        parity=Parity(verdict="same"),
        predicted_ratio=1.95,
    )


def verification(created: str, *rows: Outcome) -> Verification:
    return Verification(created=created, outcomes=rows)


def test_the_newest_that_decides_counts(diagnosis: Diagnosis) -> None:
    told = with_tried(
        diagnosis,
        [
            verification("1", outcome("FX412"), outcome("FX311", ratio=1.7)),
            verification("2", outcome("FX412", ratio=1.6), outcome("FX311", verdict="undecided", ratio=1.1)),
            verification("3", outcome("FX412", verdict="not run")),
        ],
    )
    assert [(row.fixes, row.measured.ratio if row.measured else None) for row in told.tried] == [
        (("FX412",), 1.6),
        (("FX311",), 1.7),
    ]
    assert with_tried(diagnosis, []) is diagnosis


def test_verifications_are_found_in_their_order_and_broken_ones_left_out(tmp_path: Path) -> None:
    for name, created in (("verify", "2026-01-02"), ("verify-2", "2026-01-01")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "verify.json").write_text(document_text(verification(created)))
    (tmp_path / "verify-3").mkdir()
    (tmp_path / "verify-3" / "verify.json").write_text("{")
    assert [state.created for state in tried_in(tmp_path)] == ["2026-01-01", "2026-01-02"]


def test_every_report_shows_both(diagnosis: Diagnosis) -> None:
    rows = (outcome("FX412"), outcome("FX311", verdict="failed"), outcome("FX412", "FX311", ratio=4.1))
    told = with_tried(diagnosis, [verification("1", *rows)])
    assert msgspec.json.decode(msgspec.json.encode(told), type=Diagnosis) == told
    text = terminal.render(told)
    assert max(map(len, text.splitlines())) <= 80
    assert "measured: 12.7 → 8.0 ms, 1.58× (1.48 to 1.68), loss same" in text
    assert "FX412 and FX311 together measured: 12.7 → 3.1 ms, 4.10× (4.00 to 4.20), loss same" in " ".join(
        text.split()
    )
    page = markdown.render(told)
    assert "| FX412 | 1.95× | 1.58× (1.48 to 1.68) | - | same | faster |" in page
    assert "<b>" not in page
    web = html.render(told)
    assert '<table id="tried">' in web
    assert "it &lt;b&gt;broke&lt;/b&gt;" in web
    assert '<table id="tried">' not in html.render(diagnosis)
    assert "measured:" not in terminal.render(diagnosis)
