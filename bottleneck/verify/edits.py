"""The edits that make the best fixes permanent: where, what, and a diff if it is known exactly.

In: a `Verification` with the lines at which patches acted. Out: `Edit`s; a joined diff; or files
written, which is refused where git holds no clean copy to go back to.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from ..catalog.registry import OWN, by_id
from ..errors import InputError
from ..files import named, path_of
from ..model.fix import (
    AroundEdit,
    CodeEdit,
    IteratorEdit,
    KeywordEdit,
    ModelEdit,
    PassesEdit,
    RemovalEdit,
    StatementEdit,
)
from ..model.run import JsonValue, SourceSite
from ..model.verify import CALLED, Applied, Edit, Verification
from .reshape import around_call, around_passes, for_model, one_iterator
from .syntax import CannotEditError, add_after_imports, add_before_imports, drop_statement, set_keywords

_NAMED = re.compile(r"^(?:---|\+\+\+|rename from|rename to) ([^\t\n]+)", re.MULTILINE)
_OWN_FIRST = "your own change is in that file: make this edit after it"


def names_in(diff: str) -> list[str]:
    """Return the files that a diff names, without the prefixes of git."""
    names = (re.sub(r"^[ab]/", "", name.strip()) for name in _NAMED.findall(diff))
    return [name for name in dict.fromkeys(names) if name != "/dev/null"]


def with_edits(verification: Verification) -> Verification:
    """Return the verification with the edits that keep its winning combination."""
    edits = [edit for fix in verification.combination for edit in _edits_of(fix, verification)]
    own = [name for edit in edits if edit.fix == OWN.id for name in names_in(edit.diff)]
    for number, edit in enumerate(edits):
        if edit.diff and edit.where is not None and any(path_of(edit.where.file).match(name) for name in own):
            edits[number] = msgspec.structs.replace(edit, diff="", reason=_OWN_FIRST)
    _changed, refused = _all_made(edits)
    for number, reason in refused.items():
        told = f"it cannot be made beside the other edits: {reason}"
        edits[number] = msgspec.structs.replace(edits[number], diff="", reason=told)
    return msgspec.structs.replace(verification, edits=tuple(edits))


def _edits_of(fix: str, verification: Verification) -> list[Edit]:
    entry = by_id(fix)
    if entry is OWN:
        diff = next((wish.diff for wish in verification.wishes if wish.diff), "")
        return [Edit(fix=fix, what=entry.what_to_change, diff=diff)]
    applied = _last_applied(fix, verification)
    base = Edit(fix=fix, what=entry.what_to_change, code=entry.code)
    if _statement_of(fix) is not None:
        script = script_file(path_of(verification.cwd), verification.script, verification.module)
        if script is None:
            return [msgspec.structs.replace(base, reason="the script's own file is not known")]
        return [
            _with_diff(
                msgspec.structs.replace(base, where=SourceSite(file=str(script), line=1)), verification
            )
        ]
    sites = applied.sites if applied is not None else []
    where = sites[0] if sites else None
    elsewhere = _without_call(entry.edits, sites)
    if elsewhere:
        return [msgspec.structs.replace(base, where=where, reason=elsewhere)]
    if not entry.edits:
        return [msgspec.structs.replace(base, where=where, reason="it takes more than a keyword of a call")]
    if applied is None or not sites:
        return [msgspec.structs.replace(base, reason="no line of your code was seen making the call")]
    also = " ".join(entry.by_hand[deed] for deed in applied.beside if deed in entry.by_hand)
    names = applied.values.get(CALLED)
    edits = []
    for site in sites:
        name = names.get(f"{site.file}:{site.line}", "") if isinstance(names, dict) else None
        values = _plain(applied.values if name is None else {**applied.values, CALLED: name})
        edit = msgspec.structs.replace(base, also=also, values=values, where=site)
        edits.append(_with_diff(edit, verification))
    return edits


def _statement_of(fix: str) -> StatementEdit | None:
    return next((edit for edit in by_id(fix).edits if isinstance(edit, StatementEdit)), None)


def _without_call(edits: Sequence[CodeEdit], sites: Sequence[SourceSite]) -> str:
    """Return what an edit says where none of these lines has its call, or "" where one has."""
    for edit in edits:
        if isinstance(edit, KeywordEdit) and edit.without_call:
            lines = [_line_at(site) for site in sites]
            if not any(call in line for call in edit.calls for line in lines):
                return edit.without_call
    return ""


def _line_at(site: SourceSite) -> str:
    try:
        return path_of(site.file).read_text("utf-8").splitlines()[site.line - 1]
    except (OSError, UnicodeDecodeError, IndexError):
        return ""


def _plain(values: dict[str, JsonValue]) -> dict[str, bool | int | float | str | None]:
    return {k: v for k, v in values.items() if isinstance(v, (bool, int, float, str)) or v is None}


def _last_applied(fix: str, verification: Verification) -> Applied | None:
    found = (a for run in reversed(verification.runs) for a in run.applied)
    return next((a for a in found if a.fix == fix and a.state == "applied"), None)


def script_file(cwd: Path, script: str | None, module: str | None) -> Path | None:
    """Return the file that is run; for a module, its file as found from the working folder."""
    if script is not None:
        return cwd / named(script)
    path = cwd.joinpath(*str(module).split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__main__.py") if file.is_file()), None)


def _with_diff(edit: Edit, verification: Verification) -> Edit:
    assert edit.where is not None
    file = path_of(edit.where.file)
    try:
        old = _read(file)
        new = _edited(edit, old)
    except CannotEditError as error:
        return msgspec.structs.replace(edit, reason=str(error))
    if new == old:
        return msgspec.structs.replace(edit, already=True, reason="the source already has it")
    return msgspec.structs.replace(edit, diff=_diff(file, old, new, root=path_of(verification.cwd)))


def _read(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CannotEditError(f"{file} cannot be read: {error}") from None


def _edited(edit: Edit, source: str) -> str:
    """Return the source with this edit made.

    Raises:
        CannotEditError: it is not known to the letter.
    """
    assert edit.where is not None
    line = edit.where.line
    problem = CannotEditError("the keyword to set is not known")
    for change in by_id(edit.fix).edits:
        if isinstance(change, StatementEdit):
            # Set by the script itself, perhaps later than at its top: that line is the one to change.
            if change.setting in source:
                raise CannotEditError(f"the script sets {change.setting} itself: change that line")
            if change.first:
                return add_before_imports(source, change.statement, needs=change.needs)
            return add_after_imports(source, [change.statement], needs=change.needs)
        if isinstance(change, (AroundEdit, ModelEdit, PassesEdit)):
            return _reshaped(change, source, line, edit.values)
        if isinstance(change, IteratorEdit):
            return add_after_imports(one_iterator(source, line), [], needs="itertools")
        if isinstance(change, RemovalEdit):
            return drop_statement(source, line, matches=_matcher((change.call,)))
        keywords = {name: edit.values[name] for name in change.keywords if name in edit.values}
        if not keywords:
            continue
        try:
            return set_keywords(
                source,
                line,
                matches=_matcher(change.calls),
                keywords=keywords,
                drop=change.drop,
                each=change.each,
            )
        except CannotEditError as error:
            problem = error
    raise problem


def _reshaped(
    change: AroundEdit | ModelEdit | PassesEdit, source: str, line: int, values: Mapping[str, JsonValue]
) -> str:
    """Return the source with its loop in another shape.

    Raises:
        CannotEditError: it is none of the plain ones.
    """
    called = values.get(CALLED)
    if not isinstance(called, str) or not called:
        raise CannotEditError("the name that the model is called by is not known")
    if isinstance(change, AroundEdit):
        changed = around_call(source, line, called=called, context=change.context.format(**values))
    elif isinstance(change, PassesEdit):
        changed = add_after_imports(around_passes(source, line, called=called), [], needs="contextlib")
    elif values.get(change.unless):
        raise CannotEditError("parts of the model were changed, whose names in the source are not known")
    else:
        given = ", ".join(f"{name}={values[name]!r}" for name in change.keywords if name in values)
        try:
            method, inputs = (
                text.format(keywords=given, **values) for text in (change.method, change.inputs)
            )
        except KeyError as error:
            # Noted by a version whose patch did not tell it.
            raise CannotEditError(f"the {error.args[0]} that was set is not known") from None
        changed = for_model(source, line, called=called, method=method, inputs=inputs)
    return changed if "torch." not in _added(source, changed) else add_after_imports(changed, [])


def _added(old: str, new: str) -> str:
    """Return the lines that are only in the new text."""
    return "\n".join(line for line in difflib.ndiff(old.splitlines(), new.splitlines()) if line[0] == "+")


def _matcher(calls: Sequence[str]) -> Callable[[str], bool]:
    return lambda name: any(fnmatchcase(name, call) for call in calls)


def changed_sources(edits: Iterable[Edit]) -> dict[Path, tuple[str, str]]:
    """Return file -> (old text, new text) with all edits made that have a diff."""
    return _all_made(edits)[0]


def _all_made(edits: Iterable[Edit]) -> tuple[dict[Path, tuple[str, str]], dict[int, str]]:
    """Make all edits that have a diff; return the texts, and by its number why an edit cannot join."""
    changed: dict[Path, tuple[str, str]] = {}
    refused: dict[int, str] = {}
    able = [(number, edit) for number, edit in enumerate(edits) if edit.diff and edit.where is not None]
    for number, edit in sorted(able, key=lambda item: _order(item[1])):
        assert edit.where is not None
        file = path_of(edit.where.file)
        try:
            old, now = changed.get(file) or (_read(file),) * 2
            where = msgspec.structs.replace(edit.where, line=_line_now(edit.where.line, old, now))
            changed[file] = (old, _edited(msgspec.structs.replace(edit, where=where), now))
        except CannotEditError as error:
            refused[number] = str(error)
    return changed, refused


def _line_now(line: int, old: str, now: str) -> int:
    """Return where a line stands after earlier edits, whatever it is indented by since."""
    before, after = ([text.strip() for text in source.splitlines()] for source in (old, now))
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for tag, first, last, there, end in matcher.get_opcodes():
        if not first < line <= last:
            continue
        if tag == "replace":
            return 1 + max(range(there, end), key=lambda i: _likeness(before[line - 1], after[i]))
        return there + line - first
    return line


def _order(edit: Edit) -> tuple[bool, bool, int]:
    """From below, the wider of two blocks first, and what goes to the top last."""
    wide = any(isinstance(change, PassesEdit) for change in by_id(edit.fix).edits)
    line = -edit.where.line if edit.where is not None else 0
    return _statement_of(edit.fix) is not None, not wide, line


def joined_diff(edits: Sequence[Edit], *, root: Path | None = None) -> str:
    """Return one unified diff of all edits, with paths from `root` on (the working folder)."""
    root = root or Path.cwd()
    made = [_diff(file, old, new, root=root) for file, (old, new) in changed_sources(edits).items()]
    return "".join([*(edit.diff for edit in edits if edit.fix == OWN.id), *made])


def _diff(file: Path, old: str, new: str, *, root: Path) -> str:
    name = os.path.relpath(file, root)
    if name.startswith(".."):
        name = str(file).lstrip("/")
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    # A last line without its newline must say so, or patch(1) refuses the diff.
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _likeness(text: str, other: str) -> float:
    return difflib.SequenceMatcher(None, text, other, autojunk=False).ratio()


def repository_of(folder: Path) -> Path:
    """Return the root of the git repository that a folder lies in; the folder itself where there is none."""
    return next((place for place in (folder, *folder.parents) if (place / ".git").exists()), folder)


def write_edits(edits: Sequence[Edit]) -> list[Path]:
    """Make all edits in the sources, and return the files changed.

    Raises:
        InputError: git holds no clean copy of one of them; then none is changed.
    """
    changed = changed_sources(edits)
    for file in changed:
        must_be_clean(file)
    for file, (_old, new) in changed.items():
        file.write_bytes(new.encode("utf-8"))
    return list(changed)


def must_be_clean(file: Path) -> None:
    """Check that git could restore this file.

    Raises:
        InputError: it could not.
    """

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["git", "-C", str(file.parent), *words, "--", file.name],  # noqa: S607 - the user's own git
            capture_output=True,
            text=True,
            check=False,
        )

    try:
        tracked = git("ls-files", "--error-unmatch").returncode == 0
        status = git("status", "--porcelain")
    except FileNotFoundError:
        tracked, status = False, None
    if not tracked or status is None or status.returncode:
        raise InputError(
            f"{file} is not under git, so an edit could not be undone.",
            remedy="Use --patch FILE and apply it yourself.",
        )
    if status.stdout.strip():
        raise InputError(f"{file} has uncommitted changes.", remedy="Commit them first, or use --patch FILE.")
