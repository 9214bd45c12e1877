"""Calls of modules that compute again what they had before."""

from __future__ import annotations

import copy
import itertools
import sys
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.overrides import _get_current_function_mode_stack as get_function_modes
from torch.utils.checkpoint import checkpoint

from torch_bottleneck.harness import torch_private
from torch_bottleneck.harness.facts import repeats
from torch_bottleneck.harness.facts.flops import FlopStep
from torch_bottleneck.harness.facts.repeats import RepeatWatch
from torch_bottleneck.harness.facts.values import Values
from torch_bottleneck.harness.process.runner import strip_frames
from torch_bottleneck.harness.trials.patches import make_patches
from torch_bottleneck.harness.trials.patches.base import Patch, Program
from torch_bottleneck.model.run import RepeatFacts
from torch_bottleneck.model.verify import Wish

pytestmark = pytest.mark.usefixtures("nothing_compiled")


@pytest.fixture(autouse=True)
def _time_goes_by_looks_at_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a call takes is how many calls are in it, on any machine."""
    monkeypatch.setattr(repeats, "perf_counter_ns", itertools.count().__next__)


class Two(nn.Module):
    """Two heads on one body, each of which calls it."""

    def __init__(self, *, drop: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(drop))
        self.left, self.right = nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.left(self.body(x)) + self.right(self.body(x))


def seen(run: Callable[[], object]) -> RepeatFacts:
    watch = RepeatWatch()
    watch.begin()
    try:
        run()
    finally:
        found = watch.end()
    assert found is not None
    return found


def test_a_part_that_is_called_twice_with_the_same_input_is_counted_once_with_its_line() -> None:
    model, x = Two(), torch.randn(4, 8)
    found = seen(lambda: model(x))
    assert (found.calls, found.module) == (1, "Sequential"), "not the layers inside it as well"
    assert 0.0 < found.share < 0.7
    assert found.graded_share == found.share
    (site,) = found.sites
    assert (site.site.file, site.site.function, site.count) == (__file__, "forward", 1)


def test_the_functions_below_which_operators_are_called_are_noted() -> None:
    def checks(x: torch.Tensor) -> bool:
        return x.dim() == 2 and len(x) == x.shape[0] and x.dtype is torch.float32 and x.is_contiguous()

    def leads(x: torch.Tensor) -> torch.Tensor:
        return doubles(x)

    def doubles(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def reads(x: torch.Tensor) -> float:
        return x.sum().item()

    watch = RepeatWatch()
    watch.begin()
    try:
        x = torch.randn(4, 8)
        assert checks(x)
        reads(leads(x))
        noted, lines = watch.above_operators(), watch.above_lines()
    finally:
        watch.end()
    assert noted is not None
    mine = {name for file, name in noted if file == __file__}
    assert {"leads", "doubles", "reads"} <= mine
    assert "checks" not in mine
    source = Path(__file__).read_text("utf-8").splitlines()
    called = [source[line - 1].strip() for line in lines[__file__]]
    assert "reads(leads(x))" in called
    assert "assert checks(x)" not in called
    assert watch.above_operators() is None, "not on any more"
    assert watch.above_lines() == {}


class Adapted(nn.Module):
    """Calls a layer, and multiplies by its weight again."""

    def __init__(self, product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.base, self.product = nn.Linear(8, 8, bias=False), product

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.product(x, self.base.weight)


def test_a_product_that_is_made_twice_inside_modules_is_counted_once_with_its_line() -> None:
    x = torch.randn(4, 8)
    found = seen(lambda: Adapted(lambda x, w: nn.functional.linear(x, w))(x))
    assert (found.calls, found.module) == (1, "linear"), "a bias of None is none"
    assert 0.0 < found.graded_share < 0.7
    (site,) = found.sites
    assert site.site.file == __file__
    squares = seen(lambda: Adapted(lambda x, w: (x @ w) + (x @ w))(x))
    assert (squares.calls, squares.module) == (1, "matmul")
    assert seen(lambda: Adapted(lambda x, w: x @ (w + 1.0))(x)).calls == 0
    outside = seen(lambda: (x @ x.T, x @ x.T, nn.ReLU()(x)))
    assert (outside.calls, outside.share) == (2, 0.0), (
        "and x.T; outside of modules, of whose time it is no part"
    )


def test_a_product_in_another_precision_is_another_one() -> None:
    def plain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return nn.functional.linear(x, w)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            Adapted(plain)(torch.randn(4, 8))

    assert seen(step).calls == 0


class Spread(nn.Module):
    """Makes weights of links, in each call of each layer."""

    def __init__(self, weights: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.inner, self.outer, self.weights = nn.Linear(8, 8), nn.Linear(8, 8), weights
        self.register_buffer("links", torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.inner, self.outer):
            x = self.weights(self.links) @ layer(x)
        return x


def _normalised(links: torch.Tensor) -> torch.Tensor:
    ones = torch.ones(links.shape[1])
    matrix = torch.sparse_coo_tensor(links, ones, (4, 4), check_invariants=True).coalesce()
    dense = torch.zeros(4, 4)
    dense[matrix.indices()[0], matrix.indices()[1]] = matrix.values()
    return dense / dense.sum(1, keepdim=True)


def _steps(model: nn.Module, x: torch.Tensor, between: Callable[[], object] = int) -> RepeatFacts:
    watch = RepeatWatch()
    watch.begin()
    for _ in range(2):
        model(x).sum().backward()
        _update(model)
        between()
        watch.step()
    found = watch.end()
    assert found is not None
    return found


def test_a_value_that_functions_compute_again_is_told_through_what_lies_between() -> None:
    """Each layer makes it from the same links: no tensor of the second chain is one of the first."""
    found = seen(lambda: Spread(_normalised)(torch.randn(4, 8)))
    assert found.calls >= 7, "from the sparse matrix to the quotient"
    assert {site.site.function for site in found.sites} == {"_normalised"}
    assert found.steady_share == 0.0, "one step"


def test_what_comes_out_the_same_in_each_step_is_told() -> None:
    found = _steps(Spread(_normalised), torch.randn(4, 8))
    steady = [site for site in found.sites if site.phase == "steady"]
    assert {site.site.function for site in steady} == {"_normalised"}
    assert found.steady, "and a function is named"
    if sys.version_info >= (3, 11):
        assert {"matrix.values()", "torch.zeros()"} <= {site.call for site in steady}
    assert 0.0 < found.steady_share < 0.2, "the first of two layers; the second repeats it"
    assert found.ungraded_share == 1.0, "all that no gradient is recorded for"


def test_what_depends_on_the_batch_on_random_numbers_or_on_what_is_trained_is_no_such() -> None:
    model = Spread(lambda links: torch.eye(4) + 0.0 * links.sum())
    assert _steps(nn.Sequential(model), torch.randn(4, 8)).steady_share > 0.0
    for weights in (
        lambda links: torch.rand(4, 4) + 0.0 * links.sum(),
        lambda _: (model.inner.weight.detach()[:4, :4] * 2.0).softmax(0),
    ):
        model.weights = weights
        found = _steps(model, torch.randn(4, 8))
        assert "softmax" not in found.steady
        assert found.steady_share < 0.1


def test_a_change_that_no_version_counts_is_seen_in_what_comes_out() -> None:
    def changed() -> None:
        model.links.data.copy_(model.links.data.roll(1, 1).sort(1).values)
        model.table.data.mul_(1.5)

    model = Spread(lambda _: model.table.exp())
    model.register_buffer("table", torch.rand(4, 4))
    assert _steps(model, torch.randn(4, 8)).steady == "exp"
    assert _steps(model, torch.randn(4, 8), changed).steady_share == 0.0


def test_what_stands_around_the_model_is_looked_at_too() -> None:
    model, table = nn.Linear(8, 2), torch.randn(40, 8)

    def windows() -> torch.Tensor:
        return table.unfold(0, 4, 1).reshape(-1, 8).sort(0).values

    watch = RepeatWatch()
    watch.begin()
    for _ in range(2):
        rows = torch.randint(0, 8, (4,))
        (model(windows()[rows]) * 2.0).sum().backward()
        _update(model)
        watch.step()
    found = watch.end()
    assert found is not None
    assert (found.share, found.steady_share) == (0.0, 0.0)
    assert {site.site.function for site in found.sites} == {"windows"}
    assert 0.3 < found.outside_share < 0.7, "not the rows, which are drawn, nor the loss"


class Doubles(TorchFunctionMode):
    """A mode of the script's: sums are twice as large."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return 2 * out if func is torch.sum else out


def test_modes_of_the_script_nest_as_without() -> None:
    watch, x, model = RepeatWatch(), torch.ones(3), nn.Linear(2, 2)
    with Doubles():
        watch.begin()
        assert torch.sum(x).item() == 6
        assert len(get_function_modes()) == 1, "inside one, only modules are looked into"
        model(torch.ones(1, 2))
    assert torch.sum(x).item() == 3
    assert watch.end() is not None
    assert not get_function_modes()

    watch.begin()
    doubles = Doubles()
    doubles.__enter__()
    model(torch.ones(1, 2))
    assert watch.end() is not None
    assert torch.sum(x).item() == 6, "the script's goes on when ours has ended"
    doubles.__exit__(None, None, None)
    assert torch.sum(x).item() == 3
    assert not get_function_modes()


def test_warnings_and_errors_are_those_of_the_scripts_lines() -> None:
    """One that has been shown is not shown again, and one of ours nowhere."""
    guesses, targets, watch = torch.randn(3, 1), torch.randn(3), RepeatWatch()

    def step() -> str:
        nn.functional.mse_loss(guesses, targets)
        with pytest.raises(RuntimeError) as caught:
            guesses @ torch.ones(7, 7)
        lines = traceback.extract_tb(strip_frames(caught.tb))
        return " ".join(f"{line.name}:{line.lineno}" for line in lines)

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        plain = step()
        watch.begin()
        try:
            assert step() == plain
        finally:
            watch.end()
    assert [warning.filename for warning in shown] == [__file__], "the sizes differ"


def test_a_fork_looks_at_nothing() -> None:
    step, called = FlopStep(), nn.Module.__call__
    step._repeats.begin()
    assert get_function_modes()
    step.forked()
    assert not get_function_modes()
    assert nn.Module.__call__ is called


def test_what_is_replaced_is_put_back() -> None:
    before, during = nn.Module.__call__, []

    class Asks(nn.Module):
        def forward(self) -> None:
            during.extend([nn.Module.__call__ is before, len(get_function_modes())])

    seen(Asks())
    assert during == [False, 1]
    assert nn.Module.__call__ is before
    assert not get_function_modes()


class Scripted(nn.Module):
    """Calls by name what is replaced meanwhile."""

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.matmul(nn.functional.linear(x, w), w)


def test_what_is_made_torchscript_meanwhile_is_as_without() -> None:
    x, names = torch.eye(3), torch_private.script_names()
    known = len(names)
    assert known
    made = []
    seen(lambda: (made.append(torch.jit.script(Scripted())), nn.Linear(3, 3)(x)))
    assert len(names) == known
    assert made[0](x, 2 * x).tolist() == (4 * x).tolist()
    assert torch.jit.script(Scripted())(x, 2 * x).tolist() == (4 * x).tolist()


def test_what_is_compiled_meanwhile_is_one_graph() -> None:
    torch._dynamo.reset()
    x = torch.eye(3)

    def twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.matmul(nn.functional.linear(x, w), w)

    compiled = torch.compile(twice, fullgraph=True, backend="eager")
    found = []
    seen(lambda: (found.append(compiled(x, 2 * x)), nn.Linear(3, 3)(x)))
    assert [each.tolist() for each in (*found, compiled(x, 2 * x))] == [(4 * x).tolist()] * 2


class Clock:
    """Stands still but for what is added."""

    now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class Takes(nn.Module):
    """Takes some time, in each call that of the list."""

    def __init__(self, clock: Clock, *took_ns: int) -> None:
        super().__init__()
        self.clock, self.took_ns = clock, list(took_ns)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.now_ns += self.took_ns.pop(0)
        return x + 1


def test_a_call_that_is_held_up_counts_as_the_others_with_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "perf_counter_ns", clock := Clock())
    often, x = Takes(clock, 120, 100, 7000, 100, 110), torch.randn(2)
    rest = Takes(clock, 1500)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.often, self.rest = often, rest

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.rest(sum(self.often(x) for _ in range(5)))

    found = seen(lambda: Model()(x))
    assert found.calls == 4
    # 120 for the first, 100, 110, 100 and 110 for those that repeat it, of which one took 7000.
    assert found.share == pytest.approx(420 / (120 + 420 + 1500))
    assert found.graded_share == found.share


def test_looking_at_the_calls_inside_a_call_is_no_time_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "perf_counter_ns", clock := Clock())

    def looked_up(values: Values, *args: object) -> object:
        clock.now_ns += 1000
        return key_of(values, *args)  # type: ignore[arg-type]

    key_of = Values.module_call
    monkeypatch.setattr(Values, "module_call", looked_up)
    again, x = nn.Sequential(Takes(clock, 10, 10), Takes(clock, 10, 10)), torch.randn(2)
    model = nn.Sequential(Takes(clock, 60))

    def step() -> None:
        again(x)
        again(x)
        model(x)

    assert seen(step).share == pytest.approx(20 / 100)


def test_a_metric_that_runs_the_model_again_has_no_backward() -> None:
    model, x = nn.Linear(8, 2), torch.randn(4, 8)

    def step() -> None:
        loss = model(x).sum()
        with torch.no_grad():
            model(x).argmax(-1)
        loss.backward()
        with torch.no_grad():
            model(x).argmax(-1)

    found = seen(step)
    assert (found.calls, found.graded_share) == (3, 0.0), "the model twice, and argmax of the same"


def test_a_part_that_was_computed_without_gradients_cannot_stand_for_one_that_needs_them() -> None:
    model, x = nn.Sequential(nn.Linear(8, 2)), torch.randn(4, 8)

    def step() -> None:
        with torch.no_grad():
            old = model[0](x)
        (model(x) - old).sum().backward()

    assert seen(step).calls == 0


@pytest.mark.parametrize("first", [True, False])
def test_a_model_that_is_tested_on_what_it_is_trained_on_runs_once_too_often(first: bool) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)), torch.randn(4, 8)

    def test(inputs: torch.Tensor) -> None:
        model.eval()
        with torch.no_grad():
            model(inputs)
        model.train()

    def step(inputs: torch.Tensor) -> None:
        if first:
            test(inputs)
        loss = model(x).sum()
        if not first:
            test(inputs)
        loss.backward()

    found = seen(lambda: step(x))
    assert (found.calls, found.graded_share) == (1, 0.0)
    assert found.ms_of("tested") > 0.0
    assert found.ms_of("repeated") == 0.0
    assert found.sites[0].site.function == "test"
    assert seen(lambda: step(x.clone())).calls == 0, "on other inputs it is for a reason"


@pytest.mark.parametrize(
    ("function", "calls"),
    [(torch.clone, 0), (copy.deepcopy, 0), (torch.exp, 2), (torch.tril, 2)],
)
def test_a_copy_is_made_to_be_changed_and_computes_nothing_again(
    function: Callable[[torch.Tensor], torch.Tensor], calls: int
) -> None:
    model, x = nn.Linear(40, 2), torch.randn(40, 40)
    assert seen(lambda: [model(torch.randn(3, 40)), *(function(x) for _ in range(3))]).calls == calls


@pytest.mark.parametrize("fused", [True, False])
def test_a_model_that_an_optimizer_has_updated_computes_anew(fused: bool) -> None:
    model, x = nn.Linear(8, 2), torch.randn(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)

    def step(*, update: bool) -> None:
        model(x).sum().backward()
        if update:
            optimizer.step()
        with torch.no_grad():
            model(x)
            model(x)

    assert seen(lambda: step(update=True)).calls == 1
    assert seen(lambda: step(update=False)).calls == 2


def _views(model: nn.Module, *, between: Callable[[], object] = int, second: int = 4) -> RepeatFacts:
    def step() -> None:
        first = model(torch.randn(4, 8)).sum()
        between()
        (first + model(torch.randn(second, 8)).sum()).backward()

    return seen(step)


def test_a_model_that_is_called_for_each_view_could_be_called_once() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.BatchNorm1d(8))
    found = _views(model)
    assert 0.0 < found.apart_share < 1.0
    (site,) = found.sites
    assert (site.phase, site.site.function, site.count) == ("apart", "step", 1)
    assert found.ms_of("apart") > 0.0

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(8, 8), nn.Tanh())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.encoder(x) - self.encoder(x + 1.0)

    inner = seen(lambda: Pair()(torch.randn(4, 8)).sum().backward())
    assert [site.site.function for site in inner.sites] == ["forward"], "the encoder, not the layers in it"


@pytest.mark.parametrize("why", ["shapes", "backward", "input", "state", "gradients"])
def test_calls_that_cannot_be_one_are_told_apart(why: str) -> None:
    class Spiking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.level = nn.Linear(8, 8), torch.zeros(1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.level = 0.9 * self.level + self.inner(x)
            return self.level

    model, other = nn.Linear(8, 8), torch.randn(4, 8)
    if why == "shapes":
        found = _views(model, second=3)
    elif why == "backward":
        found = _views(model, between=lambda: model(other).sum().backward())
        assert found.apart_calls == 1.0, "the two before it"
        return
    elif why == "input":
        found = seen(lambda: model(model(other)).sum().backward())
    elif why == "state":
        # Its layer could have the inputs of all times, as it needs no state.
        found, whole = _views(Spiking()), seen(lambda: Spiking()(other).sum().backward())
        assert (found.apart_calls, found.sites[0].site.function, whole.apart_calls) == (1.0, "forward", 0.0)
        return
    else:
        found = seen(lambda: (_without(model, other), _without(model, other + 1.0)))
    assert (found.apart_share, found.apart_calls) == (0.0, 0.0)


def _without(model: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        model(x)


def test_what_a_line_copies_again_to_add_a_little_is_told() -> None:
    model, watch = nn.Linear(8, 8), RepeatWatch()
    shifted, rolled, joined = torch.zeros(6, 8), torch.zeros(6, 8), torch.zeros(1, 8)
    watch.begin()
    for _ in range(3):
        out = model(torch.randn(4, 8))
        shifted = torch.cat((shifted[1:], out.detach()[:1]))
        rolled = torch.roll(rolled, -1, 0)
        rolled[-1] = 1.0
        joined = torch.cat((joined[:1], out.detach()[:3]))
        out.sum().backward()
        watch.step()
    found = watch.end()
    assert found is not None
    carried = [site for site in found.sites if site.phase == "carried"]
    assert len({site.site.line for site in carried}) == 2, "what is new to most of it is joined for a reason"
    assert sum(site.count for site in carried) == 4, "in the second and the third step"
    assert found.carried_share == 0.0
    assert 0.0 < found.carried_outside_share < 1.0
    assert 0.0 < found.carried_ungraded_share <= 1.0


def _twice(model: nn.Module, x: torch.Tensor, between: Callable[[torch.Tensor], object]) -> None:
    kept = model(x)
    between(kept)
    model(x)
    del kept


def _update(model: nn.Module) -> None:
    with torch.no_grad():
        next(model.parameters()).add_(1.0)


@pytest.mark.parametrize(("frozen", "fed"), [("right", 1.0), ("body", 0.0), ("", None)])
def test_of_modules_that_are_not_trained_those_behind_trained_ones_are_told_apart(
    frozen: str, fed: float | None
) -> None:
    model, x = Two(), torch.randn(4, 8)
    if frozen:
        model.get_submodule(frozen).requires_grad_(False)
    assert seen(lambda: model(x)).fed_share == fed


def test_a_teacher_of_what_the_student_has_made_has_its_outputs_read() -> None:
    student, teacher, x = nn.Linear(8, 8), nn.Linear(8, 1).requires_grad_(False), torch.randn(4, 8)

    def run() -> None:
        made = student(x)
        with torch.no_grad():
            teacher(made)

    assert seen(run).fed_share == 0.0


@pytest.mark.parametrize("change", ["input", "parameter", "mode", "backward"])
def test_what_has_changed_in_between_is_computed_for_a_reason(change: str) -> None:
    model, x = nn.Linear(8, 2), torch.randn(4, 8)
    between = {
        "input": lambda _: x.add_(1.0),
        "parameter": lambda _: _update(model),
        "mode": lambda _: model.eval(),
        # What it recorded is freed.
        "backward": lambda kept: kept.sum().backward(),
    }[change]
    assert seen(lambda: _twice(model, x, between)).calls == 0
    assert seen(lambda: _twice(model, x, lambda _: None)).calls == 1, "and with nothing changed it is not"


@pytest.mark.parametrize("toggled", [False, True])
def test_what_a_generator_makes_for_the_critic_can_stand_for_what_it_makes_for_itself(toggled: bool) -> None:
    generator, critic, z = nn.Linear(4, 8), nn.Linear(8, 1), torch.randn(16, 4)

    def step() -> None:
        if toggled:
            generator.requires_grad_(False).requires_grad_(True)
        critic(generator(z).detach()).sum().backward()
        critic(generator(z)).sum().backward()

    found = seen(step)
    assert (found.calls, found.module) == (1, "Linear")
    (site,) = found.sites
    assert site.count == 1
    if sys.version_info >= (3, 11):
        assert site.call == "generator()"


def test_random_numbers_hidden_states_other_tensors_and_recomputation_are_no_repetition() -> None:
    drops, model = nn.Dropout(0.5), nn.Linear(8, 8)
    x = torch.randn(4, 8)
    assert seen(lambda: (drops(x), drops(x))).calls == 0

    class Caching(nn.Module):
        def forward(self, x: torch.Tensor, cache: object) -> torch.Tensor:
            return x

    caches, cache = Caching(), SimpleNamespace()
    assert seen(lambda: (caches(x, cache), caches(x, cache))).calls == 0
    assert seen(lambda: (caches(x, {"length": 1}), caches(x, {"length": 2}))).calls == 0
    assert seen(lambda: [model(torch.randn(4, 8)) for _ in range(3)]).calls == 0, "one in place of another"
    needs = x.clone().requires_grad_()
    assert seen(lambda: checkpoint(model, needs, use_reentrant=False).sum().backward()).calls == 0


def global_hooks() -> tuple[int, ...]:
    """Those that a library has set for good stay."""
    of = torch.nn.modules.module
    return len(of._global_forward_hooks), len(of._global_forward_pre_hooks)


def test_afterwards_torch_has_the_hooks_that_it_had() -> None:
    before = global_hooks()
    during = []
    seen(lambda: (nn.Linear(2, 2)(torch.ones(1, 2)), during.append(global_hooks())))
    assert during != [before]
    assert global_hooks() == before


def test_each_step_stands_for_itself() -> None:
    model, x, watch = nn.Linear(8, 2), torch.randn(4, 8), RepeatWatch()
    watch.begin()
    model(x)
    watch.step()
    model(x)
    found = watch.end()
    assert found is not None
    assert (found.calls, found.share) == (0, 0.0)


def test_a_forward_that_fails_leaves_the_others_to_be_looked_at() -> None:
    model, x = nn.Linear(8, 2), torch.randn(4, 8)

    def run() -> None:
        with pytest.raises(RuntimeError, match="shapes"):
            Two()(torch.randn(4, 3))
        model(x)
        model(x)

    assert seen(run).calls == 1


# -- the patch -------------------------------------------------------------------------------------


@pytest.fixture
def once() -> Iterator[Patch]:
    (patch,) = make_patches((Wish(fix="FX326"),))
    patch.install()
    yield patch
    patch.uninstall()


class Nets(nn.Module):
    """A generator and a critic, neither of them linear, and a head on what the generator is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
        self.generator = nn.Sequential(self.body, nn.Linear(8, 8), nn.Tanh())
        self.critic = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        self.z = torch.randn(16, 4)


def _detached(n: Nets) -> None:
    n.critic(n.generator(n.z).detach()).sum().backward()
    n.critic(n.generator(n.z)).sum().backward()


def _three_passes(n: Nets) -> None:
    n.critic(n.z.repeat(1, 2)).sum().backward()
    _detached(n)


def _toggled(n: Nets) -> None:
    fakes = n.generator(n.z)
    n.generator.requires_grad_(False)
    n.critic(n.generator(n.z)).sum().backward()
    n.generator.requires_grad_(True)
    n.critic(n.generator(n.z)).sum().backward()
    del fakes


def _through_it(n: Nets) -> None:
    n.critic(n.generator(n.z)).sum().backward()
    n.critic(n.generator(n.z)).mean().backward()


def _within_it(n: Nets) -> None:
    """A part of it goes backward alone, its whole afterwards: what was recorded inside is freed."""
    fakes = n.generator(n.z).detach()
    n.body(n.z).sum().backward()
    n.critic(n.generator(n.z) + fakes).sum().backward()


def _two_outputs(n: Nets) -> None:
    hidden = n.body(n.z)
    n.critic(hidden).sum().backward(retain_graph=True)
    n.critic(hidden).sum().backward()
    n.critic(n.body(n.z)).sum().backward()


def _cut_in_place(n: Nets) -> None:
    n.critic(n.generator(n.z).detach_()).sum().backward()
    n.critic(n.generator(n.z)).sum().backward()


def _with_a_hook(n: Nets) -> None:
    fakes = n.generator(n.z)
    fakes.register_hook(lambda gradient: gradient * 0)
    n.critic(n.generator(n.z).detach()).sum().backward()
    n.critic(n.generator(n.z)).sum().backward()


def _behind_the_counter(n: Nets) -> None:
    """A teacher whose weights are changed where no version shows it."""
    target = n.generator(n.z).detach()
    (n.critic(target) + n.critic(n.body(n.z))).sum().backward()
    for weight in n.generator[1].parameters():
        weight.data.mul_(0.5)


@pytest.mark.parametrize(
    ("step", "least"),
    [
        (_detached, 3),
        (_three_passes, 3),
        (_toggled, 6),
        (_through_it, 0),
        (_within_it, 0),
        (_two_outputs, 0),
        (_cut_in_place, 0),
        (_with_a_hook, 0),
        (_behind_the_counter, 0),
    ],
)
def test_training_goes_on_as_it_would_where_outputs_are_handed_out_after_a_backward(
    once: Patch, step: Callable[[Nets], None], least: int
) -> None:
    torch.manual_seed(0)
    plain = Nets()
    patched = copy.deepcopy(plain)

    def train(nets: Nets) -> list[torch.Tensor]:
        optimizers = tuple(
            torch.optim.SGD(part.parameters(), lr=0.1) for part in (nets.generator, nets.critic)
        )
        if nets is patched:
            once.put_in(Program(roots=(nets.generator, nets.critic), optimizers=optimizers))
        for _ in range(4):
            step(nets)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        return [each.detach() for each in nets.parameters()]

    once.uninstall()
    wanted = train(plain)
    got = train(patched)
    assert once.count >= least
    for one, other in zip(wanted, got, strict=True):
        torch.testing.assert_close(other, one)


def test_an_output_is_held_for_one_backward_more_and_not_for_an_optimizer_that_never_updates(
    once: Patch,
) -> None:
    nets, made = Nets(), []
    optimizers = tuple(torch.optim.SGD(part.parameters(), lr=0.1) for part in (nets.generator, nets.critic))
    once.uninstall()
    once.put_in(Program(roots=(nets.generator, nets.critic), optimizers=optimizers))
    for _ in range(12):
        fakes = nets.generator(torch.randn(16, 4))
        made.append(weakref.ref(fakes))
        nets.critic(fakes.detach()).sum().backward()
        optimizers[1].step()
        del fakes
    assert sum(each() is not None for each in made) <= 2


def test_a_product_is_handed_out_again_with_its_gradients(once: Patch) -> None:
    model, x = Adapted(lambda x, w: nn.functional.linear(x, w)), torch.randn(4, 8)
    for _ in range(4):
        model(x).sum().backward()
    assert once.count == 3, "the first pass only looks"
    assert model.base.weight.grad is not None
    assert model.base.weight.grad[0].tolist() == pytest.approx((8 * x.sum(0)).tolist(), rel=1e-4)


def test_the_output_of_the_first_call_is_handed_out_again(once: Patch) -> None:
    model, x = Two(), torch.randn(4, 8)
    calls: list[int] = []
    model.body.register_forward_hook(lambda *_: calls.append(1))
    control = Two()
    control.load_state_dict(model.state_dict())
    for _ in range(4):
        model(x).sum().backward()
    assert len(calls) == 4
    once.uninstall()
    for _ in range(4):
        control(x).sum().backward()
    for mine, plain in zip(model.parameters(), control.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, plain.grad)
    found = once.check()
    assert found.evidence == "4 calls answered by an earlier one"
    assert found.sites[0].function == "forward"


@pytest.mark.usefixtures("once")
def test_what_would_be_another_output_is_computed() -> None:
    model, drops, x = nn.Linear(8, 2), nn.Dropout(0.5), torch.randn(4, 8)
    assert not torch.equal(drops(torch.ones(100)), drops(torch.ones(100)))
    first = model(x)
    with torch.no_grad():
        metric = model(x)
        assert metric is not first
        assert not metric.requires_grad
        assert metric.data_ptr() == first.data_ptr()
    with torch.no_grad():
        first += 1.0
    assert torch.allclose(model(x), first - 1.0, atol=1e-5), "what has changed in place is not handed out"
    second = model(x)
    second.sum().backward()
    assert model(x) is not second, "its graph is gone"


def curvature(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Three products with the second derivative, each by a forward and a first gradient of its own."""
    products, vector = [], torch.linspace(-1.0, 1.0, sum(p.numel() for p in model.parameters()))
    weights = list(model.parameters())
    for _ in range(3):
        slope = torch.autograd.grad(model(x).square().mean(), weights, create_graph=True)
        along = torch.cat([each.reshape(-1) for each in slope]) @ vector
        again = torch.autograd.grad(along, weights)
        products.append(torch.cat([each.reshape(-1) for each in again]))
    return products


def test_autograd_grad_frees_no_graph_that_is_handed_out_again(once: Patch) -> None:
    model, x = Two(), torch.randn(4, 8)
    patched = curvature(model, x)
    assert once.check().evidence == "3 calls answered by an earlier one"
    first, alive = model(x), weakref.ref(model(x))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert model(x) is not first
    del first
    assert alive() is None, "what was computed before an update is not kept"
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(1.0)
    once.uninstall()
    torch.testing.assert_close(patched, curvature(model, x))


def test_values_that_no_step_changes_are_handed_out_in_all_of_them(once: Patch) -> None:
    model, x = Spread(_normalised), torch.randn(4, 8)
    control = Spread(_normalised)
    control.load_state_dict(model.state_dict())
    counts = []
    for _ in range(4):
        model(x).sum().backward()
        counts.append(once.count - sum(counts))
    assert counts[3] == counts[1], "what is changed in place on the way is made anew, and no reason to stop"
    assert counts[3] >= 2 * 8, "of both layers, from the sparse matrix to the quotient"
    model.links.copy_(model.links.flip(1).contiguous())
    model.links[1, 0] = 1
    model.zero_grad()
    out = model(x)
    out.sum().backward()
    once.uninstall()
    control.links.copy_(model.links)
    assert out.tolist() == control(x).tolist(), "what was changed in between is computed anew"


def test_what_was_computed_without_gradients_is_not_handed_out_where_they_are_needed(once: Patch) -> None:
    model = Adapted(lambda x, w: (x * w[:, 0]).sum(1, keepdim=True))
    x = torch.randn(4, 8)
    for _ in range(3):
        with torch.no_grad():
            before = model(x)
        loss = (model(x) - before).square().sum() + model(x).sum()
        model.zero_grad()
        loss.backward()
    assert model.base.weight.grad is not None
    assert bool(model.base.weight.grad.any())


def test_what_is_written_into_later_belongs_to_one_alone(once: Patch) -> None:
    def weights(links: torch.Tensor) -> torch.Tensor:
        first, second = torch.zeros(4, 4), torch.zeros(4, 4)
        first[0] = 1.0
        second[1:].fill_(2.0)
        rows, others = torch.ones(4), torch.ones(4)
        rows += links[0]
        return first + 10.0 * second + rows * others

    model, x = Spread(weights), torch.randn(4, 8)
    found = [model(x) for _ in range(4) if (model(x).sum().backward() or True)]
    once.uninstall()
    for each in found:
        torch.testing.assert_close(each, model(x))


def test_tensors_of_inference_are_no_obstacle(once: Patch) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.randn(4, 8)

    def step() -> None:
        with torch.inference_mode():
            model(model(x) + 1.0)
        model(x).sum().backward()

    for _ in range(3):
        step()
    once.uninstall()
    assert seen(step).ms_of("repeated") == 0.0
