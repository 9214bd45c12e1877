"""Trains a small network that spells names of ferries letter by letter."""

import os
import random
import re
import time
from dataclasses import dataclass

import torch

STEPS = int(os.environ.get("STEPS", "50000"))
BATCH = int(os.environ.get("BATCH", "32"))
WIDTH = int(os.environ.get("WIDTH", "200"))
CHARS = int(os.environ.get("CHARS", "10"))
BLOCK = 3
STRICT = os.environ.get("VARIANT", "a") == "a"

NOTES = (
    "float letters chars",
    "float (3*chars) width",
    "float width",
    "float width letters",
    "float letters",
)
KINDS = {"float": torch.float32, "int": torch.int64}
AXIS = re.compile(r"(?P<number>\d+)|(?P<name>[a-z]+)|\((?P<sum>[a-z0-9*+ ]+)\)")


@dataclass(frozen=True)
class Axis:
    number: str | None
    name: str | None
    sum: str | None

    def holds(self, length: int, sizes: dict[str, int]) -> bool:
        if self.number is not None:
            return int(self.number) == length
        found = sizes.setdefault(self.name, length) if self.name else eval(self.sum, {}, sizes)
        return found == length


def read_note(note: str) -> tuple[torch.dtype, list[Axis]]:
    """The kind and the axes of a note such as 'float batch 3 (2*width)'."""
    kind, _, rest = note.partition(" ")
    return KINDS[kind], [Axis(*found.groups()) for found in AXIS.finditer(rest)]


def fits(value: torch.Tensor, note: str, sizes: dict[str, int]) -> bool:
    """Whether the tensor has the kind and the axes of the note."""
    kind, axes = read_note(note)
    if not isinstance(value, torch.Tensor) or value.dtype is not kind or value.dim() != len(axes):
        return False
    return all(axis.holds(length, sizes) for axis, length in zip(axes, value.shape))


def noted(value: torch.Tensor, note: str, sizes: dict[str, int]) -> torch.Tensor:
    """The value, held to the note beside it."""
    if STRICT and not fits(value, note, sizes):
        raise TypeError(f"{tuple(value.shape)} of {value.dtype} is no {note!r}")
    return value


def ferry_names(count: int, seed: int) -> list[str]:
    dice = random.Random(seed)
    starts, ends = ["stor", "bjor", "hav", "lang", "sund"], ["oy", "fjell", "vik", "nes"]
    return [dice.choice(starts) + dice.choice("aeio") + dice.choice(ends) for _ in range(count)]


def letter_pairs(names: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    before, after = [], []
    for name in names:
        context = [0] * BLOCK
        for letter in name + ".":
            code = 0 if letter == "." else ord(letter) - 96
            before.append(context)
            after.append(code)
            context = context[1:] + [code]
    return torch.tensor(before), torch.tensor(after)


class Speller:
    def __init__(self, draw: torch.Generator) -> None:
        self.table = torch.randn(27, CHARS, generator=draw)
        self.w1 = torch.randn(BLOCK * CHARS, WIDTH, generator=draw) * 0.3
        self.b1 = torch.zeros(WIDTH)
        self.w2 = torch.randn(WIDTH, 27, generator=draw) * 0.1
        self.b2 = torch.zeros(27)
        self.parameters = [self.table, self.w1, self.b1, self.w2, self.b2]
        for parameter in self.parameters:
            parameter.requires_grad_()

    def loss(self, before: torch.Tensor, after: torch.Tensor, sizes: dict[str, int]) -> torch.Tensor:
        table = noted(self.table, "float letters chars", sizes)
        letters = noted(table[before], "float batch 3 chars", sizes)
        joined = noted(letters.view(len(before), -1), "float batch (3*chars)", sizes)
        w1 = noted(self.w1, "float (3*chars) width", sizes)
        inner = noted(joined @ w1, "float batch width", sizes)
        inner = noted(inner + noted(self.b1, "float width", sizes), "float batch width", sizes)
        hidden = noted(torch.tanh(inner), "float batch width", sizes)
        w2 = noted(self.w2, "float width letters", sizes)
        scores = noted(hidden @ w2, "float batch letters", sizes)
        scores = noted(scores + noted(self.b2, "float letters", sizes), "float batch letters", sizes)
        return noted(torch.nn.functional.cross_entropy(scores, after), "float", sizes)


def main() -> None:
    draw = torch.Generator().manual_seed(2147483647)
    torch.manual_seed(1)
    xs, ys = letter_pairs(ferry_names(2000, seed=1))
    speller = Speller(draw)
    warm = min(10, STEPS // 2)
    begin = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            begin = time.perf_counter()
        sizes: dict[str, int] = {}
        ix = noted(torch.randint(0, len(xs), (BATCH,), generator=draw), "int batch", sizes)
        xb = noted(xs[ix], "int batch 3", sizes)
        yb = noted(ys[ix], "int batch", sizes)
        loss = speller.loss(xb, yb, sizes)
        for parameter in speller.parameters:
            parameter.grad = None
        loss.backward()
        rate = 0.1 if step < STEPS // 2 else 0.01
        for parameter, note in zip(speller.parameters, NOTES):
            grad = noted(parameter.grad, note, sizes)
            parameter.data = noted(parameter.data - rate * grad, note, sizes)
    elapsed = time.perf_counter() - begin
    print(f"loss {loss.item():.6f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
