"""Ways to damage a document that keep most of its structure.

In: a JSON-like value. Out: a strategy of values, then of bytes, with one to four things wrong with them.
"""

from __future__ import annotations

import copy
import io
import itertools
import json
import pickle
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

__all__ = ["as_json", "as_pickle", "as_toml", "damaged", "damaged_bytes"]

_DEEP = "\ue000deep:%d\ue000"
"""Stands for so many lists within each other, which no encoder would write."""
_DEPTHS = (1, 2, 63, 64, 65, 500, 2_000, 100_000)
_OTHERS: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 1.5, -0.0, "", "0", "x", "nan", "-1", "1e308", [], {}, [[]], [{}],
    {"": ""}, [None], "../../secret.json", "/etc/passwd", "a\x1b[31mb\x07\n", "\ud800", "\u202e\u0000",
)  # fmt: skip
_NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 7, 2**15, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**25,
    10**400, 1e-320, 1e15, 1e18, 1e19, 1e100, 1e154, 1e308, -1e308, float("inf"), float("nan"), -0.0, 0.1,
)  # fmt: skip
_KINDS = ("drop", "repeat", "reorder", "retype", "nest", "blow up", "swap", "rename", "copy")


def _place(value: Any, draw: Any) -> tuple[Any, ...]:
    """Walk down from the root; return the keys that lead to one thing in it."""
    keys: list[Any] = []
    while isinstance(value, (dict, list)) and value:
        number = draw(st.integers(0, len(value) - 1))
        keys.append(next(itertools.islice(value, number, None)) if isinstance(value, dict) else number)
        value = value[keys[-1]]
        if draw(st.integers(0, 3)) == 0:
            break
    return tuple(keys)


def _held(value: Any, key: Any) -> bool:
    if isinstance(value, dict):
        return key in value
    return isinstance(value, list) and isinstance(key, int) and key < len(value)


def _with(root: Any, keys: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
    """Return the value with the container at the end of these keys changed.

    Copies the containers on the way and shares all else: copying traces whole took longer than reading them.
    """
    if not _held(root, keys[0]):
        return root
    own = copy.copy(root)
    if len(keys) == 1:
        change(own, keys[0])
    else:
        own[keys[0]] = _with(own[keys[0]], keys[1:], change)
    return own


def _blown(value: Any, draw: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return draw(st.sampled_from(_NUMBERS))
    if isinstance(value, (int, float)):
        factor = draw(st.sampled_from([0, -1, 2, 1000, 1e-9, 1e9, 1e30]))
        try:
            return draw(st.sampled_from([*_NUMBERS, value * factor]))
        except OverflowError:  # a number that was blown up before
            return value * 10**9
    if isinstance(value, str):
        few = value[:1000]  # it may have been blown up before
        return draw(st.sampled_from([few * 1000, few + "x" * 100_000, "a::" * 5_000, "<" * 3_000, few * 2]))
    if isinstance(value, list):
        return value * draw(st.sampled_from([2, 10, 100])) if len(value) < 200 else value * 2
    if isinstance(value, dict):
        return value | {f"{key}{i}": item for i in range(20) for key, item in list(value.items())[:20]}
    return value


def _change(root: Any, draw: Any) -> Any:
    keys = _place(root, draw)
    if not keys:
        return root
    value = _at(root, keys)
    holder = _at(root, keys[:-1])
    kind = draw(st.sampled_from(_KINDS))
    if kind == "drop":
        return _with(root, keys, lambda own, key: own.__delitem__(key))
    if kind == "repeat" and isinstance(holder, list):
        count = draw(st.sampled_from([1, 3, 50]))
        return _with(root, keys, lambda own, key: own.__setitem__(slice(key, key), [value] * count))
    if kind == "rename" and isinstance(holder, dict):
        other = draw(st.sampled_from(["", "ph", "format", "x" * 1000, "\x1b[2J", f"{keys[-1]}2"]))
        return _with(root, keys, lambda own, key: own.__setitem__(other, own.pop(key)))
    if kind == "reorder" and isinstance(value, list):
        new = draw(st.permutations(value)) if len(value) < 20 else value[::-1]
    elif kind == "retype":
        new = draw(st.sampled_from(_OTHERS))
    elif kind == "nest":
        new = draw(st.sampled_from([[value], {"x": value}, *(_DEEP % depth for depth in _DEPTHS)]))
    elif kind == "blow up":
        new = _blown(value, draw)
    else:  # swap, copy, and whatever does not fit the place
        place = _place(root, draw)
        new = _at(root, place)
        if kind == "swap":
            root = _put(root, place, value)
    return _put(root, keys, new)


def _at(root: Any, keys: tuple[Any, ...]) -> Any:
    for key in keys:
        root = root[key]
    return root


def _put(root: Any, keys: tuple[Any, ...], value: Any) -> Any:
    return _with(root, keys, lambda own, key: own.__setitem__(key, value))


@st.composite
def damaged(draw: Any, value: Any) -> Any:
    """Return the value with one to four things changed; itself it stays as it was."""
    root = [value]
    for _ in range(draw(st.integers(1, 4))):
        root = _change(root, draw)
        if not root:
            return None
    return root[0]


@st.composite
def damaged_bytes(draw: Any, data: bytes) -> bytes:
    """Return bytes that are whole (mostly), cut off, or with a few wrong."""
    kind = draw(st.sampled_from(["whole"] * 6 + ["cut", "bytes", "doubled"]))
    if not data or kind == "whole":
        return data
    if kind == "cut":
        return data[: draw(st.integers(0, len(data) - 1))]
    if kind == "doubled":
        return data + data[draw(st.integers(0, len(data) - 1)) :]
    wrong = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        wrong[draw(st.integers(0, len(wrong) - 1))] = draw(st.sampled_from(b'\x00"\\{}[],:0\xff\x1bn'))
    return bytes(wrong)


def _deepened(text: str) -> str:
    if "\ue000" not in text and "\\ue000" not in text:
        return text
    for depth in _DEPTHS:
        for mark in (json.dumps(_DEEP % depth), json.dumps(_DEEP % depth, ensure_ascii=False)):
            text = text.replace(mark, "[" * depth + "]" * depth)
    return text


def as_json(value: Any) -> bytes:
    """Return the value as JSON text, NaN and all."""
    return _deepened(json.dumps(value)).encode()


def as_pickle(value: Any) -> bytes:
    """Return the value as a pickle, the same for equal values: nothing is told by its identity."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file)
    pickler.fast = True
    pickler.dump(value)
    return file.getvalue()


def as_toml(value: Any) -> bytes:
    """Return tables as TOML, all of them written inline."""

    def written(item: Any) -> str:
        if isinstance(item, dict):
            return (
                "{"
                + ", ".join(f"{json.dumps(str(key))} = {written(inner)}" for key, inner in item.items())
                + "}"
            )
        if isinstance(item, list):
            return "[" + ", ".join(map(written, item)) + "]"
        return "''" if item is None else json.dumps(item)

    if not isinstance(value, dict):
        return _deepened(f"x = {written(value)}\n").encode()
    return _deepened("".join(f"{json.dumps(str(k))} = {written(v)}\n" for k, v in value.items())).encode()
