"""The README shows a real report and speaks only of commands that exist."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import click
import forked
import pytest

from torch_bottleneck.cli.group import VERBS, cli
from torch_bottleneck.cli.main import run
from torch_bottleneck.model.documents import load_diagnosis
from torch_bottleneck.reporters import terminal

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PAGES = tuple((ROOT / "examples").glob("*.md"))
PRELUDE = """\
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(400, 4), batch_size=4)


def train_step(batch):
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


"""


def test_the_report_shown_is_a_real_one() -> None:
    (block,) = re.findall(r"<!-- demo -->\n```\n(.*?)```\n<!-- /demo -->", README, flags=re.DOTALL)
    for words in (
        "INPUT-BOUND",
        "Where the step goes",
        "What each cause costs",
        "What to change",
        "capture: ",
    ):
        assert words in block
    assert max(map(len, block.splitlines())) <= 80


def test_every_command_named_exists() -> None:
    named = set(re.findall(r"`?bottleneck ([a-z]+)\b", README)) - {"is"}
    assert named <= set(VERBS), named
    assert set(VERBS) <= named, "every verb deserves a line"


def test_every_option_named_exists() -> None:
    known: set[str] = set()
    for verb in VERBS:
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        for parameter in command.params:
            known |= set(parameter.opts)
    for option in re.findall(r"`(--[a-z-]+)`", README):
        assert option in known, option


@pytest.mark.parametrize("page", ["README.md", *sorted(f"examples/{p.name}" for p in PAGES)])
def test_links_into_the_repository_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        if not target.startswith("http"):
            assert (ROOT / page).parent.joinpath(target).exists(), target


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: page.name)
def test_reports_shown_on_the_pages_are_what_the_tool_prints(page: Path) -> None:
    for name, shown in re.findall(r"<!-- of (\w+) -->\n```\n(.*?)```", page.read_text(), flags=re.DOTALL):
        assert shown in terminal.render(load_diagnosis(ROOT / "reports" / "gallery" / name))


def test_the_job_shown_is_what_the_tool_prints_of_the_recorded_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (ROOT / "examples" / "whole-job.md").read_text()
    (shown,) = re.findall(r"<!-- watched -->\n```\n(.*?)```", page, flags=re.DOTALL)
    assert run(["report", str(ROOT / "tests" / "recorded" / "watched" / "run")]) == 0
    assert set(shown.splitlines()) <= set(capsys.readouterr().out.splitlines())


def test_every_command_on_the_pages_is_one_that_is_understood() -> None:
    lines = [line for page in PAGES for line in page.read_text().splitlines()]
    shown = [line for line in lines if line.startswith("bottleneck ")]
    assert len(shown) >= 6
    for line in shown:
        _, verb, *rest = shlex.split(line)
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        command.make_context(verb, [word.replace("examples/", f"{ROOT}/examples/") for word in rest])


def test_make_knows_the_two_commands() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def blocks(language: str) -> list[str]:
    """Return the blocks of one language; a fence that is open is closed by the next one."""
    fences = re.split(r"^```(\w*)\n", README, flags=re.MULTILINE)
    return [fences[i + 1] for i in range(1, len(fences), 4) if fences[i] == language]


def test_it_is_short() -> None:
    assert README.count("\n") < 250


def test_every_command_line_shown_is_one_that_is_understood() -> None:
    lines = [line for block in blocks("") for line in block.splitlines()]
    shown = [line for line in lines if line.startswith(("bottleneck ", "torchrun "))]
    assert len(shown) >= 3
    for line in shown:
        words = shlex.split(line.replace(" -m torch_bottleneck ", " bottleneck "))
        verb, *rest = words[words.index("bottleneck") + 1 :]
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        assert "train.py" in command.make_context(verb, rest).params["script"]


def run_block(piece: str, folder: Path, file: str, *words: str) -> str:
    (block,) = [text for text in blocks("python") if piece in text]
    (folder / file).write_text(PRELUDE + block)
    done = forked.run(
        [sys.executable, *words, file],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_loop_that_marks_its_steps_runs(tmp_path: Path) -> None:
    run_block("Harness(", tmp_path, "loop.py")
    assert (tmp_path / "runs" / "first" / "run.json").exists()


def test_what_the_page_of_notebooks_shows_runs(tmp_path: Path) -> None:
    page = (ROOT / "examples" / "notebook.md").read_text()
    shown = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert len(shown) == 2
    (tmp_path / "page.py").write_text("\n".join([PRELUDE, *shown]))
    done = forked.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step " in done.stdout
    assert (tmp_path / "reports" / "block" / "diagnosis" / "report.html").exists()


def test_the_test_of_a_step_runs(tmp_path: Path) -> None:
    plugins = (
        "-p",
        "no:cacheprovider",
        "-p",
        "no:bottleneck",
        "-p",
        "torch_bottleneck.pytest_plugin",
        "--bottleneck-update",
    )
    told = run_block("step_gate", tmp_path, "test_step.py", "-m", "pytest", *plugins)
    assert "train: wrote bottleneck_baselines/test_step/train.json" in told


def test_the_callbacks_shown_are_those_of_the_trainers_that_are_tested() -> None:
    (block,) = [text for text in blocks("python") if "trainer.add_callback" in text]
    compile(block, "README.md", "exec")
    tested = (ROOT / "tests" / "e2e" / "test_trainers.py").read_text()
    for name in re.findall(r"torch_bottleneck\.\w+\.Bottleneck\(", block):
        assert name in tested
