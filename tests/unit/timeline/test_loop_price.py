"""What a Python loop inside the step costs at most, from its share of the samples of each part."""

from __future__ import annotations

import pytest

from torch_bottleneck.model.run import LoopTime, SourceSite
from torch_bottleneck.timeline.steps.baseline import Baseline
from torch_bottleneck.timeline.steps.loop_price import HostTimes, dearest_loop, loop_of_dispatch

WHOLE = HostTimes(forward=40.0, outside=20.0, backward=30.0, update=10.0)
SMALL_OPERATORS = HostTimes(forward=36.0, outside=18.0, backward=20.0, update=9.0)
LARGE_OPERATORS = HostTimes(forward=2.0, outside=1.0, backward=1.0, update=1.0)


def _loop(line: int = 3, **seen: int) -> LoopTime:
    site = SourceSite(file="net.py", line=line, function="forward")
    parts = {f"sampled {part}": count for part, count in seen.items()}
    of = {"sampled forward": 40, "sampled between": 10, "sampled after": 10, "sampled before": 40}
    of |= {"sampled update": 20, "sampled backward": 30}
    return LoopTime(site=site, last_line=line + 4, seen=parts, of=of)


@pytest.mark.parametrize(
    ("seen", "saves"),
    [
        # Half of the forward's samples: half of it, and of 50 samples of what is differentiated 20.
        ({"forward": 20}, 0.5 * 40 + 0.4 * 30),
        # All between forward and update: half of the time outside, a fifth of what is differentiated.
        ({"between": 10}, 0.5 * 20 + 0.2 * 30),
        # Behind the update nothing has a backward.
        ({"after": 10}, 0.5 * 20),
        # Nor has an update of the script's own, of which half of the samples are in the loop.
        ({"update": 10}, 0.5 * 10),
        # Rounds that ask for gradients: a third of the time in which any are made.
        ({"backward": 10}, 10.0),
        # And of the rest, what goes back through what they have recorded.
        ({"backward": 15, "between": 10}, 0.5 * 20 + (0.5 + 0.5 * 0.2) * 30),
    ],
)
def test_a_loop_costs_its_share_of_each_part_and_of_the_backward(seen, saves):
    found = dearest_loop([_loop(**seen)], whole=WHOLE, dispatch=SMALL_OPERATORS, true_ms=100.0)
    assert found is not None
    assert found.spent_ms == pytest.approx(saves)


def test_the_work_of_a_loop_stays_as_far_as_it_must_be_in_the_loop():
    # Of a forward of 40 ms, 24 ms dispatch: a loop that is all of it takes no more than these away.
    dispatch = HostTimes(forward=24.0, outside=18.0, backward=20.0, update=9.0)
    for samples, saves in ((40, 24.0 + 20.0), (20, 20.0 + 12.0)):
        found = dearest_loop([_loop(forward=samples)], whole=WHOLE, dispatch=dispatch, true_ms=100.0)
        assert found is not None
        assert found.spent_ms == pytest.approx(saves)


def test_a_loop_of_large_operators_is_none_to_speak_of():
    assert dearest_loop([_loop(forward=40)], whole=WHOLE, dispatch=LARGE_OPERATORS, true_ms=100.0) is None


def test_what_makes_the_batch_is_the_inputs_and_few_samples_are_chance():
    loops = [_loop(before=40), _loop(line=9, forward=4)]
    assert dearest_loop(loops, whole=WHOLE, dispatch=SMALL_OPERATORS, true_ms=100.0) is None


def test_the_dearest_loop_is_named():
    loops = [_loop(line=3, after=8), _loop(line=9, forward=20)]
    found = dearest_loop(loops, whole=WHOLE, dispatch=SMALL_OPERATORS, true_ms=100.0)
    assert found is not None
    assert found.loop.site.line == 9


def test_on_a_gpu_a_loop_has_its_share_of_the_host_time_ahead_of_the_update():
    baseline = Baseline(step_ms=100.0, phases_ms={"forward": 40.0, "backward": 30.0, "optimizer": 10.0})
    found = loop_of_dispatch([_loop(forward=40)], baseline=baseline, true_ms=100.0)
    assert found is not None
    # All of the forward and 4 fifths of the backward; the rest is the loss's.
    assert found.spent_ms == pytest.approx(64.0)
    update = loop_of_dispatch([_loop(update=20)], baseline=baseline, true_ms=100.0)
    assert update is not None
    assert update.spent_ms == pytest.approx(10.0)
    assert loop_of_dispatch([_loop(after=10)], baseline=baseline, true_ms=100.0) is None
    assert loop_of_dispatch([], baseline=baseline, true_ms=100.0) is None


def test_a_loop_has_the_backward_that_its_lines_ask_for_where_that_is_known():
    baseline = Baseline(step_ms=100.0, phases_ms={"forward": 40.0, "backward": 30.0, "optimizer": 10.0})
    loops = [_loop(line=3, forward=14), _loop(line=9, forward=10)]
    shares = {3: 0.1, 9: 0.8}
    found = loop_of_dispatch(loops, baseline=baseline, true_ms=100.0)
    assert found is not None and found.loop.site.line == 3
    found = loop_of_dispatch(
        loops, baseline=baseline, true_ms=100.0, backward_share=lambda loop: shares[loop.site.line]
    )
    assert found is not None and found.loop.site.line == 9
    assert found.spent_ms == pytest.approx(40.0 * 10 / 40 + 0.8 * 30.0)
