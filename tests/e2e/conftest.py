"""End-to-end tests drive real processes by signals and the clock: on a busy machine each gets two more tries.

Reruns are printed at the end (`-r R`), so that a test that needs them often does not hide.
"""

from __future__ import annotations

from pathlib import Path

import forked
import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give this folder's tests two reruns."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.flaky(reruns=2))


@pytest.fixture
def new_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each process anew: the test is about what the interpreter itself does."""
    monkeypatch.setattr(forked, "allowed", False)
