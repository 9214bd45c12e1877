"""The step rule over streams of events, without torch: which of them become cuts."""

from __future__ import annotations

import pytest

from torch_bottleneck.harness.windows.steps import ManualRule, StepRule, smallest_period

Stream = str
"""One letter per event: F fetch, f root forward, z zero_grad, B a whole backward, D and G whole
optimizer steps, S and s a scaler step with and without its optimizer step, | a true beginning."""


def cuts_per_step(stream: Stream, *, rule: StepRule | None = None) -> list[int]:
    """Play a stream; return the number of cuts from each | to the next once learned."""
    rule = rule if rule is not None else StepRule()
    counts: list[int] = []
    for letter in stream:
        cut = False
        if letter == "|":
            counts.append(0)
            continue
        if letter == "F":
            cut = rule.fetch()
        elif letter == "f":
            cut = rule.forward()
        elif letter == "z":
            cut = rule.zero_grad()
        elif letter == "B":
            cut = rule.backward()
            rule.backward_begin()
            rule.backward_end()
        elif letter in "DG":
            rule.optimizer_begin()
            rule.optimizer_end(ord(letter))
        elif letter in "Ss":
            rule.scaler_begin()
            if letter == "S":
                rule.optimizer_begin()
                rule.optimizer_end(ord("D"))
            rule.scaler_end(ord("D"))
        counts[-1] += cut
    return counts


ONE_PER_STEP = {
    "plain": "|FzfBD",
    "zero_grad last": "|FfBDz",
    "accumulation": "|FfBFfBFfBFfBDz",
    "fetched ahead": "|fBDzF",
    "gan": "|FzfBDzfBG",
    "gan without loader": "|zfBDzfBG",
    "three critic updates without loader": "|zfBDzfBDzfBDzfBG",
    "pair without loader": "|fBDGz",
    "pair with loader": "|FzfBDG",
    "scaler that skips at times": "|FzfBS|FzfBs|FzfBS",
    "two loaders": "|FFzfBD",
    "validation at the end": "|FzfBDFfFfFf",
    "micro-steps without loader": "|fBfBfBDz",
    "several updates per batch": "|FzfBDzfBDzfBG",
    "no optimizer, one gradient call": "|fB",
}


@pytest.mark.parametrize("name", ONE_PER_STEP)
def test_one_cut_per_step_once_learned(name: str) -> None:
    stream = ONE_PER_STEP[name]
    rounds = cuts_per_step(stream * 40)
    learned = rounds[len(rounds) // 2 : -1]
    assert set(learned) == {1}


def test_learning_takes_three_updates() -> None:
    rule = StepRule()
    cuts_per_step("|FzfBD" * 2, rule=rule)
    assert not rule.learned
    cuts_per_step("|FzfBD", rule=rule)
    assert rule.learned
    assert rule.description == "optimizer+fetch"


def test_cached_batches_stop_the_fetches_but_not_the_cuts() -> None:
    rounds = cuts_per_step("|FzfBD" * 5 + "|zfBD" * 20)
    assert set(rounds[7:-1]) == {1}


def test_a_compiled_optimizer_is_seen_by_its_zero_grad() -> None:
    rule = StepRule()
    rule.optimizers.built(1, "train.py:1")
    rounds = cuts_per_step("|FzfB" * 20, rule=rule)
    assert rule.signal == "zero_grad"
    assert set(rounds[6:-1]) == {1}


def test_long_accumulation_is_not_taken_for_steps() -> None:
    rule = StepRule()
    rule.optimizers.built(1, "train.py:1")
    rounds = cuts_per_step("|" + "FfB" * 100 + "D" + "|" + "FfB" * 100 + "Dz", rule=rule)
    assert rounds == [0, 1]


def test_a_late_optimizer_forgets_the_guess() -> None:
    rule = StepRule()
    cuts_per_step("|fB" * 20, rule=rule)
    assert rule.signal == "backward"
    rounds = cuts_per_step("|FfBFfBDz" * 10, rule=rule)
    assert rule.signal == "optimizer"
    assert set(rounds[4:-1]) == {1}


def test_a_joining_optimizer_is_learned_anew() -> None:
    rule = StepRule()
    cuts_per_step("|zfBD" * 10, rule=rule)
    assert rule.period == 1
    before = rule.generation
    rounds = cuts_per_step("|zfBDzfBG" * 20, rule=rule)
    assert rule.period == 2
    assert rule.generation > before
    assert set(rounds[10:-1]) == {1}


def test_an_optimizer_for_each_picture_is_one_part_of_the_step() -> None:
    rule = StepRule()
    cuts, generations = [], []
    for picture in range(10):
        rule.optimizers.built(picture, "train.py:7")
        for _ in range(4):
            cuts.append(rule.zero_grad())
            rule.backward()
            rule.backward_begin()
            rule.backward_end()
            rule.optimizer_begin()
            rule.optimizer_end(picture)
            generations.append(rule.generation)
    assert all(cuts[1:])
    assert rule.learned
    assert len(set(generations[4:])) == 1


@pytest.mark.parametrize("members", [2, 3])
def test_optimizers_of_an_ensemble_stay_apart_when_all_are_built_anew(members: int) -> None:
    rule = StepRule()
    cuts = []
    for task in range(4):
        keys = range(members * task, members * task + members)
        for key in keys:
            rule.optimizers.built(key, "train.py:7")
        for _ in range(8):
            for key in keys:
                cuts.append(rule.forward())
                rule.backward()
                rule.backward_begin()
                rule.backward_end()
                rule.optimizer_begin()
                rule.optimizer_end(key)
    assert rule.period == members
    assert rule.generation == 1
    assert sum(cuts[-8 * members :]) == 8


@pytest.mark.parametrize("members", [2, 3])
def test_optimizers_that_all_step_on_keep_their_parts_though_each_stepped_before_the_next_was_built(
    members: int,
) -> None:
    """A helper builds each; the first is trained alone for a while."""
    rule = StepRule()
    cuts = []

    def update(key: int) -> None:
        cuts.append(rule.forward())
        rule.backward()
        rule.backward_begin()
        rule.backward_end()
        rule.optimizer_begin()
        rule.optimizer_end(key)

    for key in range(members):
        rule.optimizers.built(key, "helper.py:3")
        for _ in range(4):
            update(key)
    for _ in range(20):
        for key in range(members):
            update(key)
    assert rule.period == members
    assert sum(cuts[-10 * members :]) == 10


def test_an_optimizer_with_the_identity_of_one_that_is_gone_takes_its_own_part() -> None:
    rule = StepRule()
    parts = []
    for key in (1, 2, 1, 2):
        rule.optimizers.built(key, "train.py:7")
        parts += [rule.optimizers.of(key), rule.optimizers.of(key)]
    assert set(parts) == {-1}


def test_closures_run_inside_the_optimizer_and_never_cut() -> None:
    rule = StepRule()
    cuts = []
    for _ in range(12):
        cuts.append(rule.fetch())
        rule.optimizer_begin()
        for _ in range(3):
            inside = [rule.zero_grad(), rule.forward(), rule.backward()]
            assert not any(inside)
            rule.backward_begin()
            rule.backward_end()
        rule.optimizer_end(1)
    assert cuts == [False] + [True] * 11


def solve(rule: StepRule, closures: int) -> list[bool]:
    """Play one step of an optimizer that calls its closure so often; return at which calls it was cut."""
    cuts = []
    rule.optimizer_begin()
    for _ in range(closures):
        cuts.append(rule.closure())
        rule.zero_grad()
        rule.backward_begin()
        rule.backward_end()
    rule.optimizer_end(1)
    return cuts


def test_each_evaluation_of_a_solver_that_trains_in_one_step_is_a_step() -> None:
    rule = StepRule()
    cuts = solve(rule, 200)
    first = cuts.index(True)
    assert 25 < first < 50
    assert all(cuts[first:])
    assert (rule.description, rule.learned, rule.pending) == ("closure", True, False)
    # One that converges sooner changes nothing; another optimizer does, for good.
    assert all([*solve(rule, 5), *solve(rule, 1)])
    cuts_per_step("|zfBD", rule=rule)
    assert rule.description == "optimizer"
    assert not any(solve(rule, 200)[1:])
    assert rule.description == "optimizer"


def test_a_solver_whose_steps_have_ended_as_steps_stays_with_them() -> None:
    rule = StepRule()
    solve(rule, 20)
    assert [sum(solve(rule, count)) for count in (26, 34, 200)] == [1, 1, 1], "one step each"
    assert (rule.description, rule.learned) == ("optimizer", True)
    assert rule.next_cut == "unknown", "it is inside the update"


def test_an_optimizer_beside_a_solver_leaves_the_cycle_of_both() -> None:
    rule = StepRule()
    for _ in range(12):
        cuts_per_step("|zfBD", rule=rule)
        solve(rule, 34)
    assert (rule.description, rule.learned, rule.period) == ("optimizer", True, 2)
    before = rule.generation
    for _ in range(20):
        cuts_per_step("|zfBD", rule=rule)
        solve(rule, 34)
    assert rule.generation == before


def test_evaluations_after_usual_steps_are_steps_of_another_kind() -> None:
    rule = StepRule()
    cuts_per_step("|zfBD" * 30, rule=rule)
    before = rule.generation
    assert all(solve(rule, 100)[50:])
    assert rule.generation == before + 1


def test_steps_that_the_program_marks_are_not_cut_at_evaluations() -> None:
    rule = ManualRule()
    assert not any(solve(rule, 100))


def test_optimizers_inside_a_backward_are_one_update() -> None:
    rule = StepRule()
    cuts = []
    for _ in range(12):
        cuts.append(rule.fetch())
        rule.backward()
        rule.backward_begin()
        for key in range(4):
            rule.optimizer_begin()
            rule.optimizer_end(key)
        rule.backward_end()
    assert cuts == [False] + [True] * 11
    assert rule.updates == 12


def test_an_exception_that_leaves_an_optimizer_can_be_healed() -> None:
    rule = StepRule()
    cuts_per_step("|FzfBD" * 5, rule=rule)
    rule.optimizer_begin()
    assert rule.inside
    rule.optimizer_escaped()
    assert set(cuts_per_step("|FzfBD" * 5, rule=rule)[1:]) == {1}


def test_a_program_that_marks_its_steps_is_never_cut_by_events() -> None:
    rule = ManualRule()
    assert set(cuts_per_step("|FzfBD" * 20, rule=rule)) == {0}
    rule.end_step()
    assert rule.learned
    assert rule.cuts == 1
    assert rule.description == "api"


@pytest.mark.parametrize(
    ("sequence", "period"),
    [([1, 1, 1], 1), ([1, 2, 1, 2], 2), ([1, 1, 2, 1, 1, 2, 1], 3), ([1, 2, 3], None)],
)
def test_smallest_period(sequence: list[int], period: int | None) -> None:
    assert smallest_period(sequence) == period


def test_where_fetches_end_the_late_cut_begins_anew() -> None:
    rule = StepRule()
    cuts_per_step("|FzfBD" * 8, rule=rule)
    before = rule.generation
    counts = cuts_per_step("|zfBD" * 8, rule=rule)
    # The step that loses its fetch runs into the next one; what was measured so far does not compare.
    assert rule.generation == before + 1
    assert counts[2:] == [1] * 6
    cuts_per_step("|FzfBD" * 4, rule=rule)
    assert rule.generation == before + 1
