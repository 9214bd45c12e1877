"""Loops of plain shapes are changed exactly; of others it is said why not, and nothing is changed."""

from __future__ import annotations

import ast
import difflib

import pytest

from torch_bottleneck.verify.reshape import around_call, around_passes, for_model, one_iterator
from torch_bottleneck.verify.syntax import CannotEditError, add_before_imports

AUTOCAST = 'torch.autocast("cuda", dtype=torch.bfloat16)'
HANDED = """\
import torch

def train(args, model, loader, optimizer):
    for x, y in loader:
        # the forward pass
        out = model(x)
        loss = criterion(out, y)  # why
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

def main():
    net = Net().to("cuda")
    if PARALLEL:
        net = Parallel(net)
    optimizer = torch.optim.SGD(net.parameters())
    for epoch in range(3):
        train(None, net, loader, optimizer)
"""
TRAINER = """\
class Trainer:
    def __init__(self):
        self.model = Net()
        self.optimizer = SGD(self.model.parameters())

    def step(self, x, y):
        loss = self.criterion(self.model(x), y)
        loss.backward()
"""
ACCUMULATED = """\
model = Net()
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y) / 4
    loss.backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
MICRO = """\
model = Net()
while True:
    for micro in range(steps):
        x, y = batch()
        loss = model(x, y)
        loss.backward()
    optimizer.step()
"""


def added(old: str, new: str) -> list[str]:
    ast.parse(new)
    return [line[2:] for line in difflib.ndiff(old.splitlines(), new.splitlines()) if line[0] == "+"]


def line_of(source: str, piece: str) -> int:
    return next(i for i, text in enumerate(source.splitlines(), 1) if piece in text)


def test_forward_and_loss_go_under_autocast_and_no_more() -> None:
    new = around_call(HANDED, line_of(HANDED, "model(x)"), called="model", context=AUTOCAST)
    assert added(HANDED, new) == [
        f"        with {AUTOCAST}:",
        "            out = model(x)",
        "            loss = criterion(out, y)  # why",
    ]
    assert "        # the forward pass\n        with torch.autocast" in new
    assert around_call(new, line_of(new, "model(x)"), called="model", context=AUTOCAST) == new, "once"


def test_a_method_of_the_model_is_called_where_it_was_made_for_certain() -> None:
    new = for_model(HANDED, line_of(HANDED, "model(x)"), called="model", method="compile()")
    assert added(HANDED, new) == ["    net.compile()"]
    assert "net = Parallel(net)\n    net.compile()\n    optimizer" in new
    assert for_model(new, line_of(new, "model(x)"), called="model", method="compile()") == new, "once"
    own = for_model(TRAINER, line_of(TRAINER, "self.model(x)"), called="self.model", method="compile()")
    assert added(TRAINER, own) == ["        self.model.compile()"]
    assert own.index("self.model.compile()") < own.index("self.optimizer =")


def test_the_images_are_converted_where_the_model_is_called() -> None:
    to = "to(memory_format=torch.channels_last)"
    new = for_model(MICRO, line_of(MICRO, "model(x"), called="model", method=to, inputs=f".{to}")
    assert added(MICRO, new) == [f"model.{to}", f"        loss = model(x.{to}, y)"]


def test_the_last_backward_pass_alone_synchronises() -> None:
    new = around_passes(ACCUMULATED, 3, called="model")
    assert (
        "with contextlib.nullcontext() if (i + 1) % 4 == 0 else model.no_sync():"
        in added(ACCUMULATED, new)[0]
    )
    assert "        loss.backward()\n    if (i + 1)" in new
    micro = around_passes(MICRO, 5, called="model")
    assert "nullcontext() if micro == steps - 1 else model.no_sync():\n            loss = model" in micro


@pytest.mark.parametrize(
    ("source", "line", "why"),
    [
        ("m = N()\nfor x in l:\n    m(x).sum().backward()\n", 3, "one statement"),
        ("m = N()\nfor x in l:\n    if m(x) > 0: pass\n", 3, "not in a statement of its own"),
        ("m = N()\ndef f(x):\n    return m(x)\n", 3, "the backward pass is not in the block"),
        ("m = N()\nouts = [m(x) for x in l]\n", 2, "not in a statement of its own"),
        ("m = N()\ny = m(m(x))\n", 2, "2 calls of m"),
        ("trainer.fit(m)\n", 1, "no call of m"),
    ],
)
def test_other_shapes_are_left_alone(source: str, line: int, why: str) -> None:
    with pytest.raises(CannotEditError, match=why):
        around_call(source, line, called="m", context=AUTOCAST)


@pytest.mark.parametrize(
    ("source", "line", "why"),
    [
        ("def f(m):\n    m(x)\nf(a)\nf(b)\n", 2, "handed to f.. in 2 ways"),
        ("def f():\n    m(x)\nif A:\n    m = N()\nf()\n", 2, "under a condition"),
        ("from models import m\nm(x)\n", 2, "no line was found that makes m"),
    ],
)
def test_a_model_that_is_made_nobody_knows_where_is_left_alone(source: str, line: int, why: str) -> None:
    with pytest.raises(CannotEditError, match=why):
        for_model(source, line, called="m", method="compile()")


def test_passes_whose_last_is_not_seen_are_left_alone() -> None:
    source = "for x in l:\n    loss = m(x)\n    loss.backward()\n    optimizer.step()\n"
    with pytest.raises(CannotEditError, match="last before the update is not seen"):
        around_passes(source, 2, called="m")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch\n", "import os\nos.environ['A'] = '1'\nimport torch\n"),
        (
            '"""Doc."""\nfrom __future__ import annotations\nimport os, sys\nimport numpy\n',
            '"""Doc."""\nfrom __future__ import annotations\nimport os, sys\n'
            "os.environ['A'] = '1'\nimport numpy\n",
        ),
    ],
)
def test_what_torch_reads_at_its_import_stands_before_it(source: str, expected: str) -> None:
    assert add_before_imports(source, "os.environ['A'] = '1'", needs="os") == expected


ONE_BATCH = """\
def train(trainloader, epochs):
    for epoch in range(epochs):
        # as many steps as before
        for step in range(100):
            inputs, targets = next(iter(trainloader))
            update(inputs, targets)
"""


def test_one_iterator_begins_before_the_outermost_loop_and_is_endless() -> None:
    new = one_iterator(ONE_BATCH, line_of(ONE_BATCH, "next("))
    assert added(ONE_BATCH, new) == [
        "    batches = itertools.chain.from_iterable(itertools.repeat(trainloader))  # pass after pass",
        "            inputs, targets = next(batches)",
    ]
    read: list[int] = []
    exec(
        f"import itertools\n{new}\ntrain([(1, 0), (2, 0), (3, 0)], 2)",
        {"update": lambda x, _y: read.append(x)},
    )
    assert read[:7] == [1, 2, 3, 1, 2, 3, 1]
    assert len(read) == 200


def test_one_iterator_begins_where_the_loader_is_the_same_in_each_round() -> None:
    per_epoch = ONE_BATCH.replace(
        "        # as", "        trainloader = DataLoader(data[epoch])\n        # as"
    )
    new = one_iterator(per_epoch, line_of(per_epoch, "next(")).splitlines()
    made = next(i for i, text in enumerate(new) if "repeat(trainloader)" in text)
    assert new[made - 1].strip() == "trainloader = DataLoader(data[epoch])"
    taken = ONE_BATCH.replace("step in", "batches in")
    assert "next(trainloader_batches)" in one_iterator(taken, line_of(taken, "next("))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("for i in range(3):\n    x = next(iter(a)), next(iter(b))\n", "2 next"),
        ("for i in range(3):\n    x = next(iter(make()))\n", "no next"),
        ("for x in loaders:\n    y = next(iter(x))\n", "the same x in each round"),
        ("def batch():\n    y = next(iter(x))\nwhile True:\n    batch()\n", "in its function"),
        ("for self in all:\n    y = next(iter(self.loader))\n", "the same self.loader"),
    ],
)
def test_one_iterator_is_left_to_the_user_where_it_would_read_something_else(
    source: str, reason: str
) -> None:
    with pytest.raises(CannotEditError, match=reason):
        one_iterator(source, line_of(source, "next("))
