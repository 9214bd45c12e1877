"""One call is changed, and every other character of the source stays."""

from __future__ import annotations

import difflib

import pytest

from torch_bottleneck.verify.syntax import (
    CannotEditError,
    add_after_imports,
    drop_statement,
    set_keywords,
)


def is_loader(name: str) -> bool:
    return name == "DataLoader"


def changed(source: str, line: int, **keywords: object) -> str:
    return set_keywords(source, line, matches=is_loader, keywords=keywords)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = DataLoader(d)\n", "x = DataLoader(d, num_workers=4)\n"),
        ("x = DataLoader(d, 8)  # why\n", "x = DataLoader(d, 8, num_workers=4)  # why\n"),
        ("x = DataLoader(d, num_workers = 0)\n", "x = DataLoader(d, num_workers = 4)\n"),
        ("x = DataLoader(d, 8, True, None, None, 1)\n", "x = DataLoader(d, 8, True, None, None, 4)\n"),
        ("x = data.DataLoader(\n    d,\n    batch_size=8,\n)\n",
         "x = data.DataLoader(\n    d,\n    batch_size=8,\n    num_workers=4,\n)\n"),
        ("x = DataLoader(\n    d\n)\n", "x = DataLoader(\n    d,\n    num_workers=4\n)\n"),
        ("x = DataLoader(\n    d,\n)\n", "x = DataLoader(\n    d,\n    num_workers=4,\n)\n"),
        ("x = DataLoader(\n    d,  # data\n    8,  # size\n)\n",
         "x = DataLoader(\n    d,  # data\n    8,  # size\n    num_workers=4,\n)\n"),
        ("x = DataLoader()\n", "x = DataLoader(num_workers=4)\n"),
        ("x = wrap(DataLoader(d), DataSet(e))\n", "x = wrap(DataLoader(d, num_workers=4), DataSet(e))\n"),
    ],
)  # fmt: skip
def test_a_keyword_is_set_in_the_style_of_the_call(before: str, after: str) -> None:
    assert changed(before, 1, num_workers=4) == after


def test_any_line_of_the_call_finds_it_and_only_its_lines_change() -> None:
    source = "# head\n\nx = DataLoader(\n    d,  # data\n    batch_size=8,\n)\n\ty = 'kept'\n".replace(
        "\t", ""
    )
    for line in (3, 4, 5, 6):
        result = changed(source, line, num_workers=4)
        added = [text for text in difflib.ndiff(source.splitlines(), result.splitlines()) if text[0] in "+-"]
        assert added == ["+     num_workers=4,"]


def test_a_contradicting_keyword_is_taken_away() -> None:
    source = "o = AdamW(p, lr=1e-3, foreach=False)\n"
    result = set_keywords(
        source, 1, matches=lambda name: name == "AdamW", keywords={"fused": True}, drop=("foreach",)
    )
    assert result == "o = AdamW(p, lr=1e-3, fused=True)\n"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("x = DataLoader(d, **options)\n", "gets \\*\\*options"),
        ("x = DataLoader(*a)\n", "gets \\*arguments"),
        ("x = Other(d)\n", "no such call"),
        ("x = DataLoader(d); y = DataLoader(e)\n", "2 such calls"),
        ("def broken(:\n", "cannot be parsed"),
    ],
)
def test_what_is_not_known_to_the_letter_is_refused(source: str, why: str) -> None:
    with pytest.raises(CannotEditError, match=why):
        changed(source, 1, num_workers=4)


def test_a_statement_is_dropped_and_a_block_never_left_empty() -> None:
    source = "for x in y:\n    step()\n    torch.cuda.empty_cache()  # why\nend()\n"
    result = drop_statement(source, 3, matches=lambda name: name == "empty_cache")
    assert result == "for x in y:\n    step()\nend()\n"
    alone = "if x:\n    torch.cuda.empty_cache()\nend()\n"
    result = drop_statement(alone, 2, matches=lambda name: name == "empty_cache")
    assert compile(result, "x", "exec")
    assert "pass" in result
    with pytest.raises(CannotEditError, match="more than the call"):
        drop_statement("x = torch.cuda.empty_cache()\n", 1, matches=lambda name: name == "empty_cache")


def test_a_statement_goes_behind_the_imports() -> None:
    source = '"""Doc."""\nimport os\nimport torch\nfrom torch import nn\n\nx = 1\n'
    result = add_after_imports(source, ['torch.set_float32_matmul_precision("high")'])
    assert result.splitlines()[3:7] == [
        "from torch import nn",
        "",
        'torch.set_float32_matmul_precision("high")',
        "",
    ]


@pytest.mark.parametrize(
    ("source", "result"),
    [
        ("import torch as t\nf()\n", "import torch as t\n\nimport torch\ntorch.x = 1\nf()\n"),
        ("import torch.nn\nf()\n", "import torch.nn\n\ntorch.x = 1\nf()\n"),
        ('"""Doc."""\nf()\n', '"""Doc."""\n\nimport torch\ntorch.x = 1\nf()\n'),
        ("f()\n", "import torch\ntorch.x = 1\nf()\n"),
        (
            "import torch\ntry:\n    import a\nexcept ImportError:\n    a = None\nimport b\n"
            "def main(): ...\nimport late\n",
            "import torch\ntry:\n    import a\nexcept ImportError:\n    a = None\nimport b\n\n"
            "torch.x = 1\ndef main(): ...\nimport late\n",
        ),
    ],
)
def test_a_statement_comes_before_anything_runs_and_has_what_it_needs(source: str, result: str) -> None:
    assert add_after_imports(source, ["torch.x = 1"]) == result


def test_several_calls_in_a_line_are_changed_where_all_are_meant() -> None:
    source = "x, y = x.to(d), y.to(d)\n"
    result = set_keywords(
        source, 1, matches=lambda name: name == "to", keywords={"non_blocking": True}, each=True
    )
    assert result == "x, y = x.to(d, non_blocking=True), y.to(d, non_blocking=True)\n"
