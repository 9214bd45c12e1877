"""The clocks, as they were before the user's script began.

In: nothing. Out: functions of `time` under their own names. A script may replace them there (a test that
freezes time, a simulation with a clock of its own), and so may what it imports, in every module that holds
one of them: hence a `partial` around each, which is a function of nobody else's.

Imported by the process of the script before the script runs; whatever measures or waits there takes its
clock from here.
"""

from __future__ import annotations

import time
from functools import partial

__all__ = [
    "epoch_ns",
    "monotonic",
    "perf_counter",
    "perf_counter_ns",
    "process_time_ns",
    "sleep",
    "thread_time_ns",
]

perf_counter = partial(time.perf_counter)
perf_counter_ns = partial(time.perf_counter_ns)
monotonic = partial(time.monotonic)
sleep = partial(time.sleep)
epoch_ns = partial(time.time_ns)
process_time_ns = partial(time.process_time_ns)
thread_time_ns = partial(time.thread_time_ns)
