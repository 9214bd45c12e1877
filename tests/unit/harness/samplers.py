"""Samplers of earlier tests go on for seconds, and shorten the switch interval meanwhile."""

from __future__ import annotations

import threading

NAMES = ("bottleneck-sampler", "bottleneck-loop-lines", "bottleneck-stacks")


def wait_for_samplers() -> None:
    """Return when none is left."""
    for thread in threading.enumerate():
        if thread.name in NAMES:
            thread.join(timeout=600)
            assert not thread.is_alive()
