"""The user's own change: the program runs in a copy that has it, and the sources stay as they are."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from torch_bottleneck.errors import InputError, UsageError
from torch_bottleneck.model.run import SourceSite
from torch_bottleneck.model.verify import Applied, Edit, Outcome, RunRecord, Verification, Wish
from torch_bottleneck.runs.target import Target
from torch_bottleneck.verify.edits import joined_diff, with_edits
from torch_bottleneck.verify.own import with_change
from torch_bottleneck.verify.wishes import candidates_from, parse_wish

PARTS = {
    "train.py": "from lib.loss import loss\n",
    "lib/__init__.py": "",
    "lib/loss.py": "def loss():\n    return 1\n",
    "lib/model.py": "",
    "lib/__pycache__/loss.pyc": "old",
    "data/part/x.txt": "data",
}
DIFF = """\
--- a/lib/loss.py
+++ b/lib/loss.py
@@ -1,2 +1,2 @@
 def loss():
-    return 1
+    return 2
--- /dev/null
+++ b/lib/extra/new.py
@@ -0,0 +1 @@
+NEW = 1
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    root = tmp_path / "program"
    (tmp_path / "beside.txt").write_text("beside")
    for name, text in PARTS.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def moved(folder: Path, place: Path) -> Path:
    return place / folder.relative_to("/")


def changed(program: Path, place: Path, diff: str = DIFF, **target: object) -> tuple[Target, list[str]]:
    given = Target(**{"script": "train.py", "cwd": program, **target})  # type: ignore[arg-type]
    return with_change(given, diff, place)


def test_what_is_changed_is_a_copy_and_everything_else_a_link(program: Path, tmp_path: Path) -> None:
    target, files = changed(program, tmp_path / "there")
    there = target.cwd
    assert there == moved(program, tmp_path / "there")
    assert files == [str(there / "lib/loss.py"), str(there / "lib/extra/new.py")]
    assert (there / "lib/loss.py").read_text() == "def loss():\n    return 2\n"
    assert (there / "lib/extra/new.py").read_text() == "NEW = 1\n"
    assert not (there / "train.py").is_symlink(), "python looks for modules beside the script's real file"
    assert (there / "lib/model.py").is_symlink()
    assert (there / "data").readlink() == program / "data"
    assert (there / "../beside.txt").read_text() == "beside", "as ../data is given on many command lines"
    assert not (there / "lib/__pycache__").exists()
    for name, text in PARTS.items():
        assert (program / name).read_text() == text


def test_a_diff_is_from_the_root_of_the_repository_or_from_the_working_folder(
    program: Path, tmp_path: Path
) -> None:
    (tmp_path / ".git").mkdir()
    target, _ = changed(program, tmp_path / "here", script=str(program / "train.py"))
    assert target.cwd == moved(program, tmp_path / "here")
    assert target.script == str(target.cwd / "train.py")
    assert "return 2" in (target.cwd / "lib/loss.py").read_text()
    deeper = DIFF.replace("a/lib", "a/program/lib").replace("b/lib", "b/program/lib")
    target, _ = changed(program, tmp_path / "again", deeper)
    assert target.cwd is not None
    assert "return 2" in (target.cwd / "lib/loss.py").read_text()
    plain = DIFF.replace("a/lib", "lib").replace("b/lib", "lib")
    target, _ = changed(program, tmp_path / "plain", plain)
    assert target.cwd is not None
    assert "return 2" in (target.cwd / "lib/loss.py").read_text()


def test_git_itself_takes_it_where_the_program_is_a_repository(program: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(program)], check=True)
    target, _ = changed(program, tmp_path / "there")
    assert target.cwd is not None
    assert "return 2" in (target.cwd / "lib/loss.py").read_text()


def test_a_diff_that_does_not_apply_is_refused(program: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not apply"):
        changed(program, tmp_path / "there", DIFF.replace("return 1", "return 7"))


def test_a_file_is_named_in_place_of_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("faster.diff").write_text(DIFF)
    Path("notes.txt").write_text("nothing of the kind")
    (candidate,) = candidates_from(["faster.diff"], None)
    assert candidate.fixes == ("own",)
    assert candidate.row.title == "Your own change (faster.diff)"
    assert candidate.wishes[0].diff == DIFF
    with pytest.raises(InputError, match="not a unified diff"):
        parse_wish("notes.txt")
    for word in ("own", "missing.diff"):
        with pytest.raises(UsageError, match="There is no fix"):
            parse_wish(word)


def test_the_patch_of_the_pull_request_holds_it_and_no_other_edit_of_the_same_file(program: Path) -> None:
    seen = [Applied(fix="FX512", state="applied", count=1, sites=[site(program / "lib/loss.py")])]
    verification = Verification(
        tool_version="1",
        created="",
        cwd=str(program),
        script="train.py",
        combination=("own", "FX512"),
        wishes=(Wish(fix="own", diff=DIFF), Wish(fix="FX512")),
        outcomes=(Outcome(fixes=("own", "FX512"), title="Both"),),
        runs=(RunRecord(number=1, fixes=("own", "FX512"), folder="runs/1", applied=seen),),
    )
    (program / "lib/loss.py").write_text("import torch\ntorch.autograd.set_detect_anomaly(True)\n")
    own, other = with_edits(verification).edits
    assert own == Edit(fix="own", what="Apply your own diff.", diff=DIFF)
    assert not other.diff
    assert "your own change" in other.reason
    assert joined_diff((own, other), root=program) == DIFF


def site(file: Path) -> SourceSite:
    return SourceSite(file=str(file), line=2)
