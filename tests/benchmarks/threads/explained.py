"""Why the tool missed a thread, in words; shown only while it is missed.

In: nothing. Out: `EXPLAINED`, by thread.
"""

from __future__ import annotations

EXPLAINED: dict[str, str] = {}
