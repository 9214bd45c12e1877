"""Recording losses and watching root modules is invisible to torch.compile and to the losses.

Patches that find nothing to change are in place here, so that only their wrappers count.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from e2e.test_compile_neutral import SCRIPT, check_counts, counted, counted_alone

from torch_bottleneck.model.verify import Trial, TrialFacts, Wish
from torch_bottleneck.runs.plan import Plan, encode_plan

CASES = ("model", "in_place", "loss", "step", "optimizer", "breaks")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_dynamo_counts_the_same_in_a_trial(case: str, tmp_path: Path) -> None:
    alone = counted_alone(case)
    # channels_last without images, set_to_none where it is already, copies that go nowhere.
    wishes = tuple(Wish(fix=fix) for fix in ("FX310", "FX313", "FX104"))
    plan = Plan(
        script=str(SCRIPT),
        out=str(tmp_path / "run"),
        quiet=True,
        run_to_end=True,
        trial=Trial(wishes=wishes),
    )
    watched = counted(["-m", "torch_bottleneck.harness", encode_plan(plan), case])
    # One frame more than without a trial: the wrapper of zero_grad, from which a compiled step returns.
    check_counts(alone, watched, case, frames=2)
    facts = msgspec.json.decode((tmp_path / "run" / "main" / "trial.json").read_bytes(), type=TrialFacts)
    assert {applied.state for applied in facts.applied} == {"not applied"}
    if case != "step":
        # The scalar given to backward, of every step up to the end of the timed ones.
        assert facts.losses == pytest.approx(alone["losses"][: len(facts.losses)], rel=1e-6)
        assert len(facts.losses) > 10
