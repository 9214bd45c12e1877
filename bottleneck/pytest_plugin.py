"""A plugin for pytest: the fixture `step_gate` holds a training step against a baseline beside the test.

    def test_step(step_gate):
        with step_gate("train") as gate:
            for batch in gate.steps(loader):
                train_step(batch)

In: tests that use the fixture. Out: baselines in `bottleneck_baselines/` beside them, failures that say
what grew, and a section of the summary. pytest imports this file in every run: until the fixture is used
nothing but pytest is imported.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from .compare.in_test import StepGate

__all__ = ["pytest_addoption", "pytest_terminal_summary", "step_gate"]

FOLDER = "bottleneck_baselines"
_PROPERTY = "bottleneck"
_WIDTH = 100
_NAME = re.compile(r"[\w.=+-]+")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our option."""
    parser.getgroup("bottleneck").addoption(
        "--bottleneck-update",
        action="store_true",
        help=f"write the baselines of step_gate ({FOLDER}/ beside each test) anew",
    )


@pytest.fixture
def step_gate(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    record_property: Callable[[str, object], None],
) -> Callable[..., StepGate]:
    """Make gates, each a `with` block that holds its training step against a baseline beside the test."""
    from .compare.gate import WINDOWS
    from .compare.in_test import StepGate, fails
    from .compare.settings import find_settings
    from .errors import BottleneckError
    from .reporters.compare.terminal import render

    config, test = request.config, request.path
    update = bool(config.getoption("--bottleneck-update"))

    def make(name: str, /, **windows: int) -> StepGate:
        """Return the gate of one loop.

        Args:
            name: of its baseline; one for each loop of a file.
            windows: numbers of steps to skip (`warmup`), to time (`baseline_steps`), to trace (`steps`).
        """
        if not _NAME.fullmatch(name):
            raise pytest.UsageError(f"step_gate({name!r}): give a name of letters, digits and -_.=+")
        unknown = set(windows).difference(WINDOWS)
        if unknown:
            raise TypeError(f"step_gate() has no option {min(unknown)!r}")
        baseline = test.parent / FOLDER / test.stem / f"{name}.json"
        try:
            return StepGate(
                name,
                baseline=baseline,
                out=tmp_path_factory.mktemp("bottleneck") / "run",
                root=config.rootpath,
                update=update,
                settings=find_settings(config.rootpath),
                windows=windows,
                judge=judge,
            )
        except BottleneckError as error:
            message = str(error)
            if not update and not baseline.exists():
                message = (
                    f"step_gate({name!r}) has no baseline yet: run pytest with --bottleneck-update once."
                )
            pytest.fail(message, pytrace=False)

    def judge(gate: StepGate) -> None:
        from .compare.baseline_file import write_baseline

        inside = gate.baseline.is_relative_to(config.rootpath)
        where = gate.baseline.relative_to(config.rootpath) if inside else gate.baseline
        try:
            held = gate.hold()
            if update and held is not None:
                write_baseline(held.new_baseline, gate.baseline)
        except BottleneckError as error:
            pytest.fail(f"step_gate({gate.name!r}): {error}", pytrace=False)
        if held is None:
            record_property(_PROPERTY, f"{gate.name}: not held, another capture watches this process")
        elif update or held.comparison is None:
            record_property(_PROPERTY, f"{gate.name}: {'rewrote' if held.had_baseline else 'wrote'} {where}")
        elif fails(held.comparison, gate.settings):
            text = render(held.comparison, width=_WIDTH)
            pytest.fail(
                f"{text}\nbaseline: {where}\nthis run: {gate.folder}, for bottleneck analyze\n"
                f"If this is intended: pytest --bottleneck-update {request.node.nodeid!r}",
                pytrace=False,
            )
        elif held.comparison.outcome != "ok":
            record_property(_PROPERTY, f"{gate.name}: {held.comparison.headline}")

    return make


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what was written, and what could not be decided; with xdist the workers' reports tell it."""
    told = [
        f"{report.nodeid}  {text}"
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, text in report.user_properties
        if name == _PROPERTY
    ]
    if told:
        terminalreporter.section("bottleneck")
        for line in told:
            terminalreporter.line(line)
