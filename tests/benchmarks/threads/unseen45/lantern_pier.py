"""Trains a small classifier of page elements from rule scores, with the readings that its authors follow."""

import json
import os
import tempfile
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1600))

RULES = 48
PAGES = 110
CONFIDENCE = 0.5
REPORT_EVERY = 100


class ScalarWriter:
    """Keeps named numbers by step and writes them down now and then."""

    def __init__(self, folder, keep=500):
        self.path = os.path.join(folder, "scalars.jsonl")
        self.keep = keep
        self.waiting = []

    def add_scalar(self, name, value, step):
        self.waiting.append({"name": name, "value": float(value), "step": step})
        if len(self.waiting) >= self.keep:
            self.flush()

    def flush(self):
        """Append what waits to the file."""
        with open(self.path, "a", encoding="utf-8") as file:
            for entry in self.waiting:
                file.write(json.dumps(entry) + "\n")
        self.waiting = []


class Page:
    """The candidate elements of one page: scores by rule, and which of them is sought."""

    def __init__(self, direction):
        count = int(torch.randint(4, 13, (1,)))
        self.scores = torch.rand(count, RULES)
        strength = self.scores @ direction
        self.labels = (strength >= strength.max()).float().unsqueeze(1)
        if torch.rand(1).item() < 0.1:
            self.labels.zero_()


def make_corpus():
    """Pages to learn from and pages to validate with, made up."""
    direction = torch.randn(RULES)
    return [Page(direction) for _ in range(PAGES)], [Page(direction) for _ in range(PAGES)]


def tensors_from(pages):
    """One matrix of inputs and one of outputs for the elements of all pages."""
    return torch.cat([page.scores for page in pages]), torch.cat([page.labels for page in pages])


def make_classifier(width=1536):
    """Two hidden layers and one output, not yet squashed."""
    return nn.Sequential(
        nn.Linear(RULES, width), nn.ReLU(), nn.Linear(width, width // 4), nn.ReLU(), nn.Linear(width // 4, 1)
    )


def accuracy_per_element(model, x, y, predictions):
    """Share of the elements that fall on the right side of the confidence that is asked for."""
    if VARIANT == "a":
        successes = 0
        for index, scores in enumerate(x):
            if abs(model(scores).sigmoid().item() - y[index].item()) < CONFIDENCE:
                successes += 1
        return successes / len(x)
    return ((predictions.detach().sigmoid() - y).abs() < CONFIDENCE).float().mean().item()


@torch.no_grad()
def accuracy_per_page(model, pages):
    """Share of the pages whose highest element is the one that is sought."""
    right = 0
    scores = model(torch.cat([page.scores for page in pages])).flatten()
    parts = scores.split([len(page.scores) for page in pages])
    for page, part in zip(pages, parts):
        best = int(part.max(0).indices)
        if page.labels.any():
            right += int(page.labels[best].item() == 1.0)
        else:
            right += int(part[best].sigmoid().item() < CONFIDENCE)
    return right / len(pages)


class Patience:
    """Remembers the best validation loss and how long ago it was."""

    def __init__(self):
        self.best = float("inf")
        self.since = 0

    def update(self, value):
        """Out: whether this is the best value so far."""
        if value < self.best:
            self.best, self.since = value, 0
            return True
        self.since += 1
        return False


def positive_weight(y):
    """Weight of the sought elements, at most four."""
    return torch.clamp((len(y) - y.sum()) / y.sum(), max=4.0)


@torch.no_grad()
def validation_loss(model, loss_function, inputs, outputs):
    """Loss per element on the validation pages."""
    return loss_function(model(inputs), outputs).item() / len(outputs)


def learn(pages, validation_pages, writer):
    """The loop: all elements in each step. Out: last loss and the clock's reading."""
    x, y = tensors_from(pages)
    inputs, outputs = tensors_from(validation_pages)
    model = make_classifier()
    loss_function = nn.BCEWithLogitsLoss(reduction="sum", pos_weight=positive_weight(y))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-5)
    patience = Patience()
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        predictions = model(x)
        loss = loss_function(predictions, y)
        writer.add_scalar("loss", loss.item(), step)
        value = validation_loss(model, loss_function, inputs, outputs)
        writer.add_scalar("validation_loss", value, step)
        star = " *" if patience.update(value) else ""
        writer.add_scalar("training_accuracy", accuracy_per_element(model, x, y, predictions), step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % REPORT_EVERY == REPORT_EVERY - 1:
            share = accuracy_per_page(model, validation_pages)
            print(f"step {step + 1}: validation loss {value:.4f}, pages right {share:.3f}{star}")
    elapsed = time.perf_counter() - start
    writer.flush()
    return loss / len(y), 1000 * elapsed / (STEPS - warm)


def main():
    torch.manual_seed(0)
    pages, validation_pages = make_corpus()
    with tempfile.TemporaryDirectory() as folder:
        writer = ScalarWriter(folder)
        loss, milliseconds = learn(pages, validation_pages, writer)
        with open(writer.path, encoding="utf-8") as file:
            print(f"{sum(1 for _ in file)} scalars written")
    print(f"loss {loss.item():.5f}")
    print(f"{milliseconds:.2f} ms per step")


if __name__ == "__main__":
    main()
