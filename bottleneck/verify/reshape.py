"""Changes the shape of a training loop in Python source: a `with` around statements, a call for the model.

In: source text, the line at which a model is called and the name it is called by, what to change. Out: the
new text, or a sentence why it cannot be done. Only plain shapes are changed: what is not found exactly is
left to the user.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import libcst as cst

from .syntax import CannotEditError
from .tree import Tree, calls, parts, statements

_BACKWARD = "backward"
_DEEPEST = 4
"""Functions that a model may be handed through."""


def around_call(source: str, line: int, *, called: str, context: str) -> str:
    """Return the source with the call of a model, and what follows up to its backward, inside a `with`.

    `called` is the model's name there, like "self.net".

    Raises:
        CannotEditError: the statements are not plain.
    """
    tree = Tree.of(source)
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
    tree = Tree.of(source)
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
    tree = Tree.of(source)
    call = _call(tree, line, called)
    after, name = _made(tree, call, called)
    block = tree.parents[after]
    body = [*statements(block)]
    there = body.index(after) + 1
    known = there < len(body) and tree.code(body[there]).strip() == f"{name}.{method}"
    module = _with_input(tree.module, call, inputs) if inputs else tree.module
    # Known: added for another call of the same model.
    return module.code if known else _with_line(module, tree, after, f"{name}.{method}")


def one_iterator(source: str, line: int) -> str:
    """Return the source with `next(iter(loader))` taking from an iterator that begins before the loop.

    Raises:
        CannotEditError: there is no such call, or no loop around it in which the loader stays the same.
    """
    tree = Tree.of(source)
    found = [(call, loader) for call in tree.calls_at(line) if (loader := _first_of(tree, call))]
    if len(found) != 1:
        raise CannotEditError(f"line {line} has {len(found) or 'no'} next(iter(...))")
    ((call, loader),) = found
    loops = [up for up in tree.within_function(call) if isinstance(up, (cst.For, cst.While))]
    fixed = [loop for loop in loops if not _binds(tree, loop, loader)]
    if not fixed:
        raise CannotEditError(
            f"no loop around line {line}, in its function, has the same {loader} in each round"
        )
    loop, known = fixed[-1], {name.value for name in parts(tree.module, cst.Name)}
    names = ("batches", f"{loader.split('.')[-1]}_batches", f"{loader.split('.')[-1]}_passes")
    name = next((name for name in names if name not in known), None)
    if name is None:
        raise CannotEditError(f"all of {', '.join(names)} are names of something else")
    block = tree.parents[loop]
    body = list(statements(block))
    begun = cst.parse_statement(
        f"{name} = itertools.chain.from_iterable(itertools.repeat({loader}))  # pass after pass\n"
    )
    inside = loop.deep_replace(call, cst.parse_expression(f"next({name})"))
    assert isinstance(begun, cst.SimpleStatementLine)
    assert isinstance(inside, (cst.For, cst.While))
    # Empty lines stay above both, a comment with its loop.
    empty = list(itertools.takewhile(lambda line: line.comment is None, loop.leading_lines))
    place = body.index(loop)
    body[place : place + 1] = [
        begun.with_changes(leading_lines=empty),
        inside.with_changes(leading_lines=loop.leading_lines[len(empty) :]),
    ]
    return tree.with_body(block, body)


def _items(block: cst.With) -> list[cst.BaseExpression]:
    return [item.item for item in block.items]


def _with_line(module: cst.Module, tree: Tree, after: cst.CSTNode, text: str) -> str:
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


def _call(tree: Tree, line: int, called: str) -> cst.Call:
    found = [call for call in tree.calls_at(line) if tree.code(call.func) == called]
    if len(found) != 1:
        what = f"no call of {called}" if not found else f"{len(found)} calls of {called}"
        raise CannotEditError(f"line {line} has {what}")
    return found[0]


def _first_of(tree: Tree, call: cst.Call) -> str:
    """Return the name in `next(iter(name))`; "" for any other call."""
    value: cst.BaseExpression = call
    for function in ("next", "iter"):
        if not (isinstance(value, cst.Call) and tree.code(value.func) == function and len(value.args) == 1):
            return ""
        value = value.args[0].value
    return tree.code(value) if isinstance(value, (cst.Name, cst.Attribute)) else ""


def _binds(tree: Tree, loop: cst.For | cst.While, name: str) -> bool:
    """Say whether a loop gives a name, or what it is an attribute of, another value."""
    owners = {".".join(name.split(".")[: n + 1]) for n in range(name.count(".") + 1)}
    targets = [part.target for part in parts(loop, cst.For)] + [
        item.asname.name for item in parts(loop, cst.WithItem) if item.asname is not None
    ]
    named = {tree.code(part) for target in targets for part in (target, *parts(target, cst.Name))}
    return bool(owners & named) or any(_assignments(tree, loop, owner) for owner in owners)


def _statement(tree: Tree, node: cst.CSTNode) -> cst.SimpleStatementLine:
    for up in tree.above(node):
        if isinstance(up, (cst.Lambda, cst.CompFor, cst.GeneratorExp, cst.ListComp)):
            break
        if isinstance(up, cst.SimpleStatementLine):
            return up
        if isinstance(up, cst.BaseCompoundStatement):
            break
    raise CannotEditError(f"the call at line {tree.lines(node)[0]} is not in a statement of its own")


def _body(tree: Tree, statement: cst.CSTNode) -> list[cst.BaseStatement]:
    return list(statements(tree.parents[statement]))


def _calls_method(node: cst.CSTNode, name: str) -> bool:
    return any(isinstance(c.func, cst.Attribute) and c.func.attr.value == name for c in calls(node))


def _assigns(statement: cst.BaseStatement) -> bool:
    kinds = (cst.Assign, cst.AnnAssign, cst.AugAssign)
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[0], kinds)


def _is_loss(tree: Tree, statement: cst.SimpleStatementLine) -> bool:
    """Say whether a statement computes what a name calls the loss, or returns it."""
    (part, *_) = statement.body
    if isinstance(part, cst.Assign):
        return any("loss" in tree.code(target).lower() for target in part.targets)
    return False


def _wrapped(tree: Tree, inside: Sequence[cst.BaseStatement], context: str) -> str:
    """Return the source with neighbouring statements inside a `with`."""
    first = inside[0]
    block = tree.parents[first]
    body = list(statements(block))
    start = body.index(first)
    assert isinstance(first, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
    item = cst.WithItem(item=cst.parse_expression(context))
    made = cst.With(
        items=[item],
        body=cst.IndentedBlock(body=[first.with_changes(leading_lines=()), *inside[1:]]),
        leading_lines=first.leading_lines,
    )
    body[start : start + len(inside)] = [made]
    return tree.with_body(block, body)


def _updates_if(tree: Tree, body: Sequence[cst.BaseStatement], after: int) -> str | None:
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


def _last_round(tree: Tree, statement: cst.CSTNode) -> str | None:
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


def _made(tree: Tree, use: cst.CSTNode, name: str, depth: int = 0) -> tuple[cst.BaseStatement, str]:
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


def _assignments(tree: Tree, within: cst.CSTNode, name: str) -> list[cst.SimpleStatementLine]:
    return [
        line
        for line in parts(within, cst.SimpleStatementLine)
        if any(tree.code(target) == name for part in line.body for target in _targets(part))
    ]


def _targets(part: cst.BaseSmallStatement) -> list[cst.BaseExpression]:
    """Return what a statement assigns to."""
    targets: list[cst.BaseExpression] = []
    if isinstance(part, cst.Assign):
        targets = [target.target for target in part.targets]
    elif isinstance(part, cst.AnnAssign):
        targets = [part.target]
    return [
        element.value
        for target in targets
        for element in (target.elements if isinstance(target, cst.Tuple) else [cst.Element(target)])
    ]


def _handed(tree: Tree, function: cst.FunctionDef, name: str) -> tuple[cst.Call, str] | None:
    """Return the one call that hands a function's parameter over, and the name that it hands over."""
    names = [param.name.value for param in (*function.params.posonly_params, *function.params.params)]
    every = [*names, *(param.name.value for param in function.params.kwonly_params)]
    if name not in every:
        return None
    made = [c for c in calls(tree.module) if tree.code(c.func) == function.name.value]
    given = {(tree.scope(c), value): c for c in made if (value := _argument(tree, c, names, name))}
    if len(given) != 1:
        raise CannotEditError(f"{name} is handed to {function.name.value}() in {len(given)} ways")
    (((_scope, value), call),) = given.items()
    return call, value


def _argument(tree: Tree, call: cst.Call, names: Sequence[str], name: str) -> str:
    for i, arg in enumerate(call.args):
        if arg.star:
            break
        if (arg.keyword.value if arg.keyword is not None else names[i] if i < len(names) else "") == name:
            return tree.code(arg.value) if isinstance(arg.value, cst.Name) else ""
    return ""


def _plainly(tree: Tree, statement: cst.BaseStatement, use: cst.CSTNode | None) -> cst.BaseStatement:
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


def _is_main(tree: Tree, node: cst.CSTNode) -> bool:
    return isinstance(node, cst.If) and "__name__" in tree.code(node.test)
