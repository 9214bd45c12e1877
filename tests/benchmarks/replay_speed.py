"""How long one replay takes: a million launches, with and without waits in between.

python tests/benchmarks/replay_speed.py
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "timeline"))

from programs import make_program

from torch_bottleneck.timeline.lanes.budget import step_budget
from torch_bottleneck.timeline.lanes.labels import Work
from torch_bottleneck.timeline.lanes.program import WAIT_ALL, EventKind
from torch_bottleneck.timeline.lanes.replay import Edit, Replay


def main() -> None:
    for every in (0, 1000, 100):
        events: list[dict[str, object]] = [{"kind": EventKind.MARK}]
        for k in range(1_000_000):
            events.append(
                {"kind": EventKind.LAUNCH, "work": {Work.DISPATCH: 8_000.0}, "acts": [(0, 7_000.0, 2, -1)]}
            )
            if every and k % every == 0:
                events.append({"kind": EventKind.SYNC, "wait": WAIT_ALL, "after": 5_000.0})
            if k % 10_000 == 9_999:
                events.append({"kind": EventKind.MARK})
        program = make_program(events, latency=2_500.0, spacing=1_000.0)
        begin = time.process_time()
        replay = Replay(program)
        ready = time.process_time()
        schedule = replay.run()
        ran = time.process_time()
        step_budget(program, schedule, Edit().factors())
        done = time.process_time()
        waits = f"a wait every {every} launches" if every else "no waits"
        print(
            f"1 M launches, {waits}: prepare {ready - begin:.2f} s, one replay {ran - ready:.2f} s, "
            f"budget {done - ran:.2f} s (CPU)"
        )


if __name__ == "__main__":
    main()
