"""Players on a court matched across cameras: messages along the edges of a graph."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1800))
CAMERAS = int(os.environ.get("CAMERAS", 4))
PLAYERS = int(os.environ.get("PLAYERS", 10))
FRAMES = int(os.environ.get("FRAMES", 2))
ROUNDS = int(os.environ.get("ROUNDS", 4))
LOOKS = int(os.environ.get("LOOKS", 512))
device = torch.device(os.environ.get("DEVICE", "cuda"))


def mlp(inputs, hidden, outputs):
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs), nn.ReLU())


class MessagePassing(nn.Module):
    """Updates the edges from their ends, then every node from the edges that enter it."""

    def __init__(self, node=32, edge=6):
        super().__init__()
        self.edge_message = mlp(2 * node + edge, 80, edge)
        self.node_message = mlp(node + edge, 56, node)

    def forward(self, graph, x, e):
        source, target = graph["source"], graph["target"]
        e = self.edge_message(torch.cat([x[target], x[source], e], 1))
        if VARIANT == "a":
            rows = []
            for node in range(len(x)):
                entering = graph["entering"][node]
                near = x[node].expand(len(entering), -1)
                message = self.node_message(torch.cat([near, e[entering]], 1))
                rows.append(message.sum(0))
            return torch.stack(rows), e
        message = self.node_message(torch.cat([x[target], e], 1))
        return torch.zeros_like(x).index_add_(0, target, message), e


class Matcher(nn.Module):
    def __init__(self):
        super().__init__()
        self.looks = nn.Sequential(nn.Linear(LOOKS, 128), nn.ReLU(), nn.Linear(128, 32), nn.ReLU())
        self.pair = nn.Sequential(nn.Linear(4, 18), nn.ReLU(), nn.Linear(18, 6), nn.ReLU())
        self.passing = MessagePassing()
        self.same = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1))

    def forward(self, graph):
        x = self.looks(graph["looks"])
        e = self.pair(graph["gaps"])
        scores = []
        for _ in range(ROUNDS):
            x, e = self.passing(graph, x, e)
            scores.append(self.same(e)[:, 0])
        return scores


def make_graph(number):
    """Boxes of a few frames: every box is joined with all boxes of the other cameras."""
    generator = torch.Generator().manual_seed(number)
    who = torch.arange(PLAYERS).repeat(CAMERAS * FRAMES)
    camera = torch.arange(CAMERAS).repeat_interleave(PLAYERS).repeat(FRAMES)
    frame = torch.arange(FRAMES).repeat_interleave(PLAYERS * CAMERAS)
    known = torch.randn(PLAYERS, LOOKS, generator=generator)
    looks = known[who] + 1.5 * torch.randn(len(who), LOOKS, generator=generator)
    floor = torch.rand(FRAMES, PLAYERS, 2, generator=generator)
    place = floor[frame, who] + 0.03 * torch.randn(len(who), 2, generator=generator)
    joined = (frame[:, None] == frame) & (camera[:, None] != camera)
    source, target = joined.nonzero().T
    gap = place[source] - place[target]
    alike = F.cosine_similarity(looks[source], looks[target])
    gaps = torch.stack([gap.norm(dim=1), gap.abs().sum(1), alike, 1 - alike], 1)
    entering = [(target == node).nonzero()[:, 0].to(device) for node in range(len(who))]
    graph = {"looks": looks, "gaps": gaps, "source": source, "target": target}
    graph["same"] = (who[source] == who[target]).float()
    graph = {name: value.to(device) for name, value in graph.items()}
    graph["entering"] = entering
    return graph


def focal(scores, wanted, gamma=1.0, alpha=0.95):
    chance = torch.sigmoid(scores)
    right = torch.where(wanted > 0, chance, 1 - chance)
    weight = torch.where(wanted > 0, alpha, 1 - alpha)
    return -(weight * (1 - right) ** gamma * right.clamp(min=1e-6).log()).mean()


def main():
    torch.manual_seed(71)
    graphs = [make_graph(n) for n in range(8)]
    model = Matcher().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        graph = graphs[step % len(graphs)]
        loss = torch.stack([focal(scores, graph["same"]) for scores in model(graph)]).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
