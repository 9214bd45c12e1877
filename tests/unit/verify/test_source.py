"""What a verification starts from: a run folder says how its ranks came to be."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from torch_bottleneck.errors import InputError, UsageError
from torch_bottleneck.model.documents import VERIFY_FILE, document_text
from torch_bottleneck.model.run import Run
from torch_bottleneck.model.verify import Protocol, Verification
from torch_bottleneck.runs.target import Target
from torch_bottleneck.verify.source import Source, find_source, launcher_words, resume_from


def run_folder(tmp_path: Path, *, world_size: int, launched: bool | None) -> Path:
    (tmp_path / "train.py").write_text("")
    run = Run(command=["train.py", "--lr", "1"], cwd=str(tmp_path), world_size=world_size, launched=launched)
    place = tmp_path / "run" / ("rank0" if world_size > 1 else "")
    place.mkdir(parents=True)
    (place / "run.json").write_bytes(msgspec.json.encode(run))
    return tmp_path / "run"


@pytest.mark.parametrize(("world_size", "launched"), [(1, False), (1, None), (2, False)])
def test_what_starts_its_own_ranks_needs_no_launcher(
    tmp_path: Path, world_size: int, launched: bool | None
) -> None:
    folder = run_folder(tmp_path, world_size=world_size, launched=launched)
    source = find_source(None, (str(folder),), launcher=())
    assert source.target.script == "train.py"
    assert source.target.args == ("--lr", "1")
    assert source.run_folder == folder


@pytest.mark.parametrize("launched", [True, None])
def test_ranks_of_a_launcher_need_it_again(tmp_path: Path, launched: bool | None) -> None:
    folder = run_folder(tmp_path, world_size=2, launched=launched)
    with pytest.raises(InputError, match="was run on 2 ranks"):
        find_source(None, (str(folder),), launcher=())
    assert find_source(None, (str(folder),), launcher=("torchrun",)).target.launcher == ("torchrun",)


def test_a_launcher_is_looked_for_before_anything_runs() -> None:
    assert launcher_words(None) == ()
    assert launcher_words("env A='b c'") == ("env", "A=b c")
    with pytest.raises(UsageError, match="no program"):
        launcher_words("nosuchprogram -x")
    with pytest.raises(UsageError, match="cannot be read"):
        launcher_words("env 'x")


@pytest.mark.parametrize(("asked", "expected"), [(None, 3), (8, 8), (2, 3)])
def test_resuming_keeps_to_the_pairs_it_was_begun_with_unless_told(
    tmp_path: Path, asked: int | None, expected: int
) -> None:
    """What three pairs have decided, though not narrowly, is not asked again by the default of six."""
    protocol = Protocol(pairs=3, max_pairs=3, budget_seconds=60.0)
    (tmp_path / VERIFY_FILE).write_text(document_text(Verification(script="t.py", protocol=protocol)))
    source = Source(target=Target(script="t.py"), verification=tmp_path)
    folder, state, _ = resume_from(source, None, budget_seconds=120.0, max_pairs=asked)
    assert (folder, state.protocol.max_pairs, state.protocol.budget_seconds) == (tmp_path, expected, 120.0)
    assert not state.complete
