"""The record of predictions that reports show: of fixes that there are, and no more than was measured."""

from __future__ import annotations

import pytest

from torch_bottleneck.catalog.registry import FIXES
from torch_bottleneck.model.fix import Fix

WITH_RECORD = [fix for fix in FIXES if fix.record is not None]


def test_a_third_of_the_fixes_were_held_against_measurements() -> None:
    assert len(WITH_RECORD) >= len(FIXES) // 3


@pytest.mark.parametrize("fix", WITH_RECORD, ids=lambda fix: fix.id)
def test_a_record_adds_up(fix: Fix) -> None:
    record = fix.record
    assert record is not None
    assert 0 <= record.close <= record.predictions
    assert 0 <= record.held <= record.bounds
    assert record.predictions + record.bounds > 0
    assert (record.error is None) == (record.predictions == 0)
