"""What is tried, in which order, with which figures."""

from __future__ import annotations

import msgspec
import pytest
from unit.reporters.sample import sample

from torch_bottleneck.catalog.registry import FIXES, by_id
from torch_bottleneck.errors import UsageError
from torch_bottleneck.model.fix import Suggestion
from torch_bottleneck.verify.wishes import candidates_from, candidates_of, parse_wish


def suggestion(fix: str, saves: float | None = None, **fields: object) -> Suggestion:
    values = {"title": fix, "finding": "BN101", "can_try": True, **fields}
    return Suggestion(
        fix=fix,
        saves_ms=saves,
        predicted_ms=100 - saves if saves is not None else None,
        **values,  # type: ignore[arg-type]
    )


DIAGNOSIS = msgspec.structs.replace(
    sample(),
    suggestions=(
        suggestion("FX311", 10.0),
        suggestion("FX101", 40.0, options={"num_workers": 7}),
        suggestion("FX107", 90.0, can_try=False),
        suggestion("FX411", note=True),
        suggestion("FX106", 20.0, bound=True, options={"prefetch_factor": 8}),
    ),
    applicable=(suggestion("FX505"),),
)
TRUE_MS = DIAGNOSIS.step.true_ms


def test_options_follow_a_colon() -> None:
    wish = parse_wish("fx101:num_workers=8,persistent_workers=false")
    assert wish.fix == "FX101"
    assert wish.options == {"num_workers": 8, "persistent_workers": False}
    assert parse_wish("FX414:mode=max-autotune").options == {"mode": "max-autotune"}
    assert parse_wish("FX311").options == {}


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("FX999", "There is no fix 'FX999'"),
        ("FX107", "cannot be applied without editing"),
        ("FX101:num_workers", "is not an option"),
        ("FX101:=3", "is not an option"),
        ("", "There is no fix"),
    ],
)
def test_what_cannot_be_tried_is_refused_with_the_remedy(word: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_wish(word)


def test_a_fix_named_twice_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="named twice"):
        candidates_from(["FX311", "fx311"], None)


def test_suggestions_are_tried_by_predicted_gain_without_what_cannot_be_tried() -> None:
    found = candidates_of(DIAGNOSIS, everything=False)
    assert [c.fixes for c in found] == [("FX101",), ("FX106",), ("FX311",)]
    assert found[0].wishes[0].options == {"num_workers": 7}
    assert found[1].wishes[0].options == {"prefetch_factor": 8}
    assert found[1].row.bound
    assert TRUE_MS is not None
    assert found[0].row.predicted_ratio == pytest.approx(TRUE_MS / 60)


def test_everything_also_means_notes_and_what_answers_no_finding() -> None:
    found = [c.fixes[0] for c in candidates_of(DIAGNOSIS, everything=True)]
    assert found == ["FX101", "FX106", "FX311", "FX411", "FX505"]


def test_a_named_fix_takes_its_prediction_and_the_run_s_figures_unless_told_otherwise() -> None:
    (found,) = candidates_from(["FX101"], DIAGNOSIS)
    assert found.wishes[0].options == {"num_workers": 7}
    (found,) = candidates_from(["FX101:num_workers=2"], DIAGNOSIS)
    assert found.wishes[0].options == {"num_workers": 2}
    assert found.row.predicted_ms == 60.0
    (found,) = candidates_from(["FX101"], None)
    assert found.row.predicted_ratio is None
    assert found.row.title == "Give the DataLoader enough workers"


def test_every_option_that_a_patch_reads_can_be_given_and_no_other() -> None:
    import inspect
    import re

    from torch_bottleneck.harness.trials.patches import PATCHES

    for fix, kind in PATCHES.items():
        # What a table makes is called by its fix, and has no source of its own.
        written = [c for c in kind.__mro__ if "harness.trials.patches" in c.__module__ and c.__name__ != fix]
        source = "".join(map(inspect.getsource, written))
        read = set(re.findall(r'self\.option\("(\w+)"', source))
        assert set(by_id(fix).options) <= read, fix
    every = "".join(inspect.getsource(inspect.getmodule(kind) or kind) for kind in PATCHES.values())
    known = {name for fix in FIXES for name in fix.options}
    assert set(re.findall(r'\.option\("(\w+)"', every)) == known


def test_a_bound_weighs_less_than_a_prediction_as_in_the_diagnosis() -> None:
    """Compiling, at best 1.09x, took the time in which workers, predicted 1.06x, would have been proven."""
    given = (suggestion("FX414", 50.0, bound=True), suggestion("FX101", 38.0))
    found = candidates_of(msgspec.structs.replace(DIAGNOSIS, suggestions=given), everything=False)
    assert [candidate.fixes for candidate in found] == [("FX101",), ("FX414",)]
