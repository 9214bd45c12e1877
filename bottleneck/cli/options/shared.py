"""Options that several verbs share.

In: words of the command line. Out: option decorators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from ...reporters.base import FORMATS

Option = Callable[[Callable[..., Any]], Callable[..., Any]]


def is_given(ctx: click.Context, name: str) -> bool:
    """Return whether the user gave the option."""
    return ctx.get_parameter_source(name) is not ParameterSource.DEFAULT


def together(*options: Option) -> Option:
    """Return one decorator that adds these options in this order."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return add


module_option = click.option("-m", "module", metavar="MODULE", help="Run a module, as `python -m` does.")
format_option = click.option(
    "--format", "format_", type=click.Choice(list(FORMATS["Diagnosis"])), default="text", show_default=True
)
log_option = click.option(
    "--log",
    "tracker",
    type=click.Choice(["mlflow", "wandb"]),
    help="Log the figures and the report to a tracker of experiments, too.",
)
verbose_option = click.option(
    "-v", "--verbose", is_flag=True, help="Show all findings, evidence, kernels and settings."
)
quiet_option = click.option("-q", "--quiet", is_flag=True, help="No progress lines.")
