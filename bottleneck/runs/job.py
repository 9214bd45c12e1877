"""The account of a watched job, made when its script has ended in whatever way.

In: the record that the script's process left, and when the process began and ended. Out: watch.json in the
folder of the process; where there are several ranks, the first one's at the top, with all of them in short.
What no record covers is said to be unexplained: the last second of a process that was killed.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

from ..errors import InputError
from ..files import decode_json, is_file, read_file, read_json
from ..model.watch import (
    PARTS,
    RECORD_FILE,
    STEPS_FILE,
    WATCH_FILE,
    AccountLine,
    JobRecord,
    PartTime,
    RankAccount,
    StepTimes,
    Watch,
)
from .captures import with_verdict
from .layout import processes, run_of
from .store import partial_name, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from .run_script import RunFolder

_START, _EXIT, _UNKNOWN = "interpreter and imports", "exit", "unexplained"
_NOT_ONE_BY_ONE = (
    "interpreter and imports",
    "set-up",
    "first steps",
    "after the last step",
    "exit",
    _UNKNOWN,
)
_MOST_POINTS = 400
UNKNOWN_CODE = -1
"""Exit code of a job of which nobody was left to see how it ended."""


def account_of(run: RunFolder, *, folder: Path, exit_code: int) -> Watch:
    """Return the account of one process of a job, and write it into its folder.

    Raises:
        InputError: the process left no record.
    """
    return write_account(
        folder,
        began_ns=run.ended.began_ns,
        wall_s=run.ended.seconds,
        exit_code=exit_code,
        outcome=run.failure if exit_code else "the script ended by itself.",
    )


def write_account(folder: Path, *, began_ns: int, wall_s: float, exit_code: int, outcome: str) -> Watch:
    """Return the account of what a record in a folder tells of, and write it there.

    The job began at `began_ns` on the clock of its process; `outcome` says in one sentence how it ended.

    Raises:
        InputError: the process left no record.
    """
    record = read_json(folder / RECORD_FILE, JobRecord)
    watch = _account(folder, record, began_ns=began_ns, wall_s=wall_s, exit_code=exit_code, outcome=outcome)
    _write(watch, folder)
    return watch


def left_account(folder: Path) -> Watch | None:
    """Return the account of a job killed with the command that ran it; None without a record.

    Raises:
        InputError: a record cannot be read.
    """
    for run in (folder, partial_name(folder)):
        named = [run / name for name in ("main", "rank0")]
        for process in (run, *named, *map(partial_name, named)):
            if is_file(process / RECORD_FILE):
                record = read_json(process / RECORD_FILE, JobRecord)
                return _account(
                    process,
                    record,
                    began_ns=record.began_ns,
                    wall_s=max(1e-6, (record.at_ns - record.began_ns) / 1e9),
                    exit_code=UNKNOWN_CODE,
                    outcome="the job was killed with the command that ran it; this is what it had written.",
                )
    return None


def _account(
    folder: Path, record: JobRecord, *, began_ns: int, wall_s: float, exit_code: int, outcome: str
) -> Watch:
    seconds = {part: time.s for part, time in record.parts.items()}
    before_s = (record.began_ns - began_ns) / 1e9
    after_s = (began_ns - record.at_ns) / 1e9 + wall_s
    seconds[_START] = seconds.get(_START, 0.0) + before_s
    last = _EXIT if record.ended else _UNKNOWN
    seconds[last] = seconds.get(last, 0.0) + after_s
    # Steps that were handed over and not yet divided when the process was killed.
    seconds[_UNKNOWN] = seconds.get(_UNKNOWN, 0.0) + wall_s - sum(seconds.values())
    account = [
        _line(part, seconds[part], wall_s, record.parts.get(part, PartTime(s=0.0, count=1)))
        for part in PARTS
        if seconds.get(part, 0.0) > 0
    ]
    described = run_of(folder)
    timeline = record.timeline
    return Watch(
        acts=record.acts,
        command=[] if described is None else described.command,
        cwd="" if described is None else described.cwd,
        outcome=outcome,
        exit_code=exit_code,
        wall_s=round(wall_s, 6),
        account=account,
        explained_share=round(1 - max(0.0, seconds[_UNKNOWN]) / wall_s, 6),
        goodput=_goodput(record, wall_s),
        steps=record.steps,
        step_ms=record.usual_ms,
        best_ms=record.best_ms,
        growth=record.growth,
        changes=record.changes,
        memory=record.memory,
        step_times=_step_times(folder / STEPS_FILE),
        timeline=None if timeline is None else msgspec.structs.replace(timeline, begin_s=round(before_s, 4)),
        captures=[with_verdict(taken, folder) for taken in record.captures],
        notes=record.notes,
        problem=record.problem,
    )


def join_ranks(folder: Path) -> Watch | None:
    """Return the account of a job whose processes have written theirs; None where none has.

    Of several ranks it is the first one's, with all of them in short, and is written into the run folder.
    """
    alone, *folders = processes(folder)
    if not folders:
        return _account_in(alone)
    found = {int(path.name.removeprefix("rank")): _account_in(path) for path in folders}
    accounts = {rank: watch for rank, watch in sorted(found.items()) if watch is not None}
    if not accounts:
        return None
    ranks = [_in_short(rank, watch) for rank, watch in accounts.items()]
    watch = msgspec.structs.replace(accounts[ranks[0].rank], ranks=ranks)
    _write(watch, folder)
    return watch


def _account_in(folder: Path) -> Watch | None:
    try:
        return read_json(folder / WATCH_FILE, Watch)
    except InputError:
        return None


def _in_short(rank: int, watch: Watch) -> RankAccount:
    return RankAccount(
        rank=rank,
        exit_code=watch.exit_code,
        wall_s=watch.wall_s,
        seconds={line.part: line.s for line in watch.account},
        explained_share=watch.explained_share,
        goodput=watch.goodput,
        steps=watch.steps,
        step_ms=watch.step_ms,
    )


def _write(watch: Watch, folder: Path) -> None:
    write_atomically(folder / WATCH_FILE, msgspec.json.format(msgspec.json.encode(watch)))


def _step_times(file: Path) -> StepTimes:
    """Return the usual steps that the process has written down, in at most `_MOST_POINTS` stretches."""
    lines: list[tuple[int, int, float]] = []
    with contextlib.suppress(InputError):
        for text in read_file(file).splitlines():
            # The last line of a process that was killed may be cut off.
            with contextlib.suppress(msgspec.DecodeError):
                lines.append(decode_json(text, tuple[int, int, float]))
    each = -(-len(lines) // _MOST_POINTS) or 1
    groups = [lines[i : i + each] for i in range(0, len(lines), each)]
    return StepTimes(
        step=[group[0][0] for group in groups],
        ms=[
            round(sum(n * ms for _, n, ms in group) / max(1, sum(n for _, n, _ in group)), 4)
            for group in groups
        ],
    )


def _line(part: str, seconds: float, wall_s: float, time: PartTime) -> AccountLine:
    each = None if part in _NOT_ONE_BY_ONE or not time.count else round(seconds * 1e3 / time.count, 4)
    return AccountLine(
        part=part,
        s=round(seconds, 6),
        share=round(seconds / wall_s, 6),
        count=time.count,
        ms_each=each,
        again_s=time.again_s,
        site=time.places[0].site if time.places else None,
        places=time.places,
    )


def _goodput(record: JobRecord, wall_s: float) -> float | None:
    if record.best_ms is None:
        return None
    return round(min(1.0, record.steps * record.best_ms / 1e3 / wall_s), 4)
