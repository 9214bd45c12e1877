"""The CPU reading: one lane whose parts add up to the true step."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_bottleneck.model.codes import Part, WhatIf
from torch_bottleneck.model.finding import DoubtCode
from torch_bottleneck.model.run import (
    BatchFacts,
    CompileFacts,
    FlopCount,
    GraphBreak,
    HostFacts,
    LoaderFacts,
    MaskFacts,
    OptimizerFacts,
    Production,
    Run,
    SiteTime,
    SourceSite,
    StepTable,
    Window,
)
from torch_bottleneck.timeline.cpu.division import Division, calibrate
from torch_bottleneck.timeline.cpu.program import fault_ms, faults_by_phase
from torch_bottleneck.timeline.lanes.labels import Work
from torch_bottleneck.timeline.steps.baseline import Baseline
from torch_bottleneck.timeline.trace.dialect import Kind
from torch_bottleneck.timeline.trace.operators import NODE

from .cpu_traces import make_steps, make_trace, training, training_step
from .readings import read

NAMES = (
    "aten::mm",
    "aten::add",
    "aten::view",
    "aten::item",
    "aten::_local_scalar_dense",
    "autograd::engine::evaluate_function: MulBackward0",
    "Torch-Compiled Region: 0/0",
    "## Call CompiledFxGraph x ##",
    "TorchDynamo Cache Lookup",
    "_compile.compile_inner (dynamo_timed)",
    "MyFunctionBackward",
)
LABELS = ("data", "forward", "backward", "optimizer", "zero_grad", "evaluation", "my label")


def run_of(
    wall_ms: float, phases_ms: dict[str, float], *, steps: int = 10, **columns: list[float]
) -> tuple[Run, np.ndarray]:
    table = StepTable(
        wall_ms=[wall_ms] * steps,
        phases_ms={name: [value] * steps for name, value in phases_ms.items()},
        **{name: [value[0]] * steps for name, value in columns.items()},  # type: ignore[arg-type]
    )
    run = Run(
        windows=[Window(name="baseline", status="ok", steps=table)],
        host=HostFacts(cores=4),
        dispatch_ns=1000.0,
    )
    return run, np.ones(steps, dtype=bool)


@st.composite
def nested_rows(draw: st.DrawFn, depth: int = 0, start: int = 0, end: int = 4000) -> list:
    rows = []
    now = start
    for _ in range(draw(st.integers(0, 4))):
        begin = draw(st.integers(now, end))
        stop = draw(st.integers(begin, end))
        is_label = draw(st.booleans())
        name = draw(st.sampled_from(LABELS if is_label else NAMES))
        rows.append((name, "label" if is_label else "op", float(begin), float(stop - begin)))
        if depth < 3:
            rows += draw(nested_rows(depth=depth + 1, start=begin, end=stop))
        now = stop
    return rows


@settings(max_examples=150, deadline=None)
@given(
    rows=nested_rows(),
    wall=st.floats(0.05, 50.0),
    shares=st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4),
    system=st.floats(0.0, 10.0),
    collector=st.floats(0.0, 10.0),
)
def test_parts_add_up_to_the_true_step(rows, wall, shares, system, collector):
    total = max(sum(shares), 1.0)
    phases = dict(
        zip(("data", "forward", "backward", "my label"), [s / total * wall for s in shares], strict=True)
    )
    run, kept = run_of(
        wall, phases, system_cpu_ms=[system], user_cpu_ms=[wall], minor_faults=[5000], gc_ms=[collector]
    )
    timeline = read(make_trace(rows), make_steps([(0, 4000)]), true_ms=wall, run=run, kept=kept)
    assert sum(line.ms for line in timeline.budget) == pytest.approx(wall)
    assert all(line.ms >= -1e-9 for line in timeline.budget)
    assert all(0 <= answer.step_ms <= wall + 1e-9 for answer in timeline.what_ifs.values())


@settings(max_examples=60, deadline=None)
@given(rows=nested_rows(), true_ms=st.floats(0.1, 20.0))
def test_parts_of_a_bare_trace_add_up_to_the_step_given(rows, true_ms):
    timeline = read(make_trace(rows), make_steps([(0, 4000)]), true_ms=true_ms)
    assert sum(line.ms for line in timeline.budget) == pytest.approx(true_ms)


@pytest.mark.parametrize(
    ("operator", "backend"),
    [
        ("aten::_scaled_dot_product_attention_math", "math"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "flash"),
        ("aten::bmm", "none"),
    ],
)
def test_the_trace_tells_whether_attention_is_called_already(operator: str, backend: str):
    """BERT with dropout on a CPU was told to call what it called: torch did it by plain math."""
    rows = [("forward", "label", 0.0, 3000.0), (operator, "op", 100.0, 2000.0)]
    timeline = read(make_trace(rows), make_steps([(0, 4000)]), true_ms=4.0)
    assert timeline.context["attention.backend"] == backend


def test_the_wait_comes_from_the_baseline_and_not_from_the_trace():
    trace, steps = training(4, data=500.0)
    run, kept = run_of(12.1, {"data": 10.0, "forward": 1.0, "backward": 1.0, "optimizer": 0.1})
    timeline = read(trace, steps, true_ms=12.1, run=run, kept=kept)
    assert timeline.part_ms(Part.INPUT) == pytest.approx(10.0)
    assert timeline.what_ifs[WhatIf.INPUT_READY].step_ms == pytest.approx(2.1)


def test_the_profilers_cost_is_taken_from_dispatch_and_never_from_work():
    # Profiled: 1 ms of mm and 100 small operators in 1 ms. Unprofiled the forward took 1.5 ms.
    trace, steps = training(4, math=1000.0, small_ops=100)
    run, kept = run_of(2.6, {"forward": 1.5, "backward": 1.0, "optimizer": 0.1})
    timeline = read(trace, steps, true_ms=2.6, run=run, kept=kept)
    assert timeline.part_ms(Part.OTHER_MATH) == pytest.approx(2.0, rel=0.01)
    assert timeline.part_ms(Part.DISPATCH) + timeline.part_ms(Part.MEMORY_BOUND) == pytest.approx(
        0.5, rel=0.1
    )
    # Of 1 ms, 0.2 are work beyond the fixed cost of 2 us; the other 0.8 shrink to what is left.
    assert timeline.dispatch_scale == pytest.approx(0.3 / 0.8, rel=0.02)


def test_tiny_operators_are_dispatch_and_long_ones_are_work():
    launching, steps = training(4, math=5.0, small_ops=300, optimizer=5.0)
    busy, busy_steps = training(4, math=5000.0, small_ops=3)
    first = read(launching, steps, true_ms=3.0)
    second = read(busy, busy_steps, true_ms=10.0)
    assert first.part_ms(Part.DISPATCH) > 0.6 * first.true_ms
    assert second.part_ms(Part.OTHER_MATH) > 0.9 * second.true_ms


def test_work_between_the_steps_that_the_trace_lacks_is_host_work():
    trace, steps = training(4)
    run, kept = run_of(10.0, {"forward": 1.0, "backward": 1.0, "optimizer": 0.1})
    timeline = read(trace, steps, true_ms=10.0, run=run, kept=kept)
    assert timeline.part_ms(Part.HOST) == pytest.approx(7.9, rel=0.02)


@pytest.mark.parametrize("part", ["sampled between", "sampled after"])
def test_host_work_that_the_trace_lacks_has_the_place_that_the_samples_tell(part: str):
    trace, steps = training(4, data=500.0)
    run, kept = run_of(50.0, {"data": 0.5, "forward": 1.0, "backward": 1.0, "optimizer": 0.1})
    place = SiteTime(site=SourceSite(file="loss.py", line=7, function="loss"), phase=part, count=30)
    run = msgspec.structs.replace(run, sites=[place])
    timeline = read(trace, steps, true_ms=50.0, run=run, kept=kept)
    (span,) = (span for span in timeline.spans if span.what == "Python outside the phases")
    assert span.exposed_ms == pytest.approx(47.4, abs=0.5)
    assert span.site == place.site


def test_a_moment_lost_to_another_process_does_not_become_a_cause():
    trace, steps = training(5)
    quiet = read(trace, steps, true_ms=2.1)
    rows, bounds, now = [], [], 0.0
    for k in range(5):
        pause = 40_000.0 if k == 2 else 0.0
        begin = now
        rows += [
            ("forward", "label", now, 1000.0 + pause),
            ("aten::mm", "op", now + pause, 1000.0),
            ("backward", "label", now + pause + 1000, 1000.0),
            ("aten::mm", "op", now + pause + 1000, 1000.0),
            ("optimizer", "label", now + pause + 2000, 100.0),
            ("aten::add_", "op", now + pause + 2000, 100.0),
        ]
        now += pause + 2100
        bounds.append((begin, now))
    disturbed = read(make_trace(rows), make_steps(bounds), true_ms=2.1)
    assert disturbed.part_ms(Part.HOST) == pytest.approx(quiet.part_ms(Part.HOST), abs=0.05)


def test_page_faults_are_system_time_as_far_as_faults_explain_it():
    trace, steps = training(4)
    phases = {"forward": 1.0, "backward": 1.0, "optimizer": 0.1}
    run, kept = run_of(2.1, phases, system_cpu_ms=[0.8], user_cpu_ms=[1.3], minor_faults=[400])
    timeline = read(trace, steps, true_ms=2.1, run=run, kept=kept)
    assert timeline.part_ms(Part.ALLOCATOR) == pytest.approx(0.8, rel=0.01)
    run, kept = run_of(2.1, phases, system_cpu_ms=[0.8], user_cpu_ms=[1.3], minor_faults=[4])
    assert read(trace, steps, true_ms=2.1, run=run, kept=kept).part_ms(Part.ALLOCATOR) == 0


@pytest.mark.parametrize(
    ("user", "system", "cost"),
    [
        # 16 threads fault at once: 980 ms of system time in a step of 274 ms, which took 135 ms without them.
        (2040.0, 980.0, 274.0 - 2040.0 / 16),
        # One thread faults while the others wait: all of it stands in the step.
        (200.0, 80.0, 80.0),
        # The user time alone fills every thread: what is left is the share of the processor time.
        (4384.0, 500.0, 500.0 * 274.0 / 4884.0),
    ],
)
def test_system_time_of_many_threads_is_not_time_of_the_step(user: float, system: float, cost: float):
    baseline = Baseline(step_ms=274.0, phases_ms={}, user_ms=user, system_ms=system, faults=500_000.0)
    assert fault_ms(baseline, input_ms=0.0, host_ms=0.0, threads=16) == pytest.approx(cost)


def test_system_time_that_no_fault_explains_or_that_makes_input_is_not_the_allocators():
    """Reading files takes system time and no faults; waiting threads take some, too."""
    system = {
        ("data", "input"): (4_000.0, 6.0),
        ("", "extra"): (4_000.0, 1.0),
        ("", "input"): (100.0, 1.0),
        ("forward", "forward"): (1.0, 2.0),
        ("backward", "backward"): (860.0, 10.0),
    }
    share = faults_by_phase(system)
    assert share == {"forward": pytest.approx(0.005 / 20.0), "backward": pytest.approx(4.3 / 20.0)}
    assert faults_by_phase({("backward", "backward"): (0.0, 2.0), ("", "loss"): (9.0, 0.0)}) == {}
    baseline = Baseline(step_ms=40.0, phases_ms={}, user_ms=30.0, system_ms=10.0, faults=1e6)
    found = fault_ms(baseline, input_ms=10.0, host_ms=0.0, threads=1, trained=share["backward"])
    assert found == pytest.approx(0.215 * 10.0)


def test_steady_compilation_is_the_difference_of_the_means():
    trace, steps = training(4)
    table = StepTable(
        wall_ms=[2.1, 2.1, 102.1, 2.1, 102.1],
        phases_ms={"forward": [1.0, 1.0, 101.0, 1.0, 101.0], "backward": [1.0] * 5, "optimizer": [0.1] * 5},
        compiled=[False, False, True, False, True],
    )
    run = Run(windows=[Window(name="baseline", status="ok", steps=table)])
    timeline = read(trace, steps, true_ms=42.1, run=run, kept=np.ones(5, dtype=bool))
    assert timeline.part_ms(Part.COMPILE) == pytest.approx(40.0)
    assert timeline.what_ifs[WhatIf.NO_COMPILE].step_ms == pytest.approx(2.1)


def compiled_step(regions: int, *, nested: bool) -> list:
    rows = [("forward", "label", 0.0, 1000.0)]
    for k in range(regions):
        begin = 10.0 + k * 100
        length = 900.0 - k * 100 if nested else 90.0
        rows += [
            ("Torch-Compiled Region: 0/0", "op", begin, length),
            ("## Call CompiledFxGraph a ##", "op", begin + 30, 50.0),
        ]
    return rows


def test_seams_are_regions_that_dynamo_resumed_and_blocks_compiled_apart_are_not():
    broken = CompileFacts(used=True, breaks=[GraphBreak(reason="Tensor.item()")])
    whole = CompileFacts(used=True)
    steps = make_steps([(0, 1000)])
    nested = make_trace(compiled_step(4, nested=True))
    side_by_side = make_trace(compiled_step(4, nested=False))
    for trace in (nested, side_by_side):
        # Three times 50 us from one graph to the next; what is before the first and behind the last stays.
        seams = read(trace, steps, true_ms=1.0, compile_facts=broken)
        assert seams.part_ms(Part.GRAPH_BREAK) == pytest.approx(0.15, abs=0.01)
        assert seams.seams == () or sum(price.per_step for price in seams.seams) == 3
    assert read(side_by_side, steps, true_ms=1.0, compile_facts=whole).part_ms(Part.GRAPH_BREAK) == 0


def test_a_hand_made_batch_is_input_and_what_stands_before_the_last_read_is_not():
    rows = [
        ("forward", "label", 0.0, 100.0),
        ("aten::mm", "op", 0.0, 100.0),
        ("optimizer", "label", 100.0, 100.0),
        ("aten::item", "op", 200.0, 20.0),
        ("aten::_local_scalar_dense", "op", 205.0, 10.0),
        # 2 ms of logging stand between the read and a second read
        ("aten::item", "op", 2220.0, 20.0),
        ("aten::_local_scalar_dense", "op", 2225.0, 10.0),
        ("aten::lift_fresh", "op", 9000.0, 5.0),
    ]
    timeline = read(make_trace(rows), make_steps([(0, 9100)]), true_ms=9.1)
    assert timeline.part_ms(Part.INPUT) == pytest.approx(6.86, abs=0.05)
    # The reads themselves are the last step's logging, too.
    assert timeline.part_ms(Part.HOST) == pytest.approx(2.04, abs=0.05)


def test_operators_after_the_update_are_no_dispatch_of_the_training():
    def step(at: float) -> list[tuple[str, str, float, float]]:
        training_rows, end = training_step(at, data=10.0, small_ops=50)
        # A moving average of the weights: 100 operators of 4 us, one every 10 us.
        return training_rows + [("aten::lerp_", "op", end + 10.0 * i, 4.0) for i in range(100)]

    length = training_step(0.0, data=10.0, small_ops=50)[1] + 1000.0
    rows = [row for k in range(3) for row in step(k * length)]
    steps = make_steps([(k * length, (k + 1) * length) for k in range(3)])
    timeline = read(make_trace(rows), steps, true_ms=length / 1e3)
    assert timeline.part_ms(Part.HOST) == pytest.approx(1.0, abs=0.05)
    assert timeline.part_ms(Part.DISPATCH) == pytest.approx(0.5, abs=0.1)
    compiled = timeline.what_ifs[WhatIf.COMPILED]
    assert compiled.saves_ms <= timeline.part_ms(Part.DISPATCH)


def test_compiling_the_model_takes_no_dispatch_out_of_a_loss_or_an_update_by_hand():
    rows = [
        ("forward", "label", 0.0, 500.0),
        *(("aten::add", "op", 10.0 * i, 4.0) for i in range(50)),
        ("backward", "label", 500.0, 100.0),
        ("aten::mm", "op", 500.0, 100.0),
        *(("aten::lerp_", "op", 600.0 + 10.0 * i, 4.0) for i in range(140)),
    ]
    timeline = read(make_trace(rows), make_steps([(0, 2000)]), true_ms=2.0)
    assert timeline.part_ms(Part.DISPATCH) == pytest.approx(1.9, abs=0.05)
    assert timeline.what_ifs[WhatIf.COMPILED].saves_ms == pytest.approx(0.5, abs=0.02)


def test_an_update_by_hand_leaves_no_mark_behind_which_work_stands_aside():
    rows = [
        ("forward", "label", 0.0, 100.0),
        ("aten::mm", "op", 0.0, 100.0),
        ("backward", "label", 100.0, 100.0),
        ("aten::mm", "op", 100.0, 100.0),
        *(("aten::add_", "op", 200.0 + 10 * i, 4.0) for i in range(50)),
    ]
    timeline = read(make_trace(rows), make_steps([(0, 700)]), true_ms=0.7)
    assert timeline.part_ms(Part.HOST) == 0


@pytest.mark.parametrize("name", ["aten::add_", "aten::_foreach_addcdiv_"])
@pytest.mark.parametrize("torch_optimizer", [True, False])
def test_an_update_by_hand_is_no_preparation_of_the_next_batch(name: str, torch_optimizer: bool):
    rows = [
        ("forward", "label", 0.0, 100.0),
        ("aten::mm", "op", 0.0, 100.0),
        ("backward", "label", 100.0, 100.0),
        *([("optimizer", "label", 200.0, 50.0)] if torch_optimizer else []),
        *((name, "op", 300.0 + 10.0 * i, 8.0) for i in range(60)),
        ("aten::normal_", "op", 900.0, 100.0),
    ]
    timeline = read(make_trace(rows), make_steps([(0, 1000)]), true_ms=1.0)
    # With an optimizer of torch's what follows it may well be a batch being normalised in place.
    expected = 0.75 if torch_optimizer else 0.1
    assert timeline.part_ms(Part.INPUT) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    ("after", "before", "cause", "site"),
    [(40, 0, Part.HOST, 50), (0, 40, Part.INPUT, 10), (3, 1, Part.INPUT, None)],
    ids=["metrics of the last step", "the next batch", "too few samples to say"],
)
def test_samples_tell_the_last_steps_metrics_from_the_next_batch(after, before, cause, site):
    rows = [
        ("forward", "label", 0.0, 100.0),
        ("aten::mm", "op", 0.0, 100.0),
        ("optimizer", "label", 100.0, 100.0),
        # 8 ms of plain Python, then the batch: by its position it could be either
        ("aten::lift_fresh", "op", 8200.0, 100.0),
    ]
    sites = [
        SiteTime(site=SourceSite(file="train.py", line=line, function="f"), phase=part, count=count)
        for part, line, count in (("sampled after", 50, after), ("sampled before", 10, before))
    ]
    run = Run(sites=sites)
    timeline = read(make_trace(rows), make_steps([(0, 8300)]), true_ms=8.3, run=run)
    other = Part.INPUT if cause is Part.HOST else Part.HOST
    assert timeline.part_ms(cause) > 7.9
    assert timeline.part_ms(other) < 0.2
    named = [span.site.line for span in timeline.spans if span.part is cause and span.site is not None]
    assert site is None or named == [site]


def test_python_between_fetch_and_forward_prepares_the_batch():
    rows = [
        ("data", "label", 0.0, 100.0),
        ("forward", "label", 5100.0, 100.0),
        ("aten::mm", "op", 5100.0, 100.0),
        ("backward", "label", 5200.0, 100.0),
    ]
    timeline = read(make_trace(rows), make_steps([(0, 5300)]), true_ms=5.3)
    assert timeline.part_ms(Part.INPUT) == pytest.approx(5.1, abs=0.02)


def loader(**kwargs: object) -> LoaderFacts:
    return LoaderFacts(id=0, cls="DataLoader", role="train", fetches=10, wait_step=list(range(10)), **kwargs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("workers", "cores", "fetch_ms", "step_ms"),
    [
        # 8 ms of the step's 10 are spent on waiting for batches that take 0.5 ms to make.
        (2, 4, [0.5] * 20, 2.5),
        # Workers beyond the cores keep each other waiting: the usual batch tells, not the mean one.
        (8, 2, [0.5] * 15 + [20.0] * 5, 2.5),
        (2, 4, [0.5] * 15 + [20.0] * 5, 2.0 + 5.375),
        (2, 4, [9.0] * 20, None),
        (0, 4, [0.5] * 20, None),
    ],
    ids=["cheap", "oversubscribed", "some samples are dear", "dear", "no workers"],
)
def test_batches_cheaper_to_make_than_to_hand_over_need_no_workers(workers, cores, fetch_ms, step_ms):
    trace, steps = training(4, data=500.0)
    run, kept = run_of(10.0, {"data": 8.0, "forward": 1.0, "backward": 1.0})
    run = msgspec.structs.replace(run, host=HostFacts(cores=cores))
    made = Production(where="workers" if workers else "main", batches=20, fetch_ms=fetch_ms)
    loaders = [loader(num_workers=workers, production=made, wait_ms=[8.0] * 10)]
    timeline = read(trace, steps, true_ms=10.0, run=run, kept=kept, loaders=loaders)
    answer = timeline.what_ifs.get(WhatIf.INPUT_IN_MAIN)
    assert (answer.step_ms if answer is not None else None) == pytest.approx(step_ms)


@pytest.mark.parametrize(
    ("workers", "counts", "rows", "batched_ms", "cheaper_ms", "bound"),
    [
        # Of 8 ms of input in 10: three quarters are one call, an eighth is torch's handling of rows.
        (0, {"np.sqrt()": 6, "": 1}, 0.125, 9.0, 4.0, False),
        # With a call of a function of the user's goes what else that function does.
        (0, {"np.sqrt() in decode": 5, "np.cos() in decode": 2}, 0.125, 9.0, 3.0, False),
        # No call has half of it: all that does more than handle rows.
        (0, {"a()": 3, "b()": 2}, 0.375, 7.0, 5.0, True),
        # Nothing of the user's runs.
        (0, {}, 1.0, 2.0, 10.0, True),
        # Two workers share it, and the step cannot get shorter than it is without any wait.
        (2, {"np.sqrt()": 6}, 0.25, 9.0, 7.0, False),
        (0, {"np.sqrt()": 8}, None, None, None, None),
    ],
)
def test_parts_of_the_production_have_prices_of_their_own(
    workers, counts, rows, batched_ms, cheaper_ms, bound
):
    trace, steps = training(4, data=500.0)
    run, kept = run_of(10.0, {"data": 8.0, "forward": 1.0, "backward": 1.0})
    sites = [
        SiteTime(
            site=SourceSite(file="data.py", line=k, function=call.partition(" in ")[2] or "__getitem__"),
            phase="fetch",
            call=call,
            count=count,
        )
        for k, (call, count) in enumerate(counts.items())
    ]
    made = Production(
        where="workers" if workers else "main",
        batches=20,
        fetch_ms=[8.0] * 20,
        sites=sites,
        samples=8,
        rows_share=rows,
    )
    loaders = [loader(num_workers=workers, production=made, wait_ms=[8.0] * 10)]
    answers = read(trace, steps, true_ms=10.0, run=run, kept=kept, loaders=loaders).what_ifs
    batched, cheaper = (answers.get(q) for q in (WhatIf.ROWS_BATCHED, WhatIf.PRODUCTION_CHEAPER))
    assert (batched.step_ms if batched else None) == pytest.approx(batched_ms)
    assert (cheaper.step_ms if cheaper else None) == pytest.approx(cheaper_ms)
    assert (cheaper.bound if cheaper else None) is bound


def test_workers_cannot_give_more_than_the_cores_have():
    trace, steps = training(4, data=500.0)
    phases = {"data": 40.0, "forward": 5.0, "backward": 5.0}
    made = Production(where="main", batches=10, fetch_ms=[40.0] * 10)
    asleep, kept = run_of(50.0, phases, user_cpu_ms=[10.0], system_cpu_ms=[0.0])
    busy, _ = run_of(50.0, phases, user_cpu_ms=[50.0], system_cpu_ms=[0.0])
    loaders = [loader(num_workers=0, production=made, wait_ms=[40.0] * 10)]
    free = read(trace, steps, true_ms=50.0, run=asleep, kept=kept, loaders=loaders)
    tight = read(trace, steps, true_ms=50.0, run=busy, kept=kept, loaders=loaders)
    assert free.what_ifs[WhatIf.INPUT_WORKERS].step_ms == pytest.approx(10.0)
    assert tight.what_ifs[WhatIf.INPUT_WORKERS].step_ms == pytest.approx(12.5)
    assert tight.what_ifs[WhatIf.INPUT_WORKERS].bound
    assert free.context["loader.needed_workers"] == 4


@pytest.mark.parametrize(
    ("length", "iterators", "step_ms"), [(None, 10, None), (4, 3, 20.0), (1000, 1, 10.04)]
)
def test_workers_do_not_make_the_first_batch_of_a_pass_before_it_is_asked_for(length, iterators, step_ms):
    trace, steps = training(4, data=500.0)
    made = Production(where="main", batches=10, fetch_ms=[40.0] * 10)
    run, kept = run_of(50.0, {"data": 40.0, "forward": 10.0}, user_cpu_ms=[10.0], system_cpu_ms=[0.0])
    loaders = [
        loader(num_workers=0, production=made, wait_ms=[40.0] * 10, length=length, iterators=iterators)
    ]
    timeline = read(trace, steps, true_ms=50.0, run=run, kept=kept, loaders=loaders)
    answer = timeline.what_ifs.get(WhatIf.INPUT_WORKERS)
    assert (answer.step_ms if answer is not None else None) == pytest.approx(step_ms)


def test_a_fused_optimizer_saves_launches_and_passes_and_is_not_offered_twice():
    trace, steps = training(4, optimizer=1000.0)
    run, kept = run_of(3.0, {"forward": 1.0, "backward": 1.0, "optimizer": 1.0})
    for flavour, offered in (("for-loop", True), ("fused", False)):
        import msgspec

        facts = [OptimizerFacts(cls="AdamW", flavour=flavour)]  # type: ignore[arg-type]
        ran = msgspec.structs.replace(run, optimizers=facts)
        timeline = read(trace, steps, true_ms=3.0, run=ran, kept=kept)
        assert (WhatIf.OPTIMIZER_FUSED in timeline.what_ifs) is offered


def test_modes_cost_what_they_add_to_each_call_from_python():
    trace, steps = training(4)
    run, kept = run_of(3.0, {"forward": 1.0, "backward": 1.0})
    assert WhatIf.MODES_GONE not in read(trace, steps, true_ms=3.0, run=run, kept=kept).what_ifs
    calls = trace.outermost(trace.rows(Kind.OP, tid=steps.thread[1]))
    count = int((~trace.named(NODE, calls)).sum()) / len(steps)
    slowed = msgspec.structs.replace(run, mode_ns=10_000.0)
    answer = read(trace, steps, true_ms=3.0, run=slowed, kept=kept).what_ifs[WhatIf.MODES_GONE]
    assert 0 < answer.saves_ms <= count * 0.01 + 1e-6
    assert f"in {count:.0f} calls" in answer.basis


def test_a_fused_optimizer_has_no_temporaries_whose_pages_are_new_at_each_step():
    trace, steps = training(4, optimizer=1000.0)
    optimizers = [OptimizerFacts(cls="AdamW", flavour="for-loop")]
    saved = []
    for system_ms in (0.0, 1.8):
        run, kept = run_of(
            3.0,
            {"forward": 1.0, "backward": 1.0, "optimizer": 1.0},
            user_cpu_ms=[3.0 - system_ms],
            system_cpu_ms=[system_ms],
            minor_faults=[5000 if system_ms else 0],
        )
        run = msgspec.structs.replace(run, optimizers=optimizers)
        timeline = read(trace, steps, true_ms=3.0, run=run, kept=kept)
        saved.append(timeline.what_ifs[WhatIf.OPTIMIZER_FUSED].saves_ms)
    # A fifth of the work stays; where the update is nearly all page faults, nearly none of it does.
    assert saved == [pytest.approx(0.8, abs=0.01), pytest.approx(1.0, abs=0.02)]


@pytest.mark.parametrize(
    ("parameters", "offered"), [(4, True), (40, False)], ids=["an operator or more for each", "few for all"]
)
def test_an_update_by_hand_is_priced_where_it_runs_tensor_by_tensor(parameters: int, offered: bool):
    # Ten operators of 5 us: dispatch, all of it.
    rows, bounds = [], []
    for step in range(4):
        begin = 3000.0 * step
        rows += [
            ("forward", "label", begin, 1000.0),
            ("aten::mm", "op", begin, 1000.0),
            ("backward", "label", begin + 1000, 1000.0),
            ("aten::mm", "op", begin + 1000, 1000.0),
            ("optimizer", "label", begin + 2000, 1000.0),
            *[("aten::add_", "op", begin + 2000 + 100 * k, 5.0) for k in range(10)],
        ]
        bounds.append((begin, begin + 3000))
    run, kept = run_of(3.0, {"forward": 1.0, "backward": 1.0, "optimizer": 1.0})
    mine = OptimizerFacts(cls="Mine", module="train", flavour="unknown", parameters=parameters)
    run = msgspec.structs.replace(run, optimizers=[mine], dispatch_ns=5000.0)
    timeline = read(make_trace(rows), make_steps(bounds), true_ms=3.0, run=run, kept=kept)
    assert (WhatIf.OPTIMIZER_FUSED in timeline.what_ifs) is offered
    assert (timeline.context.get("optimizer.flavour") == "for-loop") is offered
    if offered:
        answer = timeline.what_ifs[WhatIf.OPTIMIZER_FUSED]
        assert answer.bound
        assert answer.saves_ms == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize(
    ("outside", "grown"),
    [
        ([2.0 + 0.05 * k for k in range(60)], 1.25),
        ([2.0 + 3.0 * (k % 10 == 0) for k in range(60)], 0.0),
        ([4.0, *[2.0] * 30, *[2.5] * 29], 0.0),
        ([2.0 + 0.05 * k for k in range(20)], 0.0),
    ],
    ids=["grows", "now and then", "another level", "too few to tell"],
)
def test_time_outside_the_phases_that_grows_from_step_to_step_is_host_work(
    outside: list[float], grown: float
):
    rows, bounds = [], []
    for step in range(4):
        begin = 4100.0 * step
        rows += [
            ("forward", "label", begin, 1000.0),
            ("aten::mm", "op", begin, 1000.0),
            ("aten::mm", "op", begin + 1000, 2000.0),
            ("backward", "label", begin + 3000, 1000.0),
            ("aten::mm", "op", begin + 3000, 1000.0),
            ("optimizer", "label", begin + 4000, 100.0),
            ("aten::add_", "op", begin + 4000, 100.0),
        ]
        bounds.append((begin, begin + 4100))
    table = StepTable(
        wall_ms=[2.1 + extra for extra in outside],
        phases_ms={
            name: [ms] * len(outside)
            for name, ms in (("forward", 1.0), ("backward", 1.0), ("optimizer", 0.1))
        },
    )
    run = Run(windows=[Window(name="baseline", status="ok", steps=table)])
    true_ms = 2.1 + float(np.mean(outside))
    kept = np.ones(len(outside), dtype=bool)
    timeline = read(make_trace(rows), make_steps(bounds), true_ms=true_ms, run=run, kept=kept)
    assert timeline.context.get("host.grown_ms", 0.0) == pytest.approx(grown, abs=0.03)
    assert timeline.part_ms(Part.HOST) == pytest.approx(grown, abs=0.03)


@pytest.mark.parametrize(("beyond", "saves_ms"), [(None, 4.0), (0.05, 4.0), (0.2, 2.0)])
def test_padding_takes_its_share_of_the_work_on_the_batch_and_none_of_the_update(beyond, saves_ms):
    trace, steps = training(4, math=5000.0, optimizer=5000.0)
    run, kept = run_of(15.0, {"forward": 5.0, "backward": 5.0, "optimizer": 5.0})
    batch = BatchFacts(padding_share=0.4, beyond_share=beyond)
    padded = [LoaderFacts(id=0, cls="DataLoader", fetches=10, batch=batch)]
    answer = read(trace, steps, true_ms=15.0, run=run, kept=kept, loaders=padded).what_ifs[
        WhatIf.PADDING_GONE
    ]
    assert answer.saves_ms == pytest.approx(saves_ms, rel=0.02)
    assert answer.bound
    assert WhatIf.PADDING_GONE not in read(trace, steps, true_ms=15.0, run=run, kept=kept).what_ifs


def test_attention_computes_the_square_of_the_padded_length():
    rows = [
        ("forward", "label", 0.0, 2000.0),
        ("aten::mm", "op", 10.0, 980.0),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "op", 1000.0, 980.0),
        ("backward", "label", 2000.0, 2000.0),
        ("aten::mm", "op", 2010.0, 980.0),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "op", 3000.0, 980.0),
    ]
    run, kept = run_of(4.0, {"forward": 2.0, "backward": 2.0})
    padded = [LoaderFacts(id=0, cls="DataLoader", fetches=10, batch=BatchFacts(padding_share=0.4))]
    timeline = read(
        make_trace(rows), make_steps([(0, 4000)]), true_ms=4.0, run=run, kept=kept, loaders=padded
    )
    # 40 % of the products, and 64 % of attention.
    assert timeline.what_ifs[WhatIf.PADDING_GONE].saves_ms == pytest.approx(0.4 * 2 + 0.64 * 2, rel=0.06)


def test_without_a_trace_the_baseline_tells_the_wait_and_owns_up_to_the_rest():
    # The millisecond outside the phases may hold the loss as well as logging.
    run, kept = run_of(10.0, {"data": 6.0, "forward": 1.0, "backward": 1.0, "evaluation": 1.0})
    timeline = read(None, None, true_ms=10.0, run=run, kept=kept)
    assert timeline.part_ms(Part.INPUT) == pytest.approx(6.0)
    assert timeline.part_ms(Part.UNEXPLAINED) == pytest.approx(3.0)
    assert timeline.part_ms(Part.HOST) == pytest.approx(1.0)
    assert [doubt.code for doubt in timeline.doubts] == [DoubtCode.NOT_TRACED]


def unsteady_run(outside_ms: list[float], *, cpu_ms: float) -> tuple[Run, np.ndarray]:
    count = len(outside_ms)
    table = StepTable(
        wall_ms=[2.1 + extra for extra in outside_ms],
        phases_ms={"forward": [1.0] * count, "backward": [1.0] * count, "optimizer": [0.1] * count},
        user_cpu_ms=[cpu_ms] * count,
        system_cpu_ms=[0.0] * count,
        minor_faults=[0] * count,
    )
    return Run(windows=[Window(name="baseline", status="ok", steps=table)]), np.ones(count, dtype=bool)


def test_a_few_lost_time_slices_on_a_busy_machine_are_no_checkpoint():
    trace, steps = training(4, after=100.0)
    for cpu_ms, is_host_work in ((10.0, True), (1.0, False)):
        run, kept = unsteady_run([0.1, 20.1, 0.1, 0.1, 20.1], cpu_ms=cpu_ms)
        timeline = read(trace, steps, true_ms=10.2, run=run, kept=kept)
        assert (timeline.part_ms(Part.HOST) > 5.0) is is_host_work


def test_collectives_and_the_wait_for_the_last_bucket_are_communication():
    rows = [
        ("forward", "label", 0.0, 1000.0),
        ("aten::mm", "op", 10.0, 900.0),
        ("backward", "label", 1000.0, 4000.0),
        ("aten::mm", "op", 1010.0, 900.0),
        ("c10d::allreduce_", "op", 1950.0, 100.0),
    ]
    timeline = read(make_trace(rows), make_steps([(0, 5000)]), true_ms=5.0)
    assert timeline.part_ms(Part.COMMUNICATION) == pytest.approx(3.05, abs=0.05)
    assert timeline.what_ifs[WhatIf.COMM_OVERLAPPED].bound


def four_passes(*work):
    """A step of four micro-batches, each of which sends its gradients; `work` is what its backward does."""
    rows = []
    for at in range(0, 4000, 1000):
        rows += [
            ("forward", "label", at, 200.0),
            ("aten::mm", "op", at, 200.0),
            ("backward", "label", at + 200.0, 800.0),
            *((name, "op", at + begin, took) for name, begin, took in work),
            ("c10d::allreduce_", "op", at + 600.0, 400.0),
        ]
    run, kept = run_of(4.0, {"forward": 0.8, "backward": 3.2}, micro_steps=[4])
    return read(make_trace(rows), make_steps([(0, 4000)]), true_ms=4.0, run=run, kept=kept)


def test_gradients_sent_after_each_of_four_backward_passes_could_be_sent_once():
    timeline = four_passes(("aten::mm", 200.0, 400.0))
    assert timeline.context["comm.collectives_per_micro_step"] == 1
    assert timeline.what_ifs[WhatIf.COMM_ONCE].saves_ms == pytest.approx(1.2, abs=0.01)
    assert not timeline.what_ifs[WhatIf.COMM_ONCE].bound


def test_what_fills_the_buckets_is_sent_as_often_as_they_are():
    timeline = four_passes(
        ("aten::mm", 200.0, 200.0),
        ("torch::distributed::reducer::mul_out", 400.0, 100.0),
        ("aten::mul", 410.0, 80.0),
        ("torch.distributed.ddp.reducer::copy_bucket_to_grad", 500.0, 100.0),
        ("aten::copy_", 510.0, 80.0),
    )
    assert timeline.context["comm.collectives_per_micro_step"] == 1
    assert timeline.part_ms(Part.COMMUNICATION) == pytest.approx(4 * 0.58, abs=0.1)
    assert timeline.what_ifs[WhatIf.COMM_ONCE].saves_ms == pytest.approx(3 * 0.58, abs=0.1)


def test_the_wait_behind_a_receive_is_communication_and_later_python_is_not():
    rows = [
        ("forward", "label", 0.0, 1000.0),
        ("aten::mm", "op", 10.0, 900.0),
        ("backward", "label", 1000.0, 1000.0),
        ("aten::mm", "op", 1010.0, 900.0),
        ("c10d::recv_", "op", 2100.0, 100.0),
        # 3 ms in wait(), then the update, then 4 ms of logging
        ("optimizer", "label", 5200.0, 10.0),
        ("aten::add_", "op", 5200.0, 10.0),
    ]
    timeline = read(make_trace(rows), make_steps([(0, 9210)]), true_ms=9.21)
    assert timeline.part_ms(Part.COMMUNICATION) == pytest.approx(3.1, abs=0.05)
    assert timeline.part_ms(Part.HOST) == pytest.approx(4.0, abs=0.05)


@pytest.mark.parametrize("always", [True, False], ids=["in each step", "in one of ten"])
def test_a_model_without_gradients_in_every_step_is_work_of_the_step_and_an_evaluation_is_not(always: bool):
    # A frozen teacher, a policy that acts, an encoder: 0.6 of 1 ms.
    rows = [
        ("evaluation", "label", 0.0, 600.0),
        ("aten::mm", "op", 0.0, 600.0),
        ("forward", "label", 600.0, 100.0),
        ("aten::mm", "op", 600.0, 100.0),
        ("backward", "label", 700.0, 100.0),
        ("aten::mm", "op", 700.0, 100.0),
        ("optimizer", "label", 800.0, 200.0),
        ("aten::add_", "op", 800.0, 200.0),
    ]
    evaluation = [0.6 if always or n == 3 else 0.0 for n in range(10)]
    wall = [0.4 + ms for ms in evaluation]
    table = StepTable(
        wall_ms=wall,
        phases_ms={
            "evaluation": evaluation,
            "forward": [0.1] * 10,
            "backward": [0.1] * 10,
            "optimizer": [0.2] * 10,
        },
    )
    run = Run(windows=[Window(name="baseline", status="ok", steps=table)], dispatch_ns=1000.0)
    kept = np.ones(10, dtype=bool)
    steps = make_steps([(0, 1000)])
    timeline = read(make_trace(rows), steps, true_ms=sum(wall) / 10, run=run, kept=kept)
    assert timeline.part_ms(Part.HOST) == pytest.approx(0.0 if always else 0.06, abs=0.01)
    assert (timeline.part_ms(Part.OTHER_MATH) > 0.7) is always
    stored = timeline.what_ifs.get(WhatIf.FORWARD_STORED)
    assert (stored is not None and stored.saves_ms == pytest.approx(0.6)) is always


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_part_of_the_model_costs_the_operators_that_no_backward_visits(frozen: bool):
    node = "autograd::engine::evaluate_function: AddmmBackward0"
    rows = [
        ("forward", "label", 0.0, 600.0),
        ("aten::addmm", "op", 0.0, 450.0),
        ("aten::addmm", "op", 450.0, 150.0),
        ("backward", "label", 600.0, 300.0),
        (node, "op", 600.0, 300.0),
    ]
    trace = replace(make_trace(rows), sequence=np.asarray([-1, -1, 3, -1, 3], dtype=np.int64))
    run, kept = run_of(0.9, {"forward": 0.6, "backward": 0.3})
    if frozen:
        run.settings["ungraded.inside"] = True
    timeline = read(trace, make_steps([(0, 900)]), true_ms=0.9, run=run, kept=kept)
    stored = timeline.what_ifs.get(WhatIf.FORWARD_STORED)
    assert (stored is not None) is frozen
    assert stored is None or stored.saves_ms == pytest.approx(0.45, abs=0.02)


def test_anomaly_detection_costs_the_stacks_of_the_forward_and_the_checks_of_the_backward():
    rows = [("forward", "label", 0.0, 1000.0)]
    for i in range(20):
        # Half of them compute; what does not tells how long the stack takes.
        name, us = ("aten::view", 40.0) if i % 2 else ("aten::relu", 46.0)
        rows += [("aten::add", "op", 50.0 * i, 1.0), (name, "op", 50.0 * i + 2.0, us)]
    rows += [("backward", "label", 1000.0, 1000.0)]
    node = "autograd::engine::evaluate_function: ReluBackward0"
    for i in range(20):
        at = 1000.0 + 50.0 * i
        rows += [
            (node, "op", at, 30.0),
            ("aten::isnan", "op", at + 32.0, 10.0),
            ("aten::ne", "op", at + 33.0, 8.0),
        ]
    trace = make_trace(rows)
    # The two operators of a number: one needs no gradient, and the next one records.
    sequence = np.full(len(rows), -1, dtype=np.int64)
    names = np.asarray(trace.names)[trace.name]
    sequence[np.isin(names, ("aten::add", "aten::view", "aten::relu"))] = np.repeat(np.arange(20), 2)
    sequence[names == node] = np.arange(20)[::-1]
    trace = replace(trace, sequence=sequence)
    run, kept = run_of(2.0, {"forward": 1.0, "backward": 1.0})
    on = msgspec.structs.replace(run, plain_dispatch_ns=2000.0)
    found = read(trace, make_steps([(0, 2000)]), true_ms=2.0, run=on, kept=kept)
    # 20 operators of 40 us, of which 4 (profiled) are their own, and 20 checks of 10 us.
    assert found.what_ifs[WhatIf.ANOMALIES_IGNORED].saves_ms == pytest.approx(0.92, rel=0.05)
    off = read(trace, make_steps([(0, 2000)]), true_ms=2.0, run=run, kept=kept)
    assert WhatIf.ANOMALIES_IGNORED not in off.what_ifs
    compiled = off.what_ifs[WhatIf.COMPILED].saves_ms - found.what_ifs[WhatIf.COMPILED].saves_ms
    assert compiled == pytest.approx(min(0.92, off.what_ifs[WhatIf.COMPILED].saves_ms), rel=0.05)


@pytest.mark.parametrize(("had", "host_ms"), [(1.0, 40.0), (0.9, 40.0), (0.4, 0.0)])
def test_what_takes_longer_as_the_process_has_no_processor_is_no_host_work(had: float, host_ms: float):
    ms = np.zeros((2, len(Work)))
    ms[0, Work.MEMORY], ms[1, Work.MATH] = 20.0, 20.0
    baseline = Baseline(step_ms=108.0, phases_ms={"forward": 48.0})
    found = calibrate(Division(phases=("", "forward"), ms=ms), baseline, had=had)
    assert found.ms[0, Work.HOST] == pytest.approx(host_ms)


@pytest.mark.parametrize(
    ("rates", "by_dtype", "saves_ms"),
    [
        ({"fp32": 0.10, "fp16": 0.01}, {"float16": 8e6, "float32": 2e6}, 0.8 * 0.72),
        ({"fp32": 0.10, "fp16": 0.01}, {}, 0.8 * 0.9),
        ({"fp32": 0.10, "bf16": 0.20}, {"bfloat16": 8e6}, None),
        ({}, {"float16": 8e6}, None),
    ],
)
def test_products_in_16_bits_are_priced_by_the_rates_of_this_machine(
    rates: dict[str, float], by_dtype: dict[str, float], saves_ms: float | None
):
    rows = [
        ("forward", "label", 0.0, 1000.0),
        ("aten::mm", "op", 0.0, 800.0),
        ("aten::add", "op", 800.0, 200.0),
    ]
    run, kept = run_of(1.0, {"forward": 1.0})
    flops = FlopCount(step=1, flops=sum(by_dtype.values()), by_dtype=by_dtype)
    run = msgspec.structs.replace(run, matmul_tflops=rates, flops=flops)
    found = read(make_trace(rows), make_steps([(0, 1000)]), true_ms=1.0, run=run, kept=kept)
    if saves_ms is None:
        assert WhatIf.SINGLE_PRECISION not in found.what_ifs
    else:
        assert found.what_ifs[WhatIf.SINGLE_PRECISION].saves_ms == pytest.approx(saves_ms, rel=0.01)


@pytest.mark.parametrize(("rate", "saves_ms"), [(0.1, 0.2), (0.2, None)])
def test_autocast_on_a_cpu_is_priced_by_its_casts_and_by_what_products_take_without(
    rate: float, saves_ms: float | None
):
    rows = [
        ("forward", "label", 0.0, 1000.0),
        ("aten::to", "op", 0.0, 200.0),
        ("aten::_to_copy", "op", 0.0, 200.0),
        ("aten::copy_", "op", 0.0, 200.0),
        ("aten::mm", "op", 200.0, 800.0),
    ]
    run, kept = run_of(1.0, {"forward": 1.0})
    run = msgspec.structs.replace(run, matmul_tflops={"fp32": 0.10, "bf16": rate})
    run = msgspec.structs.replace(run, settings={"autocast.dtype": "bfloat16"})
    found = read(make_trace(rows), make_steps([(0, 1000)]), true_ms=1.0, run=run, kept=kept)
    if saves_ms is None:
        assert WhatIf.SINGLE_PRECISION not in found.what_ifs
    else:
        assert found.what_ifs[WhatIf.SINGLE_PRECISION].saves_ms == pytest.approx(saves_ms, rel=0.02)


@pytest.mark.parametrize(
    ("timed_ms", "idle", "saves_ms"),
    [((8.0, 6.0), 4, 0.8 * 0.25), ((8.0, 6.0), 2, 0.8 * 0.125), ((6.0, 8.0), 4, None), (None, 4, None)],
)
def test_masks_that_mask_nothing_cost_what_attention_takes_less_without(
    timed_ms: tuple[float, float] | None, idle: int, saves_ms: float | None
):
    rows = [
        ("forward", "label", 0.0, 1000.0),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "op", 0.0, 800.0),
        ("aten::mm", "op", 800.0, 200.0),
    ]
    run, kept = run_of(1.0, {"forward": 1.0})
    run = msgspec.structs.replace(run, masks=MaskFacts(calls=4, masked=4, idle=idle, timed_ms=timed_ms))
    found = read(make_trace(rows), make_steps([(0, 1000)]), true_ms=1.0, run=run, kept=kept)
    answer = found.what_ifs.get(WhatIf.MASKS_GONE)
    assert (answer is None) == (saves_ms is None)
    assert answer is None or answer.saves_ms == pytest.approx(saves_ms, rel=0.02)


@pytest.mark.parametrize(
    ("names", "saves_ms"),
    [
        (("aten::bmm", "aten::_softmax", "aten::bmm"), 0.3),
        (("aten::mm", "aten::_softmax", "aten::mm"), None),
        (("aten::bmm", "aten::_softmax", "aten::_scaled_dot_product_flash_attention_for_cpu"), None),
    ],
)
def test_attention_that_is_written_out_is_priced_by_what_goes_over_its_scores_again(
    names: tuple[str, ...], saves_ms: float | None
):
    times = ((0.0, 300.0), (300.0, 300.0), (600.0, 400.0))
    rows = [("forward", "label", 0.0, 1000.0)]
    rows += [(name, "op", at, us) for name, (at, us) in zip(names, times, strict=True)]
    run, kept = run_of(1.0, {"forward": 1.0})
    found = read(make_trace(rows), make_steps([(0, 1000)]), true_ms=1.0, run=run, kept=kept)
    if saves_ms is None:
        assert WhatIf.FUSED_ATTENTION not in found.what_ifs
    else:
        assert found.what_ifs[WhatIf.FUSED_ATTENTION].saves_ms == pytest.approx(saves_ms, rel=0.02)


def test_a_sparse_gradient_saves_the_tables_share_of_the_update_and_making_it():
    rows = [
        ("forward", "label", 0.0, 100.0),
        ("aten::embedding", "op", 0.0, 100.0),
        ("backward", "label", 100.0, 400.0),
        ("aten::embedding_dense_backward", "op", 100.0, 400.0),
        ("aten::fill_", "op", 110.0, 380.0),
        ("optimizer", "label", 500.0, 500.0),
        ("aten::add_", "op", 500.0, 500.0),
    ]
    run, kept = run_of(1.0, {"forward": 0.1, "backward": 0.4, "optimizer": 0.5})
    run = msgspec.structs.replace(run, settings={"embedding.dense_share": 0.8})
    timeline = read(make_trace(rows), make_steps([(0, 1000)]), true_ms=1.0, run=run, kept=kept)
    assert timeline.what_ifs[WhatIf.SPARSE_ROWS].saves_ms == pytest.approx(0.8 * 0.5 + 0.4, abs=0.02)


def test_forward_work_that_backward_repeats_has_its_price_without_a_device_too():
    node = "autograd::engine::evaluate_function: CheckpointFunctionBackward"
    rows = [
        ("forward", "label", 0.0, 300.0),
        ("aten::linear", "op", 0.0, 300.0),
        ("backward", "label", 300.0, 700.0),
        (node, "op", 300.0, 690.0),
        ("aten::linear", "op", 310.0, 200.0),
        ("aten::gelu", "op", 520.0, 100.0),
        ("aten::mm", "op", 630.0, 350.0),
    ]
    own = ("CheckpointFunctionBackward", "op", 301.0, 688.0)
    timeline = read(make_trace([*rows, own]), make_steps([(0, 1000)]), true_ms=1.0)
    assert timeline.what_ifs[WhatIf.RECOMPUTE_GONE].saves_ms == pytest.approx(0.31, abs=0.005)
    hooks = read(make_trace(rows), make_steps([(0, 1000)]), true_ms=1.0)
    assert WhatIf.RECOMPUTE_GONE not in hooks.what_ifs, "around what the node runs"
    plain = read(make_trace(rows[:3]), make_steps([(0, 1000)]), true_ms=1.0)
    assert WhatIf.RECOMPUTE_GONE not in plain.what_ifs


def test_python_behind_a_model_that_acts_in_every_step_has_its_own_place():
    rows = [
        ("evaluation", "label", 0.0, 100.0),
        ("aten::mm", "op", 0.0, 100.0),
        # A millisecond of Python: samples are drawn from the replay memory.
        ("evaluation", "label", 1100.0, 100.0),
        ("aten::mm", "op", 1100.0, 100.0),
        ("forward", "label", 1200.0, 200.0),
        ("aten::mm", "op", 1200.0, 200.0),
        ("backward", "label", 1400.0, 300.0),
        ("aten::mm", "op", 1400.0, 300.0),
        ("optimizer", "label", 1700.0, 300.0),
        ("aten::add_", "op", 1700.0, 300.0),
    ]
    phases = {"evaluation": 0.2, "forward": 0.2, "backward": 0.3, "optimizer": 0.3}
    run, kept = run_of(2.0, phases)
    acts = SiteTime(site=SourceSite(file="dqn.py", line=58, function="act"), phase="evaluation", count=20)
    draws = SiteTime(
        site=SourceSite(file="dqn.py", line=49, function="draw"), phase="sampled before", count=20
    )
    run = msgspec.structs.replace(run, sites=[acts, draws])
    timeline = read(make_trace(rows), make_steps([(0, 2000)]), true_ms=2.0, run=run, kept=kept)
    (span,) = (span for span in timeline.spans if span.part is Part.HOST and span.exposed_ms > 0)
    assert span.what == "Python after evaluation"
    assert span.site == draws.site
