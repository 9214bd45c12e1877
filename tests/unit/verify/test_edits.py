"""The edits that keep winning fixes: shown as a diff, written only over what git can bring back."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from torch_bottleneck.errors import InputError
from torch_bottleneck.model.fix import Beside
from torch_bottleneck.model.run import SourceSite
from torch_bottleneck.model.verify import Applied, RunRecord, Verification
from torch_bottleneck.verify.edits import joined_diff, with_edits, write_edits

SOURCE = """\
import torch
from torch.utils.data import DataLoader

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
loader = DataLoader(
    data,
    batch_size=4,
)
for x in loader:
    loss = model(x.to("cuda")).sum()
    torch.cuda.empty_cache()
    optimizer.zero_grad(set_to_none=False)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.write_text(SOURCE)
    return file


def applied(fix: str, script: Path, *lines: int, **values: Any) -> Applied:
    sites = [SourceSite(file=str(script), line=line) for line in lines]
    return Applied(fix=fix, state="applied", count=1, sites=sites, values=values)


def verification(script: Path, *found: Applied) -> Verification:
    return Verification(
        script="train.py",
        cwd=str(script.parent),
        combination=tuple(a.fix for a in found),
        runs=(RunRecord(number=1, applied=list(found)),),
    )


def patched(script: Path, diff: str) -> str:
    file = script.parent / "fix.diff"
    file.write_text(diff)
    done = subprocess.run(
        ["git", "apply", "--unsafe-paths", file.name],
        cwd=script.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return script.read_text()


def test_several_edits_of_one_file_become_one_diff_that_applies(script: Path) -> None:
    state = with_edits(
        verification(
            script,
            applied("FX101", script, 6, num_workers=4, persistent_workers=True),
            applied("FX311", script, 5, fused=True),
            applied("FX301", script),
            applied("FX103", script, 11, 6, non_blocking=True, pin_memory=True),
            applied("FX204", script, 12),
            applied("FX313", script, 13, set_to_none=True),
        )
    )
    assert [edit.reason for edit in state.edits if edit.reason] == []
    text = patched(script, joined_diff(state.edits, root=script.parent))
    assert 'torch.set_float32_matmul_precision("high")' in text
    assert "lr=1e-3, fused=True)" in text
    assert (
        "    batch_size=4,\n    num_workers=4,\n    persistent_workers=True,\n    pin_memory=True,\n)" in text
    )
    assert 'x.to("cuda", non_blocking=True)' in text
    assert "empty_cache" not in text
    assert "zero_grad(set_to_none=True)" in text
    compile(text, "train.py", "exec")


def test_a_call_of_the_collector_goes_and_one_iterator_is_kept(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import gc\n\nfor step in range(9):\n    x = next(iter(loader))\n    gc.collect()\n    train(x)\n"
    )
    state = with_edits(verification(script, applied("FX113", script, 4), applied("FX518", script, 5)))
    assert [edit.reason for edit in state.edits] == ["", ""]
    assert patched(script, joined_diff(state.edits, root=tmp_path)) == (
        "import gc\n\nimport itertools\n\n"
        "batches = itertools.chain.from_iterable(itertools.repeat(loader))  # pass after pass\n"
        "for step in range(9):\n    x = next(batches)\n    train(x)\n"
    )


def test_each_edit_shows_its_own_diff_and_place(script: Path) -> None:
    (edit,) = with_edits(verification(script, applied("FX311", script, 5, fused=True))).edits
    assert edit.where is not None
    assert edit.where.line == 5
    assert "+optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)" in edit.diff
    assert edit.diff.startswith("--- a/train.py\n+++ b/train.py\n")


@pytest.mark.parametrize(
    ("fix", "lines", "why"),
    [
        ("FX414", (11,), "the name that the model is called by"),
        ("FX412", (11,), "no call of torch.compile"),
        ("FX101", (), "no line of your code"),
        ("FX101", (4,), "no such call"),
        ("FX311", (99,), "no such call"),
    ],
)
def test_what_is_not_known_to_the_letter_is_told_in_words(
    fix: str, lines: tuple[int, ...], why: str, script: Path
) -> None:
    found = applied(fix, script, *lines, num_workers=4, fused=True)
    (edit,) = with_edits(verification(script, found)).edits
    assert edit.diff == ""
    assert why in edit.reason
    assert edit.code
    assert edit.what


@pytest.mark.parametrize("blocks", [False, True])
def test_a_model_of_which_only_blocks_were_compiled_is_not_edited_as_a_whole(
    script: Path, *, blocks: bool
) -> None:
    found = applied("FX414", script, 11, called={f"{script}:11": "model"}, blocks=blocks)
    (edit,) = with_edits(verification(script, found)).edits
    assert ("+model.compile()" in edit.diff) != blocks
    assert ("parts of the model" in edit.reason) == blocks


@pytest.mark.parametrize(
    ("values", "call", "why"),
    [
        ({"memory_format": "torch.channels_last_3d"}, "model.to(memory_format=torch.channels_last_3d)", ""),
        ({}, "", "the memory_format that was set is not known"),
    ],
)
def test_a_model_takes_the_format_that_its_weights_took(
    script: Path, values: dict[str, Any], call: str, why: str
) -> None:
    (edit,) = with_edits(verification(script, applied("FX310", script, 11, called="model", **values))).edits
    assert call in edit.diff and edit.reason == why


def test_a_file_that_is_gone_is_no_crash(script: Path) -> None:
    script.unlink()
    (edit,) = with_edits(verification(script, applied("FX311", script, 5, fused=True))).edits
    assert "cannot be read" in edit.reason


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def test_writing_is_refused_without_a_clean_copy_in_git(script: Path) -> None:
    state = with_edits(verification(script, applied("FX311", script, 5, fused=True)))
    with pytest.raises(InputError, match="not under git"):
        write_edits(state.edits)
    git(script.parent, "init", "-q")
    with pytest.raises(InputError, match="not under git"):
        write_edits(state.edits)
    git(script.parent, "add", ".")
    git(script.parent, "commit", "-qm", "x")
    script.write_text(f"{SOURCE}# more\n")
    with pytest.raises(InputError, match="uncommitted"):
        write_edits(state.edits)
    assert script.read_text() == f"{SOURCE}# more\n"
    script.write_text(SOURCE)
    assert write_edits(state.edits) == [script]
    assert "fused=True" in script.read_text()


def test_an_edit_that_the_source_has_already_is_told_as_such(script: Path) -> None:
    script.write_text("o = torch.optim.AdamW(p, fused=True)\n")
    (edit,) = with_edits(verification(script, applied("FX311", script, 1, fused=True))).edits
    assert edit.already
    assert not edit.diff


def test_what_was_pinned_for_the_run_is_left_to_do_by_hand(script: Path) -> None:
    found = applied("FX103", script, 11, non_blocking=True)
    (edit,) = with_edits(
        verification(script, msgspec.structs.replace(found, beside=(Beside.PINNED,), evidence="xyzzy"))
    ).edits
    assert ".pin_memory()" in edit.also


def test_without_a_winner_there_is_nothing_to_edit(script: Path) -> None:
    state = verification(script, applied("FX311", script, 5, fused=True))
    assert with_edits(msgspec.structs.replace(state, combination=())).edits == ()


@pytest.mark.parametrize(
    ("fix", "line", "values", "source", "expected"),
    [
        (
            "FX311",
            1,
            {"fused": True},
            "o = torch.optim.AdamW(Model().parameters(), lr=1)\n",
            "o = torch.optim.AdamW(Model().parameters(), lr=1, fused=True)\n",
        ),
        (
            "FX103",
            1,
            {"non_blocking": True},
            "x, y = x.to(device), y.to(device)\n",
            "x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)\n",
        ),
        (
            "FX412",
            1,
            {"mode": "reduce-overhead"},
            "m = torch.compile(m, options={'max_autotune': True})\n",
            "m = torch.compile(m, mode='reduce-overhead')\n",
        ),
    ],
)
def test_shapes_of_calls(
    tmp_path: Path, fix: str, line: int, values: dict[str, Any], source: str, expected: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    (edit,) = with_edits(verification(script, applied(fix, script, line, **values))).edits
    assert patched(script, joined_diff([edit], root=tmp_path)) == expected


def test_a_switch_that_the_script_sets_itself_is_not_set_above_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text('import torch\ntorch.set_float32_matmul_precision("highest")\n')
    (edit,) = with_edits(verification(script, applied("FX301", script))).edits
    assert edit.diff == ""
    assert "itself" in edit.reason


def test_a_module_is_edited_where_it_lies(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "train.py").write_text("import torch\n")
    state = msgspec.structs.replace(
        verification(tmp_path / "train.py", applied("FX301", package / "train.py")),
        script=None,
        module="package.train",
    )
    (edit,) = with_edits(state).edits
    assert edit.diff.startswith("--- a/package/train.py")


def test_what_a_graph_needed_of_the_gradients_is_told_beside_the_edit(script: Path) -> None:
    script.write_text("m = torch.compile(m)\n")
    found = msgspec.structs.replace(
        applied("FX412", script, 1, mode="reduce-overhead"),
        beside=(Beside.GRADIENTS_DROPPED,),
    )
    (edit,) = with_edits(verification(script, found)).edits
    assert "set_to_none=True" in edit.also
