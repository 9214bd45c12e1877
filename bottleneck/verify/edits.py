"""The edits that make winning fixes permanent: where, what, and a diff where it is known to the letter.

In: a `Verification` with the lines at which patches acted. Out: `Edit`s; a joined diff; or files
written, which is refused where git holds no clean copy to go back to.
"""

from __future__ import annotations

import difflib
import os
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..catalog.registry import by_id
from ..errors import InputError
from ..model.run import JsonValue, SourceSite
from ..model.verify import Applied, Edit, Verification
from .syntax import CannotEditError, add_after_imports, drop_statement, set_keywords

__all__ = [
    "SAID_ALREADY",
    "changed_sources",
    "joined_diff",
    "must_be_clean",
    "script_file",
    "with_edits",
    "write_edits",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A keyword of a call."""

    matches: Callable[[str], bool]
    keywords: tuple[str, ...]
    drop: tuple[str, ...] = ()
    each: bool = False
    """Several such calls in a line are all meant."""


def _named(*names: str) -> Callable[[str], bool]:
    return lambda name: name in names


def _loader(name: str) -> bool:
    return name.endswith("Loader")


_OPTIMIZERS = (
    "ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS Muon NAdam RAdam RMSprop Rprop SGD SparseAdam"
)
_optimizer = _named(*_OPTIMIZERS.split())
_COPIES = _Call(matches=_named("to", "cuda"), keywords=("non_blocking",), each=True)
SAID_ALREADY = "the source says so already"
SET_TO_NONE = "gradients set to None"
"""What FX412 says of the scripts that it had to help (`harness/patches/graph_gradients.py`)."""

_WORKERS = _Call(matches=_loader, keywords=("num_workers", "persistent_workers"))
_COMPILE = _named("compile")
_CALLS: dict[str, tuple[_Call, ...]] = {
    "FX101": (_WORKERS,),
    "FX102": (_WORKERS,),
    "FX103": (
        _Call(matches=_loader, keywords=("pin_memory",)),
        _COPIES,
    ),
    "FX104": (_COPIES,),
    "FX105": (_Call(matches=_loader, keywords=("persistent_workers",)),),
    "FX106": (_Call(matches=_loader, keywords=("prefetch_factor",)),),
    "FX311": (_Call(matches=_optimizer, keywords=("fused",), drop=("foreach",)),),
    "FX312": (_Call(matches=_optimizer, keywords=("foreach",), drop=("fused",)),),
    "FX313": (_Call(matches=_named("zero_grad"), keywords=("set_to_none",)),),
    "FX406": (_Call(matches=_COMPILE, keywords=("fullgraph",)),),
    "FX407": (_Call(matches=_COMPILE, keywords=("dynamic",)),),
    "FX412": (_Call(matches=_COMPILE, keywords=("mode",), drop=("options",)),),
    "FX601": (
        _Call(
            matches=_named("DistributedDataParallel", "DDP"),
            keywords=("bucket_cap_mb", "gradient_as_bucket_view", "static_graph"),
        ),
    ),
}
_BY_COMPILING = frozenset({"FX406", "FX407", "FX412"})
_STATEMENTS = {
    "FX301": ('torch.set_float32_matmul_precision("high")',),
    "FX302": ("torch.backends.cudnn.allow_tf32 = True",),
    "FX308": ("torch.backends.cudnn.benchmark = True",),
}
_DROPPED = {"FX204": "empty_cache", "FX512": "set_detect_anomaly"}
"""Calls that go, where they are statements of their own."""
_SETTING = {
    "FX301": "set_float32_matmul_precision",
    "FX302": "cudnn.allow_tf32",
    "FX308": "cudnn.benchmark",
}


def with_edits(verification: Verification) -> Verification:
    """Return the verification with the edits that keep its winning combination."""
    edits = tuple(edit for fix in verification.combination for edit in _edits_of(fix, verification))
    return msgspec.structs.replace(verification, edits=edits)


def _edits_of(fix: str, verification: Verification) -> list[Edit]:
    entry = by_id(fix)
    applied = _last_applied(fix, verification)
    base = Edit(fix=fix, what=entry.what_to_change, code=entry.code)
    if fix in _STATEMENTS:
        script = script_file(Path(verification.cwd), verification.script, verification.module)
        if script is None:
            return [msgspec.structs.replace(base, reason="the script's own file is not known")]
        return [
            _with_diff(
                msgspec.structs.replace(base, where=SourceSite(file=str(script), line=1)), verification
            )
        ]
    sites = applied.sites if applied is not None else []
    if fix in _BY_COMPILING and not _calls_compile(sites):
        where = sites[0] if sites else None
        why = "the script has no call of torch.compile to change; put one around the model"
        return [msgspec.structs.replace(base, where=where, reason=why)]
    if fix not in _CALLS and fix not in _DROPPED:
        where = sites[0] if sites else None
        return [msgspec.structs.replace(base, where=where, reason="it is more than a keyword of a call")]
    if not sites:
        return [msgspec.structs.replace(base, reason="no line of yours was seen to make the call")]
    values = applied.values if applied is not None else {}
    if applied is not None and "pinned before the copy" in applied.evidence:
        base = msgspec.structs.replace(
            base,
            also="The tensors that are copied here were pinned for the run: call .pin_memory() on them"
            " where they are made.",
        )
    elif applied is not None and SET_TO_NONE in applied.evidence:
        base = msgspec.structs.replace(
            base,
            also="Gradients were dropped for the run where the script fills them with zeros: call"
            " zero_grad(set_to_none=True).",
        )
    return [
        _with_diff(msgspec.structs.replace(base, where=site, values=_plain(values)), verification)
        for site in sites
    ]


def _calls_compile(sites: Sequence[SourceSite]) -> bool:
    """Say whether one of these lines compiles something itself, instead of calling the model."""
    for site in sites:
        try:
            line = Path(site.file).read_text("utf-8").splitlines()[site.line - 1]
        except (OSError, UnicodeDecodeError, IndexError):
            continue
        if "compile" in line:
            return True
    return False


def _plain(values: dict[str, JsonValue]) -> dict[str, bool | int | float | str | None]:
    return {k: v for k, v in values.items() if isinstance(v, (bool, int, float, str)) or v is None}


def _last_applied(fix: str, verification: Verification) -> Applied | None:
    found = (a for run in reversed(verification.runs) for a in run.applied)
    return next((a for a in found if a.fix == fix and a.state == "applied"), None)


def script_file(cwd: Path, script: str | None, module: str | None) -> Path | None:
    """Return the file that is run; of a module, where it lies as seen from the working folder."""
    if script is not None:
        return cwd / script
    path = cwd.joinpath(*str(module).split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__main__.py") if file.is_file()), None)


def _with_diff(edit: Edit, verification: Verification) -> Edit:
    assert edit.where is not None
    file = Path(edit.where.file)
    try:
        old = _read(file)
        new = _edited(edit, old)
    except CannotEditError as error:
        return msgspec.structs.replace(edit, reason=str(error))
    if new == old:
        return msgspec.structs.replace(edit, reason=SAID_ALREADY)
    return msgspec.structs.replace(edit, diff=_diff(file, old, new, root=Path(verification.cwd)))


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
    if edit.fix in _STATEMENTS:
        statement = _STATEMENTS[edit.fix]
        # Set by the script itself, perhaps later than at its top: that line is the one to change.
        if _SETTING[edit.fix] in source:
            raise CannotEditError(f"the script sets {_SETTING[edit.fix]} itself: change that line")
        return add_after_imports(source, statement)
    if edit.fix in _DROPPED:
        return drop_statement(source, edit.where.line, matches=_named(_DROPPED[edit.fix]))
    problem = CannotEditError("no keyword to set is known")
    for call in _CALLS[edit.fix]:
        keywords = {name: edit.values[name] for name in call.keywords if name in edit.values}
        if not keywords:
            continue
        try:
            return set_keywords(
                source,
                edit.where.line,
                matches=call.matches,
                keywords=keywords,
                drop=call.drop,
                each=call.each,
            )
        except CannotEditError as error:
            problem = error
    raise problem


def changed_sources(edits: Iterable[Edit]) -> dict[Path, tuple[str, str]]:
    """Return file -> (old text, new text) with all edits made that have a diff."""
    changed: dict[Path, tuple[str, str]] = {}
    # From the bottom up, and what goes to the top last: lines above an edit keep their numbers.
    able = [edit for edit in edits if edit.diff and edit.where is not None]
    for edit in sorted(able, key=_from_below):
        assert edit.where is not None
        file = Path(edit.where.file)
        old, now = changed.get(file) or (_read(file),) * 2
        changed[file] = (old, _edited(edit, now))
    return changed


def _from_below(edit: Edit) -> tuple[bool, int]:
    return edit.fix in _STATEMENTS, -edit.where.line if edit.where is not None else 0


def joined_diff(edits: Sequence[Edit], *, root: Path | None = None) -> str:
    """Return one unified diff of all edits, with paths from `root` on (the working folder)."""
    root = root or Path.cwd()
    return "".join(_diff(file, old, new, root=root) for file, (old, new) in changed_sources(edits).items())


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
    """See that git could bring this file back.

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
            f"{file} is not under git, so an edit could not be taken back.",
            remedy="Use --patch FILE and apply it yourself.",
        )
    if status.stdout.strip():
        raise InputError(
            f"{file} has changes that are not committed.", remedy="Commit them first, or use --patch FILE."
        )
