"""What the parts of a watched job would be with a fix: arithmetic on recorded and on written figures."""

from __future__ import annotations

import msgspec
import pytest
from recorded.watched_job import recorded

from torch_bottleneck.catalog.job import with_fixes
from torch_bottleneck.catalog.registry import FIXES
from torch_bottleneck.model.watch import PARTS, AccountLine, Growth, Watch, WithFix
from torch_bottleneck.reporters.rows.watch import fix_lines, part_rows


def job(*lines: AccountLine, growth: tuple[Growth, ...] = ()) -> Watch:
    """An hour."""
    return Watch(
        command=["train.py"],
        cwd="",
        outcome="",
        exit_code=0,
        wall_s=3600.0,
        account=list(lines),
        explained_share=1.0,
        goodput=0.5,
        steps=2000,
        step_ms=100.0,
        best_ms=90.0,
        growth=list(growth),
        changes=[],
    )


def line(part: str, s: float, *, count: int = 10, again_s: float = 0.0) -> AccountLine:
    return AccountLine(part=part, s=s, share=s / 3600, count=count, ms_each=1e3 * s / count, again_s=again_s)


def fix_of(watch: Watch, part: str) -> WithFix | None:
    return next(line.with_fix for line in with_fixes(watch).account if line.part == part)


def test_validation_on_a_tenth_of_the_batches() -> None:
    watch = job(line("validation", 1116.0))
    found = fix_of(watch, "validation")
    assert found is not None
    assert found.s == pytest.approx(111.6)
    # The job is shorter then, and the share is of that.
    assert found.share == pytest.approx(111.6 / (3600 - 1004.4), rel=1e-4)
    assert fix_lines(with_fixes(watch)) == [
        "validation, every 200 steps: 31 % of the job (18 min 36 s); on a tenth of the batches 4.3 % "
        "(1 min 52 s, FX511)"
    ]


def test_of_a_rollout_no_batches_can_be_left_out() -> None:
    watch = msgspec.structs.replace(job(line("validation", 1116.0)), acts=True)
    assert fix_of(watch, "validation") is None
    assert [row.part for row in part_rows(watch)] == ["passes without gradients"]


def test_workers_that_stay_save_the_starts_after_the_first() -> None:
    found = fix_of(job(line("epoch starts", 500.0, again_s=450.0)), "epoch starts")
    assert found is not None
    assert (found.s, found.fix, found.at_best) == (50.0, "FX105", True)
    # Without workers, or with such that stay, there is nothing to save.
    assert fix_of(job(line("epoch starts", 500.0)), "epoch starts") is None


def test_growth_is_what_lies_beyond_its_beginning() -> None:
    steps = line("training steps", 300.0, count=2000)
    growth = Growth(
        what="losses", kind="tensors in list", objects_per_step=1.0,
        ms_per_1000_steps=50.0, low=45.0, high=55.0, step_ms=100.0, at_step=1000,
    )  # fmt: skip
    found = fix_of(job(steps, growth=(growth,)), "training steps")
    assert found is not None
    # 50 ms per 1,000 steps: the last of 2,000 takes 100 ms more, and all of them 50 ms in the mean.
    assert (found.s, found.fix) == (200.0, "FX211")
    hooks = fix_of(job(steps, growth=(msgspec.structs.replace(growth, kind="hooks"),)), "training steps")
    assert hooks is not None
    assert (hooks.s, hooks.fix, hooks.change) == (200.0, "", "without what grows")
    assert fix_of(job(steps), "training steps") is None


def test_what_gains_less_than_a_hundredth_of_the_job_has_no_fix() -> None:
    assert fix_of(job(line("checkpoints", 60.0)), "checkpoints") is None
    assert fix_of(job(line("checkpoints", 80.0)), "checkpoints") is not None
    assert fix_of(job(line("set-up", 2000.0)), "set-up") is None


def test_the_catalogue_names_parts_that_there_are() -> None:
    named = [shortens for fix in FIXES for shortens in fix.shortens]
    assert named
    assert {shortens.part for shortens in named} <= set(PARTS)
    assert all(0 < shortens.removes <= 1 for shortens in named)


def test_the_recorded_job() -> None:
    parts = {line.part: line for line in recorded().account}
    assert {part for part, line in parts.items() if line.with_fix is not None} == {
        "training steps", "validation", "between steps", "epoch starts",
    }  # fmt: skip
    starts = parts["epoch starts"]
    assert starts.count == 4
    assert 0.5 * starts.s < starts.again_s < starts.s
