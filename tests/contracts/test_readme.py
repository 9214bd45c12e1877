"""The README shows a real report and speaks only of commands that exist."""

from __future__ import annotations

import re
from pathlib import Path

import click

from torch_bottleneck.cli.group import VERBS, cli

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


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


def test_links_into_the_repository_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target


def test_make_knows_the_two_commands() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
