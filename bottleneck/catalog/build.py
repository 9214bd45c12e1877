"""Short constructors in which the fix families are written down.

In: literal values. Out: the frozen structs of `model.fix`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from ..model.fix import Condition, KeywordEdit, Option, Source
from ..model.run import JsonValue

Op: TypeAlias = Literal["==", "!=", "<", "<=", ">", ">=", "in", "not in", "contains", "known"]

# Each page was looked up in the sources of PyTorch's documentation, newer than 2.12; moved ones redirect.
# Anchors are the sources' own labels where there are any: headings are reworded from release to release.
_DOCS = "https://docs.pytorch.org/docs/stable/"
_TUTORIALS = "https://docs.pytorch.org/tutorials/"


def given(key: str, op: Op, value: JsonValue, text: str) -> Condition:
    """Make a condition; on a run where `key` was not measured the fix is offered as "not checked"."""
    return Condition(key=key, op=op, value=value, text=text)


def seen(key: str, op: Op, value: JsonValue, text: str) -> tuple[Condition, Condition]:
    """Make a condition that is the fix's evidence: unmeasured, the fix is not suggested at all."""
    return (Condition(key=key, op="known", text=f"{key} was measured"), given(key, op, value, text))


def if_known(key: str) -> Condition:
    """Make the condition that `key` was measured."""
    return Condition(key=key, op="known", text=f"{key} was measured")


def docs(page: str, title: str, claim: str = "") -> Source:
    """Cite a page of the PyTorch documentation."""
    return Source(title=title, url=_DOCS + page, claim=claim)


def recipe(page: str, title: str, claim: str = "") -> Source:
    """Cite a PyTorch tutorial."""
    return Source(title=title, url=_TUTORIALS + page, claim=claim)


def paper(number: str, title: str, claim: str = "") -> Source:
    """Cite a paper on arXiv."""
    return Source(title=title, url=f"https://arxiv.org/abs/{number}", claim=claim)


def source(url: str, title: str, claim: str = "") -> Source:
    """Cite any other page."""
    return Source(title=title, url=url, claim=claim)


def in_trainer(library: str, code: str) -> tuple[Condition, str]:
    """Make the code where the trainer of a library owns the loop."""
    return given("loop.owner", "==", library, f"the loop is that of {library}"), code


def arguments(line: str) -> tuple[Condition, str]:
    """Make the code for the Trainer of Hugging Face: one argument of it."""
    code = f"""\
from transformers import TrainingArguments

arguments = TrainingArguments(
    output_dir="out",
    {line},
)"""
    return in_trainer("transformers", code)


def compile_with(keyword: str, *, drop: tuple[str, ...] = ()) -> KeywordEdit:
    """Make the edit of one keyword of torch.compile, which may not be called at all yet."""
    return KeywordEdit(
        calls=("compile",),
        keywords=(keyword,),
        drop=drop,
        without_call="the script has no call of torch.compile to change; put one around the model",
    )


COMPILER_OPTIONS = {
    "mode": Option(kind="str"),
    "dynamic": Option(kind="bool"),
    "backend": Option(kind="str"),
}
ON_GPU = given("device.kind", "in", ["cuda", "rocm"], "training runs on a GPU")
ON_CUDA = given("device.kind", "==", "cuda", "training runs on an NVIDIA GPU")
