"""What a verification starts from: a run folder says how its ranks came to be."""

from __future__ import annotations

import io
import shutil
import types
from pathlib import Path

import msgspec
import pytest

from torch_bottleneck.cli.main import run
from torch_bottleneck.errors import InputError, UsageError
from torch_bottleneck.model.documents import VERIFY_FILE, document_text
from torch_bottleneck.model.run import Run, ScriptOutcome
from torch_bottleneck.model.verify import Protocol, Verification
from torch_bottleneck.runs.layout import collect
from torch_bottleneck.runs.store import Store
from torch_bottleneck.runs.target import Target
from torch_bottleneck.verify.record import write_state
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


def test_a_folder_that_was_made_here_is_the_users_and_a_copy_is_not(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    store = Store(tmp_path / ".run.partial" / "main", run=Run(command=["train.py"], cwd=str(tmp_path)))
    store.finish(ScriptOutcome(how="finished"))
    folder = collect(tmp_path / ".run.partial", tmp_path / "run")
    assert find_source(None, (str(folder),), launcher=()).foreign == ""
    folder = folder.rename(tmp_path / "renamed")
    assert find_source(None, (str(folder),), launcher=()).foreign == ""
    shutil.copytree(folder, tmp_path / "copied")
    assert "copied here" in find_source(None, (str(tmp_path / "copied"),), launcher=()).foreign


def test_a_folder_of_another_users_is_foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_folder(tmp_path, world_size=1, launched=False)
    monkeypatch.setattr("os.getuid", lambda: folder.stat().st_uid + 1)
    assert "another user" in find_source(None, (str(folder),), launcher=()).foreign


def test_a_verification_that_was_copied_is_foreign(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    write_state(Verification(script="train.py", cwd=str(tmp_path)), tmp_path / "v")
    assert find_source(None, (str(tmp_path / "v"),), launcher=()).foreign == ""
    shutil.copytree(tmp_path / "v", tmp_path / "w")
    assert find_source(None, (str(tmp_path / "w"),), launcher=()).foreign != ""


def test_what_a_foreign_folder_names_is_run_only_if_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder(tmp_path, world_size=1, launched=False)
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert run(["verify", str(folder), "--fix", "FX311"]) == 2
    said = capsys.readouterr().err
    assert "may not be yours" in said
    assert "train.py --lr 1" in said
    assert "--yes" in said
    assert not (tmp_path / "ran").exists()
    assert run(["verify", str(folder), "--yes", "--fix", "FX999"]) == 2
    assert "no fix" in capsys.readouterr().err


@pytest.mark.parametrize(("answer", "code", "says"), [("n", 2, "Nothing was run"), ("y", 2, "no fix")])
def test_on_a_terminal_it_is_asked_once(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    code: int,
    says: str,
) -> None:
    folder = run_folder(tmp_path, world_size=1, launched=False)
    asked: list[str] = []
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("click.confirm", lambda text, err: asked.append(text) or answer == "y")
    assert run(["verify", str(folder), "--fix", "FX999"]) == code
    assert says in capsys.readouterr().err
    assert len(asked) == 1


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
