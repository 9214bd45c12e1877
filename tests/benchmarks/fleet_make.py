"""Makes the traces of N ranks from recorded runs of two, with lateness and clocks of our choosing.

    python tests/benchmarks/fleet_make.py FOLDER --ranks 64 --steps 5 --late 17 --cause input

Ranks that wait are copies of the recorded rank that waited (`ddp-straggler-h200`, rank 0), late ones of the
rank that slept 20 ms in each step (rank 1): one whole step of each, as often as asked for. Without a late
rank all are copies of the two ranks of `ddp-h200`. Clocks differ by up to 5 ms and 20 parts per million.

    host      a pause of the host that no label explains
    input     the same pause inside the fetch of a batch
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from recorded.cases import CASES

CAUSES = ("host", "input")
MOST_SKEW_US, MOST_DRIFT = 5000.0, 20e-6
_FETCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@dataclass(frozen=True, kw_only=True)
class Template:
    """One recorded step of a rank, its texts cut at the times."""

    header: dict[str, Any]
    texts: list[tuple[str, str, str]]
    """JSON of each event: before its start, between start and duration, after it."""
    start_us: NDArray[np.float64]
    end_us: NDArray[np.float64]
    pause_us: tuple[float, float]
    """The longest pause of the host."""
    thread: tuple[Any, Any]
    mark: int
    """The profiler's mark of the step."""
    period_us: float
    """From one step to the next, by the ends of the first collectives."""


def template(case: str, rank: int) -> Template:
    """Return the last recorded step of a rank."""
    with gzip.open(CASES[case].traces[rank]) as file:
        document = json.load(file)
    events = [e for e in document.pop("traceEvents") if e["ph"] == "X" and e["cat"] != "Trace"]
    marks = [e for e in events if e["name"].startswith("ProfilerStep") and e["cat"] == "user_annotation"]
    mark = marks[-1]
    low, high = mark["ts"], _end(mark)
    host = [e for e in events if not _is_device(e) and low <= e["ts"] <= high]
    launched = {_correlation(e) for e in host} - {0}
    device = [e for e in events if _is_device(e) and _correlation(e) in launched]
    chosen = sorted(host + device, key=lambda e: e["ts"])
    sends = [e for e in events if e["cat"] == "kernel" and "nccl" in e["name"]]
    sends.sort(key=lambda e: e["ts"])
    firsts = sends[:: len(sends) // len(marks)]
    pause = _longest_pause(host, (mark["pid"], mark["tid"]), low)
    period = (_end(firsts[-1]) - _end(firsts[0])) / (len(firsts) - 1)
    return Template(
        header=document,
        texts=[_cut(e) for e in chosen],
        start_us=np.asarray([e["ts"] for e in chosen]),
        end_us=np.asarray([_end(e) for e in chosen]),
        pause_us=pause,
        thread=(mark["pid"], mark["tid"]),
        mark=next(i for i, e in enumerate(chosen) if e is mark),
        period_us=period,
    )


def _is_device(event: dict[str, Any]) -> bool:
    return event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")


def _end(event: dict[str, Any]) -> float:
    return float(event["ts"] + event["dur"])


def _correlation(event: dict[str, Any]) -> int:
    return int(event.get("args", {}).get("correlation", 0))


def _longest_pause(host: list[dict[str, Any]], thread: tuple[Any, Any], low: float) -> tuple[float, float]:
    """Return the longest time in which no thread of the host does anything."""
    busy = sorted((e["ts"], _end(e)) for e in host if e["cat"] in ("cpu_op", "cuda_runtime", "cuda_driver"))
    ends = np.maximum.accumulate([low, *(end for _, end in busy)])
    pauses = [(float(end), start) for end, (start, _) in zip(ends, busy, strict=False)]
    return max(pauses, key=lambda pause: pause[1] - pause[0])


def _cut(event: dict[str, Any]) -> tuple[str, str, str]:
    text = json.dumps({**event, "ts": -1.25, "dur": -2.25})
    before, _, rest = text.partition("-1.25")
    between, _, after = rest.partition("-2.25")
    return before, between, after


@dataclass(kw_only=True)
class Job:
    """What is to be made."""

    ranks: int
    steps: int = 5
    late: tuple[int, ...] = ()
    cause: str = "host"
    seed: int = 1
    clocks: int = 32
    """Of as many kinds: ranks that far apart have the same one, and so the same events."""
    templates: dict[str, Template] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.late:
            self.templates["patient"] = template("ddp-straggler-h200", 0)
            self.templates["late"] = template("ddp-straggler-h200", 1)
        else:
            self.templates["even"] = template("ddp-h200", 0)
            self.templates["odd"] = template("ddp-h200", 1)

    def of(self, rank: int) -> Template:
        """Return what a rank is a copy of."""
        if self.late:
            return self.templates["late" if rank in self.late else "patient"]
        return self.templates["odd" if rank % 2 else "even"]

    @property
    def period_us(self) -> float:
        """One step is as long on all ranks."""
        return next(iter(self.templates.values())).period_us


def write_rank(path: Path, job: Job, rank: int, body: bytes) -> None:
    """Write the trace of one rank: its own head, and events as `events_of` packs them."""
    stated = {"backend": "nccl", "rank": rank, "world_size": job.ranks, "pg_count": 1}
    head = json.dumps({**job.of(rank).header, "distributedInfo": stated})[:-1]
    # Two members of one gzip file.
    path.write_bytes(gzip.compress(f'{head}, "traceEvents": [\n'.encode(), 1) + body)


def events_of(job: Job, rank: int) -> bytes:
    """Return the events of one rank, compressed."""
    rng = np.random.default_rng([job.seed, rank])
    made = job.of(rank)
    skew_us = rng.uniform(-MOST_SKEW_US, MOST_SKEW_US)
    speed = 1.0 + rng.uniform(-MOST_DRIFT, MOST_DRIFT)
    start, end = made.start_us.copy(), made.end_us.copy()
    end[made.mark] = min(end[made.mark], start[made.mark] + job.period_us - 5.0)
    zero = float(start[0])
    lines = []
    texts = [_renamed(text, job.ranks, rank) for text in made.texts]
    for step in range(job.steps):
        begin = start + step * job.period_us
        length = (end + step * job.period_us - begin) * speed
        moment = zero + (begin - zero) * speed + skew_us
        for (before, between, after), at, dur in zip(texts, moment, length, strict=True):
            lines.append(f"{_numbered(before, step)}{at:.3f}{between}{dur:.3f}{_numbered(after, step)}")
        if job.cause == "input" and rank in job.late:
            low, high = made.pause_us[0] + 20.0, made.pause_us[1] - 20.0
            at = zero + (low + step * job.period_us - zero) * speed + skew_us
            pid, tid = made.thread
            lines.append(
                json.dumps(
                    {"ph": "X", "cat": "user_annotation", "name": _FETCH, "pid": pid, "tid": tid,
                     "ts": round(at, 3), "dur": round((high - low) * speed, 3), "args": {}}
                )
            )  # fmt: skip
    return gzip.compress(",\n".join(lines).encode() + b"\n]}\n", 1)


def _renamed(text: tuple[str, str, str], ranks: int, rank: int) -> tuple[str, str, str]:
    before, between, after = text
    if "Process Group Ranks" in after:
        group = str(list(range(ranks))) if ranks <= 32 else f"[0, 1, 2, ..., {ranks - 1}]"
        after = after.replace('"[0, 1]"', json.dumps(group)).replace(
            '"Group size": 2', f'"Group size": {ranks}'
        )
        after = after.replace('"Rank": 0', f'"Rank": {rank}').replace('"Rank": 1', f'"Rank": {rank}')
    return before, between, after


_KEYS = ('"correlation": ', '"External id": ', '"Sequence number": ')
_MARK = re.compile(r"ProfilerStep#(\d+)")


def _numbered(text: str, step: int) -> str:
    """Count on the numbers that are not the same in two steps: a digit in front keeps their order."""
    if step:
        for key in _KEYS:
            text = text.replace(key, f"{key}{step}0")
        text = _MARK.sub(lambda found: f"ProfilerStep#{int(found[1]) + step}", text)
    return text


def make(folder: Path, job: Job) -> None:
    """Write the traces of a job."""
    folder.mkdir(parents=True, exist_ok=True)
    bodies: dict[tuple[bool, int], bytes] = {}
    for rank in range(job.ranks):
        clock = (rank in job.late, rank % min(job.clocks, job.ranks))
        if clock not in bodies:
            bodies[clock] = events_of(job, rank)
        write_rank(folder / f"rank{rank:04d}.1.pt.trace.json.gz", job, rank, bodies[clock])


def main() -> None:
    """Write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--late", type=int, nargs="*", default=[], help="ranks")
    parser.add_argument("--cause", choices=CAUSES, default="host")
    wanted = parser.parse_args()
    make(
        wanted.folder,
        Job(
            ranks=wanted.ranks,
            steps=wanted.steps,
            late=tuple(wanted.late),
            cause=wanted.cause,
        ),
    )


if __name__ == "__main__":
    main()
