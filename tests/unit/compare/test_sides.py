"""What may be pointed at, and what a side is made of."""

from __future__ import annotations

import json
import shutil

import msgspec
import pytest
from recorded.cases import CASES
from recorded.diagnosed import diagnosed, diagnosis_of, side_of

from torch_bottleneck.compare.baseline_file import write_baseline
from torch_bottleneck.compare.decide import compare_sides
from torch_bottleneck.compare.join import join_runs
from torch_bottleneck.compare.sides import read_side
from torch_bottleneck.errors import InputError
from torch_bottleneck.model.counters import Counter, SyncSite
from torch_bottleneck.model.run import SourceSite
from torch_bottleneck.reporters.output import save

SYNCS = "example-sync-bound"
BREAKS = CASES["example-graph-breaks-cpu"].folder


@pytest.fixture(scope="module")
def diagnosis():
    return diagnosed(BREAKS)


def test_a_run_folder_a_diagnosis_and_a_baseline_say_the_same(tmp_path, diagnosis):
    save(diagnosis, tmp_path)
    write_baseline(read_side([BREAKS]).baseline, tmp_path / "baseline.json")
    sides = [
        read_side([BREAKS]),
        read_side([tmp_path / "diagnosis.json"]),
        read_side([tmp_path]),
        read_side([tmp_path / "baseline.json"]),
    ]
    assert all(side.baseline == sides[0].baseline for side in sides[1:])


def test_a_folder_of_runs_is_all_of_them(tmp_path):
    for name in ("one", "two"):
        shutil.copytree(BREAKS, tmp_path / name)
    side = read_side([tmp_path])
    assert len(side.baseline.runs) == 2
    assert side.baseline.unstable == {}


def test_a_diagnosis_from_before_there_were_counters_is_made_anew_or_refused(tmp_path, diagnosis):
    old = msgspec.structs.replace(diagnosis, counters=None)
    run = tmp_path / "run"
    shutil.copytree(BREAKS, run)
    save(old, run)
    assert read_side([run]).baseline.counters is not None
    with pytest.raises(InputError, match="run folder"):
        read_side([run / "diagnosis.json"])
    save(old, tmp_path / "alone")
    with pytest.raises(InputError, match="Record the run again"):
        read_side([tmp_path / "alone"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ('{"schema": 1, "verdict": {"cl', "not a diagnosis"),
        ('{"schema": 99}', "schema 99"),
    ],
)
def test_a_broken_diagnosis_is_named(tmp_path, text, says):
    path = tmp_path / "diagnosis.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_side([path])
    assert says in str(caught.value) and str(path) in str(caught.value)


def test_nothing_there_and_nothing_in_it_are_named(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_side([tmp_path / "none"])
    with pytest.raises(InputError, match="is empty"):
        read_side([tmp_path])


def test_runs_are_joined_by_the_lower_median_and_their_disagreement_is_kept(diagnosis):
    def with_syncs(value: float):
        values = {**diagnosis.counters.values, "syncs": Counter(value=value)}
        counters = msgspec.structs.replace(diagnosis.counters, values=values)
        return msgspec.structs.replace(diagnosis, counters=counters)

    joined = join_runs([with_syncs(3), with_syncs(5), with_syncs(3)])
    assert joined.counters is not None
    assert joined.counters.values["syncs"] == Counter(value=3, low=3, high=5)
    assert joined.unstable == {"syncs": (3, 5)}


def test_a_counter_that_one_run_lacks_is_absent_with_its_reason(diagnosis):
    values = dict(diagnosis.counters.values)
    del values["syncs"]
    without = msgspec.structs.replace(diagnosis.counters, values=values, absent={"syncs": "no trace"})
    joined = join_runs([diagnosis, msgspec.structs.replace(diagnosis, counters=without)])
    assert joined.counters is not None
    assert "syncs" not in joined.counters.values
    assert joined.counters.absent["syncs"] == "no trace"


def test_paths_are_told_from_the_root(tmp_path, diagnosis):
    sync = SyncSite(what="read", count=1, site=SourceSite(file=str(tmp_path / "train.py"), line=2), code="x")
    counters = msgspec.structs.replace(diagnosis.counters, syncs=(sync,))
    joined = join_runs([msgspec.structs.replace(diagnosis, counters=counters)], root=tmp_path)
    assert joined.counters is not None
    found = joined.counters.syncs[0]
    assert found.site is not None
    assert (found.site.file, found.code) == ("train.py", "x")


def test_a_gpu_run_and_a_cpu_run_are_refused():
    found = compare_sides(side_of(SYNCS), read_side([BREAKS]))
    assert found.outcome == "incomparable"
    assert {row.what for row in found.mismatches} >= {"device"}


def test_a_recorded_gpu_run_compared_with_a_faster_twin_names_its_counters(tmp_path):
    """The recorded run has 438 reads per step; the same baseline with one read less says so."""
    side = side_of(SYNCS)
    write_baseline(side.baseline, tmp_path / "baseline.json")
    raw = json.loads((tmp_path / "baseline.json").read_text())
    raw["counters"]["values"]["syncs"]["value"] = 437
    (tmp_path / "baseline.json").write_text(json.dumps(raw))
    found = compare_sides(read_side([tmp_path / "baseline.json"]), side)
    assert found.outcome == "regression"
    assert "437 → 438" in found.headline


@pytest.mark.parametrize(
    "name", ["example-sync-bound", "example-allocator-thrashing", "cpu-allocator-16-cores"]
)
def test_a_side_has_the_step_time_that_its_diagnosis_shows(name):
    """The mean, which a slow step in ten moves; a median would not see it."""
    found = diagnosis_of(name)
    (run,) = join_runs([found]).runs
    assert run.step_ms == pytest.approx(found.step.true_ms, rel=1e-5)
