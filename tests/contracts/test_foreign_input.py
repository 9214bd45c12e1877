"""What comes from elsewhere: every command says in one line why it does not read it, and exits with 2."""

from __future__ import annotations

import ast
import gzip
import json
import os
import pty
import re
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzz.test_fuzz import limits
from unit.reporters.sample import sample

from torch_bottleneck.cli.main import run
from torch_bottleneck.files import MOST_DEPTH, decode_json, open_file, read_file, read_toml
from torch_bottleneck.ingest import read_trace
from torch_bottleneck.ingest.source_text import line_text
from torch_bottleneck.model.documents import document_text
from torch_bottleneck.model.run import Run, SourceSite
from torch_bottleneck.stats.interval import mean_interval

PACKAGE = Path(__file__).parents[2] / "bottleneck"
RECORDED = Path(__file__).parents[1] / "recorded" / "cpu-healthy-gpt"
DEPTH = 100_000
LISTS = b"[" * DEPTH + b"]" * DEPTH
TABLES = b'{"a":' * DEPTH + b"1" + b"}" * DEPTH

Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ask:
    """Run a command here and return exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str | Path) -> tuple[int, str, str]:
        try:
            code = run([str(word) for word in words])
        except SystemExit as end:  # what a console script would hand on
            code = int(end.code or 0)
        out, err = capfd.readouterr()
        return code, out, err

    return call


def refused(answer: tuple[int, str, str], says: str = "") -> None:
    """Check for exit code 2 and one line of text."""
    code, _, err = answer
    lines = [line for line in err.splitlines() if not line.startswith(("Usage:", "Try "))]
    assert code == 2, err
    assert len(lines) == 1, err
    assert "Traceback" not in err
    assert "bug in bottleneck" not in err
    assert says in err


def operators(count: int = 60) -> list[dict[str, Any]]:
    steps = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{i}", "pid": 1, "tid": 2}
        | {"ts": 100.0 + 100 * i, "dur": 100.0, "args": {}}
        for i in range(count // 10)
    ]
    return steps + [
        {"ph": "X", "cat": "cpu_op", "name": f"aten::op{i % 7}", "pid": 1, "tid": 2}
        | {"ts": 100.0 + 10 * i, "dur": 5.0, "args": {"External id": i}}
        for i in range(count)
    ]


def written(folder: Path, name: str, content: bytes | str) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def recorded_run(folder: Path, **changes: Any) -> Path:
    """Copy a recorded run folder, and change its run.json."""
    shutil.copytree(RECORDED, folder)
    run_json = json.loads((folder / "run.json").read_text()) | changes
    (folder / "run.json").write_text(json.dumps(run_json))
    return folder


# ------------------------------------------------------------------------------------------- depth


@pytest.mark.parametrize("deep", [LISTS, TABLES], ids=["lists", "tables"])
def test_documents_nested_too_deeply(ask: Ask, tmp_path: Path, deep: bytes) -> None:
    good = written(tmp_path, "good/diagnosis.json", document_text(sample()))
    file = written(tmp_path, "deep/diagnosis.json", b'{"schema": 1, "x": ' + deep + b"}")
    refused(ask("report", file), "nested")
    refused(ask("compare", file, good), "nested")
    base = written(tmp_path, "base.json", b'{"format": 1, "runs": ' + deep + b"}")
    refused(ask("compare", base, good), "")
    (tmp_path / "t.py").write_text("raise SystemExit")
    refused(ask("gate", "--baseline", base, "t.py"), "nested")
    place = written(tmp_path, "run/run.json", b'{"format": 1, "settings": ' + deep + b"}").parent
    refused(ask("analyze", place), "nested")
    refused(ask("verify", place), "nested")
    written(tmp_path, "run/run.json", deep)
    refused(ask("review", "--no-serve", "--out", "rv", place), "run.json")


def test_settings_nested_too_deeply(ask: Ask, tmp_path: Path) -> None:
    good = written(tmp_path, "good/diagnosis.json", document_text(sample()))
    for name, text in {
        "lists": "x = " + "[" * 50_000 + "]" * 50_000,
        "tables": "x = " + "{a=" * 50_000 + "1" + "}" * 50_000,
        "key": "a." * 200_000 + "a = 1",
        "quoted key": '"a".' * 200_000 + "a = 1",
    }.items():
        config = written(tmp_path, f"{name}.toml", text)
        began = time.process_time()
        refused(ask("compare", "--config", config, good, good), "nested")
        assert time.process_time() - began < 20, "the square of the key's parts"
    word = written(tmp_path, "word.toml", f"{'x' * 300_000} = 1")
    assert read_toml(word) == {"x" * 300_000: 1}


@pytest.mark.parametrize("deep", [LISTS, TABLES], ids=["lists", "tables"])
def test_a_trace_nested_too_deeply_loses_that_event_only(ask: Ask, tmp_path: Path, deep: bytes) -> None:
    events = json.dumps(operators())[:-1].encode()
    event = b', {"ph": "X", "name": "deep", "ts": 120.0, "dur": 1.0, "args": {"x": ' + deep + b"}}]"
    whole = written(tmp_path, "t.json", b'{"traceEvents": ' + events + event + b"}")
    code, out, err = ask("analyze", whole, "-v")
    assert code == 0, err
    assert "1 events of the file could not be read" in out
    header = b'{"deviceProperties": ' + deep + b', "traceEvents": ' + events + b"]}"
    assert ask("analyze", written(tmp_path, "h.json", header))[0] == 0
    refused(ask("analyze", written(tmp_path, "n.json", b'{"traceEvents": ' + deep + b"}")))
    refused(ask("analyze", written(tmp_path, "d.json", deep)))


def test_depth_is_counted_outside_strings() -> None:
    edge = b"[" * MOST_DEPTH + b"]" * MOST_DEPTH
    assert decode_json(edge, object)
    with pytest.raises(ValueError, match="nested"):
        decode_json(b"[" + edge + b"]", object)
    text = json.dumps({'a"[[{': "[" * 1000 + '\\"{{"'}).encode()
    assert decode_json(text, object) == json.loads(text)


# ------------------------------------------------------------------------------ what is not a file


def odd_places(folder: Path) -> dict[str, Path]:
    os.mkfifo(folder / "fifo.json")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(folder / "socket.json"))
    (folder / "loop.json").symlink_to("loop.json")
    return {
        "fifo": folder / "fifo.json",
        "socket": folder / "socket.json",
        "link to itself": folder / "loop.json",
        "device": Path("/dev/zero"),
        "memory": Path("/proc/self/mem"),
        "kernel log": Path("/proc/kmsg"),
        "folder": folder,
        "name": Path("x" * 5000),
    }


def test_what_is_no_file_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_bottleneck.errors import InputError

    monkeypatch.chdir(tmp_path)
    for place in odd_places(tmp_path).values():
        for read in (open_file, read_file, read_toml):
            if read is read_toml and place.is_relative_to("/proc"):
                continue  # as empty as any file of size 0, and a TOML file may be empty
            with pytest.raises(InputError):
                read(place)  # type: ignore[operator]


def test_commands_refuse_what_is_no_file(ask: Ask, tmp_path: Path) -> None:
    good = written(tmp_path, "good/diagnosis.json", document_text(sample()))
    (tmp_path / "t.py").write_text("raise SystemExit")
    for place in odd_places(tmp_path).values():
        if place == tmp_path:
            continue
        refused(ask("analyze", place))
        refused(ask("report", place))
        refused(ask("compare", place, good))
        refused(ask("compare", good, place))
        refused(ask("gate", "--baseline", place, "t.py"))
        if not place.is_relative_to("/proc"):
            refused(ask("compare", "--config", place, good, good))
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / "diagnosis.json")
    refused(ask("report", "run"), "is a pipe")


def test_side_files_and_sources_are_not_waited_for(ask: Ask, tmp_path: Path) -> None:
    folder = recorded_run(tmp_path / "run")
    for name in ("loader.json", "compile.json"):
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
    os.mkfifo(tmp_path / "source.py")
    os.utime(tmp_path / "source.py", (0, 0))
    text = json.loads((folder / "run.json").read_text())
    for site in text["sites"]:
        site["site"]["file"] = str(tmp_path / "source.py")
    (folder / "run.json").write_text(json.dumps(text | {"cwd": str(tmp_path)}))
    code, _, err = ask("analyze", folder)
    assert code in (0, 3), err
    run_record = Run(cwd=str(tmp_path), created="2026-11-22T02:00:14+00:00")
    assert line_text(SourceSite(file="source.py", line=1), run_record) == ""


def test_an_empty_path_is_no_path(ask: Ask) -> None:
    for words in (["analyze", ""], ["report", ""], ["compare", "", ""], ["review", ""], ["doctor", ""]):
        refused(ask(*words), "the path is empty")
    refused(ask("verify", ""), "Nothing to verify")
    refused(ask("gate", "--baseline", "", "t.py"), "the path is empty")


def test_a_file_beyond_the_limit_is_not_read(ask: Ask, tmp_path: Path) -> None:
    huge = written(tmp_path, "diagnosis.json", "{")
    os.truncate(huge, 10**12)
    refused(ask("report", huge), "at most")
    huge = written(tmp_path, "c.toml", "")
    os.truncate(huge, 10**12)
    good = written(tmp_path, "good/diagnosis.json", document_text(sample()))
    refused(ask("compare", "--config", huge, good, good), "at most")


# ------------------------------------------------------------------- artefacts outside of their run


@pytest.mark.parametrize("how", ["above", "absolute", "link", "linked folder", "found by name"])
def test_an_artefact_outside_of_its_run_is_neither_read_nor_copied(
    ask: Ask, tmp_path: Path, how: str
) -> None:
    secret = written(tmp_path, "secret.json", json.dumps({"traceEvents": operators()}))
    folder = recorded_run(tmp_path / "runs" / "run")
    shutil.rmtree(folder / "trace")
    (folder / "trace").mkdir()
    path = {"above": "../../secret.json", "absolute": str(secret)}.get(how, "trace/x.trace.json")
    if how == "link":
        (folder / "trace" / "x.trace.json").symlink_to(secret)
    elif how == "linked folder":
        (folder / "trace").rmdir()
        (folder / "trace").symlink_to(tmp_path)
        path = "trace/secret.json"
    elif how == "found by name":
        (folder / "trace" / "y.trace.json").symlink_to(secret)
    text = json.loads((folder / "run.json").read_text())
    text["artefacts"]["trace"] = {"status": "ok", "path": path}
    (folder / "run.json").write_text(json.dumps(text))

    code, out, err = ask("analyze", "-v", folder)
    assert code in (0, 3), err
    assert "aten::op" not in out
    assert ("leads out of the run folder" in " ".join(out.split())) == (how != "found by name"), out
    ask("review", "--no-serve", "--out", "rv", folder)
    assert not list((tmp_path / "rv").rglob("*.gz"))


# ------------------------------------------------------------------------- numbers, names, breakage


def test_times_that_no_clock_has_are_left_out_and_told(ask: Ask, tmp_path: Path) -> None:
    events = operators()
    events[20]["ts"] = 1e308
    events[21]["dur"] = -1e308
    events[22]["ts"] = -1e300
    text = json.dumps({"traceEvents": events}).replace('"ts": 450.0', '"ts": NaN')
    code, out, err = ask("analyze", "-v", written(tmp_path, "t.json", text))
    assert (code, err) == (0, "")
    assert "3 events are left out: no clock has such a time" in " ".join(out.split())
    # With the digits of absolute time stamps, the same.
    text = text.replace('"ts": 260.0', '"ts": 4312767512000000.125').replace('"ts": 270.0', '"ts": 1.5e999')
    code, out, err = ask("analyze", "-v", written(tmp_path, "e.json", text))
    assert code in (0, 3)
    assert "RuntimeWarning" not in err


def test_times_before_zero_are_times(ask: Ask, tmp_path: Path) -> None:
    shifted = [event | {"ts": event["ts"] - 1e6} for event in operators()]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    before = ask("analyze", written(tmp_path, "a/t.json", json.dumps({"traceEvents": operators()})))
    assert ask("analyze", written(tmp_path, "b/t.json", json.dumps({"traceEvents": shifted}))) == before


def test_many_processes_and_categories(ask: Ask, tmp_path: Path) -> None:
    events = operators() + [
        {"ph": "X", "cat": f"c{i}", "name": "n", "pid": i, "tid": i, "ts": 1.0 + i, "dur": 1.0}
        for i in range(40_000)
    ]
    code, _, err = ask("analyze", written(tmp_path, "t.json", json.dumps({"traceEvents": events})))
    assert code in (0, 3), err


def seconds_for(ask: Ask, file: Path) -> float:
    began = time.process_time()
    code, _, err = ask("analyze", file)
    assert code in (0, 2, 3), err
    return time.process_time() - began


def test_blanks_between_events_are_passed_over(ask: Ask, tmp_path: Path) -> None:
    """A megabyte of gzip holds a thousand of blanks."""
    events = json.dumps(operators())[:-1].encode()
    file = tmp_path / "t.json.gz"
    with gzip.open(file, "wb", compresslevel=6) as packed:
        packed.write(b'{"traceEvents":' + events + b",")
        for _ in range(200):
            packed.write(b" " * 2**20)
        packed.write(events[1:] + b"]}")
    trace = read_trace(file)
    assert len(trace) == 2 * len(operators())
    assert not trace.meta.truncated


def test_step_numbers_that_are_no_numbers(ask: Ask, tmp_path: Path) -> None:
    events = operators()
    for length, event in zip((1, 18, 19, 4300, 5000, 50_000), events, strict=False):
        event["name"] = "ProfilerStep#" + "9" * length
    code, _, err = ask("analyze", written(tmp_path, "t.json", json.dumps({"traceEvents": events})))
    assert code in (0, 3), err


def test_a_run_of_tens_of_thousands_of_steps_needs_no_gigabytes() -> None:
    with limits(most_bytes=2**29):
        low, high = mean_interval([10.0, 11.0] * 100_000) or (0.0, 0.0)
    assert 10.4 < low <= 10.5 <= high < 10.6


def test_a_name_without_an_end_takes_the_memory_of_its_bytes(ask: Ask, tmp_path: Path) -> None:
    """The pattern for strings kept a state per character."""
    text = '{"traceEvents":[{"ph":"X","name":"n","ts":1,"dur":1},{"ph":"X","name":"'
    file = written(tmp_path, "t.json", text + "x" * 20_000_000 + '"}]}')
    with limits(most_bytes=2**29):
        code, _, err = ask("analyze", file)
    assert code in (0, 3), err


BROKEN = {
    "no end": ('{"ph":"X","name":"a","ts":%d,"dur":1,"args":{"x":1}', 4_000),
    "a quote too many": ('{"ph":"X","name":"a"b","ts":%d,"dur":1,"args":{"x":1}', 4_000),
    "numbers": ("%d", 40_000),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_events_cost_the_time_of_their_bytes(ask: Ask, tmp_path: Path, kind: str) -> None:
    event, count = BROKEN[kind]
    ask("analyze", written(tmp_path, "warm.json", '{"traceEvents":[{"ph":"X","ts":1}]}'))
    times = []
    for size in (count, 8 * count):
        text = ",\n".join(event % i for i in range(size))
        first = '{"traceEvents":[{"ph":"X","name":"n","ts":1,"dur":1},'
        times.append(seconds_for(ask, written(tmp_path, f"{size}.json", first + text + "]}")))
    assert times[1] < 30 * times[0] + 1, times  # the square would be 64 times


def test_names_of_megabytes_cost_the_time_of_their_bytes(ask: Ask, tmp_path: Path) -> None:
    def file(length: int) -> Path:
        events = [
            event | {"name": f"{event['name']}{'x' * length}{i}"} for i, event in enumerate(operators(30))
        ]
        return written(tmp_path, f"{length}.json", json.dumps({"traceEvents": operators(30) + events}))

    ask("analyze", file(1))
    short, long = seconds_for(ask, file(20_000)), seconds_for(ask, file(1_000_000))
    assert long < 15 * short, "50 times the bytes; a hundred patterns over every name cost 35 times"


# --------------------------------------------------------------------------------------- terminals

EVIL = "a\x1b[31mred\x1b]0;title\x07\x9b2J\u202e\nb"


def test_error_lines_write_escapes_out(ask: Ask, tmp_path: Path) -> None:
    folder = recorded_run(tmp_path / "run", cwd=EVIL)
    (tmp_path / EVIL).write_bytes(b"\x7fELF")
    for words in (
        ("report", EVIL),
        ("analyze", EVIL),
        ("analyze", f"{EVIL}2"),
        ("compare", EVIL, EVIL),
        ("verify", folder),
        ("doctor", f"{EVIL}2"),
        ("explain", EVIL),
        ("catalog", "show", EVIL),
        ("report", "--format", EVIL, "x"),
        (EVIL,),
    ):
        answer = ask(*words)
        refused(answer)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", answer[2]), answer[2]
    assert r"a\x1b[31mred" in ask("analyze", EVIL)[2], "the name can still be told"


def test_progress_lines_write_escapes_out(capsys: pytest.CaptureFixture[str]) -> None:
    from torch_bottleneck.cli.console import say

    say(EVIL)
    assert capsys.readouterr().err.count("\n") == 1
    say("ok: µ → ✓ 日本")
    assert capsys.readouterr().err == "bottleneck: ok: µ → ✓ 日本\n"


def test_a_report_on_a_terminal_writes_escapes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_bottleneck.reporters.output import emit

    above, below = pty.openpty()
    with os.fdopen(below, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr("sys.stdout", terminal)
        monkeypatch.setenv("TERM", "xterm")
        emit("\x1b[1mbold\x1b[0m \x1b]0;title\x07 \x9b2J\n")
    with os.fdopen(above, "rb") as seen:
        text = seen.read1(4096)
    assert text.strip() == rb"\x1b]0;title\x07 \x9b2J".join([b"\x1b[1mbold\x1b[0m ", b""])


def writes_to_a_stream(tree: ast.AST) -> list[int]:
    lines = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called in ("print", "sys.stderr.write", "sys.stdout.write", "click.echo", "click.secho"):
            lines.append(node.lineno)
    return lines


def test_one_place_writes_to_the_terminal() -> None:
    """The harness speaks inside the user's process; what click prints of itself holds nothing foreign."""
    allowed = {"cli/group.py", "cli/completion.py"}
    found = {
        str(path.relative_to(PACKAGE)): writes_to_a_stream(ast.parse(path.read_text("utf-8")))
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] != "harness"
    }
    assert {name for name, lines in found.items() if lines} <= allowed


def test_one_place_decodes_files() -> None:
    """Elsewhere JSON is decoded only from our own processes, or piece by piece, as traces are."""
    readers = re.compile(r"\b(?:msgspec\.)?json\.(?:decode|loads?)\(|\btomllib\.|\btomli\.")
    allowed = {
        "files.py",
        "compare/baseline_file.py",  # its own text once more, as it will be read
        "doctor/machine.py",  # the answer of a process of ours
        "doctor/versions.py",
        "review/plugin.py",  # loaded by TensorBoard, where nothing of ours may be imported
        "runs/plan.py",
    }
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] != "harness" and readers.search(path.read_text("utf-8"))
    }
    assert found <= allowed
