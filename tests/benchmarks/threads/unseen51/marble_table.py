"""Answer questions about coloured shapes on a table with a relation network."""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1800))

SIZE = 32
OBJECTS = 6
COLOURS = torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0], [1.0, 0.6, 0], [0.6, 0.6, 0.6], [1.0, 1.0, 0]])
QUESTION = 11
ANSWERS = 8
BATCH = 32
HIDDEN = 128


def make_scenes(count, seed):
    """Images of six shapes, and one question about two of them for each image."""
    rng = np.random.default_rng(seed)
    images = torch.zeros(count, 3, SIZE, SIZE)
    questions = torch.zeros(count, QUESTION)
    answers = torch.zeros(count, dtype=torch.long)
    corners = rng.integers(0, SIZE - 5, (count, OBJECTS, 2))
    shapes = rng.integers(0, 2, (count, OBJECTS))
    for scene in range(count):
        for item in range(OBJECTS):
            top, left = corners[scene, item]
            patch = images[scene, :, top : top + 5, left : left + 5]
            patch[:] = COLOURS[item].view(3, 1, 1)
            if shapes[scene, item]:
                patch[:, ::4, ::4] = 0.0
        asked = int(rng.integers(0, OBJECTS))
        kind = int(rng.integers(0, 3))
        questions[scene, asked] = 1.0
        questions[scene, 6 + kind] = 1.0
        gaps = np.abs(corners[scene] - corners[scene, asked]).sum(axis=1).astype(float)
        gaps[asked] = np.nan
        if kind == 0:
            answers[scene] = int(shapes[scene, np.nanargmin(gaps)])
        elif kind == 1:
            answers[scene] = int(shapes[scene, np.nanargmax(gaps)])
        else:
            answers[scene] = 2 + int((shapes[scene] == shapes[scene, asked]).sum() - 1)
    return images, questions, answers


class SceneLoader:
    """Shuffled batches of scenes, pass after pass."""

    def __init__(self, scenes, batch, seed):
        self.scenes = scenes
        self.batch = batch
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self):
        count = len(self.scenes[0])
        while True:
            order = torch.randperm(count, generator=self.generator)
            for begin in range(0, count - self.batch + 1, self.batch):
                chosen = order[begin : begin + self.batch]
                yield tuple(part[chosen] for part in self.scenes)


class ConvInput(nn.Module):
    """Three strided convolutions that leave a grid of four by four cells."""

    def __init__(self, width=24):
        super().__init__()
        layers, channels = [], 3
        for _ in range(3):
            layers += [nn.Conv2d(channels, width, 3, stride=2, padding=1), nn.ReLU(), nn.BatchNorm2d(width)]
            channels = width
        self.layers = nn.Sequential(*layers)

    def forward(self, images):
        return self.layers(images)


class RelationNetwork(nn.Module):
    """Sums a network g over all pairs of cells, then answers with a network f."""

    def __init__(self, width=24, hidden=HIDDEN):
        super().__init__()
        self.conv = ConvInput(width)
        self.g_fc1 = nn.Linear(2 * (width + 2) + QUESTION, hidden)
        self.g_fc2 = nn.Linear(hidden, hidden)
        self.g_fc3 = nn.Linear(hidden, hidden)
        self.f_fc1 = nn.Linear(hidden, hidden)
        self.f_fc2 = nn.Linear(hidden, ANSWERS)
        rows = torch.arange(4).repeat_interleave(4)
        columns = torch.arange(4).repeat(4)
        self.register_buffer("coordinates", (torch.stack([rows, columns], dim=1) - 1.5) / 2.0)

    def relate(self, x):
        """The network g."""
        x = F.relu(self.g_fc1(x))
        x = F.relu(self.g_fc2(x))
        return F.relu(self.g_fc3(x))

    def forward(self, images, questions):
        grid = self.conv(images)
        batch, width = grid.shape[:2]
        cells = grid.view(batch, width, -1).permute(0, 2, 1)
        cells = torch.cat([cells, self.coordinates.expand(batch, -1, -1)], dim=2)
        count = cells.shape[1]
        if VARIANT == "a":
            total = 0
            for i in range(count):
                for j in range(count):
                    pair = torch.cat([cells[:, i], cells[:, j], questions], dim=1)
                    total = total + self.relate(pair)
        else:
            first = cells.unsqueeze(2).expand(-1, -1, count, -1)
            second = cells.unsqueeze(1).expand(-1, count, -1, -1)
            asked = questions[:, None, None].expand(-1, count, count, -1)
            pairs = torch.cat([first, second, asked], dim=3).view(batch * count * count, -1)
            total = self.relate(pairs).view(batch, count * count, -1).sum(dim=1)
        return self.f_fc2(F.relu(self.f_fc1(total)))


@torch.no_grad()
def accuracy(model, scenes):
    """Share of right answers."""
    model.eval()
    images, questions, answers = scenes
    right = (model(images, questions).argmax(dim=1) == answers).float().mean().item()
    model.train()
    return right


def main():
    torch.manual_seed(0)
    batches = iter(SceneLoader(make_scenes(2000, seed=1), BATCH, seed=2))
    held_out = make_scenes(64, seed=3)
    model = RelationNetwork()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        images, questions, answers = next(batches)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images, questions), answers)
        loss.backward()
        optimizer.step()
        if step % 100 == 99:
            print(f"step {step + 1} loss {loss.item():.4f} held out {accuracy(model, held_out):.3f}")
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
