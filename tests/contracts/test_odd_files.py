"""Odd files of every kind, from one table: a command reads what can be read, or says in one line why not.

What lies in a file that fuzzing would hardly write, since it has a sense of its own. What is nested deeply,
is no file at all or costs more than its bytes stands in test_foreign_input.py.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzz.test_fuzz import call, judge
from unit.reporters.sample import sample

from torch_bottleneck.model.documents import document_text

EVIL = "a\x1b[31mred\x1b]0;title\x07\x9b2J\u202e\r\nb"
"""What a terminal would act on."""


def event(name: str = "aten::mm", *, ts: Any = 100.0, dur: Any = 5.0, **more: Any) -> dict[str, Any]:
    """An operator; `more` goes over its fields."""
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 2, "ts": ts, "dur": dur} | more


def steps(**more: Any) -> list[dict[str, Any]]:
    """Six steps of ten operators."""
    marks = [
        event(f"ProfilerStep#{i}", cat="user_annotation", ts=100.0 + 100 * i, dur=100.0) for i in range(6)
    ]
    return marks + [
        event(f"aten::op{i % 7}", ts=100.0 + 10 * i, args={"External id": i}) | more for i in range(60)
    ]


def all_at(ts: float) -> list[dict[str, Any]]:
    return [one | {"ts": ts} for one in steps()]


def kernels() -> list[dict[str, Any]]:
    return [
        event("k", cat="kernel", ts=100.0 + 10 * i, pid=0, tid=7, args={"device": 0, "stream": 7})
        for i in range(60)
    ]


def of(events: Any, **header: Any) -> str:
    return json.dumps({"schemaVersion": 1, **header, "traceEvents": events})


CHROME = [
    event("RunTask", cat="toplevel", ts=100 + i, dur=1, args={"src_file": "x.cc", "src_func": EVIL})
    for i in range(20)
]
DISTRIBUTED = {
    "backend": "nccl",
    "rank": 10**9,
    "world_size": 10**9,
    "pg_config": [{"ranks": [0, "x", None]}],
}

TRACES: dict[str, tuple[str | bytes, int]] = {
    "names that a terminal would act on": (of(steps(name=EVIL, cat=EVIL)), 0),
    "a header that a terminal would act on": (of(steps(), deviceProperties=[{"id": 0, "name": EVIL}]), 0),
    "events that are an object": (of({"a": event()}), 2),
    "events that are null": (of(None), 2),
    "events that are a text": (of("events"), 2),
    "events of other kinds among them": (of([None, 1, "x", [], *steps(), {}, {"ph": "X"}]), 0),
    "a list alone": (json.dumps(steps()), 0),
    "a number alone": ("17", 2),
    "a text alone": ('"trace"', 2),
    "a byte order mark": (b"\xef\xbb\xbf" + of(steps()).encode(), 0),
    "carriage returns": (json.dumps({"traceEvents": steps()}, indent=1).replace("\n", "\r\n"), 0),
    "the same id for all": (of(steps(args={"External id": 1, "correlation": 1})), 0),
    "ids beyond any integer": (of(steps(args={"External id": 10**30, "correlation": -(10**30)})), 0),
    "infinite times": (of(all_at(float("inf"))), 2),
    "times that are no numbers": (of(all_at(float("nan"))), 2),
    "times that are texts": (of(steps(ts="12.5")), 0),
    "times far before zero": (of(all_at(-1e18)), 3),
    "negative durations": (of(steps(dur=-5.0)), 0),
    "all at one time": (of(all_at(100.0)), 0),
    "the last event first": (of(steps()[::-1]), 0),
    "operators that overlap": (of(steps(dur=17.0)), 0),
    "no steps": (of([event(f"aten::op{i}", ts=10.0 * i) for i in range(60)]), 0),
    "a device alone": (of([*steps()[:6], *kernels()]), 3),
    "arguments that are null": (of(steps(args=None)), 0),
    "arguments of other kinds": (of(steps(args=[1, "x"], pid={"a": 1}, tid=[2])), 0),
    "a rank of a billion": (of(steps(), distributedInfo=DISTRIBUTED), 0),
    "a distribution of other kinds": (of(steps(), distributedInfo=["nccl", EVIL]), 0),
    "a trace of a browser": (of(CHROME), 3),
    "the profile of another tool": (json.dumps({"shared": {"frames": []}, "profiles": []}), 2),
    "a protocol buffer": (b"\n\x07\x08\x01\x12\x03abc" * 50, 2),
    "an archive": (b"PK\x03\x04" + bytes(100), 2),
    "a program": (b"\x7fELF" + bytes(range(256)) * 4, 2),
    "a configuration": ("[tool.x]\na = 1\n", 2),
}


def written(place: Path, name: str, content: str | bytes) -> Path:
    file = place / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    return file


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_is_read_or_refused(place: Path, name: str) -> None:
    content, code = TRACES[name]
    file = written(place, "t.json", content)
    assert judge("analyze", "-v", file) == code


def laughing() -> list[Any]:
    value: list[Any] = []
    for _ in range(40):
        value = [value] * 4
    return value


def selfish() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


EVENT = {"action": "alloc", "addr": 1, "size": 2, "stream": 0, "time_us": 3}
SNAPSHOTS: dict[str, Callable[[], Any]] = {
    "names that a terminal would act on": lambda: {
        "segments": [],
        "device_traces": [[EVENT | {"frames": [{"name": EVIL, "filename": EVIL, "line": 1}]}] * 9],
    },
    "lists within each other": lambda: b"\x80\x02" + b"](" * 100_000 + b"e" * 100_000 + b".",
    "a list in itself": lambda: {"segments": selfish(), "device_traces": selfish()},
    "a little that becomes much": lambda: {"segments": laughing(), "device_traces": laughing()},
    "a memo of gigabytes": lambda: b"\x80\x02Nr\xff\xff\xff\x7f.",
    "a number of gigabytes": lambda: b"\x80\x02\x8b\xff\xff\xff\x7f" + b"1" * 100 + b".",
    "a state for what is built": lambda: b"\x80\x02}}b.",
    "another shape": lambda: [{"segments": 1}],
}


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_a_snapshot_is_read_or_refused(place: Path, name: str) -> None:
    content = SNAPSHOTS[name]()
    file = written(place, "s.pickle", content if isinstance(content, bytes) else pickle.dumps(content))
    judge("analyze", "-v", file)


def _set(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        place: Any = document
        for key in path[:-1]:
            place = place[key]
        assert path[-1] in place, "a field that is meant"
        place[path[-1]] = to

    return change


DIAGNOSES: dict[str, tuple[Callable[[dict[str, Any]], None], int]] = {
    "a step that is a text": (_set("step", "true_ms", to="87.4"), 2),
    "a step that is null": (_set("step", to=None), 2),
    "a version that is a number": (_set("tool_version", to=7), 2),
    "a later schema": (_set("schema", to=10**6), 2),
    "a schema that is a text": (_set("schema", to="1"), 2),
    "a share of 1e308": (_set("budget", to=[{"part": "other math", "ms": 1e308, "share": 1e308}] * 3), 0),
    "texts that a terminal would act on": (_set("verdict", "headline", to=EVIL), 0),
    "a null character": (_set("title", to="a\x00b\u0000"), 0),
    "a command that a terminal would act on": (_set("command", to=[EVIL] * 3), 0),
    "half a character": (_set("title", to="\ud83d"), 2),
}


@pytest.mark.parametrize("name", DIAGNOSES)
@pytest.mark.parametrize("shown", ["text", "md", "html", "sarif", "brief"])
def test_a_diagnosis_is_shown_or_refused(place: Path, name: str, shown: str) -> None:
    change, code = DIAGNOSES[name]
    document = json.loads(document_text(sample()))
    change(document)
    folder = written(place, "run/diagnosis.json", json.dumps(document)).parent
    out = () if shown == "text" else ("--out", "shown")
    assert judge("report", "-v", "--format", shown, *out, folder) == code
    if shown == "text":
        judge("compare", folder, folder)


@pytest.mark.parametrize(
    "content", ["[]", "null", "17", "", "\x00\x01", "{", "{}", '{"schema": NaN}', "\xff"]
)
def test_what_is_no_document_of_ours(place: Path, content: str) -> None:
    data = content.encode("latin-1")
    # A list of nothing is a trace in which nothing was recorded.
    codes = {"report": 2, "compare": 3 if content == "[]" else 2, "analyze": 3 if content == "[]" else 2}
    for words in (("report", "d.json"), ("compare", "d.json", "d.json"), ("analyze", "d.json")):
        written(place, "d.json", data)
        assert judge(*words) == codes[words[0]]
    for words in (("analyze", "r"), ("verify", "r"), ("report", "r"), ("review", "--no-serve", "r")):
        written(place, "r/run.json", data)
        assert judge(*words) == 2
    written(place, "b.json", data)
    written(place, "t.py", "raise SystemExit")
    assert judge("gate", "--baseline", "b.json", "t.py") == 2


def test_a_folder_in_the_place_of_a_file_and_one_that_holds_nothing_of_ours(place: Path) -> None:
    (place / "run" / "diagnosis.json").mkdir(parents=True)
    (place / "folder" / "run.json").mkdir(parents=True)
    (place / "empty").mkdir()
    (place / "loop").symlink_to("loop")
    for verb in ("report", "analyze", "verify", "review"):
        for name in ("run", "folder", "empty", "loop", "-"):
            assert judge(verb, name) == 2, (verb, name)


def test_a_folder_of_many_ranks_that_are_none(place: Path) -> None:
    """What is said does not grow with their number."""
    for number in range(400):
        written(place, f"many/rank{number}.json", "{}")
        Path(f"ranks/rank{number}").mkdir(parents=True)
    code, _, err = call("analyze", "many")
    assert code == 2 and len(err) < 1000, err[:2000]
    code, _, err = call("analyze", "ranks")
    assert code == 2 and len(err) < 1000, err[:2000]
