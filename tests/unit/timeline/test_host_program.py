"""A run without a GPU is a program of one host lane: the common budget and the common questions take it."""

from __future__ import annotations

import numpy as np
import pytest

from torch_bottleneck.model.codes import Part, WhatIf
from torch_bottleneck.model.diagnosis import WhatIfResult
from torch_bottleneck.model.run import RepeatFacts, Run
from torch_bottleneck.timeline.cpu.questions import Amounts, cpu_questions
from torch_bottleneck.timeline.lanes.ask import Asker
from torch_bottleneck.timeline.lanes.budget import step_budget
from torch_bottleneck.timeline.lanes.host_work import HostWork
from torch_bottleneck.timeline.lanes.labels import PART_OF_WORK, Work
from torch_bottleneck.timeline.lanes.program import Program, host_program
from torch_bottleneck.timeline.lanes.questions import (
    Question,
    amount_gone,
    shared_questions,
    without_fetching,
)
from torch_bottleneck.timeline.lanes.replay import Edit, Replay
from torch_bottleneck.timeline.steps.facts import Facts
from torch_bottleneck.timeline.whose.branch import Branch
from torch_bottleneck.timeline.whose.tree import Tree

PHASES: dict[str, dict[Work, float]] = {
    "": {Work.HOST: 2.0, Work.INPUT: 0.5, Work.COLLECTOR: 0.25},
    "data": {Work.INPUT: 4.0},
    "forward": {Work.MATH: 3.0, Work.MEMORY: 1.0, Work.DISPATCH: 1.5, Work.ALLOCATOR: 0.5},
    "backward": {Work.MATH: 6.0, Work.DISPATCH: 2.0, Work.SEAM: 1.0, Work.COMMUNICATION: 0.75},
    "optimizer": {Work.UPDATE: 1.0, Work.OPTIMIZER: 0.5},
}
STEP_MS = sum(sum(works.values()) for works in PHASES.values())


def program() -> Program:
    work = np.zeros((len(PHASES), len(Work)))
    for row, works in zip(work, PHASES.values(), strict=True):
        for each, ms in works.items():
            row[each] = ms * 1e6
    recorded = HostWork(
        edges=np.asarray([0, 1]), work=np.zeros(1, dtype=np.int8), group=np.full(1, -1, dtype=np.int16)
    )
    return host_program(tuple(PHASES), work, seam_work=np.zeros((len(PHASES), 0)), host_work=recorded)


def spent(*works: Work) -> float:
    return sum(ms for each in PHASES.values() for work, ms in each.items() if work in works)


def asker() -> Asker:
    return Asker(Replay(program()), Edit(), true_ms=STEP_MS)


def test_without_a_device_the_budget_is_what_the_host_did() -> None:
    replay = Replay(program())
    budget = step_budget(replay.program, replay.run(), Edit().factors())
    assert budget.step_ns == pytest.approx(STEP_MS * 1e6)
    assert budget.busy_ns == 0
    for part in Part:
        works = [work for work in Work if PART_OF_WORK[work] is part]
        assert budget.parts[part] == pytest.approx(spent(*works) * 1e6), part


def test_on_one_lane_a_cause_costs_what_it_takes() -> None:
    found = asker().ask(shared_questions(program(), Facts(true_ms=STEP_MS)))
    saves = {question: answer.saves_ms for question, answer in found.results.items()}
    assert saves == {
        WhatIf.INPUT_READY: pytest.approx(spent(Work.INPUT)),
        WhatIf.ALLOCATOR_FREE: pytest.approx(spent(Work.ALLOCATOR)),
        WhatIf.HOST_WORK_GONE: pytest.approx(spent(Work.HOST)),
        WhatIf.PYTHON_GONE: pytest.approx(spent(Work.HOST)),
        WhatIf.DISPATCH_FREE: pytest.approx(spent(Work.DISPATCH, Work.OPTIMIZER)),
        WhatIf.COMM_OVERLAPPED: pytest.approx(spent(Work.COMMUNICATION)),
        WhatIf.GRADIENTS_OVERLAPPED: pytest.approx(spent(Work.COMMUNICATION)),
        WhatIf.GRADIENTS_HALVED: pytest.approx(spent(Work.COMMUNICATION) / 2),
    }
    both = found.after[WhatIf.INPUT_READY, WhatIf.DISPATCH_FREE]
    assert both == pytest.approx(STEP_MS - saves[WhatIf.INPUT_READY] - saves[WhatIf.DISPATCH_FREE])
    assert both == found.after[WhatIf.DISPATCH_FREE, WhatIf.INPUT_READY]


def test_two_edits_that_take_the_same_time_away_take_it_once() -> None:
    gone = amount_gone(program(), 1.0, (Work.DISPATCH,))
    ask = asker()
    assert ask.step_ms(Edit(gone=gone)) == pytest.approx(STEP_MS - 1.0)
    assert ask.step_ms(Edit(gone=gone).and_also(Edit(gone=gone))) == pytest.approx(STEP_MS - 1.0)
    free = Edit(work={Work.DISPATCH: 0.0})
    assert ask.step_ms(free.and_also(Edit(gone=gone))) == pytest.approx(ask.step_ms(free))


def test_two_calls_that_are_gone_take_the_time_of_both_away() -> None:
    def without(name: str, ms: float) -> Question:
        gone = amount_gone(program(), ms, (Work.DISPATCH,))
        return Question(WhatIf.CALL_GONE, Edit(gone=gone), "", about=name)

    found = asker().ask([without("one", 1.0), without("other", 0.5), without("all", 100.0)])
    one, other, most = ((WhatIf.CALL_GONE, name) for name in ("one", "other", "all"))
    assert found.after[one, other] == found.after[other, one] == pytest.approx(STEP_MS - 1.5)
    # No more than there is.
    assert found.after[one, most] == pytest.approx(STEP_MS - spent(Work.DISPATCH))


def replayed_cpu_questions(run: Run, **amounts: float) -> dict[WhatIf, WhatIfResult]:
    facts = Facts(true_ms=STEP_MS, run=run)
    return asker().ask(cpu_questions(program(), facts, Amounts(**amounts), compiled=False)).results


def test_no_more_than_there_is_can_be_taken_away() -> None:
    gone = amount_gone(program(), 100.0, (Work.SEAM, Work.UPDATE))
    assert gone.sum() == pytest.approx(spent(Work.SEAM, Work.UPDATE) * 1e6)
    assert not amount_gone(program(), 1.0, (Work.COMPILE,)).any()


def test_a_batch_that_need_not_be_fetched_is_prepared_all_the_same() -> None:
    assert asker().step_ms(without_fetching(program())) == pytest.approx(STEP_MS - 4.0)


@pytest.mark.parametrize("sends", [True, False])
def test_buffers_are_what_ddp_waits_for_in_the_forward_and_gradients_in_the_backward(sends: bool) -> None:
    changed = program()
    changed.work[1 + list(PHASES).index("forward"), Work.COMMUNICATION] = 1.25e6
    run = Run(settings={"distributed.module": "ddp", "distributed.sends_buffers": sends})
    found = Asker(Replay(changed), Edit(), true_ms=STEP_MS + 1.25).ask(
        shared_questions(changed, Facts(true_ms=STEP_MS + 1.25, run=run))
    )
    saves = {question: answer.saves_ms for question, answer in found.results.items()}
    assert saves[WhatIf.COMM_OVERLAPPED] == pytest.approx(2.0)
    assert saves[WhatIf.GRADIENTS_OVERLAPPED] == pytest.approx(0.75)
    assert saves[WhatIf.GRADIENTS_HALVED] == pytest.approx(0.375)
    assert saves.get(WhatIf.BUFFERS_KEPT) == (pytest.approx(1.25) if sends else None)


@pytest.mark.parametrize(("own_ms", "saved"), [(0.25, 0.5), (2.0, None)])
def test_what_the_scripts_own_lines_send_in_the_backward_is_none_of_ddps(
    own_ms: float, saved: float | None
) -> None:
    tree = Tree(root=Branch(), steps=1, sent={("backward", "communication"): own_ms})
    run = Run(settings={"distributed.module": "ddp"})
    facts = Facts(true_ms=STEP_MS, run=run)
    vars(facts)["tree"] = tree
    found = asker().ask(shared_questions(program(), facts)).results
    assert found[WhatIf.COMM_OVERLAPPED].saves_ms == pytest.approx(spent(Work.COMMUNICATION))
    answer = found.get(WhatIf.GRADIENTS_OVERLAPPED)
    assert (answer and answer.saves_ms) == (saved and pytest.approx(saved))


def test_what_fsdp_sends_is_not_asked_for_as_gradients() -> None:
    run = Run(settings={"distributed.module": "fsdp"})
    found = asker().ask(shared_questions(program(), Facts(true_ms=STEP_MS, run=run))).results
    assert WhatIf.COMM_OVERLAPPED in found
    assert WhatIf.GRADIENTS_OVERLAPPED not in found


def test_calls_that_repeat_others_take_their_share_of_forward_and_backward_along() -> None:
    run = Run(repeats=RepeatFacts(calls=4, share=0.5, graded_share=0.25))
    found = replayed_cpu_questions(run)[WhatIf.FORWARD_ONCE]
    forward, backward = (sum(PHASES[phase].values()) for phase in ("forward", "backward"))
    assert found.saves_ms == pytest.approx(0.5 * forward + 0.25 * backward)
    assert "50 % of the time in modules" in found.basis
    assert "25 % of the backward" in found.basis
    half = replayed_cpu_questions(run, first_pass=0.5)[WhatIf.FORWARD_ONCE]
    assert half.saves_ms == pytest.approx(0.5 * forward + 0.125 * backward)
    assert WhatIf.FORWARD_ONCE not in replayed_cpu_questions(Run(repeats=RepeatFacts(calls=0)))
