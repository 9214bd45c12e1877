"""From a run folder made by hand to a diagnosis; every missing piece lowers the quality, none is fatal."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from recorded.cases import CASES

from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.errors import InputError
from torch_bottleneck.model.codes import BottleneckClass
from torch_bottleneck.model.finding import DoubtCode
from torch_bottleneck.model.run import (
    Artefact,
    BatchFacts,
    DeviceFacts,
    HostFacts,
    LoaderFacts,
    Production,
    Run,
    ScriptOutcome,
    SiteTime,
    SourceSite,
    StepTable,
    Window,
    WorkerStart,
)
from torch_bottleneck.reporters import terminal

PHASES = {"data": 8.0, "forward": 1.0, "backward": 1.0, "optimizer": 0.2}
WALL = 10.4


def table(count: int, phases: dict[str, float] = PHASES, wall: float = WALL) -> StepTable:
    return StepTable(
        index=list(range(count)),
        wall_ms=[wall + 0.01 * (k % 3) for k in range(count)],
        phases_ms={name: [value] * count for name, value in phases.items()},
        batch_elements=[64] * count,
        user_cpu_ms=[2.4] * count,
        system_cpu_ms=[0.0] * count,
        minor_faults=[0] * count,
        micro_steps=[1] * count,
    )


def make_run(**changes: object) -> Run:
    run = Run(
        command=["train.py"],
        host=HostFacts(cores=4, torch="2.13.0"),
        devices=[DeviceFacts(kind="cpu")],
        step_signal="optimizer+fetch",
        windows=[
            Window(name="warm-up", status="ok", steps=table(10)),
            Window(name="baseline", status="ok", steps=table(20)),
        ],
        dispatch_ns=1000.0,
        settings={"threads.intra_op": 1, "malloc.library": "glibc"},
        artefacts={"trace": Artefact(status="ok", path="trace")},
        outcome=ScriptOutcome(how="stopped"),
    )
    return msgspec.structs.replace(run, **changes)


LOADER = LoaderFacts(
    id=1,
    cls="DataLoader",
    site=SourceSite(file="train.py", line=12),
    role="train",
    fetches=40,
    iterators=1,
    wait_ms=[8.0] * 20,
    wait_step=list(range(20)),
    production=Production(where="main", batches=20, fetch_ms=[7.5] * 20, collate_ms=[0.4] * 20),
)


def trace_events(steps: int) -> list[dict[str, Any]]:
    events = []

    def add(name: str, category: str, start: float, length: float) -> None:
        events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": 7, "ts": start, "dur": length}
        )

    for k in range(steps):
        at = 1000.0 + k * 10_400
        add(f"ProfilerStep#{k + 1}", "user_annotation", at, 10_400)
        add("data", "user_annotation", at, 8000)
        add("forward", "user_annotation", at + 8000, 1000)
        add("aten::addmm", "cpu_op", at + 8010, 950)
        add("backward", "user_annotation", at + 9000, 1000)
        add("aten::mm", "cpu_op", at + 9010, 950)
        add("optimizer", "user_annotation", at + 10_000, 200)
        add("aten::add_", "cpu_op", at + 10_010, 150)
    return events


def make_folder(
    path: Path, run: Run | None, *, steps: int = 4, loaders: list[LoaderFacts] | None = None
) -> Path:
    path.mkdir()
    if run is not None:
        (path / "run.json").write_bytes(msgspec.json.encode(run))
    (path / "loader.json").write_bytes(msgspec.json.encode([LOADER] if loaders is None else loaders))
    if steps:
        (path / "trace").mkdir()
        (path / "trace" / "host_7.1.pt.trace.json").write_text(
            json.dumps({"schemaVersion": 1, "traceEvents": trace_events(steps)})
        )
    return path


def test_a_whole_run_folder_is_diagnosed_with_price_place_and_fix(tmp_path):
    diagnosis = diagnose_paths([make_folder(tmp_path / "run", make_run())])
    assert diagnosis.verdict.bottleneck_class is BottleneckClass.INPUT
    assert diagnosis.verdict.confidence == "high"
    assert sum(line.ms for line in diagnosis.budget) == pytest.approx(diagnosis.step.true_ms)
    cause = diagnosis.causes[0]
    assert cause.cost_ms == pytest.approx(8.0, rel=0.02)
    assert cause.sites[0].line == 12
    workers = next(s for s in diagnosis.suggestions if s.fix == "FX101")
    assert workers.predicted_ms == pytest.approx(WALL - 8.0, rel=0.05)
    assert diagnosis.capture.inflation == pytest.approx(1.0, rel=0.01)
    assert "num_workers=4" in workers.code


@pytest.mark.parametrize(("at_start", "found"), [(4, True), (1, False)])
def test_workers_that_wait_for_cores_of_the_start_are_told_with_their_price(tmp_path, at_start, found):
    made = Production(
        where="workers", batches=20, fetch_ms=[20.0] * 20, core_wait_ms=[9.0] * 20, worker_cores=1
    )
    loader = msgspec.structs.replace(LOADER, num_workers=2, production=made)
    run = make_run(host=HostFacts(cores=1, cores_at_start=at_start, torch="2.13.0"))
    diagnosis = diagnose_paths([make_folder(tmp_path / "run", run, loaders=[loader])])
    findings = {finding.code: finding for finding in diagnosis.findings}
    fixes = {suggestion.fix: suggestion for suggestion in diagnosis.suggestions}
    assert ("BN106" in findings) == ("FX522" in fixes) == found
    if found:
        assert findings["BN106"].title == "2 workers may use 1 of the 4 cores of the start"
        # Each of two workers makes and sends a batch in two steps, less 9 ms of waiting; the rest takes 2.4.
        assert fixes["FX522"].predicted_ms == pytest.approx((2 * WALL - 9.0) / 2, rel=0.01)
        assert fixes["FX522"].finding == "BN106"


@pytest.mark.parametrize("helped", [8.0, 0.0])
def test_threads_of_libraries_in_workers_are_told_with_what_waiting_for_cores_costs(tmp_path, helped):
    made = Production(
        where="workers", batches=20, fetch_ms=[20.0] * 20, core_wait_ms=[9.0] * 20, worker_cores=2
    )
    made = msgspec.structs.replace(made, computed_ms=7.0, helped_ms=helped or None)
    loader = msgspec.structs.replace(LOADER, num_workers=2, production=made)
    run = make_run(host=HostFacts(cores=2, cores_at_start=2, torch="2.13.0"))
    diagnosis = diagnose_paths([make_folder(tmp_path / "run", run, loaders=[loader])])
    findings = {finding.code: finding for finding in diagnosis.findings}
    fixes = {suggestion.fix: suggestion for suggestion in diagnosis.suggestions}
    assert ("BN107" in findings) == ("FX115" in fixes) == bool(helped)
    if helped:
        # Each of two workers waits 9 ms for a core, less than the 16 that threads of both may take.
        assert fixes["FX115"].predicted_ms == pytest.approx(WALL - 9.0 / 2, rel=0.01)
        assert "8.00 ms of processor time per batch" in findings["BN107"].evidence[0].text


@pytest.mark.parametrize(("made_ms", "memory_bytes"), [(2.0, 4_000_000), (2.0, 40_000_000), (40.0, 0)])
def test_batches_made_in_time_that_arrive_late_are_handed_over_slowly(tmp_path, made_ms, memory_bytes):
    made = Production(where="workers", batches=20, fetch_ms=[made_ms] * 20, busy_share=0.06)
    batch = BatchFacts(bytes=4_000_000, memory_bytes=memory_bytes, tensors=["int64[6]"] * 169)
    loader = msgspec.structs.replace(LOADER, num_workers=4, production=made, batch=batch)
    diagnosis = diagnose_paths([make_folder(tmp_path / "run", make_run(), loaders=[loader])])
    findings = {finding.code: finding for finding in diagnosis.findings}
    fixes = {suggestion.fix: suggestion for suggestion in diagnosis.suggestions}
    late = made_ms < 4 * 2.4
    assert ("BN108" in findings) == ("FX116" in fixes) == late
    assert ("BN102" in findings) == ("FX107" in fixes) == (not late)
    if late:
        sends = "38.1 MiB are sent for 3.81 MiB" if memory_bytes > 4_000_000 else "it is 169 tensors"
        assert findings["BN108"].title == f"4 workers keep up, but each batch arrives late: {sends}"
        assert fixes["FX116"].predicted_ms == pytest.approx(WALL - 8.0, rel=0.02)
        assert fixes["FX116"].bound


def test_starts_of_workers_are_named_with_their_loader_and_no_burst_of_the_supply(tmp_path):
    quiet = table(40, {**PHASES, "data": 0.2}, wall=2.6)
    held = [150.0 if k in (10, 30) else 0.0 for k in range(40)]
    data = [0.2 + h for h in held]
    steps = msgspec.structs.replace(
        quiet,
        wall_ms=[wall + h for wall, h in zip(quiet.wall_ms, held, strict=True)],
        phases_ms={**quiet.phases_ms, "data": data},
    )
    run = make_run(windows=[Window(name="baseline", status="ok", steps=steps)])
    starts = [WorkerStart(step=k, making_ms=100.0, wait_ms=50.2) for k in (10, 30)]
    made = Production(where="workers", batches=40, fetch_ms=[0.2] * 40)
    started = msgspec.structs.replace(
        LOADER, num_workers=2, iterators=2, starts=starts, wait_ms=[min(d, 50.2) for d in data],
        wait_step=list(range(40)), production=made,
    )  # fmt: skip
    diagnosis = diagnose_paths([make_folder(tmp_path / "run", run, loaders=[started])])
    assert diagnosis.step.true_ms == pytest.approx(2.6 + 150.0 / 20, rel=0.01)
    found = {finding.code: finding for finding in diagnosis.findings}
    assert found["BN104"].cost_ms == pytest.approx(7.5, rel=0.01)
    assert found["BN104"].title.startswith("Starting the workers of the loader at train.py:12 takes 150")
    assert "to start workers" in found["BN101"].title
    assert not found.keys() & {"BN103", "BN105"}
    kept = diagnosis.suggestions[0]
    assert (kept.fix, kept.predicted_ms) == ("FX105", pytest.approx(2.6, rel=0.01))


def test_without_a_trace_the_baseline_alone_tells_waiting_for_input(tmp_path):
    absent = {"trace": Artefact(status="absent", reason="the script profiles itself")}
    diagnosis = diagnose_paths([make_folder(tmp_path / "run", make_run(artefacts=absent), steps=0)])
    assert diagnosis.verdict.bottleneck_class is BottleneckClass.INPUT
    assert diagnosis.capture.quality != "good"
    assert diagnosis.capture.artefacts == absent


def test_without_a_trace_nothing_else_is_guessed(tmp_path):
    phases = {"data": 0.1, "forward": 5.0, "backward": 5.0}
    warm_up = Window(name="warm-up", status="ok")
    run = make_run(windows=[warm_up, Window(name="baseline", status="ok", steps=table(20, phases))])
    diagnosis = diagnose_paths([make_folder(tmp_path / "run", run, steps=0, loaders=[])])
    assert diagnosis.verdict.bottleneck_class is BottleneckClass.UNDETERMINED
    assert "missing or cannot be read" in diagnosis.verdict.remedy
    absent = {"trace": Artefact(status="absent", reason="the script ended before the trace window")}
    run = msgspec.structs.replace(run, artefacts=absent, outcome=ScriptOutcome(how="finished"))
    diagnosis = diagnose_paths([make_folder(tmp_path / "short", run, steps=0, loaders=[])])
    assert "let it make more steps" in diagnosis.verdict.remedy


def test_a_doubt_is_told_once_with_what_to_do(tmp_path):
    phases = {"data": 0.1, "forward": 5.0, "backward": 4.0}
    idle = msgspec.structs.replace(table(20, phases), user_cpu_ms=[1.0] * 20, system_cpu_ms=[0.0] * 20)
    run = make_run(windows=[Window(name="baseline", status="ok", steps=idle)])
    diagnosis = diagnose_paths([make_folder(tmp_path / "run", run)])
    (busy,) = [text for text in diagnosis.capture.problems if text.startswith("The machine was busy")]
    assert "quiet machine" in busy
    assert diagnosis.capture.problems[diagnosis.capture.codes[DoubtCode.MACHINE_BUSY]] == busy
    assert diagnosis.capture.quality == "fair"
    assert diagnosis.verdict.doubts[0] is DoubtCode.MACHINE_BUSY, (
        "the reason of other doubts stands before them"
    )
    assert "; the machine was busy" in f"; {diagnosis.verdict.reason}"


@pytest.mark.parametrize("own", [True, False])
def test_a_script_that_profiles_itself_is_told_what_is_in_the_way(tmp_path, own):
    phases = {"data": 0.1, "forward": 5.0, "backward": 5.0}
    site = SourceSite(file="train.py", line=9)
    run = make_run(
        windows=[Window(name="baseline", status="ok", steps=table(20, phases))],
        profiles_itself=own,
        artefacts={"trace": Artefact(status="absent", reason="why")},
        sites=[SiteTime(site=site, phase="script profiler", count=20)],
    )
    diagnosis = diagnose_paths([make_folder(tmp_path / "run", run, steps=0, loaders=[])])
    told = [(s.fix, s.site) for s in diagnosis.suggestions if s.finding == "BN905"]
    assert told == [("FX519", site)] * own
    assert diagnosis.verdict.doubts == (DoubtCode.OWN_PROFILER if own else DoubtCode.UNEXPLAINED,)
    assert ("Remove it from the loop" in diagnosis.verdict.remedy) is own


def test_who_traces_python_is_named_with_the_line(tmp_path):
    run = make_run(settings={"python.traced": ["bdb.Bdb.trace_dispatch (/lib/bdb.py:80)", "cov.CTracer"]})
    diagnosis = diagnose_paths([make_folder(tmp_path / "run", run)])
    (found,) = [finding for finding in diagnosis.findings if finding.code == "BN911"]
    assert found.title == "Python calls `trace_dispatch()`, `CTracer()` for each line or call that it runs"
    assert [(site.file, site.line) for site in found.sites] == [("/lib/bdb.py", 80)]
    (fix,) = [s for s in diagnosis.suggestions if s.finding == "BN911"]
    assert (fix.fix, fix.can_try) == ("FX533", True)


@pytest.mark.parametrize(("together", "doubted"), [(9000.0, True), (25.0, False)])
def test_threads_that_wait_for_one_another_are_a_doubt(tmp_path, together, doubted):
    run = msgspec.structs.replace(make_run(), parallel_us=(together, 15.0))
    diagnosis = diagnose_paths([make_folder(tmp_path / "run", run)])
    assert any("torch.set_num_threads(1)" in text for text in diagnosis.capture.problems) is doubted
    assert any(finding.code == "BN903" for finding in diagnosis.findings) is doubted
    fewer = [s for s in diagnosis.suggestions if s.fix == "FX506" and s.can_try and not s.note]
    assert [(s.options, "set_num_threads(1)" in s.code) for s in fewer] == [({"threads": 1}, True)] * doubted


def test_the_warm_up_stands_in_for_a_baseline_that_was_never_reached(tmp_path):
    run = make_run(windows=[Window(name="warm-up", status="ok", steps=table(10))])
    diagnosis = diagnose_paths([make_folder(tmp_path / "run", run)])
    assert diagnosis.step.true_is == "measured"
    assert diagnosis.step.count < 10
    assert any("warm-up stand in" in problem for problem in diagnosis.capture.problems)


@pytest.mark.parametrize(("steps", "count"), [(2, 1), (3, 2), (4, 3)])
def test_a_script_of_a_few_steps_is_judged_by_all_but_its_first(tmp_path, steps: int, count: int):
    slow_start = table(steps)
    slow_start.wall_ms[0] = 500.0
    run = make_run(windows=[Window(name="warm-up", status="short", steps=slow_start)])
    diagnosis = diagnose_paths([make_folder(tmp_path / "run", run, steps=0)])
    assert diagnosis.step.count == count
    assert diagnosis.step.true_ms == pytest.approx(WALL, rel=0.01)
    assert diagnosis.verdict.bottleneck_class is BottleneckClass.INPUT
    assert diagnosis.verdict.confidence == "low"


@pytest.mark.parametrize(
    ("steps", "compiled", "said"),
    [
        (1, False, "the only step that was seen is the script's first (10.4 ms, 8.00 ms (77 %) of it"),
        (3, True, "every one of the 3 steps seen compiled something"),
    ],
)
def test_what_was_seen_is_told_where_no_step_can_be_judged_by(tmp_path, steps, compiled, said):
    seen = msgspec.structs.replace(table(steps), compiled=[compiled] * steps)
    run = make_run(windows=[Window(name="warm-up", status="short", steps=seen)])
    diagnosis = diagnose_paths([make_folder(tmp_path / "run", run, steps=0)])
    assert diagnosis.verdict.bottleneck_class is BottleneckClass.UNDETERMINED
    assert said.lower() in diagnosis.verdict.headline.lower()
    assert "more steps" in diagnosis.verdict.remedy
    assert not any("no training step" in text.lower() for text in diagnosis.capture.problems)


def test_a_run_that_never_made_a_step_is_undetermined_with_a_remedy(tmp_path):
    run = make_run(windows=[], outcome=ScriptOutcome(how="raised", exception="ValueError: no data"))
    diagnosis = diagnose_paths([make_folder(tmp_path / "run", run, steps=0, loaders=[])])
    assert diagnosis.verdict.bottleneck_class is BottleneckClass.UNDETERMINED
    assert diagnosis.verdict.remedy
    assert "ValueError: no data" in diagnosis.outcome


def test_a_bare_trace_says_that_its_step_is_inflated_until_it_is_given_one(tmp_path):
    trace = make_folder(tmp_path / "run", None) / "trace" / "host_7.1.pt.trace.json"
    inflated = diagnose_paths([trace])
    assert inflated.step.true_is == "profiled"
    assert inflated.verdict.bottleneck_class is BottleneckClass.INPUT
    given = diagnose_paths([trace], true_step_ms=9.0)
    assert (given.step.true_is, given.step.true_ms) == ("given", 9.0)
    assert sum(line.ms for line in given.budget) == pytest.approx(9.0)


def test_a_gpu_run_whose_trace_has_no_kernels_is_not_read_as_a_cpu_run(tmp_path):
    run = make_run(devices=[DeviceFacts(kind="cuda", name="H200")])
    diagnosis = diagnose_paths([make_folder(tmp_path / "run", run)])
    assert diagnosis.verdict.bottleneck_class is BottleneckClass.UNDETERMINED
    assert any("without device activity" in problem for problem in diagnosis.capture.problems)
    assert "CUPTI" in diagnosis.verdict.remedy


def test_kernels_without_the_calls_that_launched_them_are_not_read_as_a_cpu_run(tmp_path):
    """What `ProfilerActivityConfig(activity_types=["kernel"])` of torch 2.15 leaves."""
    recorded = json.loads(
        gzip.decompress((CASES["launch-h200"].folder / "launch.pt.trace.json.gz").read_bytes())
    )
    kept = [e for e in recorded["traceEvents"] if not str(e.get("cat")).endswith(("_runtime", "_driver"))]
    (tmp_path / "t.json").write_text(json.dumps({**recorded, "traceEvents": kept}))
    diagnosis = diagnose_paths([tmp_path / "t.json"])
    assert diagnosis.verdict.bottleneck_class is BottleneckClass.UNDETERMINED
    assert "none of the calls that launched them" in diagnosis.verdict.headline
    assert "cuda_runtime" in diagnosis.verdict.remedy


def test_the_slowest_of_ranks_without_collectives_decides(tmp_path):
    top = tmp_path / "run"
    top.mkdir()
    for rank, wall in ((0, 10.4), (1, 20.4)):
        steps = table(20, {**PHASES, "data": wall - 2.4}, wall)
        run = make_run(rank=rank, world_size=2, windows=[Window(name="baseline", status="ok", steps=steps)])
        make_folder(top / f"rank{rank}", run)
    diagnosis = diagnose_paths([top])
    assert diagnosis.step.true_ms == pytest.approx(20.4, rel=0.01)
    assert [row.rank for row in diagnosis.ranks] == [0, 1]
    assert any("rank 1" in note for note in diagnosis.notes)
    assert diagnosis.rank == 1
    assert "2 ranks, rank 1 shown" in terminal.render(diagnosis)


def test_of_several_traces_the_head_names_the_one_whose_figures_are_shown(tmp_path):
    traces = []
    for rank, steps in ((0, 4), (1, 4)):
        events = trace_events(steps)
        slow = [
            {**event, "ts": event["ts"] * (1 + rank), "dur": event.get("dur", 0) * (1 + rank)}
            for event in events
        ]
        traces.append(tmp_path / f"rank{rank}.pt.trace.json")
        traces[-1].write_text(json.dumps({"schemaVersion": 1, "traceEvents": slow}))
    diagnosis = diagnose_paths(traces)
    assert diagnosis.title == "rank1.pt.trace.json"
    assert diagnosis.title == diagnosis.ranks[diagnosis.rank].path


def test_nothing_readable_is_the_users_error(tmp_path):
    with pytest.raises(InputError):
        diagnose_paths([tmp_path / "missing"])


def test_a_gpu_run_without_any_trace_is_not_told_to_look_at_cupti(tmp_path: Path) -> None:
    """The script may have ended first; only a trace without device activity points at the profiler."""
    lost = Artefact(status="absent", reason="the script ended before the trace window")
    run = make_run(devices=[DeviceFacts(kind="cuda", name="NVIDIA H200")], artefacts={"trace": lost})
    problems = diagnose_paths([make_folder(tmp_path / "run", run, steps=0)]).capture.problems
    assert any("the script ended before the trace window" in text for text in problems)
    assert not any("CUPTI" in text for text in problems)


@pytest.mark.parametrize("fed_share", [None, 0.0, 1.0])
def test_outputs_of_what_trained_layers_feed_cannot_be_kept(tmp_path, fed_share):
    shutil.copytree(CASES["cpu-frozen-teacher"].folder, tmp_path / "run")
    (path,) = (tmp_path / "run").glob("**/run.json")
    run = msgspec.json.decode(path.read_bytes())
    run["repeats"] = {"calls": 0, "fed_share": fed_share}
    path.write_bytes(msgspec.json.encode(run))
    diagnosis = diagnose_paths([path.parent])
    told = [e.text for f in diagnosis.findings if f.code == "BN311" for e in f.evidence]
    assert ("FX110" in {s.fix for s in diagnosis.suggestions}) == (not fed_share)
    assert any("nothing that is trained reads those outputs" in text for text in told) == bool(fed_share)
