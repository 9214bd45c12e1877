"""Keeping what a stopped script saves on its way out away from the user's files.

`finally: torch.save(model, "last.pt")` is right when a training ends and a disaster when it was
stopped after fifty steps: it replaces a good checkpoint. From the stop on, saves go into
`diverted/` of the run folder, and files from before the run are neither overwritten nor deleted. What
goes through `torch.save` and the like into a file that was opened for writing before the stop is kept
apart as well: that file stays as the stop found it, and does not pass for the end of a training.

In: the store. Out: `diverted` (paths the script meant) and `notes`, both for the report. Functions
are replaced only once the stop is under way, in every module that holds them by name.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import os
import pathlib
import shutil
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...clocks import epoch_ns
from ..events.replacing import Replacements

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...runs.store import Store

Anything = Any
"""Arguments of functions that we pass through as they came."""

PATH_ARGUMENT = {
    ("torch", "save"): (1, "f"),
    ("safetensors.torch", "save_file"): (1, "filename"),
    ("safetensors.numpy", "save_file"): (1, "filename"),
    ("numpy", "save"): (0, "file"),
    ("numpy", "savez"): (0, "file"),
    ("numpy", "savez_compressed"): (0, "file"),
    ("numpy", "savetxt"): (0, "fname"),
    ("pickle", "dump"): (1, "file"),
}
"""Functions that write model state or results -> position and name of their path or file argument."""
CHECKPOINTS = (
    *(".pt", ".pth", ".pt2", ".ckpt", ".bin", ".safetensors", ".onnx"),
    *(".npy", ".npz", ".pkl", ".pickle", ".h5", ".msgpack", ".joblib"),
)
"""Endings of files with model state: libraries write those through `open`, not `torch.save(path)`."""
_plain_open = open
"""As it is before any guard."""


class SaveGuard:
    """Diverts saves once installed."""

    def __init__(self, store: Store) -> None:
        self.diverted: list[str] = []
        """Absolute paths that the script tried to write after the stop."""
        self.notes: list[str] = []
        self._store = store
        self._began = epoch_ns() / 1e9
        self._places: dict[str, Path] = {}
        self._replaced = Replacements()

    def install(self) -> None:
        """Put the guards in: called when the stop is about to be raised."""
        replacements: dict[int, tuple[object, object]] = {}

        def guard(original: Any, make: Callable[[Any], Any]) -> None:
            if original is not None:
                replacements[id(original)] = (original, functools.wraps(original)(make(original)))

        for (module, name), (position, keyword) in PATH_ARGUMENT.items():
            original = getattr(sys.modules.get(module), name, None)
            guard(original, functools.partial(self._saving, position, keyword))
        guard(builtins.open, self._opening)
        guard(os.replace, self._renaming)
        guard(os.rename, self._renaming)
        for copies in (os.link, shutil.copyfile, shutil.copy, shutil.copy2):
            guard(copies, self._copying)
        guard(os.remove, self._removing)
        guard(os.unlink, self._removing)
        guard(shutil.rmtree, self._removing_tree)
        self._replace_everywhere(replacements)

    def uninstall(self) -> None:
        """Put everything back."""
        self._replaced.undo()

    # -- guards ---------------------------------------------------------------------------------

    def _saving(self, position: int, keyword: str, original: Any) -> Callable[..., Any]:
        def save(*args: Anything, **kwargs: Anything) -> object:
            target = args[position] if len(args) > position else kwargs.get(keyword)

            def save_to(place: object) -> object:
                if len(args) > position:
                    return original(*args[:position], place, *args[position + 1 :], **kwargs)
                return original(*args, **{**kwargs, keyword: place})

            if not _is_path(target):
                path = _opened_for_writing(target)
                if path is None or not self._is_to_be_spared(path):
                    return original(*args, **kwargs)
                with self._place_of_open_file(path) as file:
                    return save_to(file)
            if self._is_ours(_absolute(target)):
                return original(*args, **kwargs)
            return save_to(str(self._divert(_absolute(target))))

        return save

    def _place_of_open_file(self, path: str) -> Any:
        """Open what stands in for a file that the script has open itself."""
        note = f"{path} was open for writing at the stop and is left as it was; its save is in the run folder"
        if note not in self.notes:
            self.notes.append(note)
        # Several objects may go into one file, one after the other.
        mode = "ab" if path in self._places else "wb"
        return _plain_open(self._divert(path), mode)

    def _opening(self, original: Any) -> Callable[..., Any]:
        def open(  # noqa: A001 - stands in for it
            file: Anything, mode: str = "r", *args: Anything, **kwargs: Anything
        ) -> object:
            if _is_path(file):
                path = _absolute(file)
                kept = self._places.get(path)
                if ("w" in mode or "x" in mode) and self._is_to_be_spared(path):
                    file = self._divert(path)
                elif "r" in mode and kept is not None and kept.exists():
                    # What it believes to have saved it may read back: a checksum, a copy.
                    file = kept
            return original(file, mode, *args, **kwargs)

        return open

    def _renaming(self, original: Any) -> Callable[..., Any]:
        def rename(src: Anything, dst: Anything, **kwargs: Anything) -> object:
            if not (_is_path(src) and _is_path(dst)) or kwargs:
                return original(src, dst, **kwargs)
            source, target = _absolute(src), _absolute(dst)
            kept = self._places.get(source)
            if kept is not None and kept.exists():
                # The usual way to save safely: write beside it, then rename over it.
                self.diverted.remove(source)
                return original(kept, self._divert(target))
            if self._is_to_be_spared(target):
                return shutil.move(source, self._divert(target)) and None
            return original(src, dst)

        return rename

    def _copying(self, original: Any) -> Callable[..., Any]:
        def copy(src: Anything, dst: Anything, **kwargs: Anything) -> object:
            kept = self._places.get(_absolute(src)) if _is_path(src) and _is_path(dst) else None
            if kept is None or not kept.exists():
                return original(src, dst, **kwargs)
            # The best of its checkpoints is a copy of, or a link to, the last one.
            target = _absolute(dst)
            if os.path.isdir(target):  # noqa: PTH112 - as below
                target = os.path.join(target, os.path.basename(_absolute(src)))  # noqa: PTH118, PTH119
            place = self._divert(target)
            place.unlink(missing_ok=True)
            original(kept, place, **kwargs)
            return dst if original is not os.link else None

        return copy

    def _removing(self, original: Any) -> Callable[..., Any]:
        def remove(path: Anything, *, dir_fd: int | None = None) -> object:
            if dir_fd is None and _is_path(path) and self._is_from_before(_absolute(path)):
                self._keep(_absolute(path))
                return None
            return original(path, dir_fd=dir_fd)

        return remove

    def _removing_tree(self, original: Any) -> Callable[..., Any]:
        def rmtree(path: Anything, *args: Anything, **kwargs: Anything) -> object:
            if _is_path(path) and self._holds_old_files(_absolute(path)):
                self._keep(_absolute(path))
                return None
            return original(path, *args, **kwargs)

        return rmtree

    # -- decisions ------------------------------------------------------------------------------

    def _divert(self, path: str) -> Path:
        """Return where `path` goes instead; its whole path is kept below `diverted/`."""
        place = self._store.path("diverted") / Path(path).relative_to(Path(path).anchor)
        place.parent.mkdir(parents=True, exist_ok=True)
        self._places[path] = place
        if path not in self.diverted:
            self.diverted.append(path)
        return place

    def _keep(self, path: str) -> None:
        note = f"kept {path}, which the script wanted to delete after the stop"
        if note not in self.notes:
            self.notes.append(note)

    def _is_ours(self, path: str) -> bool:
        return path.startswith((f"{self._store.working}{os.sep}", f"{self._store.folder}{os.sep}"))

    def _is_to_be_spared(self, path: str) -> bool:
        """Say whether writing this path is what must not happen: an old file, or a new checkpoint.

        A half-trained `last.ckpt` would be taken for a real one when training is resumed.
        """
        if self._is_ours(path):
            return False
        return Path(path).suffix in CHECKPOINTS or self._is_from_before(path)

    def _is_from_before(self, path: str) -> bool:
        """Say whether this is a regular file that the present run has not written."""
        if self._is_ours(path):
            return False
        try:
            facts = Path(path).stat()
        except OSError:
            return False
        return stat.S_ISREG(facts.st_mode) and facts.st_mtime < self._began

    def _holds_old_files(self, folder: str) -> bool:
        return any(
            self._is_from_before(os.path.join(root, name))  # noqa: PTH118 - os.walk speaks str
            for root, _, names in os.walk(folder)
            for name in names
        )

    # -- replacing ------------------------------------------------------------------------------

    def _replace_everywhere(self, replacements: dict[int, tuple[object, object]]) -> None:
        """Replace functions under every module-level name: `from torch import save` counts too."""
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "").startswith(__name__.partition(".")[0]):
                continue
            for name, value in list(getattr(module, "__dict__", {}).items()):
                found = replacements.get(id(value))
                if found is not None and found[0] is value:
                    self._put(module, name, found[1])
        # Python 3.10's pathlib holds them as class attributes.
        accessor = getattr(pathlib, "_NormalAccessor", None)
        for name, value in list(vars(accessor).items()) if accessor is not None else []:
            plain = value.__func__ if isinstance(value, staticmethod) else value
            found = replacements.get(id(plain))
            if found is not None and found[0] is plain:
                self._put(accessor, name, staticmethod(found[1]))  # type: ignore[arg-type]

    def _put(self, holder: Any, name: str, replacement: object) -> None:
        with contextlib.suppress(AttributeError, TypeError):
            self._replaced.set(holder, name, replacement)


def _opened_for_writing(file: object) -> str | None:
    """Return the path behind a file object that writes from the start; None for any other object.

    What is appended to holds a history, of logs mostly: the script may go on writing it.
    """
    mode, name = getattr(file, "mode", None), getattr(file, "name", None)
    if not (isinstance(mode, str) and isinstance(name, (str, bytes)) and isinstance(file, io.IOBase)):
        return None
    if "a" in mode or not file.writable():
        return None
    path = _absolute(name)
    return path if os.path.isfile(path) else None  # noqa: PTH113 - as above


def _is_path(value: object) -> bool:
    return isinstance(value, (str, bytes, os.PathLike))


def _absolute(path: Any) -> str:
    return os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - bytes and links stay as they are
