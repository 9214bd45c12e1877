"""What a verification starts from: a run folder says how its ranks came to be."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from torch_bottleneck.cli.verify_source import find_source, launcher_words
from torch_bottleneck.errors import InputError, UsageError
from torch_bottleneck.model.run import Run


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
