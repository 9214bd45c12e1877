"""A fused optimizer saves launches, work or new pages: the finding says which."""

from __future__ import annotations

import pytest

from torch_bottleneck.analyzers.findings.kernels import OptimizerUnfused
from torch_bottleneck.analyzers.findings.launch import OptimizerDispatch
from torch_bottleneck.model.codes import Part, WhatIf

from .facts import facts


@pytest.mark.parametrize(
    ("work_ms", "launching_ms", "code"),
    [(2.0, 20.0, "BN502"), (20.0, 2.0, "BN305"), (8.0, 2.0, "BN305")],
    ids=["launches", "work", "new pages for temporaries"],
)
def test_what_the_update_is_made_of_decides_its_class(work_ms: float, launching_ms: float, code: str) -> None:
    told = {"optimizer.share": (work_ms + launching_ms) / 100.0, "optimizer.launches": 40.0}
    given = facts("cpu", parts={Part.OPTIMIZER: work_ms}, saves={WhatIf.OPTIMIZER_FUSED: 24.0}, context=told)
    found = [*OptimizerDispatch().find(given), *OptimizerUnfused().find(given)]
    assert [finding.code for finding in found] == [code]
