"""Is the step time of `diagnose` that of a plain run? Both in turns, over the same stretch of steps.

    python tests/benchmarks/true_step.py [--minutes 60] [--device cpu|cuda] [--repeats 3] [--jobs 1] [COMMAND]

In: twenty scripts, or commands like "train.py --device cuda". Out: reports/true-step.md (`--out`), written
anew after each pair: how often the interval of `diagnose` holds the plain figure, how far the two are apart,
and how long `diagnose` takes. With `--jobs` several scripts run at once, each on `--cores` cores, and a GPU,
of its own.

The plain figure is that of a timer of its own: a public hook of torch notes the host's clock after each
optimizer step, and waits for the device at the first and the last of the stretch. It knows nothing of the
harness but which steps were timed. It times them all, those in which `diagnose` had its profiler on
included. Two processes of one script differ by themselves: how much is read from the plain runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import runpy
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, perf_counter_ns
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "reports" / "true-step.md"
TRIALS = "tests/benchmarks/trials"
LONGEST_RUN_S = 180.0
HELD_TARGET, APART_TARGET = 0.95, 0.01
DRIFT = ("steps-drift", "later-steps-")
ENDLESS = "--steps 20000"

SCRIPTS = {
    f"examples/allocator_thrashing.py {ENDLESS}": 1,
    f"examples/compute_bound.py {ENDLESS}": 1,
    f"examples/empty_cache.py {ENDLESS}": 1,
    f"examples/graph_breaks.py {ENDLESS}": 1,
    f"examples/input_bound.py {ENDLESS}": 1,
    f"examples/launch_bound.py {ENDLESS}": 1,
    f"examples/sync_bound.py {ENDLESS}": 1,
    f"examples/transfer_bound.py {ENDLESS}": 1,
    f"{TRIALS}/anomaly_mode.py": 1,
    f"{TRIALS}/ema_by_deepcopy.py": 1,
    f"{TRIALS}/gan_checkpoints.py": 2,
    f"{TRIALS}/healthy_mlp.py": 1,
    f"{TRIALS}/hooks_everywhere.py": 1,
    f"{TRIALS}/loss_in_numpy.py": 1,
    f"{TRIALS}/lstm_cells.py": 1,
    f"{TRIALS}/one_worker.py": 1,
    f"{TRIALS}/slow_schedule.py": 1,
    f"{TRIALS}/tabular.py --epochs 200": 1,
    f"{TRIALS}/tokenize_in_collate.py": 1,
    f"{TRIALS}/vision_augment.py": 1,
}
"""Command -> optimizer steps in one training step."""


# -- the plain run, in a process of its own ---------------------------------------------------------


def time_plain(out: Path, *, first: int, last: int, command: list[str]) -> None:
    """Run a script, time its optimizer steps from `first` to `last`, write that, and leave.

    Args:
        out: receives {"first", "last", "ms"}: which were reached, and the time between them.
        first: number of optimizer steps after which the time begins.
        last: ... and ends.
        command: the script and its arguments.
    """
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    seen = 0
    began = ended = (0, 0)

    def now() -> int:
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return perf_counter_ns()

    def write() -> None:
        out.write_text(json.dumps({"first": began[0], "last": ended[0], "ms": (ended[1] - began[1]) / 1e6}))

    def noted(*_: Any) -> None:
        nonlocal seen, began, ended
        seen += 1
        if seen == first:
            began = (seen, now())
        elif seen == last:
            ended = (seen, now())
            write()
            os._exit(0)
        elif seen > first:
            ended = (seen, perf_counter_ns())

    register_optimizer_step_post_hook(noted)
    sys.argv = command
    sys.path[0] = str(Path(command[0]).resolve().parent)
    with contextlib.suppress(SystemExit):
        runpy.run_path(command[0], run_name="__main__")
    write()


# -- both kinds of run ------------------------------------------------------------------------------


@dataclass
class Diagnosed:
    """One run of `diagnose`."""

    step_ms: float
    low_ms: float
    high_ms: float
    count: int
    first: int
    last: int
    """Numbers of the first and the last step that were timed."""
    seconds: float
    codes: tuple[str, ...]
    later: float | None
    """Mean step of the last stretch, after the captures, over that of the first; None without one."""


@dataclass
class Subject:
    """One script, and what was measured of it, pair by pair."""

    command: list[str]
    updates: int
    turns: int = 0
    """How often it was run."""
    diagnosed: list[Diagnosed] = field(default_factory=list)
    plain_ms: list[float] = field(default_factory=list)
    failed: str = ""

    @property
    def name(self) -> str:
        """How the report names it."""
        return Path(self.command[0]).stem

    @property
    def pairs(self) -> list[tuple[Diagnosed, float]]:
        """Runs that were neighbours."""
        return list(zip(self.diagnosed, self.plain_ms, strict=False))


class Lane:
    """Cores, and a GPU, on which one script at a time runs."""

    def __init__(self, number: int, *, jobs: int, cores: int, device: str | None) -> None:
        """Take the cores of this number; all of them where nothing else runs."""
        self.environment = dict(os.environ)
        mine = sorted(os.sched_getaffinity(0))[cores * number : cores * (number + 1)] if jobs > 1 else []
        self.prefix = ["taskset", "-c", ",".join(map(str, mine))] if mine else []
        if device == "cpu":
            self.environment["CUDA_VISIBLE_DEVICES"] = ""
        elif jobs > 1:
            self.environment["CUDA_VISIBLE_DEVICES"] = str(number)

    def run(self, call: list[str], *, timeout_s: float) -> tuple[int, str]:
        """Run Python with these arguments, and all it starts; return its exit status and its last words."""
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(
                [*self.prefix, sys.executable, *call],
                cwd=ROOT, stdout=said, stderr=said, env=self.environment, start_new_session=True,
            )  # fmt: skip
            try:
                status = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                status = -1
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            said.seek(0)
            return status, said.read()[-300:]


def diagnose(subject: Subject, folder: Path, *, lane: Lane, timeout_s: float) -> Diagnosed:
    """Run `bottleneck diagnose`.

    Raises:
        RuntimeError: it failed, or timed no step.
    """
    began = monotonic()
    call = ["-m", "torch_bottleneck", "diagnose", "--quiet", "--trial-seconds", "0", "--out", str(folder)]
    status, said = lane.run([*call, *subject.command], timeout_s=timeout_s)
    seconds = monotonic() - began
    if status or not (folder / "diagnosis.json").exists():
        raise RuntimeError(f"diagnose: status {status}: {said}")
    diagnosis = json.loads((folder / "diagnosis.json").read_text())
    run = json.loads((folder / "run.json").read_text())
    step = diagnosis["step"]
    windows = {window["name"]: window for window in run["windows"]}
    index = windows["baseline"]["steps"]["index"]
    if step["true_ci_ms"] is None:
        raise RuntimeError("diagnose: too few steps for an interval")
    return Diagnosed(
        step_ms=step["true_ms"],
        low_ms=step["true_ci_ms"][0],
        high_ms=step["true_ci_ms"][1],
        count=step["count"],
        first=index[0],
        last=index[-1] + 1,
        seconds=seconds,
        codes=tuple(diagnosis["capture"]["codes"]),
        later=later_ratio(windows),
    )


def later_ratio(windows: dict[str, Any]) -> float | None:
    """Return the mean step after the captures over that before them; None without one."""
    stretches = windows["baseline"].get("stretches") or []
    if len(stretches) < 2 or "after" not in windows:
        return None

    def mean(table: dict[str, Any], steps: int | None) -> float | None:
        device = [ms for ms in table.get("device_ms", [])[:steps] if ms is not None]
        times = device or table["wall_ms"][:steps]
        return statistics.fmean(times) if times else None

    before = mean(windows["baseline"]["steps"], stretches[0]["steps"])
    after = mean(windows["after"]["steps"], None)
    return after / before if before and after else None


def plain(subject: Subject, like: Diagnosed, folder: Path, *, lane: Lane, timeout_s: float) -> float:
    """Return the mean step of a plain run, ms, over the steps that a diagnosed one has timed.

    Raises:
        RuntimeError: it failed.
    """
    out = folder / "plain.json"
    first, last = like.first * subject.updates, like.last * subject.updates
    call = [__file__, "--time-plain", str(out), str(first), str(last), *subject.command]
    status, said = lane.run(call, timeout_s=timeout_s)
    if status or not out.exists():
        raise RuntimeError(f"plain: status {status}: {said}")
    found = json.loads(out.read_text())
    if found["last"] <= found["first"]:
        raise RuntimeError("plain: no step was timed")
    return found["ms"] / (found["last"] - found["first"]) * subject.updates


def measure_pair(subject: Subject, lane: Lane, *, until: float) -> tuple[Diagnosed, float]:
    """Run a script under `diagnose` and plainly.

    Raises:
        RuntimeError: one of them failed.
        TimeoutError: there is no time left.
    """
    known = subject.diagnosed[-1] if subject.diagnosed else None
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        before: float | None = None
        # The first run tells the stretch; from then on the two take turns in being first.
        if subject.turns % 2 and known is not None:
            before = plain(subject, known, folder, lane=lane, timeout_s=left(until))
        found = diagnose(subject, folder / "run", lane=lane, timeout_s=left(until))
        if before is None:
            before = plain(subject, found, folder, lane=lane, timeout_s=left(until))
    return found, before


def measure(
    subjects: list[Subject], *, repeats: int, minutes: float, lanes: list[Lane], write: Callable[[], None]
) -> None:
    """Run everything in turns until the time is up; `write` is called after each pair."""
    until = monotonic() + 60 * minutes
    waiting, lock = deque(subjects), threading.Lock()

    def work(lane: Lane) -> None:
        while True:
            with lock:
                if not waiting:
                    return
                subject = waiting.popleft()
            try:
                found, before = measure_pair(subject, lane, until=until)
            except TimeoutError:
                return
            except RuntimeError as error:
                if monotonic() < until:
                    subject.failed = " ".join(str(error).split())
                    print(f"{subject.name}: {subject.failed}", flush=True)
                continue
            with lock:
                subject.turns += 1
                subject.diagnosed.append(found)
                subject.plain_ms.append(before)
                if subject.turns < repeats:
                    waiting.append(subject)
                print(
                    f"{subject.name:22} plain {before:9.3f} ms  diagnosed {found.step_ms:9.3f} "
                    f"({found.low_ms:.3f} to {found.high_ms:.3f}) over {found.count}, {found.seconds:.0f} s",
                    flush=True,
                )
                write()

    threads = [threading.Thread(target=work, args=(lane,)) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def left(until: float) -> float:
    """Return how long another run may take, in seconds.

    Raises:
        TimeoutError: there is no time for another one.
    """
    rest = until - monotonic()
    if rest < 5:
        raise TimeoutError
    return min(LONGEST_RUN_S, rest)


# -- the report -------------------------------------------------------------------------------------


def report(
    subjects: list[Subject], *, minutes: float, lanes: list[Lane], cores: int, device: str | None
) -> str:
    """Return the report of what was measured so far."""
    import torch

    pairs = [pair for subject in subjects for pair in subject.pairs]
    held = sum(found.low_ms <= ms <= found.high_ms for found, ms in pairs)
    apart = [abs(found.step_ms / ms - 1) for found, ms in pairs]
    own = [
        abs(b / a - 1) for s in subjects for a, b in zip(s.plain_ms, s.plain_ms[1:], strict=False)
    ]  # neighbouring plain runs of one script
    known = [subject for subject in subjects if subject.pairs]
    on_gpu = device != "cpu" and torch.cuda.is_available()
    gpu = torch.cuda.get_device_name() if on_gpu else "no GPU"
    lines = [
        "# The step time against a plain run",
        "",
        "Each script is run plainly and under `diagnose` in turns, and timed over the same stretch of",
        "steps: see `tests/benchmarks/true_step.py`, which writes this.",
        "",
        f"{platform.machine()}, {os.cpu_count()} cores, {gpu}, torch {torch.__version__}, Python "
        f"{platform.python_version()}; load average {os.getloadavg()[1]:.1f}; {minutes:g} minutes at most"
        + (f"; {len(lanes)} scripts at once, each on {cores} cores." if len(lanes) > 1 else "."),
        "",
    ]
    if pairs:
        lines += [
            f"- The interval of `diagnose` holds the plain figure in **{held} of {len(pairs)}** pairs "
            f"({held / len(pairs):.0%}; target {HELD_TARGET:.0%}).",
            f"- Median difference **{statistics.median(apart):.1%}** (target under {APART_TARGET:.0%}); "
            f"largest {max(apart):.1%}.",
        ]
        if own:
            lines.append(
                f"- Two plain runs of one script in a row differ by {statistics.median(own):.1%} in the "
                f"median, {max(own):.1%} at most: what the machine allows."
            )
        later = [found.later for found, _ in pairs if found.later is not None]
        if later:
            lines.append(
                f"- Steps after the captures over those before: {statistics.median(later):.3f} in the median "
                f"of {len(later)} runs, {min(later):.3f} to {max(later):.3f}."
            )
        seconds = [found.seconds for found, _ in pairs]
        lines += [
            f"- `diagnose` took {statistics.median(seconds):.0f} s in the median, {max(seconds):.0f} s at "
            "most.",
            "",
        ]
    lines += [
        "| script | plain, ms | diagnosed, ms | interval | steps | difference | held | after | drift "
        "| seconds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for subject in known:
        found = subject.diagnosed
        lines.append(
            f"| {subject.name} | {' / '.join(f'{ms:.4g}' for ms in subject.plain_ms)} "
            f"| {' / '.join(f'{one.step_ms:.4g}' for one in found)} "
            f"| {' / '.join(f'±{(one.high_ms - one.low_ms) / 2 / one.step_ms:.1%}' for one in found)} "
            f"| {' / '.join(str(one.count) for one in found)} "
            f"| {' / '.join(f'{one.step_ms / ms - 1:+.1%}' for one, ms in subject.pairs)} "
            f"| {sum(one.low_ms <= ms <= one.high_ms for one, ms in subject.pairs)} of {len(subject.pairs)} "
            f"| {' / '.join('-' if one.later is None else f'{one.later:.3f}' for one in found)} "
            f"| {sum(any(code.startswith(DRIFT) for code in one.codes) for one in found)} "
            f"| {statistics.median(one.seconds for one in found):.0f} |"
        )
    failed = [subject for subject in subjects if subject.failed]
    if failed:
        lines += ["", "Not measured:", ""]
        lines += [f"- {subject.name}: {subject.failed}" for subject in failed]
    return "\n".join(lines) + "\n"


def chosen(commands: list[str], device: str | None) -> list[Subject]:
    """Return the scripts to run; those that take --device are given it."""
    subjects = []
    for text in commands or SCRIPTS:
        command = shlex.split(text)
        takes = "--device" in (ROOT / command[0]).read_text()
        if device is not None and takes and "--device" not in command:
            command += ["--device", device]
        subjects.append(Subject(command=command, updates=SCRIPTS.get(text, 1)))
    return subjects


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help="a script with its arguments, quoted")
    parser.add_argument("--minutes", type=float, default=60.0, help="no run begins or goes on after that")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="so many scripts at once; with a GPU each")
    parser.add_argument("--cores", type=int, default=2, help="of each of several scripts at once")
    parser.add_argument("--out", type=Path, default=REPORT)
    parser.add_argument(
        "--device", help="cpu hides a GPU from all scripts; given to those that take --device"
    )
    options = parser.parse_args()
    device = options.device
    subjects = chosen(options.commands, device)
    lanes = [
        Lane(number, jobs=options.jobs, cores=options.cores, device=device) for number in range(options.jobs)
    ]

    def write() -> None:
        text = report(subjects, minutes=options.minutes, lanes=lanes, cores=options.cores, device=device)
        options.out.write_text(text, encoding="utf-8")

    measure(subjects, repeats=options.repeats, minutes=options.minutes, lanes=lanes, write=write)
    write()
    print(options.out.read_text(encoding="utf-8"))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--time-plain"]:
        where, begin, end, *words = sys.argv[2:]
        time_plain(Path(where), first=int(begin), last=int(end), command=words)
    else:
        main()
