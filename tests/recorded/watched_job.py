"""The recorded watched job, read once.

In: the folder `watched`. Out: `RUN`, its run folder, and `recorded`, its account with its fixes.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from torch_bottleneck.catalog.job import with_fixes
from torch_bottleneck.model.documents import load_watch
from torch_bottleneck.model.watch import Watch

__all__ = ["RUN", "recorded"]

RUN = Path(__file__).parent / "watched" / "run"


@cache
def recorded() -> Watch:
    """Return the account."""
    return with_fixes(load_watch(RUN))
