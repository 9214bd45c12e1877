"""Baselines on disk: small, stable, reviewable, migrated, and clear about what is wrong with them."""

from __future__ import annotations

import json

import pytest
from recorded.diagnosed import side_of
from unit.compare.sides import baseline, counters

from torch_bottleneck.compare import baseline_file
from torch_bottleneck.compare.baseline_file import (
    MOST_BYTES,
    baseline_text,
    is_baseline,
    read_baseline,
    write_baseline,
)
from torch_bottleneck.errors import InputError


def test_writing_what_was_read_gives_the_same_bytes(tmp_path):
    path = tmp_path / "baseline.json"
    write_baseline(baseline(), path)
    text = path.read_text()
    assert baseline_text(read_baseline(path)) == text
    assert text.endswith("}\n")


@pytest.mark.parametrize("case", ["example-sync-bound", "example-graph-breaks-cpu", "input-bound-cpu"])
def test_a_real_runs_baseline_is_small_and_stable(case, tmp_path):
    path = tmp_path / "baseline.json"
    write_baseline(side_of(case).baseline, path)
    assert path.stat().st_size < 60_000
    assert baseline_text(read_baseline(path)) == path.read_text()
    longest = max(len(line) for line in path.read_text().splitlines())
    assert longest < 300, "a diff of it can be read"


def test_thousands_of_kernels_do_not_make_it_large():
    many = {f"kernel_{i}_{'x' * 150}": float(i) for i in range(3000)}
    text = baseline_text(baseline(counters=counters(names=many)))
    assert len(text.encode()) <= MOST_BYTES
    assert json.loads(text)["counters"]["other_names"] > 0


def test_an_older_format_is_migrated_step_by_step(tmp_path, monkeypatch):
    path = tmp_path / "old.json"
    old = json.loads(baseline_text(baseline()))
    old["format"] = -1
    old["step_time"] = old.pop("step_ms")
    path.write_text(json.dumps(old))
    monkeypatch.setitem(baseline_file.MIGRATIONS, -1, lambda raw: {**raw, "step_ms": raw.pop("step_time")})
    monkeypatch.setitem(baseline_file.MIGRATIONS, 0, lambda raw: {**raw, "title": raw["title"].upper()})
    found = read_baseline(path)
    assert (found.format, found.step_ms, found.title) == (1, 10.0, "TRAIN.PY")


def broken(tmp_path, text: str) -> str:
    path = tmp_path / "baseline.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_baseline(path)
    assert str(path) in str(caught.value)
    assert caught.value.remedy
    return str(caught.value)


def test_what_cannot_be_read_is_said_with_what_to_do(tmp_path):
    whole = baseline_text(baseline())
    newer = {**json.loads(whole), "format": 7, "tool_version": "3.1"}
    assert "format 7" in broken(tmp_path, json.dumps(newer))
    assert "3.1" in broken(tmp_path, json.dumps(newer))
    assert "no version of this tool" in broken(tmp_path, json.dumps({**newer, "format": 0}))
    assert "not a complete baseline" in broken(tmp_path, whole[:400])
    assert "is empty" in broken(tmp_path, "")
    assert "not a baseline" in broken(tmp_path, '{"schema": 1}')
    assert "not a baseline" in broken(tmp_path, "[]")
    assert "Expected" in broken(tmp_path, json.dumps({**json.loads(whole), "step_ms": "ten"}))


def test_a_missing_file_says_how_to_write_one(tmp_path):
    with pytest.raises(InputError, match="--update-baseline"):
        read_baseline(tmp_path / "none.json")


def test_a_diagnosis_is_no_baseline():
    assert is_baseline(baseline_text(baseline()).encode())
    assert not is_baseline(b'{"schema": 1, "verdict": {}}')
    assert not is_baseline(b"\xff\xfe")
