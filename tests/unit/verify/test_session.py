"""A whole verification, with processes stood in for by a table of times."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from torch_bottleneck.errors import InputError, ScriptError
from torch_bottleneck.model.run import HostFacts, Run
from torch_bottleneck.model.verify import (
    Applied,
    EndedBy,
    Protocol,
    RunRecord,
    TrialFacts,
    Verification,
    Wish,
)
from torch_bottleneck.runs.environment import environment_of, usable_cores
from torch_bottleneck.runs.target import Target
from torch_bottleneck.verify.arms import Arms
from torch_bottleneck.verify.rows import candidate_again, untried
from torch_bottleneck.verify.session import Session

LOSSES = [3.0 - 0.03 * i for i in range(60)]
JITTER = itertools.cycle([1.0, 1.002, 0.999, 1.001])


class TableArms(Arms):
    """Runs nothing: step times, failures and losses by the set of fixes in force."""

    times: dict[tuple[str, ...], float]
    losses: dict[tuple[str, ...], list[float | None]]
    fails: dict[str, str]
    idle: set[str]
    interrupt_at: int | None
    host: HostFacts | None

    def run(self, number: int, wishes: Sequence[Wish], *, parity: bool = False) -> tuple[RunRecord, bool]:
        fixes = tuple(wish.fix for wish in wishes)
        base = RunRecord(
            number=number, session=self.session, fixes=fixes, folder=f"runs/{number}", seconds=4.0
        )
        if self.interrupt_at is not None and number >= self.interrupt_at:
            none = [Applied(fix=fix, state="not applied", reason="not there yet") for fix in fixes]
            return msgspec.structs.replace(base, status="interrupted", applied=none), True
        for fix, why in self.fails.items():
            if fix in fixes or (not fix and not fixes):
                return msgspec.structs.replace(base, status="failed", reason=why), False
        applied = [
            Applied(fix=fix, state="not applied" if fix in self.idle else "applied", reason="nothing there")
            for fix in fixes
        ]
        folder = self.folder / "runs" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        if self.host is not None:
            (folder / "run.json").write_bytes(msgspec.json.encode(Run(host=self.host)))
        losses = self.losses.get((*fixes, "parity") if parity else fixes, list(LOSSES))
        (folder / "trial.json").write_bytes(msgspec.json.encode(TrialFacts(applied=applied, losses=losses)))
        record = msgspec.structs.replace(
            base,
            step_ms=self.times[tuple(sorted(fixes))] * next(JITTER),
            standard_error_ms=0.001,
            steps=40,
            peak_bytes=1000,
            peak_is="device",
            applied=applied,
            purpose="parity" if parity else "timing",
        )
        return record, False


Make = Callable[..., Session]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def build(
        *fixes: str,
        times: dict[tuple[str, ...], float],
        losses: Any = None,
        fails: Any = None,
        idle: Any = (),
        interrupt_at: int | None = None,
        host: HostFacts | None = None,
        state: Verification | None = None,
        **protocol: Any,
    ) -> Session:
        arms = TableArms(target=Target(script="train.py"), folder=tmp_path)
        arms.times, arms.losses, arms.fails, arms.idle = times, losses or {}, fails or {}, set(idle)
        arms.interrupt_at, arms.host = interrupt_at, host
        if state is None:
            candidates = tuple(untried(Wish(fix=fix), title=fix) for fix in fixes)
            state = Verification(
                protocol=Protocol(**protocol),
                wishes=tuple(w for c in candidates for w in c.wishes),
                outcomes=tuple(c.row for c in candidates),
                combine=len(fixes) > 1,
            )
        else:
            arms.session = 1 + max(run.session for run in state.runs)
            candidates = tuple(candidate_again(row, state.wishes) for row in state.outcomes)
        return Session(
            arms=arms,
            state=state,
            candidates=candidates,
            save=lambda now: (tmp_path / "verify.json").write_bytes(msgspec.json.encode(now)) and None,
            say=lambda _text: None,
        )

    return build


def verdicts(state: Verification) -> dict[tuple[tuple[str, ...], tuple[str, ...]], str]:
    return {(row.base, row.fixes): row.verdict for row in state.outcomes}


def test_a_fix_that_helps_and_one_that_does_not(make: Make) -> None:
    state = make("FX311", "FX505", times={(): 10.0, ("FX311",): 8.0, ("FX505",): 10.0}).run()
    assert verdicts(state) == {((), ("FX311",)): "faster", ((), ("FX505",)): "no gain"}
    assert state.combination == ("FX311",)
    assert state.complete
    assert state.noise is not None
    assert state.noise.share < 0.01
    assert "repeats itself exactly" in state.reproducible
    row = state.outcomes[0]
    assert row.measured is not None
    assert row.measured.ratio == pytest.approx(1.25, rel=0.01)
    assert row.memory_bytes == 0
    assert row.parity.verdict == "same"


@pytest.mark.parametrize("elsewhere", [True, False])
def test_times_of_another_machine_are_not_mixed_in(make: Make, tmp_path: Path, elsewhere: bool) -> None:
    times = {(): 10.0, ("FX311",): 8.0}
    stopped = make("FX311", times=times, interrupt_at=3).run()
    assert len(stopped.runs) >= 2
    here = HostFacts(torch="2.13.0", cpu="EPYC")
    known = msgspec.structs.replace(here, cpu="Xeon") if elsewhere else here
    resumed = make(times=times, state=msgspec.structs.replace(stopped, host=known), host=here)
    if not elsewhere:
        assert verdicts(resumed.run()) == {((), ("FX311",)): "faster"}
        return
    with pytest.raises(InputError, match=r"another machine or torch: 2\.13\.0, Xeon"):
        resumed.run()
    assert resumed.state.runs == stopped.runs


def test_the_best_are_put_together_greedily_and_what_does_not_add_is_left_out(make: Make) -> None:
    times = {
        (): 10.0,
        ("FX101",): 6.0,
        ("FX311",): 8.0,
        ("FX505",): 9.0,
        ("FX101", "FX311"): 4.0,
        ("FX101", "FX311", "FX505"): 4.0,
    }
    state = make("FX311", "FX505", "FX101", times=times).run()
    found = verdicts(state)
    assert found[("FX101",), ("FX311",)] == "faster"
    assert found[("FX101", "FX311"), ("FX505",)] == "no gain"
    assert found[(), ("FX101", "FX311")] == "faster"
    assert state.combination == ("FX101", "FX311")
    whole = next(row for row in state.outcomes if row.fixes == ("FX101", "FX311"))
    assert whole.measured is not None
    assert whole.measured.ratio == pytest.approx(2.5, rel=0.01)


def test_a_pair_that_was_predicted_together_is_held_against_that(make: Make) -> None:
    times = {(): 10.0, ("FX101",): 6.0, ("FX311",): 8.0, ("FX101", "FX311"): 4.0}
    session = make("FX101", "FX311", times=times)
    session.state = msgspec.structs.replace(
        session.state, predicted_pair=("FX311", "FX101"), predicted_pair_ratio=2.0
    )
    whole = next(row for row in session.run().outcomes if len(row.fixes) == 2)
    assert whole.predicted_ratio == 2.0
    assert whole.error == pytest.approx(0.25, abs=0.02)


def test_fixes_that_conflict_are_not_put_together(make: Make) -> None:
    times = {(): 10.0, ("FX414",): 6.0, ("FX412",): 5.0}
    state = make("FX414", "FX412", times=times).run()
    assert state.combination == ("FX412",)
    assert all(not row.base for row in state.outcomes)


def test_harm_beats_speed_and_is_never_combined(make: Make) -> None:
    broken: list[float | None] = [*LOSSES[:30], *[None] * 30]
    times = {(): 10.0, ("FX303",): 3.0, ("FX311",): 8.0}
    state = make("FX303", "FX311", times=times, losses={("FX303",): broken}).run()
    assert verdicts(state) == {((), ("FX303",)): "harmful", ((), ("FX311",)): "faster"}
    assert "not finite from backward 31" in state.outcomes[0].reason
    assert state.combination == ("FX311",)


def test_random_transforms_that_moved_are_no_harm(make: Make) -> None:
    moved: list[float | None] = [loss * 1.1 for loss in LOSSES]
    times = {(): 10.0, ("FX101",): 5.0}
    state = make("FX101", times=times, losses={("FX101",): moved}).run()
    (row,) = state.outcomes
    assert row.verdict == "faster"
    assert row.parity.verdict == "same"
    assert "same random transforms" in row.parity.text
    assert [run.fixes for run in state.runs if run.purpose == "parity"] == [(), ("FX101",)]


def test_other_data_stay_harmful_when_the_transforms_are_the_same(make: Make) -> None:
    moved: list[float | None] = [loss * 1.1 for loss in LOSSES]
    losses = {("FX101",): moved, ("FX101", "parity"): moved}
    state = make("FX101", times={(): 10.0, ("FX101",): 5.0}, losses=losses).run()
    assert state.outcomes[0].verdict == "harmful"


def test_a_failing_fix_keeps_its_reason_and_the_others_go_on(make: Make) -> None:
    times = {(): 10.0, ("FX311",): 8.0}
    state = make("FX414", "FX311", times=times, fails={"FX414": "out of memory: too much"}).run()
    assert verdicts(state) == {((), ("FX414",)): "failed", ((), ("FX311",)): "faster"}
    assert state.outcomes[0].reason == "out of memory: too much"
    assert len([run for run in state.runs if run.fixes == ("FX414",)]) == 1


def test_what_did_not_take_effect_is_not_called_useless(make: Make) -> None:
    state = make("FX505", times={(): 10.0, ("FX505",): 10.0}, idle=["FX505"]).run()
    assert state.outcomes[0].verdict == "not applied"
    assert state.outcomes[0].reason == "nothing there"
    assert len(state.runs) == 2


def test_a_script_that_fails_by_itself_is_an_error(make: Make) -> None:
    with pytest.raises(ScriptError, match="fails without any fix: no data"):
        make("FX311", times={}, fails={"": "no data"}).run()


@pytest.mark.parametrize(("ended", "said"), [(EndedBy.TOO_SHORT, "too short"), (EndedBy.FAULT, "fails")])
def test_how_the_first_run_ended_decides_what_is_said_of_it_not_its_reason(
    make: Make, monkeypatch: pytest.MonkeyPatch, ended: EndedBy, said: str
) -> None:
    session = make("FX311", times={})
    record = RunRecord(number=1, folder="runs/1", status="failed", ended=ended, reason="xyzzy")
    monkeypatch.setattr(session.arms, "run", lambda *_args, **_rest: (record, False))
    with pytest.raises(ScriptError, match=f"{said}.*xyzzy"):
        session.run()


def test_the_budget_stops_it_and_says_so(make: Make) -> None:
    state = make("FX311", times={(): 10.0, ("FX311",): 8.0}, budget_seconds=1.0).run()
    assert not state.complete
    assert state.outcomes[0].ended is EndedBy.TIME
    assert "time budget" in state.outcomes[0].reason


def test_what_helped_is_put_together_before_all_that_nothing_was_predicted_of_is_tried(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = ["FX505", "FX210", "FX507", "FX301", "FX204"]
    times = {(): 10.0, ("FX101",): 6.0, ("FX311",): 8.0, ("FX101", "FX311"): 4.0}
    session = make("FX101", "FX311", *rest, times=times | {(fix,): 10.0 for fix in rest}, budget_seconds=150)
    predicted = {"FX101": 2.0, "FX311": 2.0, "FX204": 0.95}
    session.candidates = tuple(
        untried(*c.wishes, title=c.row.title, predicted_ratio=predicted.get(c.fixes[0]))
        for c in session.candidates
    )
    monkeypatch.setattr(
        "torch_bottleneck.verify.session.time.monotonic",
        lambda: sum(run.seconds for run in session.state.runs),
    )
    session._began = 0.0
    found = verdicts(session.run())
    assert found[("FX101",), ("FX311",)] == "faster"
    assert found[(), ("FX101", "FX311")] == "faster"
    assert found[(), ("FX204",)] == "not run", "there was time for it, but not beside the pair"


def test_what_was_stopped_goes_on_where_it_was_left(make: Make, tmp_path: Path) -> None:
    times = {(): 10.0, ("FX311",): 8.0, ("FX505",): 10.0, ("FX311", "FX505"): 8.0}
    session = make("FX311", "FX505", times=times, interrupt_at=10)
    state = session.run()
    assert session.interrupted
    assert "not applied" not in [row.verdict for row in session.state.outcomes]
    assert not state.complete
    assert verdicts(state) == {((), ("FX311",)): "faster", ((), ("FX505",)): "undecided"}
    assert state.combination == ("FX311",)
    stored = msgspec.json.decode((tmp_path / "verify.json").read_bytes(), type=Verification)
    done = make(times=times, state=stored).run()
    assert done.complete
    assert verdicts(done) == {((), ("FX311",)): "faster", ((), ("FX505",)): "no gain"}
    assert [run.number for run in done.runs] == list(range(1, len(done.runs) + 1))
    again = [run for run in done.runs if run.session == 2]
    assert not [run for run in again if run.fixes == ("FX311",)], "what was decided is not run again"
    assert again[0].fixes == (), "a session begins with the script as it is"


def test_the_memory_to_preheat_is_that_of_the_script_as_it_is(make: Make) -> None:
    session = make("FX203", times={(): 10.0, ("FX203",): 8.0})
    asked: list[dict[str, Any]] = []
    original = session.arms.run

    def spy(number: int, wishes: Sequence[Wish], **rest: Any) -> Any:
        asked.extend(dict(wish.options) for wish in wishes)
        return original(number, wishes, **rest)

    session.arms.run = spy  # type: ignore[method-assign]
    session.run()
    assert asked[0] == {"bytes": 1000}


def test_a_run_gets_what_the_catalogue_says_of_its_environment(make: Make) -> None:
    session = make("FX506", times={(): 10.0, ("FX506",): 8.0})
    asked: list[Wish] = []
    original = session.arms.run

    def spy(number: int, wishes: Sequence[Wish], **rest: Any) -> Any:
        asked.extend(wishes)
        return original(number, wishes, **rest)

    session.arms.run = spy  # type: ignore[method-assign]
    session.run()
    assert environment_of(asked[:1], {})["OMP_NUM_THREADS"] == str(usable_cores())
    assert session.state.wishes[0].options == {}, "what was asked for stays as it was given"


def test_what_is_stored_can_be_read_by_anyone(make: Make, tmp_path: Path) -> None:
    make("FX311", times={(): 10.0, ("FX311",): 8.0}).run()
    assert json.loads((tmp_path / "verify.json").read_text())["outcomes"][0]["verdict"] == "faster"
