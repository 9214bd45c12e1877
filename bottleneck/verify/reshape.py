"""Changes the shape of a training loop in Python source: a `with` around statements, a call for the model.

In: source text, the line at which a model is called and the name it is called by, what to change. Out: the
new text, or a sentence why it cannot be done. Only plain shapes are changed: what is not found exactly is
left to the user.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider

from .syntax import CannotEditError, parsed

_BACKWARD = "backward"
_DEEPEST = 4
"""Functions that a model may be handed through."""


@dataclass(frozen=True, slots=True)
class _Source:
    """A parsed file, with parents and lines of its nodes."""

    module: cst.Module
    parents: Mapping[cst.CSTNode, cst.CSTNode]
    places: Mapping[cst.CSTNode, Any]

    @classmethod
    def of(cls, text: str) -> _Source:
        wrapper = MetadataWrapper(parsed(text))
        found = wrapper.resolve_many([ParentNodeProvider, PositionProvider])
        parents: Any = found[ParentNodeProvider]
        return cls(wrapper.module, parents, found[PositionProvider])

    def lines(self, node: cst.CSTNode) -> tuple[int, int]:
        place = self.places[node]
        return place.start.line, place.end.line

    def code(self, node: cst.CSTNode) -> str:
        return self.module.code_for_node(node)

    def above(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield the nodes around a node, the nearest first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def scope(self, node: cst.CSTNode) -> cst.FunctionDef | cst.Module:
        """Return the function or module whose names a node uses."""
        found = next(up for up in self.above(node) if isinstance(up, (cst.FunctionDef, cst.Module)))
        assert isinstance(found, (cst.FunctionDef, cst.Module))
        return found


def around_call(source: str, line: int, *, called: str, context: str) -> str:
    """Return the source with the call of a model, and what follows up to its backward, inside a `with`.

    `called` is the model's name there, like "self.net".

    Raises:
        CannotEditError: the statements are not plain.
    """
    tree = _Source.of(source)
    call = _call(tree, line, called)
    if any(isinstance(up, cst.With) and context in map(tree.code, _items(up)) for up in tree.above(call)):
        return source  # an earlier call of the same step is, and what follows it
    first = _statement(tree, call)
    body = _body(tree, first)
    start = body.index(first)
    if _calls_method(first, _BACKWARD):
        raise CannotEditError(f"line {line} calls the model and its backward in one statement")
    end = next((i for i in range(start, len(body)) if _calls_method(body[i], _BACKWARD)), None)
    if end is None:
        if not _is_loss(tree, first):
            raise CannotEditError(
                f"the backward pass is not in the block of line {line}: what belongs to the loss is not known"
            )
        end = start + 1
    while end > start + 1 and not _assigns(body[end - 1]):
        end -= 1
    return _wrapped(tree, body[start:end], context)


def around_passes(source: str, line: int, *, called: str) -> str:
    """Return the source with gradients synchronised by the last backward pass before an update only.

    Raises:
        CannotEditError: which pass is the last is not seen.
    """
    tree = _Source.of(source)
    first = _statement(tree, _call(tree, line, called))
    body = _body(tree, first)
    start = body.index(first)
    last = next((i for i in range(start, len(body)) if _calls_method(body[i], _BACKWARD)), None)
    if last is None:
        raise CannotEditError(f"the backward pass is not in the block of line {line}")
    if not all(isinstance(statement, cst.SimpleStatementLine) for statement in body[start : last + 1]):
        raise CannotEditError(f"the statements between line {line} and the backward pass are not plain")
    updates = _updates_if(tree, body, last) or _last_round(tree, first)
    if updates is None:
        raise CannotEditError("which backward pass is the last before the update is not seen")
    return _wrapped(
        tree, body[start : last + 1], f"contextlib.nullcontext() if {updates} else {called}.no_sync()"
    )


def for_model(source: str, line: int, *, called: str, method: str, inputs: str = "") -> str:
    """Return the source with a method of the model called where it was made.

    `line` is that of a call of the model, `method` is with its arguments, like "compile()", and `inputs` is
    added to the first argument of the call.

    Raises:
        CannotEditError: where the model was made is not seen, or the call has no argument.
    """
    tree = _Source.of(source)
    call = _call(tree, line, called)
    after, name = _made(tree, call, called)
    block = tree.parents[after]
    body = [*_statements(block)]
    there = body.index(after) + 1
    known = there < len(body) and tree.code(body[there]).strip() == f"{name}.{method}"
    module = _with_input(tree.module, call, inputs) if inputs else tree.module
    # Known: added for another call of the same model.
    return module.code if known else _with_line(module, tree, after, f"{name}.{method}")


def _items(block: cst.With) -> list[cst.BaseExpression]:
    return [item.item for item in block.items]


def _with_line(module: cst.Module, tree: _Source, after: cst.CSTNode, text: str) -> str:
    """Return the code with a line behind a statement, indented alike."""
    lines = module.code.splitlines(keepends=True)
    first, last = tree.lines(after)
    indent = lines[first - 1][: len(lines[first - 1]) - len(lines[first - 1].lstrip())]
    if not lines[last - 1].endswith("\n"):
        lines[last - 1] += module.default_newline
    return "".join([*lines[:last], f"{indent}{text}{module.default_newline}", *lines[last:]])


def _with_input(module: cst.Module, call: cst.Call, inputs: str) -> cst.Module:
    args = [arg for arg in call.args if not arg.star]
    if not args or args[0].keyword is not None:
        raise CannotEditError("the model is not called with its images first")
    value = args[0].value
    if not isinstance(value, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)):
        raise CannotEditError("the model's first argument is an expression of its own")
    text = cst.Module([]).code_for_node(value)
    changed = args[0].with_changes(value=cst.parse_expression(f"{text}{inputs}"))
    found = module.deep_replace(args[0], changed)
    assert isinstance(found, cst.Module)
    return found


# -- finding things ------------------------------------------------------------------------------------


def _call(tree: _Source, line: int, called: str) -> cst.Call:
    class Finder(cst.CSTVisitor):
        def visit_Call(self, node: cst.Call) -> None:  # noqa: N802 - libcst's name
            first, last = tree.lines(node)
            if first <= line <= last and tree.code(node.func) == called:
                found.append(node)

    found: list[cst.Call] = []
    tree.module.visit(Finder())
    if len(found) != 1:
        what = f"no call of {called}" if not found else f"{len(found)} calls of {called}"
        raise CannotEditError(f"line {line} has {what}")
    return found[0]


def _statement(tree: _Source, node: cst.CSTNode) -> cst.SimpleStatementLine:
    for up in tree.above(node):
        if isinstance(up, (cst.Lambda, cst.CompFor, cst.GeneratorExp, cst.ListComp)):
            break
        if isinstance(up, cst.SimpleStatementLine):
            return up
        if isinstance(up, cst.BaseCompoundStatement):
            break
    raise CannotEditError(f"the call at line {tree.lines(node)[0]} is not in a statement of its own")


def _statements(block: cst.CSTNode) -> Sequence[cst.BaseStatement]:
    assert isinstance(block, (cst.IndentedBlock, cst.Module))
    body: Sequence[cst.BaseStatement] = block.body
    return body


def _body(tree: _Source, statement: cst.CSTNode) -> list[cst.BaseStatement]:
    return list(_statements(tree.parents[statement]))


def _calls(node: cst.CSTNode) -> Iterator[cst.Call]:
    class Finder(cst.CSTVisitor):
        def visit_Call(self, node: cst.Call) -> None:  # noqa: N802 - libcst's name
            found.append(node)

    found: list[cst.Call] = []
    node.visit(Finder())
    yield from found


def _calls_method(node: cst.CSTNode, name: str) -> bool:
    return any(isinstance(c.func, cst.Attribute) and c.func.attr.value == name for c in _calls(node))


def _assigns(statement: cst.BaseStatement) -> bool:
    kinds = (cst.Assign, cst.AnnAssign, cst.AugAssign)
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[0], kinds)


def _is_loss(tree: _Source, statement: cst.SimpleStatementLine) -> bool:
    """Say whether a statement computes what a name calls the loss, or returns it."""
    (part, *_) = statement.body
    if isinstance(part, cst.Assign):
        return any("loss" in tree.code(target).lower() for target in part.targets)
    return False


def _wrapped(tree: _Source, inside: Sequence[cst.BaseStatement], context: str) -> str:
    """Return the source with neighbouring statements inside a `with`."""
    first = inside[0]
    block = tree.parents[first]
    body = list(_statements(block))
    start = body.index(first)
    assert isinstance(first, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
    item = cst.WithItem(item=cst.parse_expression(context))
    made = cst.With(
        items=[item],
        body=cst.IndentedBlock(body=[first.with_changes(leading_lines=()), *inside[1:]]),
        leading_lines=first.leading_lines,
    )
    body[start : start + len(inside)] = [made]
    changed = (
        tree.module.deep_replace(block, block.with_changes(body=body))
        if block is not tree.module
        else (tree.module.with_changes(body=body))
    )
    assert isinstance(changed, cst.Module)
    return changed.code


def _updates_if(tree: _Source, body: Sequence[cst.BaseStatement], after: int) -> str | None:
    """Return the condition under which an optimizer steps behind a backward pass in its block."""
    for statement in body[after + 1 :]:
        if (
            isinstance(statement, cst.If)
            and statement.orelse is None
            and _calls_method(statement.body, "step")
        ):
            test = tree.code(statement.test)
            return test if isinstance(statement.test, (cst.Comparison, cst.Name)) else f"({test})"
        if not isinstance(statement, cst.SimpleStatementLine) or _calls_method(statement, "step"):
            return None
    return None


def _last_round(tree: _Source, statement: cst.CSTNode) -> str | None:
    """Return the condition of the last round of a loop behind which the optimizer steps."""
    loop = next((up for up in tree.above(statement) if isinstance(up, cst.BaseCompoundStatement)), None)
    if not isinstance(loop, cst.For) or loop.orelse is not None or not isinstance(loop.iter, cst.Call):
        return None
    block = _body(tree, loop)
    if not any(_calls_method(later, "step") for later in block[block.index(loop) + 1 :]):
        return None
    over = tree.code(loop.iter.func)
    if len(loop.iter.args) != 1:
        return None
    argument = loop.iter.args[0].value
    if over == "range" and isinstance(loop.target, cst.Name):
        return f"{loop.target.value} == {tree.code(argument)} - 1"
    if over == "enumerate" and isinstance(loop.target, cst.Tuple) and isinstance(argument, cst.Name):
        return f"{tree.code(loop.target.elements[0].value)} == len({argument.value}) - 1"
    return None


# -- where a model is made -----------------------------------------------------------------------------


def _made(tree: _Source, use: cst.CSTNode, name: str, depth: int = 0) -> tuple[cst.BaseStatement, str]:
    """Return the last statement that gives a name its value before it is used, and the name there."""
    if depth > _DEEPEST:
        raise CannotEditError(f"where {name} is made is too far from where it is called")
    scope = tree.scope(use)
    if name.startswith("self."):
        kind = next((up for up in tree.above(use) if isinstance(up, cst.ClassDef)), None)
        found = _assignments(tree, kind, name) if kind is not None else []
        if not found:
            raise CannotEditError(f"no line was found that makes {name}")
        return _plainly(tree, found[-1], None), name
    while True:
        found = [a for a in _assignments(tree, scope, name) if tree.scope(a) is scope]
        same = scope is tree.scope(use)
        if same:
            found = [a for a in found if tree.lines(a)[1] < tree.lines(use)[0]]
        if found:
            return _plainly(tree, found[-1], use if same else None), name
        if isinstance(scope, cst.Module):
            raise CannotEditError(f"no line was found that makes {name}")
        handed = _handed(tree, scope, name)
        if handed is not None:
            return _made(tree, handed[0], handed[1], depth + 1)
        scope = tree.scope(scope)


def _assignments(tree: _Source, within: cst.CSTNode, name: str) -> list[cst.SimpleStatementLine]:
    class Finder(cst.CSTVisitor):
        def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> None:  # noqa: N802
            for part in node.body:
                targets: list[cst.BaseExpression] = []
                if isinstance(part, cst.Assign):
                    targets = [target.target for target in part.targets]
                elif isinstance(part, cst.AnnAssign):
                    targets = [part.target]
                flat = [
                    e.value
                    for target in targets
                    for e in (target.elements if isinstance(target, cst.Tuple) else [cst.Element(target)])
                ]
                if any(tree.code(target) == name for target in flat):
                    found.append(node)

    found: list[cst.SimpleStatementLine] = []
    within.visit(Finder())
    return found


def _handed(tree: _Source, function: cst.FunctionDef, name: str) -> tuple[cst.Call, str] | None:
    """Return the one call that hands a function's parameter over, and the name that it hands over."""
    names = [param.name.value for param in (*function.params.posonly_params, *function.params.params)]
    every = [*names, *(param.name.value for param in function.params.kwonly_params)]
    if name not in every:
        return None
    calls = [c for c in _calls(tree.module) if tree.code(c.func) == function.name.value]
    given = {(tree.scope(c), value): c for c in calls if (value := _argument(tree, c, names, name))}
    if len(given) != 1:
        raise CannotEditError(f"{name} is handed to {function.name.value}() in {len(given)} ways")
    (((_scope, value), call),) = given.items()
    return call, value


def _argument(tree: _Source, call: cst.Call, names: Sequence[str], name: str) -> str:
    for i, arg in enumerate(call.args):
        if arg.star:
            break
        if (arg.keyword.value if arg.keyword is not None else names[i] if i < len(names) else "") == name:
            return tree.code(arg.value) if isinstance(arg.value, cst.Name) else ""
    return ""


def _plainly(tree: _Source, statement: cst.BaseStatement, use: cst.CSTNode | None) -> cst.BaseStatement:
    """Return the statement behind which the name has its value for certain.

    Raises:
        CannotEditError: it is made under a condition that the use does not share.
    """
    around = set(tree.above(use)) if use is not None else set()
    placed: cst.CSTNode = statement
    for up in tree.above(statement):
        if isinstance(up, (cst.FunctionDef, cst.ClassDef, cst.Module)) or up in around:
            break
        if isinstance(up, (cst.If, cst.Try, cst.For, cst.While)) and not _is_main(tree, up):
            if use is None:
                raise CannotEditError(f"line {tree.lines(statement)[0]} makes the model under a condition")
            placed = up
    # An `elif` is no statement of its block.
    while not isinstance(tree.parents[placed], (cst.IndentedBlock, cst.Module)):
        placed = tree.parents[placed]
    assert isinstance(placed, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
    return placed


def _is_main(tree: _Source, node: cst.CSTNode) -> bool:
    return isinstance(node, cst.If) and "__name__" in tree.code(node.test)
