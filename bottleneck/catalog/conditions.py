"""Evaluates a fix's conditions against the context of one run, and fills in its figures.

In: a fix's data and the flat mapping of facts (keys: analyzers/sections/context_keys.py). Out: True, False,
or None where the run did not measure the fact: unknown is neither; code and options with this run's figures.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from ..model.fix import Condition, Fix, Option
from ..model.run import JsonValue

REFERENCE = "@"
"""A value that starts with this names another key of the context to compare with."""

Value: TypeAlias = bool | int | str

_VERSION_KEYS = frozenset({"torch.version"})
_SLOT = re.compile(r"\{(?:(min|max)\()?([a-z0-9_., ]+?)\)?\}")


def evaluate(condition: Condition, context: Mapping[str, JsonValue]) -> bool | None:
    """Return whether the condition holds, or None when the run cannot tell.

    "known" never is None: it asks just that.
    """
    present = context.get(condition.key) is not None
    if condition.op == "known":
        return present
    if not present:
        return None
    right = condition.value
    if isinstance(right, str) and right.startswith(REFERENCE):
        right = context.get(right.removeprefix(REFERENCE))
        if right is None:
            return None
    return _compare(context[condition.key], condition.op, right, version=condition.key in _VERSION_KEYS)


def _compare(left: JsonValue, op: str, right: JsonValue, *, version: bool) -> bool | None:
    if version:
        return _ordered(_parts(left), op, _parts(right))
    if op == "==":
        return left == right
    if op == "!=":
        return left != right
    if op in {"in", "not in"}:
        assert isinstance(right, list), f"{op} needs a list, not {right!r}"
        return (left in right) == (op == "in")
    if op == "contains":
        return right in left if isinstance(left, (list, str)) else None
    if not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
        return None
    return _ordered((left,), op, (right,))


def _ordered(left: tuple[float, ...], op: str, right: tuple[float, ...]) -> bool:
    if op in {"==", "!="}:
        return (left == right) == (op == "==")
    if op in {"<", "<="}:
        return left < right or (op == "<=" and left == right)
    assert op in {">", ">="}, op
    return left > right or (op == ">=" and left == right)


def _parts(version: JsonValue) -> tuple[float, ...]:
    """Return a version as numbers: "2.10.0+cu126" -> (2, 10, 0)."""
    return tuple(float(part) for part in re.findall(r"\d+", str(version).partition("+")[0]))


def filled_options(options: Mapping[str, Option], context: Mapping[str, JsonValue]) -> dict[str, Value]:
    """Return what the patch is to be told: this run's figures where they are known, else the defaults."""
    values: dict[str, Value] = {}
    for name, option in options.items():
        text = _filled(option.of_run, context) if option.of_run else None
        if text is not None:
            values[name] = int(text) if option.kind == "int" else text
        elif option.default is not None:
            values[name] = option.default
    return values


def filled_code(fix: Fix, context: Mapping[str, JsonValue]) -> str:
    """Return the code of a fix with this run's figures, those of its options among them."""
    other = (code for condition, code in fix.other_code if evaluate(condition, context))
    code = fill(next(other, fix.code), fix.fills, context)
    for name, value in filled_options(fix.options, context).items():
        code = code.replace(f"{name}={fix.options[name].default!r}", f"{name}={value!r}")
    return code


def fill(code: str, fills: Mapping[str, str], context: Mapping[str, JsonValue]) -> str:
    """Put this run's figures into a fix's code, where all of them are known.

    `fills` maps text in `code` to the same with `{key}`, `{min(key, key)}` or `{max(key, key)}`.
    """
    for text, template in fills.items():
        filled = _filled(template, context)
        if filled is not None:
            code = code.replace(text, filled)
    return code


def _filled(template: str, context: Mapping[str, JsonValue]) -> str | None:
    values: list[str] = []
    for function, keys in _SLOT.findall(template):
        found = [context.get(key.strip()) for key in keys.split(",")]
        if not all(isinstance(value, (int, float, str)) for value in found):
            return None
        if function:
            numbers = [value for value in found if isinstance(value, (int, float))]
            values.append(str((min if function == "min" else max)(numbers)))
        else:
            values.append(str(found[0]))
    pieces = iter(values)
    return _SLOT.sub(lambda _: next(pieces), template)
