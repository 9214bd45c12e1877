"""The usual moment at each place: what others take of the processor is left out, what recurs stays."""

from __future__ import annotations

import numpy as np
import pytest

from torch_bottleneck.timeline.cpu.division import split, unprofiled_ms
from torch_bottleneck.timeline.cpu.segments import read_segments
from torch_bottleneck.timeline.cpu.steady import steady_ns
from torch_bottleneck.timeline.trace.operators import OpClass, classify

from .cpu_traces import make_steps, make_trace


def segments_of(rows, bounds):
    trace, steps = make_trace(rows), make_steps(bounds)
    return trace, read_segments(trace, start_ns=steps.start_ns, end_ns=steps.end_ns, thread=steps.thread)


def many_ops(steps: int, *, lost_us: float = 0.0, sleep_us: float = 0.0, length: int = 40):
    """Steps of tiny operators; one operator per step loses `lost_us`, at another place each time."""
    rows, bounds, now = [], [], 0.0
    for k in range(steps):
        begin, body = now, []
        for i in range(length + k % 3):
            took = 2.0 + (lost_us if i == 5 + 3 * k else 0.0)
            body.append(("aten::add", "op", now, took))
            now += took + 3.0
        now += sleep_us
        rows += [
            ("forward", "label", begin, now - begin),
            (f"ProfilerStep#{k}", "label", begin, now + 1 - begin),
        ]
        rows += body
        now += 1.0
        bounds.append((begin, now))
    return rows, bounds


def total_ms(trace, segments) -> float:
    return float(steady_ns(trace, segments).sum()) / segments.steps / 1e6


def test_segments_tile_every_step_without_gaps():
    trace, segments = segments_of(*many_ops(4, lost_us=500.0))
    for k in range(4):
        assert segments.dur_ns[segments.step == k].sum() == segments.step_ns[k]
    assert (segments.dur_ns > 0).all()
    assert len(trace) > 0


def test_time_slices_lost_at_changing_places_vanish():
    quiet = total_ms(*segments_of(*many_ops(6)))
    busy = total_ms(*segments_of(*many_ops(6, lost_us=8000.0)))
    assert busy == pytest.approx(quiet, rel=0.02)


def test_what_single_steps_lose_is_in_no_price():
    def price(lost_us: float) -> float:
        trace, segments = segments_of(*many_ops(6, lost_us=lost_us))
        division = split(segments, dispatch_ns=None, steady=steady_ns(trace, segments))
        return unprofiled_ms(trace, segments, division, trace.rows(named="aten::add"))

    assert price(8000.0) == pytest.approx(price(0.0), rel=0.02)
    assert price(0.0) > 0.05


def test_python_that_takes_long_at_one_place_of_every_step_stays_as_long():
    trace, segments = segments_of(*many_ops(6, sleep_us=9000.0))
    assert total_ms(trace, segments) > 9.0


def test_two_steps_are_too_few_to_call_anything_unusual():
    trace, segments = segments_of(*many_ops(2, lost_us=8000.0))
    np.testing.assert_array_equal(steady_ns(trace, segments), segments.dur_ns)


def test_a_child_that_outlives_its_parent_by_a_tick_does_not_stretch_the_step():
    _, segments = segments_of([("aten::mm", "op", 0.0, 10.0), ("aten::add", "op", 5.0, 5.5)], [(0, 20)])
    assert segments.dur_ns.sum() == 20_000


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::addmm", OpClass.MATH),
        ("aten::mkldnn_convolution", OpClass.MATH),
        ("aten::convolution_backward", OpClass.MATH),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", OpClass.MATH),
        ("aten::linalg_vector_norm", OpClass.MEMORY),
        ("aten::_linalg_eigh", OpClass.MATH),
        ("aten::_fft_r2c", OpClass.MATH),
        ("aten::native_layer_norm", OpClass.MEMORY),
        ("aten::an_operator_of_next_year", OpClass.MEMORY),
        ("my_extension::fused_thing", OpClass.MEMORY),
        ("aten::view", OpClass.BOOKKEEPING),
        ("aten::linear", OpClass.BOOKKEEPING),
        ("aten::lift_fresh", OpClass.CREATION),
        ("aten::_local_scalar_dense", OpClass.SYNC),
        ("autograd::engine::evaluate_function: MulBackward0", OpClass.AUTOGRAD),
        ("MulBackward0", OpClass.AUTOGRAD),
        ("MyFunctionBackward", OpClass.PY_BACKWARD),
        ("CompiledFunctionBackward", OpClass.SEAM),
        ("Torch-Compiled Region: 3/0", OpClass.SEAM),
        ("TorchDynamo Cache Lookup", OpClass.SEAM),
        ("## Call CompiledFxGraph fabc ##", OpClass.GRAPH),
        ("_compile.compile_inner (dynamo_timed)", OpClass.COMPILING),
        ("c10d::allreduce_", OpClass.COMMUNICATION),
    ],
)
def test_operators_are_known_by_name(name, expected):
    assert classify(name) is expected
