"""Ways to damage a document that keep most of its structure.

In: a JSON-like value. Out: a strategy of values, then of bytes, with one to four things wrong with them.
"""

from __future__ import annotations

import copy
import io
import json
import pickle
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


def _places(value: Any, draw: Any) -> tuple[Any, Any] | None:
    """Walk down from the root; return a container and the key of one thing in it."""
    found: tuple[Any, Any] | None = None
    while isinstance(value, (dict, list)) and value:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = keys[draw(st.integers(0, len(keys) - 1))]
        found = value, key
        value = value[key]
        if draw(st.integers(0, 3)) == 0:
            break
    return found


def _blown(value: Any, draw: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return draw(st.sampled_from(_NUMBERS))
    if isinstance(value, (int, float)):
        factor = draw(st.sampled_from([0, -1, 2, 1000, 1e-9, 1e9, 1e30]))
        return draw(st.sampled_from([*_NUMBERS, value * factor]))
    if isinstance(value, str):
        return draw(
            st.sampled_from([value * 1000, value + "x" * 100_000, "a::" * 5_000, "<" * 3_000, value * 2])
        )
    if isinstance(value, list):
        return value * draw(st.sampled_from([2, 10, 100])) if len(value) < 200 else value * 2
    if isinstance(value, dict):
        return value | {f"{key}{i}": item for i in range(20) for key, item in list(value.items())[:20]}
    return value


def _change(root: Any, draw: Any) -> None:
    place = _places(root, draw)
    if place is None:
        return
    holder, key = place
    kind = draw(st.sampled_from(_KINDS))
    value = holder[key]
    if kind == "drop":
        del holder[key]
    elif kind == "repeat" and isinstance(holder, list):
        count = draw(st.sampled_from([1, 3, 50]))
        holder[key:key] = [copy.deepcopy(value) for _ in range(count)]
    elif kind == "reorder" and isinstance(value, list):
        holder[key] = draw(st.permutations(value)) if len(value) < 20 else value[::-1]
    elif kind == "retype":
        holder[key] = copy.deepcopy(draw(st.sampled_from(_OTHERS)))
    elif kind == "nest":
        holder[key] = draw(st.sampled_from([[value], {"x": value}, *(_DEEP % depth for depth in _DEPTHS)]))
    elif kind == "blow up":
        holder[key] = _blown(value, draw)
    elif kind == "rename" and isinstance(holder, dict):
        holder[draw(st.sampled_from(["", "ph", "format", "x" * 1000, "\x1b[2J", f"{key}2"]))] = holder.pop(
            key
        )
    else:  # swap, copy, and whatever does not fit the place
        other = _places(root, draw)
        if other is None:
            return
        taken = copy.deepcopy(other[0][other[1]])
        if kind == "swap":
            other[0][other[1]] = copy.deepcopy(value)
        holder[key] = taken


@st.composite
def damaged(draw: Any, value: Any) -> Any:
    """Return the value with one to four things changed."""
    root = [copy.deepcopy(value)]
    for _ in range(draw(st.integers(1, 4))):
        _change(root, draw)
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
